"""Fetches and caches the keys of issuers (OpenID Connect Discovery 1.0, RFC 8414, RFC 7517; reference: Bearer).

Keys are refreshed in the background before they are stale, and used on while the issuer is unavailable. A token whose
key is unknown triggers a fetch at once, but at most one in `UNKNOWN_KEY_INTERVAL_S`; a wrong signature of a known key
triggers none. At most one fetch runs at a time, and all tokens that need its result wait for it.
"""

import math
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - Twisted's
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from postd.errors import IssuerUnavailableError
from postd.net.fetching import JSON, Fetched, Fetcher, FetchError, NoDocumentError, RepeatFilter, UnusableError
from postd.protocol.discovery import (
    MetadataError,
    NoMetadataError,
    decode_document,
    endpoint_of,
    freshness_s,
    metadata_urls,
)
from postd.protocol.jwk import KeySet, KeySetError, SigningKey, decode_key_set
from postd.protocol.jwt import Jwt
from postd.reactor import IReactor

UNKNOWN_KEY_INTERVAL_S = 30.0
"""How often unknown keys may trigger a fetch (reference: Bearer)."""

WAIT_MAX_S = 3.0
"""How long a token waits for keys to be fetched."""

RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
"""The first and the longest delay before a failed fetch is retried, ±20 %; it doubles with each failure."""

RETRY_FIRST_MAX_S = 5.0
"""The longest such delay before the first keys were fetched."""

DISCOVERY_TTL_S = 3600.0
"""How long a discovered `jwks_uri` is cached."""

KEY_SET = f"application/jwk-set+json, {JSON}"
"""The media types of key sets (RFC 7517 §8.5.2)."""

STALE_S = 86_400.0
"""The age from which keys that cannot be refreshed are logged as an error (reference: Bearer)."""


class NoKeysError(UnusableError):
    """The issuer publishes no keys: it has no metadata, or metadata without the URL of keys."""


class FetchedKeys(Struct, frozen=True):
    """An issuer's keys, their URL, and for how many seconds they are fresh.

    `metadata_url` is the document with their URL, empty if the settings have the URL; `metadata` is its content.
    """

    keys: KeySet
    jwks_uri: str
    fresh_s: float
    metadata_url: str = ""
    metadata: Mapping[str, object] = {}


class KeySource:
    """The keys of one issuer.

    Args:
        jwks_uri: the URL of the keys; if empty, it is discovered (OpenID Connect Discovery, then RFC 8414).
        optional: whether the issuer may do without keys, because its tokens can be introspected.
        name: of the issuer in the log.

    Attributes:
        current: the cached keys, a new object after each fetch; None before the first one.
        none_published: whether the issuer has responded that it publishes no keys, and may do without.
        metadata: those of the last discovery; empty before the first one.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - all but two have their defaults
        self,
        issuer: str,
        fetcher: Fetcher,
        *,
        reactor: IReactor,
        jwks_uri: str = "",
        optional: bool = False,
        name: str = "",
    ) -> None:
        self._issuer = issuer
        self._name = name or f"bearer {issuer}"
        self._fetcher = fetcher
        self._reactor = reactor
        self._configured_uri = jwks_uri
        self._discovered_uri = ""
        self._metadata_url = ""
        self.metadata: Mapping[str, object] = {}
        self._discovered_at = -math.inf
        self._optional = optional
        self.current: KeySet | None = None
        self.none_published = False
        self._busy_until = -math.inf
        self._fetched_at = -math.inf
        self._last_fetch_ended_at = -math.inf
        self._unknown_key_at = -math.inf
        self._failures = 0
        self._log_lines = RepeatFilter()
        self._stopped = False
        self._running: Deferred[None] | None = None
        self._next: IDelayedCall | None = None

    def copy_keys(self, other: "KeySource") -> None:
        """Use the keys of another source of the same issuer until the first fetch."""
        self.current, self._fetched_at = other.current, other._fetched_at  # noqa: SLF001 - of the same class
        self.none_published = other.none_published and self._optional
        self.metadata = other.metadata

    @property
    def is_ready(self) -> bool:
        """Whether there are keys, or the issuer may do without and has none."""
        return self.current is not None or self.none_published

    @property
    def age_s(self) -> float:
        """The seconds since the keys were fetched; 0 if there are none."""
        return 0.0 if self.current is None else self._reactor.seconds() - self._fetched_at

    def start(self) -> None:
        """Fetch the keys, and refresh them from now on; a fetch that fails is retried."""
        self._stopped = False
        self._refresh()

    def stop(self) -> None:
        """Stop refreshing, and cancel a running fetch."""
        self.stop_refreshing()
        if self._running is not None:
            self._running.cancel()

    def stop_refreshing(self) -> None:
        """Start no more fetches; a running one continues, because tokens may wait for it."""
        self._stopped = True
        if self._next is not None and self._next.active():
            self._next.cancel()

    async def find(self, jwt: Jwt) -> list[SigningKey]:
        """Return the keys that a token may be signed with; there may be none.

        Raises:
            IssuerUnavailableError: no keys could be fetched so far.
        """
        deadline = self._reactor.seconds() + WAIT_MAX_S
        # Twice: a running fetch may have started before the issuer published the key.
        for _ in range(2):
            found = self._look_up(jwt)
            if found:
                return found
            if self._running is None:
                if not self._may_fetch():
                    break
                self._refresh()
            await self._wait(deadline)
        if not self.is_ready:
            raise IssuerUnavailableError(self._issuer, max(self._busy_until - self._reactor.seconds(), 0.0))
        return self._look_up(jwt)

    async def find_metadata(self) -> Mapping[str, object]:
        """Return the issuer's metadata, which are kept while discovery fails.

        Raises:
            IssuerUnavailableError: there are none so far.
        """
        if not self.metadata:
            if self._running is None and self._may_fetch():
                self._refresh()
            await self._wait(self._reactor.seconds() + WAIT_MAX_S)
        if not self.metadata:
            raise IssuerUnavailableError(self._issuer, max(self._busy_until - self._reactor.seconds(), 0.0))
        return self.metadata

    async def fetch(self) -> FetchedKeys:
        """Fetch the keys from the issuer.

        Raises:
            NoKeysError: it has no metadata, or metadata without the URL of keys.
            FetchError: there is no answer, or no usable key in it.
        """
        uri = self._configured_uri or await self._discover()
        fetched = await self._get(uri, KEY_SET)
        try:
            keys = decode_key_set(fetched.content)
        except KeySetError as error:
            raise UnusableError(f"{uri}: {error}") from None
        if not keys.keys:  # a failure, not a revocation: an issuer replaces the keys that it revokes
            raise UnusableError(f"{uri}: it has no usable key: {keys.describe_left_out() or 'it is empty'}")
        fresh_s = freshness_s(fetched.cache_control, fetched.age)
        return FetchedKeys(keys, uri, fresh_s, self._metadata_url, self.metadata)

    async def _discover(self) -> str:
        """Return the URL of the keys from the first of the two metadata documents that is usable.

        It is cached for `DISCOVERY_TTL_S`, and longer while discovery fails.
        """
        if self._reactor.seconds() < self._discovered_at + DISCOVERY_TTL_S:
            return self._discovered_uri
        openid, oauth = metadata_urls(self._issuer)
        try:
            try:
                self._discovered_uri, self._metadata_url = await self._read_metadata(openid), openid
            except UnusableError as first:
                try:
                    self._discovered_uri, self._metadata_url = await self._read_metadata(oauth), oauth
                except UnusableError as second:
                    has_none = isinstance(first, NoDocumentError) and isinstance(second, NoDocumentError)
                    raise (NoKeysError if has_none else UnusableError)(f"{first}; {second}") from None
        except FetchError:
            if not self._discovered_uri:
                raise
        self._discovered_at = self._reactor.seconds()
        return self._discovered_uri

    async def _read_metadata(self, url: str) -> str:
        fetched = await self._get(url, JSON)
        try:
            metadata = decode_document(fetched.content, self._issuer)
            uri = endpoint_of(metadata, "jwks_uri")
        except NoMetadataError as error:
            raise NoDocumentError(f"{url}: {error}") from None
        except MetadataError as error:
            raise UnusableError(f"{url}: {error}") from None
        self.metadata = metadata
        return uri

    async def _get(self, url: str, accept: str) -> Fetched:
        try:
            return await self._fetcher.get(url, accept=accept)
        except FetchError as error:
            raise error.at(url) from None

    def _look_up(self, jwt: Jwt) -> list[SigningKey]:
        return self.current.find(jwt) if self.current is not None else []

    def _may_fetch(self) -> bool:
        """Return whether a token may trigger a fetch now, and count it as triggered."""
        now = self._reactor.seconds()
        if not self.is_ready:
            return now >= max(self._last_fetch_ended_at + RETRY_MIN_S, self._busy_until)
        if now < self._unknown_key_at + UNKNOWN_KEY_INTERVAL_S:
            return False
        self._unknown_key_at = now
        return True

    async def _wait(self, deadline: float) -> None:
        """Wait for the running fetch, at most until a deadline."""
        left_s = deadline - self._reactor.seconds()
        if self._running is None or left_s <= 0:
            return
        waiter: Deferred[None] = Deferred()
        self._running.addBoth(waiter.callback)
        with suppress(TimeoutError):
            await waiter.addTimeout(left_s, self._reactor)

    def _refresh(self) -> None:
        if self._running is not None or self._stopped:
            return
        if self._next is not None and self._next.active():
            self._next.cancel()
        self._running = Deferred.fromCoroutine(self.fetch()).addCallback(self._take)
        self._running.addErrback(self._fetch_failed).addBoth(self._finish)

    def _fetch_failed(self, failure: Failure) -> None:
        match failure.value:
            case NoKeysError() if self._optional:
                self._take_none()
            case FetchError(retry_after_s=seconds) as error:
                self._fail(str(error), seconds)
            case CancelledError():  # by `stop`
                pass
            case error:
                self._log.failure("{name}: keys could not be fetched", failure=failure, name=self._name)
                self._fail(type(error).__name__)

    def _take_none(self) -> None:
        """Note that the issuer publishes no keys; keys that it has published are used on, as after any failure."""
        self.none_published = True
        self._failures = 0
        self._schedule(DISCOVERY_TTL_S * _jitter(0.8, 0.95))
        self._log_once("it publishes no keys: its tokens are only introspected", LogLevel.info)

    def _take(self, fetched: FetchedKeys) -> None:
        self.current = fetched.keys
        self.none_published = False
        self._fetched_at = self._reactor.seconds()
        self._failures = 0
        # Before they are stale, and with jitter, so that workers and nodes do not fetch at the same time.
        self._schedule(fetched.fresh_s * _jitter(0.8, 0.95))
        number, left_out = len(fetched.keys.keys), len(fetched.keys.left_out)
        more = f", {left_out} left out" if left_out else ""
        self._log_once(f"{number} {'key' if number == 1 else 'keys'}{more}", LogLevel.info)

    def _fail(self, why: str, retry_after_s: float = 0.0) -> None:
        self._failures += 1
        self._busy_until = self._reactor.seconds() + retry_after_s
        self._discovered_at = -math.inf  # discover again: the URL may have changed
        longest = RETRY_FIRST_MAX_S if self.current is None else RETRY_MAX_S
        backoff_s = min(RETRY_MIN_S * 2 ** min(self._failures - 1, 10), longest) * _jitter(0.8, 1.2)
        self._schedule(max(backoff_s, retry_after_s * _jitter(1.0, 1.1)))
        if self.current is not None and self._reactor.seconds() >= self._fetched_at + STALE_S:
            self._log_once(f"keys are more than {STALE_S / 3600:.0f} h old and still used: {why}", LogLevel.error)
        else:
            self._log_once(f"no keys: {why}" if self.current is None else f"keys not refreshed: {why}", LogLevel.warn)

    def _finish(self, _: None) -> None:
        self._running = None
        self._last_fetch_ended_at = self._reactor.seconds()

    def _schedule(self, delay_s: float) -> None:
        if not self._stopped:
            self._next = self._reactor.callLater(delay_s, self._refresh)

    def _log_once(self, what: str, level: Any) -> None:
        """Log an event, unless it equals the last logged event."""
        if self._log_lines.is_new(what):
            self._log.emit(level, "{name}: {what}", name=self._name, what=what)


def _jitter(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311 - not a secret
