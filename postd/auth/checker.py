"""The base of all checkers of `twisted.cred` here: a check is a coroutine that returns an identity."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any

from twisted.cred.checkers import ANONYMOUS, ICredentialsChecker
from twisted.cred.error import LoginFailed, Unauthorized
from twisted.internet.defer import Deferred
from zope.interface import Interface, implementer

from postd.auth.credentials import Refused, run_to_completion
from postd.auth.identity import Identity


@implementer(ICredentialsChecker)
class Checker(ABC):
    """A checker for any portal; `postd.auth.portal` awaits `check` directly, without a Deferred for each login."""

    credentialInterfaces: tuple[type[Interface], ...]

    @abstractmethod
    async def check(self, credentials: Any) -> Identity:
        """Return the identity that the credentials prove.

        Raises:
            Refused: they are invalid.
        """

    def requestAvatarId(self, credentials: Any) -> Deferred[bytes | tuple[()]]:
        """Return a Deferred for the account's name; cancelling it does not stop the check."""
        return run_to_completion(self.check(credentials)).addCallback(lambda identity: identity.account.encode())


async def await_account(asking: Awaitable[Any]) -> str:
    """Return the account that a checker of `twisted.cred` names.

    Args:
        asking: for the checker's avatar id, UTF-8 bytes or text.

    Raises:
        Refused: the login failed, or is an anonymous one.
        TypeError, UnicodeDecodeError: the avatar id is not text.
        Exception: any other exception of the checker.
    """
    try:
        avatar_id = await asking
    except Refused:
        raise
    except (LoginFailed, Unauthorized):
        raise Refused("the checker refuses them") from None
    if avatar_id == ANONYMOUS:
        raise Refused("the checker names no account")
    return avatar_id if isinstance(avatar_id, str) else str(avatar_id, "utf-8")
