"""Descriptions of the metadata of the resource server (`postd.protect.bearer`) and `postd.web.openapi.docs`."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from postd.protect.bearer import METADATA_PATH
from postd.web.openapi.components import CONDITIONS, NOT_MODIFIED, Body, Operation, Reply, html

_CHANGED = "`If-Match` does not hold."


class ProtectedResource(Struct, frozen=True):
    """Protected resource metadata (RFC 9728)."""

    resource: str
    authorization_servers: list[str]
    bearer_methods_supported: list[str]
    scopes_supported: list[str] | UnsetType = UNSET
    dpop_signing_alg_values_supported: list[str] | UnsetType = UNSET
    dpop_bound_access_tokens_required: bool | UnsetType = UNSET
    tls_client_certificate_bound_access_tokens: bool | UnsetType = UNSET


def _metadata(resource: str) -> Mapping[int, Reply]:
    example = {
        "resource": resource,
        "authorization_servers": ["https://idp.example/realms/main"],
        "bearer_methods_supported": ["header"],
    }
    return {200: Reply("The document.", Body(ProtectedResource, example))}


OPERATIONS = {
    f"GET {METADATA_PATH}": Operation(
        "showTokenIssuers",
        "Show the accepted token issuers",
        "Protected resource metadata (RFC 9728) of the whole server.",
        _metadata("https://posts.example"),
    ),
    f"GET {METADATA_PATH}/{{path}}": Operation(
        "showTokenIssuersOfPath",
        "Show the accepted token issuers of a path",
        "Protected resource metadata (RFC 9728), named in the challenge for a token there.",
        _metadata("https://posts.example/post"),
        {404: "No token is accepted at this path."},
        parameters=("path",),
    ),
    "GET /openapi.json": Operation(
        "showDocument",
        "Show this description as OpenAPI",
        "An OpenAPI 3.1 document.",
        {
            200: Reply("The document.", Body(dict[str, Any], {"openapi": "3.1.0"}), ("ETag",)),
            304: NOT_MODIFIED,
        },
        {412: _CHANGED},
        parameters=CONDITIONS,
    ),
    "GET /docs": Operation(
        "showDocs",
        "Show this description as a page",
        "An HTML page made from the document.",
        {200: Reply("The page.", html("<!DOCTYPE html> ..."), ("ETag",)), 304: NOT_MODIFIED},
        {412: _CHANGED},
        parameters=CONDITIONS,
    ),
}
