"""Bearer tokens of OpenID Connect providers (RFC 6750; spec: Bearer)."""

from collections.abc import Iterator, Sequence
from functools import partial

from twisted.internet.defer import Deferred, FirstError, gatherResults

from postd.auth.bearer import BearerChecker, Issuer, read_secret
from postd.auth.jwks import FetchedKeys
from postd.auth.portal import CoroutinePortal
from postd.errors import ConfigError, join_names
from postd.model import has_issuer
from postd.monitoring.health import OK
from postd.monitoring.tally import Metrics
from postd.net.fetching import FetchError
from postd.protect.bearer import AcceptedTokens
from postd.protect.guard import ProtectedResource
from postd.protocol.jwt import TokenPolicy
from postd.reactor import IReactor
from postd.schemes.interface import Checked, CheckResult, Context, NetworkCheck, Scheme
from postd.settings.loading import LoadedSettings
from postd.settings.schema import BearerSettings, Page, Settings
from postd.web.access import SchemeDescription, SchemeParts, Views
from postd.web.resource_metadata import ResourceMetadata

_PROBE = "postd-check"
"""An unknown token, to test the introspection endpoint with."""


class BearerScheme(Scheme):
    description = SchemeDescription(
        title="Bearer token",
        security={
            "type": "http",
            "scheme": "bearer",
            "description": "An access token in the field `Authorization` (RFC 6750). Its issuers are listed at "
            "`/.well-known/oauth-protected-resource`.",
        },
        curl='-H "Authorization: Bearer $TOKEN"',
        errors=((403, "The token lacks a scope."), (503, "Credentials cannot be checked now.")),
    )
    has_bare_names = False

    def make(self, context: Context) -> tuple[SchemeParts, "Issuers"]:
        settings = context.settings
        issuers = [
            make_issuer(table, where=f"{context.where.get('bearer', 'bearer')}[{number}]", reactor=context.reactor)
            for number, table in enumerate(settings.bearer)
        ]
        checker = BearerChecker(issuers, throttle=context.throttle, store=context.store, now=context.reactor.seconds)
        tokens = AcceptedTokens(settings.realm, issuers, with_metadata=bool(issuers))

        def make_views(_portal: CoroutinePortal, resources: Sequence[ProtectedResource]) -> Sequence[Views]:
            described = [ProtectedResource(context.clients), *resources]
            return [((b".well-known",), ResourceMetadata(tokens, described))] if issuers else ()

        return SchemeParts((checker,), tokens.make_factories, make_views=make_views), Issuers(issuers, settings)

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
            if issuer.mtls != "refuse" and settings.tls.client_certificates == "no" and not settings.trusted_proxies:
                cure = 'set [tls] client_certificates = "ask", or trusted_proxies that send Client-Cert'
                yield f"mtls of {issuer.issuer}: no client can show its certificate: {cure}"
        for page in settings.pages:
            for owner in filter(has_issuer, page.users):
                why = _owner_problem(owner, page, settings)
                if why:
                    yield f"page {page.path}: {owner} of its users can never enter: {why}"

    def check(self, loaded: LoadedSettings) -> NetworkCheck | None:
        return partial(_check_issuers, loaded) if loaded.settings.bearer else None


class Issuers:
    """The issuers of the settings: their keys are fetched and refreshed in the background.

    Attributes:
        by_source: the issuers, by their identifiers and the URLs of their keys.
    """

    def __init__(self, issuers: Sequence[Issuer], settings: Settings) -> None:
        self._issuers = issuers
        self.by_source = {
            (table.issuer, table.jwks_uri): issuer for table, issuer in zip(settings.bearer, issuers, strict=True)
        }

    def start(self, previous: "Issuers | None") -> None:
        for source, issuer in self.by_source.items():
            same = None if previous is None else previous.by_source.get(source)
            if same is not None:
                issuer.keys.copy_keys(same.keys)
            issuer.start()

    def retire(self) -> None:
        for issuer in self._issuers:
            issuer.stop_refreshing()

    def stop(self) -> None:
        for issuer in self._issuers:
            issuer.stop()

    @property
    def states(self) -> dict[str, str]:
        """Whether the keys of each issuer are held."""
        return {
            f"bearer {issuer.url}": OK if issuer.keys.current is not None else "no keys yet" for issuer in self._issuers
        }

    @property
    def metrics(self) -> Metrics:
        """The number and the age of the keys that are held of each issuer."""
        metrics = Metrics()
        for issuer in self._issuers:
            held = issuer.keys.current
            metrics.maxima["keys", issuer.url] = 0 if held is None else len(held.keys)
            metrics.maxima["keys_age", issuer.url] = issuer.keys.age_s
        return metrics


def _owner_problem(owner: str, page: Page, settings: Settings) -> str:
    issuer, hash_sign, user = owner.partition("#")
    if not hash_sign or not user:
        return "the owner of a token is written ISSUER#NAME"
    if "bearer" not in page.schemes:
        return '"bearer" is not among the schemes'
    known = any(issuer == table.issuer for table in settings.bearer)
    return "" if known else "there is no such issuer under [[bearer]]"


def make_issuer(settings: BearerSettings, *, where: str = "bearer", reactor: IReactor) -> Issuer:
    """Return an issuer of access tokens.

    Args:
        settings: its table of the settings file.
        where: names the table in messages, as `postd.toml: bearer[0]`.
        reactor: as for `Issuer`.

    Raises:
        ConfigError: its `ca_file` or its `client_secret_file` cannot be used.
    """
    policy = TokenPolicy(
        issuer=settings.issuer,
        audiences=frozenset(settings.audiences),
        algorithms=frozenset(settings.algorithms),
        token_types=frozenset(settings.token_types),
        scope_claims=settings.scope_claims,
        user_claim=settings.user_claim,
        required_claims=settings.accepted_claims,
        leeway_s=settings.leeway_s,
        dpop=settings.dpop,
        mtls=settings.mtls,
    )
    try:
        return Issuer(
            policy,
            reactor=reactor,
            jwks_uri=settings.jwks_uri,
            ca_file=settings.ca_file,
            read_scope=settings.read_scope,
            write_scope=settings.write_scope,
            introspection_endpoint=settings.introspection_endpoint,
            client_id=settings.client_id,
            client_secret=read_secret(settings.client_secret_file),
        )
    except ConfigError as error:
        raise ConfigError(f"{where}.{error.where}", error.why) from None


async def _check_issuers(loaded: LoadedSettings, reactor: IReactor) -> Sequence[Checked]:
    """Check all issuers at the same time; return their results in the order of the settings."""
    tables, where = loaded.settings.bearer, loaded.where["bearer"]
    checks = (_check_issuer(table, f"{where}[{number}]", reactor) for number, table in enumerate(tables))
    try:
        results = await gatherResults([Deferred.fromCoroutine(one) for one in checks], consumeErrors=True)
    except FirstError as error:
        error.subFailure.raiseException()
    return [(f"bearer {table.issuer}", lines) for table, lines in zip(tables, results, strict=True)]


async def _check_issuer(settings: BearerSettings, where: str, reactor: IReactor) -> list[CheckResult]:
    try:
        issuer = make_issuer(settings, where=where, reactor=reactor)
    except ConfigError as error:
        return [(False, str(error))]
    results: list[CheckResult] = []
    try:
        results.append(_describe_keys(await issuer.keys.fetch(), settings))
    except FetchError as error:
        results.append((False, str(error)))
    if issuer.introspector is not None:
        try:
            await issuer.introspector.fetch(_PROBE)
            results.append((True, f"{settings.introspection_endpoint} answers"))
        except FetchError as error:
            results.append((False, str(error)))
    return results


def _describe_keys(fetched: FetchedKeys, settings: BearerSettings) -> CheckResult:
    names = [
        f"{key.key_id or 'a key without kid'} for {'/'.join(sorted(algorithms))}"
        for key in fetched.keys.keys
        if (algorithms := key.algorithms & set(settings.algorithms))
    ]
    left_out = f"; left out: {fetched.keys.describe_left_out()}" if fetched.keys.left_out else ""
    keys = ", ".join(names) or f"no key for {', '.join(settings.algorithms)}"
    found = f"{fetched.metadata_url} leads to " if fetched.metadata_url else ""
    return bool(names), f"{found}{fetched.jwks_uri}, which has {keys}{left_out}"


SCHEME = BearerScheme()
