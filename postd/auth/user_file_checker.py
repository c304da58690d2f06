"""A `twisted.cred` checker of the names and passwords of a user file, for any program of Twisted (`--auth postd:PATH`).

There is no throttle: the credentials, `IUsernamePassword`, do not have the client's address. The program has to limit
guesses itself.
"""

import os
import secrets
import time
from collections.abc import Callable

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from zope.interface import implementer

from postd.auth.user_file import NAME_MAX_BYTES
from postd.auth.users import WATCH_INTERVAL_S, UserDirectory
from postd.errors import ConfigError
from postd.protocol.password import PASSWORD_MAX_CHARS, decode_text, normalize, verify_password


@implementer(ICredentialsChecker)
class UserFileChecker:
    """Checks names and passwords against a user file (reference: User file), which is reloaded when it has changed.

    Args:
        path: the user file.
        now: a monotonic clock, in seconds.

    Raises:
        ValueError: the file does not exist, cannot be read, or has an invalid line; `str()` names file and line.
    """

    credentialInterfaces = (IUsernamePassword,)

    def __init__(self, path: str, *, now: Callable[[], float] = time.monotonic) -> None:
        path = os.path.abspath(path)  # noqa: PTH100 - of text; twistd changes the folder later
        self._users = UserDirectory(path)
        try:
            self._users.load()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if self._users.accounts is None:
            raise ValueError(str(ConfigError(path, "does not exist")))
        self._now = now
        self._looked = now()
        self._dummy_key = secrets.token_bytes(32)

    def requestAvatarId(self, credentials: IUsernamePassword) -> Deferred[bytes | tuple[()]]:
        """Return a Deferred for the account's name, normalized, in UTF-8.

        Args:
            credentials: with name and password as bytes, UTF-8 or ISO-8859-1, or as text. `checkPassword` is not used:
                the file has hashes only.

        Raises:
            UnauthorizedLogin: there is no such user, or the password is wrong; both take the same time.
        """
        return Deferred.fromCoroutine(self._check(credentials))

    async def _check(self, credentials: IUsernamePassword) -> bytes | tuple[()]:
        try:
            name, password = _text(credentials.username), _text(credentials.password)
        except UnicodeError:
            raise UnauthorizedLogin("not UTF-8 text") from None
        if len(name) > NAME_MAX_BYTES or len(password) > PASSWORD_MAX_CHARS:
            raise UnauthorizedLogin("longer than any name or password")
        now = self._now()
        if now >= self._looked + WATCH_INTERVAL_S:
            self._looked = now
            self._users.refresh()
        name = normalize(name)
        account = self._users.get(name)
        stored = account.password_hash if account else self._users.dummy_hash(name, self._dummy_key)
        # In the reactor's pool, which ends with it.
        is_right = await deferToThread(verify_password, stored, password)
        if account is None or not is_right:
            raise UnauthorizedLogin("wrong name or password")
        return name.encode()


def _text(sent: bytes | str) -> str:
    """Return a name or a password as text (`decode_text`).

    Raises:
        UnicodeError: it is text with half of a surrogate pair.
    """
    return decode_text(sent.encode() if isinstance(sent, str) else sent)
