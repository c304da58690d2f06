"""Digest in HTTP: challenges, and Digest responses in `Authorization` (RFC 7616; spec: Digest)."""

import re
from collections.abc import Sequence

from twisted.logger import Logger

from postd.auth.credentials import DigestCredentials, Refused, StaleNonceError, unknown_user
from postd.auth.digest import NonceRegistry
from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.protocol.digest import DigestSyntaxError, decode_digest_response

_ABSOLUTE_FORM = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)


class DigestCredentialFactory:
    """`postd.protect.guard.CredentialFactory` of Digest: one challenge for each algorithm, in one factory.

    Stock Twisted uses the first factory with a matching scheme, so a second one for Digest would never be used.
    """

    scheme = b"digest"
    ambient = True
    _log = Logger()

    def __init__(self, realm: str, algorithms: Sequence[str], nonces: NonceRegistry, clients: PeerResolver) -> None:
        self._realm = realm
        self._algorithms = algorithms
        self._nonces = nonces
        self._clients = clients

    async def challenges(self, refusal: Refused | None, _request: Request) -> Sequence[bytes]:
        nonce = await self._nonces.issue()
        stale = ", stale=true" if isinstance(refusal, StaleNonceError) else ""
        # algorithm and stale must not be quoted, realm, qop and nonce must (RFC 7616 §3.3).
        return [
            f'Digest realm="{self._realm}", qop="auth", algorithm={algorithm}, nonce="{nonce}"{stale}'.encode("ascii")
            for algorithm in self._algorithms
        ]

    def decode(self, response: bytes, request: Request) -> DigestCredentials:
        """Decode the credentials of a request.

        Raises:
            Refused: they are malformed, or for an algorithm or a realm that was not offered.
            Problem: 400, they are for another URI (RFC 7616 §3.4.6).
        """
        try:
            sent = decode_digest_response(response)
        except DigestSyntaxError as error:
            raise Refused(f"malformed: {error}") from None
        address = self._clients.address(request)
        uri = sent.uri.encode("utf-8", "surrogateescape")
        if uri != request.uri and _target(uri, request) != _target(request.uri, request):
            self._log.warn(
                "possible attack: Digest credentials of {user} for another URI, from {address}",
                user=unknown_user(sent.username),
                address=address,
            )
            raise Problem(400, "The uri of the Digest credentials differs from that of the request.")
        if sent.algorithm not in self._algorithms:
            raise Refused("an algorithm that was not offered", sent.username)
        if sent.realm != self._realm:
            raise Refused("another realm", sent.username)

        def accepted(rspauth: str) -> None:
            # cnonce and nc are echoed as sent (RFC 7616 §3.5; spec: Digest).
            cnonce = sent.cnonce.replace("\\", r"\\").replace('"', r"\"")
            value = f'qop=auth, rspauth="{rspauth}", cnonce="{cnonce}", nc={sent.nc}'
            request.add_header(b"Authentication-Info", value.encode("utf-8", "surrogateescape"))

        return DigestCredentials(sent, request.method.decode("latin-1"), address, accepted)


def _target(uri: bytes, request: Request) -> bytes:
    """Return a request target without our own scheme and host, if it is in absolute form (RFC 9112 §3.2.2)."""
    match = _ABSOLUTE_FORM.fullmatch(uri)
    hosts = request.fields.get(b"Host", [])  # HTTP/1.0 may have none
    if match is None or [match[1].lower()] != [host.lower() for host in hosts]:
        return uri
    return match[2] if match[2].startswith(b"/") else b"/" + match[2]
