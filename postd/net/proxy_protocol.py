"""Connections through a proxy that tells in a PROXY header whose they are (haproxy.org, "The PROXY protocol").

Departures from stock Twisted, whose parsers are used:

- A line of version 1 is at most 107 bytes, with its end. `PROXY UNKNOWN` may end there, and what follows it is ignored
  (§2.1): the connection's own addresses count, as for LOCAL and UNSPEC of version 2 (§2.2).
- What they cannot read ends the connection; of some of it they know no better than to raise `ValueError`.
- An address that is none ends it, too: it would go into the log, and count failed logins, as it is. So does one of a
  UNIX socket, which stands for a trusted peer: connections through proxies come over networks.
- A header may come in pieces from its first byte on, which are put together once.
"""

import ipaddress

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamServerEndpoint,
)
from twisted.protocols.haproxy._exceptions import InvalidProxyHeader
from twisted.protocols.haproxy._info import ProxyInfo
from twisted.protocols.haproxy._v1parser import V1Parser
from twisted.protocols.haproxy._v2parser import V2Parser
from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory
from twisted.protocols.policies import WrappingFactory
from zope.interface import implementer

_V1_MAX_BYTES = 107
"""Of a header of version 1, with its CRLF."""

_V1_UNKNOWN = b"PROXY UNKNOWN"

_V2_BYTES = 16
"""Of a header of version 2, before its addresses; the last two are the length of what follows."""


@implementer(IStreamServerEndpoint)
class ProxyProtocolEndpoint:
    """An endpoint whose connections begin with a PROXY header.

    A protocol's `peer_changed()`, if it has one, is called when the header has named another peer than that which has
    connected; it returns whether the connection goes on.
    """

    def __init__(self, endpoint: IStreamServerEndpoint) -> None:
        self._endpoint = endpoint

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        listening: Deferred[IListeningPort] = self._endpoint.listen(_ProxiedFactory(protocolFactory))
        return listening


class _Proxied(HAProxyProtocolWrapper):
    """A connection that takes its addresses from its header."""

    def __init__(self, factory: "WrappingFactory[_Proxied]", wrapped: IProtocol) -> None:
        super().__init__(factory, wrapped)
        self._begun = bytearray()

    def dataReceived(self, data: bytes) -> None:
        if self._proxyInfo is not None:
            self.wrappedProtocol.dataReceived(data)
            return
        self._begun += data
        try:
            size = _header_bytes(self._begun)
            if size is None:
                return
            info = _decode(bytes(self._begun[:size]))
        except (InvalidProxyHeader, ValueError):
            self.loseConnection()
            return
        rest, self._begun = bytes(self._begun[size:]), bytearray()
        self._proxyInfo = info
        peer_changed = getattr(self.wrappedProtocol, "peer_changed", None)
        if info.source is not None and peer_changed is not None and not peer_changed():
            return
        if rest:
            self.wrappedProtocol.dataReceived(rest)


def _header_bytes(begun: bytearray) -> int | None:
    """Return how long the header is, None if not enough of it has come.

    Raises:
        ValueError: it is none.
    """
    if begun.startswith(V2Parser.PREFIX[: len(begun)]):
        size = _V2_BYTES + int.from_bytes(begun[14:16], "big")
        return size if len(begun) >= size else None
    end = begun.find(b"\r\n", 0, _V1_MAX_BYTES)
    if end >= 0:
        return end + 2
    if len(begun) >= _V1_MAX_BYTES:
        raise ValueError("no line of version 1 is so long")
    return None


def _decode(header: bytes) -> ProxyInfo:
    """Return the addresses in a whole header.

    Raises:
        InvalidProxyHeader, ValueError: it is none, or has addresses that are not accepted.
    """
    if header.startswith(V2Parser.PREFIX):
        info = V2Parser.parse(header)
    elif header.removesuffix(b"\r\n") == _V1_UNKNOWN or header.startswith(_V1_UNKNOWN + b" "):
        info = ProxyInfo(header, None, None)
    else:
        info = V1Parser.parse(header.removesuffix(b"\r\n"))
    if not (_is_network(info.source) and _is_network(info.destination)):
        raise ValueError("no address of a network")
    return info


def _is_network(address: IAddress | None) -> bool:
    """Tell whether it is an address of a network, or none at all: the proxy's own requests have none."""
    if address is None:
        return True
    if not isinstance(address, IPv4Address | IPv6Address):
        return False
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return "%" not in address.host and 0 <= address.port <= 65535


class _ProxiedFactory(HAProxyWrappingFactory):
    protocol = _Proxied  # type: ignore[assignment]
