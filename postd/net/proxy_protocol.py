"""The PROXY protocol: connections whose first bytes name the client (haproxy.org, "The PROXY protocol").

Departures from stock Twisted, whose parsers are used:

- A header of version 1 has at most 107 bytes, with its CRLF. After `PROXY UNKNOWN` the rest of the line is ignored
  (§2.1): the addresses of the connection itself count, as for LOCAL and UNSPEC of version 2 (§2.2).
- A malformed header closes the connection, also where a parser fails on it with `ValueError`.
- An address that is neither IPv4 nor IPv6 closes the connection, too: it would be used unchecked in the log and in the
  counts of failed logins, and a UNIX address could pass for a trusted peer.
- A header may arrive in pieces of any size.
- A client may half-close the connection; stock Twisted closes it, and the client loses its responses.
- The client certificate of the connection belongs to the proxy, so the client that the header names has none.
"""

from typing import Any, cast

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    IHandshakeListener,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamServerEndpoint,
)
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from zope.interface import implementer

from postd.protocol.host import is_address
from postd.twisted_private import PROXY_V2_SIGNATURE, ProxyAddresses, parse_proxy

_V1_MAX_BYTES = 107
"""The length of a header of version 1, with its CRLF."""

_V1_UNKNOWN = b"PROXY UNKNOWN"

_V2_FIXED_BYTES = 16
"""The length of a header of version 2 without its addresses; its last two bytes are the length of the rest."""


@implementer(IStreamServerEndpoint)
class ProxyProtocolEndpoint:
    """An endpoint whose connections begin with a PROXY header.

    If the protocol of a connection has a method `peer_changed`, that is called when the header has named the client;
    it returns whether the connection goes on.
    """

    def __init__(self, endpoint: IStreamServerEndpoint) -> None:
        self._endpoint = endpoint

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        listening: Deferred[IListeningPort] = self._endpoint.listen(ProxyProtocolFactory(protocolFactory))
        return listening


@implementer(IHalfCloseableProtocol, IHandshakeListener)
class _ProxiedConnection(ProtocolWrapper):
    """A connection whose peer and host are the addresses in its PROXY header."""

    _addresses: ProxyAddresses | None = None

    def __init__(self, factory: "WrappingFactory[_ProxiedConnection]", wrapped: IProtocol) -> None:
        super().__init__(factory, wrapped)
        self._begun = bytearray()

    def getPeer(self) -> IAddress:
        return (self._addresses and self._addresses[0]) or super().getPeer()

    def getHost(self) -> IAddress:
        return (self._addresses and self._addresses[1]) or super().getHost()

    def getPeerCertificate(self) -> Any:
        return None if self._addresses and self._addresses[0] else cast(Any, self.transport).getPeerCertificate()

    def dataReceived(self, data: bytes) -> None:
        if self._addresses is not None:
            self.wrappedProtocol.dataReceived(data)
            return
        self._begun += data
        try:
            size = _header_bytes(self._begun)
            if size is None:
                return
            addresses = _decode(bytes(self._begun[:size]))
        except ValueError:
            self.loseConnection()
            return
        rest, self._begun = bytes(self._begun[size:]), bytearray()
        self._addresses = addresses
        peer_changed = getattr(self.wrappedProtocol, "peer_changed", None)
        if addresses[0] is not None and peer_changed is not None and not peer_changed():
            return
        if rest:
            self.wrappedProtocol.dataReceived(rest)

    def readConnectionLost(self) -> None:
        if self._addresses is not None and IHalfCloseableProtocol.providedBy(self.wrappedProtocol):
            cast(Any, self.wrappedProtocol).readConnectionLost()
        else:
            self.loseConnection()

    def writeConnectionLost(self) -> None:
        """Called when this side is closed."""

    def handshakeCompleted(self) -> None:
        if IHandshakeListener.providedBy(self.wrappedProtocol):
            cast(Any, self.wrappedProtocol).handshakeCompleted()


def _header_bytes(begun: bytearray) -> int | None:
    """Return the length of the header, None if not all of it has come.

    Raises:
        ValueError: this is no header.
    """
    if begun.startswith(PROXY_V2_SIGNATURE[: len(begun)]):
        size = _V2_FIXED_BYTES + int.from_bytes(begun[14:16], "big")
        return size if len(begun) >= size else None
    end = begun.find(b"\r\n", 0, _V1_MAX_BYTES)
    if end >= 0:
        return end + 2
    if len(begun) >= _V1_MAX_BYTES:
        raise ValueError("the line is longer than a header of version 1")
    return None


def _decode(header: bytes) -> ProxyAddresses:
    """Return the addresses in a whole header.

    Raises:
        ValueError: it is malformed, or an address is not of IPv4 or IPv6.
    """
    addresses: ProxyAddresses
    if header.removesuffix(b"\r\n") == _V1_UNKNOWN or header.startswith(_V1_UNKNOWN + b" "):
        addresses = None, None
    else:
        addresses = parse_proxy(header)
    if not all(_is_network_address(address) for address in addresses if address is not None):
        raise ValueError("an address is not of IPv4 or IPv6")
    return addresses


def _is_network_address(address: IAddress) -> bool:
    if not isinstance(address, IPv4Address | IPv6Address):
        return False
    return is_address(address.host) and 0 <= address.port <= 65535


class ProxyProtocolFactory(WrappingFactory):
    protocol = _ProxiedConnection
