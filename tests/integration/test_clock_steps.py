"""A wall clock that is set by an hour, and back, stalls nothing, cuts no client off and revives nothing."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S, make_socket_folder, wait_until
from tests.integration.daemon import Daemon
from tests.integration.logins import DigestUser, is_stale, run_postd_user, see_home, sign_in
from tests.integration.shifted_clock import ShiftedClock
from tests.integration.test_bearer import bearer_table
from tests.issuer import Issuer, Key, Prover

ORIGIN = "https://posts.example"
SETTINGS = f"""
users = "users"
workers = 2
public_url = "{ORIGIN}"
hosts = ["*"]
shutdown_grace = "1s"
[[page]]
path = "/digest"
schemes = ["digest"]
[[page]]
path = "/basic"
schemes = ["basic"]
[[page]]
path = "/bearer"
schemes = ["bearer"]
[limits]
header_time = "3s"
idle_time = "4s"
[throttle]
failures = 2
window = "2m"
"""
HEADER_S, IDLE_S, WINDOW_S = 3, 4, 120
PURGED_WITHIN_S = 12
HOUR = 3600
BACK, FORWARD = -HOUR, HOUR

ALICE = DigestUser("alice", "secret")

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("step", [BACK, FORWARD], ids=["back", "forward"])]


class Server:
    """The settings, the user file and the clock of a daemon.

    Attributes:
        clock: its wall clock.
    """

    def __init__(self, folder: Path, issuer: Issuer, clock: ShiftedClock, notified: socket.socket) -> None:
        self.folder = folder
        self.issuer = issuer
        self.clock = clock
        self.clock.set(0)
        self._notified = notified
        (folder / "postd.toml").write_text(SETTINGS + bearer_table(issuer, dpop="accept"))
        run_postd_user(folder / "users", "add", "alice", "secret")
        self._prover = Prover(Key.make("ES256", "client"))

    def start(self) -> Daemon:
        return Daemon(self.folder, "-c", "postd.toml", through=self.clock.forks)

    def wait_for_watchdog(self, times: int) -> None:
        """Wait until the watchdog is notified the given number of times from now on."""
        self._notified.settimeout(0)
        with suppress(BlockingIOError):
            while self._notified.recv(4096):
                pass
        self._notified.settimeout(PATIENCE_S)
        while times:
            times -= b"WATCHDOG=1" in self._notified.recv(4096)

    def add_user(self, daemon: Daemon, name: str) -> None:
        """Add a user with the password "secret", who can sign in once both workers have read the file again."""
        before = daemon.log.count("/users: ")
        run_postd_user(self.folder / "users", "add", name, "secret")
        daemon.wait_for("/users: ", before + 2)
        assert httpx.get(f"{daemon.url}/basic", auth=(name, "secret")).status_code == 200

    def proof(self) -> dict[str, str]:
        """Return the fields of a request with a bound token and a new proof."""
        token = self.issuer.token(cnf=self._prover.confirmation, exp=int(time.time()) + 10 * HOUR)
        return {"Authorization": f"DPoP {token}", "DPoP": self._prover.prove("GET", f"{ORIGIN}/bearer", token)}

    def statuses(self, daemon: Daemon, path: str, fields: dict[str, str], count: int = 4) -> set[int]:
        """Send a request several times, each on a connection of its own: workers take turns."""
        return {httpx.get(f"{daemon.url}{path}", headers=fields, timeout=PATIENCE_S).status_code for _ in range(count)}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer(ORIGIN, Key.make("ES256")) as issuer:
        yield issuer


@pytest.fixture(scope="module")
def notified() -> Iterator[socket.socket]:
    """The socket that is notified by the watchdog of each daemon."""
    with make_socket_folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(folder / "notify"))
        yield notified


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory, notified: socket.socket) -> ShiftedClock:
    folder = tmp_path_factory.mktemp("module") / "clock"
    return ShiftedClock(folder, NOTIFY_SOCKET=notified.getsockname(), WATCHDOG_USEC="1000000")


@pytest.fixture
def server(tmp_path: Path, issuer: Issuer, clock: ShiftedClock, notified: socket.socket) -> Server:
    return Server(tmp_path, issuer, clock, notified)


class Client:
    """A connection that has sent something."""

    def __init__(self, daemon: Daemon, sent: bytes = b"") -> None:
        self._socket = daemon.connect()
        self._socket.sendall(sent)
        self._received = b""

    def close(self) -> None:
        self._socket.close()

    def wait_for(self, text: bytes, *, within_s: float = PATIENCE_S) -> bytes:
        """Return what was received up to a text, or to the end of the connection if the text is empty."""
        deadline = time.monotonic() + within_s
        while not text or text not in self._received:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            part = self._socket.recv(65536)
            if not part:
                assert not text, self._received
                break
            self._received += part
        return self._received

    def is_quiet(self) -> bool:
        """Return whether the server has neither sent anything new nor closed the connection."""
        with suppress(BlockingIOError):
            self._socket.settimeout(0)
            self._received += self._socket.recv(65536)
            return False
        return True


def has_digest_logins(daemon: Daemon) -> bool:
    """Return whether new nonces are good for a login, by any worker."""
    with httpx.Client(base_url=daemon.url, timeout=PATIENCE_S) as client:
        return all(ALICE.get(client, ALICE.nonce(daemon), 1).status_code == 200 for _ in range(4))


def test_timers_go_on(server: Server, step: float) -> None:
    with server.start() as daemon, ExitStack() as stack:

        def connect(sent: bytes = b"") -> Client:
            return stack.enter_context(closing(Client(daemon, sent)))

        stream = connect(b"GET /post/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        stream.wait_for(b"retry:")
        begun, silent = time.monotonic(), connect()
        half = connect(b"GET / HT")
        workers = daemon.workers
        for ahead_s in (step, 0):
            server.clock.set(ahead_s)
            server.wait_for_watchdog(times=3)
            assert httpx.post(f"{daemon.url}/post", json={"post": f"at {ahead_s}"}).status_code == 201
            stream.wait_for(f"at {ahead_s}".encode())
            server.add_user(daemon, f"user{ahead_s}")
            if time.monotonic() < begun + HEADER_S - 1:
                assert half.is_quiet()
                assert silent.is_quiet()
        assert half.wait_for(b"\r\n").startswith(b"HTTP/1.1 408")
        silent.wait_for(b"")
        daemon.wait_for('"GET /basic')
        assert daemon.workers == workers
        server.clock.set(step)
        os.kill(workers[1], signal.SIGKILL)
        wait_until(lambda: len(daemon.workers) == 2 and daemon.workers != workers, lambda: daemon.log)
        connect(b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")  # it waits for the rest
        daemon.process.send_signal(signal.SIGTERM)
        daemon.wait_for("Received SIGTERM")
        server.clock.set(0)
        daemon.process.wait(PATIENCE_S)
        assert "did not answer" not in daemon.log
        assert "killing it" not in daemon.log


def test_step_cuts_nobody_off_and_revives_nothing(server: Server, step: float) -> None:
    with server.start() as daemon, httpx.Client(base_url=daemon.url, timeout=PATIENCE_S) as client:
        live, ended = (sign_in(daemon, "alice", "secret").cookies["session"] for _ in range(2))
        client.post("/logout", headers={"Cookie": f"session={ended}", "Origin": ORIGIN})
        used, proof = ALICE.nonce(daemon), server.proof()
        assert ALICE.get(client, used, 1).status_code == 200
        assert server.statuses(daemon, "/bearer", proof) == {200, 401}
        key = {"Idempotency-Key": "one"}
        assert client.post("/post", json={"post": "once"}, headers=key).headers["Location"] == "/post/1"
        server.add_user(daemon, "bob")
        failed = [client.get("/basic", auth=("bob", "wrong")).status_code for _ in range(3)]
        assert failed == [401, 401, 429]

        for ahead_s in (step, 0):
            server.clock.set(ahead_s)
            if ahead_s:
                os.kill(daemon.workers[1], signal.SIGKILL)
                daemon.wait_for("replacing the one that ended")
                time.sleep(PURGED_WITHIN_S)
            fields = {"Cookie": f"session={live}"}
            assert server.statuses(daemon, "/home", fields, 8) == {200}
            fields = {"Cookie": f"session={ended}"}
            assert server.statuses(daemon, "/home", fields) == {302}
            assert is_stale(ALICE.get(client, used, 1))
            assert {ALICE.get(client, used, 2 + (ahead_s != 0)).status_code for _ in range(2)} == {200, 401}
            assert has_digest_logins(daemon)
            assert server.statuses(daemon, "/bearer", proof) == {401}
            assert client.post("/post", json={"post": "once"}, headers=key).headers["Location"] == "/post/1"
            late = client.get("/basic", auth=("bob", "secret"))
            assert (late.status_code, 0 < int(late.headers["Retry-After"]) <= WINDOW_S) == (429, True)
            assert see_home(daemon, sign_in(daemon, "alice", "secret").cookies["session"]).status_code == 200
        assert 200 in server.statuses(daemon, "/bearer", server.proof())


def test_restart_with_a_wrong_clock_revives_nothing_and_stalls_nothing(server: Server, step: float) -> None:
    used: list[str] = []
    proofs: list[dict[str, str]] = []
    ended: list[str] = []
    for ahead_s in (0, step, 0):
        server.clock.set(ahead_s)
        with server.start() as daemon, httpx.Client(base_url=daemon.url, timeout=PATIENCE_S) as client:
            for nonce in used:
                assert is_stale(ALICE.get(client, nonce, 1))
            for proof in proofs:
                assert server.statuses(daemon, "/bearer", proof) == {401}
            for session in ended:
                assert see_home(daemon, session).status_code == 302
            assert has_digest_logins(daemon)
            session = sign_in(daemon, "alice", "secret").cookies["session"]
            assert server.statuses(daemon, "/home", {"Cookie": f"session={session}"}) == {200}
            client.post("/logout", headers={"Cookie": f"session={session}", "Origin": ORIGIN})
            ended.append(session)
            used.append(ALICE.nonce(daemon))
            assert ALICE.get(client, used[-1], 1).status_code == 200
            if not ahead_s:
                proofs.append(server.proof())
                assert server.statuses(daemon, "/bearer", proofs[-1]) == {200, 401}
            late = [client.get("/basic", auth=(f"bob{len(used)}", "wrong")) for _ in range(3)][-1]
            assert (late.status_code, 0 < int(late.headers["Retry-After"]) <= WINDOW_S) == (429, True)
