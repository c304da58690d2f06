"""`AuthAgent`: a Twisted `IAgent` that adds credentials to requests, for treq or any other user of an agent.

Credentials are sent to one origin (scheme, host and port). A redirect to another origin goes without them: treq handles
redirects above the agent, so that each step is a request of its own here.
"""

from abc import ABC, abstractmethod
from io import BytesIO
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.web.client import FileBodyProducer, RequestTransmissionFailed, ResponseNeverReceived
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer, IResponse
from zope.interface import implementer

from postd.client.errors import SignInError
from postd.client.responses import read_body
from postd.net.http_client import drop, root_cause, split_origin

BODY_MAX_BYTES = 1024 * 1024
"""The largest body that is buffered for a retry; a body of unknown length is not buffered either."""

ATTEMPTS_MAX = 4
"""How often a request is sent at most: challenged, stale nonce, new session, and one more."""

_REPEATABLE = frozenset({b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE"})
"""Requests with these methods are sent again after a broken connection, as Twisted's connection pool does it."""

DRAIN_MAX_S = 3.0
"""How long the rest of a discarded response is read, so that its connection can be reused."""


class Authenticator(ABC):
    """Adds credentials to the requests to one origin."""

    @abstractmethod
    async def authenticate(self, method: bytes, uri: bytes, headers: Headers, previous: Any = None) -> Any:
        """Add credentials to a request; return them in a form for `should_retry`.

        Args:
            method: the method of the request.
            uri: the URI of the request.
            headers: the header fields, which get the credentials.
            previous: the result of this method for an earlier transmission of the request, None if there was none.

        Raises:
            SignInError: no credentials are available.
        """

    def should_retry(self, credentials: Any, uri: bytes, response: IResponse) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a request should be sent again, because better credentials are available.

        Args:
            credentials: the result of `authenticate` for the request.
            uri: the URI of the request.
            response: the response to it.

        Raises:
            SignInError: the server did not prove that it knows the password.
        """
        return False

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End the session or the request in progress, if any."""


@implementer(IAgent)
class AuthAgent:
    """Adds credentials to requests to one origin.

    Requests to other origins, and requests that have an `Authorization` already, are passed on unchanged.

    Args:
        origin: any URL of the origin.
        repeats: whether a request without a body that got no response is sent once more, with new credentials.
    """

    def __init__(
        self,
        agent: IAgent,
        origin: str,
        authenticator: Authenticator,
        *,
        reactor: IReactorTime,
        repeats: bool = False,
    ) -> None:
        self._reactor = reactor
        self._agent = agent
        self._origin = split_origin(origin.encode())
        self._authenticator = authenticator
        self._repeats = repeats

    def request(
        self, method: bytes, uri: bytes, headers: Headers | None = None, bodyProducer: IBodyProducer | None = None
    ) -> Deferred[IResponse]:
        headers = headers or Headers()
        if split_origin(uri) != self._origin or headers.hasHeader(b"Authorization"):
            return self._agent.request(method, uri, headers, bodyProducer)
        return Deferred.fromCoroutine(self._request(method, uri, headers, bodyProducer))

    async def _request(self, method: bytes, uri: bytes, headers: Headers, producer: IBodyProducer | None) -> IResponse:
        body = await _buffer(producer)
        credentials = None
        may_repeat = self._repeats and producer is None and method in _REPEATABLE
        for attempt in range(1, ATTEMPTS_MAX + 1):
            sent = headers.copy()
            credentials = await self._authenticator.authenticate(method, uri, sent, credentials)
            sending = producer if body is None else FileBodyProducer(BytesIO(body))
            try:
                response = await self._agent.request(method, uri, sent, sending)
            except (RequestTransmissionFailed, ResponseNeverReceived) as error:
                if not may_repeat or attempt == ATTEMPTS_MAX or isinstance(root_cause(error), CancelledError):
                    raise
                may_repeat = False
                continue
            try:
                retries = self._authenticator.should_retry(credentials, uri, response)
            except SignInError:
                drop(response)
                raise
            if not retries or attempt == ATTEMPTS_MAX:
                break
            await read_body(response, max_s=DRAIN_MAX_S, clock=self._reactor)
            if body is None and producer is not None:
                raise SignInError("the server asks for other credentials, and the body is too long to be sent again")
        return response


async def _buffer(producer: Any) -> bytes | None:
    """Return a body, to be sent again, if it is short enough; None if there is none or it is not."""
    if producer is None or not isinstance(producer.length, int) or producer.length > BODY_MAX_BYTES:
        return None
    buffer = BytesIO()
    await producer.startProducing(buffer)  # treq's producers call nothing but `write`
    return buffer.getvalue()
