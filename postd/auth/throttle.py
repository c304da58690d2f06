"""The throttle: a limit on failed login attempts (reference: Throttle).

The throttle counts failed verifications of passwords, Digest responses and opaque tokens, whether or not the user
exists. An attempt is admitted before any comparison, also with a cached password. Beyond the limit no credentials are
verified, so that an attacker learns nothing even from the right password.

The limit holds for concurrent attempts: an attempt is reserved in the store before it is verified, and the reservation
counts like a failure. A reservation is one atomic step for all workers and nodes. A failure replaces the reservation, a
success removes it, and the reservation of a process that dies expires.

A comparison that does not wait needs no reservation as long as this process has no other write of the same keys pending
and the store accepts writes. Until a failure is stored, all further attempts of this process must reserve. So each
process can be ahead of the store by one failure: with W workers and nodes at most `failures` + W - 1 wrong attempts are
verified. This requires that a store executes the writes of a process in order, and that the clocks of nodes differ by
less than `RESERVATION_TTL_S`.

The error of a refusal has a reason for the log once in `NOTE_S` for each key: a client that continues adds no more
lines. The access log has each request of the client.
"""

import math
import secrets
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime

from postd.caching import TTLCache
from postd.errors import StoreBusyError, StoreUnavailableError, TooManyFailuresError
from postd.protocol.host import client_network
from postd.reactor import Work
from postd.store.interface import FailureKeys, Failures, LoginStore, Reservation

RESERVATION_TTL_S = 60
"""How long a reservation counts if its process dies: longer than any attempt waits to be verified."""

WAIT_MAX_S = 3.0
"""How long an attempt waits for pending ones if their failures would reach the limit."""

POLL_INTERVAL_S = 0.25
"""How often a waiting attempt reads the counts again, for changes by other workers and nodes."""

CALM_S, CALM_MAX = 1.0, 1024
"""How long `Throttle.check` remembers that keys have no failures, and how many it remembers."""

NOTE_S = 60
"""The least time between two refusals of a key that have a reason, in seconds."""

NOTED_MAX = 1024
"""How many keys that a reason was given for are remembered, the latest ones."""

WAKE_BATCH = 50
"""How many waiting attempts are resumed in one turn of the reactor."""

_PAIR, _ADDRESS, _ACCOUNT = b"p", b"a", b"u"
"""The kinds of failure keys, their first byte: an account from an address, an address, an account."""

_SETTINGS = {_PAIR: "failures", _ADDRESS: "address_failures", _ACCOUNT: "account_failures"}
"""The settings with the limits."""

_NONE = Failures(0, 0.0)

T = TypeVar("T")


class Attempt(Struct, frozen=True):
    """An admitted login attempt.

    Args:
        keys: the keys it counts for.
        time: when it was admitted, by the throttle's clock.
        had_failures: whether the first key, the account from this address, has failures that still count.
        needs_release: whether `Throttle.release` has to be called if the attempt does not fail; for most it has not.
        reservation: its reservation; without one the caller must compare the credentials without waiting.
    """

    keys: FailureKeys
    time: float
    had_failures: bool
    needs_release: bool
    reservation: Reservation | None = None


@lru_cache(maxsize=4096)
def login_keys(username: str, address: str) -> FailureKeys:
    """Return the keys of an attempt: the account from this address, the address, the account.

    Args:
        username: the account, normalized.
        address: an IP address, or any other text that distinguishes clients; see `client_network`.
    """
    network, account = client_network(address).encode(), username.encode(errors="surrogateescape")
    return _key(_PAIR, network, account), _key(_ADDRESS, network), _key(_ACCOUNT, account)


@lru_cache(maxsize=4096)
def address_keys(address: str) -> FailureKeys:
    """Return the keys of an attempt that names no account: the address, as in `login_keys`."""
    return (_key(_ADDRESS, client_network(address).encode()),)


def _key(kind: bytes, *parts: bytes) -> bytes:
    return kind + blake2b(b"\0".join((kind, *parts)), digest_size=15).digest()


class Throttle:
    """Admits attempts to log in, and counts failed attempts in a store.

    Args:
        store: keeps the counts, for all workers and nodes.
        failures: the limit for one account from one address.
        address_failures: the limit for one address.
        account_failures: the limit for one account.
        window_s: how long each failure counts, in seconds.
        clock: the clock of the dates in the store, and the timers.
    """

    def __init__(  # noqa: PLR0913 - the settings
        self,
        store: LoginStore,
        *,
        failures: int,
        address_failures: int,
        account_failures: int,
        window_s: float,
        clock: IReactorTime,
    ) -> None:
        self._store = store
        self._clock = clock
        self.set_limits(
            failures=failures, address_failures=address_failures, account_failures=account_failures, window_s=window_s
        )
        self._writes = 0  # started and ended, of all keys
        self._last_write_failed = False
        self._pending_writes = Counter[bytes]()
        self._waiting: dict[bytes, dict[Deferred[None], None]] = {}
        # Failures that the store could not take: the expiry and the keys of each, and the expiries by key.
        self._unstored: deque[tuple[float, FailureKeys]] = deque()
        self._unstored_by_key: dict[bytes, deque[float]] = {}
        self._unreleased: list[Reservation] = []
        self._noted = TTLCache[bytes, bool](NOTED_MAX)
        self._calm = TTLCache[FailureKeys, bool](CALM_MAX)

    def set_limits(self, *, failures: int, address_failures: int, account_failures: int, window_s: float) -> None:
        """Change the limits; failures already counted keep their expiry."""
        self._limits = {_PAIR: failures, _ADDRESS: address_failures, _ACCOUNT: account_failures}
        self._window_s = window_s

    async def admit(self, keys: FailureKeys, *, compares_at_once: bool = True) -> Attempt:
        """Admit an attempt, before its credentials are compared.

        Args:
            keys: the keys it counts for.
            compares_at_once: whether the caller compares without waiting in between; if not, the attempt is reserved
                in any case.

        Raises:
            TooManyFailuresError: the limit of a key is reached, or for `WAIT_MAX_S` it would have been if all pending
                attempts had failed.
            StoreUnavailableError: the counts cannot be read.
        """
        started = now = self._clock.seconds()
        if self._unreleased:
            self._retry_releases(now)
        while True:
            writes = self._writes
            counted = await self._store.count_failures(keys, now=now)
            if self._unstored:
                self._drop_expired()
            exhausted = self._exhausted_key(keys, counted) if counted or self._unstored else None
            if exhausted is None:
                had_failures = bool(counted) and keys[0] in counted and counted[keys[0]].count > 0
                is_current = writes == self._writes and not self._last_write_failed
                if compares_at_once and is_current and self._pending_writes.keys().isdisjoint(keys):
                    return Attempt(keys, now, had_failures, had_failures or bool(self._waiting))
                reservation = await self._reserve(keys)
                if isinstance(reservation, Reservation):
                    return Attempt(keys, now, had_failures, True, reservation)  # noqa: FBT003 - a value
                exhausted = self._exhausted_key(keys, reservation)
            if exhausted is not None:
                await self._wait(exhausted, started + WAIT_MAX_S)
            now = self._clock.seconds()

    async def check(self, keys: FailureKeys) -> None:
        """Check that no limit is reached, for an attempt that is known not to fail.

        If the keys have no failures, that is taken to be so for `CALM_S`, unless a failure is recorded here.

        Raises:
            TooManyFailuresError: the limit of a key is reached.
            StoreUnavailableError: the counts cannot be read.
        """
        now = self._clock.seconds()
        if self._calm.get(keys, now):
            return
        counted = await self._store.count_failures(keys, now=now)
        if self._unstored:
            self._drop_expired()
        if counted or self._unstored:
            self._exhausted_key(keys, counted)
        else:
            self._calm.put(keys, True, until=now + CALM_S)  # noqa: FBT003 - a value

    async def reserve(self, attempt: Attempt) -> Attempt:
        """Return an admitted attempt with a reservation, for a comparison that has to wait.

        The reservation is requested before any wait, so it precedes all attempts that this process admits later.

        Raises:
            TooManyFailuresError, StoreUnavailableError: as `admit`.
        """
        if attempt.reservation:
            return attempt
        reservation = await self._reserve(attempt.keys)
        if isinstance(reservation, Reservation):
            return replace(attempt, needs_release=True, reservation=reservation)
        exhausted = self._exhausted_key(attempt.keys, reservation)
        if exhausted is not None:
            await self._wait(exhausted, self._clock.seconds() + WAIT_MAX_S)
        return await self.admit(attempt.keys, compares_at_once=False)

    async def record_failure(self, attempt: Attempt) -> None:
        """Count an attempt as failed, in place of its reservation.

        Raises:
            StoreUnavailableError: the store may not have counted it; this process does.
        """
        self._calm.clear()
        now = self._clock.seconds()
        expires = now + self._window_s
        adding = self._store.add_failure(attempt.keys, now=now, expires=expires, reservation=attempt.reservation)
        try:
            counted = await self._write(attempt.keys, adding)
        except StoreUnavailableError:
            # Otherwise a full disk, on which the store is read-only, would allow unlimited guesses.
            self._unstored.append((expires, attempt.keys))
            for key in attempt.keys:
                self._unstored_by_key.setdefault(key, deque()).append(expires)
            raise
        for key in attempt.keys:
            if counted[key].count >= self._limits[key[:1]]:
                self._wake(key, len(self._waiting.get(key, ())))

    async def release(self, attempt: Attempt, *, reset_failures: bool = False) -> None:
        """Remove the reservation of an attempt that has not failed.

        Args:
            attempt: the attempt.
            reset_failures: whether to reset the failures of its account from its address, because it has logged in
                from there. The counts of the address and of the account stay: otherwise a user could guess others'
                passwords without limit, and an attacker the password of a user that logs in often.
        """
        if attempt.reservation:
            await self._release(attempt.reservation)
        if reset_failures and attempt.had_failures:
            with suppress(StoreUnavailableError):  # the login succeeds nevertheless
                await self._write(attempt.keys, self._store.forget_failures(attempt.keys[0]))
        for key in attempt.keys if self._waiting else ():
            self._wake(key, 1)

    def _exhausted_key(self, keys: FailureKeys, counted: Mapping[bytes, Failures]) -> bytes | None:
        """Return a key whose limit is reached if all pending attempts fail, None if there is none.

        Raises:
            TooManyFailuresError: a key's limit is reached by its failures alone.
        """
        exhausted, reached = None, []
        for key in keys:
            found, limit = counted.get(key, _NONE), self._limits[key[:1]]
            failures = found.count + len(self._unstored_by_key.get(key, ()))
            if failures >= limit:
                reached.append((self._next_expiry(found, key) - self._clock.seconds(), key))
            elif failures + found.reserved >= limit:
                exhausted = key
        if reached:
            wait_s, last = max(reached)
            raise self._refusal(last, max(1, math.ceil(wait_s)), "too many failures")
        return exhausted

    def _refusal(self, key: bytes, retry_after_s: int, why: str) -> TooManyFailuresError:
        now = self._clock.seconds()
        if self._noted.get(key, now):
            return TooManyFailuresError(retry_after_s)
        self._noted.put(key, True, until=now + NOTE_S)  # noqa: FBT003 - a value
        kind = key[:1]
        return TooManyFailuresError(retry_after_s, f"{why} ({_SETTINGS[kind]} = {self._limits[kind]})")

    def _next_expiry(self, found: Failures, key: bytes) -> float:
        unstored = self._unstored_by_key.get(key)
        return min(found.next_expiry if found.count else math.inf, unstored[0] if unstored else math.inf)

    async def _reserve(self, keys: FailureKeys) -> Reservation | Mapping[bytes, Failures]:
        """Return a reservation, or the counts that leave no room for a reservation.

        Raises:
            StoreUnavailableError: the store did not answer, or not before the reservation had expired.
        """
        now = self._clock.seconds()
        reservation = Reservation(secrets.token_hex(8), keys, now + RESERVATION_TTL_S)
        allowed = [self._limits[key[:1]] - len(self._unstored_by_key.get(key, ())) for key in keys]
        try:
            counted = await self._write(keys, self._store.reserve_attempt(reservation, allowed=allowed, now=now))
        except StoreBusyError:
            raise
        except StoreUnavailableError:
            self._unreleased.append(reservation)  # it may have been made
            raise
        if counted is not None:
            return counted
        if self._clock.seconds() >= reservation.expires:
            raise StoreUnavailableError("a reservation had expired when the store confirmed it")
        return reservation

    async def _release(self, reservation: Reservation) -> None:
        try:
            await self._write(reservation.keys, self._store.release_attempt(reservation))
        except StoreUnavailableError:
            self._unreleased.append(reservation)

    def _retry_releases(self, now: float) -> None:
        """Release the reservations whose release had failed: they would count until they expire."""
        unreleased, self._unreleased = self._unreleased, []
        for reservation in unreleased:
            if reservation.expires > now:
                Deferred.fromCoroutine(self._release(reservation))

    async def _write(self, keys: FailureKeys, write: Work[T]) -> T:
        """Await a write, with its keys marked as pending: their counts, if read until then, may be outdated."""
        self._writes += 1
        self._pending_writes.update(keys)
        try:
            result = await write
        except StoreUnavailableError:
            self._last_write_failed = True
            raise
        finally:
            self._writes += 1
            for key in keys:
                self._pending_writes[key] -= 1
                if not self._pending_writes[key]:
                    del self._pending_writes[key]
        self._last_write_failed = False
        return result

    async def _wait(self, key: bytes, deadline: float) -> None:
        """Wait until a key may have room for an attempt.

        Raises:
            TooManyFailuresError: the deadline has passed.
        """
        left_s = deadline - self._clock.seconds()
        if left_s <= 0:
            raise self._refusal(key, 1, "too many attempts in progress")
        waiter: Deferred[None] = Deferred()
        waiting = self._waiting.setdefault(key, {})
        waiting[waiter] = None
        waiter.addTimeout(min(POLL_INTERVAL_S, left_s), self._clock)
        try:
            with suppress(DeferredTimeoutError):
                await waiter
        finally:
            waiting.pop(waiter, None)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]

    def wake_all(self) -> None:
        """Have all waiting attempts read the counts again; with a store that was stopped they end."""
        for waiter in [waiter for waiting in self._waiting.values() for waiter in waiting]:
            if not waiter.called:
                waiter.callback(None)

    def _wake(self, key: bytes, count: int) -> None:
        """Resume the first attempts that wait for a key, in a later turn of the reactor: each may resume more."""
        if count and key in self._waiting:
            self._clock.callLater(0, self._wake_now, key, count)

    def _wake_now(self, key: bytes, count: int) -> None:
        waiting = self._waiting.get(key, {})
        for waiter in list(islice(waiting, min(count, WAKE_BATCH))):
            del waiting[waiter]
            waiter.callback(None)
        self._wake(key, count - WAKE_BATCH if count > WAKE_BATCH else 0)

    def _drop_expired(self) -> None:
        now = self._clock.seconds()
        while self._unstored and self._unstored[0][0] <= now:
            for key in self._unstored.popleft()[1]:
                self._unstored_by_key[key].popleft()
                if not self._unstored_by_key[key]:
                    del self._unstored_by_key[key]
