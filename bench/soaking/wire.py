"""A minimal HTTP/1.1 client on asyncio, which sends requests byte for byte and checks the framing of responses.

Libraries do not fit: one loop serves some hundred connections beside the server, and bad clients need control of each
byte that they send, and the bytes that came before a connection was closed.
"""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from msgspec import Struct

from bench.servers import unverified

ANSWER_MAX_S = 30.0
"""Timeout of a response; no working server takes as long."""

LINE_MAX_BYTES = 64 * 1024

_OWN_FIELDS = (("Host", "127.0.0.1"), ("User-Agent", "soak"))


class BrokenResponseError(Exception):
    """A response is invalid or incomplete; `str()` is the error."""


class ClosedError(Exception):
    """The server closed or reset the connection before the first byte of a response."""


class NoConnectionError(ClosedError):
    """The connection was not established, so that nothing was sent."""


class Response(Struct, frozen=True):
    """A response, and its latency in seconds; the names of fields are in lower case."""

    status: int
    fields: dict[str, list[str]]
    body: bytes
    took_s: float

    def field(self, name: str) -> str:
        """Return the first field with a name, or an empty text."""
        return self.fields.get(name, [""])[0]

    @property
    def nonce(self) -> str:
        """The nonce of its first Digest challenge, or an empty text."""
        return self.field("www-authenticate").partition('nonce="')[2].partition('"')[0]


def encode_request(
    method: str, target: str, fields: Sequence[str] = (), body: bytes | None = None, *, close: bool = False
) -> bytes:
    """Return a request; `Host` and `User-Agent` are added unless they are among the fields."""
    given = {field.partition(":")[0].lower() for field in fields}
    own = (f"{name}: {value}" for name, value in _OWN_FIELDS if name.lower() not in given)
    lines = [f"{method} {target} HTTP/1.1", *own, *fields]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class Connection:
    """A connection to the server, which is closed at the end of a `with` block.

    Attributes:
        tls: the TLS context of the class's connections, None for no TLS.
        answers: the number of responses.
    """

    tls: ssl.SSLContext | None = None

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.answers = 0
        self.closed = False

    @classmethod
    async def open(cls, port: int, tls: ssl.SSLContext | None = None, *, source: str = "") -> Self:
        """Connect.

        Args:
            port: the port of the server.
            tls: the TLS context, None for that of the class.
            source: the loopback address to connect from; by default the kernel chooses it.

        Raises:
            NoConnectionError: the connection was refused or timed out.
        """
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                own = (source, 0) if source else None
                chosen = tls or cls.tls
                opening = asyncio.open_connection("127.0.0.1", port, limit=LINE_MAX_BYTES, ssl=chosen, local_addr=own)
                return cls(*await opening)
        except OSError as error:  # includes TimeoutError
            raise NoConnectionError(f"no connection: {error!r}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Send without waiting; an error is raised when the response is read."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def ask(
        self, method: str, target: str, fields: Sequence[str] = (), body: bytes | None = None, *, close: bool = False
    ) -> Response:
        """Make a request.

        Raises:
            ClosedError: the connection was closed without a response.
            BrokenResponseError: the response is invalid or incomplete.
        """
        start = time.perf_counter()
        self.send(encode_request(method, target, fields, body, close=close))
        return await self.read_response(head=method == "HEAD", start=start)

    async def read_response(self, *, head: bool = False, start: float | None = None) -> Response:
        """Read a response; `start` is when the request was sent, by default now. Raises as `ask`."""
        start = time.perf_counter() if start is None else start
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                status, fields, body = await self._read(head=head)
        except TimeoutError:
            self.close()
            raise BrokenResponseError(f"no response within {ANSWER_MAX_S:.0f} s") from None
        except BaseException:
            self.close()
            raise
        self.answers += 1
        if "close" in fields.get("connection", []):
            self.close()
        return Response(status, fields, body, time.perf_counter() - start)

    async def _read(self, *, head: bool) -> tuple[int, dict[str, list[str]], bytes]:
        try:
            received = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise ClosedError("closed without a response") from None
            raise BrokenResponseError(f"closed within the head of a response: {error.partial[:80]!r}") from None
        except asyncio.LimitOverrunError:
            raise BrokenResponseError(f"the head of the response has more than {LINE_MAX_BYTES} bytes") from None
        except OSError:
            raise ClosedError("reset without a response") from None
        try:
            status, fields = _decode_head(received)
            if status == 100:
                return await self._read(head=head)
            return status, fields, b"" if head or status in {204, 304} else await self._read_body(fields)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            raise BrokenResponseError(f"closed within the body of a response: {error!r}") from None
        except ValueError as error:
            raise BrokenResponseError(f"{error}: {received[:80]!r}") from None

    async def _read_body(self, fields: dict[str, list[str]]) -> bytes:
        if fields.get("transfer-encoding") == ["chunked"]:
            pieces = []
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                pieces.append(await self._reader.readexactly(size))
                await self._reader.readexactly(2)
            await self._reader.readuntil(b"\r\n")
            return b"".join(pieces)
        (length,) = fields.get("content-length", ["-1"])
        if int(length) < 0:
            raise ValueError("a response without a length")
        return await self._reader.readexactly(int(length))

    async def read_to_end(self, within_s: float) -> bytes | None:
        """Return all data until the server closes or resets the connection; None if it does not in time."""
        received = b""
        try:
            async with asyncio.timeout(within_s):
                while piece := await self._reader.read(LINE_MAX_BYTES):
                    received += piece
        except TimeoutError:
            return None
        except OSError:
            pass
        return received

    async def finish_sending(self) -> None:
        """End the sending side of the connection, as `nc -N` does."""
        with suppress(OSError):
            await self._writer.drain()
            end_output(self._writer)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._writer.close()

    def reset(self) -> None:
        """Reset the connection."""
        own: socket.socket = self._writer.get_extra_info("socket")
        with suppress(OSError):  # closed already
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.closed = True
        self._writer.transport.abort()

    async def read_some(self, size: int) -> bytes:
        """Return this many bytes, or none if the connection ends before."""
        with suppress(asyncio.IncompleteReadError, OSError):
            return await self._reader.readexactly(size)
        return b""


def use_tls() -> None:
    """Let all connections of this process have TLS."""
    Connection.tls = unverified()


def send_and_stall(source: str, port: int, requests: bytes, receive_bytes: int) -> socket.socket:
    """Connect with a small receive buffer, and send requests; return the socket, from which nothing is read. Blocks."""
    own = socket.socket()
    try:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        own.settimeout(ANSWER_MAX_S)
        own.bind((source, 0))
        own.connect(("127.0.0.1", port))
        if Connection.tls is not None:
            own = Connection.tls.wrap_socket(own)
        own.sendall(requests)
        own.settimeout(0)
    except BaseException:
        own.close()
        raise
    return own


def end_output(writer: asyncio.StreamWriter) -> None:
    """End the sending direction by FIN, over TLS by close_notify. asyncio has no half-close for TLS."""
    protocol: Any = getattr(writer.transport, "_ssl_protocol", None)
    if protocol is None:
        writer.write_eof()
        return
    tls, read = protocol._sslobj, protocol._sslobj.read  # noqa: SLF001 - see above

    def read_to_end(*arguments: Any) -> bytes:
        with suppress(ssl.SSLZeroReturnError):  # close_notify after this side's, for which asyncio expects b""
            return read(*arguments)  # type: ignore[no-any-return]
        return b""

    tls.read = read_to_end
    with suppress(ssl.SSLError):  # the server's close_notify is missing yet
        tls.unwrap()
    protocol._process_outgoing()  # noqa: SLF001


def _decode_head(received: bytes) -> tuple[int, dict[str, list[str]]]:
    first, *lines = received.decode("latin-1")[:-4].split("\r\n")
    version, status, _ = first.split(" ", 2)
    if version != "HTTP/1.1":
        raise ValueError("not an HTTP/1.1 response")
    fields: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError("a field without a colon")
        fields.setdefault(name.lower(), []).append(value.strip())
    return int(status), fields
