"""The last step of every request: a coroutine makes the answer, and whatever happens there is an answer."""

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from postd.web.answers import Answer, Stream
from postd.web.errors import answer_error
from postd.web.streaming import PIECE_BYTES, Flow

View = Callable[[Any], Coroutine[Any, Any, Answer | Stream]]
"""Makes the answer to a request."""

_log = Logger()


def answer(request: Any, making: Coroutine[Any, Any, Answer | Stream]) -> int:
    """Answer a request with what a coroutine returns, or with the error that it raises.

    An answer that was begun and cannot be finished is cut off, so that nobody takes it for whole. A client that goes
    away ends what is done for it; what a store has taken on, it finishes.
    """
    Answering(request, making).go_on(None)
    return NOT_DONE_YET


class Answering:
    """An answer in the making: what `Deferred.fromCoroutine` is, without a Deferred of its own for each request.

    Args:
        request: who asked; while something is waited for, its `answering` is this.
        making: makes the answer.
    """

    __slots__ = ("_given_up", "_request", "_steps", "_waiting")

    def __init__(self, request: Any, making: Coroutine[Any, Any, Answer | Stream]) -> None:
        self._request = request
        self._steps = _answer(request, making)
        self._waiting: Deferred[Any] | None = None
        self._given_up = False

    def go_on(self, result: Any) -> None:
        """Go on until something must be waited for; `result` is what came of the last such thing."""
        request = self._request
        try:
            if isinstance(result, Failure):
                waiting: Any = result.throwExceptionIntoGenerator(self._steps)
            else:
                waiting = self._steps.send(result)
        except StopIteration:
            request.answering = None
        except Exception as error:  # noqa: BLE001 - the table has them all
            request.answering = None
            if not (self._given_up and isinstance(error, CancelledError)):
                self._answer_error(error)
        else:
            self._waiting = waiting
            request.answering = self
            waiting.addBoth(self.go_on)

    def cancel(self) -> None:
        """Give up what is waited for: nobody is there any more to be answered."""
        self._given_up = True
        if self._waiting is not None:
            self._waiting.cancel()

    def _answer_error(self, error: Exception) -> None:
        try:
            answered = answer_error(self._request, error)
            if self._request.startedWriting:
                self._request.transport.abortConnection()
            else:
                self._request.send(answered)
        except Exception:  # noqa: BLE001 - it would be lost in whatever was waited for
            _log.failure("could not answer")


async def _answer(request: Any, making: Coroutine[Any, Any, Answer | Stream]) -> None:
    answered = await making
    if isinstance(answered, Answer) and len(answered.body) <= PIECE_BYTES:
        request.send(answered)
        return
    # More than one write should hold is sent at the pace of the client: it would be copied into the buffer of each
    # slow one.
    request.begin(answered)
    if request.method != b"HEAD":
        async with Flow(request) as flow:
            if isinstance(answered, Answer):
                await flow.write(answered.body)
            else:
                async with aclosing(answered.pieces) as pieces:
                    async for piece in pieces:
                        await flow.write(piece)
    request.finish()


class ViewResource(Resource):
    """A resource, with all below it, that answers in one way."""

    isLeaf = True

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view

    def render(self, request: Any) -> Any:
        return answer(request, self._view(request))


def error_page(error: Exception) -> ViewResource:
    """Return the resource that answers with an error."""

    async def view(_request: Any) -> Answer:
        raise error

    return ViewResource(view)
