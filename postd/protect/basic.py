"""Basic in HTTP: converts `Authorization` to a user name and a password (RFC 7617; spec: Basic)."""

from collections.abc import Sequence

from postd.auth.credentials import PasswordCredentials, Refused
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.protocol.basic import BasicSyntaxError, decode_user_pass


class BasicCredentialFactory:
    """`postd.protect.guard.CredentialFactory` of Basic."""

    scheme = b"basic"
    ambient = True

    def __init__(self, realm: str, clients: PeerResolver) -> None:
        self._challenge = f'Basic realm="{realm}"'.encode("ascii")
        self._clients = clients

    async def challenges(self, _refusal: Refused | None, _request: Request) -> Sequence[bytes]:
        # No charset="UTF-8" (RFC 7617 §2.1): the spec gives the line literally, and clients send UTF-8 without it.
        return [self._challenge]

    def decode(self, response: bytes, request: Request) -> PasswordCredentials:
        try:
            username, password = decode_user_pass(response)
        except BasicSyntaxError as error:
            raise Refused(f"malformed: {error}") from None
        address = self._clients.address(request)
        return PasswordCredentials("basic", username, password, address, lambda: request.channel is not None)
