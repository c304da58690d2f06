"""Writes new passwords to the user file while the server runs, as `postd user passwd` does."""

from contextlib import suppress
from functools import partial
from math import ceil
from pathlib import Path

from twisted.internet.task import deferLater
from twisted.logger import Logger

from postd.auth.password import PasswordVerifier
from postd.auth.user_file import Account, make_account
from postd.auth.user_file_editing import LockedError, edit_user_file, put_password
from postd.auth.users import UserDirectory
from postd.caching import TTLCache
from postd.errors import ConfigError, PasswordChangedError, StoreUnavailableError, TooManyChangesError, UserFileError
from postd.reactor import ServiceClock
from postd.store.interface import LoginStore

LOCK_WAIT_S = 5.0
"""How long a change waits while another process edits the user file."""

LOCK_RETRY_S = 0.02

CHANGES_MAX, CHANGES_WINDOW_S = 10, 300
"""How many changes of an account a worker makes in this time: after each, all workers read the whole file again."""

_COUNTED_MAX = 1024
"""How many accounts with changes are remembered, the latest ones."""


class PasswordWriter:
    """Writes new passwords of existing accounts to the user file.

    The file is edited in the threads in which passwords are verified, never in the reactor's; a lock that another
    process holds blocks none of them.

    Args:
        users: the accounts.
        verifier: has the threads, in which clients take turns.
        store: has the sessions, tokens and passkeys.
        realm: the realm of the hashes for Digest.
        clock: its timers.
    """

    _log = Logger()

    def __init__(
        self, users: UserDirectory, verifier: PasswordVerifier, store: LoginStore, *, realm: str, clock: ServiceClock
    ) -> None:
        self._users = users
        self._store = store
        self._verifier = verifier
        self._realm = realm
        self._clock = clock
        self._changes = TTLCache[str, tuple[int, float]](_COUNTED_MAX)  # their number, and when they are forgotten

    async def make(self, name: str, password: str, *, address: str) -> Account:
        """Return an account with a new password, to be written; hashing it takes about 15 ms of a thread.

        Args:
            name: the account.
            password: the new password.
            address: the client's, with which it takes turns.

        Raises:
            ValueError: the password is not allowed; `str()` says why.
            LoginsBusyError: too many passwords wait to be verified or written.
        """
        return await self._verifier.run(address, partial(make_account, name, password, self._realm))

    async def write(self, account: Account, *, fingerprint: bytes, address: str, keeps_entry: bool = True) -> None:
        """Write the new password of an account, which `settle` puts in force.

        Args:
            account: as by `make`.
            fingerprint: that of the account for which the change was judged: whose present password was right.
            address: the client's, with which it takes turns.
            keeps_entry: whether tokens and passkeys of the account stay.

        Raises:
            TooManyChangesError: the account has changed its password too often.
            PasswordChangedError: the account has another password by now, or was removed; nothing was written.
            UserFileError: the file cannot be written, which the log has.
            LoginsBusyError: too many passwords wait to be verified or written.
        """
        now = self._clock.seconds()
        changes, until = self._changes.get(account.name, now) or (0, now + CHANGES_WINDOW_S)
        if changes >= CHANGES_MAX:
            raise TooManyChangesError(ceil(until - now))

        def check(present: Account | None) -> None:
            if present is None or present.fingerprint != fingerprint:
                raise PasswordChangedError

        put = partial(put_password, account=account, check=check, keeps_entry=keeps_entry)
        edit = partial(edit_user_file, Path(self._users.path), put, wait=False)
        ends = self._clock.seconds() + LOCK_WAIT_S
        while True:
            try:
                await self._verifier.run(address, edit)
                break
            except LockedError:
                if self._clock.seconds() >= ends:
                    error = ConfigError(self._users.path, "cannot be written: another process keeps its folder locked")
                    raise self._report(error) from None
                await deferLater(self._clock, LOCK_RETRY_S)
            except PasswordChangedError:
                self._users.recheck()
                raise
            except ConfigError as error:
                raise self._report(error) from None
        self._changes.put(account.name, (changes + 1, until), until=until)

    async def settle(self, account: Account) -> None:
        """Load the file again. On return the account's earlier sessions have ended on all workers, and its resets; so
        have its tokens and passkeys unless it has kept its entry.

        If the store does not answer, they end with the next check of the file by each worker.
        """
        self._users.recheck()
        name = account.name
        with suppress(StoreUnavailableError):
            await self._store.delete_sessions_of({name: self._users.fingerprint(name)})
            await self._store.delete_credentials_of({name: self._users.entry(name)})

    def _report(self, error: ConfigError) -> UserFileError:
        self._log.error("new password not written: {error}", error=error)
        return UserFileError(str(error))
