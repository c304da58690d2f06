"""Starting, stopping and refusing to start, on the real process."""

import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from tests.cases import each
from tests.helpers import PATIENCE_S, locked, run_sql, wait_until
from tests.integration.daemon import FREE_PORT, START_MAX_S, TWISTD, Daemon, refuse_here, run_postd
from tests.redis_server import free_port

JSON = {"Content-Type": "application/json"}


def test_ready_line_has_the_address(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        assert httpx.get(f"{daemon.url}/post").text == "[]\n"
        ready = [line for line in daemon.log.splitlines() if "postd ready" in line]
        assert len(ready) == 1
        assert ready[0].endswith(
            f"http://127.0.0.1:{daemon.port}/; store sqlite:{tmp_path}/postd.db; read open; write open; "
            "/basic basic; /digest digest"
        )
        assert daemon.port != 0
    assert "Traceback" not in daemon.log


def test_posts_outlive_a_restart(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        assert httpx.post(f"{daemon.url}/post", json={"post": "Grüße"}).headers["Location"] == "/post/1"
        etag = httpx.get(f"{daemon.url}/post").headers["ETag"]
        assert daemon.stop() == -signal.SIGTERM
    assert {path.name for path in tmp_path.iterdir()} == {"log", "postd.db"}  # the write-ahead log is folded in
    with Daemon(tmp_path) as daemon:
        assert httpx.get(f"{daemon.url}/post").json() == [{"id": 1, "post": "Grüße"}]
        assert httpx.get(f"{daemon.url}/post", headers={"If-None-Match": etag}).status_code == 304
        assert httpx.post(f"{daemon.url}/post", json={"post": "next"}).headers["Location"] == "/post/2"


def test_daemon_writes_only_its_store_and_log(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        httpx.post(f"{daemon.url}/post", json={"post": "x"})
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"log", "postd.db", "postd.db-wal", "postd.db-shm"}
        assert stat.S_IMODE((tmp_path / "postd.db").stat().st_mode) == 0o600


def test_settings_file_is_applied(socket_folder: Path) -> None:
    (socket_folder / "conf").mkdir()
    (socket_folder / "conf" / "postd.toml").write_text(
        'listen = ["tcp:0:interface=127.0.0.1", "unix:p.sock"]\nstore = "sqlite:posts.db"\n[limits]\nbody = "1KiB"\n'
    )
    with Daemon(socket_folder, "-c", "conf/postd.toml", listen=None) as daemon:
        assert httpx.post(f"{daemon.url}/post", json={"post": "x" * 2000}).status_code == 413
        transport = httpx.HTTPTransport(uds=str(socket_folder / "conf" / "p.sock"))
        with httpx.Client(transport=transport) as client:
            assert client.get("http://x/post").status_code == 200
            assert client.post("http://x/post", content=b"x" * 2000, headers=JSON).status_code == 413
    assert (socket_folder / "conf" / "posts.db").exists()
    assert not (socket_folder / "conf" / "p.sock").exists()


def test_memory_store_leaves_no_file(tmp_path: Path) -> None:
    with Daemon(tmp_path, "-s", "memory:") as daemon:
        assert httpx.post(f"{daemon.url}/post", json={"post": "x"}).status_code == 201
        assert httpx.get(f"{daemon.url}/post/1").status_code == 200
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_ssl_endpoint_serves(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    with Daemon(tmp_path, listen=f"ssl:0:privateKey={key}:certKey={cert}") as daemon:
        context = ssl.create_default_context(cafile=str(cert))
        context.set_alpn_protocols(["h2", "http/1.1"])
        url = f"https://localhost:{daemon.port}/post"
        with httpx.Client(verify=context) as client:
            assert client.post(url, json={"post": "x"}).status_code == 201
            assert client.post(url, content=b"x" * 20_000, headers=JSON).status_code == 413
            assert client.get(url).http_version == "HTTP/1.1"
        with (
            daemon.connect() as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            tls.sendall(b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n" + b"x" * 50_000)
            answer = b""
            while not answer.endswith(b"}\n"):
                answer += tls.recv(65536)
            assert answer.startswith(b"HTTP/1.1 413 ")
            tls.sendall(b"x" * 10_000)  # not reset: the connection lingers


def test_bad_request_over_tls_closes_the_connection(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    with Daemon(tmp_path, listen=f"ssl:0:privateKey={key}:certKey={cert}") as daemon:
        context = ssl.create_default_context(cafile=str(cert))
        with (
            daemon.connect() as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            lines = [b"POST /post HTTP/1.1", b"Bad Name: x", b"Host: localhost", b"Content-Type: application/json"]
            for line in (*lines, b"Content-Length: 12", b"", b'{"post":"x"}'):
                with suppress(OSError):  # it may have been closed by now
                    tls.sendall(line + b"\r\n")
                time.sleep(0.02)
        with httpx.Client(verify=context) as client:
            assert client.get(f"https://localhost:{daemon.port}/post").text == "[]\n"


def test_haproxy_endpoint_serves(tmp_path: Path) -> None:
    with Daemon(tmp_path, listen="haproxy:tcp:0:interface=127.0.0.1") as daemon:
        with daemon.connect() as client:
            client.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\nGET /post HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
        daemon.wait_for("192.0.2.7")
        with daemon.connect() as client:
            client.sendall(b"PROXY UNKNOWN\r\nGET /post?after=7 HTTP/1.0\r\nHost: x\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
        daemon.wait_for("after=7")
        with (
            daemon.connect() as client,
            client.makefile("rb") as file,
        ):
            client.sendall(b"PROXY UNKNOWN\r\n" + b"GET /post HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
            client.shutdown(socket.SHUT_WR)
            assert file.read().count(b"HTTP/1.1 200 OK") == 5
    (line,) = [line for line in daemon.log.splitlines() if "after=7" in line]
    assert "127.0.0.1" in line


def test_world_writable_unix_socket_of_trusted_peers_is_warned_of(socket_folder: Path) -> None:
    listen = ["unix:closed.sock", "unix:open.sock:mode=666"]
    settings = socket_folder / "postd.toml"
    settings.write_text(f"listen = {listen}")
    warned = f"unix:address={socket_folder}/open.sock:mode=666: every user of this machine can connect to this socket"
    with Daemon(socket_folder, "-c", "postd.toml", listen=None) as daemon:
        assert "every user" not in daemon.log
        for times in (1, 2):
            settings.write_text(f'listen = {listen}\ntrusted_proxies = ["unix", "192.0.2.{times}"]')
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_for(warned, times)
    assert daemon.log.count("every user") == 2


def test_daemon_runs_in_the_background(tmp_path: Path) -> None:
    """Twistd forks after the port is bound and before the store is opened."""
    assert run_postd(tmp_path, "-l", FREE_PORT, before=()).returncode == 0
    pid = int((tmp_path / "twistd.pid").read_text())
    try:
        daemon = Daemon(tmp_path)
        daemon.log_file = tmp_path / "twistd.log"
        deadline = time.monotonic() + START_MAX_S
        while "postd ready" not in daemon.log and time.monotonic() < deadline:
            time.sleep(0.05)
        assert httpx.post(f"{daemon.url}/post", json={"post": "x"}).status_code == 201
        assert httpx.get(f"{daemon.url}/post/1").status_code == 200
    finally:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), lambda: daemon.log)


def check_refused(result: "subprocess.CompletedProcess[str]", *words: str) -> None:
    assert result.returncode == 1, result
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("postd: ")
    for word in words:
        assert word in result.stderr


@each(
    "toml, words",
    [
        ("colour = 1", ["postd.toml: colour", "unknown key", "listen, store"]),
        ("store = 1", ["postd.toml: store", "expected a string"]),
        ("store = 'mysql:x'", ["postd.toml: store", "'mysql:x' is not a store", "allowed: sqlite:PATH, redis://"]),
        ("store = ''", ["postd.toml: store", "allowed: sqlite:PATH, redis://"]),
        ("store = 'sqlite:'", ["postd.toml: store", "allowed: sqlite:PATH, redis://"]),
        ("store = 'sqlite:no/such/folder/x.db'", ["postd.toml: store", "no/such/folder/x.db", "No such file"]),
        ("store = 'sqlite::memory:'", ["postd.toml: store", "allowed: sqlite:PATH, redis://"]),
        ('store = "sqlite:a\\u0000b"', ["postd.toml: store", "allowed: sqlite:PATH, redis://"]),
        ("listen = ['systemd:domain=INET:index=0']", ["postd.toml: listen", "systemd has not passed a socket"]),
        ("listen = ['tcp:x']", ["postd.toml: listen", "'tcp:x'"]),
        ("listen = []", ["postd.toml: listen", "nothing to listen on"]),
        ("[limits]\nbody = '1GB'", ["postd.toml: limits.body", "16KiB"]),
        ("listen = [", ["postd.toml", "not TOML"]),
        ("listen = ['tcp:0']", ["postd.toml: listen: tcp:0", 'insecure = ["open-writes"]']),
        ("listen = ['tcp:0:interface=127.0.0.1', 'tcp:0']", ["postd.toml: listen: tcp:0: ", "open-writes"]),
    ],
)
def test_unusable_settings_fail_the_start(tmp_path: Path, toml: str, words: list[str]) -> None:
    # Not on port 8080, which a daemon started by hand may have.
    (tmp_path / "postd.toml").write_text(toml if "listen" in toml else f"listen = ['{FREE_PORT}']\n{toml}")
    line = refuse_here(tmp_path, "-c", "postd.toml")
    assert all(word in line for word in words), line


@each("mode", [("--nodaemon", "--pidfile="), ("--pidfile=",)], ids=["foreground", "background"])
@each("toml", ["colour = 1", "store = 'sqlite:no/such/folder/x.db'", "listen = ['tcp:0']"])
def test_unusable_settings_exit_with_one_line(tmp_path: Path, mode: tuple[str, ...], toml: str) -> None:
    (tmp_path / "postd.toml").write_text(toml if "listen" in toml else f"listen = ['{FREE_PORT}']\n{toml}")
    check_refused(run_postd(tmp_path, "-c", "postd.toml", before=mode), f"postd.toml: {toml.partition(' ')[0]}")


@each(
    "options, words",
    [
        (["--config", "missing.toml"], ["missing.toml: cannot be read"]),
        (["--listne", "tcp:0"], ["option --listne not recognized", "--help"]),
        (["--store"], ["option --store requires argument"]),
        (["extra"], ["Wrong number of arguments"]),
        (["--store", "memory"], ["--store: 'memory' is not a store"]),
        (["-s", "sqlite:/", "-l", FREE_PORT], ["--store: /: it is not a file"]),
        (["-l", "tcp:0:interface=0.0.0.0"], ["--listen: tcp:0:interface=0.0.0.0", "open-writes"]),
        (["--workers", "two"], ["--workers: 'two' is not a whole number from 0 to 1024; 0 is one a core"]),
        (["--workers", "2", "--store", "memory:"], ["--workers: ", "memory:", "one process"]),
    ],
)
def test_unusable_options_fail_the_start(tmp_path: Path, options: list[str], words: list[str]) -> None:
    line = refuse_here(tmp_path, *options)
    assert all(word in line for word in words), line


def test_unusable_options_exit_with_one_line(tmp_path: Path) -> None:
    check_refused(run_postd(tmp_path, "--listne", "tcp:0"), "option --listne not recognized", "--help")


def test_stop_finishes_answers_and_logs_running_writes(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.connect() as client:
        with locked(tmp_path / "postd.db", "IMMEDIATE"):
            head = b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(head + b'Content-Length: 12\r\n\r\n{"post":"x"}')
            httpx.get(f"{daemon.url}/post")  # it came later: the other one has been read
            daemon.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        answer = b"".join(iter(lambda: client.recv(10_000), b""))
        daemon.stop()
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert '"POST /post HTTP/1.1" 201' in daemon.log


def test_failed_start_removes_its_sockets(socket_folder: Path) -> None:
    run_sql(socket_folder / "foreign.db", "CREATE TABLE customer (id)")
    check_refused(run_postd(socket_folder, "-l", "unix:p.sock", "-s", "sqlite:foreign.db"), "another program")
    check_refused(run_postd(socket_folder, "-l", "unix:p.sock", "-l", "tcp:x"))
    assert [path.name for path in socket_folder.iterdir()] == ["foreign.db"]


def test_failed_start_creates_no_store(tmp_path: Path) -> None:
    check_refused(run_postd(tmp_path, "-l", "tcp:x"))
    check_refused(run_postd(tmp_path, "-l", "tcp:0:interface=0.0.0.0"))
    assert list(tmp_path.iterdir()) == []


def test_path_that_is_not_utf_8_works(tmp_path: Path) -> None:
    with Daemon(tmp_path, "-s", os.fsdecode(b"sqlite:a\xffb.db")) as daemon:
        assert httpx.post(f"{daemon.url}/post", json={"post": "x"}).status_code == 201
        assert r"a\xffb.db" in daemon.log
    assert {os.fsencode(path.name) for path in tmp_path.iterdir()} == {b"a\xffb.db", b"log"}


def test_backup_restored_under_a_running_server_is_served(tmp_path: Path) -> None:
    store, backup = tmp_path / "postd.db", tmp_path / "backup.db"
    with Daemon(tmp_path) as daemon:
        httpx.post(f"{daemon.url}/post", json={"post": "in the backup"})
        etag = httpx.get(f"{daemon.url}/post").headers["ETag"]
    shutil.copy(store, backup)
    with Daemon(tmp_path) as daemon:
        for n in range(20):
            assert httpx.post(f"{daemon.url}/post", json={"post": f"after it {n}"}).status_code == 201
        backup.rename(store)
        daemon.wait_for("store: opened")
        assert httpx.get(f"{daemon.url}/post").json() == [{"id": 1, "post": "in the backup"}]
        assert httpx.get(f"{daemon.url}/post").headers["ETag"] == etag
        assert httpx.post(f"{daemon.url}/post", json={"post": "new"}).headers["Location"] == "/post/2"
    with Daemon(tmp_path) as daemon:
        assert [post["post"] for post in httpx.get(f"{daemon.url}/post").json()] == ["in the backup", "new"]


def test_insecure_open_writes_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "postd.toml").write_text('insecure = ["open-writes"]')
    with Daemon(tmp_path, "-c", "postd.toml", listen="tcp:0") as daemon:
        assert httpx.get(f"http://127.0.0.1:{daemon.port}/post").status_code == 200


def test_taken_port_fails_the_start(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        for mode in (("--nodaemon", "--pidfile="), ("--pidfile=",)):
            result = run_postd(tmp_path, "-l", f"tcp:{daemon.port}:interface=127.0.0.1", before=mode)
            check_refused(result, "--listen", str(daemon.port), "Address already in use")


def test_unusable_store_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database\n" * 1000)
    run_sql(tmp_path / "foreign.db", "CREATE TABLE customer (id)")
    for name, why in (("text.db", "not an SQLite database"), ("foreign.db", "another program")):
        check_refused(run_postd(tmp_path, "-l", FREE_PORT, "-s", f"sqlite:{name}"), "--store", name, why)


def test_locked_store_is_retried(tmp_path: Path) -> None:
    with Daemon(tmp_path):
        pass
    port = free_port()
    url = f"http://127.0.0.1:{port}/post"
    with ExitStack() as daemon_and_lock:
        lock = daemon_and_lock.enter_context(ExitStack())
        lock.enter_context(locked(tmp_path / "postd.db", "EXCLUSIVE"))
        daemon = daemon_and_lock.enter_context(Daemon(tmp_path, listen=f"tcp:{port}:interface=127.0.0.1", wait=False))
        daemon.wait_for("starting up")
        for answer in (httpx.get(url), httpx.post(url, json={"post": "x"})):
            assert answer.status_code == 503
            assert answer.headers["Retry-After"] == "1"
        assert "postd ready" not in daemon.log
        lock.close()
        daemon.wait_for("postd ready")
        assert httpx.post(url, json={"post": "x"}).status_code == 201
    assert "Traceback" not in daemon.log


def test_locked_store_that_turns_out_unusable_fails_the_start(tmp_path: Path) -> None:
    run_sql(tmp_path / "postd.db", "CREATE TABLE customer (id)")
    with ExitStack() as daemon_and_lock:
        lock = daemon_and_lock.enter_context(ExitStack())
        lock.enter_context(locked(tmp_path / "postd.db", "EXCLUSIVE"))
        daemon = daemon_and_lock.enter_context(Daemon(tmp_path, wait=False))
        daemon.wait_for("store not open")
        lock.close()
        assert daemon.process.wait(PATIENCE_S) == 1
    assert [line for line in daemon.log.splitlines() if line.startswith("postd: ")] == [
        f"postd: {tmp_path}/postd.db: it is an SQLite database of another program, not of postd"
    ]
    assert "Traceback" not in daemon.log


def test_help_lists_the_options() -> None:
    result = subprocess.run([TWISTD, "postd", "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    for word in ("--config=", "--listen=", "--store=", "http://127.0.0.1:8080/", "sqlite:PATH"):
        assert word in result.stdout
    assert result.stderr == ""


def test_listing_plugins_does_not_import_postd() -> None:
    script = (
        "import sys; from twisted.plugin import getPlugins; from twisted.application.service import IServiceMaker;"
        "assert 'postd' in {plugin.tapname for plugin in getPlugins(IServiceMaker)};"
        "assert 'postd' not in sys.modules and 'klein' not in sys.modules"
    )
    subprocess.run([str(Path(TWISTD).parent / "python"), "-c", script], check=True, timeout=PATIENCE_S)
