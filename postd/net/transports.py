"""Transports of accepted connections: polled together, with the output of a turn of the reactor sent together.

Stock Twisted polls and sends for each connection by itself, which takes most of the CPU time of a short request. The
connections of a port have an epoll of their own, which the reactor polls as one descriptor. The first response of a
turn is sent at once. Other responses wait until all readable connections have been read: a client on another core is
done with a response before the next one is made, and sleeps, and waking it up takes the kernel as long as sending.
Long output, which has paused its producer, waits in a queue; `LONG_SENDS_PER_TURN` connections of the queue send in one
turn. docs/explanation/front.md lists the departures; `tests/net/test_transports.py` tests them.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, epoll
from socket import socket
from typing import Any, Protocol, cast

from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReadDescriptor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.tcp import Server as TCPServer
from twisted.internet.unix import Port as UnixPort
from twisted.internet.unix import Server as UNIXServer
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from postd.reactor import IReactor
from postd.twisted_private import (
    buffer_only_write,
    buffer_pieces,
    buffered_bytes,
    drop_buffer,
    send_only_write,
    send_pieces,
)

LONG_SENDS_PER_TURN = 8
"""How many connections with long output send in one turn: half a millisecond if each has 256 KiB of a list to send."""

AT_ONCE_MAX_BYTES = 64 * 1024
"""How much a connection sends at once between two reads, or two sends of the queue: as much as stock Twisted queues
before it pauses the producer. Otherwise a long response would be sent in one turn to a client that keeps up."""

HELD_MAX = 32
"""How many connections hold a response until all readable connections are read: about 2 MiB at most."""

IDLE_POLLED_S = 1
"""How long a port without connections is polled, in seconds. To begin and to end it takes as long as a short read."""

_HUNG_UP = EPOLLERR | EPOLLHUP

_ANY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared

_ENDS: Mapping[BaseException, Failure] = {end: Failure(end) for end in (CONNECTION_DONE, CONNECTION_LOST)}
"""Reasons of a lost connection, which need not be made for each."""

_log = Logger()


class Polled(Protocol):
    """A connection. None of its methods raises an exception: errors are logged, and end the connection."""

    @property
    def producerPaused(self) -> bool:
        """Whether so much is written that the producer is paused."""

    def fileno(self) -> int:
        """Return the descriptor of the socket."""

    def handle(self, event: int) -> None:
        """Read, let the connection send, or end it; `event` is what epoll reports."""

    def send(self) -> None:
        """Send the buffered output."""

    def lose(self, reason: Failure) -> None:
        """End the connection."""


@implementer(IReadDescriptor)
class Poller:
    """Polls the connections of a port when the reactor calls it, and has the queue of connections with output.

    Attributes:
        has_one_address: whether the server's address is the same for all connections.
        address: this address, once it is known.
    """

    def __init__(self, reactor: IReactor, port: Any = None) -> None:
        # Of the socket: there are many ways to write any address.
        is_bound = getattr(port, "socket", None) is not None
        self.has_one_address = is_bound and getattr(port.getHost(), "host", "") not in _ANY_ADDRESS
        self.address: IPv4Address | IPv6Address | None = None
        self._reactor = reactor
        self._epoll = epoll()
        self._connections: dict[int, Polled] = {}  # by descriptor
        self._written: list[Polled] = []
        self._long: deque[Polled] = deque()
        self._sending: IDelayedCall | None = None
        self._idle_end: IDelayedCall | None = None
        self._is_polled = False  # by the reactor
        self.reading = False
        """Whether connections are being read; they send at the end of this, if not before."""
        self.holding = False
        """Whether responses are to be held: another connection has been read in this turn."""

    def poll(self, connection: Polled, events: int) -> None:
        """Poll a connection for some events from now on, and for hang-ups."""
        descriptor = connection.fileno()
        if descriptor in self._connections:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
            self._connections[descriptor] = connection
            if not self._is_polled:
                self._is_polled = True
                self._reactor.addReader(self)

    def forget(self, connection: Polled) -> None:
        """Poll a connection no longer; its socket is about to be closed."""
        descriptor = connection.fileno()
        if self._connections.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
            if not self._connections and self._idle_end is None:
                self._idle_end = self._reactor.callLater(IDLE_POLLED_S, self._end_idle_polling)

    def _end_idle_polling(self) -> None:
        self._idle_end = None
        if not self._connections:
            self._is_polled = False
            self._reactor.removeReader(self)

    def add(self, connection: Polled) -> None:
        """Let a connection send at the end of this turn; with long output, after the connections queued before it."""
        self._written.append(connection)
        if not self.reading:
            self._send_later()

    def _send_later(self) -> None:
        if self._sending is None:
            self._sending = self._reactor.callLater(0, self._send)

    def _send(self) -> None:
        self._sending = None
        self._send_written()
        for _ in range(min(LONG_SENDS_PER_TURN, len(self._long))):
            self._long.popleft().send()
        if self._long:
            self._send_later()

    def _send_written(self) -> None:
        written, self._written = self._written, []
        for connection in written:
            if connection.producerPaused:
                self._long.append(connection)
                self._send_later()
            else:
                connection.send()

    # Called by the reactor

    def fileno(self) -> int:
        return self._epoll.fileno()

    def logPrefix(self) -> str:
        return "connections"

    def doRead(self) -> None:
        connections = self._connections
        self.reading = True
        for descriptor, event in self._epoll.poll(0, len(connections) or 1):  # the last one may just have been closed
            connection = connections.get(descriptor)
            if connection is not None:  # else one that was handled before has closed it
                connection.handle(event)
                self.holding = True
                if len(self._written) >= HELD_MAX:
                    self._send_written()
        self.reading = self.holding = False
        self._send_written()
        if self._sending is not None:
            self._sending.reset(0)  # if the clock was set back, it would come as much later

    def connectionLost(self, reason: Failure) -> None:
        """Called when the reactor has stopped."""
        for connection in list(self._connections.values()):
            connection.lose(reason)


class _PolledConnection(FileDescriptor):
    """Mixin for the server transports of sockets: polled by a `Poller`; `write` sends at once, or queues."""

    socket: socket
    TLS: bool
    logstr: str
    repstr: str

    def __init__(self, *arguments: Any, poller: Poller) -> None:
        # All that connections set while they last, with what Twisted sets later: CPython lets the objects of a class
        # share the names of attributes that the first of them had. One with another name takes 600 bytes more.
        self._poller = poller
        self._events = 0  # that it is polled for: for output only while the socket does not accept more
        self._at_once_left = AT_ONCE_MAX_BYTES
        self._is_sending = False
        self._is_written = False  # there is output to send, or the end of it
        self._is_queued = False
        self.producer, self.streamingProducer, self.producerPaused = None, False, False
        self.dataBuffer, self.offset = b"", 0
        super().__init__(*arguments)
        self.repstr = self.logstr  # one text is enough

    def _poll_for(self, events: int) -> None:
        if events != self._events and not self.disconnected:
            self._events = events
            self._poller.poll(self, events)

    def startReading(self) -> None:
        self._poll_for(self._events | EPOLLIN)

    def stopReading(self) -> None:
        self._poll_for(self._events & ~EPOLLIN)

    def startWriting(self) -> None:
        if not self._events & EPOLLOUT:
            self._is_written = True
            if not self._is_queued:
                self._is_queued = True
                self._poller.add(self)

    def stopWriting(self) -> None:
        self._is_written = False
        self._poll_for(self._events & ~EPOLLOUT)

    def handle(self, event: int) -> None:
        reason: BaseException | None = None
        event &= self._events | _HUNG_UP  # one that was handled before may have changed them
        if event & EPOLLIN:
            self._at_once_left = AT_ONCE_MAX_BYTES
            try:
                reason = self.doRead()
            except BaseException as error:  # noqa: BLE001 - the error ends this connection only
                _log.failure("{connection}: could not be read", connection=self.logPrefix())
                reason = error
        elif event & _HUNG_UP:
            reason = CONNECTION_DONE if self._events & EPOLLIN else CONNECTION_LOST
        if reason is not None:
            self.lose(_ENDS.get(reason) or Failure(reason), is_read=reason is CONNECTION_DONE)
        elif event & EPOLLOUT and self._events & EPOLLOUT:
            self.stopWriting()
            self.startWriting()

    def lose(self, reason: Failure, *, is_read: bool = False) -> None:
        """End the connection, or, for `is_read`, its input only, if the protocol can half-close."""
        try:
            if is_read:
                self.stopReading()
                self.readConnectionLost(reason)
            else:
                self.connectionLost(reason)
        except BaseException:  # noqa: BLE001 - the error ends this connection only
            _log.failure("{connection}: could not be closed", connection=self.logPrefix())

    def connectionLost(self, reason: Failure) -> None:
        if not self.disconnected:
            self._poller.forget(self)
        super().connectionLost(reason)
        drop_buffer(self)

    def write(self, data: bytes) -> None:
        left = self._at_once_left = self._at_once_left - len(data)
        if (
            left >= 0
            and data
            and not (self._is_written or self._is_sending)
            and not self._events & EPOLLOUT
            and self.connected
            and not (self.disconnecting or self.TLS)
            and (self.producer is None or self.streamingProducer)  # a pull producer waits for a call after each piece
        ):
            if not self._poller.holding:
                try:
                    sent = self.socket.send(data)
                except OSError:  # `doWrite` raises the same error
                    sent = 0
                if sent == len(data):
                    return
                data = data[sent:]
            elif isinstance(data, bytes):
                buffer_only_write(self, data)
                return
        super().write(data)

    def writeSequence(self, iovec: Iterable[bytes | memoryview]) -> None:
        parts = list(iovec)
        is_shared = not self.TLS and any(isinstance(part, memoryview) for part in parts)
        if self.TLS or (sum(map(len, parts)) <= AT_ONCE_MAX_BYTES and not is_shared):
            self.write(b"".join(parts))  # at once
        else:  # not copied
            buffer_pieces(self, parts)

    def abortConnection(self) -> None:
        self._at_once_left = 0
        super().abortConnection()  # type: ignore[misc]  # of the transports that this is mixed in

    def send(self) -> None:
        self._is_queued = False
        if not (self._is_written and self.connected):
            return
        self._is_written = False
        if send_only_write(self):
            return
        self._is_sending = True
        self._at_once_left = AT_ONCE_MAX_BYTES
        try:
            reason = self.doWrite()
            if reason is None and not self._is_written and buffered_bytes(self) > 0:
                self._poll_for(self._events | EPOLLOUT)
                self._pause_producer()
        except BaseException as error:  # noqa: BLE001 - an error of the producer drops its connection only
            _log.failure("{connection}: could not send", connection=self.logPrefix())
            reason = error
        self._is_sending = False
        if reason is not None:
            self.lose(_ENDS.get(reason) or Failure(reason))

    def _pause_producer(self) -> None:
        if self.producer is not None and self.streamingProducer and not self.producerPaused:
            self.producerPaused = True
            cast("IPushProducer", self.producer).pauseProducing()

    def doWrite(self) -> Any:
        return super().doWrite() if send_pieces(self) else None  # else the kernel has not accepted all

    def writeSomeData(self, data: bytes) -> Any:
        if not data:  # `send_pieces` has sent all
            return 0
        if len(data) > self.SEND_LIMIT:
            return super().writeSomeData(data)
        try:
            return self.socket.send(data)
        except OSError:  # the stock method raises the same error
            return super().writeSomeData(data)


class TCPTransport(_PolledConnection, TCPServer):
    """A connection of a TCP port."""

    def getHost(self) -> IPv4Address | IPv6Address:
        address = self._poller.address
        if address is None:
            address = super().getHost()
            if self._poller.has_one_address:
                self._poller.address = address
        return address


class UNIXTransport(_PolledConnection, UNIXServer):
    """A connection of a UNIX port."""


def poll_together(port: Any, reactor: IReactor) -> None:
    """Let the new connections of a port be polled together. Twisted has no option for their class."""
    kind = UNIXTransport if isinstance(port, UnixPort) else TCPTransport
    port.transport = partial(kind, poller=Poller(reactor, port))
