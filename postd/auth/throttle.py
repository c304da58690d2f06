"""Failed logins are counted; who has too many of them has to wait (contract: `[throttle]`).

Counted are passwords and Digest responses that were verified and found wrong, for users that there are and for others
alike. Nothing is verified while there are too many, so that nothing can be learned, not even from a right password.
"""

import ipaddress
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b

from postd.errors import StoreUnavailableError, TooManyFailuresError
from postd.store.interface import FailureKeys, Failures, LoginStore


@lru_cache(maxsize=4096)
def attempt_of(username: str, address: str) -> FailureKeys:
    """Return what an attempt is counted for: the account from this address, the address, the account.

    Args:
        username: the account, normalized.
        address: an IP address, of which IPv6 counts by its /64, or any other text that tells clients apart.
    """
    place, account = bucket(address).encode(), username.encode(errors="surrogateescape")
    return _key(b"pair", place, account), _key(b"address", place), _key(b"account", account)


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
    return blake2b(b"\0".join((kind, *parts)), digest_size=16).digest()


class Throttle:
    """Counts failed logins in a store.

    Args:
        store: keeps the counts, for all workers.
        failures: how many there may be for one account from one address,
        address_failures: … from one address,
        account_failures: … for one account.
        window_s: for how long each of them counts, in seconds.
        now: the clock, in seconds since the epoch.
    """

    def __init__(  # noqa: PLR0913 - the settings
        self,
        store: LoginStore,
        *,
        failures: int,
        address_failures: int,
        account_failures: int,
        window_s: float,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._now = now
        self.limit(
            failures=failures, address_failures=address_failures, account_failures=account_failures, window_s=window_s
        )
        self._under_way: Counter[bytes] = Counter()
        self._unnoted: deque[tuple[float, FailureKeys]] = deque()

    def limit(self, *, failures: int, address_failures: int, account_failures: int, window_s: float) -> None:
        """Allow so many failures from now on; those that were noted go on to count for as long as they were to."""
        self._allowed = (failures, address_failures, account_failures)
        self._window_s = window_s

    async def check(self, attempt: FailureKeys) -> bool:
        """Let an attempt pass; return whether this account has failures from this address that still count.

        Raises:
            TooManyFailuresError: there are as many as the settings allow.
            StoreUnavailableError: nobody knows.
        """
        now = self._now()
        counted = await self._store.count_failures(attempt, now=now)
        while self._unnoted and self._unnoted[0][0] <= now:
            self._end(self._unnoted.popleft()[1])
        if not counted and not self._under_way:
            return False
        self._refuse_from(attempt, counted, self._under_way)
        return attempt[0] in counted

    async def note_failure(self, attempt: FailureKeys) -> None:
        """Count a failed attempt.

        Raises:
            TooManyFailuresError: others were quicker: there were as many as allowed before this one was noted.
            StoreUnavailableError: it may not have been noted.
        """
        # Of many at once, those behind the last that may fail are answered alike, and are not counted: they would use
        # up what others at this address have left, and the account's owner elsewhere.
        await self.check(attempt)
        now = self._now()
        self._under_way.update(attempt)  # from this moment on, in this process
        try:
            counted = await self._store.add_failure(attempt, now=now, expires=now + self._window_s)
        except StoreUnavailableError:
            # A store that can only be read, its disk being full, is no invitation to guess.
            self._unnoted.append((now + self._window_s, attempt))
            raise
        self._end(attempt)
        self._refuse_from(attempt, counted, {}, own=1)

    async def forget(self, attempt: FailureKeys) -> None:
        """Forget the failures of an account from an address, once it has logged in from there.

        Those of the address and of the account stay: else who has one account could go on at others' for ever, and a
        stranger at one whose owner logs in often.
        """
        with suppress(StoreUnavailableError):  # that is no reason to keep anybody out
            await self._store.forget_failures(attempt[0])

    def _end(self, attempt: FailureKeys) -> None:
        self._under_way.subtract(attempt)
        self._under_way += Counter()  # drops those at zero

    def _refuse_from(
        self, attempt: FailureKeys, counted: Mapping[bytes, Failures], under_way: Mapping[bytes, int], *, own: int = 0
    ) -> None:
        """Refuse an attempt for which there are too many failures without its own."""
        now = self._now()
        waits = []
        for key, allowed in zip(attempt, self._allowed, strict=True):
            found = counted.get(key, Failures(0, now + self._window_s))
            if found.count - own + under_way.get(key, 0) >= allowed:
                waits.append(found.next_expiry - now)
        if waits:
            raise TooManyFailuresError(max(1, math.ceil(max(waits))))
