"""The routes of the protected resource metadata (RFC 9728)."""

from collections.abc import Iterable

from postd.http.errors import not_found
from postd.http.interface import Request
from postd.http.responses import Response
from postd.protect.bearer import METADATA_PATH, AcceptedTokens
from postd.protect.guard import ProtectedResource
from postd.web.routing import Application


class ResourceMetadata:
    """The pages that a challenge's `resource_metadata` leads to: of the origin, and of each resource by its path."""

    app = Application()

    def __init__(self, tokens: AcceptedTokens, resources: Iterable[ProtectedResource]) -> None:
        self._tokens = tokens
        self._by_path = {resource.path: resource for resource in resources}

    @app.route(METADATA_PATH, methods=["GET"])
    async def show_origin(self, request: Request) -> Response:
        return await self.show_resource(request, "")

    @app.route(f"{METADATA_PATH}/<path:path>", methods=["GET"])
    async def show_resource(self, request: Request, path: str) -> Response:
        resource = self._by_path.get(f"/{path}" if path else "")
        if resource is None:
            raise not_found()
        return self._tokens.describe(resource, request)
