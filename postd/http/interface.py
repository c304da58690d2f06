"""The interface of requests to views, guard and log.

`postd.front.request.HttpRequest` provides it, `postd.http.stock_request.StockRequest` adapts stock requests to it.
"""

from typing import Any, Protocol

from twisted.internet.interfaces import IAddress, IPushProducer
from twisted.web.http_headers import Headers
from twisted.web.resource import IResource

from postd.auth.identity import AuthenticationResult, Identity
from postd.http.responses import Parts, Response, StreamedResponse
from postd.protocol.http1.head import Fields


class NativeRequest:
    """The base of requests with the interface of `Request`; stock requests are adapted (`postd.http.stock_request`)."""

    is_shielded = False
    is_described = False


class Output(Protocol):
    """Sends bytes; without effect once the connection is lost."""

    def write(self, data: bytes) -> None:
        """Send a piece."""


class Responder(Protocol):
    """Makes the response to a request."""

    def cancel(self) -> None:
        """Called when the client has disconnected."""


class Request(Protocol):
    """A request whose body is complete, and its response.

    Attributes:
        method, uri, path: method and target of the request line, and the target without its query.
        fields: the field lines of the head by name, in Twisted's spelling, read-only.
        body: its body.
        route: the URL rule that matches the path, for log and metrics.
        file: the path of the served file or folder, for the log.
        authentication: the result of checking its credentials; None if it has none of a scheme of the resource.
        responder: resumes the coroutine that makes the response, while the coroutine waits (`postd.http.views`).
        is_shielded: whether the coroutine continues when the client disconnects, as a login does.
        is_described: whether it is the request that a proxy describes, which may pass no body of a response on.
        channel: the connection; None once it is lost.
    """

    method: bytes
    uri: bytes
    path: bytes
    fields: Fields
    body: bytes
    route: str | None
    file: bytes | None
    authentication: AuthenticationResult | None
    responder: Responder | None
    is_shielded: bool
    is_described: bool
    channel: Any

    @property
    def postpath(self) -> list[bytes]:
        """The segments of the path below the view or the resource that responds."""

    @property
    def requestHeaders(self) -> Headers:
        """The fields, for resources of twisted.web, which may change them."""

    @property
    def site_name(self) -> str:
        """The name above the heading of error pages, "" if it is not known."""

    @property
    def is_api(self) -> bool:
        """Whether the path is of the API: errors are problem details, never pages."""

    @property
    def id(self) -> str:
        """The id of the request in the log and in `X-Request-Id`: the client's, a proxy's or a new one."""

    @property
    def client_network(self) -> str:
        """The network by which the client is counted (`postd.protocol.host.client_network`), that of a trusted proxy's
        client, too.
        """

    @property
    def identity(self) -> Identity | None:
        """The authenticated client, None if no credentials were required."""

    @property
    def client_certificate(self) -> bytes | None:
        """The client certificate of the TLS connection in DER, None without one.

        Its key is proven, its issuer is not checked (reference: Settings).
        """

    def getClientAddress(self) -> IAddress:
        """Return the address of the other end of the connection."""

    def getHost(self) -> IAddress:
        """Return the address of this end of the connection."""

    def isSecure(self) -> bool:
        """Return whether the connection itself uses TLS."""

    def add_header(self, name: bytes, value: bytes) -> None:
        """Add a field to the response, also to an error; other fields of that name stay."""

    def setHeader(self, name: bytes, value: bytes) -> None:
        """Set a field of the response of a twisted.web resource."""

    def require_room(self) -> None:
        """Check that the client does not hold all the memory for responses that it may use.

        Raises:
            ServerBusyError: it does.
        """

    def send(self, response: Response) -> None:
        """Send a complete response."""

    def fail(self, error: Exception) -> None:
        """Respond with an error; if a response was begun, abort the connection."""

    def render_resource(self, resource: IResource) -> None:
        """Render a resource, or its descendant at the rest of the path."""

    def begin(self, response: Response | StreamedResponse) -> None:
        """Send the head; `write` sends the body then, and `finish` ends it.

        Raises:
            ServerBusyError: there is no memory for the body, or the client has too many event streams.
        """

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""

    def writeSequence(self, parts: Parts) -> None:
        """Send parts of the body together."""

    def open_output(self) -> tuple[Output, bool]:
        """Return what sends pieces of the body that other responses have, too, and whether it takes them as chunks.

        A piece goes to thousands of clients, one after the other, with cold processor caches: each object on its way
        takes as long as a tenth of the system call.
        """

    def count_output(self, count: int) -> None:
        """Count the bytes of the body that were sent by `open_output`."""

    def finish(self) -> None:
        """End the response."""

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:  # noqa: FBT001 - Twisted's signature
        """Register a producer, which is paused while the client does not read."""

    def unregisterProducer(self) -> None:
        """Remove the producer."""
