"""The throttle: a bound on failed logins (contract: `[throttle]`).

Counted are passwords, Digest responses and opaque tokens that were verified and found wrong, whether or not there is
such a user. An attempt is admitted before anything is compared, remembered passwords included; beyond the bound nothing
is verified, so that nothing can be learned, not even from a right password.

The bound holds for attempts that arrive together: an attempt is reserved in the store before it is verified, and counts
like a failure from then on. The reservation is one step for all workers and nodes. A failure takes its place, a success
takes it back, and that of a process that dies expires.

A comparison that waits for nothing needs no reservation as long as no other write of the same keys is under way in this
process, and the store takes writes. Until a failure of it is in the store, all further attempts of this process have to
reserve. Each process can be ahead of the store by one failure in this way: of W workers and nodes at most `failures` +
W - 1 wrong attempts are verified (contract 7). That holds because a store does the writes of a process in their order,
and as long as the clocks of nodes differ by less than `RESERVED_S`.
"""

import ipaddress
import math
import secrets
from collections import Counter, deque
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime

from postd.errors import StoreBusyError, StoreUnavailableError, TooManyFailuresError
from postd.store.interface import FailureKeys, Failures, LoginStore, Reservation

RESERVED_S = 60
"""How long a reservation counts if its process dies: longer than any attempt waits for its turn."""

WAIT_MAX_S = 3.0
"""How long an attempt waits for others that are under way, where the bound has no room for it if they all fail."""

LOOK_EVERY_S = 0.25
"""How often an attempt that waits looks for what other workers and nodes have done."""

WOKEN_AT_ONCE = 50
"""How many attempts that wait go on in one turn of the reactor."""

_PAIR, _ADDRESS, _ACCOUNT = b"p", b"a", b"u"
"""The kinds of keys, which they begin with: an account from an address, an address, an account."""

_NONE = Failures(0, 0.0)

T = TypeVar("T")


class Attempt(Struct, frozen=True):
    """An attempt that was admitted.

    Args:
        keys: what it is counted for.
        had_failures: whether the first of them, the account from this address, has failures that still count.
        reservation: its reservation, None if what is compared must be compared at once.
    """

    keys: FailureKeys
    had_failures: bool
    reservation: Reservation | None = None


@lru_cache(maxsize=4096)
def attempt_of(username: str, address: str) -> FailureKeys:
    """Return what an attempt is counted for: the account from this address, the address, the account.

    Args:
        username: the account, normalized.
        address: an IP address, of which IPv6 counts by its /64, or any other text that tells clients apart.
    """
    place, account = bucket(address).encode(), username.encode(errors="surrogateescape")
    return _key(_PAIR, place, account), _key(_ADDRESS, place), _key(_ACCOUNT, account)


@lru_cache(maxsize=4096)
def attempt_from(address: str) -> FailureKeys:
    """Return what an attempt is counted for that names no account: the address (as for `attempt_of`)."""
    return (_key(_ADDRESS, bucket(address).encode()),)


def bucket(address: str) -> str:
    """Return what an address is counted as: an IPv6 one as its /64, which is what one client has at the least."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped:
            return str(ip.ipv4_mapped)
        return str(ipaddress.IPv6Network((ip, 64), strict=False))
    return str(ip)


def _key(kind: bytes, *parts: bytes) -> bytes:
    return kind + blake2b(b"\0".join((kind, *parts)), digest_size=15).digest()


class Throttle:
    """Admits attempts to log in, and counts those that fail, in a store.

    Args:
        store: keeps the counts, for all workers and nodes.
        failures: how many there may be for one account from one address,
        address_failures: … from one address,
        account_failures: … for one account.
        window_s: for how long each of them counts, in seconds.
        clock: the reactor's.
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
        self.limit(
            failures=failures, address_failures=address_failures, account_failures=account_failures, window_s=window_s
        )
        self._writes = 0  # begun and ended, of all keys
        self._is_refused = False  # the last of them
        self._being_written = Counter[bytes]()
        self._waiting: dict[bytes, dict[Deferred[None], None]] = {}
        # Failures that the store could not note: when each expires, with its keys, and the times of each key.
        self._unnoted: deque[tuple[float, FailureKeys]] = deque()
        self._unnoted_of: dict[bytes, deque[float]] = {}
        self._unreleased: list[Reservation] = []

    def limit(self, *, failures: int, address_failures: int, account_failures: int, window_s: float) -> None:
        """Allow so many failures from now on; those that were noted go on to count for as long as they were to."""
        self._allowed = {_PAIR: failures, _ADDRESS: address_failures, _ACCOUNT: account_failures}
        self._window_s = window_s

    async def admit(self, keys: FailureKeys, *, compares_at_once: bool = True) -> Attempt:
        """Admit an attempt, before anything of it is compared.

        Args:
            keys: what it is counted for.
            compares_at_once: whether the caller waits for nothing between the admission and the comparison. Else the
                attempt is reserved in any case.

        Raises:
            TooManyFailuresError: there are as many failures as the settings allow, or so many attempts were under way
                for `WAIT_MAX_S` that there would be if they failed.
            StoreUnavailableError: the counts cannot be had.
        """
        began = now = self._clock.seconds()
        if self._unreleased:
            self._release_left(now)
        while True:
            writes = self._writes
            counted = await self._store.count_failures(keys, now=now)
            if self._unnoted:
                self._forget_expired()
            full = self._full_key(keys, counted) if counted or self._unnoted else None
            if full is None:
                had_failures = keys[0] in counted and counted[keys[0]].count > 0
                is_known = writes == self._writes and not self._is_refused
                if compares_at_once and is_known and not (self._being_written and self._is_written(keys)):
                    return Attempt(keys, had_failures)
                reservation = await self._reserve(keys)
                if isinstance(reservation, Reservation):
                    return Attempt(keys, had_failures, reservation)
                full = self._full_key(keys, reservation)
            if full is not None:
                await self._wait(full, began + WAIT_MAX_S)
            now = self._clock.seconds()

    async def reserve(self, attempt: Attempt) -> Attempt:
        """Return an admitted attempt with a reservation, for a comparison that has to wait.

        The reservation is asked for before anything is waited for: whatever this process admits from now on, comes
        after it.

        Raises:
            TooManyFailuresError, StoreUnavailableError: as `admit`.
        """
        if attempt.reservation:
            return attempt
        reservation = await self._reserve(attempt.keys)
        if isinstance(reservation, Reservation):
            return replace(attempt, reservation=reservation)
        full = self._full_key(attempt.keys, reservation)
        if full is not None:
            await self._wait(full, self._clock.seconds() + WAIT_MAX_S)
        return await self.admit(attempt.keys, compares_at_once=False)

    async def fail(self, attempt: Attempt) -> None:
        """Count an attempt as failed, in the place of its reservation.

        Raises:
            StoreUnavailableError: the store may not have noted it; this process counts it.
        """
        now = self._clock.seconds()
        expires = now + self._window_s
        noting = self._store.add_failure(attempt.keys, now=now, expires=expires, reservation=attempt.reservation)
        try:
            counted = await self._write(attempt.keys, noting)
        except StoreUnavailableError:
            # A store that can only be read, its disk being full, is no invitation to guess.
            self._unnoted.append((expires, attempt.keys))
            for key in attempt.keys:
                self._unnoted_of.setdefault(key, deque()).append(expires)
            raise
        for key in attempt.keys:
            if counted[key].count >= self._allowed[key[:1]]:
                self._wake(key, len(self._waiting.get(key, ())))

    def is_over(self, attempt: Attempt) -> bool:
        """Tell whether there is nothing to release of an attempt that has succeeded, as of most."""
        return attempt.reservation is None and not attempt.had_failures and not self._waiting

    async def release(self, attempt: Attempt, *, forget: bool = False) -> None:
        """Take the reservation of an attempt back that has not failed.

        Args:
            attempt: it.
            forget: whether the failures of its account from its address are forgotten, too, because it has logged in
                from there. Those of the address and of the account stay: else the owner of one account could go on at
                others' for ever, and a stranger at one whose owner logs in often.
        """
        if attempt.reservation:
            await self._release(attempt.reservation)
        if forget and attempt.had_failures:
            with suppress(StoreUnavailableError):  # that is no reason to keep the owner out
                await self._write(attempt.keys, self._store.forget_failures(attempt.keys[0]))
        for key in attempt.keys if self._waiting else ():
            self._wake(key, 1)

    def _full_key(self, keys: FailureKeys, counted: Mapping[bytes, Failures]) -> bytes | None:
        """Return a key that has no room for an attempt if all those fail that are under way, None if all have.

        Raises:
            TooManyFailuresError: a key has no room whatever they do.
        """
        full, waits = None, []
        for key in keys:
            found, allowed = counted.get(key, _NONE), self._allowed[key[:1]]
            failures = found.count + len(self._unnoted_of.get(key, ()))
            if failures >= allowed:
                waits.append(self._next_expiry(found, key) - self._clock.seconds())
            elif failures + found.reserved >= allowed:
                full = key
        if waits:
            raise TooManyFailuresError(max(1, math.ceil(max(waits))))
        return full

    def _next_expiry(self, found: Failures, key: bytes) -> float:
        unnoted = self._unnoted_of.get(key)
        return min(found.next_expiry if found.count else math.inf, unnoted[0] if unnoted else math.inf)

    async def _reserve(self, keys: FailureKeys) -> Reservation | Mapping[bytes, Failures]:
        """Return a reservation; what counts where there is no room for one.

        Raises:
            StoreUnavailableError: the store does not answer, or has done so when the reservation had expired.
        """
        now = self._clock.seconds()
        reservation = Reservation(secrets.token_hex(8), keys, now + RESERVED_S)
        allowed = [self._allowed[key[:1]] - len(self._unnoted_of.get(key, ())) for key in keys]
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
            raise StoreUnavailableError("a reservation came too late")
        return reservation

    async def _release(self, reservation: Reservation) -> None:
        try:
            await self._write(reservation.keys, self._store.release_attempt(reservation))
        except StoreUnavailableError:
            self._unreleased.append(reservation)

    def _release_left(self, now: float) -> None:
        """Take back what could not be taken back before: it would keep its owner out until it expires."""
        left, self._unreleased = self._unreleased, []
        for reservation in left:
            if reservation.expires > now:
                Deferred.fromCoroutine(self._release(reservation))

    async def _write(self, keys: FailureKeys, write: Coroutine[Any, Any, T]) -> T:
        with self._writing(keys):
            try:
                result = await write
            except StoreUnavailableError:
                self._is_refused = True
                raise
            self._is_refused = False
            return result

    @contextmanager
    def _writing(self, keys: FailureKeys) -> Iterator[None]:
        """Note that what the store says of these keys may change."""
        self._writes += 1
        self._being_written.update(keys)
        try:
            yield
        finally:
            self._writes += 1
            for key in keys:
                self._being_written[key] -= 1
                if not self._being_written[key]:
                    del self._being_written[key]

    def _is_written(self, keys: FailureKeys) -> bool:
        return any(key in self._being_written for key in keys)

    async def _wait(self, key: bytes, give_up_at: float) -> None:
        """Wait until a key may have room for an attempt.

        Raises:
            TooManyFailuresError: the time is up.
        """
        left_s = give_up_at - self._clock.seconds()
        if left_s <= 0:
            raise TooManyFailuresError(1)
        turn: Deferred[None] = Deferred()
        waiting = self._waiting.setdefault(key, {})
        waiting[turn] = None
        turn.addTimeout(min(LOOK_EVERY_S, left_s), self._clock)
        try:
            with suppress(DeferredTimeoutError):
                await turn
        finally:
            waiting.pop(turn, None)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]

    def _wake(self, key: bytes, count: int) -> None:
        """Let the first of those that wait for a key look again, in a later turn: each may wake others in its own."""
        if count and key in self._waiting:
            self._clock.callLater(0, self._wake_now, key, count)

    def _wake_now(self, key: bytes, count: int) -> None:
        waiting = self._waiting.get(key, {})
        for turn in list(islice(waiting, min(count, WOKEN_AT_ONCE))):
            del waiting[turn]
            turn.callback(None)
        self._wake(key, count - WOKEN_AT_ONCE if count > WOKEN_AT_ONCE else 0)

    def _forget_expired(self) -> None:
        now = self._clock.seconds()
        while self._unnoted and self._unnoted[0][0] <= now:
            for key in self._unnoted.popleft()[1]:
                self._unnoted_of[key].popleft()
                if not self._unnoted_of[key]:
                    del self._unnoted_of[key]
