"""Interfaces between connections, requests and the factory; `HttpConnection` and `HttpFactory` provide them."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.web.http_headers import Headers
from twisted.web.resource import IResource

from postd.http.interface import Request
from postd.web.server.allowed_hosts import ConnectionAddresses, Hosts


class AnsweredRequest(Request, Protocol):
    """What the log and the metrics have of a request.

    Attributes:
        clientproto: the version in its request line.
        started_s: when its head was complete, by the reactor's clock.
        code: the status of the response; 499 if the client disconnected before.
        sentLength: how many bytes of the response's body were sent.
        described: the request that this one describes, None if it is judged itself (`postd.web.forward_auth`).
    """

    clientproto: bytes
    started_s: float
    code: int
    sentLength: int
    described: Request | None


class Limits(Protocol):
    """What one client may ask of the server (`[limits]`), in bytes and seconds."""

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request."""

    @property
    def header_s(self) -> float:
        """From the first byte of a head to its last."""

    @property
    def body_s(self) -> float:
        """From the end of a head to that of its body."""

    @property
    def idle_s(self) -> float:
        """A connection without a request; an answer of which the client takes nothing."""

    @property
    def connections(self) -> int:
        """Connections at the same time."""


class Site(Protocol):
    """What all connections and their requests share.

    Attributes:
        draining: whether each response is the last one of its connection.
        local_addresses: host and port of the listeners that only this machine can reach.
        secure_fields: what returns the lines that a response has in its head where it goes over TLS.
    """

    reactor: IReactorTime
    resource: IResource
    limits: Limits
    hosts: Hosts | None
    draining: bool
    local_addresses: Collection[tuple[str, int]]
    secure_fields: Callable[[Request], bytes] | None

    def add(self, channel: Any) -> None:
        """Count a connection from now on."""

    def regroup(self, channel: Any, peer: IAddress) -> bool:
        """Count a connection as one of this peer; return whether the peer may have it."""

    def forget(self, channel: Any) -> None:
        """Count a connection no more."""

    def date_line(self) -> bytes:
        """Return the field `Date` of a response that is sent now."""

    def next_request_id(self) -> str:
        """Return a unique name of a request."""

    def log(self, request: AnsweredRequest) -> None:
        """Log and count a request that was answered, or whose client disconnected."""


class Connection(ConnectionAddresses, Protocol):
    """The connection of a request, beyond what Twisted's own requests call."""

    site: Site
    transport: Any

    def write_response(self, head: bytes, headers: Headers | None, body: bytes) -> None:
        """Write a response, or its beginning; `headers` are fields beside those in `head`."""
