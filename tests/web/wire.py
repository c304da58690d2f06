"""The in-memory client of the tests: sends requests byte for byte, without the normalization of an HTTP library."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import bcrypt
from msgspec import Struct
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress, ISSLTransport
from twisted.internet.task import Clock
from zope.interface import alsoProvides

from postd.front.connection import HttpConnection
from postd.front.factory import HttpFactory
from tests.helpers import MemoryTransport, Response, connect

FORM = "application/x-www-form-urlencoded"


class Server(Protocol):
    """The server under test; `InMemoryApi` is one."""

    @property
    def site(self) -> HttpFactory: ...

    @property
    def clock(self) -> Clock: ...


class Worker(Struct):
    """A server made of a site and a clock."""

    site: HttpFactory
    clock: Clock


class Transport(MemoryTransport):
    """A client's end of a TCP connection."""

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: FBT001 - Twisted's signature
        """Called for each connection that provides TCP, as one with TLS does."""

    def loseConnection(self) -> None:
        self.disconnecting = True  # buffered input is no longer parsed
        super().loseConnection()

    def loseWriteConnection(self) -> None:
        """Called when a request was refused before it was complete."""


class Exchange(Struct):
    """A request that was sent, and its response as far as it has arrived."""

    server: Server
    transport: Transport
    channel: HttpConnection
    head: bool

    def response(self) -> Response:
        """Return the complete response, and check its framing."""
        idle_turns = 0
        while self.transport.connected and idle_turns < 100:
            received = len(self.transport.value())
            self.server.clock.advance(0)
            if self.transport.producer is not None and not self.transport.streaming:
                self.transport.producer.resumeProducing()
            idle_turns = idle_turns + 1 if len(self.transport.value()) == received else 0
        return decode_response(self.transport.value(), head=self.head)

    @property
    def has_begun(self) -> bool:
        """Whether any of the response has arrived."""
        return bool(self.transport.value())

    def disconnect(self) -> None:
        """Close the connection as a client does."""
        if self.transport.producer is not None:
            self.transport.producer.stopProducing()
        self.transport.loseConnection()


def begin(  # noqa: PLR0913 - a request has as many parts
    server: Server,
    method: str,
    path: str | bytes,
    body: bytes | None = None,
    headers: Mapping[str, str | bytes | Sequence[str | bytes]] | None = None,
    *,
    peer: str = "127.0.0.1",
    tls: bool = False,
) -> Exchange:
    """Send a request without waiting for the response; `Host` and `Connection: close` are added unless given."""
    lines: list[bytes] = [b"%b %b HTTP/1.1" % (method.encode("ascii"), _encode(path))]
    fields: dict[str, Any] = {"Host": "localhost", "Connection": "close", **(headers or {})}
    for name, values in fields.items():
        several = [values] if isinstance(values, str | bytes) else values
        lines += [b"%b: %b" % (name.encode("ascii"), _encode(value)) for value in several]
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return begin_raw(server, b"\r\n".join([*lines, b"", b""]) + (body or b""), _address(peer), tls=tls)


def begin_raw(server: Server, request: bytes, peer: IAddress | None = None, *, tls: bool = False) -> Exchange:
    """Send bytes on a new connection without waiting for the response."""
    transport = Transport(peerAddress=peer)
    if tls:
        alsoProvides(transport, ISSLTransport)
    channel = connect(transport, server.site)
    channel.dataReceived(request)
    return Exchange(server, transport, channel, request.startswith(b"HEAD "))


def ask(server: Server, method: str, path: str | bytes, *arguments: Any, **keywords: Any) -> Response:
    """Send a request (as `begin`) and return the response."""
    return begin(server, method, path, *arguments, **keywords).response()


def decode_response(sent: bytes, *, head: bool = False) -> Response:
    """Decode a response, and check its framing: `Content-Length` or chunks."""
    top, separator, body = sent.partition(b"\r\n\r\n")
    assert separator, f"no whole head: {sent!r}"
    status, *lines = top.split(b"\r\n")
    version = rb"1\.[01]" if b"\r\nServer: " in top else rb"1\.1"  # a stock site, which names itself, has the client's
    match = re.fullmatch(rb"HTTP/%b ([0-9]{3}) [\x20-\x7e]+" % version, status)
    assert match, status
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(b": ")
        assert colon, line
        headers.setdefault(name.decode("ascii").lower(), []).append(value.decode("latin-1"))
    code = int(match[1])
    if code in {204, 304}:
        assert body == b""
        assert headers.get("content-length", []) == []  # RFC 9110 §8.6: not even 0
    elif headers.get("transfer-encoding") == ["chunked"]:
        assert "content-length" not in headers
        body = b"" if head else _join_chunks(body)
    elif lines:  # else it is stock Twisted's 400
        assert len(headers["content-length"]) == 1, headers
        length = int(headers["content-length"][0])
        # The method of a request that cannot be decoded is unknown: its error has a body, even for HEAD.
        assert len(body) in ({0, length} if head and code == 400 else {0} if head else {length}), (headers, body)
    return Response(code, headers, body)


def _join_chunks(sent: bytes) -> bytes:
    body, size = b"", -1
    while size:
        line, _, sent = sent.partition(b"\r\n")
        size = int(line, 16)
        assert sent[size : size + 2] == b"\r\n", sent
        body, sent = body + sent[:size], sent[size + 2 :]
    assert sent == b""
    return body


def _encode(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


def _address(peer: str) -> Any:
    if peer == "unix":
        return UNIXAddress(None)
    return (IPv6Address if ":" in peer else IPv4Address)("TCP", peer, 40000)


@cache
def user_line(name: str, password: str, *, realm: str = "") -> str:
    """Return a line of a user file, with a hash that is cheap to verify; with a realm, with a hash for Digest."""
    line = f"{name}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}"
    if realm:
        line += f":MD5={_md5(f'{name}:{realm}:{password}')},realm={realm}"
    return line + "\n"


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def digest_value(challenge: str, name: str, password: str, *, method: str = "GET", uri: str = "/digest") -> str:
    """Return the `Authorization` for a Digest challenge (RFC 7616 §3.4.1)."""
    found = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm, nonce = found["realm"], found["nonce"]
    a1, a2 = _md5(f"{name}:{realm}:{password}"), _md5(f"{method}:{uri}")
    response = _md5(f"{a1}:{nonce}:00000001:cafe:auth:{a2}")
    return (
        f'Digest username="{name}", realm="{realm}", nonce="{nonce}", uri="{uri}", algorithm=MD5, '
        f'qop=auth, nc=00000001, cnonce="cafe", response="{response}"'
    )
