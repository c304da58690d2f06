"""Responses as values: a view returns one, and the request sends it."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from msgspec import Struct

TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
JSON = b"application/json"

Parts = Sequence[bytes | memoryview]
"""Parts of a body to be sent together, in order."""

PAGE_HEADERS: Mapping[bytes, bytes] = MappingProxyType(
    {
        b"Cache-Control": b"no-store",
        b"Referrer-Policy": b"same-origin",
        b"X-Frame-Options": b"DENY",
        b"Content-Security-Policy": b"default-src 'none'; frame-ancestors 'none'",
    }
)
"""Header fields of every page (reference: Safe by default); HTML pages replace the policy."""

Memory = tuple[int, object, int]
"""The memory that a response holds: bytes of its own, an object that it may share with other responses, None if there
is none, and the bytes of that object."""

NO_MEMORY: Memory = 0, None, 0


class Response(Struct, frozen=True):
    """A complete, reusable response.

    Args:
        status: the HTTP status.
        head: status line and header fields, each ending in CRLF. Fields that depend on the request are added when it
            is sent: `Date`, `Connection`, and fields set on the request.
        body: the body of a GET; `Content-Length` in `head` is its length.
    """

    status: int
    head: bytes
    body: bytes = b""

    @property
    def memory(self) -> Memory:
        """What it holds while it is sent."""
        return 0, self.body, len(self.body)

    def with_header(self, name: bytes, value: bytes) -> "Response":
        """Return a copy with one more header field."""
        return Response(self.status, self.head + encode_header(name, value), self.body)


class StreamedResponse(Struct, frozen=True):
    """A response whose body is generated while it is sent, at the pace of the client.

    Args:
        status: the HTTP status.
        head: as in `Response`, with `Content-Length` if the length is known in advance.
        pieces: the body. The parts that are yielded together are sent together. None for a live response.
        chunked: whether the length is unknown, so that the body is sent in chunks.
        memory: what it holds while it is sent, besides what is written.
        live: writes the body of a response without an end of its own, which ends when the client ends its side of the
            connection; it is called with the request when the head is sent, and finishes the request.
    """

    status: int
    head: bytes
    pieces: AsyncGenerator[Parts] | None
    chunked: bool
    memory: Memory = NO_MEMORY
    live: Callable[[Any], None] | None = None


class SharedPiece(Struct, frozen=True):
    """A piece of the bodies of many responses, encoded once: as it is, and as a chunk."""

    plain: bytes
    chunk: bytes


def make_shared_piece(data: bytes) -> SharedPiece:
    """Return a piece; it may not be empty."""
    return SharedPiece(data, b"%x\r\n%b\r\n" % (len(data), data))


_PHRASES = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}


def phrase(status: HTTPStatus) -> str:
    """Return the reason phrase of RFC 9110; Python before 3.13 has older ones for some statuses."""
    return _PHRASES.get(status.value, status.phrase)


def make_response(status: HTTPStatus, content_type: bytes, body: bytes, headers: Mapping[bytes, bytes]) -> Response:
    """Return a response with a body."""
    length = {b"Content-Type": content_type, b"Content-Length": b"%d" % len(body)}
    return Response(status.value, _encode_head(status, {**headers, **length}), body)


def make_no_content(headers: Mapping[bytes, bytes]) -> Response:
    """Return a 204 response."""
    return Response(204, _encode_head(HTTPStatus.NO_CONTENT, headers))


def make_not_modified(headers: Mapping[bytes, bytes]) -> Response:
    """Return a 304 response; `headers` are the headers of the 200 response (RFC 9110 §15.4.5)."""
    return Response(304, _encode_head(HTTPStatus.NOT_MODIFIED, headers))


def make_redirect(location: bytes, status: HTTPStatus = HTTPStatus.FOUND) -> Response:
    """Return a redirect to a path on this server."""
    return make_response(status, TEXT, b"%b\n" % location, {**PAGE_HEADERS, b"Location": location})


def make_streamed_response(  # noqa: PLR0913 - four have their defaults
    content_type: bytes,
    pieces: AsyncGenerator[Parts] | None,
    headers: Mapping[bytes, bytes],
    *,
    length: int | None = None,
    memory: Memory = NO_MEMORY,
    live: Callable[[Any], None] | None = None,
    status: HTTPStatus = HTTPStatus.OK,
) -> StreamedResponse:
    """Return a response with a generated body, as `StreamedResponse`.

    `length` is the length of the body in bytes, None if unknown.
    """
    known = {} if length is None else {b"Content-Length": b"%d" % length}
    head = _encode_head(status, {**headers, b"Content-Type": content_type, **known})
    return StreamedResponse(status.value, head, pieces, length is None, memory, live)


def _encode_head(status: HTTPStatus, headers: Mapping[bytes, bytes]) -> bytes:
    lines = [encode_header(name, value) for name, value in headers.items()]
    start = b"HTTP/1.1 %d %b\r\n" % (status.value, phrase(status).encode())
    return b"".join([start, *lines, b"X-Content-Type-Options: nosniff\r\n"])


def encode_header(name: bytes, value: bytes) -> bytes:
    """Return a field line, with its CRLF.

    Raises:
        ValueError: the value contains a line break.
    """
    if b"\n" in value or b"\r" in value:
        raise ValueError("line break in a header value")
    return b"%b: %b\r\n" % (name, value)
