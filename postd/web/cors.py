"""Cross-origin resource sharing of the API (Fetch standard, CORS protocol; reference: Post API).

A page of an allowed origin may send any request of the API, with an `Authorization` field that it sets itself, and read
the response. It cannot use the browser's cookies or stored passwords: `Access-Control-Allow-Credentials` is never sent.
A write with a session is refused. A write with Basic or Digest is refused unless the list names the origin (reference:
Form login, F11). A response to a request whose head could not be decoded, for example 431, has no CORS fields.

Responses to other origins are the same without CORS fields: the browser enforces CORS, not the server.
"""

from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from postd.http.responses import Response, StreamedResponse, encode_header, make_no_content
from postd.http.views import Responding, View
from postd.protect.guard import is_preflight

ALL = "*"
"""Allows every origin."""

_EXPOSED = (
    b"Access-Control-Expose-Headers: ETag, Link, Location, Retry-After, WWW-Authenticate, Authentication-Info, "
    b"X-Request-Id\r\n"
)
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: GET, HEAD, POST, PUT, DELETE\r\n"
    b"Access-Control-Allow-Headers: Authorization, DPoP, Content-Type, If-Match, If-None-Match, Idempotency-Key, "
    b"Last-Event-ID, X-Request-Id\r\n"
    b"Access-Control-Max-Age: 600\r\n"
)
_PREFLIGHT_OF_NOTHING = make_no_content({b"Allow": b"OPTIONS"})


def _allow(origin: str) -> bytes:
    return encode_header(b"Access-Control-Allow-Origin", origin.encode("ascii"))


class Cors:
    """Adds CORS fields to the responses of the API, errors included (`postd.web.routing.Middleware`).

    Args:
        origins: the allowed origins, as RFC 6454 §6.2 serializes them, or `ALL`.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._vary = b"" if ALL in origins else encode_header(b"Vary", b"Origin")
        self._for_all = _allow(ALL) if ALL in origins else b""
        self._by_origin = {(origin.encode("ascii"),): _allow(origin) for origin in origins}

    def enter(self, request: Any, view: View) -> Responding:
        # Two Origin fields match none. Browsers serialize an origin in one way (RFC 6454 §6.2): bytes are compared.
        allow = self._for_all or self._by_origin.get(tuple(request.fields.get(b"Origin", ())), b"")
        if not allow:
            request.extra_headers += self._vary
            return view(request)
        preflight = is_preflight(request)
        request.extra_headers += allow + self._vary + (_PREFLIGHT if preflight else _EXPOSED)
        return _respond_to_preflight(request, view) if preflight else view(request)


async def _respond_to_preflight(request: Any, view: View) -> Response | StreamedResponse | None:
    response = await view(request)
    if isinstance(response, Response) and response.status == HTTPStatus.NOT_FOUND:
        # With a failed preflight the page would see a network error in place of the 404.
        return _PREFLIGHT_OF_NOTHING
    return response
