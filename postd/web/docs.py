"""The API description: `/openapi.json` for programs, `/docs` for people (reference: Operations)."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b

import orjson
from klein import Klein

from postd.http.interface import Request
from postd.http.responses import HTML, JSON, PAGE_HEADERS, Response
from postd.web.access import SchemeDescription
from postd.web.compression import VARY, NegotiatedText
from postd.web.openapi.document import Route, Schemes, find_routes, make_document
from postd.web.pages.docs import DOCS_POLICY, make_docs_page
from postd.web.server.routing import Application

_HEADERS = {b"Cache-Control": b"no-cache", **VARY}


class Docs:
    """The OpenAPI document and the page made from it, both rendered once; `applications` are those beside this one."""

    app = Application()

    def __init__(
        self,
        applications: Iterable[Klein],
        schemes: Schemes,
        *,
        read: Collection[str],
        write: Collection[str],
        site_name: str,
    ) -> None:
        routes = frozenset(route for application in (*applications, self.app) for route in find_routes(application))
        document, page = _render(routes, tuple(schemes.items()), frozenset(read), frozenset(write), site_name)
        self._document = _make_text(JSON, document, _HEADERS)
        headers = {**PAGE_HEADERS, **_HEADERS, b"Content-Security-Policy": DOCS_POLICY}
        self._page = _make_text(HTML, page, headers)

    @app.route("/openapi.json", methods=["GET"])
    async def show_document(self, request: Request) -> Response:
        return await self._document.respond(request)

    @app.route("/docs", methods=["GET"])
    async def show_page(self, request: Request) -> Response:
        return await self._page.respond(request)


# Cached for the tests, which make thousands of trees; rendering takes some milliseconds.
@lru_cache(8)
def _render(
    routes: frozenset[Route],
    schemes: tuple[tuple[str, SchemeDescription], ...],
    read: frozenset[str],
    write: frozenset[str],
    site_name: str,
) -> tuple[bytes, bytes]:
    """Return document and page, encoded."""
    document = make_document(routes, dict(schemes), read=read, write=write)
    body = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return body, make_docs_page(document, {name: scheme.title for name, scheme in schemes}, site_name)


def _make_text(content_type: bytes, body: bytes, headers: Mapping[bytes, bytes]) -> NegotiatedText:
    etag = b'"%b"' % blake2b(body, digest_size=12).hexdigest().encode()
    return NegotiatedText(content_type, body, {b"ETag": etag, **headers})
