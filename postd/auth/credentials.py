"""The kinds of credentials, and the errors that refuse them (`twisted.cred`).

Each kind provides exactly one interface: a portal takes the first checker whose interface matches.
"""

from collections.abc import Callable
from typing import ClassVar, TypeVar

from msgspec import Struct
from twisted.cred.credentials import ICredentials
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import Attribute, implementer

from postd.errors import TooManyFailuresError
from postd.protocol.digest import DigestResponse
from postd.reactor import Work

T = TypeVar("T")

_log = Logger()


class IPasswordCredentials(ICredentials):
    """A name and a password (Basic, form login)."""

    scheme: str = Attribute("the scheme of the credentials, for the log")
    username: str = Attribute("the user name as sent")
    password: str = Attribute("the password as sent")
    address: str = Attribute("the client's address, for the throttle")
    is_wanted: Callable[[], bool] = Attribute("returns whether the client still waits for the verification")


class IDigestCredentials(ICredentials):
    """A proof of knowing a password (Digest)."""

    response: DigestResponse = Attribute("the decoded response")
    method: str = Attribute("the method of the request")
    address: str = Attribute("the client's address, for the throttle")
    accepted: Callable[[str], None] = Attribute("called with `rspauth`, the server's own proof")


class ISessionCredentials(ICredentials):
    """Identifiers of sessions, hashed (form login)."""

    id_hashes: tuple[bytes, ...] = Attribute("the hashes of the identifiers")
    cookies: bytes = Attribute("the field with all cookies, which may have proofs of bound sessions")


class IBearerCredentials(ICredentials):
    """An access token (Bearer, DPoP)."""

    token: str = Attribute("the token as sent")
    writes: bool = Attribute("whether the request changes data")
    address: str = Attribute("the client's address, for log and throttle")
    scope: str = Attribute("the scope that the token needs, empty for its issuer's")
    proof: "SentProof | None" = Attribute("the proof that it was sent with (DPoP), None for Bearer")
    certificate: "Callable[[], bytes | None]" = Attribute("returns the client's certificate in DER, None without one")
    is_proven: bool = Attribute("whether proof and certificate were checked before, for the same request")


class ITokenCredentials(ICredentials):
    """A personal access token (Bearer, or Basic with the token as the password)."""

    token: str = Attribute("the token as sent")
    writes: bool = Attribute("whether the request changes data")
    address: str = Attribute("the client's address, for log and throttle")
    scope: str = Attribute("the scope that the token needs; empty for that of its access")
    username: str | None = Attribute("the user name that it was sent with (Basic), None for Bearer")


@implementer(IPasswordCredentials)
class PasswordCredentials(Struct, frozen=True):
    scheme: str
    username: str
    password: str
    address: str
    is_wanted: Callable[[], bool] = lambda: True

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
    cookies: bytes = b""

    def __repr__(self) -> str:
        return f"SessionCredentials({len(self.id_hashes)} identifiers)"


class SentProof(Struct, frozen=True):
    """The proof with an access token (RFC 9449): the field `DPoP`, and the method and the URL of its request.

    The URL is as clients see it, without a query.
    """

    text: bytes
    method: str
    url: str


def no_certificate() -> None:
    """Return None in the place of a client certificate."""


@implementer(IBearerCredentials)
class BearerCredentials(Struct, frozen=True):
    token: str
    writes: bool
    address: str
    scope: str = ""
    proof: SentProof | None = None
    certificate: Callable[[], bytes | None] = no_certificate
    is_proven: bool = False

    @property
    def scheme(self) -> str:
        """The scheme that the token came by."""
        return "bearer" if self.proof is None else "dpop"

    def __repr__(self) -> str:
        return f"BearerCredentials(scheme={self.scheme!r}, writes={self.writes}, address={self.address!r})"


@implementer(ITokenCredentials)
class TokenCredentials(Struct, frozen=True):
    scheme: ClassVar[str] = "token"

    token: str
    writes: bool
    address: str
    scope: str = ""
    username: str | None = None

    def __repr__(self) -> str:
        return f"TokenCredentials(writes={self.writes}, address={self.address!r})"


class Refused(UnauthorizedLogin):
    """The credentials are invalid. The client does not learn the reason.

    Args:
        why: the reason, for the log.
        username: the user name in the credentials, None without one.
        known: whether the user exists. Other names are not logged, because users type passwords into the wrong field.

    Attributes:
        user: the user, for the log: the name in quotes, or its length in bytes; None without a name.
    """

    def __init__(self, why: str, username: str | None = None, *, known: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.user = None if username is None else repr(username) if known else unknown_user(username)


def unknown_user(username: str) -> str:
    """Return the log text for a user name that does not exist; it has only the length of the name."""
    return f"an unknown user of {len(username.encode(errors='replace'))} bytes"


def log_refusal(scheme: str, refusal: Refused, address: str) -> Refused:
    """Log why credentials were refused (the client does not learn it); return the refusal, to be raised."""
    _log.info(
        "login refused: {scheme} {user} from {address}: {why}",
        scheme=scheme,
        user=refusal.user or "-",
        address=address,
        why=refusal.why,
    )
    return refusal


def log_throttled(
    scheme: str, error: TooManyFailuresError, address: str, username: str | None = None, *, known: bool = False
) -> TooManyFailuresError:
    """Log that the throttle has refused an attempt, if a line is due; return the error, to be raised.

    `username` and `known` are as in `Refused`.
    """
    if error.why:
        log_refusal(scheme, Refused(error.why, username, known=known), address)
    return error


def run_to_completion(work: Work[T]) -> Deferred[T]:
    """Run a check; return a Deferred for its result, which can be cancelled without stopping the check.

    A client that disconnects must not keep its failure from being counted: it could guess without a limit.
    """
    checking = Deferred.fromCoroutine(work)
    if checking.called and not checking.paused:
        return checking
    result: Deferred[T] = Deferred()
    checking.addBoth(result.callback)
    return result


class UnprovenError(Refused):
    """A live session that is bound to a device, without a live proof of that."""


class StaleNonceError(Refused):
    """A right Digest response for a nonce that is unknown, expired or used (RFC 7616 §3.3: stale)."""


class InvalidTokenError(Refused):
    """A token that is not accepted (RFC 6750 §3.1: invalid_token); `expired` if only for its age.

    `account` is its owner, if it is known.
    """

    def __init__(self, why: str, account: str | None = None, *, expired: bool = False) -> None:
        super().__init__(why, account, known=account is not None)
        self.expired = expired


class InvalidProofError(Refused):
    """An access token with a proof that is not accepted (RFC 9449 §7.1: invalid_dpop_proof)."""


class InsufficientScopeError(Refused):
    """A valid token that lacks scope (RFC 6750 §3.1: insufficient_scope); `scope` is the required one."""

    def __init__(self, username: str, scope: str) -> None:
        super().__init__("the token's scope is not enough", username, known=True)
        self.username = username
        self.scope = scope
