"""What a client may show to say who it is, and how it is refused (`twisted.cred`).

Each kind provides exactly one interface: a portal takes the first checker whose interface fits.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec import Struct
from twisted.cred.credentials import ICredentials
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import Attribute, implementer

from postd.protocol.digest import DigestResponse

T = TypeVar("T")

_log = Logger()


class IPasswordCredentials(ICredentials):
    """A name and a password (Basic, form login)."""

    scheme: str = Attribute("how it came, for the log")
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


class IBearerCredentials(ICredentials):
    """An access token (Bearer)."""

    token: str = Attribute("as sent")
    writes: bool = Attribute("whether it is shown for something that changes what is stored")
    address: str = Attribute("where it came from, for the log")


@implementer(IPasswordCredentials)
class PasswordCredentials(Struct, frozen=True):
    scheme: str
    username: str
    password: str
    address: str

    def __repr__(self) -> str:
        return f"PasswordCredentials({self.scheme!r}, {self.username!r}, address={self.address!r})"


@implementer(IDigestCredentials)
class DigestCredentials(Struct, frozen=True):
    response: DigestResponse
    method: str
    address: str
    accepted: Callable[[str], None]


@implementer(ISessionCredentials)
class SessionCredentials(Struct, frozen=True):
    id_hashes: tuple[bytes, ...]


@implementer(IBearerCredentials)
class BearerCredentials(Struct, frozen=True):
    token: str
    writes: bool
    address: str

    def __repr__(self) -> str:
        return f"BearerCredentials(writes={self.writes}, address={self.address!r})"


class Refused(UnauthorizedLogin):
    """The credentials are invalid. The client does not learn the reason.

    Args:
        why: the reason, for the log.
        username: the user's name, if there is one in the credentials.
        known: whether there is such a user. Other names are not kept: people type passwords into the field of the name.

    Attributes:
        user: the user, for the log: the name in quotes, or its length in bytes; None without a name.
    """

    def __init__(self, why: str, username: str | None = None, *, known: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.user = None if username is None else repr(username) if known else unknown_user(username)


def unknown_user(username: str) -> str:
    """Return what the log shows of a name that is not known to be a user's."""
    return f"an unknown user of {len(username.encode(errors='replace'))} bytes"


def log_refusal(scheme: str, refusal: Refused, address: str) -> Refused:
    """Tell the log why credentials were not good, which the client is not told; return what is to be raised."""
    _log.info(
        "login refused: {scheme} {user} from {address}: {why}",
        scheme=scheme,
        user=refusal.user,
        address=address,
        why=refusal.why,
    )
    return refusal


def run_to_completion(work: Coroutine[Any, Any, T]) -> Deferred[T]:
    """Run a check; return a Deferred for its result, which can be cancelled without stopping the check.

    A client that goes away must not keep its failure from being counted: it could guess as often as it likes, and
    learn from the time that another try takes.
    """
    checking = Deferred.fromCoroutine(work)
    if checking.called and not checking.paused:
        return checking
    result: Deferred[T] = Deferred()
    checking.addBoth(result.callback)
    return result


class StaleNonceError(Refused):
    """A Digest response that is right for a nonce that is not, or not any more (RFC 7616 §3.3: stale)."""


class InvalidTokenError(Refused):
    """An access token that is not accepted (RFC 6750 §3.1: invalid_token); one that was, if `expired`."""

    def __init__(self, why: str, *, expired: bool = False) -> None:
        super().__init__(why)
        self.expired = expired


class InsufficientScopeError(Refused):
    """A valid access token that lacks scope (RFC 6750 §3.1: insufficient_scope); `scope` is what it needs."""

    scheme = b"bearer"

    def __init__(self, username: str, scope: str) -> None:
        super().__init__("the token's scope is not enough", username, known=True)
        self.username = username
        self.scope = scope
