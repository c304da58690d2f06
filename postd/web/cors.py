"""Cross-origin resource sharing of the API (Fetch standard, CORS protocol; reference: Post API).

A page of an allowed origin may send any request of the API, with an `Authorization` field that it sets itself, and read
the response. It cannot use the browser's cookies or stored passwords: `Access-Control-Allow-Credentials` is never sent.
A write with a session is refused, and one with Basic or Digest unless the list names the origin (reference: Form login,
F11). A request that is refused before all of it has arrived, for example with 413, is answered without CORS fields.

Other origins are answered without CORS fields, and otherwise alike: the browser enforces CORS, not the server.
"""

from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET

from postd.http.errors import Problem, not_found
from postd.http.responses import encode_header, make_no_content
from postd.protect.guard import is_preflight
from postd.web.routing import API_SEGMENTS

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


class _CorsResource(Resource):
    """Adds CORS fields to the responses of a resource and all below it, errors included."""

    isLeaf = True

    def __init__(self, resource: IResource, origins: Collection[str]) -> None:
        super().__init__()
        self._resource = resource
        self._vary = b"" if ALL in origins else encode_header(b"Vary", b"Origin")
        self._for_all = _allow(ALL) if ALL in origins else b""
        self._by_origin = {(origin.encode("ascii"),): _allow(origin) for origin in origins}

    def render(self, request: Any) -> Any:
        # Two Origin fields match none. Browsers serialize an origin in one way (RFC 6454 §6.2): bytes are compared.
        allow = self._for_all or self._by_origin.get(tuple(request.fields.get(b"Origin", ())), b"")
        if not allow:
            request.extra_headers += self._vary
            return self._resource.render(request)
        preflight = is_preflight(request)
        request.extra_headers += allow + self._vary + (_PREFLIGHT if preflight else _EXPOSED)
        try:
            return self._resource.render(request)
        except Problem as problem:
            if not preflight or problem.status is not HTTPStatus.NOT_FOUND:
                raise
            # With a failed preflight the page would see a network error in place of the 404.
            request.send(_PREFLIGHT_OF_NOTHING)
            return NOT_DONE_YET


def allow_origins(root: Resource, origins: Collection[str]) -> None:
    """Change a resource tree: pages of other origins, as RFC 6454 §6.2 serializes them or `ALL`, may use the API."""
    for segment in API_SEGMENTS:
        root.putChild(segment, _CorsResource(root.children.get(segment, _NotFoundResource()), origins))


class _NotFoundResource(Resource):
    isLeaf = True

    def render(self, _request: Any) -> Any:
        raise not_found()
