"""Output of connections: responses that follow closely are sent together, and long ones take turns.

Departures from stock Twisted:

- Output is sent without asking epoll first whether the socket is writable. Stock Twisted asks for each response, with
  two system calls, and sends in the next turn of the reactor.
- Of the responses to requests that are read one closely after the other, the first is sent at once, the others at the
  end of the turn. Each sent at once would cost more: a client on another core is done with it before the next one is
  made, and sleeps. Waking it up takes the kernel as long as sending.
- Long output, which has paused its producer, waits in a queue; `LONG_SENDS_PER_TURN` connections of it send in one
  turn. Stock Twisted sends for all of them in each turn, and other requests wait meanwhile.
"""

from collections import deque
from functools import partial
from socket import socket
from typing import Any, Protocol

from twisted.internet.abstract import FileDescriptor
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.tcp import Server as TCPServer
from twisted.internet.unix import Port as UnixPort
from twisted.internet.unix import Server as UNIXServer
from twisted.logger import Logger
from twisted.python.failure import Failure

LONG_SENDS_PER_TURN = 8
"""How many connections with long output send in one turn, each at most 128 KiB (`SEND_LIMIT`): about a millisecond."""

AT_ONCE_MAX_BYTES = 64 * 1024
"""How much a connection sends at once between two reads, or two sends by the queue: as much as stock Twisted queues
before it pauses the producer. Otherwise a long response would be sent in one turn to a client that keeps up."""

HELD_MAX_BYTES = 1024 * 1024
"""How much output of all connections is held until the end of the turn."""

CLOSELY_S = 0.00005
"""Responses that follow each other within this time are sent together: it takes less to make one for a busy server, and
more until a single client has sent its next request."""

_log = Logger()


class Sender(Protocol):
    """A connection that sends when its turn comes."""

    @property
    def producerPaused(self) -> bool:
        """Whether so much is written that the producer is paused."""

    def send(self) -> None:
        """Send the buffered output. Errors are logged, and end the connection; none is raised."""


class OutputQueue:
    """The connections with output to send; `clock` is the reactor."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._written: list[Sender] = []  # in this turn
        self._long: deque[Sender] = deque()
        self._held_bytes = 0
        self._sending: IDelayedCall | None = None
        self._last_s = 0.0

    def hold(self, length: int) -> bool:
        """Return whether to hold a response of this length in bytes: the last call was less than `CLOSELY_S` ago."""
        now, last = self._clock.seconds(), self._last_s
        self._last_s = now
        if now < last and self._sending is not None:  # the clock was set back, and the call would come as much later
            self._sending.reset(0)
        if not 0 <= now - last < CLOSELY_S or self._held_bytes + length > HELD_MAX_BYTES:
            return False
        self._held_bytes += length
        return True

    def add(self, connection: Sender) -> None:
        """Let a connection send at the end of this turn, or, if its output is long, when those before it have sent."""
        self._written.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if self._sending is None:
            self._sending = self._clock.callLater(0, self._send)

    def _send(self) -> None:
        self._sending, self._held_bytes = None, 0
        written, self._written = self._written, []
        for connection in written:
            if connection.producerPaused:
                self._long.append(connection)
            else:
                connection.send()
        for _ in range(min(LONG_SENDS_PER_TURN, len(self._long))):
            self._long.popleft().send()
        if self._long:
            self._schedule()


class _QueuedOutput(FileDescriptor):
    """Mixin for the server transports of sockets: `write` sends at once, or adds the connection to the queue.

    The reactor waits only for those whose socket has not accepted everything.
    """

    socket: socket
    TLS: bool
    _at_once_left = AT_ONCE_MAX_BYTES
    _is_reading = _is_sending = False
    _is_written = False  # there is output to send, or the end of it
    _is_queued = False
    _is_polled = False  # the reactor waits until the socket is writable

    def __init__(self, *arguments: Any, queue: OutputQueue) -> None:
        self._queue = queue
        super().__init__(*arguments)

    def doRead(self) -> Any:
        self._at_once_left = AT_ONCE_MAX_BYTES
        self._is_reading = True
        try:
            return super().doRead()
        finally:
            self._is_reading = False

    def write(self, data: bytes) -> None:
        left = self._at_once_left = self._at_once_left - len(data)
        if (
            left >= 0
            and data
            and not (self._is_written or self._is_polled or self._is_sending)
            and not (self._is_reading and self._queue.hold(len(data)))
            and self.connected
            and not (self.disconnecting or self.TLS)
            and (self.producer is None or self.streamingProducer)  # others wait for a call after each piece
        ):
            try:
                sent = self.socket.send(data)
            except OSError:  # `doWrite` meets it, too
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        super().write(data)

    def abortConnection(self) -> None:
        self._at_once_left = 0
        super().abortConnection()  # type: ignore[misc]  # of the transports that this is mixed in

    def startWriting(self) -> None:
        if not self._is_polled:
            self._is_written = True
            if not self._is_queued:
                self._is_queued = True
                self._queue.add(self)

    def stopWriting(self) -> None:
        self._is_written = False
        if self._is_polled:
            self._is_polled = False
            super().stopWriting()

    def send(self) -> None:
        self._is_queued = False
        if not (self._is_written and self.connected):
            return
        self._is_written, self._is_sending = False, True
        self._at_once_left = AT_ONCE_MAX_BYTES
        # An error ends this connection, as in the reactor; others have to send.
        try:
            reason = self.doWrite()  # by this name: `abortConnection` replaces it
        except Exception as error:  # noqa: BLE001 - of the producer
            _log.failure("a connection could not send")
            reason = error
        self._is_sending = False
        if reason is not None:
            try:
                self.connectionLost(Failure(reason))
            except Exception:  # noqa: BLE001 - of the protocol
                _log.failure("a connection could not be closed")
        elif self.dataBuffer and not self._is_written:
            self._is_polled = True
            super().startWriting()

    def doWrite(self) -> Any:
        if self._is_sending:
            return super().doWrite()
        self.stopWriting()  # the reactor has called this: the socket is writable
        self.startWriting()
        return None

    def writeSomeData(self, data: bytes) -> Any:
        if len(data) > self.SEND_LIMIT:
            return super().writeSomeData(data)
        try:
            return self.socket.send(data)
        except OSError:  # the stock way meets it, too
            return super().writeSomeData(data)


class _TCPServer(_QueuedOutput, TCPServer):
    """A connection of a TCP port."""


class _UNIXServer(_QueuedOutput, UNIXServer):
    """A connection of a UNIX port."""


def queue_output(port: Any, clock: IReactorTime) -> None:
    """Let the new connections of a port send by a queue. Twisted has no option for their class."""
    kind = _UNIXServer if isinstance(port, UnixPort) else _TCPServer
    port.transport = partial(kind, queue=OutputQueue(clock))
