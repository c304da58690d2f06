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


def end_sessions(store: LoginStore, accounts: Mapping[str, Account | None]) -> None:
    """End the sessions of users whose password has changed, or who were removed.

    Args:
        store: has the sessions.
        accounts: the accounts as they are now, by the names of those that have changed; None for removed ones.
    """
    fingerprints = {name: None if account is None else account.fingerprint for name, account in accounts.items()}
    ending = Deferred.fromCoroutine(store.delete_sessions_of(fingerprints))
    # The fingerprints alone make the sessions invalid; this removes them from the store.
    ending.addErrback(lambda failure: failure.trap(StoreUnavailableError))
