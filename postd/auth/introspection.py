"""Token introspection: asks an issuer about tokens (RFC 7662; reference: Bearer)."""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from urllib.parse import quote_plus

from twisted.internet.defer import CancelledError, TimeoutError  # noqa: A004 - Twisted's
from twisted.logger import Logger

from postd.caching import SingleFlight, TTLCache
from postd.errors import IssuerUnavailableError, LoginsBusyError
from postd.fair_queue import Semaphore
from postd.net.fetching import Fetched, Fetcher, FetchError, RepeatFilter, UnusableError
from postd.protocol.host import client_network
from postd.protocol.jwt import AccessToken, Jwt, TokenError, TokenPolicy
from postd.protocol.members import decode_object
from postd.reactor import IReactor

ACCEPTED_TTL_S, REFUSED_TTL_S = 60.0, 5.0
"""How long an answer is cached, in seconds; an accepted token not beyond its expiry."""

CACHE_MAX = 1024
"""How many accepted tokens are cached, and how many refused ones."""

REQUESTS_MAX = 32
"""How many requests to an issuer run at the same time."""

PENDING_MAX = 256
"""How many tokens may be introspected or wait for it, and half as many from one address (IPv6: a /64); further ones
are refused at once."""

WAIT_MAX_S = 3.0
"""How long a token waits for its request to start."""

WARN_INTERVAL_S = 60.0
"""How often the log warns of too many tokens."""

_INACTIVE_ERRORS = ("invalid_token", "unsupported_token_type")
"""Errors (RFC 6749 §5.2, RFC 7009 §2.2.1) that some issuers answer where RFC 7662 §2.2 has `"active": false`."""


class Introspector:
    """Asks an issuer about tokens.

    Args:
        client_id, client_secret: this server's credentials at the issuer; empty for none.
        now: the wall clock, by which tokens expire, in seconds since the epoch.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - a client has as many settings
        self,
        endpoint: str,
        policy: TokenPolicy,
        fetcher: Fetcher,
        *,
        reactor: IReactor,
        client_id: str = "",
        client_secret: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._endpoint = endpoint
        self._policy = policy
        self._fetcher = fetcher
        self._reactor = reactor
        self._now = now
        self._slots = Semaphore(REQUESTS_MAX)
        # Form-encoded before they go into Basic (RFC 6749 §2.3.1).
        self._auth = (quote_plus(client_id), quote_plus(client_secret)) if client_secret else None
        self._form = {"client_id": client_id} if client_id and not client_secret else {}
        self._accepted = TTLCache[bytes, AccessToken](CACHE_MAX)
        self._refused = TTLCache[bytes, tuple[type[TokenError], str]](CACHE_MAX)
        self._running = SingleFlight[bytes, AccessToken]()
        self._by_network = Counter[str]()
        self._warned_at = -math.inf
        self._warnings = RepeatFilter()

    def stop(self) -> None:
        """Cancel all requests that are running or waiting: the issuer counts as unavailable for their tokens."""
        self._running.cancel()

    def cached(self, token: str) -> AccessToken | None:
        """Return a token that was accepted a short time ago."""
        return self._accepted.get(_digest(token), self._reactor.seconds())

    async def introspect(self, token: str, address: str, jwt: Jwt | None = None) -> AccessToken:
        """Return the checked claims of a token that came from an address; `jwt` is the token if it is a JWT.

        Raises:
            TokenError: it is not accepted.
            IssuerUnavailableError: the issuer does not answer.
            LoginsBusyError: too many tokens wait.
        """
        key, now = _digest(token), self._reactor.seconds()
        accepted = self._accepted.get(key, now)
        if accepted is not None:
            return accepted
        refused = self._refused.get(key, now)
        if refused is not None:
            kind, why = refused
            raise kind(why)
        network = client_network(address)
        full = len(self._running) >= PENDING_MAX or self._by_network[network] >= PENDING_MAX // 2
        if full and key not in self._running:
            raise self._too_many()
        return await self._running.run(key, lambda: self._introspect(token, key, network, jwt))

    async def fetch(self, token: str) -> Mapping[str, object]:
        """Return the issuer's answer about a token.

        Raises:
            FetchError: there is none, or it is not valid.
        """
        form = {**self._form, "token": token, "token_type_hint": "access_token"}
        try:
            return _decode(await self._fetcher.post(self._endpoint, form, auth=self._auth))
        except FetchError as error:
            raise error.at(self._endpoint) from None

    async def _introspect(self, token: str, key: bytes, network: str, jwt: Jwt | None) -> AccessToken:
        self._by_network[network] += 1
        try:
            answer = await self._fetch_limited(token)
        except CancelledError:  # by `stop`
            raise IssuerUnavailableError(self._policy.issuer) from None
        finally:
            self._by_network -= Counter({network: 1})  # this drops counts of zero
        now, date = self._reactor.seconds(), self._now()
        try:
            accepted = self._policy.check_introspection(answer, date, jwt)
        except TokenError as error:
            self._refused.put(key, (type(error), str(error)), until=now + REFUSED_TTL_S)
            raise
        self._accepted.put(key, accepted, until=now + min(ACCEPTED_TTL_S, self._policy.ends_at(accepted) - date))
        return accepted

    async def _fetch_limited(self, token: str) -> Mapping[str, object]:
        try:
            await self._slots.acquire().addTimeout(WAIT_MAX_S, self._reactor)
        except TimeoutError:
            raise self._too_many() from None
        try:
            answer = await self.fetch(token)
        except FetchError as error:
            self._warn(str(error))
            raise IssuerUnavailableError(self._policy.issuer, error.retry_after_s) from None
        finally:
            self._slots.release()
        self._warn("")
        return answer

    def _too_many(self) -> LoginsBusyError:
        now = self._reactor.seconds()
        if now >= self._warned_at + WARN_INTERVAL_S:
            self._warned_at = now
            self._log.warn("bearer {issuer}: too many tokens wait for introspection", issuer=self._policy.issuer)
        return LoginsBusyError()

    def _warn(self, why: str) -> None:
        """Log why introspection fails, unless it is the same reason as last time; an empty reason resets that."""
        if self._warnings.is_new(why) and why:
            self._log.warn("bearer {issuer}: {why}", issuer=self._policy.issuer, why=why)


def _digest(token: str) -> bytes:
    """Return the hash under which a token is cached, so that the token itself is not kept in memory."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _decode(fetched: Fetched) -> dict[str, object]:
    answer = decode_object(fetched.content)
    if fetched.status == 400 and answer is not None and answer.get("error") in _INACTIVE_ERRORS:
        return {"active": False}
    if fetched.status != 200:
        raise UnusableError(f"unexpected HTTP status {fetched.status}")
    if answer is None:
        raise UnusableError("the response is not a JSON object")
    return answer
