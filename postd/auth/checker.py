"""What the checkers of `twisted.cred` have in common here: a check is a coroutine."""

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.cred.checkers import ICredentialsChecker
from twisted.internet.defer import Deferred
from zope.interface import Interface, implementer

from postd.auth.credentials import to_the_end

Lasting = Callable[[], Awaitable[bool]]
"""Tells whether credentials that were good still are. It is no use of them: nothing is counted or renewed."""


async def always() -> bool:
    """Be the `Lasting` of what has no end."""
    return True


@implementer(ICredentialsChecker)
class Checker:
    """A checker for any portal.

    Whoever calls `check` itself can go on at once where nothing is waited for. A Deferred for each login, and those
    that a portal makes of it, cost more than all that most checks have to do.
    """

    credentialInterfaces: tuple[type[Interface], ...]

    async def check(self, credentials: Any) -> bytes:
        """Return the identifier of the avatar whose credentials these are."""
        raise NotImplementedError

    def lasting(self, credentials: Any, avatar_id: bytes) -> Lasting:  # noqa: ARG002 - for those that know of an end
        """Return what tells later whether the avatar may stay that has been let in with these credentials."""
        return always

    def requestAvatarId(self, credentials: Any) -> Deferred[bytes | tuple[()]]:
        """Return a Deferred for what `check` returns or raises; cancelled, it leaves the check to come to its end."""
        return to_the_end(self.check(credentials))
