"""The OpenID providers in `postd check`: metadata and keys are fetched once."""

from collections.abc import Iterator, Mapping, Sequence

from twisted.internet.defer import Deferred, gatherResults

from postd.errors import ConfigError
from postd.net.fetching import FetchError
from postd.protect.providers import TrustedProvider
from postd.protect.schemes.interface import Checked, CheckResult
from postd.protect.schemes.issuers import describe_keys, find_hint
from postd.protocol.discovery import MetadataError, endpoint_of
from postd.protocol.members import member
from postd.protocol.sign_in import ClientAuth
from postd.reactor import IReactor

_ENDPOINTS = ("authorization_endpoint", "token_endpoint")


async def check_providers(providers: Sequence[TrustedProvider], reactor: IReactor) -> Sequence[Checked]:
    """Check all providers at the same time; return their results in the order of the settings."""
    results = await gatherResults([Deferred.fromCoroutine(_check_provider(one, reactor)) for one in providers])
    return [(f"sign_in {one.id}", lines) for one, lines in zip(providers, results, strict=True)]


async def _check_provider(trusted: TrustedProvider, reactor: IReactor) -> list[CheckResult]:
    try:
        provider = trusted.make(reactor)
    except ConfigError as error:
        return [(False, str(error))]
    try:
        fetched = await provider.keys.fetch()
    except FetchError as error:
        return [(False, f"{error}{await find_hint(trusted.issuer, trusted.ca_file, reactor)}")]
    method = provider.client_auth(fetched.metadata)
    problems = _find_problems(fetched.metadata, trusted, method)
    return [
        describe_keys(fetched, trusted.policy.algorithms),
        *[(False, problem) for problem in problems],
        (True, f"client authentication: {method}"),
    ]


def _find_problems(metadata: Mapping[str, object], trusted: TrustedProvider, method: ClientAuth) -> Iterator[str]:
    """Yield what is missing in a provider's metadata for signing in (OpenID Connect Discovery 1.0 §3, RFC 8414 §2)."""
    names = [*_ENDPOINTS, *(["end_session_endpoint"] if trusted.logout == "provider" else [])]
    for name in names:
        try:
            endpoint_of(metadata, name)
        except MetadataError as error:
            yield str(error)
    challenges = member(metadata, "code_challenge_methods_supported")
    if isinstance(challenges, list) and "S256" not in challenges:
        yield "code_challenge_methods_supported in the metadata has no S256, which is always sent (PKCE)"
    methods = member(metadata, "token_endpoint_auth_methods_supported", ["client_secret_basic"])
    # Many have public clients, and do not announce "none".
    if method != "none" and isinstance(methods, list) and method not in methods:
        yield f"the metadata announces client authentication by {', '.join(map(str, methods))}, not by {method}"
