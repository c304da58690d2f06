"""The parts of an application's own scheme, whose credentials are one value anywhere in a request, such as a key."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec import Struct
from twisted.cred.credentials import ICredentials
from zope.interface import Attribute, implementer

from postd.auth.checker import Checker
from postd.auth.credentials import Refused, log_refusal, log_throttled
from postd.auth.identity import Identity
from postd.auth.throttle import Throttle, address_keys
from postd.errors import TooManyFailuresError
from postd.http.interface import Request
from postd.http.responses import Response
from postd.protect.schemes.interface import Context, Scheme, SchemeParts

T = TypeVar("T")


class IOwnCredentials(ICredentials):
    """Credentials of an application's own scheme."""

    scheme: str = Attribute("the scheme's name")
    address: str = Attribute("the client's address, for log and throttle")
    throttle: Throttle = Attribute("limits failures")
    find_account: Callable[[], str | None] = Attribute("returns the account that they prove, None to refuse them")


@implementer(IOwnCredentials)
class OwnCredentials(Struct, frozen=True):
    """A value that was found in a request, within `find_account`."""

    scheme: str
    address: str
    throttle: Throttle
    find_account: Callable[[], str | None]

    def __repr__(self) -> str:
        return f"OwnCredentials({self.scheme!r}, address={self.address!r})"


class OwnChecker(Checker):
    """Checks the credentials of all own schemes: each brings its function."""

    credentialInterfaces = (IOwnCredentials,)

    async def check(self, credentials: OwnCredentials) -> Identity:
        """Return the identity that the credentials prove.

        Raises:
            Refused: they prove none.
            TooManyFailuresError: the throttle does not admit an attempt from this address.
            StoreUnavailableError: the throttle's counts cannot be read or written.
        """
        try:
            attempt = await credentials.throttle.admit(address_keys(credentials.address))
        except TooManyFailuresError as error:
            raise log_throttled(credentials.scheme, error, credentials.address) from None
        try:
            account = credentials.find_account()
        except Exception:
            await credentials.throttle.release(attempt)
            raise
        if account is None:
            await credentials.throttle.record_failure(attempt)
            raise log_refusal(credentials.scheme, Refused("wrong credentials"), credentials.address)
        await credentials.throttle.release(attempt)
        return Identity(account, credentials.scheme)


_CHECKER = OwnChecker()


class OwnReader(Struct):
    """`postd.protect.guard.CredentialReader` of an own scheme; `find` returns the function to the account."""

    scheme: str
    ambient: bool
    challenge: bytes
    find: Callable[[Request], Callable[[], str | None] | None]
    context: Context
    field: bytes | None = None
    form: str | None = None

    def read(self, request: Request) -> OwnCredentials | None:
        found = self.find(request)
        if found is None:
            return None
        return OwnCredentials(self.scheme, self.context.clients.address(request), self.context.throttle, found)

    def send_back(self, _request: Request) -> Response | None:
        return None

    def redirect_to_sign_in(self, _request: Request, _back: bytes) -> Response | None:
        """Return None: there is no form."""
        return None


def make_parts(
    scheme: Scheme,
    context: Context,
    read: Callable[[Request], T | None],
    find_account: Callable[[T], str | None],
    *,
    ambient: bool = False,
) -> SchemeParts:
    """Return the parts of a scheme whose credentials are one value, such as a key in a header field.

    Args:
        scheme: the scheme.
        context: what `Scheme.make` has got.
        read: returns the value in a request, None if there is none.
        find_account: returns the account of a value, None to refuse it. It does not wait, and compares secrets in
            constant time (`hmac.compare_digest`). Refused values are throttled by address and logged.
        ambient: whether browsers send the value by themselves, as they do a cookie; then cross-site writes are refused.
    """

    def find(request: Request) -> Callable[[], str | None] | None:
        value = read(request)
        return None if value is None else partial(find_account, value)

    challenge = f'{type(scheme).__name__} realm="{context.realm}"'.encode("ascii")
    return SchemeParts((_CHECKER,), reader=OwnReader(scheme.name, ambient, challenge, find, context))
