"""Background work of authentication: reload the user file, and remove expired entries from the store."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.auth.password import PasswordVerifier
from postd.auth.user_file import Account
from postd.auth.users import WATCH_INTERVAL_S, UserDirectory
from postd.errors import StoreUnavailableError
from postd.reactor import ServiceClock
from postd.store.interface import LoginStore

PURGE_EVERY_S = 10
"""How often expired sessions, nonces and failures are removed from the store."""

SESSIONS_KEPT_S = 1
"""How long sessions stay in the store after a change of their account, which has made them invalid."""


class Upkeep:
    """The background work.

    Args:
        users: the user file, which is reloaded when it changes.
        verifier: caches right passwords; its cache is cleared then.
        store: keeps sessions, nonces and failures; expired ones are removed.
        clock: the clock of the dates in the store, and the timers.
        reloaded: called each time that the user file has changed.
    """

    _log = Logger()

    def __init__(
        self,
        users: UserDirectory,
        verifier: PasswordVerifier,
        store: LoginStore,
        *,
        clock: ServiceClock,
        reloaded: Callable[[], None] = lambda: None,
    ) -> None:
        self._users = users
        self._verifier = verifier
        self._store = store
        self._clock = clock
        self._reloaded = reloaded
        self._version = users.version
        self._loops: dict[LoopingCall, float] = {LoopingCall(self._purge): PURGE_EVERY_S}
        if users.path:
            self._loops[LoopingCall(self.watch_users)] = WATCH_INTERVAL_S
        for loop in self._loops:
            loop.clock = clock

    def start(self) -> None:
        for loop, every_s in self._loops.items():
            loop.start(every_s, now=False).addErrback(self._log_failure)

    def stop(self) -> None:
        for loop in self._loops:
            if loop.running:
                loop.stop()

    def watch_users(self) -> None:
        """Reload the user file if it has changed, and follow a reload that a request has caused."""
        self._users.refresh()
        if self._users.version != self._version:
            self._version = self._users.version
            self._verifier.clear_cache()
            self._reloaded()

    async def purge_expired(self) -> None:
        """Remove expired entries from the store, and bring the clock up to its dates; without effect if it is away."""
        with suppress(StoreUnavailableError):
            reached = await self._store.purge_expired(now=self._clock.seconds(), wall=time.time())
            self._clock.reach(reached)

    def _purge(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self.purge_expired())

    def _log_failure(self, failure: Failure) -> None:
        self._log.failure("background work of authentication stopped", failure=failure)


def start_deleting_outdated(
    store: LoginStore, clock: ServiceClock, users: UserDirectory, accounts: Mapping[str, Account | None]
) -> None:
    """Start to delete what belonged to former entries and passwords of accounts.

    Fingerprints and entries alone make it worthless; this removes it from the store.

    Args:
        store: has it.
        clock: the timers.
        users: the accounts.
        accounts: those that have changed, None for removed ones.
    """
    deleting = Deferred.fromCoroutine(_delete_outdated(store, clock, users, accounts))
    deleting.addErrback(lambda failure: failure.trap(StoreUnavailableError))


async def _delete_outdated(
    store: LoginStore, clock: ServiceClock, users: UserDirectory, accounts: Mapping[str, Account | None]
) -> None:
    await store.delete_credentials_of({name: None if one is None else one.entry for name, one in accounts.items()})
    # Where users change their password, their session gets the new fingerprint after the file was replaced.
    await deferLater(clock, SESSIONS_KEPT_S)
    await store.delete_sessions_of({name: users.fingerprint(name) for name in accounts})
