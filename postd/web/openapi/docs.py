"""The API description: `/openapi.json` for programs, `/docs` for people (reference: Operations)."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache

import orjson
from klein import Klein

from postd.fair_queue import FairTurns
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.http.responses import HTML, JSON, PAGE_HEADERS, Response
from postd.web.lists.compression import VARY, NegotiatedText
from postd.web.openapi.document import Schemes, find_routes, make_document
from postd.web.openapi.page import DOCS_POLICY, Document, make_docs_page
from postd.web.preconditions import hash_etag
from postd.web.routing import Application
from postd.web.samples import ORIGIN

ORIGINS_MAX = 8
"""Limit on the pages that are kept: one for each origin, of some 100 kB."""


class Docs:
    """The OpenAPI document and the page made from it; `applications` are those beside this one.

    Both are made when they are first requested. The page shows the server's origin as the client sees it.
    """

    app = Application()

    def __init__(  # noqa: PLR0913 - all but three by name
        self,
        applications: Sequence[Klein],
        schemes: Schemes,
        *,
        read: Collection[str],
        write: Collection[str],
        judged: Collection[str],
        clients: PeerResolver,
        site_name: str,
        work: FairTurns,
    ) -> None:
        self._applications = *applications, self.app
        self._schemes = schemes
        self._rules = {"read": read, "write": write, "judged": judged}
        self._clients = clients
        self._site_name = site_name
        self._work = work
        self._page_of = lru_cache(ORIGINS_MAX)(self._make_page)

    @app.route("/openapi.json", methods=["GET"])
    async def show_document(self, request: Request) -> Response:
        return await self._text.respond(request)

    @app.route("/docs", methods=["GET"])
    async def show_page(self, request: Request) -> Response:
        async with self._work.turn(request.client_network):  # there is a page for each origin
            page = self._page_of(self._clients.origin(request) or ORIGIN)
        return await page.respond(request)

    @cached_property
    def _document(self) -> Document:
        routes = {route for application in self._applications for route in find_routes(application)}
        return make_document(routes, self._schemes, **self._rules)

    @cached_property
    def _text(self) -> NegotiatedText:
        body = orjson.dumps(self._document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        return self._make_text(JSON, body, {b"Cache-Control": b"no-cache"})

    @cached_property
    def _template(self) -> bytes:
        """The page, in which an origin is to be replaced."""
        titles = {name: scheme.title for name, scheme in self._schemes.items()}
        return make_docs_page(self._document, titles, self._site_name)

    def _make_page(self, origin: str) -> NegotiatedText:
        # A response that depends on `Host` must not be stored (reference: Safe by default).
        stored = b"no-cache" if self._clients.public_url else b"no-store"
        headers = {**PAGE_HEADERS, b"Cache-Control": stored, b"Content-Security-Policy": DOCS_POLICY}
        # An origin has no character that is special in HTML, or in a string of the shell or of Python.
        return self._make_text(HTML, self._template.replace(ORIGIN.encode(), origin.encode("ascii")), headers)

    def _make_text(self, content_type: bytes, body: bytes, headers: Mapping[bytes, bytes]) -> NegotiatedText:
        etag = hash_etag(body)
        return NegotiatedText(content_type, body, {b"ETag": etag, **headers, **VARY}, work=self._work)
