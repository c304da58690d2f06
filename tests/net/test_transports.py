"""Transports of a port, on real sockets."""

import select
import socket
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IPullProducer, IPushProducer
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.tcp import Port
from twisted.internet.unix import Port as UnixPort
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from zope.interface import implementer

from postd.front.socket_state import unsent_bytes
from postd.net.transports import AT_ONCE_MAX_BYTES, HELD_MAX, LONG_SENDS_PER_TURN, poll_together
from postd.reactor import IReactor
from postd.twisted_private import buffered_bytes
from tests.cases import each
from tests.helpers import PATIENCE_S


class TurnReactor:
    """A reactor whose turns a test runs; its clock stands, and calls have no delay.

    `twisted.internet.task.Clock` would make all calls of one turn.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.timers: list[Callable[[], None]] = []
        self.resets = 0
        self.readers: list[Any] = []

    def callLater(self, delay: float, function: Callable[..., Any], *arguments: Any) -> Any:
        if delay:
            self.timers.append(partial(function, *arguments))
        else:
            self.calls.append((function, arguments))
        return SimpleNamespace(reset=self._reset)

    def _reset(self, delay: float) -> None:
        assert delay == 0
        self.resets += 1

    def addReader(self, reader: Any) -> None:
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        if reader in self.readers:
            self.readers.remove(reader)

    def readers_after_a_while(self) -> list[Any]:
        timers, self.timers = self.timers, []
        for call in timers:
            call()
        return self.readers

    def run_calls(self) -> None:
        calls, self.calls = self.calls, []
        for function, arguments in calls:
            function(*arguments)

    def poll(self) -> None:
        """Call the descriptors that are readable."""
        for reader in select.select(self.readers, [], [], 0)[0]:
            reader.doRead()

    def turn(self) -> None:
        self.run_calls()
        self.poll()


class RecordingProtocol(Protocol):
    """Records the received data and the reason of the disconnect."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.lost: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        self.received.append(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]  # without its default
        self.lost = reason


@implementer(IHalfCloseableProtocol)
class HalfCloseableProtocol(RecordingProtocol):
    input_ended = False

    def readConnectionLost(self) -> None:
        self.input_ended = True

    def writeConnectionLost(self) -> None: ...


class FailingProtocol(RecordingProtocol):
    """Raises an exception when it receives data, and when it loses the connection."""

    def dataReceived(self, data: bytes) -> None:
        raise SystemExit

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]  # without its default
        super().connectionLost(reason)
        raise SystemExit


@implementer(IPushProducer)
class PushProducer:
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")

    def stopProducing(self) -> None:
        self.calls.append("stop")


class FailingProducer(PushProducer):
    def pauseProducing(self) -> None:
        raise SystemExit


class Connection:
    """A connection: the transport of the server, its protocol, and the socket of the client."""

    def __init__(
        self, port: Any, reactor: TurnReactor, pair: tuple[socket.socket, socket.socket], protocol: Any
    ) -> None:
        self.reactor, self.protocol = reactor, protocol
        ours, self.client = pair
        self.transport = port.transport(ours, protocol, ("127.0.0.1", 1), port, 0, reactor)
        protocol.makeConnection(self.transport)
        self.write = self.transport.write

    def respond(self, *responses: bytes) -> None:
        """Send a request, to which the protocol writes these responses."""
        self.protocol.dataReceived = lambda _: [self.write(response) for response in responses]
        self.client.send(b"request")

    def is_readable(self) -> bool:
        return bool(select.select([self.client], [], [], 0)[0])

    def reason(self) -> type[BaseException] | None:
        return None if self.protocol.lost is None else cast(Failure, self.protocol.lost).type


Connect = Callable[..., Connection]


@pytest.fixture(params=["tcp", "unix"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Return a function that makes a connection to the same port."""
    port: Any = Port(0, Factory()) if request.param == "tcp" else UnixPort(b"/x", Factory())
    reactor = TurnReactor()
    poll_together(port, cast(IReactor, reactor))
    with ExitStack() as stack:

        def connect_one(protocol: Protocol | None = None) -> Connection:
            ours, theirs = (stack.enter_context(one) for one in socket.socketpair())
            ours.settimeout(0)
            theirs.settimeout(PATIENCE_S)
            return Connection(port, reactor, (ours, theirs), protocol or RecordingProtocol())

        yield connect_one


@pytest.fixture
def one(connect: Connect) -> Connection:
    """Return a connection."""
    return connect()


# --- Input


def test_connections_are_polled_as_one_descriptor(connect: Connect) -> None:
    one, other = connect(), connect()
    assert len(one.reactor.readers) == 1
    one.client.send(b"a")
    one.reactor.poll()
    one.client.send(b"b")
    other.client.send(b"c")
    one.reactor.poll()
    assert (one.protocol.received, other.protocol.received) == ([b"a", b"b"], [b"c"])
    one.transport.loseConnection()
    other.transport.loseConnection()
    one.reactor.turn()
    assert (one.reason(), other.reason()) == (ConnectionDone, ConnectionDone)
    assert one.reactor.readers_after_a_while() == []
    assert connect().reactor.readers != []


def test_port_is_polled_on_between_connections_that_follow_each_other(connect: Connect) -> None:
    one = connect()
    one.client.close()
    one.reactor.poll()
    assert one.reason() is ConnectionDone
    (poller,) = one.reactor.readers
    other = connect()
    assert other.reactor.readers_after_a_while() == [poller]
    other.client.close()
    other.reactor.poll()
    assert other.reactor.readers_after_a_while() == []


def test_paused_connection_is_not_read(connect: Connect) -> None:
    one, other = connect(), connect()
    one.protocol.dataReceived = lambda _: other.transport.pauseProducing()
    for connection in (one, other):
        connection.client.send(b"x")
    one.reactor.poll()
    assert other.protocol.received == []
    other.transport.resumeProducing()
    other.reactor.poll()
    assert other.protocol.received == [b"x"]


def test_blocked_connection_that_another_one_has_paused_is_not_read(connect: Connect) -> None:
    one, other = connect(), connect()
    other.write(bytes(1_000_000))
    one.reactor.turn()
    one.protocol.dataReceived = lambda _: other.transport.pauseProducing()
    for connection in (one, other):
        connection.client.send(b"x")
    other.client.recv(1_000_000)
    one.reactor.poll()
    assert other.protocol.received == []
    one.reactor.turn()
    assert other.is_readable()


def test_connection_that_another_one_has_closed_is_not_read(connect: Connect) -> None:
    one, other = connect(), connect()
    one.protocol.dataReceived = lambda _: other.transport.connectionLost(Failure(ConnectionDone()))
    for connection in (one, other):
        connection.client.send(b"x")
    one.reactor.poll()
    assert (other.protocol.received, other.reason()) == ([], ConnectionDone)


def test_connections_that_another_descriptor_has_closed_in_the_turn_are_not_read(connect: Connect) -> None:
    one = connect()
    one.client.send(b"x")
    (poller,) = one.reactor.readers
    assert select.select([poller], [], [], 0)[0] == [poller]
    one.transport.connectionLost(Failure(ConnectionDone()))
    poller.doRead()
    other = connect()
    other.client.send(b"x")
    other.reactor.poll()
    assert (one.protocol.received, other.protocol.received) == ([], [b"x"])


def test_end_of_input_ends_the_connection(one: Connection) -> None:
    one.client.shutdown(socket.SHUT_WR)
    one.reactor.poll()
    assert one.reason() is ConnectionDone
    assert one.reactor.readers_after_a_while() == []


def test_end_of_input_leaves_a_connection_that_can_half_close(connect: Connect) -> None:
    one = connect(HalfCloseableProtocol())
    one.client.shutdown(socket.SHUT_WR)
    one.reactor.poll()
    assert one.protocol.input_ended
    assert one.reason() is None
    one.write(b"response")
    assert one.client.recv(20) == b"response"


@pytest.mark.parametrize("is_blocked", [False, True])
def test_hung_up_connection_ends(connect: Connect, *, is_blocked: bool) -> None:
    """As in the reactor: with both directions closed, epoll reports no input."""
    one = connect()
    if is_blocked:
        one.transport.pauseProducing()
        one.write(b"x" * 1_000_000)
        one.reactor.turn()
    one.client.close()
    one.transport.socket.shutdown(socket.SHUT_RDWR)
    for _ in range(2):
        one.reactor.poll()
    assert one.reason() is (ConnectionLost if is_blocked else ConnectionDone)
    assert one.reactor.readers_after_a_while() == []


@each("state", ["reading is paused", "input has ended"])
def test_reset_connection_ends_at_once(state: str) -> None:
    """Nothing is written, and nothing is read."""
    port: Any = Port(0, Factory())
    reactor = TurnReactor()
    poll_together(port, cast(IReactor, reactor))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ours, _ = server.accept()
        with ours:
            ours.settimeout(0)
            one = Connection(port, reactor, (ours, client), HalfCloseableProtocol())
            if state == "reading is paused":
                one.transport.pauseProducing()
            else:
                client.shutdown(socket.SHUT_WR)
                reactor.poll()
                assert one.protocol.input_ended
            reactor.poll()
            assert one.reason() is None
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            reactor.poll()
            assert one.reason() is ConnectionLost
            assert reactor.readers_after_a_while() == []


def test_producer_is_paused_while_the_kernel_does_not_accept_all(connect: Connect) -> None:
    """However little is left: stock transports pause it above 64 KiB."""
    one, producer = connect(), PushProducer()
    one.transport.registerProducer(producer, streaming=True)
    while not producer.calls:
        one.write(bytes(1000))
        one.reactor.run_calls()
    assert producer.calls == ["pause"]
    assert 0 < unsent_bytes(one.transport) <= 1000
    while producer.calls == ["pause"]:
        if one.is_readable():
            one.client.recv(100_000)
        one.reactor.turn()
    assert producer.calls == ["pause", "resume"]
    assert not unsent_bytes(one.transport)


def test_producer_that_fails_when_it_is_paused_ends_its_connection_only(connect: Connect) -> None:
    failing, other = connect(), connect()
    failing.transport.registerProducer(FailingProducer(), streaming=True)
    with capturedLogs() as events:
        while failing.reason() is None:
            failing.write(bytes(1000))
            other.write(b"x")
            failing.reactor.run_calls()
    assert [event["log_failure"].type for event in events] == [SystemExit]
    other.write(b"later")
    other.reactor.run_calls()
    assert other.client.recv(1_000_000).endswith(b"later")


def test_views_are_not_copied(connect: Connect) -> None:
    one = connect()
    body = bytes(60_000)
    while not unsent_bytes(one.transport):
        one.transport.writeSequence([memoryview(body)])
        one.reactor.run_calls()
    (left,) = one.transport._tempDataBuffer  # noqa: SLF001 - what it keeps is the subject
    assert left.obj is body


def test_failing_protocol_ends_its_connection_only(connect: Connect) -> None:
    failing, other = connect(FailingProtocol()), connect()
    for connection in (failing, other):
        connection.client.send(b"x")
    with capturedLogs() as events:
        failing.reactor.poll()
    assert failing.reason() is SystemExit
    assert other.protocol.received == [b"x"]
    assert [event["log_failure"].type for event in events] == [SystemExit, SystemExit]
    other.respond(b"response")
    other.reactor.poll()
    assert other.client.recv(20) == b"response"


def test_stopped_reactor_ends_all_connections(connect: Connect) -> None:
    failing, other = connect(FailingProtocol()), connect()
    (poller,) = failing.reactor.readers
    with capturedLogs():
        poller.connectionLost(Failure(ConnectionLost()))
    assert (failing.reason(), other.reason()) == (ConnectionLost, ConnectionLost)


# --- Output


def test_output_is_sent_at_once(one: Connection) -> None:
    one.write(b"one")
    assert one.client.recv(20) == b"one"
    one.write(b"")
    assert one.reactor.calls == []
    one.transport.writeSequence([b"two", b"three"])
    one.reactor.turn()
    assert one.client.recv(20) == b"twothree"
    assert one.reactor.calls == []


def test_end_of_a_connection_takes_no_further_turn(connect: Connect) -> None:
    one = connect()

    def respond(_: bytes) -> None:
        one.write(b"last")
        one.transport.loseConnection()

    one.protocol.dataReceived = respond
    one.client.send(b"request")
    one.reactor.poll()
    assert one.reactor.calls == []
    assert one.reason() is ConnectionDone
    assert one.client.recv(100) + one.client.recv(100) == b"last"


def test_responses_of_a_turn_are_sent_together(connect: Connect) -> None:
    """The first is sent at once, the others when all requests are read."""
    connections = [connect() for _ in range(4)]
    order = list[str]()
    for number, one in enumerate(connections):
        one.respond(f"response {number}".encode())
        answer = one.protocol.dataReceived

        def respond(data: bytes, answer: Any = answer, number: int = number) -> None:
            order.append(f"read {number}")
            answer(data)
            order.extend(f"sent {n}" for n, other in enumerate(connections) if other.is_readable())

        one.protocol.dataReceived = respond
    connections[0].reactor.poll()
    first = order[0].split()[1]
    assert sorted(order) == sorted([*(f"read {n}" for n in range(4)), *[f"sent {first}"] * 4])
    assert [one.client.recv(20) for one in connections] == [f"response {n}".encode() for n in range(4)]
    assert connections[0].reactor.calls == []


def test_only_so_many_responses_are_held(connect: Connect) -> None:
    """Thousands of connections may be read in one turn."""
    connections = [connect() for _ in range(HELD_MAX + 2)]
    sent = list[int]()
    for one in connections:
        one.respond(b"x")
        answer = one.protocol.dataReceived

        def respond(data: bytes, answer: Any = answer) -> None:
            answer(data)
            sent.append(sum(other.is_readable() for other in connections))

        one.protocol.dataReceived = respond
    connections[0].reactor.poll()
    assert sent == [*[1] * (HELD_MAX + 1), HELD_MAX + 1]
    assert all(one.is_readable() for one in connections)


class Held:
    """A connection whose response is held while `then` is called, because another connection was read before."""

    def __init__(self, connect: Connect, then: Callable[[Connection], None]) -> None:
        self.is_unsent = False
        read = list[Connection]()

        def take(one: Connection) -> None:
            read.append(one)
            one.write(b"response")
            if read[0] is not one:
                self.is_unsent = unsent_bytes(one.transport) > 0 and not one.is_readable()
                then(one)

        connections = [connect(HalfCloseableProtocol()) for _ in range(2)]
        for one in connections:
            one.protocol.dataReceived = lambda _, one=one: take(one)
            one.client.send(b"request")
        connections[0].reactor.poll()
        self.connection = read[1]

    def received(self) -> bytes:
        """Return all that the client receives within three turns."""
        received = b""
        for _ in range(3):
            while self.connection.is_readable() and (data := self.connection.client.recv(1_000_000)):
                received += data
            self.connection.reactor.turn()
        return received


def test_held_response_is_unsent_output(connect: Connect) -> None:
    held = Held(connect, lambda _: None)
    assert held.is_unsent
    assert not unsent_bytes(held.connection.transport)
    assert held.received() == b"response"


@pytest.mark.parametrize("more", [b" more", b"m" * (AT_ONCE_MAX_BYTES + 1)], ids=["short", "long"])
@pytest.mark.parametrize("together", [False, True])
def test_held_response_precedes_later_output(connect: Connect, more: bytes, *, together: bool) -> None:
    def write_more(one: Connection) -> None:
        if together:
            one.transport.writeSequence([more[:1], more[1:]])
        else:
            one.write(more)

    assert Held(connect, write_more).received() == b"response" + more


@pytest.mark.parametrize("close", ["loseConnection", "loseWriteConnection"])
def test_held_response_is_sent_before_the_end_of_output(connect: Connect, close: str) -> None:
    held = Held(connect, lambda one: getattr(one.transport, close)())
    assert held.received() == b"response"
    assert held.connection.client.recv(1) == b""


def test_held_response_of_an_aborted_connection_is_not_sent(connect: Connect) -> None:
    held = Held(connect, lambda one: one.transport.abortConnection())
    assert held.received() == b""
    assert held.connection.reason() is ConnectionAborted


def test_text_in_place_of_a_held_response_is_an_error_of_its_writer(connect: Connect) -> None:
    connections = [connect() for _ in range(2)]
    errors = list[TypeError]()

    def write_text(one: Connection) -> None:
        try:
            one.write("text")
        except TypeError as error:
            errors.append(error)

    for one in connections:
        one.protocol.dataReceived = lambda _, one=one: write_text(one)
        one.client.send(b"request")
    connections[0].reactor.poll()
    assert len(errors) == 2
    assert [one.reason() for one in connections] == [None, None]


def test_held_response_that_the_kernel_does_not_accept_is_sent_later(connect: Connect) -> None:
    def fill(one: Connection) -> None:
        with suppress(BlockingIOError):
            while True:
                one.transport.socket.send(b"x" * 100_000)

    received = Held(connect, fill).received()
    assert received.removeprefix(received.split(b"r")[0]) == b"response"


def test_only_so_much_is_sent_at_once_between_reads(one: Connection) -> None:
    """A long response to a client that keeps up is sent in several turns of the reactor."""

    def written_at_once() -> int:
        count = 0
        one.write(b"x" * 10_000)
        while not one.reactor.calls:
            count += 1
            one.write(b"x" * 10_000)
            while one.is_readable():
                one.client.recv(1_000_000)
        return count

    assert written_at_once() == AT_ONCE_MAX_BYTES // 10_000
    assert written_at_once() == 0
    one.reactor.turn()
    assert written_at_once() == AT_ONCE_MAX_BYTES // 10_000


def test_order_is_kept_when_the_kernel_accepts_only_a_part(one: Connection) -> None:
    one.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    pieces = [bytes([number]) * 25_000 for number in range(20)]
    one.write(pieces[0])
    one.reactor.turn()
    assert buffered_bytes(one.transport)  # the rest of it
    assert one.reactor.calls == []  # until the socket is writable
    one.reactor.turn()
    assert one.reactor.calls == []
    assert len(one.client.recv(1000)) == 1000
    for piece in pieces[1:]:
        one.write(piece)
    received = bytes(1000)
    while len(received) < 500_000:
        received += one.client.recv(1_000_000)
        one.reactor.turn()
    assert received == b"".join(pieces)
    assert not buffered_bytes(one.transport)
    one.reactor.turn()
    assert one.reactor.calls == []
    one.client.send(b"next")
    one.reactor.turn()
    assert one.protocol.received == [b"next"]


@pytest.mark.parametrize("count", [2, 100, 2000])  # the kernel accepts 1024 pieces at a time
@pytest.mark.parametrize("is_partial", [False, True])
def test_pieces_are_sent_in_order(one: Connection, count: int, *, is_partial: bool) -> None:
    pieces = [b"%07d." % number * (100_000 // count // 8) for number in range(count)]
    if is_partial:
        one.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    one.transport.writeSequence(pieces)
    one.transport.loseConnection()
    one.reactor.run_calls()
    assert (buffered_bytes(one.transport) > 0) == is_partial
    received = b""
    while data := one.client.recv(1_000_000):
        received += data
        one.reactor.turn()
    assert received == b"".join(pieces)
    assert one.reason() is ConnectionDone


def test_short_sequence_is_sent_at_once(one: Connection) -> None:
    one.transport.writeSequence(iter([b"two ", b"parts"]))
    assert one.reactor.calls == []
    assert one.client.recv(100) == b"two parts"


def test_long_sequence_waits_for_its_turn_and_is_not_copied(one: Connection) -> None:
    one.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    parts = [bytes([number]) * 100_000 for number in range(8)]
    tracemalloc.start()
    try:
        one.transport.writeSequence(parts)
        assert not one.is_readable()
        one.reactor.turn()
        assert one.is_readable()
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


def test_streaming_producer_is_paused_and_resumed(one: Connection) -> None:
    producer = PushProducer()
    one.transport.registerProducer(producer, streaming=True)
    one.write(b"x" * 1000)
    one.reactor.turn()
    assert producer.calls == []
    one.write(b"x" * 5_000_000)
    assert producer.calls == ["pause"]
    received = 1000
    while received < 5_001_000:
        one.reactor.turn()
        while one.is_readable():
            received += len(one.client.recv(1_000_000))
    assert producer.calls == ["pause", "resume"]


def test_pull_producer_is_called_for_each_piece(one: Connection) -> None:
    @implementer(IPullProducer)
    class Producer:
        left = 3

        def resumeProducing(self) -> None:
            self.left -= 1
            one.write(b"piece")
            if not self.left:
                one.transport.unregisterProducer()

        def stopProducing(self) -> None: ...

    one.transport.registerProducer(Producer(), streaming=False)
    for _ in range(3):
        one.reactor.turn()
    assert one.client.recv(100) == b"piece" * 3


def test_closing_follows_what_was_written(one: Connection) -> None:
    one.write(b"last")
    one.transport.loseConnection()
    one.write(b" words")  # as stock Twisted, which sends it before it closes
    one.reactor.turn()
    assert one.reason() is ConnectionDone
    assert one.client.recv(100) == b"last words"
    assert one.client.recv(100) == b""


def test_nothing_is_sent_after_the_end(one: Connection) -> None:
    one.transport.loseWriteConnection()
    one.reactor.turn()
    one.write(b"x")
    one.reactor.turn()
    assert one.client.recv(10) == b""


def test_nothing_is_sent_after_an_abort(one: Connection) -> None:
    one.transport.abortConnection()
    one.write(b"x")
    one.reactor.turn()
    assert one.reason() is ConnectionAborted
    assert one.client.recv(10) == b""


def test_lost_connection_does_not_keep_its_output(one: Connection) -> None:
    one.transport.writeSequence([b"x" * 10**7, b"y" * 10**7])
    one.reactor.turn()
    assert buffered_bytes(one.transport) > 10**6
    one.transport.abortConnection()
    one.reactor.turn()
    assert one.reason() is ConnectionAborted
    assert buffered_bytes(one.transport) == 0


def test_nothing_is_sent_on_a_lost_connection(connect: Connect) -> None:
    connections = connect(), connect()
    for one in connections:
        one.respond(b"response")
        answer = one.protocol.dataReceived

        def respond(data: bytes, answer: Any = answer, transport: Any = one.transport) -> None:
            answer(data)
            transport.connectionLost(Failure(ConnectionDone()))

        one.protocol.dataReceived = respond
    connections[0].reactor.turn()
    assert sorted(one.client.recv(10) for one in connections) == [b"", b"response"]  # the second was held


def test_error_ends_the_connection(one: Connection) -> None:
    one.client.close()
    one.write(b"x")
    assert one.reason() is None  # not while the caller writes
    one.reactor.turn()
    assert one.reason() is ConnectionLost


def test_failing_producer_ends_its_connection_only(one: Connection) -> None:
    class FailingProducer(PushProducer):
        def resumeProducing(self) -> None:
            raise SystemExit

    one.transport.registerProducer(FailingProducer(), streaming=True)
    one.write(b"x" * 70_000)
    with capturedLogs() as events:
        one.reactor.turn()
    assert one.reason() is SystemExit
    assert [event["log_failure"].type for event in events] == [SystemExit]


def test_connection_whose_producer_cannot_stop_is_polled_no_more(one: Connection) -> None:
    """It hangs up, and would be reported each time."""

    class FailingProducer(PushProducer):
        def stopProducing(self) -> None:
            raise RuntimeError("of the producer")

    one.transport.registerProducer(FailingProducer(), streaming=True)
    one.write(b"x" * 1_000_000)
    one.reactor.turn()
    one.client.close()
    with capturedLogs() as events:
        for _ in range(3):
            one.reactor.turn()
    assert one.reactor.readers_after_a_while() == []
    assert [event["log_failure"].type for event in events] == [RuntimeError]


def test_failing_protocol_does_not_keep_others_from_sending(connect: Connect) -> None:
    failing, other = connect(FailingProtocol()), connect()
    failing.transport.loseConnection()
    other.transport.loseWriteConnection()
    with capturedLogs() as events:
        failing.reactor.turn()
    assert other.client.recv(10) == b""
    assert [event["log_failure"].type for event in events] == [SystemExit]


def test_long_output_takes_turns_and_short_output_is_sent_at_once(connect: Connect) -> None:
    long = [connect() for _ in range(LONG_SENDS_PER_TURN + 3)]
    for one in long:
        producer = PushProducer()
        producer.resumeProducing = partial(one.write, bytes(70_000))  # type: ignore[method-assign]
        one.transport.registerProducer(producer, streaming=True)
        producer.resumeProducing()
    short = connect()

    def sent_in_a_turn() -> list[Connection]:
        short.reactor.turn()
        sent = [one for one in (short, *long) if one.is_readable()]
        for one in sent:
            one.client.recv(1_000_000)
        return sent

    assert sent_in_a_turn() == long[:LONG_SENDS_PER_TURN]
    short.transport.writeSequence([b"short"])
    assert sent_in_a_turn() == [short, *long[: LONG_SENDS_PER_TURN - 3], *long[LONG_SENDS_PER_TURN:]]


def test_output_does_not_wait_until_a_clock_that_was_set_back_has_caught_up(connect: Connect) -> None:
    one, other = connect(), connect()
    one.write(b"x" * 2 * AT_ONCE_MAX_BYTES)
    assert (len(one.reactor.calls), one.reactor.resets) == (1, 0)
    other.client.send(b"request")
    other.reactor.poll()
    assert other.reactor.resets == 1
