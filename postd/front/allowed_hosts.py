"""The allowed hosts of requests, a defense against DNS rebinding (reference: Hosts).

If the host name of a page resolves to 127.0.0.1, a server on loopback has the same origin as the page, which can then
read and write there. The `Host` field still has the page's name, so it is checked before anything else in a request.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import NoReturn, Protocol

from twisted.internet.interfaces import IAddress
from twisted.logger import Logger

from postd.http.errors import NOT_OUR_HOST
from postd.http.peer import PeerResolver
from postd.protocol.host import HOST_MAX_BYTES, is_local_host, normalize_host
from postd.protocol.http1.head import Head
from postd.protocol.http1.syntax import HttpSyntaxError

_REMEMBERED_MAX = 256

_log = Logger()


class ConnectionAddresses(Protocol):
    """Where a request comes from: its connection."""

    @property
    def loopback_only(self) -> bool:
        """Whether it came through a listener that only this machine can reach."""

    @property
    def addresses(self) -> tuple[IAddress, IAddress]:
        """The addresses of the client and of the server."""


class Hosts:
    """The rule for the hosts of requests (reference: Hosts).

    - A request of HTTP/1.0 without `Host` names no host and passes: every browser sends the field.
    - A list of names holds for trusted proxies and UNIX sockets, too: it is the client's host that they pass on.
    - On admin listeners, which are asked by address more often than by name, the list only adds names.

    Args:
        names: normalized hosts; none for any host, but on loopback listeners the names of this machine alone.
        clients: has the trusted proxies and `public_url`, whose host is always allowed.
        exclusive: whether the names are the only ones, where there are any.
    """

    def __init__(self, names: Collection[str], clients: PeerResolver, *, exclusive: bool = True) -> None:
        own = [normalize_host(clients.public_url.partition("://")[2])] if clients.public_url else []
        self._names = frozenset([*names, *own])
        self._exclusive = exclusive and bool(names)
        self._clients = clients
        self._is_known = lru_cache(maxsize=_REMEMBERED_MAX)(self._look_up)
        self._noted = False

    def allow(self, head: Head, connection: ConnectionAddresses) -> bool:
        """Return whether a request on a connection may be answered."""
        values = head.fields.get(b"Host")
        if values is None or (len(values[0]) <= HOST_MAX_BYTES and self._is_known(values[0])):
            return True
        if self._exclusive:
            return False
        return not connection.loopback_only or self._clients.trusts(connection.addresses[0])

    def refuse(self, head: Head, connection: ConnectionAddresses) -> NoReturn:
        """Refuse a request, and log the first refusal.

        Raises:
            HttpSyntaxError: 421.
        """
        if not self._noted:
            self._noted = True
            peer, ours = connection.addresses
            _log.warn(
                "request from {peer} to {ours}: 421, its host ({count} bytes) is not allowed. If clients use that "
                "name, add it to hosts or set public_url{or_proxy}. Further refusals are in the access log only",
                peer=_shown(peer),
                ours=_shown(ours),
                count=len(head.fields[b"Host"][0]),
                # A trusted proxy, too, may use no host that is not in the list.
                or_proxy="" if self._exclusive else "; if a proxy sent it, add the proxy to trusted_proxies",
            )
        raise HttpSyntaxError(421, NOT_OUR_HOST)

    def _look_up(self, value: bytes) -> bool:
        host = normalize_host(value.decode("ascii"))
        return host in self._names or (not self._exclusive and is_local_host(host))


def _shown(address: object) -> str:
    return str(getattr(address, "host", "a UNIX socket"))
