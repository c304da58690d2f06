"""Endpoint strings, on real sockets."""

import gc
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from pytest_twisted import async_yield_fixture, ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet import tcp
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import gatherResults, maybeDeferred
from twisted.internet.endpoints import _SystemdParser
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.python.systemd import ListenFDs

from postd.errors import ConfigError
from postd.net.endpoint_strings import is_loopback_only, makes_world_writable_socket, origin_for_browsers
from postd.net.endpoints import check_endpoint
from postd.net.listening import (
    Listener,
    adopt_sockets,
    bind,
    hand_over_to_workers,
    local_addresses,
    unbind,
    unclaimed_systemd_sockets,
)
from postd.net.ports import InheritedSocket
from postd.reactor import IReactor
from tests.cases import each
from tests.helpers import PATIENCE_S
from tests.redis_server import free_port

reactor = cast(IReactor, global_reactor)

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
)


class Bind:
    """Binds endpoints; `bound` are closed after the test."""

    def __init__(self) -> None:
        self.bound: list[Listener] = []

    def __call__(self, *descriptions: str) -> list[Listener]:
        listeners = bind(descriptions, Factory.forProtocol(Protocol), where="--listen", reactor=reactor)
        self.bound += listeners
        return listeners

    def refusal(self, *descriptions: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self(*descriptions)
        line = str(caught.value)
        assert "\n" not in line
        # Twisted leaves the socket of a port that could not be bound to the garbage collector, which complains.
        del caught
        gc.collect()
        return line


@async_yield_fixture
async def listen(socket_folder: Path) -> AsyncIterator[Bind]:  # a port removes its socket before the folder goes
    listen = Bind()
    yield listen
    for listener in listen.bound:
        await maybeDeferred(listener.port.stopListening)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_url_of_port_0_has_the_bound_port(listen: Bind) -> None:
    (listener,) = listen("tcp:0:interface=127.0.0.1")
    assert listener.url == f"http://127.0.0.1:{listener.port.getHost().port}/"
    assert not listener.url.endswith(":0/")


def test_urls_of_all_kinds_of_endpoints(listen: Bind, socket_folder: Path, certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    urls = [
        listener.url
        for listener in listen(
            f"unix:{socket_folder}/a.sock",
            f"haproxy:unix:{socket_folder}/b.sock",
            "haproxy:tcp:0:interface=127.0.0.1",
            f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={cert}",
            "tcp6:0:interface=\\:\\:1",
        )
    ]
    assert urls[:2] == [f"unix:{socket_folder}/a.sock", f"unix:{socket_folder}/b.sock"]
    assert [url.rpartition(":")[0] for url in urls[2:]] == ["http://127.0.0.1", "https://127.0.0.1", "http://[::1]"]


@each(
    "description, exposed",
    [
        ("tcp:0", True),
        ("tcp:0:interface=0.0.0.0", True),
        ("haproxy:tcp:0", True),
        ("tcp6:0", True),
        ("tcp:0:interface=127.0.0.1", False),
        ("tcp:0:interface=127.0.0.2", False),
        ("tcp6:0:interface=\\:\\:1", False),
        ("haproxy:tcp:0:interface=127.0.0.1", False),
        ("unix:{socket_folder}/a.sock", False),
        ("ssl:0:privateKey={key}:certKey={cert}", False),
        ("haproxy:ssl:0:privateKey={key}:certKey={cert}", False),
    ],
)
def test_endpoint_without_tls_is_exposed_unless_it_is_local(
    listen: Bind, socket_folder: Path, certificate: tuple[Path, Path], description: str, *, exposed: bool
) -> None:
    (listener,) = listen(description.format(socket_folder=socket_folder, key=certificate[0], cert=certificate[1]))
    assert listener.exposed is exposed
    assert (listener.certificate is not None) is listener.tls is ("ssl" in description)


@pytest.mark.parametrize(
    "options, mode", [("", 0o660), (":mode=600", 0o600), (":mode=666", 0o666), (":666", 0o666), (":lockfile=0", 0o660)]
)
@pytest.mark.parametrize("kind", ["unix", "haproxy:unix", "haproxy:haproxy:unix"])
def test_unix_socket_has_mode_0660_unless_another_is_given(
    listen: Bind, socket_folder: Path, kind: str, options: str, mode: int
) -> None:
    for umask in (0, 0o022, 0o077):
        path = socket_folder / f"{umask}.sock"
        description = f"{kind}:{path}{options}"
        before = os.umask(umask)
        try:
            (listener,) = listen(description)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert listener.world_writable is (mode == 0o666)
        assert makes_world_writable_socket(description) is (mode == 0o666)


def test_unix_socket_accepts_no_connection_before_it_has_its_mode(
    listen: Bind, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def chmod(path: str, mode: int) -> None:
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
            client.connect(path)
        attempts.append(mode)

    monkeypatch.setattr(os, "chmod", chmod)
    listen(f"unix:{socket_folder}/a.sock")
    assert attempts == [0o660]


def test_unbound_ports_are_closed_before_the_reactor_runs(socket_folder: Path, certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={cert}"
    descriptions = ("tcp:0:interface=127.0.0.1", tls, f"unix:{socket_folder}/a.sock")
    listeners = bind(descriptions, Factory.forProtocol(Protocol), where="--listen", reactor=reactor)
    sockets = [one.port.socket for one in listeners]
    unbind(listeners)
    assert {one.fileno() for one in sockets} == {-1}
    assert list(socket_folder.iterdir()) == []


def test_abstract_unix_socket_is_world_writable(listen: Bind, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as passed_on:
        passed_on.bind(f"\0postd-test-{os.getpid()}")
        passed_on.listen()
        inherited = ListenFDs([passed_on.detach()], ["http"])
    monkeypatch.setattr(_SystemdParser, "_sddaemon", inherited)
    (listener,) = listen("systemd:domain=UNIX:name=http")
    assert listener.world_writable


@each(
    "description, local",
    [
        ("tcp:0:interface=127.0.0.1", True),
        ("tcp:0:interface=127.0.0.2", True),
        ("tcp:0:127.0.0.1", True),
        ("tcp6:0:interface=\\:\\:1", True),
        ("ssl:0:privateKey={key}:certKey={cert}:interface=127.0.0.1", True),
        ("tcp:0", False),
        ("tcp:0:interface=0.0.0.0", False),
        ("tcp6:0", False),
        ("ssl:0:privateKey={key}:certKey={cert}", False),
        ("unix:{socket_folder}/a.sock", False),
        ("haproxy:tcp:0:interface=127.0.0.1", False),
    ],
)
def test_loopback_endpoint_is_loopback_only(
    listen: Bind, socket_folder: Path, certificate: tuple[Path, Path], description: str, *, local: bool
) -> None:
    written = description.format(socket_folder=socket_folder, key=certificate[0], cert=certificate[1])
    (listener,) = listen(written)
    assert listener.loopback_only is is_loopback_only(written) is local
    address = listener.port.getHost()
    assert local_addresses([listener]) == ({(address.host, address.port)} if local else set())
    (again,) = adopted = adopt_sockets(hand_over_to_workers([listener]), Factory(), where="", reactor=reactor)
    listen.bound += adopted
    assert again.loopback_only is local


def test_loopback_only_of_a_systemd_socket_is_unknown_until_it_is_bound() -> None:
    assert is_loopback_only("systemd:domain=INET:index=0") is None
    assert is_loopback_only("systemd:domain=UNIX:name=http") is False
    assert is_loopback_only("systemd:UNIX:0") is False
    assert is_loopback_only("haproxy:systemd:domain=INET:index=0") is False


@each(
    "description, origin",
    [
        ("tcp:8080", "http://localhost:8080"),
        ("tcp:8080:127.0.0.1", "http://127.0.0.1:8080"),
        ("tcp:interface=0.0.0.0:port=80", "http://localhost"),
        ("tcp6:8080:interface=\\:\\:1", "http://[::1]:8080"),
        ("ssl:0443:key.pem:cert.pem:interface=posts.example", "https://posts.example"),
        ("tcp:0", None),
        ("tcp:http", None),
        ("unix:posts.sock", None),
        ("systemd:INET:8080", None),
        ("haproxy:tcp:8080", None),
    ],
)
def test_origin_for_browsers_is_that_of_a_tcp_port(description: str, origin: str | None) -> None:
    assert origin_for_browsers(description) == origin


@each(
    "description",
    [
        *("", "8080", "tcp", "tcp:", "tcp:x", "tcp:80:interfase=x", "http:80", "stdio:", "haproxy:", "haproxy:stdio:"),
        *(
            "ssl:443:privateKey=/nowhere/key.pem",
            "unix:",
            "haproxy:unix:",
            "unix::600",
            "unix:mode=600:address=",
            "ssl:443:privateKey=",
            "systemd:domain=INET:index=0",
            "tcp:80:80:80:80",
        ),
    ],
)
def test_malformed_endpoint_is_refused(listen: Bind, description: str) -> None:
    line = listen.refusal(description)
    assert line.startswith("--listen: ")
    assert any(why in line for why in ("tcp:8080:interface=127.0.0.1", "/nowhere/key.pem: No such", "systemd has not"))


def test_key_that_is_not_pem_is_refused(listen: Bind, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("not a key")
    line = listen.refusal(f"ssl:0:privateKey={tmp_path}/key.pem")
    assert "PEM" in line


def test_empty_list_of_endpoints_is_refused(listen: Bind) -> None:
    assert "nothing to listen on" in listen.refusal()


def test_port_in_use_is_refused_with_its_endpoint(listen: Bind, taken_port: int) -> None:
    description = f"tcp:{taken_port}:interface=127.0.0.1"
    why = "Address already in use; stop the program that uses it, or give another endpoint with --listen"
    assert listen.refusal(description) == f"--listen: {description}: cannot listen: {why}"


@pytest.mark.parametrize(
    ("description", "why"),
    [
        ("tcp:0:interface=192.0.2.1", "Cannot assign requested address"),
        ("tcp:99999:interface=127.0.0.1", "65535"),
        ("unix:/nowhere/a.sock", "No such file or directory"),
    ],
)
def test_address_that_cannot_be_bound_is_refused(listen: Bind, description: str, why: str) -> None:
    assert why in listen.refusal(description)


@pytest.mark.parametrize("kind", ["unix", "haproxy:unix"])
def test_socket_path_of_108_bytes_is_refused_with_its_length(listen: Bind, socket_folder: Path, kind: str) -> None:
    longest = f"{socket_folder}/".ljust(107, "x")
    why = "cannot listen: a path of 108 bytes, more than the 107 of a UNIX socket"
    assert listen.refusal(f"{kind}:{longest}y") == f"--listen: {kind}:{longest}y: {why}"
    with pytest.raises(ConfigError, match=f"^admin.listen: .*: {why}$"):
        check_endpoint(f"{kind}:{longest}y", where="admin.listen")
    assert list(socket_folder.iterdir()) == []
    (listener,) = listen(f"{kind}:{longest}:lockfile=0")
    assert listener.url == f"unix:{longest}"


@ensureDeferred
async def test_failed_endpoint_closes_the_ports_bound_before(listen: Bind, taken_port: int) -> None:
    free = free_port()
    listen.refusal(f"tcp:{free}:interface=127.0.0.1", f"tcp:{taken_port}:interface=127.0.0.1")
    await deferLater(reactor, 0.01)  # a port is closed in the reactor's next turn
    (listener,) = listen(f"tcp:{free}:interface=127.0.0.1")
    assert str(free) in listener.url


class Greeter(Protocol):
    """Sends a greeting and closes."""

    def connectionMade(self) -> None:
        self.transport.write(b"hello")  # type: ignore[union-attr]
        self.transport.loseConnection()  # type: ignore[union-attr]


def inherit(sockets: list[InheritedSocket]) -> list[InheritedSocket]:
    """Return sockets as another process would inherit them."""
    return [msgspec.structs.replace(one, fd=os.dup(one.fd)) for one in sockets]


@ensureDeferred
async def test_handed_over_sockets_are_served_by_workers_and_outlive_them(listen: Bind, socket_folder: Path) -> None:
    path = socket_folder / "a.sock"
    held = listen(f"unix:{path}:mode=640", "tcp:0:interface=127.0.0.1")
    sockets = hand_over_to_workers(held)

    def greet() -> list[bytes]:
        greetings = []
        for family, address in ((socket.AF_UNIX, str(path)), (socket.AF_INET, ("127.0.0.1", _port_of(held[1])))):
            with socket.socket(family) as client:
                client.settimeout(PATIENCE_S)
                client.connect(address)
                greetings.append(b"".join(iter(lambda client=client: client.recv(100), b"")))  # type: ignore[misc]
        return greetings

    for _ in range(2):
        adopted = adopt_sockets(inherit(sockets), Factory.forProtocol(Greeter), where="--listen", reactor=reactor)
        assert [listener.url for listener in adopted] == [listener.url for listener in held]
        assert await deferToThread(greet) == [b"hello", b"hello"]
        await gatherResults([maybeDeferred(listener.port.stopListening) for listener in adopted])
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    await gatherResults([maybeDeferred(listener.port.stopListening) for listener in held])
    assert not path.exists()


@ensureDeferred
async def test_handed_over_socket_is_not_accepted_on(listen: Bind) -> None:
    (held,) = listen("tcp:0:interface=127.0.0.1")
    hand_over_to_workers([held])
    with socket.create_connection(("127.0.0.1", _port_of(held)), timeout=PATIENCE_S) as client:
        client.settimeout(0)
        await deferLater(reactor, 0.1)
        with pytest.raises(BlockingIOError):  # neither served nor closed
            client.recv(1)


class Recorder(Factory):
    """Records the addresses of the client and of the server of each connection; refuses some."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.peers: list[Any] = []
        self.ends: list[Any] = []
        self.protocols: list[_Recorded] = []

    def buildProtocol(self, addr: Any) -> Protocol:
        self.peers.append(addr)
        if self.fails:
            self.fails = False
            raise ValueError("of the first connection")
        protocol = _Recorded(self.ends)
        self.protocols.append(protocol)
        return protocol

    def lose_connections(self) -> None:
        for protocol in self.protocols:
            protocol.transport.connectionLost(Failure(ConnectionDone()))


class _Recorded(Protocol):
    transport: Any

    def __init__(self, ends: list[Any]) -> None:
        self._ends = ends

    def connectionMade(self) -> None:
        self._ends.append((self.transport.getPeer(), self.transport.getHost()))


@pytest.fixture
def dial() -> Iterator[Callable[..., list[Any]]]:
    """Return a function that connects to these hosts, and returns the addresses of both ends as the client has them."""
    with ExitStack() as stack:

        def connect(port: tcp.Port, *hosts: str) -> list[Any]:
            ends = []
            for host in hosts:
                client = stack.enter_context(socket.create_connection((host, port.getHost().port), PATIENCE_S))
                kind = IPv6Address if ":" in host else IPv4Address
                ends.append((kind("TCP", *client.getsockname()), kind("TCP", *client.getpeername())))
            port.doRead()
            return ends

        yield connect


@each(
    "interface, hosts",
    [
        ("127.0.0.1", ["127.0.0.1", "127.0.0.1"]),
        (r"\:\:1", ["::1", "::1"]),
        ("0.0.0.0", ["127.0.0.1", "127.0.0.2", "127.0.0.1"]),
        ("0", ["127.0.0.1", "127.0.0.2", "127.0.0.1"]),
    ],
)
def test_connection_has_the_addresses_of_both_its_ends(
    dial: Callable[..., list[Any]], interface: str, hosts: list[str]
) -> None:
    recorder = Recorder()
    (listener,) = bind([f"tcp:0:interface={interface}"], recorder, where="--listen", reactor=reactor)
    try:
        ends = dial(listener.port, *hosts)
        assert (recorder.ends, recorder.peers) == (ends, [peer for peer, _ in ends])
    finally:
        recorder.lose_connections()
        unbind([listener])


def test_connection_that_fails_at_once_does_not_keep_others_from_being_accepted(
    dial: Callable[..., list[Any]],
) -> None:
    recorder = Recorder(fails=True)
    (listener,) = bind(["tcp:0:interface=127.0.0.1"], recorder, where="--listen", reactor=reactor)
    try:
        where = "127.0.0.1", _port_of(listener)
        with socket.create_connection(where, PATIENCE_S) as failing, capturedLogs() as events:
            (second,) = dial(listener.port, "127.0.0.1")
            assert failing.recv(1) == b""
        assert recorder.ends == [second]
        assert [event["log_failure"].type for event in events] == [ValueError]
    finally:
        recorder.lose_connections()
        unbind([listener])


def _port_of(listener: Listener) -> int:
    port: int = listener.port.getHost().port
    return port


def test_systemd_socket_without_an_endpoint_is_unclaimed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed_on, Path(os.devnull).open("rb") as other:
        inherited = ListenFDs([passed_on.fileno(), other.fileno()], ["http", "store"])
        monkeypatch.setattr(_SystemdParser, "_sddaemon", inherited)
        assert unclaimed_systemd_sockets([]) == ["http"]
