"""What `postd.web.resource_metadata` and `postd.web.docs` do, in words."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from postd.web.bearer import METADATA_PATH
from postd.web.openapi.operation import Body, Operation, Reply
from postd.web.openapi.parts import JSON_TYPE, html

TAG = "About this service"

_HAVE = ("If-None-Match", "If-Match")
_NOT_MODIFIED = Reply("You have it already: it is what `If-None-Match` names.", headers=("ETag",))
_CHANGED = "It is not, or not any more, what `If-Match` asks for."


class ProtectedResource(Struct, frozen=True):
    """Who issues the tokens that are accepted here (RFC 9728)."""

    resource: str
    authorization_servers: list[str]
    bearer_methods_supported: list[str]
    scopes_supported: list[str] | UnsetType = UNSET


OPERATIONS: Mapping[str, Operation] = {
    f"GET {METADATA_PATH}": Operation(
        "showTokenIssuers",
        TAG,
        "Who issues the tokens that are accepted",
        "The document of RFC 9728, which a challenge for a token leads to.",
        {
            200: Reply(
                "The document.",
                Body(
                    JSON_TYPE,
                    ProtectedResource,
                    {
                        "resource": "https://posts.example",
                        "authorization_servers": ["https://idp.example/realms/main"],
                        "bearer_methods_supported": ["header"],
                    },
                ),
            )
        },
    ),
    "GET /openapi.json": Operation(
        "showDocument",
        TAG,
        "This description, for programs",
        "An OpenAPI 3.1 document, made from what serves.",
        {
            200: Reply("The document.", Body(JSON_TYPE, dict[str, Any], {"openapi": "3.1.0"}), ("ETag",)),
            304: _NOT_MODIFIED,
        },
        {412: _CHANGED},
        parameters=_HAVE,
    ),
    "GET /docs": Operation(
        "showDocs",
        TAG,
        "This description, for people",
        "A page made from the document.",
        {200: Reply("The page.", html("<!DOCTYPE html> ..."), ("ETag",)), 304: _NOT_MODIFIED},
        {412: _CHANGED},
        parameters=_HAVE,
    ),
}
