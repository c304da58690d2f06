"""Interfaces between the parts of the server: connections and requests import only these of each other."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.web.http_headers import Headers
from twisted.web.resource import IResource

from postd.protocol.http1.head import Head


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


class HostRule(Protocol):
    """Which hosts requests may be for (`postd.web.server.allowed_hosts`)."""

    def allow(self, head: Head, connection: "Connection") -> bool:
        """Return whether a request on a connection may be answered."""

    def refuse(self, head: Head, connection: "Connection") -> Any:
        """Raise the refusal of a request."""


class Connection(Protocol):
    """A connection, as its requests and the rule for hosts see it."""

    transport: Any

    @property
    def site(self) -> "ServingSite":
        """The factory of connections."""

    @property
    def loopback_only(self) -> bool:
        """Whether it came through a listener that only this machine can reach."""

    def addresses(self) -> tuple[IAddress, IAddress]:
        """Return the client's address and ours."""

    def write_response(self, head: bytes, headers: Headers | None, body: bytes) -> None:
        """Write a response, or the beginning of one, at once."""


class ServingSite(Protocol):
    """The factory of connections, as connections and requests see it."""

    reactor: IReactorTime
    resource: IResource
    limits: Limits
    hosts: HostRule | None
    local_addresses: Collection[tuple[str, int]]
    secure_fields: Callable[[Any], bytes] | None
    ending: bool

    def add(self, channel: Any) -> None:
        """Called when a connection is there."""

    def regroup(self, channel: Any, peer: IAddress) -> bool:
        """Called when a connection turns out to be another peer's; return whether it may stay."""

    def forget(self, channel: Any) -> None:
        """Called when a connection is gone."""

    def log(self, request: Any) -> None:
        """Log and count a request that was answered, or given up."""

    def next_request_id(self) -> str:
        """Return a name for a request."""

    def date_line(self) -> bytes:
        """Return the field `Date` of an answer that goes out now."""
