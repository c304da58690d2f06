"""Opaque tokens: the issuer is asked what they say (RFC 7662; auth.md, B30)."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus

import orjson
from twisted.internet.defer import DeferredSemaphore, TimeoutError  # noqa: A004 - Twisted's
from twisted.logger import Logger

from postd.auth.throttle import client_network
from postd.caching import RepeatFilter, SingleFlight, TTLCache, is_within
from postd.errors import IssuerUnavailableError, LoginsBusyError
from postd.net.fetching import Fetched, Fetcher, FetchError, UnusableError
from postd.protocol.jwt import AccessToken, TokenError, TokenPolicy
from postd.reactor import IReactor

ACCEPTED_S, REFUSED_S = 60.0, 5.0
"""For how long it is remembered what an issuer said of a token, in seconds; of a good one not beyond its end."""

REMEMBERED_MAX = 1024
"""How many accepted tokens are remembered, and how many that were refused."""

ASKING_MAX = 32
"""Tokens that an issuer is asked about at the same time."""

WAITING_MAX = 256
"""Tokens that are being asked about, or wait for it; half as many of one address (IPv6: a /64). One more is refused at
once."""

WAIT_MAX_S = 3.0
"""How long a token waits for its turn."""

TELL_EVERY_S = 60.0
"""How often at most the log is told that there are too many."""

_NO_TOKEN = ("invalid_token", "unsupported_token_type")
"""Errors (RFC 6749 §5.2, RFC 7009 §2.2.1) that some issuers answer where RFC 7662 §2.2 has `"active": false`."""


class Introspector:
    """Asks an issuer about tokens.

    Args:
        endpoint: the URL to ask.
        policy: which answers are good.
        fetcher: asks.
        reactor: the clock.
        client_id: our name at the issuer; empty for none.
        client_secret: the password that goes with it; empty for none.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - a client has as many sides
        self,
        endpoint: str,
        policy: TokenPolicy,
        fetcher: Fetcher,
        *,
        reactor: IReactor,
        client_id: str = "",
        client_secret: str = "",
    ) -> None:
        self._endpoint = endpoint
        self._policy = policy
        self._fetcher = fetcher
        self._reactor = reactor
        self._now = reactor.seconds
        self._slots = DeferredSemaphore(ASKING_MAX)
        # Encoded as in a form before they are put into Basic (RFC 6749 §2.3.1).
        self._auth = (quote_plus(client_id), quote_plus(client_secret)) if client_secret else None
        self._form = {"client_id": client_id} if client_id and not client_secret else {}
        self._accepted = TTLCache[bytes, AccessToken](REMEMBERED_MAX)
        self._refused = TTLCache[bytes, tuple[type[TokenError], str]](REMEMBERED_MAX)
        self._asking = SingleFlight[bytes, AccessToken]()
        self._by_network = Counter[str]()
        self._told_many_at = -math.inf
        self._told = RepeatFilter()

    def recall(self, token: str) -> AccessToken | None:
        """Return what a token says that was accepted a short time ago."""
        return self._accepted.get(_digest(token), self._now())

    async def ask(self, token: str, address: str) -> AccessToken:
        """Return what a token says, which came from an address.

        Raises:
            TokenError: it is not good.
            IssuerUnavailableError: the issuer does not answer.
            LoginsBusyError: too many tokens wait.
        """
        key, now = _digest(token), self._now()
        accepted = self._accepted.get(key, now)
        if accepted is not None:
            return accepted
        refused = self._refused.get(key, now)
        if refused is not None:
            kind, why = refused
            raise kind(why)
        network = client_network(address)
        full = len(self._asking) >= WAITING_MAX or self._by_network[network] >= WAITING_MAX // 2
        if full and key not in self._asking:
            raise self._too_many()
        return await self._asking.run(key, lambda: self._ask(token, key, network))

    async def fetch(self, token: str) -> Mapping[str, Any]:
        """Return what the issuer says of a token.

        Raises:
            FetchError: it does not answer as it should.
        """
        form = {**self._form, "token": token, "token_type_hint": "access_token"}
        try:
            return _decode(await self._fetcher.post(self._endpoint, form, auth=self._auth))
        except FetchError as error:
            raise type(error)(f"{self._endpoint}: {error}") from None

    async def _ask(self, token: str, key: bytes, network: str) -> AccessToken:
        self._by_network[network] += 1
        try:
            answer = await self._fetch_in_turn(token)
        finally:
            self._by_network -= Counter({network: 1})  # which drops those that come to nothing
        now = self._now()
        try:
            accepted = self._policy.check_introspection(answer, now)
        except TokenError as error:
            self._refused.put(key, (type(error), str(error)), since=now, until=now + REFUSED_S)
            raise
        until = min(now + ACCEPTED_S, self._policy.ends_at(accepted))
        self._accepted.put(key, accepted, since=now, until=until)
        return accepted

    async def _fetch_in_turn(self, token: str) -> Mapping[str, Any]:
        try:
            await self._slots.acquire().addTimeout(WAIT_MAX_S, self._reactor)
        except TimeoutError:
            raise self._too_many() from None
        try:
            answer = await self.fetch(token)
        except FetchError as error:
            self._tell(str(error))
            raise IssuerUnavailableError(self._policy.issuer) from None
        finally:
            self._slots.release()
        self._tell("")
        return answer

    def _too_many(self) -> LoginsBusyError:
        now = self._now()
        if not is_within(TELL_EVERY_S, self._told_many_at, now):
            self._told_many_at = now
            self._log.warn("bearer {issuer}: too many tokens are to be asked about", issuer=self._policy.issuer)
        return LoginsBusyError()

    def _tell(self, why: str) -> None:
        """Tell the log what is wrong, if it has not just been told the same."""
        if self._told.is_new(why) and why:
            self._log.warn("bearer {issuer}: {why}", issuer=self._policy.issuer, why=why)


def _digest(token: str) -> bytes:
    """Return what stands for a token, which itself is not kept."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _decode(fetched: Fetched) -> dict[str, Any]:
    try:
        answer = orjson.loads(fetched.content)
    except orjson.JSONDecodeError:
        answer = None
    if fetched.status == 400 and isinstance(answer, dict) and answer.get("error") in _NO_TOKEN:
        return {"active": False}
    if fetched.status != 200:
        raise UnusableError(f"it answers {fetched.status}")
    if not isinstance(answer, dict):
        raise UnusableError("its answer is no JSON object")
    return answer
