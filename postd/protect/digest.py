"""Digest in HTTP: challenges, and Digest responses in `Authorization` (RFC 7616; spec: Digest)."""

import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace
from twisted.logger import Logger

from postd.auth.credentials import DigestCredentials, Refused, StaleNonceError
from postd.auth.digest import NonceRegistry
from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.protocol.digest import ALGORITHMS_BY_DIGITS, DigestResponse, DigestSyntaxError
from postd.protocol.equivalence import normalize_target

_ABSOLUTE_FORM = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)


class DigestCredentialFactory:
    """`postd.protect.guard.CredentialFactory` of Digest: one challenge for each algorithm, in one factory.

    Stock Twisted uses the first factory with a matching scheme, so a second one for Digest would never be used.

    Args:
        realm: the protection realm.
        algorithms: the offered algorithms, in the order of the challenges.
        nonces: makes the nonces.
        clients: resolves the clients of requests.
        decode: decodes a response (`DigestDecoder.decode`).
        refuse: makes a refusal from a reason for the log and a user name (`DigestChecker.refuse`).
    """

    scheme = b"digest"
    ambient = True
    _log = Logger()

    def __init__(  # noqa: PLR0913 - all but four by name
        self,
        realm: str,
        algorithms: Sequence[str],
        nonces: NonceRegistry,
        clients: PeerResolver,
        *,
        decode: Callable[[bytes], DigestResponse],
        refuse: Callable[[str, str], Refused],
    ) -> None:
        self._realm = realm
        self._algorithms = algorithms
        self._nonces = nonces
        self._clients = clients
        self._decode = decode
        self._refuse = refuse

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
            sent = self._decode(response)
        except DigestSyntaxError as error:
            raise Refused(f"malformed: {error}") from None
        address = self._clients.address(request)
        uri = sent.uri.encode("utf-8", "surrogateescape")
        if uri != request.uri:
            self._check_uri(uri, sent.username, request)
        if sent.algorithm not in self._algorithms:
            raise self._refuse("an algorithm that was not offered", sent.username)
        if sent.realm != self._realm:
            raise self._refuse("another realm", sent.username)
        # lftp, svn and Ruby's httpclient hash with MD5, and send the name of the first algorithm offered.
        hashed = ALGORITHMS_BY_DIGITS[len(sent.response)]
        if hashed != sent.algorithm:
            if hashed not in self._algorithms:
                raise self._refuse(f"malformed: a hash of {hashed} with algorithm={sent.algorithm}", sent.username)
            sent = replace(sent, algorithm=hashed)

        def accepted(rspauth: str) -> None:
            # cnonce and nc are echoed as sent (RFC 7616 §3.5; spec: Digest).
            cnonce = sent.cnonce.replace("\\", r"\\").replace('"', r"\"")
            value = f'qop=auth, rspauth="{rspauth}", cnonce="{cnonce}", nc={sent.nc}'
            request.add_header(b"Authentication-Info", value.encode("utf-8", "surrogateescape"))

        return DigestCredentials(sent, request.method.decode("latin-1"), address, accepted)

    def _check_uri(self, uri: bytes, username: str, request: Request) -> None:
        """Check that the `uri` of credentials is equivalent to the request target.

        Raises:
            Problem: 400, they are for another resource (RFC 7616 §3.4.6).
        """
        sent, received = (normalize_target(_target(one, request)) for one in (uri, request.uri))
        if sent == received:
            return
        peer, hint = request.getClientAddress(), ""
        if self._clients.trusts(peer):
            hint = f"; the proxy {getattr(peer, 'host', 'on a UNIX socket')} may have changed the target"
        self._log.warn(
            "possible attack: Digest credentials of {user} for another URI, from {address}: {difference}{hint}",
            user=self._refuse("another URI", username).user,
            address=self._clients.address(request),
            difference=_describe_difference(sent, received),
            hint=hint,
        )
        raise Problem(400, "The uri of the Digest credentials differs from that of the request.")


def _describe_difference(sent: bytes, received: bytes) -> str:
    """Return how a `uri` differs from the request target, without their contents, which may be secret."""
    if not sent.startswith(b"/"):
        return "its uri is of another host, or no path"
    path, own_path = sent.partition(b"?")[0], received.partition(b"?")[0]
    if path == own_path:
        query, own_query = len(sent) - len(path), len(received) - len(own_path)
        return f"its query has {query} bytes with the question mark, that of the request {own_query}"
    if own_path != b"/" and path.endswith(own_path):
        return f"its path begins with {len(path) - len(own_path)} more bytes than that of the request"
    return f"its path has {len(path)} bytes, that of the request {len(own_path)}"


def _target(uri: bytes, request: Request) -> bytes:
    """Return a request target without our own scheme and host, if it is in absolute form (RFC 9112 §3.2.2)."""
    match = _ABSOLUTE_FORM.fullmatch(uri)
    hosts = request.fields.get(b"Host", [])  # HTTP/1.0 may have none
    if match is None or [match[1].lower()] != [host.lower() for host in hosts]:
        return uri
    return match[2] if match[2].startswith(b"/") else b"/" + match[2]
