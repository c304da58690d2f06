"""Protected resource metadata: the issuers of accepted tokens (RFC 9728; reference: Bearer)."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import orjson

from postd.web.bearer import METADATA_PATH
from postd.web.interface import Request
from postd.web.peer import PeerResolver
from postd.web.responses import JSON, Response, make_response
from postd.web.server.routing import Application


class ResourceMetadata:
    """The document that a challenge's `resource_metadata` leads to.

    Args:
        issuers: their identifiers.
        scopes: the words of scopes that are asked for.
        clients: resolves our origin, which is the resource.
    """

    app = Application()

    def __init__(self, issuers: Sequence[str], scopes: Sequence[str], clients: PeerResolver) -> None:
        self._issuers = issuers
        self._scopes = scopes
        self._clients = clients

    @app.route(METADATA_PATH, methods=["GET"])
    async def show(self, request: Request) -> Response:
        members: dict[str, Any] = {
            "resource": self._clients.origin(request),
            "authorization_servers": self._issuers,
            "scopes_supported": self._scopes,
            "bearer_methods_supported": ["header"],
        }
        # What has no elements is left out (RFC 9728 §3.2).
        body = orjson.dumps(
            {name: value for name, value in members.items() if value},
            option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
        )
        # A cache must not give one client's Host to another (reference: Safe by default).
        cached = b"max-age=3600" if self._clients.public_url else b"no-store"
        return make_response(HTTPStatus.OK, JSON, body, {b"Cache-Control": cached})
