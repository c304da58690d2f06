"""Requests of a stock `twisted.web.server.Site`, with the interface that guards and views use."""

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, cast

from twisted.internet.interfaces import IAddress, IPushProducer
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers
from twisted.web.resource import IResource, getChildForRequest

from postd.auth.identity import AuthenticationResult, Identity
from postd.http.errors import make_error_response
from postd.http.interface import NativeRequest, Output, Request, Responder
from postd.http.peer import certificate_of
from postd.http.responses import Parts, Response, StreamedResponse
from postd.protocol.host import client_network


def adapt(request: object) -> Request:
    """Return a request with the interface of `Request`: the request itself, or an adapter of a stock site's request."""
    return cast(Request, request if isinstance(request, NativeRequest) else StockRequest(request))


BODY_MAX_BYTES = 32 * 1024
"""How much of a body is read: more than any form has."""


class StockRequest(NativeRequest):
    """The adapter of a stock request.

    The authentication result is kept in the stock request itself, as `authentication`, because the application and each
    guard make adapters of their own.
    """

    site_name = ""  # that of an application is not known
    is_api = False
    id = "-"
    route: str | None = None
    file: bytes | None = None

    def __init__(self, request: Any) -> None:
        self._request = request
        self._responder: Responder | None = None
        self._is_watched = False
        self.method: bytes = request.method
        self.uri: bytes = request.uri
        self.path: bytes = request.path
        self.requestHeaders: Headers = request.requestHeaders

    @cached_property
    def fields(self) -> dict[bytes, list[bytes]]:
        return {name: list(values) for name, values in self.requestHeaders.getAllRawHeaders()}

    @cached_property
    def body(self) -> bytes:
        """The body, truncated if it is longer than any form: a stock site has no limit."""
        self._request.content.seek(0)
        body: bytes = self._request.content.read(BODY_MAX_BYTES + 1)
        self._request.content.seek(0)  # for the application
        return body

    @cached_property
    def postpath(self) -> list[bytes]:
        path: list[bytes] = self._request.postpath
        return path

    @property
    def prepath(self) -> list[bytes]:
        """The segments of the path above the resource that responds."""
        path: list[bytes] = self._request.prepath
        return path

    def resource_at(self, segments: Sequence[bytes]) -> IResource:
        """Return the resource of the site that would respond to a request of another path."""
        asked = copy(self._request)
        asked.prepath, asked.postpath = [], [*segments]
        return cast(IResource, getChildForRequest(asked.site.resource, asked))

    @property
    def channel(self) -> Any:
        return getattr(self._request, "channel", None)  # a stock request has none any more when it is finished

    @property
    def authentication(self) -> AuthenticationResult | None:
        return result_of_authentication(self._request)

    @authentication.setter
    def authentication(self, result: AuthenticationResult | None) -> None:
        self._request.authentication = result

    @property
    def identity(self) -> Identity | None:
        return None if self.authentication is None else self.authentication.identity

    @property
    def responder(self) -> Responder | None:
        return self._responder

    @responder.setter
    def responder(self, responder: Responder | None) -> None:
        self._responder = responder
        if not self._is_watched:
            self._is_watched = True
            self._request.notifyFinish().addErrback(self._disconnected)

    def _disconnected(self, _: Failure) -> None:
        if self._responder is not None:
            self._responder.cancel()

    @property
    def client_network(self) -> str:
        return client_network(getattr(self.getClientAddress(), "host", ""))

    def require_room(self) -> None:
        """Do nothing: a stock site does not count the memory of its responses."""

    @property
    def client_certificate(self) -> bytes | None:
        return certificate_of(self._request)

    def getClientAddress(self) -> IAddress:
        return cast(IAddress, self._request.getClientAddress())

    def getHost(self) -> IAddress:
        return cast(IAddress, self._request.getHost())

    def isSecure(self) -> bool:
        return bool(self._request.isSecure())

    def add_header(self, name: bytes, value: bytes) -> None:
        self._request.responseHeaders.addRawHeader(name, value)

    def setHeader(self, name: bytes, value: bytes) -> None:
        self._request.setHeader(name, value)

    def send(self, response: Response) -> None:
        if self.channel is None:  # the client has disconnected
            return
        self.begin(response)
        if response.body:
            self.write(response.body)
        self.finish()

    def fail(self, error: Exception) -> None:
        response = make_error_response(cast(Request, self), error)
        if self._request.startedWriting:
            self._request.transport.abortConnection()  # so that it is not taken for complete
        else:
            self.send(response)

    def render_resource(self, resource: IResource) -> None:
        try:
            self._request.render(getChildForRequest(resource, self._request))
        except Exception:  # noqa: BLE001 - the site has an answer for each
            self._request.processingFailed(Failure())

    def begin(self, response: Response | StreamedResponse) -> None:
        start, *lines = response.head.split(b"\r\n")[:-1]
        self._request.setResponseCode(response.status, start.split(b" ", 2)[2])
        for line in lines:
            name, _, value = line.partition(b": ")
            self.setHeader(name, value)

    def write(self, data: bytes) -> None:
        self._request.write(data)

    def writeSequence(self, parts: Parts) -> None:
        self.write(b"".join(parts))

    def open_output(self) -> tuple[Output, bool]:
        return self._request, False

    def count_output(self, count: int) -> None:
        """Do nothing: a stock request counts what it sends."""

    def finish(self) -> None:
        self._request.finish()

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:  # noqa: FBT001 - Twisted's signature
        self._request.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        self._request.unregisterProducer()


def result_of_authentication(request: object) -> AuthenticationResult | None:
    """Return the outcome of the credentials in a request of any site; None if no guard has checked it."""
    result: AuthenticationResult | None = getattr(request, "authentication", None)
    return result
