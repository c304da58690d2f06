"""Bearer and DPoP in HTTP: access tokens in `Authorization`, challenges (RFC 6750, 9449; spec: Bearer), metadata (RFC
9728).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from msgspec.structs import replace

from postd.auth.credentials import (
    BearerCredentials,
    InsufficientScopeError,
    InvalidProofError,
    InvalidTokenError,
    Refused,
    SentProof,
)
from postd.http.errors import Problem, not_found
from postd.http.interface import Request
from postd.http.peer import SAFE_METHODS, PeerResolver
from postd.http.responses import JSON, Response, make_response
from postd.protect.guard import CredentialFactory, ProtectedResource
from postd.protect.mounted import MountedResources
from postd.protect.pages import Page
from postd.protocol.bearer import PROOF_ALGORITHMS, BearerSyntaxError, decode_scope, decode_token
from postd.protocol.jwt import with_both_names

if TYPE_CHECKING:  # with it come treq and joserfc
    from postd.auth.bearer import Issuer

METADATA_PATH = "/.well-known/oauth-protected-resource"


class AcceptedTokens:
    """The access tokens that a server accepts, for its challenges and its metadata.

    Args:
        realm: the realm of the challenges.
        issuers: the issuers of accepted tokens.
        mounted: the resources of an application, whose paths its site has.

    Attributes:
        realm: the realm of the challenges.
        with_metadata: whether challenges have the URL of the resource's metadata (RFC 9728 §5.1).
    """

    def __init__(self, realm: str, issuers: Sequence["Issuer"], mounted: MountedResources) -> None:
        self.realm = realm
        self._mounted = mounted
        self.with_metadata = False
        self._issuers = issuers

    def make_factories(self, resource: ProtectedResource) -> Sequence[CredentialFactory]:
        """Return the credential factories of a resource (`postd.protect.guard.FactoryMaker`)."""
        rules = {issuer.policy.dpop for issuer in self._issuers}
        factories: list[CredentialFactory] = []
        if rules != {"require"}:
            factories.append(BearerCredentialFactory(self, resource))
        if rules - {"refuse"}:
            factories.append(DPoPCredentialFactory(self, resource))
        return factories

    def needed_scope(self, resource: ProtectedResource, *, writing: bool) -> str:
        """Return the scope that a token needs; "" if none, or if issuers differ: then a client cannot know which."""
        needed = self._scopes(resource, writing=writing)
        return needed.pop() if len(needed) == 1 else ""

    def _scopes(self, resource: ProtectedResource, *, writing: bool) -> set[str]:
        own = resource.scope(writing=writing)
        return {own or issuer.scope(writing=writing) for issuer in self._issuers}

    def make_page(self, clients: PeerResolver, resources: Iterable[ProtectedResource]) -> Page:
        """Return the page that a challenge's `resource_metadata` leads to: of the origin, and below it of each resource
        by its path.
        """
        self.with_metadata = True
        by_path = {resource.path: resource for resource in (ProtectedResource(clients), *resources)}

        async def show(request: Request) -> Response:
            below = request.postpath
            path = "".join(f"/{segment.decode('latin-1')}" for segment in below)
            resource = self._mounted.find(request, below, "bearer") or by_path.get(path)
            if resource is None or any(b"/" in segment for segment in below):
                raise not_found()
            if below:
                request.route = f"{METADATA_PATH}/<path>"
            return self.describe(resource, request)

        return Page({b"GET": show}, clients, below=True)

    def path_of(self, resource: ProtectedResource, request: Request) -> str:
        """Return the path of the resource that a request is for, "" if it has no metadata of its own."""
        return resource.path or self._mounted.path_below(METADATA_PATH, request, "bearer")

    def describe(self, resource: ProtectedResource, request: Request) -> Response:
        """Return the metadata of a resource (RFC 9728 §2; reference: Bearer).

        Raises:
            Problem: 400, the request names no host: the document has to.
        """
        origin = resource.clients.origin(request)
        if origin is None:
            raise Problem(400, "The request needs a Host field with the name of this server.")
        scopes = self._scopes(resource, writing=False) | self._scopes(resource, writing=True)
        rules = {issuer.policy.dpop for issuer in self._issuers}
        members: dict[str, object] = {
            "resource": origin + resource.path,
            "authorization_servers": [issuer.url for issuer in self._issuers],
            "scopes_supported": sorted(frozenset[str]().union(*map(decode_scope, scopes))),
            "bearer_methods_supported": ["header"],
        }
        if any(issuer.policy.mtls != "refuse" for issuer in self._issuers):
            members["tls_client_certificate_bound_access_tokens"] = True
        if rules - {"refuse"}:
            members["dpop_signing_alg_values_supported"] = sorted(with_both_names(PROOF_ALGORITHMS))
            members["dpop_bound_access_tokens_required"] = rules == {"require"}
        # Members without elements are omitted (RFC 9728 §3.2).
        shown = {name: value for name, value in members.items() if value not in ([], ())}
        body = orjson.dumps(shown, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        # A cache must not give one client's Host to another (reference: Safe by default).
        cached = b"max-age=3600" if resource.clients.public_url else b"no-store"
        return make_response(HTTPStatus.OK, JSON, body, {b"Cache-Control": cached})


class BearerCredentialFactory:
    """`postd.protect.guard.CredentialFactory` of Bearer.

    A token counts only in `Authorization`: neither `?access_token=` nor one in a form is looked at (RFC 9700 §4.3.2).
    """

    scheme = b"bearer"
    ambient = False
    _name = "Bearer"
    _parameters: Mapping[str, str] = {}

    def __init__(self, tokens: AcceptedTokens, resource: ProtectedResource) -> None:
        self._tokens = tokens
        self._resource = resource

    async def challenges(self, refusal: Refused | None, request: Request) -> Sequence[bytes]:
        parameters = {"realm": self._tokens.realm, **self._parameters}
        # Without a token there is no error code (RFC 6750 §3.1).
        if isinstance(refusal, InvalidTokenError):
            why = "The access token expired" if refusal.expired else "The access token is invalid"
            parameters |= {"error": "invalid_token", "error_description": why}
        elif isinstance(refusal, InvalidProofError):
            parameters |= {"error": "invalid_dpop_proof", "error_description": "The DPoP proof is invalid"}
        if isinstance(refusal, InsufficientScopeError):
            parameters |= {"error": "insufficient_scope", "scope": refusal.scope}
        else:
            needed = self._tokens.needed_scope(self._resource, writing=request.method not in SAFE_METHODS)
            parameters |= {"scope": needed} if needed else {}
        origin = self._resource.clients.origin(request) if self._tokens.with_metadata else None
        if origin is not None:
            parameters["resource_metadata"] = origin + METADATA_PATH + self._tokens.path_of(self._resource, request)
        quoted = ", ".join(f'{name}="{value}"' for name, value in parameters.items())
        return [f"{self._name} {quoted}".encode("ascii")]

    def decode(self, response: bytes, request: Request) -> BearerCredentials:
        try:
            token = decode_token(response)
        except BearerSyntaxError as error:
            raise InvalidTokenError(f"malformed: {error}") from None
        # The method alone decides which scope is needed (reference: Bearer).
        writes = request.method not in SAFE_METHODS
        resource = self._resource
        scope = resource.scope(writing=writes)
        certificate = partial(resource.clients.client_certificate, request)
        return BearerCredentials(token, writes, resource.clients.address(request), scope, certificate=certificate)


class DPoPCredentialFactory(BearerCredentialFactory):
    """`postd.protect.guard.CredentialFactory` of DPoP (RFC 9449 §7.1): a token with a proof in the field `DPoP`."""

    scheme = b"dpop"
    _name = "DPoP"
    _parameters: Mapping[str, str] = {"algs": " ".join(PROOF_ALGORITHMS)}

    def decode(self, response: bytes, request: Request) -> BearerCredentials:
        credentials = super().decode(response, request)
        proofs = request.fields.get(b"Dpop", [])  # the canonical spelling of `Headers`
        if len(proofs) != 1:
            raise InvalidProofError(f"the request has {len(proofs)} DPoP fields")
        origin = self._resource.clients.origin(request)
        if origin is None:
            raise InvalidProofError("the request names no host")
        url = origin + request.path.decode("latin-1")
        return replace(credentials, proof=SentProof(proofs[0], request.method.decode("latin-1"), url))
