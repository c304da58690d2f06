"""Interfaces between connections, requests and the factory; `HttpConnection` and `HttpFactory` provide them."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.web.http_headers import Headers

from postd.front.allowed_hosts import ConnectionAddresses, Hosts
from postd.front.request_turns import RequestTurns
from postd.front.response_memory import ResponseMemory
from postd.http.interface import Request
from postd.http.responses import Parts, Response, StreamedResponse
from postd.http.views import View


class AnsweredRequest(Request, Protocol):
    """A request as the log and the metrics see it.

    Attributes:
        clientproto: the version in its request line.
        started_s: when its head was complete, by the reactor's clock.
        code: the status of the response; 499 if the client disconnected before.
        sentLength: how many bytes of the response's body were sent.
        described: the request that this request describes (`postd.web.forward_auth`); None if this request is
            authenticated by its own credentials.
    """

    clientproto: bytes
    started_s: float
    code: int
    sentLength: int
    described: Request | None


class Limits(Protocol):
    """The limits on clients (`[limits]`), in bytes and seconds."""

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request."""

    @property
    def header_s(self) -> float:
        """The time from the first byte of a head to its last."""

    @property
    def body_s(self) -> float:
        """The time from the end of a head to the end of its body."""

    @property
    def idle_s(self) -> float:
        """The time of a connection without a request, and of a response that the client does not read."""

    @property
    def connections(self) -> int:
        """Connections at the same time."""

    @property
    def response_memory_bytes(self) -> int:
        """The memory of responses on their way to their clients."""


class Site(Protocol):
    """The state that all connections and their requests share.

    Attributes:
        view: responds to all requests.
        site_name: the name above the heading of error pages, "" for none.
        draining: whether each response is the last of its connection.
        local_addresses: host and port of the listeners that only this machine can reach.
        bodiless_paths: the paths of resources that ignore the body of a request.
        secure_fields: returns the header lines of responses over TLS.
        refuse: returns route and view of a request that is refused, from its method, its path and the error.
        is_api: returns whether errors at a path are problem details.
        client_of: returns the network by which the client of a request is counted.
        memory: counts the memory of responses that are not read yet.
        turns: the requests of each turn of the reactor.
    """

    reactor: IReactorTime
    view: View
    limits: Limits
    hosts: Hosts | None
    site_name: str
    draining: bool
    local_addresses: Collection[tuple[str, int]]
    bodiless_paths: Collection[bytes]
    secure_fields: Callable[[Request], bytes] | None
    refuse: Callable[[bytes, bytes, Exception], tuple[str | None, View]]
    is_api: Callable[[bytes], bool]
    client_of: Callable[[Request], str]
    memory: ResponseMemory
    turns: RequestTurns

    def add(self, channel: Any) -> None:
        """Count a connection from now on."""

    def watch(self, channel: Any) -> None:
        """Check the deadline of a connection again (after `unwatch`)."""

    def unwatch(self, channel: Any) -> None:
        """Check the deadline of a connection no longer, until `watch`: it has none."""

    def regroup(self, channel: Any, peer: IAddress) -> bool:
        """Count a connection for its peer; return whether the peer is within its limit."""

    def forget(self, channel: Any) -> None:
        """Count a connection as closed."""

    def begin_stream(self, client: str) -> None:
        """Count an event stream of a client.

        Raises:
            ServerBusyError: the client, or all clients, have too many.
        """

    def end_stream(self, client: str) -> None:
        """Count an event stream of a client as ended."""

    def date_line(self) -> bytes:
        """Return the field `Date` of a response that is sent now."""

    def next_request_id(self) -> str:
        """Return a unique id for a request."""

    def log(self, request: AnsweredRequest) -> None:
        """Log and count a request that was answered, or whose client disconnected."""


class Connection(ConnectionAddresses, Protocol):
    """The connection of a request, beyond what Twisted's own requests call."""

    site: Site
    transport: Any
    group: str | None

    def hold(self, response: Response | StreamedResponse) -> None:
        """Hold the memory of the response that is about to be sent, and count it if it is an event stream.

        Raises:
            ServerBusyError: there is no memory for it, or there are too many streams.
        """

    def write_response(self, head: bytes, headers: Headers | None, body: bytes) -> None:
        """Write a response, or its beginning; `headers` are fields beside the fields in `head`."""

    def write(self, data: bytes) -> None:
        """Write a piece of a response."""

    def writeSequence(self, data: Parts) -> None:
        """Write a piece of a response that is in parts."""
