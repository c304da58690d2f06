"""Issuers: their keys are refreshed in the background; `postd check` fetches those of Bearer once."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol, get_args

from twisted.internet.defer import Deferred, FirstError, gatherResults

from postd.auth.jwks import FetchedKeys, KeySource, NoKeysError
from postd.errors import ConfigError
from postd.monitoring.health import OK
from postd.monitoring.tally import Metrics
from postd.net.fetching import Fetcher, FetchError
from postd.protect.issuers import TrustedIssuer
from postd.protect.schemes.interface import Checked, CheckResult
from postd.protocol.bearer import PROOF_ALGORITHMS
from postd.protocol.discovery import OPENID_PATH, USUAL_PATHS, named_issuer
from postd.protocol.jwt import Algorithm, with_both_names
from postd.protocol.members import decode_object, member
from postd.reactor import IReactor

_PROBE = "postd-check"
"""An unknown token, to test the introspection endpoint with."""


class KeyUser(Protocol):
    """An issuer whose keys are used.

    Attributes:
        url: its identifier.
        keys: the source of its keys.
        is_ready: whether its tokens can be checked.
    """

    url: str
    keys: KeySource

    @property
    def is_ready(self) -> bool: ...

    def start(self) -> None: ...

    def stop_refreshing(self) -> None: ...

    def stop(self) -> None: ...


class Issuers:
    """The background work of issuers: their keys are fetched and refreshed.

    Args:
        by_source: the issuers, by their identifiers and the URLs of their keys.
        needed: whether a server is not ready without their keys.
    """

    def __init__(self, by_source: Mapping[tuple[str, str], KeyUser], *, needed: bool = True) -> None:
        self.by_source = by_source
        self._needed = needed

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
        """Whether the tokens of each issuer can be checked."""
        if not self._needed:
            return {}
        return {f"bearer {issuer.url}": OK if issuer.is_ready else "no keys yet" for issuer in self.by_source.values()}

    @property
    def metrics(self) -> Metrics:
        """The number and the age of the keys that are held of each issuer that has keys or needs them."""
        metrics = Metrics()
        for issuer in self.by_source.values():
            if issuer.is_ready and issuer.keys.current is None:
                continue
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
        if issuer.verifies:
            results.append(_describe(await issuer.keys.fetch(), trusted))
    except NoKeysError as error:
        without = issuer.introspector is not None and not trusted.jwks_uri
        why = "it publishes no keys: its tokens are only introspected" if without else str(error)
        hint = await find_hint(trusted.url, trusted.ca_file, reactor)
        results.append((without and not hint, why + hint))
    except FetchError as error:
        results.append((False, str(error)))
    if issuer.introspector is not None:
        try:
            await issuer.introspector.fetch(_PROBE)
            results.append((True, f"{trusted.introspection_endpoint} answers"))
        except FetchError as error:
            results.append((False, str(error)))
    return results


async def find_hint(url: str, ca_file: str, reactor: IReactor) -> str:
    """Return the issuer whose metadata are below the URL of one that has none: its path may have been forgotten."""
    fetcher = Fetcher(reactor, ca_file=ca_file)
    base = url.removesuffix("/")

    async def find(path: str) -> str:
        try:
            fetched = await fetcher.get(base + path + OPENID_PATH)
        except FetchError:
            return ""
        return named_issuer(decode_object(fetched.content) or {})

    found = await gatherResults([Deferred.fromCoroutine(find(path)) for path in USUAL_PATHS])
    named = next(filter(None, found), "")
    return f'; there is an issuer "{named}": is that the one?' if named else ""


def _describe(fetched: FetchedKeys, trusted: TrustedIssuer) -> CheckResult:
    is_ok, line = describe_keys(fetched, trusted.policy.algorithms)
    missing = _missing_bindings(fetched.metadata, trusted) if fetched.metadata_url else ()
    return is_ok, line + "".join(f"; {why}" for why in missing)


def describe_keys(fetched: FetchedKeys, algorithms: Collection[str]) -> CheckResult:
    """Return the line about the keys of an issuer, of which one is needed for one of the algorithms."""
    accepted = [name for name in get_args(Algorithm) if name in algorithms]
    names = [
        f"{key.key_id or 'a key without kid'} for {'/'.join(sorted(usable))}"
        for key in fetched.keys.keys
        if (usable := key.algorithms.intersection(algorithms))
    ]
    left_out = f"; left out: {fetched.keys.describe_left_out()}" if fetched.keys.left_out else ""
    keys = ", ".join(names) or f"no key for {', '.join(accepted)}"
    found = f"{fetched.metadata_url} leads to " if fetched.metadata_url else ""
    return bool(names), f"{found}{fetched.jwks_uri}, which has {keys}{left_out}"


def _missing_bindings(metadata: Mapping[str, object], trusted: TrustedIssuer) -> Iterator[str]:
    """Yield the members that an issuer's metadata lacks for binding tokens (RFC 9449 §5.1, RFC 8705 §3.3)."""
    algorithms = member(metadata, "dpop_signing_alg_values_supported")
    usable = isinstance(algorithms, list) and any(name in algorithms for name in with_both_names(PROOF_ALGORITHMS))
    if trusted.policy.dpop != "refuse" and not usable:
        yield f"dpop_signing_alg_values_supported in the metadata has none of {', '.join(PROOF_ALGORITHMS)}"
    if trusted.policy.mtls != "refuse" and metadata.get("tls_client_certificate_bound_access_tokens") is not True:
        yield "the metadata has no tls_client_certificate_bound_access_tokens"
