"""What a client may show to say who it is, and how it is refused (`twisted.cred`).

Each kind provides exactly one interface: a portal takes the first checker whose interface fits.
"""

from collections.abc import Callable

from msgspec import Struct
from twisted.cred.credentials import ICredentials
from twisted.cred.error import UnauthorizedLogin
from zope.interface import Attribute, implementer

from postd.protocol.digest import DigestResponse


class IPasswordCredentials(ICredentials):
    """A name and a password (Basic, form login)."""

    username: str = Attribute("who, as sent")
    password: str = Attribute("the secret")
    address: str = Attribute("where it came from, for the throttle")


class IDigestCredentials(ICredentials):
    """A proof of knowing a password (Digest)."""

    response: DigestResponse = Attribute("what was sent")
    method: str = Attribute("the method of the request that it is for")
    address: str = Attribute("where it came from, for the throttle")
    accepted: Callable[[str], None] = Attribute("is told the `rspauth` that proves the same of us")


class ISessionCredentials(ICredentials):
    """Identifiers of sessions, hashed (form login)."""

    id_hashes: tuple[bytes, ...] = Attribute("each of them")


@implementer(IPasswordCredentials)
class PasswordCredentials(Struct, frozen=True):
    username: str
    password: str
    address: str

    def __repr__(self) -> str:
        return f"PasswordCredentials({self.username!r}, address={self.address!r})"


@implementer(IDigestCredentials)
class DigestCredentials(Struct, frozen=True):
    response: DigestResponse
    method: str
    address: str
    accepted: Callable[[str], None]


@implementer(ISessionCredentials)
class SessionCredentials(Struct, frozen=True):
    id_hashes: tuple[bytes, ...]


class Refused(UnauthorizedLogin):
    """The credentials are not good. To the client all reasons look the same.

    Args:
        why: the reason, for the log.
        username: whose they would have been, as sent.
    """

    def __init__(self, why: str, username: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.username = username


class StaleNonceError(Refused):
    """A Digest response that is right for a nonce that is not, or not any more (RFC 7616 §3.3: stale)."""
