"""Bearer: between `Authorization` and an access token (RFC 6750; spec: Bearer); the issuers of tokens (RFC 9728)."""

from collections.abc import Sequence
from http import HTTPStatus

import orjson

from postd.auth.credentials import BearerCredentials, InsufficientScopeError, InvalidTokenError, Refused
from postd.http.interface import Request
from postd.http.peer import SAFE_METHODS, PeerResolver
from postd.http.responses import JSON, Response, make_response
from postd.protocol.bearer import BearerSyntaxError, decode_token

METADATA_PATH = "/.well-known/oauth-protected-resource"


class BearerCredentialFactory:
    """`postd.protect.guard.CredentialFactory` of Bearer.

    A token counts only in `Authorization`: neither `?access_token=` nor one in a form is looked at (RFC 9700 §4.3.2).

    Attributes:
        with_metadata: whether challenges have the URL of the resource metadata (RFC 9728 §5.1).
    """

    scheme = b"bearer"

    def __init__(self, realm: str, clients: PeerResolver | None = None, *, with_metadata: bool = False) -> None:
        self._realm = realm
        self._clients = clients or PeerResolver()
        self.with_metadata = with_metadata

    async def challenges(self, refusal: Refused | None, request: Request) -> Sequence[bytes]:
        parameters = {"realm": self._realm}
        # Without a token there is no error code (RFC 6750 §3.1), and other credentials are not this scheme's.
        if isinstance(refusal, InvalidTokenError):
            why = "The access token expired" if refusal.expired else "The access token is invalid"
            parameters |= {"error": "invalid_token", "error_description": why}
        elif isinstance(refusal, InsufficientScopeError):
            parameters |= {"error": "insufficient_scope", "scope": refusal.scope}
        if self.with_metadata:
            parameters["resource_metadata"] = self._clients.origin(request) + METADATA_PATH
        return [("Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())).encode("ascii")]

    def decode(self, response: bytes, request: Request) -> BearerCredentials:
        try:
            token = decode_token(response)
        except BearerSyntaxError as error:
            raise InvalidTokenError(f"malformed: {error}") from None
        # The method alone decides which scope is needed (reference: Bearer).
        return BearerCredentials(token, request.method not in SAFE_METHODS, self._clients.address(request))


class MetadataView:
    """Protected resource metadata (RFC 9728; reference: Bearer), where a challenge's `resource_metadata` leads to."""

    def __init__(self, issuers: Sequence[str], scopes: Sequence[str], clients: PeerResolver) -> None:
        self._issuers = issuers
        self._scopes = scopes
        self._clients = clients

    async def show(self, request: Request) -> Response:
        members = {
            "resource": self._clients.origin(request),
            "authorization_servers": self._issuers,
            "scopes_supported": self._scopes,
            "bearer_methods_supported": ["header"],
        }
        # What has no elements is left out (RFC 9728 §3.2).
        shown = {name: value for name, value in members.items() if value}
        body = orjson.dumps(shown, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        # A cache must not give one client's Host to another (reference: Safe by default).
        cached = b"max-age=3600" if self._clients.public_url else b"no-store"
        return make_response(HTTPStatus.OK, JSON, body, {b"Cache-Control": cached})
