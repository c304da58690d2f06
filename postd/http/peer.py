"""The client of a request behind trusted proxies: its address, scheme, certificate, and the public origin.

Settings: `trusted_proxies`, `public_url` (reference: Settings).
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress, ISSLTransport
from twisted.logger import Logger

from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.responses import encode_header
from postd.protocol.certificate import decode_client_cert
from postd.protocol.host import client_network, normalize_address, normalize_host
from postd.protocol.http1.head import is_host

_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}

UNIX = "unix"
"""In place of the address of a client on a UNIX socket."""

SAFE_METHODS = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
"""Safe methods (RFC 9110 §9.2.1)."""

# At most as long as a name in the DNS: a page may repeat it a hundred times.
_AUTHORITY = re.compile(rb"(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{1,255}\])(?::[0-9]{1,5})?")


class PeerResolver:
    """Resolves the address of a client, whether it uses TLS, and this server's origin as it sees it.

    Args:
        trusted_proxies: addresses, networks, or `"unix"`, whose `X-Forwarded-For`, `X-Forwarded-Proto` and
            `Client-Cert` are used.
        public_url: this server's origin as clients see it; empty to derive it from each request.
        named_origins: the origins whose pages may write with passwords (`refuse_cross_site`); `"*"` names none.
        hosts: the normalized hosts that `refuse_other_hosts` allows beside that of `public_url`; empty for any.
    """

    _log = Logger()

    def __init__(
        self,
        trusted_proxies: Sequence[str] = (),
        public_url: str = "",
        named_origins: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        own = [normalize_host(public_url.partition("://")[2])] if public_url and hosts else []
        self._hosts = frozenset([*hosts, *own])
        self._trusted = trusted_proxies
        self._named_origins = frozenset(named_origins) - {"*"}
        self._networks = [ipaddress.ip_network(proxy) for proxy in trusted_proxies if proxy != UNIX]
        self._trusts_unix = UNIX in trusted_proxies
        self.public_url = public_url
        self._trusts = lru_cache(maxsize=1024)(self._is_trusted)
        self._group = lru_cache(maxsize=1024)(self._group_of)
        self._warned = False

    def without_public_url(self) -> "PeerResolver":
        """Return a resolver with the same proxies, for requests to another server."""
        return PeerResolver(self._trusted, named_origins=self._named_origins)

    def address(self, request: Request) -> str:
        """Return the client's IP address, or `UNIX`: the last address that is not a trusted proxy's.

        An address has one spelling (`normalize_address`): a listener for IPv4 and IPv6, and some proxies, name IPv4
        clients in IPv6.
        """
        forwarded = request.fields.get(b"X-Forwarded-For")
        peer = _peer(request)
        if forwarded is None:
            return peer
        if not self._trusts(peer):
            self._warn_once(peer)
            return peer
        return next(reversed(self._hops(forwarded)), peer)

    def _hops(self, forwarded: Sequence[bytes]) -> list[str]:
        """Return the addresses that trusted proxies have added to `X-Forwarded-For`, the client's last."""
        hops: list[str] = []
        for hop in reversed(b",".join(forwarded).split(b",")):
            address = _decode_hop(hop)
            if address is None:
                break
            hops.append(address)
            if not self._trusts(address):
                break
        return hops

    def network(self, request: Request) -> str:
        """Return the network by which the client is counted (`client_network`)."""
        return client_network(self.address(request))

    def connection_group(self, peer: IAddress | None) -> str | None:
        """Return the group in which a peer's connections are limited (`[limits] connections`), IPv6 by its /64.

        None if there is no limit: for trusted proxies and UNIX sockets.
        """
        return self._group(_host(peer)) if isinstance(peer, IPv4Address | IPv6Address) else None

    def _group_of(self, address: str) -> str | None:
        return None if self._is_trusted(address) else client_network(address)

    def trusts(self, peer: IAddress) -> bool:
        """Return whether the peer of a connection is a trusted proxy."""
        return self._trusts(_host(peer))

    def is_secure(self, request: Request) -> bool:
        """Return whether the client uses TLS."""
        return self.public_url.startswith("https:") or self._comes_over_tls(request)

    def _comes_over_tls(self, request: Request) -> bool:
        """Return whether this request is known to come over TLS, apart from `public_url`."""
        if request.isSecure():
            return True
        forwarded = request.fields.get(b"X-Forwarded-Proto")
        if forwarded is None:
            return False
        if not self._trusts(_peer(request)):
            self._warn_once(_peer(request))
            return False
        schemes = b",".join(forwarded).split(b",")
        # The entry of the proxy that the client is connected to: each one between them and this server has its own.
        hops = len(self._hops(request.fields.get(b"X-Forwarded-For", ()))) if len(schemes) > 1 else 1
        return schemes[-min(max(hops, 1), len(schemes))].strip().lower() == b"https"

    def client_certificate(self, request: Request) -> bytes | None:
        """Return the client's certificate in DER, None without one: a trusted proxy's `Client-Cert` (RFC 9440).

        If there is no such field, or the peer is no trusted proxy, it is the certificate of the connection.
        """
        forwarded = request.fields.get(b"Client-Cert")
        if forwarded is None:
            return request.client_certificate
        if not self._trusts(_peer(request)):
            self._warn_once(_peer(request))
            return request.client_certificate
        return decode_client_cert(forwarded)

    def strict_transport(self, max_age_s: str) -> Callable[[Request], bytes]:
        """Return a function to a request's line `Strict-Transport-Security` (RFC 6797 §6.1), empty without TLS."""
        line = encode_header(b"Strict-Transport-Security", b"max-age=" + max_age_s.encode("ascii"))
        return lambda request: line if self._comes_over_tls(request) else b""

    def origin(self, request: Request) -> str | None:
        """Return this server's origin as the client sees it: `public_url`, or the origin derived from the request.

        None if the request names no host: HTTP/1.0 needs none, and an odd one is not repeated. The address of the
        listener is no replacement, because clients may see another address.
        """
        if self.public_url:
            return self.public_url
        hosts = request.fields.get(b"Host", [])
        if len(hosts) != 1 or not _AUTHORITY.fullmatch(hosts[0]):
            return None
        return f"{'https' if self.is_secure(request) else 'http'}://{hosts[0].decode('ascii').lower()}"

    def refuse_other_hosts(self, request: Request) -> None:
        """Refuse requests for other hosts than the allowed ones. A request that names no host passes.

        Raises:
            Problem: 421; 400 for a malformed `Host`, or several, which a stock site accepts.
        """
        values = request.fields.get(b"Host") if self._hosts else None
        if values is None:
            return
        if len(values) != 1 or not is_host(values[0]):
            raise Problem(400, "The request must have one Host field with a host, optionally with a port.")
        if normalize_host(values[0].decode("ascii")) not in self._hosts:
            raise Problem(421, "This server does not answer requests for this host.")

    def refuse_cross_site(self, request: Request, *, except_named: bool = False) -> None:
        """Refuse cross-site requests of browsers (reference: Form login).

        Args:
            request: the request.
            except_named: whether pages of the named origins may send it.

        Raises:
            Problem: 403, the request is cross-site.
        """
        fields = request.fields
        site = fields.get(b"Sec-Fetch-Site")
        origin = fields.get(b"Origin")
        if site is not None:
            foreign = site not in ([b"same-origin"], [b"none"])
        else:
            foreign = origin is not None and not self._is_same_origin(origin, fields.get(b"Host", [b""])[0])
        if foreign and not (except_named and origin is not None and self._is_named(origin)):
            raise Problem(403, "A page of another site sent this request.")

    def refuse_cross_site_write(self, request: Request, *, except_named: bool = False) -> None:
        """As `refuse_cross_site`, for unsafe methods and WebSocket handshakes only.

        A handshake is a GET, but a page of any site may open a WebSocket, and read and write (RFC 6455 §10.2). Some
        proxies do not pass `Upgrade` on, and HTTP/2 has none: `Sec-WebSocket-Version` is in every handshake.
        """
        if request.method not in SAFE_METHODS or _is_websocket(request):
            self.refuse_cross_site(request, except_named=except_named)

    def _is_named(self, origin: Sequence[bytes]) -> bool:
        return len(origin) == 1 and origin[0].decode("latin-1") in self._named_origins

    def _is_same_origin(self, origin: Sequence[bytes], host: bytes) -> bool:
        if self.public_url:
            return [*origin] == [self.public_url.encode()]
        # Without the scheme: a proxy may terminate TLS without X-Forwarded-Proto.
        scheme, _, authority = origin[0].lower().partition(b"://")  # the authority is empty where the origin is "null"
        if scheme not in _DEFAULT_PORTS:  # of an app: capacitor://localhost is not http://localhost
            return False
        default_port = _DEFAULT_PORTS[scheme]  # which browsers leave out, and proxies may add
        return (
            len(origin) == 1
            and authority != b""
            and authority in {host.lower(), host.lower().removesuffix(default_port)}
        )

    def _is_trusted(self, address: str) -> bool:
        if address == UNIX:
            return self._trusts_unix
        ip = ipaddress.ip_address(address)
        return any(ip in network for network in self._networks)

    def _warn_once(self, peer: str) -> None:
        if not self._warned:
            self._warned = True
            self._log.warn(
                "{peer} is not in trusted_proxies: its X-Forwarded-For, X-Forwarded-Proto and Client-Cert are ignored",
                peer=peer,
            )


def certificate_of(request: Any) -> bytes | None:
    """Return the client certificate of a request's connection in DER; None if it has none, or is lost.

    Also None over HTTP/2, which a stock site may have: its streams do not give access to the connection.
    """
    if getattr(request, "channel", None) is None or not ISSLTransport.providedBy(request.transport):
        return None
    from OpenSSL import crypto  # noqa: PLC0415 - only TLS needs it (postd.daemon.startup)

    certificate: Any = request.transport.getPeerCertificate()
    return None if certificate is None else crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)


def _is_websocket(request: Request) -> bool:
    fields = request.fields
    if b"Sec-Websocket-Version" in fields:  # the canonical spelling of `Headers`
        return True
    return b"Upgrade" in fields and any(b"websocket" in value.lower() for value in fields[b"Upgrade"])


def _peer(request: Request) -> str:
    return _host(request.getClientAddress())


def _host(address: Any) -> str:
    host: str = UNIX if isinstance(address, UNIXAddress) else address.host
    return _normalize(host) if ":" in host else host


_normalize = lru_cache(maxsize=1024)(normalize_address)


def _decode_hop(hop: bytes) -> str | None:
    """Return the address in an entry of `X-Forwarded-For`, without port and brackets; None if there is none."""
    text = hop.strip().decode("ascii", "replace")
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return normalize_address(text)
    except ValueError:
        return None
