"""Several processes on the same sockets, as one service."""

import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S, locked, run_sql, wait_until
from tests.integration.daemon import (
    FREE_PORT,
    STOP_MAX_S,
    TWISTD,
    Daemon,
    find_workers,
    is_running,
    run_postd,
    wait_for_end,
)
from tests.integration.logins import DigestUser, is_stale, run_postd_user, sign_in, sign_in_at_once
from tests.integration.test_crash import Writer, check_refused
from tests.redis_server import free_port

TWO = ("--workers", "2")
PASSWORD = "correct horse"


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """A user file with alice in it."""
    run_postd_user(tmp_path / "users", "add", "alice", PASSWORD)
    return tmp_path / "users"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with two workers and the user alice, which the tests share."""
    folder = tmp_path_factory.mktemp("daemon")
    run_postd_user(folder / "users", "add", "alice", PASSWORD)
    with Daemon(folder, *TWO, "-u", "users") as daemon:
        yield daemon


@contextmanager
def clients_of_each(daemon: Daemon) -> Iterator[list[httpx.Client]]:
    """Connect a client to each worker, by pausing the others; each stays connected to its worker."""
    workers = daemon.workers
    with ExitStack() as closing:
        clients = []
        for number in sorted(workers):
            others = [pid for one, pid in workers.items() if one != number]
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            client = closing.enter_context(httpx.Client(base_url=daemon.url, timeout=PATIENCE_S))
            try:
                client.get("/nothing")
            finally:
                for pid in others:
                    os.kill(pid, signal.SIGCONT)
            clients.append(client)
        yield clients


def wait_for_workers(daemon: Daemon, *, without: int) -> dict[int, int]:
    """Wait until a killed worker has been replaced; return the current ones."""
    wait_until(lambda: len(daemon.workers) >= 2 and without not in daemon.workers.values(), lambda: daemon.log)
    return daemon.workers


def test_workers_serve_and_ready_is_logged_once(tmp_path: Path) -> None:
    with Daemon(tmp_path, *TWO) as daemon:
        assert sorted(daemon.workers) == [1, 2]
        with clients_of_each(daemon) as clients:
            assert [client.get("/post").text for client in clients] == ["[]\n", "[]\n"]
        ready = [line for line in daemon.log.splitlines() if "postd ready" in line]
        assert len(ready) == 1
        assert ready[0].endswith(
            f" postd ready: http://127.0.0.1:{daemon.port}/; store sqlite:{tmp_path}/postd.db; read open; write open; "
            "/basic basic; /digest digest; 2 workers"
        )
        daemon.wait_for('"GET /post HTTP/1.1" 200 3 ', times=2)
    assert re.search(r'(?m)^"?127\.0\.0\.1"? - - \[.*\] "GET /', daemon.log)
    assert "Traceback" not in daemon.log


def test_post_is_visible_on_all_workers_at_once(daemon: Daemon) -> None:
    with clients_of_each(daemon) as (first, second):
        for round_ in range(20):
            etag = second.get("/post").headers["ETag"]
            path = first.post("/post", json={"post": f"{round_}"}).headers["Location"]
            seen = second.get("/post", headers={"If-None-Match": etag})
            assert seen.status_code == 200
            assert seen.json()[-1]["post"] == f"{round_}"
            assert seen.headers["ETag"] == first.get("/post").headers["ETag"]
            unchanged = first.get("/post", headers={"If-None-Match": seen.headers["ETag"]})
            assert unchanged.status_code == 304
            one = first.get(path).headers["ETag"]
            assert second.put(path, json={"post": "other"}).status_code == 200
            lost = first.put(path, json={"post": "lost"}, headers={"If-Match": one})
            assert lost.status_code == 412


def test_session_is_shared_by_all_workers(daemon: Daemon) -> None:
    with clients_of_each(daemon) as (first, second):
        session = {"Cookie": f"session={sign_in(daemon, 'alice', PASSWORD).cookies['session']}"}
        for client in (first, second):
            assert client.get("/home", headers=session).text == "Success: alice\n"
        assert second.post("/logout", headers=session).status_code == 302
        for client in (first, second):
            assert client.get("/home", headers=session).headers["Location"] == "/"


def test_limit_of_sessions_is_that_of_all_workers(daemon: Daemon) -> None:
    live = sign_in_at_once([daemon], "alice", PASSWORD, 130)
    assert len(live) == 100
    with clients_of_each(daemon) as clients:
        for client in clients:
            statuses = [client.get("/home", headers={"Cookie": f"session={one}"}).status_code for one in live]
            assert statuses == [200] * 100


def test_nonce_count_is_valid_once_on_all_workers(daemon: Daemon) -> None:
    alice = DigestUser("alice", PASSWORD)
    with clients_of_each(daemon) as clients:
        first, second = clients
        nonce = alice.nonce(daemon)
        assert alice.get(first, nonce, 1).text == "Success: alice\n"
        assert is_stale(alice.get(second, nonce, 1))
        assert alice.get(second, nonce, 2).text == "Success: alice\n"
        assert is_stale(alice.get(first, nonce, 2))
        counts = range(3, 103)
        with ThreadPoolExecutor(8) as threads:  # both at the same time
            answers = {
                (place, count): threads.submit(alice.get, client, nonce, count)
                for count in counts
                for place, client in enumerate(clients)
            }
        for count in counts:
            statuses = sorted(answers[place, count].result().status_code for place in (0, 1))
            assert statuses == [200, 401]


def test_failures_are_counted_on_all_workers_together(tmp_path: Path, users: Path) -> None:
    (tmp_path / "postd.toml").write_text("workers = 2\n[throttle]\nfailures = 4\n")
    with (
        Daemon(tmp_path, "-c", "postd.toml", "-u", str(users)) as daemon,
        clients_of_each(daemon) as (first, second),
    ):
        for client in (first, second, first, second):
            assert client.get("/basic", auth=("alice", "wrong")).status_code == 401
        for client in (first, second):
            refused = client.get("/basic", auth=("alice", PASSWORD))
            assert refused.status_code == 429
            assert "Retry-After" in refused.headers


def test_killed_worker_is_replaced_without_interruption(tmp_path: Path) -> None:
    (tmp_path / "postd.toml").write_text("workers = 2\n")
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        (tmp_path / "postd.toml").write_text("workers = 'broken since'\n")
        for round_ in (1, 2):
            before = daemon.workers
            os.kill(before[round_], signal.SIGKILL)
            for _ in range(20):
                assert httpx.get(f"{daemon.url}/post").status_code == 200
            after = wait_for_workers(daemon, without=before[round_])
            assert after[3 - round_] == before[3 - round_]
            daemon.wait_for(f"worker {round_} (process {after[round_]}) is ready")
            assert (
                f"worker {round_} (process {before[round_]}) ended: killed by SIGKILL; starting another" in daemon.log
            )
        # The first workers have all been replaced.
        with clients_of_each(daemon) as clients:
            for client in clients:
                assert client.post("/post", json={"post": "x"}).status_code == 201
        assert daemon.log.count("postd ready") == 1


def test_crash_output_of_python_is_logged(tmp_path: Path) -> None:
    """Only the parent reads the standard error of a worker."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("PYTHONFAULTHANDLER", "1")
        with Daemon(tmp_path, *TWO) as daemon:
            pid = daemon.workers[2]
            os.kill(pid, signal.SIGSEGV)
            daemon.wait_for(f"worker 2 (process {pid}) ended: killed by SIGSEGV")
            assert f"worker 2 (process {pid}): Fatal Python error: Segmentation fault" in daemon.log
            wait_for_workers(daemon, without=pid)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    listen = f"tcp:{free_port()}:interface=127.0.0.1"
    with Daemon(tmp_path, *TWO, listen=listen) as daemon:
        httpx.post(f"{daemon.url}/post", json={"post": "x"})
        workers = daemon.workers
        daemon.kill()
        wait_for_end(*workers.values())
    assert not (tmp_path / "postd.db-wal").exists()  # they have closed the store
    with Daemon(tmp_path, *TWO, listen=listen) as daemon:
        assert httpx.get(f"{daemon.url}/post/1").json() == {"id": 1, "post": "x"}


def test_stop_under_load_loses_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    acknowledged: dict[int, str] = {}
    with Daemon(tmp_path, *TWO) as daemon:
        enough = threading.Event()
        writers = [Writer(daemon.url, f"{n}", enough, acknowledged) for n in range(8)]
        for writer in writers:
            writer.start()
        assert enough.wait(PATIENCE_S)
        workers = daemon.workers
        assert daemon.stop() == -signal.SIGTERM
        for writer in writers:
            writer.join()
        check_refused(writers, daemon.log)
        assert not any(is_running(pid) for pid in workers.values())
    assert {path.name for path in tmp_path.iterdir()} == {"log", "postd.db"}
    assert "Traceback" not in daemon.log
    with Daemon(tmp_path) as daemon:
        stored = {post["id"]: post["post"] for post in httpx.get(f"{daemon.url}/post").json()}
    assert {post_id: stored.get(post_id) for post_id in acknowledged} == acknowledged


def test_workers_of_a_process_that_has_ended_are_none() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(PATIENCE_S)
    assert find_workers(process.pid) == {}


BODY = b'{"post": "sent in two parts"}'
HEAD = b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
    BODY
)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_stop_finishes_requests_and_closes_idle_connections(tmp_path: Path, workers: str) -> None:
    with Daemon(tmp_path, "--workers", workers) as daemon, ExitStack() as closing:

        def connect() -> socket.socket:
            return closing.enter_context(daemon.connect())

        idle, slow = [connect() for _ in range(4)], [connect() for _ in range(4)]
        for client in slow:
            client.sendall(HEAD + BODY[:10])
        for client in idle:
            client.sendall(b"GET /post HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"Connection: close" not in client.recv(10_000)
        for pid in (*daemon.workers.values(), daemon.process.pid):
            os.kill(pid, signal.SIGTERM)  # to each of them, as systemd does
        for client in idle:
            assert client.recv(100) == b""
        for client in slow:
            client.sendall(BODY[10:])
            answer = b"".join(iter(lambda client=client: client.recv(10_000), b""))  # type: ignore[misc]
            assert answer.startswith(b"HTTP/1.1 201 Created\r\n")
            assert b"\r\nConnection: close\r\n" in answer
        assert daemon.stop() == -signal.SIGTERM
    assert daemon.log.count('"POST /post HTTP/1.1" 201') == 4
    assert "Traceback" not in daemon.log


def finish(slow: socket.socket) -> bytes:
    """Send the rest of a request; return the response."""
    slow.sendall(BODY[10:])
    return b"".join(iter(lambda: slow.recv(10_000), b""))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_stop_finishes_requests_though_the_socket_file_is_gone(socket_folder: Path, workers: str) -> None:
    name = socket_folder / "socket"
    with (
        Daemon(socket_folder, "--workers", workers, listen=f"unix:{name}") as daemon,
        socket.socket(socket.AF_UNIX) as slow,
    ):
        slow.settimeout(STOP_MAX_S)
        slow.connect(str(name))
        slow.sendall(HEAD + BODY[:10])
        name.unlink()
        daemon.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # it would have ended long ago
        assert finish(slow).startswith(b"HTTP/1.1 201 Created\r\n")
        assert daemon.stop() == -signal.SIGTERM
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize("workers", ["1", "2"])
def test_background_daemon_keeps_its_unix_socket_until_it_has_stopped(socket_folder: Path, workers: str) -> None:
    """Twistd forks after the socket is bound, and the lock beside it has the process id of the binder."""
    name = socket_folder / "socket"
    assert run_postd(socket_folder, "-l", f"unix:{name}", "-w", workers, before=()).returncode == 0
    pid = int((socket_folder / "twistd.pid").read_text())
    daemon = Daemon(socket_folder)
    daemon.log_file = socket_folder / "twistd.log"
    with socket.socket(socket.AF_UNIX) as slow:
        try:
            wait_until(lambda: "postd ready" in daemon.log, lambda: daemon.log)
            assert Path(f"{name}.lock").readlink() == Path(str(pid))
            slow.settimeout(STOP_MAX_S)
            slow.connect(str(name))
            slow.sendall(HEAD + BODY[:10])
            another = run_postd(socket_folder, "-l", f"unix:{name}", "-s", "sqlite:other.db")
            assert another.returncode == 1
            assert "cannot listen" in another.stderr
        finally:
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.3)  # it would have ended long ago
        assert finish(slow).startswith(b"HTTP/1.1 201 Created\r\n")
        wait_for_end(pid)
    assert sorted(path.name for path in socket_folder.iterdir()) == ["postd.db", "twistd.log"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_stop_finishes_running_password_verifications(tmp_path: Path, users: Path, workers: str) -> None:
    # Fewer than failures may be pending: on a busy machine others would be answered with 429.
    with Daemon(tmp_path, "--workers", workers, "-u", str(users)) as daemon, ThreadPoolExecutor(8) as threads:
        logins = [threads.submit(sign_in, daemon, "alice", PASSWORD) for _ in range(8)]
        while not any(login.done() for login in logins):
            time.sleep(0.005)
        assert daemon.stop() == -signal.SIGTERM
        # A request that was not read yet is refused; all others are authenticated and answered.
        answers = []
        for login in logins:
            with suppress(httpx.TransportError):
                answers.append(login.result())
        assert {answer.headers["Location"] for answer in answers} == {"/home"}
        assert daemon.log.count('"POST /login HTTP/1.1" 302') == len(answers)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sighup_reloads_users_and_keeps_workers(tmp_path: Path, users: Path, workers: str) -> None:
    with Daemon(tmp_path, "--workers", workers, "-u", str(users)) as daemon:
        before = daemon.workers
        run_postd_user(users, "add", "bob", PASSWORD)
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("SIGHUP: ")
        daemon.wait_for(f"{users}: 2 users", times=int(workers))
        for pid in before.values():
            os.kill(pid, signal.SIGHUP)  # `systemctl kill` and a terminal signal all of them
        with clients_of_each(daemon) as clients, httpx.Client(base_url=daemon.url) as any_client:
            for client in (*clients, any_client):
                assert client.get("/basic", auth=("bob", PASSWORD)).text == "Success: bob\n"
        assert daemon.log.count("SIGHUP") == 1
        assert daemon.workers == before
        assert daemon.process.poll() is None


def test_workers_serve_all_kinds_of_listeners(socket_folder: Path, certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    more = ["-l", f"ssl:0:privateKey={key}:certKey={cert}:interface=127.0.0.1", "-l", "unix:p.sock:mode=660"]
    more += ["-l", "haproxy:tcp:0:interface=127.0.0.1", "-l", "haproxy:unix:h.sock", "-l", "tcp6:0:interface=\\:\\:1"]
    with Daemon(socket_folder, *TWO, *more) as daemon:
        sock = socket_folder / "p.sock"
        ready = re.search(r"postd ready: (.*?);", daemon.log)
        assert ready is not None
        plain, tls, _, haproxy, _, ipv6 = ready[1].split(", ")
        for _ in range(2):  # as it is, and when all workers are other ones
            for _ in range(10):
                assert httpx.get(f"{plain}post").text == "[]\n"
                assert httpx.get(f"{ipv6}post").text == "[]\n"
                context = ssl.create_default_context(cafile=str(cert))
                assert httpx.get(f"{tls}post".replace("127.0.0.1", "localhost"), verify=context).text == "[]\n"
                with httpx.Client(transport=httpx.HTTPTransport(uds=str(sock))) as client:
                    assert client.get("http://x/post").text == "[]\n"
                address = ("127.0.0.1", int(haproxy.rpartition(":")[2].rstrip("/")))
                with socket.create_connection(address, timeout=PATIENCE_S) as proxied:
                    check_proxied(proxied)
                with socket.socket(socket.AF_UNIX) as proxied:
                    proxied.settimeout(PATIENCE_S)
                    proxied.connect(str(socket_folder / "h.sock"))
                    check_proxied(proxied)
            assert stat.S_IMODE(sock.stat().st_mode) == 0o660
            before = daemon.workers
            for pid in before.values():
                os.kill(pid, signal.SIGTERM)  # a worker ends in an orderly way, and yet leaves what is shared alone
                wait_for_workers(daemon, without=pid)
        daemon.wait_for("\n192.0.2.7 - - ")
    assert not sock.exists()
    assert not (socket_folder / "h.sock").exists()


def check_proxied(client: socket.socket) -> None:
    client.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\nGET /post HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.slow
def test_workers_serve_a_systemd_socket(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/post"
        # What systemd does: the first socket is number 3, and the process that it is for is named.
        script = f'exec 3<&{server.fileno()}; LISTEN_FDS=1 LISTEN_FDNAMES=web LISTEN_PID=$$ exec "$@"'
        command = [TWISTD, "-n", "--pidfile=", "postd", *TWO, "-l", "systemd:domain=INET:index=0"]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", script, "bash", *command],
                cwd=tmp_path,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[server.fileno()],
            )
    daemon = Daemon(tmp_path)
    daemon.process = process
    try:
        daemon.wait_for("postd ready")
        for pid in daemon.workers.values():
            assert httpx.get(url).text == "[]\n"
            os.kill(pid, signal.SIGKILL)
            wait_for_workers(daemon, without=pid)
        # The new ones may still be importing: the client waits in the socket's backlog.
        assert httpx.get(url).text == "[]\n"
        assert httpx.get(url, headers={"Host": "posts.example"}).status_code == 421  # by the address it really has
    finally:
        daemon.stop()


def test_workers_0_is_one_a_core(tmp_path: Path) -> None:
    (tmp_path / "postd.toml").write_text("workers = 0\n")
    cores = len(os.sched_getaffinity(0))
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        assert len(daemon.workers) == (cores if cores > 1 else 0)
        assert httpx.get(f"{daemon.url}/post").status_code == 200


def test_daemon_runs_in_the_background(tmp_path: Path) -> None:
    assert run_postd(tmp_path, *TWO, "-l", FREE_PORT, before=()).returncode == 0
    pid = int((tmp_path / "twistd.pid").read_text())
    daemon = Daemon(tmp_path)
    daemon.log_file = tmp_path / "twistd.log"
    try:
        wait_until(lambda: "postd ready" in daemon.log, lambda: daemon.log)
        workers = find_workers(pid)
        assert sorted(workers) == [1, 2]
        assert httpx.post(f"{daemon.url}/post", json={"post": "x"}).status_code == 201
    finally:
        os.kill(pid, signal.SIGTERM)
        wait_for_end(pid)
    wait_for_end(*workers.values())
    assert '"POST /post HTTP/1.1" 201' in daemon.log
    assert not (tmp_path / "twistd.pid").exists()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_is_quiet(tmp_path: Path, workers: str) -> None:
    with Daemon(tmp_path, "--workers", workers) as daemon:
        daemon.interrupt()
        assert daemon.process.wait(STOP_MAX_S) == -signal.SIGINT
    assert "Traceback" not in daemon.log
    assert "ended" not in daemon.log


def test_ctrl_c_is_quiet_while_workers_start(tmp_path: Path) -> None:
    with Daemon(tmp_path, *TWO, wait=False) as daemon:
        daemon.wait_for("starting up")
        wait_until(lambda: daemon.workers, lambda: daemon.log)
        daemon.interrupt()
        assert daemon.process.wait(STOP_MAX_S) == -signal.SIGINT
    assert "Traceback" not in daemon.log


def test_store_that_turns_out_unusable_stops_all_workers(tmp_path: Path) -> None:
    run_sql(tmp_path / "postd.db", "CREATE TABLE customer (id)")
    with ExitStack() as daemon_and_lock:
        lock = daemon_and_lock.enter_context(ExitStack())
        lock.enter_context(locked(tmp_path / "postd.db", "EXCLUSIVE"))
        daemon = daemon_and_lock.enter_context(Daemon(tmp_path, *TWO, wait=False))
        daemon.wait_for("store not open", times=2)
        workers = daemon.workers
        assert len(workers) == 2
        lock.close()
        assert daemon.process.wait(STOP_MAX_S) == 1
        assert not any(is_running(pid) for pid in workers.values())
    assert [line for line in daemon.log.splitlines() if line.startswith("postd: ")] == [
        f"postd: {tmp_path}/postd.db: it is an SQLite database of another program, not of postd"
    ]


def test_connections_are_refused_while_the_last_request_finishes(socket_folder: Path) -> None:
    with Daemon(socket_folder, *TWO, "-l", "unix:p.sock") as daemon:
        address = ("127.0.0.1", daemon.port)
        with socket.create_connection(address, timeout=STOP_MAX_S) as slow:
            slow.sendall(HEAD + BODY[:10])
            daemon.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_MAX_S
            with pytest.raises(ConnectionRefusedError):
                while time.monotonic() < deadline:
                    socket.create_connection(address, timeout=STOP_MAX_S).close()
                    time.sleep(0.02)
            assert not (socket_folder / "p.sock").exists()
            slow.sendall(BODY[10:])
            assert slow.recv(10_000).startswith(b"HTTP/1.1 201 Created\r\n")
        assert daemon.process.wait(STOP_MAX_S) == -signal.SIGTERM
    assert "Traceback" not in daemon.log
