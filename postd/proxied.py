"""Connections through a proxy that tells in a PROXY header whose they are (haproxy.org, "The PROXY protocol").

Departures from stock Twisted, whose parsers are used:

- What they cannot read ends the connection; of some of it they know no better than to raise `ValueError`.
- An address that is none ends it, too: it would go into the log, and count failed logins, as it is. So does one of a
  UNIX socket, which stands for a trusted peer: connections through proxies come over networks.
- A header may come in pieces from its first byte on.
"""

import ipaddress

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.protocols.haproxy._exceptions import InvalidProxyHeader
from twisted.protocols.haproxy._v1parser import V1Parser
from twisted.protocols.haproxy._v2parser import V2Parser
from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory
from zope.interface import implementer

_V2_BYTES = 16
"""What there is at least of a header of version 2; its parser asks for them at once."""


@implementer(IStreamServerEndpoint)
class ProxiedEndpoint:
    """An endpoint whose connections begin with a PROXY header."""

    def __init__(self, endpoint: IStreamServerEndpoint) -> None:
        self._endpoint = endpoint

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        listening: Deferred[IListeningPort] = self._endpoint.listen(_ProxiedFactory(protocolFactory))
        return listening


class _Proxied(HAProxyProtocolWrapper):
    """A connection that takes its addresses from its header."""

    _begun = b""

    def dataReceived(self, data: bytes) -> None:
        if self._proxyInfo is not None:
            self.wrappedProtocol.dataReceived(data)
            return
        if self._parser is None:
            data = self._begun = self._begun + data
            if len(data) < _V2_BYTES and data[: len(V2Parser.PREFIX)] == V2Parser.PREFIX[: len(data)]:
                return
            self._parser = V2Parser() if data.startswith(V2Parser.PREFIX) else V1Parser()
        try:
            info, rest = self._parser.feed(data)
        except (InvalidProxyHeader, ValueError):
            self.loseConnection()
            return
        if info and not (_is_network(info.source) and _is_network(info.destination)):
            self.loseConnection()
            return
        self._proxyInfo = info
        if info and rest:
            self.wrappedProtocol.dataReceived(rest)


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
