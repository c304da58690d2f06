"""Requests with credentials: an agent of Twisted's that signs them, under treq or anything else that takes one.

Credentials go to one origin, scheme, host and port. What a redirect leads elsewhere goes there without them: treq's
redirects are above this agent, and each step comes by here on its own.
"""

from abc import ABC, abstractmethod
from typing import Any, cast

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IConsumer, IReactorTime
from twisted.internet.protocol import Protocol
from twisted.web.client import URI
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer
from zope.interface import implementer

from postd.client.errors import SignInError
from postd.net.fetching import drop

BODY_MAX_BYTES = 1024 * 1024
"""A body that is larger, or whose length is not known, is not kept to be sent again."""

TRIES_MAX = 4
"""How often a request is sent until what it shows is good: asked, stale, signed in anew, and one to spare."""

_LEFT_OVER_MAX_BYTES = 64 * 1024
LEFT_OVER_MAX_S = 3.0
"""How long one waits for the rest of an answer that nobody wants, for the connection's sake."""


class Signer(ABC):
    """Puts what we have to show into requests to one origin."""

    @abstractmethod
    async def sign(self, method: bytes, uri: bytes, headers: Headers) -> Any:
        """Put credentials into a request; return what `is_wanted_again` needs of them.

        Raises:
            SignInError: there are none.
        """

    def is_wanted_again(self, signed: Any, uri: bytes, answer: Any) -> bool:  # noqa: ARG002 - for those who can
        """Tell whether a request should be sent once more, because we have something better to show by now.

        Raises:
            SignInError: the answer is by somebody else than who was asked.
        """
        return False

    async def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what has begun."""


@implementer(IAgent)
class SigningAgent:
    """Signs requests to an origin, and hands them and all others on.

    A request that has an `Authorization` goes as it is.

    Args:
        agent: sends them.
        origin: any URL there.
        signer: signs.
        reactor: the clock.
    """

    def __init__(self, agent: IAgent, origin: str, signer: Signer, *, reactor: IReactorTime) -> None:
        self._reactor = reactor
        self._agent = agent
        self._origin = _origin(origin.encode())
        self._signer = signer

    def request(
        self, method: bytes, uri: bytes, headers: Headers | None = None, bodyProducer: IBodyProducer | None = None
    ) -> Deferred[Any]:
        headers = headers or Headers()
        if _origin(uri) != self._origin or headers.hasHeader(b"Authorization"):
            return self._agent.request(method, uri, headers, bodyProducer)
        return Deferred.fromCoroutine(self._request(method, uri, headers, bodyProducer))

    async def _request(self, method: bytes, uri: bytes, headers: Headers, producer: IBodyProducer | None) -> Any:
        body = await _Body.keep(producer)
        for tries in range(1, TRIES_MAX + 1):
            sent = headers.copy()
            signed = await self._signer.sign(method, uri, sent)
            answer = await self._agent.request(method, uri, sent, body.take())
            try:
                again = self._signer.is_wanted_again(signed, uri, answer)
            except SignInError:
                drop(answer)
                raise
            if not again or tries == TRIES_MAX:
                break
            left_over = _LeftOver()
            answer.deliverBody(left_over)
            await left_over.done.addTimeout(LEFT_OVER_MAX_S, self._reactor, left_over.give_up)
            if not body.is_kept:
                raise SignInError("the server wants other credentials, and the body was too long to be kept for that")
        return answer


def _origin(uri: bytes) -> tuple[bytes, bytes, int]:
    parts = URI.fromBytes(uri)
    return parts.scheme.lower(), parts.host.lower(), parts.port


class _Body:
    """The body of a request, to be sent as often as needed."""

    def __init__(self, producer: IBodyProducer | None, content: bytes | None) -> None:
        self._producer = producer
        self._content = content
        self.is_kept = producer is None or content is not None

    @classmethod
    async def keep(cls, producer: Any) -> "_Body":
        if producer is None or not isinstance(producer.length, int) or producer.length > BODY_MAX_BYTES:
            return cls(producer, None)
        sink = _Sink()
        await producer.startProducing(sink)
        return cls(producer, bytes(sink.content))

    def take(self) -> IBodyProducer | None:
        return self._producer if self._content is None else _Bytes(self._content)


@implementer(IConsumer)
class _Sink:
    def __init__(self) -> None:
        self.content = bytearray()

    def registerProducer(self, producer: Any, streaming: bool) -> None:  # noqa: FBT001 - the interface's
        raise NotImplementedError("a body is written as it comes")

    def unregisterProducer(self) -> None:
        raise NotImplementedError("a body is written as it comes")

    def write(self, data: bytes) -> None:
        self.content += data


@implementer(IBodyProducer)
class _Bytes:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.length = len(content)

    def startProducing(self, consumer: Any) -> Deferred[None]:
        consumer.write(self._content)
        return succeed(None)

    def pauseProducing(self) -> None:
        """All is written at once."""

    resumeProducing = stopProducing = pauseProducing


class _LeftOver(Protocol):
    """Reads what nobody wants to know, so that the connection can be used again, if it is not too much."""

    def __init__(self) -> None:
        self._left = _LEFT_OVER_MAX_BYTES
        self.done: Deferred[None] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self.give_up()

    def connectionLost(self, reason: object = None) -> None:  # noqa: ARG002
        if not self.done.called:
            self.done.callback(None)

    def give_up(self, *_: object) -> None:
        cast("Any", self.transport).loseConnection()
