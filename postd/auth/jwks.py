"""The keys of issuers, fetched and kept (OpenID Connect Discovery 1.0, RFC 8414, RFC 7517; contract 4.4).

Keys that are held serve for as long as the issuer cannot be asked. They are fetched anew before they are old, in the
background; at once when none fits what a token says of its key, but for that no more than once in `UNKNOWN_KEY_S`. A
signature that is wrong for a key that fits causes no fetch. There is one fetch at a time, and whoever needs its result
waits for it.
"""

import math
import random
from contextlib import suppress
from typing import Any

from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - Twisted's
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from postd.caching import RepeatFilter, is_within
from postd.errors import IssuerUnavailableError
from postd.net.fetching import Fetched, Fetcher, FetchError, UnusableError
from postd.protocol.discovery import MetadataError, decode_metadata, freshness_s, metadata_urls
from postd.protocol.jwk import KeySet, KeySetError, SigningKey, decode_key_set
from postd.protocol.jwt import Jwt
from postd.reactor import IReactor

UNKNOWN_KEY_S = 30.0
"""How often at most keys are fetched because of a key that is not among them (contract 4.4)."""

WAIT_MAX_S = 3.0
"""How long a token waits for keys to be fetched."""

RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
"""How long after a failure keys are fetched again, give or take a fifth. It doubles with each; until there were any, it
is `RETRY_FIRST_S` at the most."""

RETRY_FIRST_S = 5.0

DISCOVERY_S = 3600.0
"""How long it is believed where the keys are."""

OLD_S = 86_400.0
"""When keys that could not be fetched anew are so old that the log says so loudly (auth.md, decision 17)."""


class FetchedKeys(Struct, frozen=True):
    """Keys as an issuer has them, where they are, for how many seconds they are fresh, and which document told where
    they are; none did if that was known.
    """

    keys: KeySet
    jwks_uri: str
    fresh_s: float
    metadata_url: str = ""


class KeySource:
    """The keys of one issuer.

    Args:
        issuer: its identifier, a URL.
        fetcher: asks it.
        reactor: the clock.
        jwks_uri: where the keys are; if it is empty, the issuer is asked (OpenID Connect Discovery, then RFC 8414).
    """

    _log = Logger()

    def __init__(self, issuer: str, fetcher: Fetcher, *, reactor: IReactor, jwks_uri: str = "") -> None:
        self._issuer = issuer
        self._fetcher = fetcher
        self._reactor = reactor
        self._given_uri = jwks_uri
        self._found_uri = ""
        self._found_by = ""
        self._found_at = -math.inf
        self._keys: KeySet | None = None
        self._fetched_at = -math.inf
        self._tried_at = -math.inf
        self._unknown_at = -math.inf
        self._failures = 0
        self._told = RepeatFilter()
        self._stopped = False
        self._running: Deferred[None] | None = None
        self._waiting: list[Deferred[None]] = []
        self._next: IDelayedCall | None = None

    def take_over(self, other: "KeySource") -> None:
        """Have the keys that another source of the same issuer has, until there are newer ones."""
        self._keys, self._fetched_at = other._keys, other._fetched_at  # noqa: SLF001 - another one of us

    @property
    def age_s(self) -> float:
        """For how many seconds the keys have been held; 0 if there are none."""
        return 0.0 if self._keys is None else self._reactor.seconds() - self._fetched_at

    @property
    def held(self) -> KeySet | None:
        """The keys there are; another object after each fetch."""
        return self._keys

    def start(self) -> None:
        """Fetch the keys, and keep them fresh from now on. It needs no network: without it, it tries again."""
        self._stopped = False
        self._refresh()

    def stop(self) -> None:
        """Let go of what is under way."""
        self.rest()
        if self._running is not None:
            self._running.cancel()

    def rest(self) -> None:
        """Begin no more; what is under way goes on, for tokens may wait for it."""
        self._stopped = True
        if self._next is not None and self._next.active():
            self._next.cancel()

    async def find(self, jwt: Jwt) -> list[SigningKey]:
        """Return the keys that a token may be signed with; there may be none.

        Raises:
            IssuerUnavailableError: there never were any keys, and there are none now.
        """
        until = self._reactor.seconds() + WAIT_MAX_S
        # Twice: a fetch that is under way may have begun before the issuer had the key.
        for _ in range(2):
            found = self._look_up(jwt)
            if found:
                return found
            if self._running is None:
                if not self._may_ask():
                    break
                self._refresh()
            await self._wait(until)
        if self._keys is None:
            raise IssuerUnavailableError(self._issuer)
        return self._look_up(jwt)

    async def fetch(self) -> FetchedKeys:
        """Ask the issuer for its keys.

        Raises:
            FetchError: they are not to be had.
        """
        uri = self._given_uri or await self._discover()
        fetched = await self._get(uri)
        try:
            keys = decode_key_set(fetched.content)
        except KeySetError as error:
            raise UnusableError(f"{uri}: {error}") from None
        if not keys.keys:  # an issuer that takes its keys away puts others in their place
            raise UnusableError(f"{uri}: no key in it is of use: {keys.tell_left_out() or 'it is empty'}")
        return FetchedKeys(keys, uri, freshness_s(fetched.cache_control, fetched.age), self._found_by)

    async def _discover(self) -> str:
        """Return where the keys are, by the first of the two documents that is there. What was found is believed for
        a while, and for longer where it cannot be found again.
        """
        if is_within(DISCOVERY_S, self._found_at, self._reactor.seconds()):
            return self._found_uri
        openid, oauth = metadata_urls(self._issuer)
        try:
            try:
                self._found_uri, self._found_by = await self._read_metadata(openid), openid
            except UnusableError as first:
                try:
                    self._found_uri, self._found_by = await self._read_metadata(oauth), oauth
                except UnusableError as second:
                    raise UnusableError(f"{first}; {second}") from None
        except FetchError:
            if not self._found_uri:
                raise
        self._found_at = self._reactor.seconds()
        return self._found_uri

    async def _read_metadata(self, url: str) -> str:
        fetched = await self._get(url)
        try:
            return decode_metadata(fetched.content, self._issuer)
        except MetadataError as error:
            raise UnusableError(f"{url}: {error}") from None

    async def _get(self, url: str) -> Fetched:
        try:
            return await self._fetcher.get(url)
        except FetchError as error:
            raise type(error)(f"{url}: {error}") from None

    def _look_up(self, jwt: Jwt) -> list[SigningKey]:
        return self._keys.find(jwt) if self._keys is not None else []

    def _may_ask(self) -> bool:
        """Tell whether a token may cause a fetch now; if so, it is the one that does."""
        now = self._reactor.seconds()
        if self._keys is None:
            return not is_within(RETRY_MIN_S, self._tried_at, now)
        if is_within(UNKNOWN_KEY_S, self._unknown_at, now):
            return False
        self._unknown_at = now
        return True

    async def _wait(self, until: float) -> None:
        """Wait for the fetch that is under way, but not for longer than that."""
        left_s = until - self._reactor.seconds()
        if self._running is None or left_s <= 0:
            return
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        with suppress(TimeoutError):
            await waiting.addTimeout(left_s, self._reactor)

    def _refresh(self) -> None:
        if self._running is not None or self._stopped:
            return
        if self._next is not None and self._next.active():
            self._next.cancel()
        self._running = Deferred.fromCoroutine(self._fetch())
        self._running.addErrback(self._fail_unexpectedly).addBoth(self._finish)

    async def _fetch(self) -> None:
        try:
            fetched = await self.fetch()
        except FetchError as error:
            self._fail(str(error))
        else:
            self._take(fetched)

    def _fail_unexpectedly(self, failure: Failure) -> None:
        if failure.check(CancelledError):
            return  # it was given up
        self._log.failure("bearer {issuer}: keys could not be fetched", failure=failure, issuer=self._issuer)
        self._fail(type(failure.value).__name__)

    def _take(self, fetched: FetchedKeys) -> None:
        self._keys = fetched.keys
        self._fetched_at = self._reactor.seconds()
        self._failures = 0
        # Ahead of age, and not all workers and nodes at the same time.
        self._schedule(fetched.fresh_s * _between(0.8, 0.95))
        number, left_out = len(fetched.keys.keys), len(fetched.keys.left_out)
        more = f", {left_out} left out" if left_out else ""
        self._tell(f"{number} {'key' if number == 1 else 'keys'}{more}", LogLevel.info)

    def _fail(self, why: str) -> None:
        self._failures += 1
        self._found_at = -math.inf  # they may be elsewhere now
        most = RETRY_FIRST_S if self._keys is None else RETRY_MAX_S
        self._schedule(min(RETRY_MIN_S * 2 ** min(self._failures - 1, 10), most) * _between(0.8, 1.2))
        if self._keys is not None and self._reactor.seconds() >= self._fetched_at + OLD_S:
            self._tell(f"its keys are more than {OLD_S / 3600:.0f} h old, and go on to be used: {why}", LogLevel.error)
        else:
            self._tell(f"no keys: {why}" if self._keys is None else f"keys not fetched anew: {why}", LogLevel.warn)

    def _finish(self, _: None) -> None:
        self._running = None
        self._tried_at = self._reactor.seconds()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)

    def _schedule(self, delay_s: float) -> None:
        if not self._stopped:
            self._next = self._reactor.callLater(delay_s, self._refresh)

    def _tell(self, what: str, level: Any) -> None:
        """Tell the log, if it has not just been told the same."""
        if self._told.is_new(what):
            self._log.emit(level, "bearer {issuer}: {what}", issuer=self._issuer, what=what)


def _between(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311 - no secret
