"""Bearer tokens of OpenID Connect providers (RFC 6750; spec: Bearer)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from postd.auth.checker import Checker
from postd.auth.credentials import BearerCredentials, IBearerCredentials, InvalidTokenError, log_refusal
from postd.auth.identity import Identity
from postd.auth.portal import CoroutinePortal
from postd.errors import join_names
from postd.protect.bearer import METADATA_PATH, AcceptedTokens
from postd.protect.guard import ProtectedResource
from postd.protect.issuers import TrustedIssuer
from postd.protect.pages import Page
from postd.protect.schemes.interface import (
    ClientCode,
    Context,
    Deployment,
    NetworkCheck,
    Scheme,
    SchemeDescription,
    SchemeParts,
)

_CODE = ClientCode("""headers={"Authorization": f"Bearer {environ['TOKEN']}"}""", imports=("from os import environ",))


class Bearer(Scheme, frozen=True):
    """Access tokens in `Authorization`, also tokens that are bound to a key or to a client certificate.

    Args:
        issuers: the accepted issuers, made by `postd.protect.issuer`.
    """

    issuers: Sequence[TrustedIssuer] = ()

    name = "bearer"
    description = SchemeDescription(
        title="Bearer token",
        security={
            "type": "http",
            "scheme": "bearer",
            "description": "An access token in the field `Authorization` (RFC 6750). A token that is bound to a key is "
            "sent there with the scheme `DPoP`, and each request has a proof in the field `DPoP` (RFC 9449). The "
            "issuers, and whether tokens have to be bound, are listed at `/.well-known/oauth-protected-resource`.",
        },
        curl='-H "Authorization: Bearer $TOKEN"',
        httpx=_CODE,
        treq=_CODE,
        errors=((403, "The token lacks a scope."), (503, "Credentials cannot be checked now.")),
    )
    has_bare_names = False

    def make(self, context: Context) -> SchemeParts:
        if not self.issuers:
            return SchemeParts((_NoIssuer(),), AcceptedTokens(context.realm, (), context.mounted).make_factories)
        # It imports treq and joserfc: a sixth of the modules of a server without issuers.
        from postd.auth.bearer import BearerChecker  # noqa: PLC0415 - for issuers alone
        from postd.protect.schemes.issuers import Issuers  # noqa: PLC0415 - for issuers alone

        issuers = [issuer.make(context.reactor) for issuer in self.issuers]
        tokens = AcceptedTokens(context.realm, issuers, context.mounted)

        def make_pages(_portal: CoroutinePortal, resources: Sequence[ProtectedResource]) -> Mapping[str, Page]:
            return {METADATA_PATH[1:]: tokens.make_page(context.clients, resources)}

        checker = BearerChecker(issuers, throttle=context.throttle, store=context.store)
        background = Issuers({(one.url, each.jwks_uri): one for one, each in zip(issuers, self.issuers, strict=True)})
        return SchemeParts((checker,), tokens.make_factories, make_pages=make_pages, background=background)

    def secrets(self, deployment: Deployment) -> str | None:  # noqa: ARG002 - other schemes need it
        return "tokens" if self.issuers else None

    def problems(self, deployment: Deployment) -> Iterator[str]:
        rules = deployment.rules_of(self.name)
        if rules and not self.issuers:
            yield f"no [[bearer]] is set: no token is accepted for {join_names(rules)}"
        if self.issuers and not rules and not deployment.rules_of("open"):
            yield '[[bearer]] is set, but no rule has "bearer" or "open" among its schemes: tokens are accepted nowhere'
        for issuer in self.issuers:
            yield from self._issuer_problems(issuer, deployment)

    @staticmethod
    def _issuer_problems(issuer: TrustedIssuer, deployment: Deployment) -> Iterator[str]:
        if issuer.client_id and not issuer.introspection_endpoint:
            yield f"client_id of {issuer.url} has no effect without introspection_endpoint"
        if issuer.jwks_uri and issuer.introspect == "all":
            yield f'jwks_uri of {issuer.url} has no effect with introspect = "all"'
        if issuer.policy.dpop != "refuse" and deployment.names_any_host:
            why = "proofs are checked against the Host of the request, which may be any host"
            yield f"dpop of {issuer.url}: {why}: set public_url or hosts"
        if issuer.policy.mtls != "refuse" and not deployment.sees_certificates:
            cure = 'set [tls] client_certificates = "ask", or trusted_proxies that send Client-Cert'
            yield f"mtls of {issuer.url}: no client can present its certificate: {cure}"

    @property
    def issuers_of_users(self) -> Collection[str]:
        return [issuer.url for issuer in self.issuers]

    def check(self) -> NetworkCheck | None:
        if not self.issuers:
            return None
        from postd.protect.schemes.issuers import check_issuers  # noqa: PLC0415 - for issuers alone

        return partial(check_issuers, self.issuers)


class _NoIssuer(Checker):
    """Refuses all tokens: no issuer is set."""

    credentialInterfaces = (IBearerCredentials,)

    async def check(self, credentials: BearerCredentials) -> Identity:
        raise log_refusal(credentials.scheme, InvalidTokenError("no issuer is accepted"), credentials.address)
