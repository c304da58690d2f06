"""The issuers of the settings: made, refreshed in the background, and checked by `postd check`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, FirstError, gatherResults

from postd.auth.bearer import BearerChecker, Issuer, read_secret
from postd.auth.jwks import FetchedKeys
from postd.errors import ConfigError
from postd.monitoring.health import OK
from postd.monitoring.tally import Metrics
from postd.net.fetching import FetchError
from postd.protocol.bearer import PROOF_ALGORITHMS
from postd.protocol.jwt import TokenPolicy
from postd.reactor import IReactor
from postd.schemes.interface import Checked, CheckResult, Context
from postd.settings.loading import LoadedSettings
from postd.settings.schema import BearerSettings, Settings

_PROBE = "postd-check"
"""An unknown token, to test the introspection endpoint with."""


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


def make_issuers(context: Context) -> list[Issuer]:
    """Return the issuers of the settings.

    Raises:
        ConfigError: as for `make_issuer`.
    """
    where = context.where.get("bearer", "bearer")
    return [
        make_issuer(table, where=f"{where}[{number}]", reactor=context.reactor)
        for number, table in enumerate(context.settings.bearer)
    ]


def make_checker(issuers: Sequence[Issuer], context: Context) -> BearerChecker:
    """Return the checker of the tokens of issuers."""
    return BearerChecker(issuers, throttle=context.throttle, store=context.store)


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


async def check_issuers(loaded: LoadedSettings, reactor: IReactor) -> Sequence[Checked]:
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
    unbound = "".join(f"; {why}" for why in _missing_bindings(fetched.metadata, settings)) if found else ""
    return bool(names), f"{found}{fetched.jwks_uri}, which has {keys}{left_out}{unbound}"


def _missing_bindings(metadata: Mapping[str, Any], settings: BearerSettings) -> Iterator[str]:
    """Yield the members that an issuer's metadata lacks for binding tokens (RFC 9449 §5.1, RFC 8705 §3.3)."""
    algorithms = metadata.get("dpop_signing_alg_values_supported")
    usable = isinstance(algorithms, list) and any(name in algorithms for name in (*PROOF_ALGORITHMS, "Ed25519"))
    if settings.dpop != "refuse" and not usable:
        yield f"dpop_signing_alg_values_supported in the metadata has none of {', '.join(PROOF_ALGORITHMS)}"
    if settings.mtls != "refuse" and metadata.get("tls_client_certificate_bound_access_tokens") is not True:
        yield "the metadata has no tls_client_certificate_bound_access_tokens"
