"""Bearer: access tokens of OpenID Connect providers (RFC 6750, 7519, 8725, 9068; contract 4.4).

For any application of `twisted.cred`, not only this server's:

    issuer = Issuer(TokenPolicy("https://idp.example", frozenset({"https://api.example"})), reactor=reactor)
    portal = Portal(realm, [BearerChecker([issuer])])
    issuer.start()

`postd.web.bearer` and `postd.web.guard` are what stands between it and HTTP.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b

from msgspec import Struct

from postd.auth.checker import Checker, Lasting
from postd.auth.credentials import (
    BearerCredentials,
    IBearerCredentials,
    InsufficientScopeError,
    InvalidTokenError,
    Refused,
    log_refusal,
)
from postd.auth.introspection import Introspector
from postd.auth.jwks import KeySource
from postd.auth.throttle import Throttle, address_keys
from postd.caching import TTLCache
from postd.errors import IssuerUnavailableError, LoginsBusyError
from postd.net.fetching import Fetcher
from postd.protocol.bearer import decode_scope
from postd.protocol.jwk import KeySet
from postd.protocol.jwt import (
    AccessToken,
    ExpiredTokenError,
    Jwt,
    NotJwtError,
    TokenError,
    TokenPolicy,
    decode_jwt,
)
from postd.reactor import IReactor

REMEMBERED_MAX = 4096
"""How many tokens are remembered whose signature was right."""


class Issuer:
    """One whose tokens are accepted.

    Args:
        policy: which of its tokens.
        reactor: the clock, and where it is asked from.
        jwks_uri: where its keys are; if it is empty, it is asked (OpenID Connect Discovery, then RFC 8414).
        ca_file: PEM file of roots to trust beside the platform's, when it is asked; empty for none.
        read_scope, write_scope: the words that a token's scope must have for reading and for writing; empty for none.
        introspection_endpoint: where it tells of opaque tokens (RFC 7662); if it is empty, they are refused.
        client_id, client_secret: who we are there; empty for nobody.

    Raises:
        ConfigError: `ca_file` cannot be used.
        ValueError: a scope is none.

    Its `url` is its identifier, `policy` says which of its tokens are accepted, `keys` has its keys, and `introspector`
    asks it about opaque tokens, if anybody does.
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
        client_id: str = "",
        client_secret: str = "",
    ) -> None:
        self.url = policy.issuer
        self.policy = policy
        self._scopes = tuple((scope, decode_scope(scope)) for scope in (read_scope, write_scope))
        self._now = reactor.seconds
        fetcher = Fetcher(reactor, ca_file=ca_file)
        self.keys = KeySource(policy.issuer, fetcher, reactor=reactor, jwks_uri=jwks_uri)
        self.introspector: Introspector | None = None
        if introspection_endpoint:
            self.introspector = Introspector(
                introspection_endpoint,
                policy,
                fetcher,
                reactor=reactor,
                client_id=client_id,
                client_secret=client_secret,
            )

    def start(self) -> None:
        """Fetch its keys, and keep them fresh."""
        self.keys.start()

    def stop(self) -> None:
        """Let go of what is under way."""
        self.keys.stop()

    def rest(self) -> None:
        """Begin no more: another one of the same issuer takes its place."""
        self.keys.rest()

    @property
    def scopes(self) -> frozenset[str]:
        """All words that a token's scope may need, for one thing or the other."""
        return frozenset[str]().union(*(words for _, words in self._scopes))

    def missing_scope(self, token: AccessToken, *, writing: bool) -> str:
        """Return the scope that would be needed, if that of a token is not enough; nothing, if it is."""
        scope, words = self._scopes[writing]
        return "" if words <= token.scopes else scope

    async def accept(self, jwt: Jwt) -> AccessToken:
        """Return what a token says that claims to be of this issuer.

        Raises:
            TokenError: it is not accepted.
            IssuerUnavailableError: there never were any keys.
        """
        self.policy.check_header(jwt)
        keys = await self.keys.find(jwt)
        if not keys:
            raise TokenError("the issuer has no key that it could be signed with")
        if not any(key.verify(jwt) for key in keys):
            raise TokenError("its signature is wrong")
        return self.policy.check_claims(jwt, self._now())


class _Accepted(Struct, frozen=True):
    """A token that is good, whose it is, and the keys that it was verified with."""

    issuer: Issuer
    token: AccessToken
    keys: KeySet | None = None


class BearerChecker(Checker):
    """Access tokens. An avatar's identifier is `ISSUER#NAME`: issuers may give the same name to different people.

    A token whose signature was right is not verified again as long as the keys are the same, which costs more than all
    the rest. What is remembered is a hash of it and what it says.

    Args:
        issuers: whose tokens are accepted.
        throttle: counts opaque tokens that an issuer refuses, for the address that they come from; None to let them
            be as many as come.
        now: seconds since the epoch.
    """

    credentialInterfaces = (IBearerCredentials,)

    def __init__(
        self, issuers: Sequence[Issuer], *, throttle: Throttle | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._issuers = {issuer.url: issuer for issuer in issuers}
        self._throttle = throttle
        self._now = now
        self._verified = TTLCache[bytes, _Accepted](REMEMBERED_MAX)

    async def check(self, credentials: BearerCredentials) -> bytes:
        """Return `ISSUER#NAME`.

        Raises:
            InvalidTokenError: the token is not accepted.
            InsufficientScopeError: it is, but not for this.
            IssuerUnavailableError: whose token it is cannot be asked, and has to be.
            LoginsBusyError: too many opaque tokens wait.
            TooManyFailuresError: the throttle does not admit an opaque token from this address.
            StoreUnavailableError: the throttle's counts cannot be had.
        """
        return await self._check(credentials, self._throttle)

    async def _check(self, credentials: BearerCredentials, throttle: Throttle | None) -> bytes:
        try:
            accepted = await self._accept(credentials, throttle)
        except TokenError as error:
            refusal = InvalidTokenError(str(error), expired=isinstance(error, ExpiredTokenError))
            raise log_refusal("bearer", refusal, credentials.address) from None
        owner = f"{accepted.issuer.url}#{accepted.token.user}"
        missing = accepted.issuer.missing_scope(accepted.token, writing=credentials.writes)
        if missing:
            raise log_refusal("bearer", InsufficientScopeError(owner, missing), credentials.address)
        return owner.encode()

    def lasting(self, credentials: BearerCredentials, avatar_id: bytes) -> Lasting:  # noqa: ARG002 - `Checker`'s
        async def lives() -> bool:
            try:
                # To ask about a token again that was accepted is no attempt to log in.
                await self._check(credentials, None)
            except Refused:
                return False
            except (IssuerUnavailableError, LoginsBusyError):
                pass  # as long as nobody says that it has ended
            return True

        return lives

    async def _accept(self, credentials: BearerCredentials, throttle: Throttle | None) -> _Accepted:
        now = self._now()
        digest = blake2b(credentials.token.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        known = self._verified.get(digest, now)
        if known is not None and known.issuer.keys.held is known.keys:
            return known
        try:
            jwt = decode_jwt(credentials.token)
        except NotJwtError:
            return await self._introspect(credentials, throttle)
        issuer = self._issuers.get(jwt.issuer)
        if issuer is None:
            raise TokenError("iss is none of the issuers that are trusted")
        try:
            accepted = _Accepted(issuer, await issuer.accept(jwt), issuer.keys.held)
        except TokenError as error:
            raise type(error)(f"{issuer.url}: {error}") from None
        self._verified.put(digest, accepted, since=now, until=issuer.policy.ends_at(accepted.token))
        return accepted

    async def _introspect(self, credentials: BearerCredentials, throttle: Throttle | None) -> _Accepted:
        """Return what an issuer says of an opaque token; count it where all refuse it.

        One that an issuer refuses while another one is unavailable is not counted: it may be the other one's.
        """
        asked = [(issuer, issuer.introspector) for issuer in self._issuers.values() if issuer.introspector is not None]
        if not asked:
            raise TokenError("it is opaque, and no issuer is asked about such")
        if throttle is None:
            return _recall(asked, credentials.token) or await _ask(asked, credentials)
        attempt = await throttle.admit(address_keys(credentials.address))
        accepted = _recall(asked, credentials.token)
        if accepted is None:
            attempt = await throttle.reserve(attempt)
            try:
                accepted = await _ask(asked, credentials)
            except TokenError:
                await throttle.record_failure(attempt)
                raise
            except (IssuerUnavailableError, LoginsBusyError):
                await throttle.release(attempt)
                raise
        await throttle.release(attempt)
        return accepted


_Asked = Sequence[tuple[Issuer, Introspector]]


def _recall(asked: _Asked, token: str) -> _Accepted | None:
    """Return what one of the issuers said of a token a short time ago."""
    for issuer, introspector in asked:
        recalled = introspector.recall(token)
        if recalled is not None:
            return _Accepted(issuer, recalled)
    return None


async def _ask(asked: _Asked, credentials: BearerCredentials) -> _Accepted:
    """Ask the issuers about a token, one after the other: nothing in it tells whose it is."""
    reason: TokenError | None = None
    unavailable: IssuerUnavailableError | LoginsBusyError | None = None
    for issuer, introspector in asked:
        try:
            return _Accepted(issuer, await introspector.ask(credentials.token, credentials.address))
        except ExpiredTokenError as error:
            raise type(error)(f"{issuer.url}: {error}") from None
        except TokenError as error:
            reason = TokenError(f"{issuer.url}: {error}")
        except (IssuerUnavailableError, LoginsBusyError) as error:
            unavailable = error
    refusal = unavailable or reason
    assert refusal is not None
    raise refusal
