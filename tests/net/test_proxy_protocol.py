"""The PROXY protocol, in memory; tests/integration has connections through HAProxy."""

from typing import Any

from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransportWithDisconnection
from twisted.logger import capturedLogs
from zope.interface import implementer

from postd.net.proxy_protocol import ProxyProtocolEndpoint
from tests.cases import each

V2 = b"\r\n\r\n\0\r\nQUIT\n"
V2_TCP4 = V2 + b"\x21\x11\0\x0c" + bytes([192, 0, 2, 7, 192, 0, 2, 1]) + b"\x13\x88\0\x50"
V2_UNIX = V2 + b"\x21\x31\0\xd8" + b"/a".ljust(108, b"\0") + b"/b".ljust(108, b"\0")
V2_LOCAL = V2 + b"\x20\0\0\0"
V2_LOCAL_TLV = V2 + b"\x20\x11\xff\xff" + b"x" * 65_535
V2_UNSPEC = V2 + b"\x21\0\0\x04abcd"


class Heard(Protocol):
    data = b""
    told = 0

    def dataReceived(self, data: bytes) -> None:
        self.data += data


@implementer(IHalfCloseableProtocol)
class HalfCloseable(Heard):
    input_ended = False

    def readConnectionLost(self) -> None:
        self.input_ended = True

    def writeConnectionLost(self) -> None: ...


@implementer(IHandshakeListener)
class Listener(Heard):
    def handshakeCompleted(self) -> None:
        self.told += 1


class Endpoint:
    """An endpoint that keeps its factory."""

    factory: Any = None

    def listen(self, factory: Any) -> None:
        self.factory = factory


class Connection:
    def __init__(self, heard: Heard | None = None) -> None:
        self.heard = heard or Heard()
        endpoint: Any = Endpoint()
        ProxyProtocolEndpoint(endpoint).listen(Factory.forProtocol(lambda: self.heard))
        self.transport = StringTransportWithDisconnection()
        self.protocol = endpoint.factory.buildProtocol(None)
        self.transport.protocol = self.protocol
        self.protocol.makeConnection(self.transport)

    def send(self, data: bytes, piece: int = 0) -> None:
        for start in range(0, len(data), piece or len(data)):
            if self.transport.connected:
                self.protocol.dataReceived(data[start : start + (piece or len(data))])


@each("piece", [0, 1, 7])
@each(
    "header, host",
    [
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\n", "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 5000 80\r\n", "2001:db8::7"),
        (V2_TCP4, "192.0.2.7"),
        (b"PROXY UNKNOWN ::1 ::2 1 2\r\n", "192.168.1.1"),
        (b"PROXY UNKNOWN\r\n", "192.168.1.1"),
        (b"PROXY UNKNOWN \xff".ljust(105, b"x") + b"\r\n", "192.168.1.1"),
        (V2_LOCAL, "192.168.1.1"),
        (V2_UNSPEC, "192.168.1.1"),
        (V2_LOCAL_TLV, "192.168.1.1"),
    ],
    ids=["tcp4", "tcp6", "v2", "unknown", "unknown alone", "unknown of 107 bytes", "local", "unspec", "local with TLV"],
)
def test_header_names_the_peer(header: bytes, host: str, piece: int) -> None:
    connection = Connection()
    connection.send(header + b"GET / HTTP/1.1\r\n", piece)
    assert connection.heard.data == b"GET / HTTP/1.1\r\n"
    assert connection.protocol.getPeer().host == host


def test_half_closed_connection_stays_if_its_protocol_allows_that() -> None:
    heard = HalfCloseable()
    connection = Connection(heard)
    connection.send(V2_TCP4)
    connection.protocol.readConnectionLost()
    assert heard.input_ended
    assert connection.transport.connected


@each("heard, sent", [(Heard(), V2_TCP4), (HalfCloseable(), V2_TCP4[:-1])])
def test_half_closed_connection_is_closed_otherwise(heard: Heard, sent: bytes) -> None:
    connection = Connection(heard)
    connection.send(sent)
    connection.protocol.readConnectionLost()
    assert not connection.transport.connected


@each("heard, told", [(Listener(), 1), (Heard(), 0)])
def test_handshake_of_tls_is_passed_on(heard: Heard, told: int) -> None:
    Connection(heard).protocol.handshakeCompleted()
    assert heard.told == told


@each("piece", [0, 1])
@each(
    "header",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PROXY TCP4 a\x1b[31m\nforged 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 a b 1 2\r\n",
        b"PROXY TCP6 zz zz 1 2\r\n",
        b"PROXY TCP6 fe80::1%x fe80::2 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 a b\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 70000 80\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 80\r\n",
        b"PROXY TCP4 999.1.1.1 a b c\r\n",
        b"PROXY TCP4 \xff\xff 1.2.3.4 1 2\r\n",
        b"PROXY " + b"x" * 200,
        b"PROXY UNKNOWN ".ljust(106, b"x") + b"\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 ".ljust(106, b"x") + b"\r\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY\r\n",
        V2_UNIX,
        V2 + b"\x2f\x11\0\x0c" + b"\0" * 12,
        b"GET / \n",
    ],
    ids=[
        "http",
        "forged",
        "names",
        "names6",
        "scope",
        "ports",
        "port",
        "minus",
        "more",
        "bytes",
        "long",
        "unknown of 108 bytes",
        "tcp4 of 108 bytes",
        "unknowns",
        "no protocol",
        "unix",
        "v2",
        "lf",
    ],
)
def test_malformed_header_closes_the_connection_without_an_answer(header: bytes, piece: int) -> None:
    connection = Connection()
    with capturedLogs() as events:
        connection.send(header + b"GET / HTTP/1.1\r\n\r\n", piece)
    assert not connection.transport.connected
    assert connection.heard.data == connection.transport.value() == b""
    assert events == []
