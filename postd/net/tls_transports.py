"""Transports of TLS connections: after the handshake the socket belongs to OpenSSL, which reads and sends by itself.

Stock Twisted reads and sends for OpenSSL, and passes each record through two buffers in memory. Here a connection is
polled, sends, and holds its output as a plain one (`postd.net.transports`); docs/explanation/front.md lists the
departures, `tests/net/test_tls_transports.py` tests them.

The end of the client's output (close_notify) is a half-close, as the FIN of a plain connection is (RFC 8446 §6.1;
TLS 1.2 would discard the responses). The end of this side's output is announced, and what arrives until the client has
ended its own is discarded. A connection that ends without close_notify is lost.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import EAGAIN, EPIPE
from functools import partial
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from socket import socket
from typing import Any

from OpenSSL import SSL
from OpenSSL.crypto import X509
from twisted.internet.interfaces import IHandshakeListener, ISSLTransport
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.python.failure import Failure
from zope.interface import implementer

from postd.net.tls import Certificate
from postd.net.transports import Poller, TCPTransport
from postd.reactor import IReactor
from postd.twisted_private import buffered_bytes, read_one_record, use_socket

HANDSHAKES_PER_TURN = 4
"""How many connections go on with their handshake in one turn of the reactor, in less than a millisecond."""

HANDSHAKE_BYTES = 4096
"""How much of a handshake a connection reads in a turn. OpenSSL itself would read all that arrives: a ClientHello in
records of a byte takes it a tenth of a second."""

RECORD_BYTES = 16 * 1024
"""The most that a record holds. OpenSSL reads one at a time, so that nothing is left in it that epoll does not see."""

SENT_MAX_BYTES = 128 * 1024
"""How much a connection sends at a time, as a client that reads as fast as OpenSSL encrypts would get a whole list."""


class TLSPoller(Poller):
    """Polls the connections of a TLS port, and has the queue of those whose handshake goes on in a later turn."""

    def __init__(self, reactor: IReactor, port: Any = None) -> None:
        super().__init__(reactor, port)
        self._handshakes_left = 0
        self._waiting: deque[TLSTransport] = deque()

    def doRead(self) -> None:
        self._handshakes_left = 0 if self._waiting else HANDSHAKES_PER_TURN
        super().doRead()

    def may_shake_hands(self, connection: "TLSTransport") -> bool:
        """Return whether a connection may go on with its handshake now; if not, it does so in a later turn."""
        if self._handshakes_left > 0:
            self._handshakes_left -= 1
            return True
        connection.stopReading()
        if not self._waiting:
            self._reactor.callLater(0, self._shake_hands)
        self._waiting.append(connection)
        return False

    def _shake_hands(self) -> None:
        for _ in range(min(HANDSHAKES_PER_TURN, len(self._waiting))):
            self._waiting.popleft().shake_hands()
        if self._waiting:
            self._reactor.callLater(0, self._shake_hands)


class TLSSocket:
    """A socket whose output OpenSSL encrypts; with the same methods as a plain socket, and its errors.

    Attributes:
        is_blocked: whether the kernel has not accepted all of the last record. The next output must begin with the same
            bytes, and OpenSSL must not read: to answer a second KeyUpdate it would try to send another record.
    """

    is_blocked = False

    def __init__(self, plain: socket, tls: SSL.Connection) -> None:
        self._plain = plain
        self._tls = tls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def send(self, data: bytes | memoryview) -> int:
        sent = 0
        self.is_blocked = False
        try:
            if len(data) <= RECORD_BYTES:
                return self._tls.send(data)
            data = memoryview(data)[:SENT_MAX_BYTES]
            while sent < len(data):
                sent += self._tls.send(data[sent : sent + RECORD_BYTES])  # of more, it sends one record, too
        except (SSL.WantWriteError, SSL.WantReadError):
            self.is_blocked = True
            if not sent:
                raise BlockingIOError(EAGAIN, "OpenSSL cannot send now") from None
        except SSL.Error:
            raise BrokenPipeError(EPIPE, "OpenSSL cannot send any more") from None
        return sent

    def sendmsg(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Send some of the pieces."""
        sent = 0
        for data in _join_short(pieces):
            try:
                count = self.send(data)
            except BlockingIOError:
                if not sent:
                    raise
                break
            sent += count
            if count < len(data) or sent >= SENT_MAX_BYTES:
                break
        return sent


def _join_short(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the pieces; in place of short ones that follow each other, at least a whole record."""
    joined: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        joined.append(piece)
        size += len(piece)
        if size >= RECORD_BYTES:
            yield joined[0] if len(joined) == 1 else b"".join(joined)
            joined, size = [], 0
    if size:
        yield b"".join(joined)


@implementer(ISSLTransport)
class TLSTransport(TCPTransport):
    """A connection of a TLS port. The protocol is connected before the handshake, so that its timeouts include it."""

    _poller: TLSPoller
    _tls: Any = None  # an `SSL.Connection`
    _is_shaking_hands = True
    _handshake_output = b""  # which the kernel has not accepted
    _early_input: tuple[bytes, ...] = ()  # which has arrived behind the handshake
    _reads_when_writable = False

    def __init__(self, *arguments: object, poller: TLSPoller, certificate: Certificate) -> None:
        self._certificate = certificate
        super().__init__(*arguments, poller=poller)
        self._is_sending = True  # until the handshake is done: output is buffered

    def getPeerCertificate(self) -> X509 | None:
        return None if self._tls is None else self._tls.get_peer_certificate()

    def handle(self, event: int) -> None:
        if self._is_shaking_hands and event & EPOLLIN and not self._poller.may_shake_hands(self):
            return
        if self._reads_when_writable and event & (EPOLLOUT | EPOLLERR | EPOLLHUP) and not self._is_blocked():
            self._read_again()
            event |= EPOLLIN
        super().handle(event)

    def shake_hands(self) -> None:
        """Go on with the handshake in this turn."""
        if not self.disconnected:
            self.startReading()
            super().handle(EPOLLIN)

    def stopReading(self) -> None:
        self._reads_when_writable = False
        super().stopReading()

    def _is_blocked(self) -> bool:
        return not self._is_shaking_hands and self.socket.is_blocked

    def _wait_until_writable(self) -> None:
        """Wait to read: OpenSSL has to send first, such as an answer to KeyUpdate while the client reads nothing."""
        self._poll_for(self._events & ~EPOLLIN | EPOLLOUT)
        self._reads_when_writable = True

    def _read_again(self) -> None:
        self._reads_when_writable = False
        self._poll_for(self._events | EPOLLIN)

    def doRead(self) -> Any:
        try:
            if self._is_shaking_hands:
                self._shake_hands()
            elif self.socket.is_blocked:
                raise SSL.WantWriteError  # noqa: TRY301 - as if OpenSSL had tried
            data = self._tls.recv(RECORD_BYTES)
        except SSL.WantReadError:
            return None
        except SSL.WantWriteError:
            self._wait_until_writable()
            return None
        except SSL.ZeroReturnError:  # close_notify
            # Output of this turn is sent first; the end that has been read stays in OpenSSL.
            return None if self.disconnecting and self._is_written else CONNECTION_DONE
        except SSL.Error as error:
            if not isinstance(error, SSL.SysCallError):  # such as the end of the input, without close_notify
                with suppress(OSError):  # else the kernel would reset the connection: the client might miss the alert
                    self.socket.recv(self.bufferSize)
            return CONNECTION_LOST
        if not self.disconnecting:
            self.protocol.dataReceived(data)
        return None

    def _shake_hands(self) -> None:
        """Go on with the handshake, in memory; once it is done, the socket is OpenSSL's.

        Raises:
            SSL.Error: it is not done, or has failed.
        """
        if self._tls is None:
            self._tls = self._certificate.accept()
        try:
            if not self._handshake_output:
                self._receive_handshake()
            self._tls.do_handshake()
            self._send_handshake()
            with suppress(SSL.WantReadError):
                while True:
                    self._early_input += (self._tls.recv(RECORD_BYTES),)
        except SSL.ZeroReturnError:
            pass  # the next read raises it, too
        finally:
            self._send_handshake()
        # Before, OpenSSL reads on until nothing is left in memory, also behind a record without data.
        read_one_record(self._tls)
        use_socket(self._tls, self.socket.fileno())
        self._is_shaking_hands = self._is_sending = False
        self.socket: Any = TLSSocket(self.socket, self._tls)
        if self._is_written:
            self.startWriting()
        if IHandshakeListener.providedBy(self.protocol):
            self.protocol.handshakeCompleted()
        received, self._early_input = self._early_input, ()
        for data in received:
            if not self.disconnecting:
                self.protocol.dataReceived(data)

    def _receive_handshake(self) -> None:
        try:
            received = self.socket.recv(HANDSHAKE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise SSL.SysCallError(error.errno, "the connection is lost") from None
        if not received:
            raise SSL.SysCallError(EPIPE, "the client has ended its output")
        self._tls.bio_write(received)

    def _send_handshake(self) -> None:
        """Send what OpenSSL has written.

        Raises:
            SSL.WantWriteError: the kernel has not accepted all of it.
            SSL.SysCallError: the connection is lost.
        """
        with suppress(SSL.WantReadError):
            while True:
                self._handshake_output += self._tls.bio_read(RECORD_BYTES)
        try:
            while self._handshake_output:
                self._handshake_output = self._handshake_output[self.socket.send(self._handshake_output) :]
        except BlockingIOError:
            raise SSL.WantWriteError from None
        except OSError as error:
            raise SSL.SysCallError(error.errno, "the connection is lost") from None

    def send(self) -> None:
        if self._is_shaking_hands:
            self._is_queued = False
            return
        super().send()
        if self.disconnecting and self._events & EPOLLOUT:
            self.stopReading()
        if self._reads_when_writable and not self.disconnected and not self.socket.is_blocked:
            self._read_again()

    def doWrite(self) -> Any:
        if self.disconnecting and self.producer is None and not buffered_bytes(self):
            return self._end_output()
        reason = super().doWrite()
        return self._end_output() if reason is CONNECTION_DONE else reason

    def _end_output(self) -> Exception | None:
        """Send close_notify, and wait for the client's; return the reason if there is nothing to wait for."""
        try:
            is_over = self._tls.shutdown()
        except SSL.WantWriteError:
            self._poll_for(self._events | EPOLLOUT)
            return None
        except SSL.Error:
            return CONNECTION_LOST
        if is_over:
            return CONNECTION_DONE
        self.startReading()
        return None

    def loseConnection(self) -> None:
        if self._is_shaking_hands:
            self.abortConnection()
        elif (
            self._poller.reading
            and self.connected
            and not (self.disconnecting or self.producerPaused or self._events & EPOLLOUT)
        ):
            self.startWriting()  # it sends before the connections are polled again: reading need not stop
            self.disconnecting = 1
        else:
            super().loseConnection()

    def lose(self, reason: Failure, *, is_read: bool = False) -> None:
        super().lose(reason, is_read=is_read and not self.disconnecting)  # else this side has ended, too

    def connectionLost(self, reason: Failure) -> None:
        super().connectionLost(reason)
        self._tls = None


def poll_tls_together(port: Any, certificate: Certificate, reactor: IReactor) -> None:
    """Let the new connections of a port have TLS, and be polled together."""
    port.transport = partial(TLSTransport, poller=TLSPoller(reactor, port), certificate=certificate)
