"""Checks access tokens of OpenID Connect providers (RFC 6750, 7519, 8725, 9068, 9449, 8705; reference: Bearer).

For any application of `twisted.cred`, not only this server's:

    issuer = Issuer(TokenPolicy("https://idp.example", frozenset({"https://api.example"})), reactor=reactor)
    portal = Portal(realm, [BearerChecker([issuer])])
    issuer.start()

`postd.protect.bearer` and `postd.protect.guard` connect it to HTTP.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b

from msgspec import Struct

from postd.auth.checker import Checker
from postd.auth.credentials import (
    BearerCredentials,
    IBearerCredentials,
    InsufficientScopeError,
    InvalidProofError,
    InvalidTokenError,
    Refused,
    log_refusal,
    log_throttled,
)
from postd.auth.identity import Identity
from postd.auth.introspection import Introspector
from postd.auth.jwks import KeySource
from postd.auth.throttle import Throttle, address_keys
from postd.caching import TTLCache
from postd.credential_files import read_first_line
from postd.errors import ConfigError, IssuerUnavailableError, LoginsBusyError, TooManyFailuresError
from postd.net.fetching import Fetcher
from postd.protocol.bearer import decode_scope
from postd.protocol.certificate import certificate_thumbprint
from postd.protocol.dpop import Proof, ProofError, decode_proof
from postd.protocol.jwk import KeySet
from postd.protocol.jwt import (
    AccessToken,
    EncryptedError,
    ExpiredTokenError,
    Introspected,
    Jwt,
    NotJwtError,
    TokenError,
    TokenPolicy,
    decode_jwt,
    hint_at,
)
from postd.protocol.personal_token import has_prefix
from postd.reactor import IReactor
from postd.store.interface import LoginStore

CACHE_MAX = 4096
"""How many verified tokens are cached."""


def read_secret(file: str) -> str:
    """Return the first line of a file with a `client_secret`, empty if no file is named.

    Raises:
        ConfigError: it cannot be read, or its first line is empty.
    """
    if not file:
        return ""
    try:
        secret = read_first_line(file)
    except OSError as error:
        raise ConfigError("client_secret_file", f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise ConfigError("client_secret_file", f"{file}: has no text in its first line")
    return secret


class Issuer:
    """A trusted issuer of access tokens.

    Args:
        jwks_uri: the URL of its keys; if empty, it is discovered (OpenID Connect Discovery, then RFC 8414).
        ca_file: a PEM file of root certificates to trust beside the platform's; empty for none.
        read_scope, write_scope: the scopes that a token needs for reading and for writing, separated by spaces.
        introspection_endpoint: the URL for opaque tokens (RFC 7662); if empty, they are refused.
        introspect: "all" sends JWTs there, too, and needs no keys.
        client_id, client_secret: this server's credentials at the introspection endpoint; empty for none.
        now: the wall clock, by which tokens expire, in seconds since the epoch.

    Attributes:
        url: its identifier.
        keys: the source of its keys.
        introspector: for opaque tokens, None without an `introspection_endpoint`.
        verifies: whether JWTs are verified with its keys; otherwise they are introspected.

    Raises:
        ConfigError: `ca_file` cannot be used.
        ValueError: a scope is malformed.
    """

    def __init__(  # noqa: PLR0913 - all but two have their defaults
        self,
        policy: TokenPolicy,
        *,
        reactor: IReactor,
        jwks_uri: str = "",
        ca_file: str = "",
        read_scope: str = "",
        write_scope: str = "",
        introspection_endpoint: str = "",
        introspect: Introspected = "opaque",
        client_id: str = "",
        client_secret: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.url = policy.issuer
        self.policy = policy
        self._scopes = tuple((scope, decode_scope(scope)) for scope in (read_scope, write_scope))
        self._now = now
        self.verifies = introspect != "all"
        fetcher = Fetcher(reactor, ca_file=ca_file, now=now)
        may_lack_keys = bool(introspection_endpoint) and not jwks_uri
        self.keys = KeySource(policy.issuer, fetcher, reactor=reactor, jwks_uri=jwks_uri, optional=may_lack_keys)
        self.introspector: Introspector | None = None
        if introspection_endpoint:
            self.introspector = Introspector(
                introspection_endpoint,
                policy,
                fetcher,
                reactor=reactor,
                client_id=client_id,
                client_secret=client_secret,
                now=now,
            )

    def start(self) -> None:
        """Fetch its keys, and refresh them from now on, if JWTs are verified with them."""
        if self.verifies:
            self.keys.start()

    @property
    def is_ready(self) -> bool:
        """Whether tokens can be checked: the keys are there, or not needed."""
        return not self.verifies or self.keys.is_ready

    def stop(self) -> None:
        """Stop refreshing, and cancel running fetches."""
        self.keys.stop()
        if self.introspector is not None:
            self.introspector.stop()

    def stop_refreshing(self) -> None:
        """Stop refreshing the keys, because another object of the same issuer replaces this one."""
        self.keys.stop_refreshing()

    def scope(self, *, writing: bool) -> str:
        """Return the scope that a token needs where a resource has none of its own."""
        return self._scopes[writing][0]

    def missing_scope(self, token: AccessToken, *, writing: bool, scope: str = "") -> str:
        """Return the required scope if the token lacks it, otherwise an empty string.

        `scope`, if not empty, is required in place of the issuer's.
        """
        scope, words = (scope, decode_scope(scope)) if scope else self._scopes[writing]
        return "" if words <= token.scopes else scope

    async def accept(self, jwt: Jwt) -> AccessToken:
        """Verify a JWT whose `iss` is this issuer, and return its checked claims.

        Raises:
            TokenError: it is not accepted.
            IssuerUnavailableError: no keys could be fetched so far.
        """
        self.policy.check_header(jwt)
        keys = await self.keys.find(jwt)
        if not keys:
            none = "the issuer publishes no keys, and its JWTs are not introspected (introspect)"
            raise TokenError(none if self.keys.current is None else "no key of the issuer matches the token")
        if not any(key.verify(jwt) for key in keys):
            raise TokenError("its signature is wrong")
        return self.policy.check_claims(jwt, self._now())


class _Accepted(Struct, frozen=True):
    """An accepted token, its issuer, and the keys that it was verified with, None if it is opaque."""

    issuer: Issuer
    token: AccessToken
    keys: KeySet | None = None

    @property
    def owner(self) -> str:
        """The account of its owner."""
        return f"{self.issuer.url}#{self.token.user}"


class BearerChecker(Checker):
    """Access tokens. The account of an owner is `ISSUER#NAME`: issuers may give the same name to different people.

    A verified token is cached, by its hash, as long as the issuer's keys stay the same: verifying a signature costs
    more than the rest of the check.

    Args:
        throttle: limits refused opaque tokens by address; None for no limit.
        store: keeps which proofs were used; needed where an issuer's tokens may be bound by DPoP.
        now: the wall clock, by which tokens and proofs expire, in seconds since the epoch.

    Raises:
        ValueError: a store is needed.
    """

    credentialInterfaces = (IBearerCredentials,)

    def __init__(
        self,
        issuers: Sequence[Issuer],
        *,
        throttle: Throttle | None = None,
        store: LoginStore | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if store is None and any(issuer.policy.dpop != "refuse" for issuer in issuers):
            raise ValueError("DPoP needs a store of used proofs")
        self._issuers = {issuer.url: issuer for issuer in issuers}
        self._throttle = throttle
        self._store = store
        self._now = now
        self._verified = TTLCache[bytes, _Accepted](CACHE_MAX)

    async def check(self, credentials: BearerCredentials) -> Identity:
        """Return the owner of the token.

        Raises:
            InvalidTokenError: the token is not accepted.
            InvalidProofError: its proof is not accepted (RFC 9449 §4.3).
            InsufficientScopeError: it is accepted, but lacks the scope.
            IssuerUnavailableError: the issuer does not answer, and its keys or its introspection are needed.
            LoginsBusyError: too many opaque tokens wait for introspection.
            TooManyFailuresError: the throttle does not admit an opaque token from this address.
            StoreUnavailableError: the throttle's counts or the used proofs cannot be read.
        """
        accepted = await self._check(credentials, self._throttle, bound=not credentials.is_proven)
        token = accepted.token
        revalidate = partial(self._is_accepted, credentials)
        return Identity(
            accepted.owner, credentials.scheme, accepted.issuer.url, token.scopes, revalidate, token.claims_json
        )

    async def _check(self, credentials: BearerCredentials, throttle: Throttle | None, *, bound: bool) -> _Accepted:
        """Check the token, its scope, and if `bound` the proof or the certificate that it is bound to."""
        refusal: Refused
        try:
            # Before the token: no token with a malformed proof is introspected.
            proof = None if credentials.proof is None else decode_proof(credentials.proof.text)
            accepted = await self._accept(credentials, throttle)
            if bound:
                await self._check_binding(accepted, credentials, proof)
        except TokenError as error:
            refusal = InvalidTokenError(str(error), expired=isinstance(error, ExpiredTokenError))
            raise log_refusal(credentials.scheme, refusal, credentials.address) from None
        except ProofError as error:
            refusal = InvalidProofError(f"the proof: {error}")
            raise log_refusal(credentials.scheme, refusal, credentials.address) from None
        except TooManyFailuresError as error:
            raise log_throttled(credentials.scheme, error, credentials.address) from None
        missing = accepted.issuer.missing_scope(accepted.token, writing=credentials.writes, scope=credentials.scope)
        if missing:
            refusal = InsufficientScopeError(accepted.owner, missing)
            raise log_refusal(credentials.scheme, refusal, credentials.address)
        return accepted

    async def _check_binding(self, accepted: _Accepted, credentials: BearerCredentials, proof: Proof | None) -> None:
        """Check that the client has the key and the certificate that a token is bound to, if any.

        Raises:
            TokenError: it came by the wrong scheme, or the client has another certificate or none.
            ProofError: the proof is not accepted, or was used before.
        """
        token = accepted.token
        if token.certificate_thumbprint:
            shown = credentials.certificate()
            if shown is None or certificate_thumbprint(shown) != token.certificate_thumbprint:
                raise TokenError("it is bound to a client certificate that this client has not presented")
        if proof is None or credentials.proof is None:
            if token.key_thumbprint:
                raise TokenError("it is bound to a key (cnf), and was sent as a bearer token")
            return
        if not token.key_thumbprint:
            raise TokenError("it is not bound to a key, and was sent with a proof")
        ends_at = proof.check(
            method=credentials.proof.method,
            url=credentials.proof.url,
            token=credentials.token,
            bound_to=token.key_thumbprint,
            now=self._now(),
            leeway_s=accepted.issuer.policy.leeway_s,
        )
        assert self._store is not None
        if not await self._store.use_proof(proof.id, expires=ends_at):
            raise ProofError("its jti was used before, or may have been")

    async def _is_accepted(self, credentials: BearerCredentials) -> bool:
        try:
            # Not throttled: revalidating an accepted token is not a login attempt.
            await self._check(credentials, None, bound=False)
        except Refused:
            return False
        except (IssuerUnavailableError, LoginsBusyError):
            pass  # unknown: valid until an issuer reports that it has ended
        return True

    async def _accept(self, credentials: BearerCredentials, throttle: Throttle | None) -> _Accepted:
        now = self._now()
        digest = blake2b(credentials.token.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        cached = self._verified.get(digest, now)
        if cached is not None and cached.issuer.keys.current is cached.keys:
            return cached
        try:
            jwt = decode_jwt(credentials.token)
        except NotJwtError:
            return await self._introspect(credentials, throttle, self._issuers.values())
        except EncryptedError:
            unread = [issuer for issuer in self._issuers.values() if not issuer.verifies]
            if not unread:
                raise
            return await self._introspect(credentials, throttle, unread)
        issuer = self._issuers.get(jwt.issuer)
        if issuer is None:
            raise TokenError(f"iss is not a trusted issuer{hint_at(self._issuers, [jwt.issuer])}")
        if not issuer.verifies:
            return await self._introspect(credentials, throttle, [issuer], jwt)
        try:
            accepted = _Accepted(issuer, await issuer.accept(jwt), issuer.keys.current)
        except TokenError as error:
            raise type(error)(f"{issuer.url}: {error}") from None
        self._verified.put(digest, accepted, until=issuer.policy.ends_at(accepted.token))
        return accepted

    async def _introspect(
        self,
        credentials: BearerCredentials,
        throttle: Throttle | None,
        issuers: Iterable[Issuer],
        jwt: Jwt | None = None,
    ) -> _Accepted:
        """Introspect a token at issuers that may have issued it; count a failure if all refuse it.

        No failure is counted if an issuer is unavailable, because the token may be from that issuer.
        """
        introspectors = [(issuer, issuer.introspector) for issuer in issuers if issuer.introspector is not None]
        if has_prefix(credentials.token):
            raise TokenError("it is a personal access token, which this resource does not accept so")
        if not introspectors:
            raise TokenError("it is opaque, and no issuer has an introspection_endpoint")
        if throttle is None:
            return _cached(introspectors, credentials.token) or await _introspect(introspectors, credentials, jwt)
        attempt = await throttle.admit(address_keys(credentials.address))
        accepted = _cached(introspectors, credentials.token)
        if accepted is None:
            attempt = await throttle.reserve(attempt)
            try:
                accepted = await _introspect(introspectors, credentials, jwt)
            except TokenError:
                await throttle.record_failure(attempt)
                raise
            except (IssuerUnavailableError, LoginsBusyError):
                await throttle.release(attempt)
                raise
        await throttle.release(attempt)
        return accepted


_Introspectors = Sequence[tuple[Issuer, Introspector]]


def _cached(introspectors: _Introspectors, token: str) -> _Accepted | None:
    """Return a token that an issuer accepted a short time ago."""
    for issuer, introspector in introspectors:
        cached = introspector.cached(token)
        if cached is not None:
            return _Accepted(issuer, cached)
    return None


async def _introspect(introspectors: _Introspectors, credentials: BearerCredentials, jwt: Jwt | None) -> _Accepted:
    """Ask the issuers about a token, one after the other: an opaque token does not name its issuer."""
    reason: TokenError | None = None
    unavailable: IssuerUnavailableError | LoginsBusyError | None = None
    for issuer, introspector in introspectors:
        try:
            if jwt is not None:
                issuer.policy.check_type(jwt)
            return _Accepted(issuer, await introspector.introspect(credentials.token, credentials.address, jwt))
        except ExpiredTokenError as error:
            raise type(error)(f"{issuer.url}: {error}") from None
        except TokenError as error:
            reason = TokenError(f"{issuer.url}: {error}")
        except (IssuerUnavailableError, LoginsBusyError) as error:
            unavailable = error
    refusal = unavailable or reason
    assert refusal is not None
    raise refusal
