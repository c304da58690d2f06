"""TLS connections of a port, on real sockets; the client is Python's ssl, whose records are sent as a test wants."""

import fcntl
import random
import re
import select
import socket
import ssl
import struct
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHandshakeListener, ISSLTransport
from twisted.internet.protocol import Factory
from twisted.internet.tcp import Port
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from zope.interface import implementer

from postd.front.socket_state import unsent_bytes
from postd.net.tls import Certificate
from postd.net.tls_transports import (
    HANDSHAKE_BYTES,
    HANDSHAKES_PER_TURN,
    RECORD_BYTES,
    SENT_MAX_BYTES,
    poll_tls_together,
)
from postd.reactor import IReactor
from postd.twisted_private import largest_viewed
from tests.cases import each
from tests.helpers import PATIENCE_S
from tests.net.test_tls import load
from tests.net.test_transports import (
    Connection,
    HalfCloseableProtocol,
    PushProducer,
    RecordingProtocol,
    TurnReactor,
)

VERSIONS = each("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


class TLSConnection(Connection):
    """A connection and its client, which has what has not been sent yet in `outgoing`."""

    def __init__(
        self,
        port: Any,
        reactor: TurnReactor,
        version: ssl.TLSVersion,
        *,
        secrets: Path | None = None,
        protocols: Sequence[str] = (),
    ) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        super().__init__(port, reactor, (ours, theirs), RecordingProtocol())
        theirs.settimeout(0)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = version
        context.set_alpn_protocols(protocols)
        if secrets is not None:
            context.keylog_filename = str(secrets)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def flush(self, size: int = -1) -> None:
        """Send some of the client's records."""
        sent = self.outgoing.read(size)
        if sent:
            self.client.sendall(sent)

    def receive(self) -> None:
        """Receive what the server has sent."""
        with suppress(BlockingIOError):
            while received := self.client.recv(1_000_000):
                self.incoming.write(received)
            self.incoming.write_eof()

    def is_connected(self) -> bool:
        """Go on with the client's handshake; return whether it is done."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def finish_handshake(self) -> None:
        """Go on until the client's handshake is done; its last records are not sent yet."""
        while not self.is_connected():
            self.flush()
            self.reactor.turn()
            self.receive()

    def shake_hands(self) -> None:
        self.finish_handshake()
        self.flush()
        self.reactor.turn()

    def request(self, data: bytes = b"request") -> None:
        self.tls.write(data)
        self.flush()
        self.reactor.turn()

    def read(self) -> bytes:
        """Return what the client can read now."""
        self.receive()
        read: list[bytes] = []
        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while data := self.tls.read(1_000_000):
                read.append(data)
        return b"".join(read)

    def read_all(self, size: int) -> bytes:
        """Read so much, in as many turns as it takes."""
        read = b""
        while len(read) < size:
            read += self.read()
            self.reactor.turn()
        return read

    def fill(self) -> Callable[[], None]:
        """Let the kernel accept no more of the server's output; return a function that ends this."""
        self.read()
        filled = 0
        below = socket.socket(fileno=self.transport.fileno())
        with suppress(BlockingIOError):
            while True:
                filled += below.send(bytes(100_000))
        below.detach()

        def empty() -> None:
            left = filled
            self.client.settimeout(PATIENCE_S)
            while left:
                left -= len(self.client.recv(min(left, 1_000_000)))
            self.client.settimeout(0)

        return empty


def unread(descriptor: int) -> int:
    """Return how many bytes wait in a socket (tcp(7): FIONREAD)."""
    count: int
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    return count


ConnectTLS = Callable[..., TLSConnection]


@pytest.fixture(scope="module")
def current(certificate: tuple[Path, Path]) -> Certificate:
    return load(certificate)


@pytest.fixture
def dial(current: Certificate) -> Iterator[ConnectTLS]:
    """Return a function that connects to the same port, without the handshake."""
    port: Any = Port(0, Factory())
    reactor = TurnReactor()
    poll_tls_together(port, current, cast(IReactor, reactor))
    with ExitStack() as stack:

        def dial_one(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, **more: Any) -> TLSConnection:
            connection = TLSConnection(port, reactor, version, **more)
            stack.callback(connection.client.close)
            stack.callback(connection.transport.connectionLost, Failure(ConnectionDone()))
            return connection

        yield dial_one


@pytest.fixture
def connect(dial: ConnectTLS) -> ConnectTLS:
    """Return a function that connects to the same port."""

    def connect_one(*arguments: Any, **more: Any) -> TLSConnection:
        connection = dial(*arguments, **more)
        connection.shake_hands()
        return connection

    return connect_one


@pytest.fixture
def one(connect: ConnectTLS) -> TLSConnection:
    return connect()


# --- Handshake


@VERSIONS
def test_request_and_response(connect: ConnectTLS, version: ssl.TLSVersion) -> None:
    one = connect(version)
    assert ISSLTransport.providedBy(one.transport)
    assert one.transport.getPeerCertificate() is None
    one.protocol.dataReceived = lambda data: one.write(b"response to " + data)
    one.request()
    assert one.read() == b"response to request"


@VERSIONS
def test_handshake_may_arrive_in_single_bytes(dial: ConnectTLS, version: ssl.TLSVersion) -> None:
    one = dial(version)
    while not one.is_connected():
        while one.outgoing.pending:
            one.flush(1)
            one.reactor.turn()
        one.receive()
    one.tls.write(b"request")
    while one.outgoing.pending:
        one.flush(1)
        one.reactor.turn()
    assert one.protocol.received == [b"request"]


@VERSIONS
def test_request_behind_the_handshake_is_read_in_the_same_turn(dial: ConnectTLS, version: ssl.TLSVersion) -> None:
    one = dial(version)
    if version is ssl.TLSVersion.TLSv1_2:
        one.shake_hands()
    one.finish_handshake()
    one.request()
    assert one.protocol.received == [b"request"]


@VERSIONS
def test_long_request_behind_the_handshake_is_read_whole(dial: ConnectTLS, version: ssl.TLSVersion) -> None:
    """A part of its record is read with the handshake, the rest by OpenSSL from the socket."""
    one = dial(version)
    one.finish_handshake()
    request = random.Random(1).randbytes(50_000)
    one.tls.write(request)
    one.flush()
    for _ in range(10):
        one.reactor.turn()
    assert b"".join(one.protocol.received) == request
    one.write(b"response")
    assert one.read() == b"response"


def test_request_behind_key_updates_behind_the_handshake_is_read(dial: ConnectTLS, tmp_path: Path) -> None:
    """OpenSSL stops at each of them, though more has been read from the socket."""
    secrets = tmp_path / "secrets"
    one = dial(secrets=secrets)
    one.finish_handshake()
    updates = KeyUpdates(secrets)
    one.client.sendall(one.outgoing.read() + updates.next() + updates.next() + updates.seal(b"request\x17"))
    for _ in range(5):
        one.reactor.turn()
    assert (one.protocol.received, one.reason()) == ([b"request"], None)
    one.write(b"response")
    assert one.read() == b"response"


def test_client_hello_in_many_records_is_read_in_parts(dial: ConnectTLS) -> None:
    one = dial(protocols=[*(f"protocol {number}" for number in range(100)), "http/1.1"])
    one.is_connected()
    hello = one.outgoing.read()[5:]
    records = b"".join(b"\x16\x03\x01\x00\x01%c" % byte for byte in hello)
    assert len(records) > 2 * HANDSHAKE_BYTES
    one.client.sendall(records)
    for turn in (1, 2):
        one.reactor.turn()
        assert unread(one.transport.fileno()) == len(records) - turn * HANDSHAKE_BYTES
    one.reactor.turn()
    one.receive()
    one.shake_hands()
    one.request()
    assert one.protocol.received == [b"request"]


@VERSIONS
def test_handshake_that_the_kernel_does_not_accept_is_sent_later(dial: ConnectTLS, version: ssl.TLSVersion) -> None:
    one = dial(version)
    one.is_connected()
    empty = one.fill()
    one.flush()
    for _ in range(3):
        one.reactor.turn()
    empty()
    one.shake_hands()
    one.request()
    assert one.protocol.received == [b"request"]


def test_output_before_the_handshake_follows_it(dial: ConnectTLS) -> None:
    one = dial()
    one.write(b"a")
    one.transport.writeSequence([b"b", b"c"])
    one.reactor.turn()
    one.receive()
    assert not one.incoming.pending
    one.shake_hands()
    one.reactor.turn()
    assert one.read() == b"abc"


def test_handshakes_take_turns(dial: ConnectTLS, connect: ConnectTLS) -> None:
    """Others are read in each turn meanwhile."""
    other = connect()
    many = [dial() for _ in range(3 * HANDSHAKES_PER_TURN)]
    for one in many:
        one.is_connected()
        one.flush()
    answered: list[TLSConnection] = []
    while len(answered) < len(many):
        other.request(b"x")
        answered += [one for one in many if one not in answered and one.is_readable()]
        assert len(answered) <= len(other.protocol.received) * HANDSHAKES_PER_TURN
    assert answered == many
    assert len(other.protocol.received) <= 4
    for one in many:
        one.receive()
        assert one.is_connected()
        one.tls.write(b"x")
        one.flush()
    for _ in many:
        one.reactor.turn()
    assert [one.protocol.received for one in many] == [[b"x"]] * len(many)


@each("waits", [False, True])
def test_connection_aborted_in_the_handshake_is_lost(dial: ConnectTLS, *, waits: bool) -> None:
    many = [dial() for _ in range(2 * HANDSHAKES_PER_TURN)]
    for one in many:
        one.is_connected()
        one.flush()
    if waits:
        one.reactor.poll()
    for one in many:
        one.transport.loseConnection()  # there is nothing to wait for
    for _ in range(3):
        one.reactor.turn()
    assert {one.reason() for one in many} == {ConnectionAborted}
    assert one.reactor.readers_after_a_while() == []


def record(kind: int, data: bytes) -> bytes:
    return struct.pack("!BHH", kind, 0x0301, len(data)) + data


ALERT = re.compile(rb"\x15\x03.\0\x02..", re.DOTALL)


@each(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\0" * 100,
        record(22, b"\1\0\0\0"),
        record(22, b"\2\0\0\0"),
        record(23, b"early"),
        record(21, b"\2\x28"),
        record(22, b"\1\xff\xff\xff" + bytes(1000)),
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\n",
    ],
)
def test_no_client_hello_ends_the_connection_without_a_traceback(dial: ConnectTLS, sent: bytes) -> None:
    one = dial()
    one.client.sendall(sent)
    with capturedLogs() as events:
        one.reactor.turn()
    assert (one.reason(), events) == (ConnectionLost, [])
    # An orderly end, perhaps after an alert: a reset would be an error in place of both.
    assert re.fullmatch(b"|" + ALERT.pattern, one.client.recv(1000), re.DOTALL)


def test_client_that_leaves_in_the_handshake_ends_its_connection(dial: ConnectTLS) -> None:
    for steps in range(3):
        one = dial()
        for _ in range(steps):
            one.is_connected()
            one.flush()
            one.reactor.turn()
            one.receive()
        if steps == 1:
            one.client.sendall(b"\x16\x03")
        one.client.close()
        with capturedLogs() as events:
            one.reactor.turn()
            one.reactor.turn()
        assert (one.reason(), events) == (ConnectionLost, [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_any_input_at_any_step_of_the_handshake_is_no_traceback(dial: ConnectTLS, data: st.DataObject) -> None:
    """Either the handshake goes on, or the connection ends; others are served."""
    one = dial(data.draw(st.sampled_from([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])))
    with capturedLogs() as events:
        for _ in range(data.draw(st.integers(0, 2))):
            one.is_connected()
            one.flush()
            one.reactor.turn()
            one.receive()
        one.is_connected()
        sent = bytearray(one.outgoing.read())
        for place, byte in data.draw(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4)):
            sent[place : place + data.draw(st.integers(0, 2))] = bytes([byte])
        one.client.sendall(sent + data.draw(st.binary(max_size=40)))
        one.client.shutdown(socket.SHUT_WR)
        for _ in range(6):
            one.reactor.turn()
    assert events == []
    assert one.reason() in {ConnectionLost, ConnectionDone}


# --- Input


def test_record_that_arrives_in_pieces_is_read_once_it_is_complete(one: TLSConnection) -> None:
    one.tls.write(b"x" * 1000)
    one.flush(500)
    one.reactor.turn()
    assert one.protocol.received == []
    one.flush()
    one.reactor.turn()
    assert one.protocol.received == [b"x" * 1000]


def test_all_records_of_a_turn_are_read(one: TLSConnection) -> None:
    sent = bytes(range(256)) * 256
    one.tls.write(sent)
    one.tls.write(b"last")
    one.flush()
    for _ in range(6):
        one.reactor.turn()
    assert b"".join(one.protocol.received) == sent + b"last"


def test_paused_connection_is_not_read(one: TLSConnection) -> None:
    one.transport.pauseProducing()
    one.request()
    assert one.protocol.received == []
    one.transport.resumeProducing()
    one.reactor.turn()
    assert one.protocol.received == [b"request"]


def test_protocol_is_told_of_the_handshake(dial: ConnectTLS) -> None:
    @implementer(IHandshakeListener)
    class Listener(RecordingProtocol):
        told = 0

        def handshakeCompleted(self) -> None:
            self.told += 1
            assert not self.received

    one = dial()
    one.transport.protocol = listener = Listener()
    one.reactor.turn()
    assert listener.told == 0
    one.shake_hands()
    one.request()
    assert (listener.told, listener.received) == (1, [b"request"])


def test_end_without_close_notify_is_a_loss(one: TLSConnection) -> None:
    one.client.shutdown(socket.SHUT_WR)
    one.reactor.turn()
    assert one.reason() is ConnectionLost


@VERSIONS
def test_close_notify_of_the_client_leaves_what_is_and_will_be_written(
    connect: ConnectTLS, version: ssl.TLSVersion
) -> None:
    one = connect(version)
    one.transport.protocol = half_closed = HalfCloseableProtocol()
    written = bytes(2_000_000)
    one.transport.writeSequence([written])
    with pytest.raises(ssl.SSLWantReadError):
        one.tls.unwrap()
    one.flush()
    one.client.shutdown(socket.SHUT_WR)  # follows it, with most clients
    read = one.read_all(len(written))
    one.reactor.turn()
    assert half_closed.input_ended
    one.write(b"last")
    one.transport.loseConnection()
    for _ in range(2):
        one.reactor.turn()
    read += one.read()
    assert (read[: len(written)], read[len(written) :]) == (written, b"last")
    assert half_closed.lost is not None
    assert half_closed.lost.type is ConnectionDone
    one.receive()
    one.tls.unwrap()  # the server's close_notify has been read


def test_close_notify_of_the_client_closes_a_connection_that_cannot_half_close(one: TLSConnection) -> None:
    with pytest.raises(ssl.SSLWantReadError):
        one.tls.unwrap()
    one.flush()
    one.reactor.turn()
    assert one.reason() is ConnectionDone


def test_forged_record_ends_the_connection(one: TLSConnection) -> None:
    one.client.sendall(b"\x17\x03\x03\0\x20" + bytes(32))
    one.reactor.turn()
    assert (one.reason(), one.protocol.received) == (ConnectionLost, [])
    one.receive()
    with pytest.raises(ssl.SSLError, match="alert"):
        one.tls.read(1)


class KeyUpdates:
    """KeyUpdate messages of a client of TLS 1.3 that ask for one of the server (RFC 8446 §4.6.3, §7).

    Python's ssl cannot send them. It answers the server's, but must not write any more.
    """

    def __init__(self, secrets: Path) -> None:
        (found,) = re.findall(r"CLIENT_TRAFFIC_SECRET_0 \w+ (\w{64})\n", secrets.read_text())  # of SHA-256
        self._secret = bytes.fromhex(found)

    def _expand(self, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        return HKDFExpand(hashes.SHA256(), size, struct.pack("!HB", size, len(label)) + label + b"\0").derive(
            self._secret
        )

    def next(self) -> bytes:
        """Return the next message, as the first record under its key."""
        record = self.seal(b"\x18\0\0\1\1" + b"\x16")
        self._secret = self._expand(b"traffic upd", 32)
        return record

    def seal(self, message: bytes) -> bytes:
        """Return the first record under a key, of a message and its type."""
        head = b"\x17\x03\x03" + struct.pack("!H", len(message) + 16)
        return head + AESGCM(self._expand(b"key", 16)).encrypt(self._expand(b"iv", 12), message, head)


def test_key_updates_while_the_client_does_not_read_are_answered_when_it_reads(
    connect: ConnectTLS, tmp_path: Path
) -> None:
    """Meanwhile the connection is not polled in vain."""
    secrets = tmp_path / "secrets"
    one = connect(secrets=secrets)
    updates = KeyUpdates(secrets)
    written = bytes(2_000_000)
    one.write(written)
    one.reactor.turn()
    for _ in range(3):
        one.client.sendall(updates.next())
        one.reactor.turn()
    read = b""
    while len(read) < len(written):
        with suppress(BlockingIOError):
            one.incoming.write(one.client.recv(2000))
        with suppress(ssl.SSLWantReadError):
            read += one.tls.read(100_000)
        one.client.sendall(updates.next() if len(read) % 5 == 0 else b"")
        one.reactor.turn()
        if not one.is_readable():
            assert not one.reactor.calls
    assert read == written
    assert one.reason() is None


def test_connection_that_has_to_answer_a_key_update_first_is_read_when_it_can_send(
    connect: ConnectTLS, tmp_path: Path
) -> None:
    """Until then it is not polled for input, which would be reported in each turn."""
    secrets = tmp_path / "secrets"
    one = connect(secrets=secrets)
    updates = KeyUpdates(secrets)
    empty = one.fill()
    one.client.sendall(updates.next())
    one.reactor.turn()
    one.write(b"response")  # after the answer
    one.client.sendall(updates.next())
    one.reactor.turn()
    assert not select.select(one.reactor.readers, [], [], 0)[0]
    empty()
    one.reactor.turn()
    one.reactor.turn()
    assert one.read() == b"response"
    one.client.sendall(updates.next())
    one.reactor.turn()
    one.write(b"another")
    assert one.read() == b"another"


def test_one_key_update_is_answered_in_a_turn(connect: ConnectTLS, tmp_path: Path) -> None:
    """Otherwise a client that sends one after the other would keep the server from all other work."""
    secrets = tmp_path / "secrets"
    one = connect(secrets=secrets)
    updates = KeyUpdates(secrets)
    one.client.sendall(b"".join(updates.next() for _ in range(20)))
    turns = 0
    while select.select(one.reactor.readers, [], [], 0)[0]:
        one.reactor.turn()
        turns += 1
    assert turns >= 20
    one.write(b"response")
    assert one.read() == b"response"


# --- Output


def test_close_follows_what_is_written_and_waits_for_the_client(one: TLSConnection) -> None:
    one.write(b"last")
    one.transport.loseConnection()
    one.transport.loseConnection()
    one.reactor.turn()
    assert one.read() == b"last"
    assert one.reason() is None
    one.request(b"ignored")
    assert (one.protocol.received, one.reason()) == ([], None)
    one.tls.unwrap()  # the server's close_notify has been read
    one.flush()
    one.reactor.turn()
    assert one.reason() is ConnectionDone


def test_response_and_close_notify_are_sent_in_the_turn_of_the_request(one: TLSConnection) -> None:
    def respond(_: bytes) -> None:
        one.write(b"last")
        one.transport.loseConnection()

    one.protocol.dataReceived = respond
    one.tls.write(b"request")
    one.flush()
    one.reactor.poll()
    assert one.reactor.calls == []
    assert one.read() == b"last"
    one.tls.unwrap()  # the server's close_notify has been read
    assert one.reason() is None
    one.flush()
    one.reactor.poll()
    assert one.reason() is ConnectionDone


@each("before, last", [(0, 100_000), (0, 2_000_000), (SENT_MAX_BYTES + 1000, 4)])
def test_close_notify_of_the_client_does_not_cut_off_the_output(connect: ConnectTLS, before: int, last: int) -> None:
    one = connect()
    one.write(bytes(before))
    one.reactor.run_calls()  # one that sends as much as is sent at a time
    left = before + last - len(one.read())
    empty = one.fill()

    def respond(_: bytes) -> None:
        one.write(bytes(last))
        one.transport.loseConnection()

    one.protocol.dataReceived = respond
    one.request()
    with pytest.raises(ssl.SSLWantReadError):
        one.tls.unwrap()
    one.flush()
    one.reactor.turn()
    empty()
    one.reactor.turn()
    assert len(one.read_all(left)) == left
    assert one.reason() is ConnectionDone


def test_close_notify_does_not_cut_off_a_held_response_of_a_connection_that_another_one_closes(
    connect: ConnectTLS,
) -> None:
    first, second, closed = connect(), connect(), connect()

    def close(_: bytes) -> None:
        closed.write(b"last")
        closed.transport.loseConnection()

    second.protocol.dataReceived = close
    for one in (first, second):
        one.tls.write(b"request")
    with pytest.raises(ssl.SSLWantReadError):
        closed.tls.unwrap()
    closed.reactor.poll()  # so that their events come in the order of their input
    for one in (first, second, closed):
        one.flush()
    closed.reactor.poll()
    assert closed.read() == b"last"
    assert closed.reason() is ConnectionDone


def test_close_ends_when_the_client_only_disconnects(one: TLSConnection) -> None:
    one.transport.loseConnection()
    one.reactor.turn()
    one.client.shutdown(socket.SHUT_WR)
    one.reactor.turn()
    assert one.reason() is ConnectionLost


def test_close_notify_that_the_kernel_does_not_accept_is_sent_later(one: TLSConnection) -> None:
    empty = one.fill()
    one.transport.loseConnection()
    one.reactor.turn()
    assert one.reason() is None
    empty()
    one.reactor.turn()
    one.reactor.turn()
    assert one.read() == b""
    one.tls.unwrap()


def test_aborted_connection_is_reset(one: TLSConnection) -> None:
    one.write(b"x")
    one.transport.abortConnection()
    one.reactor.turn()
    assert one.reason() is ConnectionAborted


def test_long_output_is_read_slowly_in_order(one: TLSConnection) -> None:
    """Views are neither copied nor sent twice, whatever the kernel accepts; short pieces share a record."""
    producer = PushProducer()
    one.transport.registerProducer(producer, streaming=True)
    pieces = [bytes([number % 256]) * (1 + number * 37 % 50_000) for number in range(300)]
    one.transport.writeSequence([memoryview(piece) for piece in pieces])
    one.reactor.turn()
    assert producer.calls == ["pause"]
    assert largest_viewed(one.transport) in pieces
    written = b"".join(pieces)
    read = b""
    while len(read) < len(written):
        with suppress(BlockingIOError):
            one.incoming.write(one.client.recv(3000))
        with suppress(ssl.SSLWantReadError):
            read += one.tls.read(100_000)
        one.reactor.turn()
    assert read == written
    assert producer.calls == ["pause", "resume"]
    assert not unsent_bytes(one.transport)


def test_thousands_of_tiny_writes_are_sent_in_order_in_few_records(one: TLSConnection) -> None:
    other = 2_000_000
    one.write(bytes(other))
    for number in range(5000):
        one.write(b"%05d" % number)
    one.reactor.turn()
    read = one.read_all(other + 25_000)
    assert read[other:] == b"".join(b"%05d" % number for number in range(5000))


@each("method", ["write", "writeSequence"])
def test_all_records_that_the_kernel_accepts_are_sent_at_once(connect: ConnectTLS, method: str) -> None:
    one = connect()
    written = bytes(3 * RECORD_BYTES)
    getattr(one.transport, method)(written if method == "write" else [written])
    assert len(one.read()) == len(written)
    one.write(bytes(SENT_MAX_BYTES - 1000))
    one.reactor.run_calls()
    assert len(one.read()) == SENT_MAX_BYTES - 1000


def test_client_that_keeps_up_gets_so_much_in_one_turn(one: TLSConnection) -> None:
    sent: list[int] = []

    def send(data: bytes | memoryview) -> int:
        sent.append(len(data))
        return len(data)

    one.transport.socket.send = send
    one.transport.writeSequence([memoryview(bytes(RECORD_BYTES))] * 100)
    one.reactor.run_calls()
    assert sum(sent) == SENT_MAX_BYTES
    while one.reactor.calls or unsent_bytes(one.transport):
        one.reactor.turn()
    assert sum(sent) == 100 * RECORD_BYTES


def test_short_pieces_share_a_record(one: TLSConnection) -> None:
    sent: list[bytes] = []

    def send(data: bytes | memoryview) -> int:
        sent.append(bytes(data))
        return len(data)

    one.transport.socket.send = send
    one.transport.socket.sendmsg([b"a", memoryview(b"b"), b"", bytes(RECORD_BYTES), b"c", bytes(RECORD_BYTES), b"d"])
    assert [len(data) for data in sent] == [RECORD_BYTES + 2, RECORD_BYTES + 1, 1]


def test_lost_client_ends_the_output(one: TLSConnection) -> None:
    one.write(bytes(2_000_000))
    one.client.close()
    for _ in range(3):
        one.reactor.turn()
    assert one.reason() is ConnectionLost
    assert one.transport.getPeerCertificate() is None


def test_lost_connection_leaves_no_cycle(one: TLSConnection) -> None:
    """OpenSSL's memory of a connection is freed with its socket, not by the garbage collector."""
    one.client.close()
    one.reactor.turn()
    assert vars(one.transport).keys().isdisjoint({"socket", "protocol"})
    assert one.transport._tls is None  # noqa: SLF001 - what it keeps is the subject
