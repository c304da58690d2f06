"""Responses as values: a view returns one, and the request sends it."""

from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from types import MappingProxyType

from msgspec import Struct

TEXT = b"text/plain; charset=utf-8"
JSON = b"application/json"

PAGE_HEADERS: Mapping[bytes, bytes] = MappingProxyType(
    {
        b"Cache-Control": b"no-store",
        b"Referrer-Policy": b"same-origin",
        b"X-Frame-Options": b"DENY",
        b"Content-Security-Policy": b"default-src 'none'; frame-ancestors 'none'",
    }
)
"""What every page of ours carries (contract 3); pages in HTML have a policy of their own."""


class Response(Struct, frozen=True):
    """A response that is known whole, and can be sent any number of times.

    Args:
        status: the HTTP status.
        head: status line and header fields, each with its line's end. What is due for each request alone is added
            when it is sent: `Date`, `Connection`, and what was set on the request itself.
        body: what a GET is sent; `Content-Length` tells its length.
    """

    status: int
    head: bytes
    body: bytes = b""

    def with_header(self, name: bytes, value: bytes) -> "Response":
        """Return the same with one header more."""
        return Response(self.status, self.head + encode_header(name, value), self.body)


class StreamedResponse(Struct, frozen=True):
    """A response whose body is made while it is sent, as fast as the client reads; `head` is that of `Response`.

    If its length is known it is in the head; else the body goes out in chunks.
    """

    status: int
    head: bytes
    pieces: AsyncGenerator[bytes]
    chunked: bool


def phrase(status: HTTPStatus) -> str:
    """Return the reason phrase of RFC 9110; Python before 3.13 has those of its forerunners for two of them."""
    return {413: "Content Too Large", 422: "Unprocessable Content"}.get(status.value, status.phrase)


def make_response(status: HTTPStatus, content_type: bytes, body: bytes, headers: Mapping[bytes, bytes]) -> Response:
    """Return an answer with a body."""
    length = {b"Content-Type": content_type, b"Content-Length": b"%d" % len(body)}
    return Response(status.value, _encode_head(status, {**headers, **length}), body)


def make_no_content(headers: Mapping[bytes, bytes]) -> Response:
    """Return a 204."""
    return Response(204, _encode_head(HTTPStatus.NO_CONTENT, headers))


def make_not_modified(headers: Mapping[bytes, bytes]) -> Response:
    """Return a 304; `headers` are those that a 200 would have (RFC 9110 §15.4.5)."""
    return Response(304, _encode_head(HTTPStatus.NOT_MODIFIED, headers))


def make_redirect(location: bytes) -> Response:
    """Return a 302 to a path of ours."""
    return make_response(HTTPStatus.FOUND, TEXT, b"%b\n" % location, {**PAGE_HEADERS, b"Location": location})


def make_streamed_response(
    content_type: bytes, pieces: AsyncGenerator[bytes], headers: Mapping[bytes, bytes], *, length: int | None = None
) -> StreamedResponse:
    """Return a 200 whose body comes in pieces; `length` is that of all of them, if it is known."""
    known = {} if length is None else {b"Content-Length": b"%d" % length}
    head = _encode_head(HTTPStatus.OK, {**headers, b"Content-Type": content_type, **known})
    return StreamedResponse(200, head, pieces, length is None)


def _encode_head(status: HTTPStatus, headers: Mapping[bytes, bytes]) -> bytes:
    lines = [encode_header(name, value) for name, value in headers.items()]
    start = b"HTTP/1.1 %d %b\r\n" % (status.value, phrase(status).encode())
    return b"".join([start, *lines, b"X-Content-Type-Options: nosniff\r\n"])


def encode_header(name: bytes, value: bytes) -> bytes:
    """Return a field line."""
    if b"\n" in value or b"\r" in value:
        raise ValueError("a header with a line's end in it")
    return b"%b: %b\r\n" % (name, value)
