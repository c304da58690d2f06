"""Output by a queue, on real sockets."""

import select
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPullProducer, IPushProducer, IReactorTime
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.tcp import Port
from twisted.internet.unix import Port as UnixPort
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from zope.interface import implementer

from postd.net.output import (
    AT_ONCE_MAX_BYTES,
    CLOSELY_S,
    HELD_MAX_BYTES,
    LONG_SENDS_PER_TURN,
    OutputQueue,
    queue_output,
)
from postd.twisted_private import has_buffered_output

Pair = tuple[socket.socket, socket.socket]


class TurnClock:
    """The reactor's clock for calls without a delay; `twisted.internet.task.Clock` would make all of one turn."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.resets: list[float] = []
        self.now_s = 1000.0

    def seconds(self) -> float:
        return self.now_s

    def callLater(self, delay: float, function: Callable[..., Any], *arguments: Any) -> Any:
        assert delay == 0
        self.calls.append((function, arguments))
        return SimpleNamespace(reset=lambda _: self.resets.append(self.now_s))

    def end_turn(self) -> None:
        calls, self.calls = self.calls, []
        for function, arguments in calls:
            function(*arguments)


class SocketReactor(TurnClock):
    """Notes which transports wait until their socket is writable; a test reports that by `doWrite`."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[Any] = []
        self.lost: Failure | None = None

    def has_lost(self) -> bool:
        return self.lost is not None

    def addReader(self, _reader: Any) -> None: ...

    def removeReader(self, _reader: Any) -> None: ...

    def addWriter(self, writer: Any) -> None:
        self.writers.append(writer)

    def removeWriter(self, writer: Any) -> None:
        if writer in self.writers:
            self.writers.remove(writer)


class NotingProtocol(Protocol):
    """Notes on the reactor why its connection was lost."""

    def __init__(self, clock: SocketReactor) -> None:
        self._clock = clock

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]  # without its default
        self._clock.lost = reason


@implementer(IPushProducer)
class PushProducer:
    """Notes its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")

    def stopProducing(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    theirs.settimeout(5)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture(params=["tcp", "unix"])
def sender(request: pytest.FixtureRequest, pair: Pair) -> Any:
    """The transport of a connection that a port accepts."""
    port: Any = Port(0, Factory()) if request.param == "tcp" else UnixPort(b"/x", Factory())
    clock = SocketReactor()
    queue_output(port, cast(IReactorTime, clock))
    transport = port.transport(pair[0], NotingProtocol(clock), ("127.0.0.1", 1), port, 0, clock)
    transport.protocol.makeConnection(transport)
    return transport


def end_turn(sender: Any) -> None:
    sender.reactor.end_turn()


def is_readable(theirs: socket.socket) -> bool:
    return bool(select.select([theirs], [], [], 0)[0])


def answer(sender: Any, pair: Pair, *responses: bytes) -> None:
    """Let the protocol of a connection write responses while it reads."""
    sender.protocol.dataReceived = lambda _: [sender.write(response) for response in responses]
    pair[1].send(b"request")
    sender.doRead()


def test_output_is_sent_at_once(sender: Any, pair: Pair) -> None:
    sender.write(b"one")
    assert pair[1].recv(20) == b"one"
    sender.write(b"")
    assert sender.reactor.calls == []
    sender.writeSequence([b"two", b"three"])
    end_turn(sender)
    assert pair[1].recv(20) == b"twothree"
    assert sender.reactor.writers == []
    assert sender.reactor.calls == []


def test_responses_that_follow_closely_are_sent_at_the_end_of_the_turn(sender: Any, pair: Pair) -> None:
    answer(sender, pair, b"one")
    assert pair[1].recv(20) == b"one"
    assert sender.reactor.calls == []
    answer(sender, pair, b"two", b"three")
    assert not is_readable(pair[1])
    end_turn(sender)
    assert pair[1].recv(20) == b"twothree"
    sender.reactor.now_s += 2 * CLOSELY_S
    answer(sender, pair, b"four")
    assert pair[1].recv(20) == b"four"


def test_only_so_much_is_sent_at_once_between_reads(sender: Any, pair: Pair) -> None:
    """A long response to a client that keeps up is sent in several turns of the reactor."""

    def written_at_once() -> int:
        count = 0
        sender.write(b"x" * 10_000)
        while not sender.reactor.calls:
            count += 1
            sender.write(b"x" * 10_000)
            while is_readable(pair[1]):
                pair[1].recv(1_000_000)
        return count

    assert written_at_once() == AT_ONCE_MAX_BYTES // 10_000
    assert written_at_once() == 0
    end_turn(sender)
    assert written_at_once() == AT_ONCE_MAX_BYTES // 10_000


def test_order_is_kept_when_the_kernel_accepts_only_a_part(sender: Any, pair: Pair) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    pieces = [bytes([number]) * 25_000 for number in range(20)]
    sender.write(pieces[0])
    end_turn(sender)
    assert sender.reactor.writers == [sender]
    assert has_buffered_output(sender)  # the rest of it
    assert len(pair[1].recv(1000)) == 1000
    for piece in pieces[1:]:
        sender.write(piece)
    received = bytes(1000)
    while len(received) < 500_000:
        received += pair[1].recv(1_000_000)
        for writable in list(sender.reactor.writers):
            writable.doWrite()
        end_turn(sender)
    assert received == b"".join(pieces)
    assert not has_buffered_output(sender)
    assert sender.reactor.writers == []


def test_streaming_producer_is_paused_and_resumed(sender: Any, pair: Pair) -> None:
    producer = PushProducer()
    sender.registerProducer(producer, streaming=True)
    sender.write(b"x" * 1000)
    end_turn(sender)
    assert producer.calls == []
    sender.write(b"x" * 5_000_000)
    assert producer.calls == ["pause"]
    end_turn(sender)
    while sender.reactor.writers:
        pair[1].recv(1_000_000)
        sender.doWrite()
        end_turn(sender)
    assert producer.calls == ["pause", "resume"]


def test_pull_producer_is_called_for_each_piece(sender: Any, pair: Pair) -> None:
    @implementer(IPullProducer)
    class Producer:
        left = 3

        def resumeProducing(self) -> None:
            self.left -= 1
            sender.write(b"piece")
            if not self.left:
                sender.unregisterProducer()

        def stopProducing(self) -> None: ...

    sender.registerProducer(Producer(), streaming=False)
    for _ in range(3):
        end_turn(sender)
    assert pair[1].recv(100) == b"piece" * 3


def test_closing_follows_what_was_written(sender: Any, pair: Pair) -> None:
    sender.write(b"last")
    sender.loseConnection()
    sender.write(b" words")  # as stock Twisted, which sends it before it closes
    end_turn(sender)
    assert sender.reactor.lost.check(ConnectionDone)
    assert pair[1].recv(100) == b"last words"
    assert pair[1].recv(100) == b""


def test_nothing_is_sent_after_the_end(sender: Any, pair: Pair) -> None:
    sender.loseWriteConnection()
    end_turn(sender)
    sender.write(b"x")
    end_turn(sender)
    assert pair[1].recv(10) == b""


def test_nothing_is_sent_after_an_abort(sender: Any, pair: Pair) -> None:
    sender.abortConnection()
    sender.write(b"x")
    end_turn(sender)
    assert sender.reactor.lost is not None
    assert pair[1].recv(10) == b""


def test_nothing_is_sent_on_a_lost_connection(sender: Any, pair: Pair) -> None:
    answer(sender, pair, b"sent")
    answer(sender, pair, b"held back")
    assert pair[1].recv(20) == b"sent"
    sender.connectionLost(Failure(ConnectionDone()))
    end_turn(sender)
    assert pair[1].recv(10) == b""


def test_error_ends_the_connection(sender: Any, pair: Pair) -> None:
    pair[1].close()
    sender.write(b"x")
    assert not sender.reactor.has_lost()  # not while the caller writes
    end_turn(sender)
    assert sender.reactor.lost.check(ConnectionLost)


def test_failing_producer_ends_its_connection_only(sender: Any) -> None:
    class FailingProducer(PushProducer):
        def resumeProducing(self) -> None:
            raise RuntimeError("of the producer")

    sender.registerProducer(FailingProducer(), streaming=True)
    sender.write(b"x" * 70_000)
    with capturedLogs() as events:
        end_turn(sender)
    assert sender.reactor.lost.check(RuntimeError)
    assert [event["log_failure"].type for event in events] == [RuntimeError]


def test_failing_protocol_does_not_stop_other_connections(sender: Any, pair: Pair) -> None:
    class FailingProtocol(Protocol):
        def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]  # without its default
            raise RuntimeError("of the protocol")

    ours, theirs = socket.socketpair()
    with theirs:
        port = sender.server
        failing = port.transport(ours, FailingProtocol(), ("127.0.0.1", 1), port, 0, sender.reactor)
        failing.protocol.makeConnection(failing)
        failing.loseConnection()
        sender.loseWriteConnection()
        with capturedLogs() as events:
            end_turn(sender)
    assert pair[1].recv(10) == b""
    assert [event["log_failure"].type for event in events] == [RuntimeError]


class FakeSender:
    def __init__(self, sent: list[str], name: str, queue: OutputQueue, *, producerPaused: bool = False) -> None:
        self._sent, self._name, self._queue = sent, name, queue
        self.producerPaused = producerPaused

    def send(self) -> None:
        self._sent.append(self._name)
        if self.producerPaused:
            self._queue.add(self)  # its producer writes the next piece


class OutputQueueTests:
    def test_long_output_takes_turns_and_short_output_is_sent_at_once(self) -> None:
        clock, sent = TurnClock(), list[str]()
        queue = OutputQueue(cast(IReactorTime, clock))
        names = [f"long {number}" for number in range(LONG_SENDS_PER_TURN + 3)]
        for name in names:
            queue.add(FakeSender(sent, name, queue, producerPaused=True))
        clock.end_turn()
        assert sent == names[:LONG_SENDS_PER_TURN]
        sent.clear()
        queue.add(FakeSender(sent, "short", queue))
        clock.end_turn()
        assert sent == ["short", *names[LONG_SENDS_PER_TURN:], *names[: LONG_SENDS_PER_TURN - 3]]

    def test_queue_without_output_does_nothing(self) -> None:
        clock, sent = TurnClock(), list[str]()
        queue = OutputQueue(cast(IReactorTime, clock))
        queue.add(FakeSender(sent, "one", queue))
        assert len(clock.calls) == 1
        clock.end_turn()
        assert clock.calls == []

    def test_only_so_much_is_held(self) -> None:
        """Thousands of connections may be read in one turn."""
        clock, sent = TurnClock(), list[str]()
        queue = OutputQueue(cast(IReactorTime, clock))
        assert [queue.hold(HELD_MAX_BYTES), queue.hold(HELD_MAX_BYTES), queue.hold(1)] == [False, True, False]
        queue.add(FakeSender(sent, "one", queue))
        clock.end_turn()
        assert queue.hold(1)

    def test_output_does_not_wait_until_a_clock_that_was_set_back_has_caught_up(self) -> None:
        clock, sent = TurnClock(), list[str]()
        queue = OutputQueue(cast(IReactorTime, clock))
        assert [queue.hold(1), queue.hold(1)] == [False, True]
        queue.add(FakeSender(sent, "one", queue))
        assert clock.resets == []
        clock.now_s -= 3600
        assert not queue.hold(1)
        assert clock.resets == [clock.now_s]
