"""The base of all checkers of `twisted.cred` here: a check is a coroutine that returns an identity."""

from abc import ABC, abstractmethod
from typing import Any

from twisted.cred.checkers import ICredentialsChecker
from twisted.internet.defer import Deferred
from zope.interface import Interface, implementer

from postd.auth.credentials import run_to_completion
from postd.auth.identity import Identity


@implementer(ICredentialsChecker)
class Checker(ABC):
    """A checker for any portal; `postd.auth.portal` awaits `check` itself, which needs no Deferred for each login."""

    credentialInterfaces: tuple[type[Interface], ...]

    @abstractmethod
    async def check(self, credentials: Any) -> Identity:
        """Return the identity that the credentials prove.

        Raises:
            Refused: they are not good.
        """

    def requestAvatarId(self, credentials: Any) -> Deferred[bytes | tuple[()]]:
        """Return a Deferred for the account's name; cancelling it does not stop the check."""
        return run_to_completion(self.check(credentials)).addCallback(lambda identity: identity.account.encode())
