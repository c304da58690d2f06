"""The issuers of Bearer: their keys are refreshed in the background; `postd check` fetches them once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from twisted.internet.defer import Deferred, FirstError, gatherResults

from postd.auth.bearer import Issuer
from postd.auth.jwks import FetchedKeys
from postd.errors import ConfigError
from postd.monitoring.health import OK
from postd.monitoring.tally import Metrics
from postd.net.fetching import FetchError
from postd.protect.issuers import TrustedIssuer
from postd.protect.schemes.interface import Checked, CheckResult
from postd.protocol.bearer import PROOF_ALGORITHMS
from postd.protocol.jwt import Algorithm
from postd.reactor import IReactor

_PROBE = "postd-check"
"""An unknown token, to test the introspection endpoint with."""


class Issuers:
    """The background work of the issuers: their keys are fetched and refreshed.

    Args:
        by_source: the issuers, by their identifiers and the URLs of their keys.
    """

    def __init__(self, by_source: Mapping[tuple[str, str], Issuer]) -> None:
        self.by_source = by_source

    def start(self, previous: "Issuers | None") -> None:
        for source, issuer in self.by_source.items():
            same = None if previous is None else previous.by_source.get(source)
            if same is not None:
                issuer.keys.copy_keys(same.keys)
            issuer.start()

    def retire(self) -> None:
        for issuer in self.by_source.values():
            issuer.stop_refreshing()

    def stop(self) -> None:
        for issuer in self.by_source.values():
            issuer.stop()

    @property
    def states(self) -> dict[str, str]:
        """Whether the keys of each issuer are held."""
        return {
            f"bearer {issuer.url}": OK if issuer.keys.current is not None else "no keys yet"
            for issuer in self.by_source.values()
        }

    @property
    def metrics(self) -> Metrics:
        """The number and the age of the keys that are held of each issuer."""
        metrics = Metrics()
        for issuer in self.by_source.values():
            held = issuer.keys.current
            metrics.maxima["keys", issuer.url] = 0 if held is None else len(held.keys)
            metrics.maxima["keys_age", issuer.url] = issuer.keys.age_s
        return metrics


async def check_issuers(issuers: Sequence[TrustedIssuer], reactor: IReactor) -> Sequence[Checked]:
    """Check all issuers at the same time; return their results in the order of the settings."""
    try:
        results = await gatherResults(
            [Deferred.fromCoroutine(_check_issuer(issuer, reactor)) for issuer in issuers], consumeErrors=True
        )
    except FirstError as error:
        error.subFailure.raiseException()
    return [(f"bearer {issuer.url}", lines) for issuer, lines in zip(issuers, results, strict=True)]


async def _check_issuer(trusted: TrustedIssuer, reactor: IReactor) -> list[CheckResult]:
    try:
        issuer = trusted.make(reactor)
    except ConfigError as error:
        return [(False, str(error))]
    results: list[CheckResult] = []
    try:
        results.append(_describe_keys(await issuer.keys.fetch(), trusted))
    except FetchError as error:
        results.append((False, str(error)))
    if issuer.introspector is not None:
        try:
            await issuer.introspector.fetch(_PROBE)
            results.append((True, f"{trusted.introspection_endpoint} answers"))
        except FetchError as error:
            results.append((False, str(error)))
    return results


def _describe_keys(fetched: FetchedKeys, trusted: TrustedIssuer) -> CheckResult:
    accepted = [name for name in get_args(Algorithm) if name in trusted.policy.algorithms]
    names = [
        f"{key.key_id or 'a key without kid'} for {'/'.join(sorted(algorithms))}"
        for key in fetched.keys.keys
        if (algorithms := key.algorithms & trusted.policy.algorithms)
    ]
    left_out = f"; left out: {fetched.keys.describe_left_out()}" if fetched.keys.left_out else ""
    keys = ", ".join(names) or f"no key for {', '.join(accepted)}"
    found = f"{fetched.metadata_url} leads to " if fetched.metadata_url else ""
    unbound = "".join(f"; {why}" for why in _missing_bindings(fetched.metadata, trusted)) if found else ""
    return bool(names), f"{found}{fetched.jwks_uri}, which has {keys}{left_out}{unbound}"


def _missing_bindings(metadata: Mapping[str, object], trusted: TrustedIssuer) -> Iterator[str]:
    """Yield the members that an issuer's metadata lacks for binding tokens (RFC 9449 §5.1, RFC 8705 §3.3)."""
    algorithms = metadata.get("dpop_signing_alg_values_supported")
    usable = isinstance(algorithms, list) and any(name in algorithms for name in (*PROOF_ALGORITHMS, "Ed25519"))
    if trusted.policy.dpop != "refuse" and not usable:
        yield f"dpop_signing_alg_values_supported in the metadata has none of {', '.join(PROOF_ALGORITHMS)}"
    if trusted.policy.mtls != "refuse" and metadata.get("tls_client_certificate_bound_access_tokens") is not True:
        yield "the metadata has no tls_client_certificate_bound_access_tokens"
