"""What pages of other origins may do with the API by way of a browser (Fetch standard, CORS protocol; contract 2).

A page of an allowed origin may send any request of the API, with an `Authorization` field that it sets itself, and see
the answer. It never acts for the person in front of the browser: nothing here carries
`Access-Control-Allow-Credentials`, so that a browser lets it see nothing that cookies or remembered passwords have got.
Where a session may write, other origins may not, whatever they send (contract 3). A request that is refused before it
is there whole, with 413 for instance, is answered without any of this.

An origin that is not allowed is answered as if there was none of this: whether an answer may be seen is the browser's
business, whether a request is good was never a matter of its origin.
"""

from collections.abc import Collection
from typing import Any

from twisted.web.resource import IResource, Resource
from werkzeug.exceptions import NotFound

from postd.web.errors import API_SEGMENTS
from postd.web.responses import Response, encode_header, make_no_content
from postd.web.server.driver import respond

ALL = "*"
"""What stands for every origin."""

_EXPOSED = encode_header(
    b"Access-Control-Expose-Headers",
    b"ETag, Link, Location, Retry-After, WWW-Authenticate, Authentication-Info, X-Request-Id",
)
_PREFLIGHT = b"".join(
    encode_header(b"Access-Control-" + name, value)
    for name, value in (
        (b"Allow-Methods", b"GET, HEAD, POST, PUT, DELETE"),
        (
            b"Allow-Headers",
            b"Authorization, Content-Type, If-Match, If-None-Match, Idempotency-Key, Last-Event-ID, X-Request-Id",
        ),
        (b"Max-Age", b"600"),
    )
)
_NOTHING_THERE = make_no_content({b"Allow": b"OPTIONS"})


def _allow(origin: str) -> bytes:
    return encode_header(b"Access-Control-Allow-Origin", origin.encode("ascii"))


def is_preflight(request: Any) -> bool:
    """Tell whether a browser asks whether it may send another request. It never sends credentials with it."""
    fields = request.fields
    return request.method == b"OPTIONS" and b"Origin" in fields and b"Access-Control-Request-Method" in fields


class _Shared(Resource):
    """A resource, with all below it, that pages of other origins may use.

    Args:
        resource: answers; what goes wrong in it is answered with the fields that were added here, too.
        origins: those whose pages may, or `ALL`.
    """

    isLeaf = True

    def __init__(self, resource: IResource, origins: Collection[str]) -> None:
        super().__init__()
        self._resource = resource
        self._vary = b"" if ALL in origins else encode_header(b"Vary", b"Origin")
        self._for_all = _allow(ALL) if ALL in origins else b""
        self._by_origin = {(origin.encode("ascii"),): _allow(origin) for origin in origins}

    def render(self, request: Any) -> Any:
        # Two Origin fields are those of nobody. Browsers write it in one way (RFC 6454 §6.2): bytes are compared.
        allow = self._for_all or self._by_origin.get(tuple(request.fields.get(b"Origin", ())), b"")
        if not allow:
            request.own_fields += self._vary
            return self._resource.render(request)
        preflight = is_preflight(request)
        request.own_fields += allow + self._vary + (_PREFLIGHT if preflight else _EXPOSED)
        try:
            return self._resource.render(request)
        except NotFound:
            if not preflight:
                raise
            # Else the page would not see the 404 either: of what it asks for, it hears only that it failed.
            return respond(request, _answer_nothing_there())


def share(root: Resource, origins: Collection[str]) -> None:
    """Let pages of other origins use the API.

    Args:
        root: has all of it below it, and is changed.
        origins: those whose pages may, as browsers write them (RFC 6454 §6.2), or `ALL`.
    """
    for segment in API_SEGMENTS:
        root.putChild(segment, _Shared(root.children.get(segment, _Nothing()), origins))


class _Nothing(Resource):
    isLeaf = True

    def render(self, _request: Any) -> Any:
        raise NotFound


async def _answer_nothing_there() -> Response:
    return _NOTHING_THERE
