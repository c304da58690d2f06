"""Bearer tokens of OpenID Connect providers (RFC 6750; spec: Bearer)."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from postd.auth.portal import CoroutinePortal
from postd.errors import join_names
from postd.net.endpoint_strings import is_loopback_only
from postd.protect.bearer import AcceptedTokens
from postd.protect.guard import ProtectedResource
from postd.protocol.bearer import has_issuer
from postd.schemes.interface import Context, NetworkCheck, Scheme
from postd.settings.loading import LoadedSettings
from postd.settings.schema import Page, Settings
from postd.web.access import ClientCode, SchemeDescription, SchemeParts, Views
from postd.web.resource_metadata import ResourceMetadata

if TYPE_CHECKING:
    from postd.schemes.issuers import Issuers

_CODE = ClientCode("""headers={"Authorization": f"Bearer {environ['TOKEN']}"}""", imports=("from os import environ",))


class BearerScheme(Scheme):
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

    def make(self, context: Context) -> tuple[SchemeParts, "Issuers | None"]:
        settings = context.settings
        if not settings.bearer and not settings.uses_scheme("bearer"):
            return SchemeParts(()), None
        # It imports treq and joserfc: a sixth of the modules of a server without issuers.
        from postd.schemes.issuers import Issuers, make_checker, make_issuers  # noqa: PLC0415 - as the comment says

        issuers = make_issuers(context)
        tokens = AcceptedTokens(settings.realm, issuers, with_metadata=bool(issuers))

        def make_views(_portal: CoroutinePortal, resources: Sequence[ProtectedResource]) -> Sequence[Views]:
            described = [ProtectedResource(context.clients), *resources]
            return [((b".well-known",), ResourceMetadata(tokens, described))] if issuers else ()

        return SchemeParts((make_checker(issuers, context),), tokens.make_factories, make_views=make_views), Issuers(
            issuers, settings
        )

    def secrets(self, settings: Settings, name: str) -> str | None:  # noqa: ARG002 - `Scheme`'s
        return "tokens" if settings.bearer else None

    def settings_problems(self, settings: Settings, rules: Sequence[str]) -> Iterator[str]:
        if rules and not settings.bearer:
            yield f"no [[bearer]] is set: no token is accepted for {join_names(rules)}"
        if settings.bearer and not rules:
            yield '[[bearer]] is set, but no rule has "bearer" among its schemes: tokens are accepted nowhere'
        for issuer in settings.bearer:
            if issuer.client_id and not issuer.introspection_endpoint:
                yield f"client_id of {issuer.issuer} has no effect without introspection_endpoint"
            if issuer.dpop != "refuse" and _accepts_any_host(settings):
                why = "proofs are checked against the Host of the request, which may be any host"
                yield f"dpop of {issuer.issuer}: {why}: set public_url or hosts"
            if issuer.mtls != "refuse" and settings.tls.client_certificates == "no" and not settings.trusted_proxies:
                cure = 'set [tls] client_certificates = "ask", or trusted_proxies that send Client-Cert'
                yield f"mtls of {issuer.issuer}: no client can present its certificate: {cure}"
        for page in settings.pages:
            for owner in filter(has_issuer, page.users):
                why = _owner_problem(owner, page, settings)
                if why:
                    yield f"page {page.path}: {owner} of its users can never have access: {why}"

    def check(self, loaded: LoadedSettings) -> NetworkCheck | None:
        if not loaded.settings.bearer:
            return None
        from postd.schemes.issuers import check_issuers  # noqa: PLC0415 - as in `make`

        return partial(check_issuers, loaded)


def _accepts_any_host(settings: Settings) -> bool:
    """Return whether a client may name any host as this server's (reference: Hosts)."""
    if settings.public_url or settings.hosts:
        return not settings.public_url and "*" in settings.hosts
    return bool(settings.trusted_proxies) or not all(map(is_loopback_only, settings.listen))


def _owner_problem(owner: str, page: Page, settings: Settings) -> str:
    issuer, hash_sign, user = owner.partition("#")
    if not hash_sign or not user:
        return "the owner of a token is written ISSUER#NAME"
    if "bearer" not in page.schemes:
        return '"bearer" is not among the schemes'
    known = any(issuer == table.issuer for table in settings.bearer)
    return "" if known else "[[bearer]] has no such issuer"


SCHEME = BearerScheme()
