"""The throttle bounds wrong credentials that arrive at the same moment (reference: Throttle).

A burst is hundreds of connections, each with a request of which the last byte is missing; then all last bytes are sent.
With `stalled`, the server stands still meanwhile, and finds all of them in one turn of its reactor.
"""

import base64
import itertools
import os
import resource
import selectors
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

import bcrypt
import httpx
import pytest

from tests.helpers import PATIENCE_S, wait_until
from tests.integration.daemon import Daemon
from tests.integration.logins import DigestUser, h_a1
from tests.issuer import INTROSPECTION, Issuer, Key
from tests.redis_server import RedisServer
from tests.store.redis.test_sentinel import start_group

FAILURES = 10
BURST = 250
SIZES = (BURST, BURST // 4, BURST // 16)
"""The number of wrong passwords at once; a smaller burst follows one that overloads a busy machine (503)."""

TIMEOUT_S = PATIENCE_S

SETTINGS = f"""
users = "users"
[throttle]
failures = {FAILURES}
address_failures = 100000
account_failures = 100000
window = "1h"
[limits]
header_time = "60s"
"""

NAMES = iter(f"user{n}" for n in range(1000))
"""One account for each burst, so that earlier failures do not count."""

PASSWORD = "the right one"


def user_line(name: str) -> str:
    """Return a line of the user file, with a hash that is quickly verified."""
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    return f"{name}:{hashed}:MD5={h_a1('MD5', name, 'postd', PASSWORD)},realm=postd\n"


@pytest.fixture(scope="module", autouse=True)
def _descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def start(stack: ExitStack, folder: Path, store: str = "", *, workers: int = 1) -> Daemon:
    folder.mkdir(exist_ok=True)
    (folder / "users").write_text("".join(user_line(f"user{n}") for n in range(80)))
    (folder / "postd.toml").write_text((f'store = "{store}"\n' if store else "") + SETTINGS)
    return stack.enter_context(Daemon(folder, "-c", "postd.toml", "--workers", str(workers)))


@pytest.fixture(scope="module", params=["SQLite", "SQLite, 4 workers", "Redis", "Redis, 2 nodes"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Daemon]]:
    folder = tmp_path_factory.mktemp("burst")
    with ExitStack() as stack:
        if request.param.startswith("SQLite"):
            yield [start(stack, folder, workers=4 if "4" in request.param else 1)]
        else:
            url = stack.enter_context(RedisServer(folder / "redis")).url
            yield [start(stack, folder / f"node{n}", url) for n in range(2 if "2" in request.param else 1)]


def processes_of(servers: Sequence[Daemon]) -> list[int]:
    """Return the processes that accept connections."""
    return [pid for server in servers for pid in (*server.workers.values(),) or (server.process.pid,)]


Request = Callable[[str, str, int], bytes]
"""Makes a request from a name, a password and a number that is unique in the burst."""


def basic(_: Daemon) -> Request:
    def request(name: str, password: str, _number: int) -> bytes:
        value = base64.b64encode(f"{name}:{password}".encode())
        return b"GET /basic HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Basic %b\r\n\r\n" % value

    return request


def form(_: Daemon) -> Request:
    def request(name: str, password: str, _number: int) -> bytes:
        body = urlencode({"username": name, "password": password}).encode()
        return (
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\n%b" % (len(body), body)
        )

    return request


def digest(server: Daemon) -> Request:
    nonce = DigestUser("", "").nonce(server)

    def request(name: str, password: str, number: int) -> bytes:
        value = DigestUser(name, password).credentials(nonce, number + 1).encode()
        return b"GET /digest HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: %b\r\n\r\n" % value

    return request


SCHEMES = {"basic": basic, "form": form, "digest": digest}


@contextmanager
def stopped(processes: Sequence[int]) -> Iterator[None]:
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


def send_burst(
    servers: Sequence[Daemon],
    requests: Sequence[bytes],
    *,
    stalled: bool,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[int]:
    """Send requests whose last bytes are sent together; return their statuses, 0 for a lost connection."""
    with ExitStack() as stack:
        connections = []
        for number, request in enumerate(requests):
            connection = stack.enter_context(servers[number % len(servers)].connect())
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(request[:-1])
            connections.append(connection)
        time.sleep(0.3)  # all of them are accepted, and what was sent is read
        with ExitStack() as waiting:
            if stalled:
                waiting.enter_context(stopped(processes_of(servers)))
            for connection, request in zip(connections, requests, strict=True):
                connection.send(request[-1:])
            meanwhile()
        return read_statuses(connections)


def send_patiently(servers: Sequence[Daemon], request: Request, name: str, first: int, count: int = 1) -> Sequence[int]:
    """Send the right password; again as long as an answer is 503, which it may be where the machine is busy.

    Args:
        servers: where to.
        request: makes the requests.
        name: the account.
        first: the number of the first request.
        count: how many at a time.
    """
    deadline = time.monotonic() + TIMEOUT_S
    for begin in itertools.count(first, count):
        burst = [request(name, PASSWORD, number) for number in range(begin, begin + count)]
        statuses = send_burst(servers, burst, stalled=False)
        if 503 not in statuses:
            break
        assert time.monotonic() < deadline
    return statuses


def read_statuses(connections: Sequence[socket.socket]) -> list[int]:
    received = [b""] * len(connections)
    with selectors.DefaultSelector() as selector:
        for number, connection in enumerate(connections):
            connection.setblocking(False)  # noqa: FBT003 - its signature
            selector.register(connection, selectors.EVENT_READ, number)
        deadline = time.monotonic() + TIMEOUT_S
        while selector.get_map():
            assert time.monotonic() < deadline
            for key, _ in selector.select(1):
                data = b""
                with suppress(OSError):
                    data = connections[key.data].recv(65536)
                received[key.data] += data
                if not data:
                    selector.unregister(key.fileobj)
    return [int(answer.split()[1]) if answer else 0 for answer in received]


def check_bound(statuses: Sequence[int], processes: int, *, beside: frozenset[int] = frozenset({429, 503})) -> None:
    """Check how many attempts were verified.

    Args:
        statuses: of the answers.
        processes: how many share the count.
        beside: what answers may be beside 401. 503 is one: on a busy machine a turn with a thousand logins in it may
            take longer than the store may take to answer.
    """
    counted = Counter(statuses)
    assert set(counted) <= {401} | beside, counted
    assert counted[401] <= FAILURES + processes - 1, counted


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_burst_of_wrong_passwords_is_bounded_and_hides_the_right_one(servers: Sequence[Daemon], scheme: str) -> None:
    """The worst case: the owner has just signed in, and the server stands still."""
    name = next(NAMES)
    processes = processes_of(servers)
    request = SCHEMES[scheme](servers[0])
    # Each process remembers the password.
    assert set(send_patiently(servers, request, name, 2000, 40)) <= {200, 302}
    check_burst(servers, request, name, hidden=len(processes) == 1, stalled=True)
    assert set(send_patiently(servers, request, name, 3000, 4 * len(processes))) == {429}


@pytest.mark.parametrize("servers", ["SQLite", "Redis"], indirect=True)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_burst_without_a_stall_is_bounded(servers: Sequence[Daemon], scheme: str) -> None:
    check_burst(servers, SCHEMES[scheme](servers[0]), next(NAMES), hidden=False, stalled=False)


def check_burst(servers: Sequence[Daemon], request: Request, name: str, *, hidden: bool, stalled: bool) -> None:
    """Send wrong passwords with the right one among them.

    Args:
        servers: where to.
        request: makes the requests.
        name: the account.
        hidden: whether the right one must be refused. Which comes first cannot be known in several processes, nor in
            one that goes on: on a busy machine it reads connections in an order of its own.
        stalled: as for `send_burst`.
    """
    statuses: list[int] = []
    for size in SIZES:
        burst = [request(name, f"wrong {number}", len(statuses) + number) for number in range(size)]
        right_at = size * 19 // 20
        burst[right_at] = request(name, PASSWORD, len(statuses) + right_at)
        answered = send_burst(servers, burst, stalled=stalled)
        if hidden:
            assert answered[right_at] in {429, 503}
        answered[right_at] = 429
        statuses += answered
        check_bound(statuses, len(processes_of(servers)))
        if 503 not in answered:
            break
    assert statuses.count(401) >= FAILURES


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_burst_of_one_wrong_password_counts_each_time(servers: Sequence[Daemon], scheme: str) -> None:
    name = next(NAMES)
    request = SCHEMES[scheme](servers[0])
    statuses = send_burst(servers, [request(name, "wrong", number) for number in range(200)], stalled=True)
    check_bound(statuses, len(processes_of(servers)))
    assert send_patiently(servers, request, name, 3000) == [429]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_burst_of_right_passwords_is_accepted(servers: Sequence[Daemon], scheme: str) -> None:
    """More than `failures`, as of a program with many connections that has just started."""
    request = SCHEMES[scheme](servers[0])
    for name in itertools.islice(NAMES, 3):
        statuses = send_burst(servers, [request(name, PASSWORD, number) for number in range(60)], stalled=True)
        # On a busy machine they may have waited for too long.
        assert set(statuses) <= {200, 302, 429, 503}
        assert set(send_patiently(servers, request, name, 3000)) <= {200, 302}
        if 429 not in statuses:
            break
    else:
        raise AssertionError(statuses)


@pytest.mark.slow
def test_reservation_of_a_worker_that_is_killed_expires(tmp_path: Path) -> None:
    """The failures of a burst remain, and the replacement refuses further attempts."""
    with ExitStack() as stack:
        server = start(stack, tmp_path, workers=2)
        name = "user0"
        request = basic(server)

        def kill() -> None:
            for pid in server.workers.values():
                os.kill(pid, signal.SIGKILL)

        burst = [request(name, f"wrong {number}", number) for number in range(200)]
        statuses = send_burst([server], burst, stalled=False, meanwhile=kill)
        check_bound(statuses, 4, beside=frozenset({0, 429}))
        wait_until(lambda: len(server.workers) >= 2)
        later = send_burst([server], burst, stalled=False)
        assert statuses.count(401) + later.count(401) <= FAILURES + 3
        assert send_patiently([server], request, "user1", 0) == [200]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["basic", "digest"])
def test_bound_holds_while_redis_fails_over(tmp_path: Path, scheme: str) -> None:
    with ExitStack() as stack:
        group = start_group(stack, tmp_path, replicas=2)
        time.sleep(3)  # the sentinels find each other and the replicas
        servers = [start(stack, tmp_path / f"node{n}", group.url) for n in range(2)]
        request = SCHEMES[scheme](servers[0])
        burst = [request("user0", f"wrong {number}", number) for number in range(BURST)]
        statuses = send_burst(servers, burst, stalled=False, meanwhile=group.primary.kill)
        check_bound(statuses, len(servers))
        deadline = time.monotonic() + TIMEOUT_S
        for server in servers:
            while httpx.get(f"{server.url}/post").status_code != 200:
                assert time.monotonic() < deadline, server.log
                time.sleep(0.1)
        while 429 not in statuses[BURST:]:  # on a busy machine most answers of the burst are 503, and count for nothing
            assert time.monotonic() < deadline
            late = [request("user0", f"late {number}", len(statuses) + number) for number in range(100)]
            statuses += send_burst(servers, late, stalled=False)
        check_bound(statuses, len(servers))
        for server in servers:
            assert send_patiently([server], request, "user0", 100_000) == [429]
            assert "Traceback" not in server.log


def test_refused_opaque_tokens_count_as_failures_of_their_address(tmp_path: Path) -> None:
    with ExitStack() as stack:
        issuer = stack.enter_context(Issuer("https://posts.example", Key.make("ES256")))
        (tmp_path / "users").write_text(user_line("user0"))
        (tmp_path / "postd.toml").write_text(
            'users = "users"\n'
            'page = [{path = "/token", schemes = ["bearer"]}, {path = "/basic", schemes = ["basic"]}]\n'
            f'throttle = {{address_failures = {FAILURES}}}\n[[bearer]]\nissuer = "{issuer.issuer}"\n'
            f'audience = "{issuer.audience}"\nintrospection_endpoint = "{issuer.origin}{INTROSPECTION}"\n'
        )
        server = stack.enter_context(Daemon(tmp_path, "-c", "postd.toml"))
        issuer.active["good"] = {"sub": "alice", "aud": issuer.audience}

        def request(token: str) -> bytes:
            field = token.encode()
            return (
                b"GET /token HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer %b\r\n\r\n"
                % field
            )

        assert send_burst([server], [request("good")] * 40, stalled=True) == [200] * 40
        statuses = send_burst([server], [request(f"bad{number}") for number in range(400)], stalled=True)
        check_bound(statuses, 1)
        assert statuses.count(401) == FAILURES
        assert issuer.count(INTROSPECTION) == FAILURES + 1
        assert send_burst([server], [request("good")], stalled=False) == [429]
        assert send_burst([server], [basic(server)("user0", PASSWORD, 0)], stalled=False) == [429]
        other = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(transport=other) as client:
            answer = client.get(f"{server.url}/token", headers={"Authorization": "Bearer good"})
            assert answer.status_code == 200
