"""The portal: credentials in, the client's identity and an avatar out (`twisted.cred`)."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials
from twisted.cred.error import LoginFailed, Unauthorized, UnhandledCredentials
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import maybeDeferred
from zope.interface import Interface

from postd.auth.checker import Checker, await_account
from postd.auth.credentials import Refused
from postd.auth.identity import Identity
from postd.reactor import Work

_Check = Callable[[Any], Work[Identity]]


class CoroutinePortal(Portal):
    """`Portal` with a login in two coroutines: credentials to identity, and identity to avatar.

    `login` of stock Twisted makes a Deferred and a class for each login, even if the checker returns at once.
    """

    def __init__(self, realm: IRealm, checkers: Iterable[ICredentialsChecker] = ()) -> None:
        self._checks: dict[type, _Check] = {}
        super().__init__(realm, checkers)

    def registerChecker(self, checker: ICredentialsChecker, *credentialInterfaces: type[Interface]) -> None:
        """Register a checker for credentials of the given interfaces; without any, for all that it declares."""
        super().registerChecker(checker, *credentialInterfaces)
        self._checks.clear()

    def authenticate(self, credentials: ICredentials) -> Work[Identity]:
        """Return the coroutine that checks credentials; its result is the identity that they prove.

        Raises:
            UnhandledCredentials: no checker takes such credentials.
            Refused: they are invalid.
            Exception: any other exception of the checker.
        """
        check = self._checks.get(type(credentials)) or self._find_check(credentials)
        return check(credentials)

    async def find_avatar(self, identity: Identity, mind: object, interface: type[Interface]) -> Any:
        """Return the avatar of an identity; the realm gets `mind` and `interface`.

        Raises:
            Refused: the realm refuses the account.
            Exception: any other exception of the realm.
        """
        try:
            avatar = self.realm.requestAvatar(identity.account.encode(), mind, interface)
            # Not `isinstance(avatar, Deferred)`, which asks an abstract base class and takes as long as all the rest.
            _, found, _ = avatar if isinstance(avatar, tuple) else await avatar
        except (LoginFailed, Unauthorized) as error:
            raise Refused("the realm refuses the account", identity.account, known=True) from error
        if found is None:
            raise TypeError("the realm has returned no avatar")
        return found

    def _find_check(self, credentials: ICredentials) -> _Check:
        for interface, checker in self.checkers.items():
            if interface.providedBy(credentials):
                check: _Check = checker.check if isinstance(checker, Checker) else partial(_ask, checker)
                self._checks[type(credentials)] = check
                return check
        raise UnhandledCredentials


async def _ask(checker: ICredentialsChecker, credentials: Any) -> Identity:
    account = await await_account(maybeDeferred(checker.requestAvatarId, credentials))
    return Identity(account, getattr(credentials, "scheme", ""))
