"""Personal access tokens in HTTP: as Bearer tokens, and as passwords of Basic (reference: Personal access tokens)."""

from collections.abc import Sequence

from twisted.cred.credentials import ICredentials

from postd.auth.credentials import InsufficientScopeError, PasswordCredentials, Refused, TokenCredentials
from postd.http.interface import Request
from postd.http.peer import SAFE_METHODS
from postd.protect.guard import CredentialFactory, ProtectedResource
from postd.protocol.personal_token import PREFIX, is_token

_PREFIX = PREFIX.encode("ascii")


class TokenFactory:
    """`postd.protect.guard.CredentialFactory` of Bearer where personal access tokens are accepted.

    Args:
        resource: the protected resource.
        bearer: makes the challenges.
        takes_others: whether `bearer` decodes the tokens that do not begin as personal access tokens; if not, they are
            refused as malformed ones.
    """

    scheme = b"bearer"
    ambient = False

    def __init__(self, resource: ProtectedResource, bearer: CredentialFactory, *, takes_others: bool) -> None:
        self._resource = resource
        self._takes_others = takes_others
        self._decode_other = bearer.decode
        self.challenges = bearer.challenges

    def decode(self, response: bytes, request: Request) -> ICredentials:
        if self._takes_others and not response.startswith(_PREFIX):
            return self._decode_other(response, request)
        return _make_credentials(response.decode("latin-1"), self._resource, request)


class TokenPasswordFactory:
    """`postd.protect.guard.CredentialFactory` of Basic where a personal access token may be the password.

    Args:
        resource: the protected resource.
        basic: makes the challenges, and decodes names and passwords.
        bearer: makes the challenge for a token that lacks scope.
    """

    scheme = b"basic"
    ambient = True

    def __init__(self, resource: ProtectedResource, basic: CredentialFactory, bearer: CredentialFactory) -> None:
        self._resource = resource
        self._basic = basic
        self._bearer = bearer

    async def challenges(self, refusal: Refused | None, request: Request) -> Sequence[bytes]:
        answering = self._bearer if isinstance(refusal, InsufficientScopeError) else self._basic
        return await answering.challenges(refusal, request)

    def decode(self, response: bytes, request: Request) -> ICredentials:
        credentials = self._basic.decode(response, request)
        if not isinstance(credentials, PasswordCredentials):
            return credentials
        # Basic ends the user name at the first colon, and an account `ISSUER#NAME` has one.
        token = credentials.password.rpartition(":")[2]
        if not is_token(token):
            return credentials
        username = f"{credentials.username}:{credentials.password}"[: -len(token) - 1]
        return _make_credentials(token, self._resource, request, username)


def _make_credentials(
    token: str, resource: ProtectedResource, request: Request, username: str | None = None
) -> TokenCredentials:
    writes = request.method not in SAFE_METHODS
    return TokenCredentials(token, writes, resource.clients.address(request), resource.scope(writing=writes), username)
