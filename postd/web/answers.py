"""Setting up an answer. Each function returns the body, which the caller returns to whoever writes it."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from twisted.web.iweb import IRequest

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


def phrase(status: HTTPStatus) -> str:
    """Return the reason phrase of RFC 9110; Python before 3.13 has those of its forerunners for two of them."""
    return {413: "Content Too Large", 422: "Unprocessable Content"}.get(status.value, status.phrase)


def set_headers(
    request: IRequest, status: HTTPStatus, content_type: bytes | None, headers: Mapping[bytes, bytes]
) -> None:
    """Set the status and all headers but the length of the body."""
    # Twisted knows no phrase for 422 and later arrivals.
    request.setResponseCode(status.value, phrase(status).encode())
    for name, value in headers.items():
        request.setHeader(name, value)
    request.setHeader(b"X-Content-Type-Options", b"nosniff")
    if content_type is not None:
        request.setHeader(b"Content-Type", content_type)


def encode_answer(
    request: IRequest, status: HTTPStatus, content_type: bytes, body: bytes, headers: Mapping[bytes, bytes]
) -> bytes:
    """Set up an answer whose body is known whole."""
    set_headers(request, status, content_type, headers)
    request.setHeader(b"Content-Length", b"%d" % len(body))
    return body


def encode_no_content(request: IRequest, headers: Mapping[bytes, bytes]) -> bytes:
    """Set up a 204."""
    set_headers(request, HTTPStatus.NO_CONTENT, None, headers)
    return b""


def encode_not_modified(request: IRequest, headers: Mapping[bytes, bytes]) -> bytes:
    """Set up a 304; `headers` are those that a 200 would have (RFC 9110 §15.4.5)."""
    set_headers(request, HTTPStatus.NOT_MODIFIED, None, headers)
    return b""


def encode_redirect(request: IRequest, location: bytes) -> bytes:
    """Set up a 302 to a path of ours."""
    headers = {**PAGE_HEADERS, b"Location": location}
    return encode_answer(request, HTTPStatus.FOUND, TEXT, b"%b\n" % location, headers)
