"""The client certificate of a request: on both fronts, over TLS in memory."""

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator, IProtocolFactory
from twisted.internet.task import Clock
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.web.resource import Resource
from zope.interface import implementer

from postd.http.stock_request import adapt
from postd.net.endpoints import read_certificate
from postd.net.proxy_protocol import ProxyProtocolFactory
from postd.net.tls import Certificate
from tests.cases import each
from tests.helpers import MemoryTransport
from tests.http.fronts import FRONTS, Front

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Shows(Resource):
    """Records the client certificate of each request."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Any] = []
        self.certificates: list[bytes | None] = []

    def render(self, request: Any) -> bytes:
        self.requests.append(request)
        self.certificates.append(adapt(request).client_certificate)
        return b""


@implementer(IOpenSSLServerConnectionCreator)
class StockTLS:
    """Makes the connections of a certificate for Twisted's own TLS, which has them in memory."""

    def __init__(self, certificate: Certificate) -> None:
        self._certificate = certificate

    def serverConnectionForTLS(self, tlsProtocol: object) -> SSL.Connection:
        return self._certificate.accept()


@pytest.fixture
def asking(certificate: tuple[Path, Path]) -> Certificate:
    key, cert = certificate
    asking = read_certificate(f"ssl:0:privateKey={key}:certKey={cert}", "listen")
    asking.ask_clients(ask=True)
    return asking


@pytest.fixture
def der(certificate: tuple[Path, Path]) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate[1].read_text())


def send(factory: IProtocolFactory, listener: Certificate, data: bytes, *, shows: tuple[Path, Path] | None) -> None:
    """Send data over a new TLS connection, then close it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if shows is not None:
        context.load_cert_chain(shows[1], shows[0])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    server: Any = TLSMemoryBIOFactory(StockTLS(listener), False, factory, Clock()).buildProtocol(None)  # noqa: FBT003 - Twisted's
    transport = MemoryTransport()
    transport.protocol = server
    server.makeConnection(transport)
    for _ in range(4):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        if sent := outgoing.read():
            server.dataReceived(sent)
        incoming.write(transport.value())
        transport.clear()
    client.write(data)
    server.dataReceived(outgoing.read())
    transport.loseConnection()


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.name)
def test_each_request_has_the_certificate_of_its_connection(
    asking: Certificate, certificate: tuple[Path, Path], der: bytes, front: Front
) -> None:
    shows = Shows()
    site = front.make_site(shows, Clock())
    send(site, asking, GET, shows=certificate)
    send(site, asking, GET, shows=None)
    assert shows.certificates == [der, None]


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.name)
def test_request_of_a_lost_connection_has_no_certificate(
    asking: Certificate, certificate: tuple[Path, Path], front: Front
) -> None:
    shows = Shows()
    send(front.make_site(shows, Clock()), asking, GET, shows=certificate)
    assert adapt(shows.requests[0]).client_certificate is None


@each("front", FRONTS)
def test_request_without_tls_has_no_certificate(front: Front) -> None:
    shows = Shows()
    connection: Any = front.make_site(shows, Clock()).buildProtocol(None)
    connection.makeConnection(MemoryTransport())
    connection.dataReceived(GET)
    assert shows.certificates == [None]


def test_client_that_a_proxy_header_names_has_no_certificate(
    asking: Certificate, certificate: tuple[Path, Path], der: bytes
) -> None:
    """Inside TLS the header was written by the owner of the certificate: a proxy."""
    shows = Shows()
    factory = ProxyProtocolFactory(FRONTS[0].make_site(shows, Clock()))
    for header in (b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 443\r\n", b"PROXY UNKNOWN\r\n"):
        send(factory, asking, header + GET, shows=certificate)
    assert shows.certificates == [None, der]
