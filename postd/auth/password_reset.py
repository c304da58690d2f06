"""Links by which users set a new password without the present one (`postd user reset`)."""

import hashlib
import secrets
from collections.abc import Callable

from twisted.logger import Logger

from postd.auth.credentials import Refused, log_refusal, log_throttled
from postd.auth.password_change import PasswordWriter
from postd.auth.throttle import Throttle, address_keys
from postd.auth.users import UserDirectory
from postd.errors import LoginsBusyError, PasswordChangedError, TooManyChangesError, TooManyFailuresError, UserFileError
from postd.protocol.password_reset import PasswordReset
from postd.store.interface import LoginStore

LIFETIME_S = 3600
"""How long a link is good."""

PAGE = "login/reset"
"""The path of the page that links lead to, below that of the sign-in form."""

SCHEME = "reset"
"""The name of links in the log."""

_log = Logger()


def make_secret() -> str:
    """Return the secret of a link: 256 random bits."""
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> bytes:
    """Return the hash under which a store has a reset."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


class PasswordResets:
    """Finds and uses links. A wrong secret counts as a failure of the client's address.

    Args:
        store: has the links, by the hashes of their secrets.
        users: the accounts.
        writer: writes the new password.
        throttle: limits failures.
        now: the clock, in seconds since the epoch.
    """

    def __init__(
        self,
        store: LoginStore,
        users: UserDirectory,
        writer: PasswordWriter,
        throttle: Throttle,
        *,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._users = users
        self._writer = writer
        self._throttle = throttle
        self._now = now

    async def find(self, secret: str, address: str) -> PasswordReset:
        """Return the reset with a secret, without using it up.

        Raises:
            Refused: there is none, or it was used or has expired, or the account has another password by now.
            TooManyFailuresError: the throttle does not admit an attempt from this address.
            StoreUnavailableError: the store does not answer.
        """
        try:
            attempt = await self._throttle.reserve(await self._throttle.admit(address_keys(address)))
        except TooManyFailuresError as error:
            raise log_throttled(SCHEME, error, address) from None
        try:
            reset = await self._store.get_password_reset(hash_secret(secret))
        except BaseException:
            await self._throttle.release(attempt)
            raise
        self._users.recheck()
        if reset is not None and self._is_good(reset):
            await self._throttle.release(attempt)
            return reset
        await self._throttle.record_failure(attempt)
        raise _refused("unknown link" if reset is None else "expired link, or a changed password", address)

    def _is_good(self, reset: PasswordReset) -> bool:
        return reset.expires > self._now() and self._users.fingerprint(reset.account) == reset.fingerprint

    async def use(self, secret: str, reset: PasswordReset, password: str, address: str) -> None:
        """Set a new password, once. Sessions, tokens and passkeys of the account end.

        Raises:
            ValueError: the password is not allowed; `str()` says why. The link stays good, as for the other errors but
                `Refused`.
            Refused: it was used meanwhile, or the account has another password by now.
            UserFileError: the file cannot be written, which the log has.
            TooManyChangesError: the password was changed too often.
            LoginsBusyError: too many passwords wait.
            StoreUnavailableError: the store does not answer.
        """
        account = await self._writer.make(reset.account, password, address=address)
        if not await self._store.use_password_reset(hash_secret(secret)):
            raise _refused("used link", address)
        try:
            # A new entry, whatever the store has of the old one.
            await self._writer.write(account, fingerprint=reset.fingerprint, address=address, keeps_entry=False)
        except PasswordChangedError:
            raise _refused("changed password", address) from None
        except (UserFileError, LoginsBusyError, TooManyChangesError):
            await self._store.add_password_reset(hash_secret(secret), reset)
            raise
        await self._writer.settle(account)
        _log.info("account: {user!r} from {address}: password set by a link", user=account.name, address=address)


def _refused(why: str, address: str) -> Refused:
    return log_refusal(SCHEME, Refused(why), address)
