"""Checks user names with passwords by any `twisted.cred` checker of `IUsernamePassword`, such as `FilePasswordDB`.

The throttle counts its failures like failures of `postd.auth.password`. Nothing is cached: the checker is called each
time.
"""

from typing import Any, TypeVar

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import IUsernamePassword, UsernamePassword
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from postd.auth.checker import Checker, await_account
from postd.auth.credentials import IPasswordCredentials, PasswordCredentials, Refused, log_throttled
from postd.auth.identity import Identity
from postd.auth.password import check_lengths, refused
from postd.auth.throttle import Throttle, login_keys
from postd.errors import LoginsBusyError, TooManyFailuresError
from postd.protocol.bearer import has_issuer
from postd.protocol.password import normalize

_FINGERPRINT = bytes(16)

T = TypeVar("T")


class AnyAccount:
    """The accounts of a stock checker, which has no lookup of accounts: each name has an account that never changes.

    A session therefore lasts until it expires, even if the password is changed or the account is removed.
    """

    def fingerprint(self, _name: str) -> bytes:
        """Return the same fingerprint for each name."""
        return _FINGERPRINT

    def recheck(self) -> None:
        """Do nothing: accounts never change."""

    def entry(self, _name: str) -> bytes:
        """Return the same entry for each name."""
        return _FINGERPRINT


class StockChecker(Checker):
    """Checks user names with passwords by a stock checker, behind the throttle.

    Args:
        users: the stock checker. It gets names and passwords as they were sent, in UTF-8; its avatar id (UTF-8 bytes
            or text) becomes the name of the identity, which never expires.
        throttle: limits the failures, by the normalized name and the client's address.
        clock: the throttle's.

    Raises:
        ValueError: `users` is no checker of `IUsernamePassword`.
    """

    credentialInterfaces = (IPasswordCredentials,)

    def __init__(self, users: ICredentialsChecker, throttle: Throttle, *, clock: IReactorTime) -> None:
        if not ICredentialsChecker.providedBy(users) or not any(map(IUsernamePassword.isOrExtends, _interfaces(users))):
            kind = users.__name__ if isinstance(users, type) else type(users).__name__
            wanted = "the path of a user file (str or PathLike) or a twisted.cred checker of IUsernamePassword"
            raise ValueError(f"users: expected {wanted}, got {kind}")
        self._users = users
        self._throttle = throttle
        self._clock = clock
        self._asking: set[Deferred[Any]] = set()
        self._is_stopped = False

    def stop(self) -> None:
        """Cancel the running checks; all later ones fail with `LoginsBusyError`."""
        self._is_stopped = True
        for asking in list(self._asking):
            asking.cancel()

    async def check(self, credentials: PasswordCredentials) -> Identity:
        """Return the identity that the checker names.

        Raises:
            Refused: the login failed or is anonymous, the name or the password is not UTF-8 text or too long, or the
                account's name has a colon, as the names of tokens' owners have.
            TooManyFailuresError: the throttle does not admit the attempt.
            LoginsBusyError: the checker has not answered before the attempt's reservation expired, or was stopped.
            StoreUnavailableError: the throttle's counts cannot be read or written.
            Exception: any other exception of the checker; it does not count as a failed login.
        """
        check_lengths(credentials)
        try:
            sent = UsernamePassword(credentials.username.encode(), credentials.password.encode())
        except UnicodeEncodeError:
            raise refused(credentials, "not UTF-8 text") from None
        keys = login_keys(normalize(credentials.username), credentials.address)
        try:
            attempt = await self._throttle.admit(keys, compares_at_once=False)
        except TooManyFailuresError as error:
            raise log_throttled(credentials.scheme, error, credentials.address, credentials.username) from None
        assert attempt.reservation is not None
        try:
            name = _check_name(await await_account(self._ask(sent, deadline=attempt.reservation.expires)))
        except Refused as refusal:
            await self._throttle.record_failure(attempt)
            raise refused(credentials, refusal.why) from None
        except Exception:
            await self._throttle.release(attempt)
            raise
        await self._throttle.release(attempt, reset_failures=True)
        return Identity(name, credentials.scheme)

    def _ask(self, credentials: UsernamePassword, *, deadline: float) -> Deferred[Any]:
        """Return a Deferred for the checker's answer; it fails with `LoginsBusyError` at the deadline."""

        def check_time(answer: T) -> T | Failure:
            self._asking.discard(asking)
            is_late = self._is_stopped or self._clock.seconds() >= deadline
            return Failure(LoginsBusyError()) if is_late else answer

        asking = maybeDeferred(self._users.requestAvatarId, credentials)
        self._asking.add(asking)
        # Without a timer as well: this process may have been suspended.
        return asking.addTimeout(max(0.0, deadline - self._clock.seconds()), self._clock).addBoth(check_time)


def _check_name(name: str) -> str:
    """Return the name of an account if it cannot be taken for that of a token's owner."""
    if has_issuer(name):
        raise Refused("the checker names an account with a colon")
    return name


def _interfaces(checker: ICredentialsChecker) -> Any:
    return getattr(checker, "credentialInterfaces", ())
