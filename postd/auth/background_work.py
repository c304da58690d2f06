"""Background work of authentication: reload the user file, and remove expired entries from the store."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
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
        self._loops = {LoopingCall(self.watch_users): WATCH_INTERVAL_S, LoopingCall(self._purge): PURGE_EVERY_S}
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


async def delete_outdated(store: LoginStore, accounts: Mapping[str, Account | None]) -> None:
    """Delete the sessions of users whose password has changed, or who were removed, and the links that reset it; also
    the tokens and passkeys of former entries.

    Fingerprints and entries alone make them worthless; this removes them from the store.

    Args:
        store: has them.
        accounts: the accounts as they are now, by the names of those that have changed; None for removed ones.

    Raises:
        StoreUnavailableError: they may not have been deleted.
    """
    changed = [*accounts.items()]
    await store.delete_sessions_of({name: None if one is None else one.fingerprint for name, one in changed})
    await store.delete_credentials_of({name: None if one is None else one.entry for name, one in changed})


def start_deleting_outdated(store: LoginStore, accounts: Mapping[str, Account | None]) -> None:
    """Start `delete_outdated`."""
    deleting = Deferred.fromCoroutine(delete_outdated(store, accounts))
    deleting.addErrback(lambda failure: failure.trap(StoreUnavailableError))
