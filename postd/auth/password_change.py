"""Writes new passwords to the user file while the server runs, as `postd user passwd` does."""

from functools import partial
from pathlib import Path

from twisted.internet.task import deferLater
from twisted.logger import Logger

from postd.auth.password import PasswordVerifier
from postd.auth.user_file import Account, make_account
from postd.auth.user_file_editing import LockedError, edit_user_file, put_password
from postd.auth.users import UserDirectory
from postd.errors import ConfigError, PasswordChangedError, UserFileError
from postd.reactor import ServiceClock

LOCK_WAIT_S = 5.0
"""How long a change waits while another process edits the user file."""

LOCK_RETRY_S = 0.02


class PasswordWriter:
    """Writes new passwords of existing accounts to the user file.

    The file is edited in the threads in which passwords are verified, never in the reactor's; a lock that another
    process holds blocks none of them.

    Args:
        users: the accounts.
        verifier: has the threads, in which clients take turns.
        realm: the realm of the hashes for Digest.
        clock: its timers.
    """

    _log = Logger()

    def __init__(self, users: UserDirectory, verifier: PasswordVerifier, *, realm: str, clock: ServiceClock) -> None:
        self._users = users
        self._verifier = verifier
        self._realm = realm
        self._clock = clock

    async def write(self, name: str, password: str, *, fingerprint: bytes, address: str) -> Account:
        """Write a new password; return the account, which `users` load later.

        Args:
            name: the account.
            password: the new password.
            fingerprint: that of the account for which the change was judged: whose present password was right.
            address: the client's, with which it takes turns.

        Raises:
            ValueError: the password is not allowed; `str()` says why.
            PasswordChangedError: the account has another password by now, or was removed; nothing was written.
            UserFileError: the file cannot be written, which the log has.
            LoginsBusyError: too many passwords wait to be verified or written.
        """
        account = await self._verifier.run(address, partial(make_account, name, password, self._realm))
        edit = partial(_edit, Path(self._users.path), account, fingerprint)
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
            except ConfigError as error:
                raise self._report(error) from None
        self._log.info("user file: {user!r} has a new password", user=name)
        return account

    def _report(self, error: ConfigError) -> UserFileError:
        self._log.error("new password not written: {error}", error=error)
        return UserFileError(str(error))


def _edit(path: Path, account: Account, fingerprint: bytes) -> None:
    def check(present: Account | None) -> None:
        if present is None or present.fingerprint != fingerprint:
            raise PasswordChangedError

    edit_user_file(path, partial(put_password, account=account, check=check), wait=False)
