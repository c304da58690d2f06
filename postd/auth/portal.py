"""The portal: credentials in, the client's identity and an avatar out (`twisted.cred`)."""

from functools import partial
from typing import Any, Protocol

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials
from twisted.cred.error import UnhandledCredentials
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred, maybeDeferred
from zope.interface import Interface

from postd.auth.checker import Checker
from postd.auth.identity import Identity


class _Check(Protocol):
    async def __call__(self, credentials: Any) -> Identity:
        """Return whose credentials these are."""


class CoroutinePortal(Portal):
    """`Portal` with a sign-in that is a coroutine, and tells the identity beside the avatar.

    `login` of stock Twisted makes a Deferred and a class for each login, also where nothing has to be waited for.
    """

    def __init__(self, realm: Any, checkers: Any = ()) -> None:
        super().__init__(realm, checkers)
        self._checks: dict[type, _Check] = {}

    async def sign_in(
        self, credentials: ICredentials, mind: object, interface: type[Interface]
    ) -> tuple[Identity, Any]:
        """Check credentials and return the client's identity with its avatar, which provides `interface`.

        Args:
            credentials: provide the interface of one checker.
            mind: for the realm.
            interface: for the realm.

        Raises:
            UnhandledCredentials: no checker takes such credentials.
            Exception: what the checker and the realm raise.
        """
        check = self._checks.get(type(credentials)) or self._find_check(credentials)
        identity = await check(credentials)
        avatar = self.realm.requestAvatar(identity.account.encode(), mind, interface)
        _, found, _ = await avatar if isinstance(avatar, Deferred) else avatar
        return identity, found

    def _find_check(self, credentials: ICredentials) -> _Check:
        for interface, checker in self.checkers.items():
            if interface.providedBy(credentials):
                check: _Check = checker.check if isinstance(checker, Checker) else partial(_ask, checker)
                self._checks[type(credentials)] = check
                return check
        raise UnhandledCredentials


async def _ask(checker: ICredentialsChecker, credentials: Any) -> Identity:
    avatar_id = await maybeDeferred(checker.requestAvatarId, credentials)
    return Identity(bytes(avatar_id).decode(), getattr(credentials, "scheme", ""))
