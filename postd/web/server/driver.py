"""The last step of every request: a coroutine makes the answer, and whatever happens there is an answer."""

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from postd.web.errors import make_error_response
from postd.web.responses import Response, StreamedResponse
from postd.web.streaming import WRITE_MAX_BYTES, PacedWriter

View = Callable[[Any], Coroutine[Any, Any, Response | StreamedResponse]]
"""Makes the answer to a request."""

_log = Logger()


class Steps:
    """Takes a coroutine on, each time that what it waits for is there.

    It is what `Deferred.fromCoroutine` is, without a Deferred of its own for each request, and without anything where
    nothing is waited for. Derived classes have `returned` and `raised`.

    Args:
        coroutine: waits for Deferreds.
    """

    __slots__ = ("_coroutine", "_waiting")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._waiting: Deferred[Any] | None = None

    def returned(self, value: Any) -> None:
        """Called with what the coroutine returns."""
        raise NotImplementedError

    def raised(self, error: Exception) -> None:
        """Called with what it raises."""
        raise NotImplementedError

    def go_on(self, result: Any) -> None:
        """Go on until something must be waited for; `result` is what came of the last such thing, None at first."""
        self._waiting = None
        end: Callable[[Any], None]
        came: Any
        try:
            if isinstance(result, Failure):
                waiting: Any = result.throwExceptionIntoGenerator(self._coroutine)
            else:
                waiting = self._coroutine.send(result)
        except StopIteration as stop:
            end, came = self.returned, stop.value
        except Exception as error:  # noqa: BLE001 - it is told
            end, came = self.raised, error
        else:
            self.wait(waiting)
            return
        try:
            end(came)
        except Exception:  # noqa: BLE001 - it would be lost in whatever was waited for
            _log.failure("could not answer")

    def wait(self, waiting: Deferred[Any]) -> None:
        """Go on when this is there."""
        self._waiting = waiting
        waiting.addBoth(self.go_on)

    def cancel(self) -> None:
        """Give up what is waited for."""
        if self._waiting is not None:
            self._waiting.cancel()


def answer(request: Any, making: Coroutine[Any, Any, Response | StreamedResponse]) -> int:
    """Answer a request with what a coroutine returns, or with the error that it raises.

    An answer that was begun and cannot be finished is cut off, so that nobody takes it for whole. A client that goes
    away ends what is done for it; what a store has taken on, it finishes.
    """
    Answering(request, making).go_on(None)
    return NOT_DONE_YET


class Answering(Steps):
    """An answer in the making, or on its way.

    Args:
        request: who asked; while something is waited for, its `answering` is this.
        coroutine: makes the answer, or sends it and returns None.
    """

    __slots__ = ("_given_up", "_request")

    def __init__(self, request: Any, coroutine: Coroutine[Any, Any, Response | StreamedResponse | None]) -> None:
        super().__init__(coroutine)
        self._request = request
        self._given_up = False

    def returned(self, value: Response | StreamedResponse | None) -> None:
        self._request.answering = None  # else the two would keep each other until the garbage collector comes
        if isinstance(value, Response) and len(value.body) <= WRITE_MAX_BYTES:
            self._request.send(value)
        elif value is not None:
            Answering(self._request, _send_in_pieces(self._request, value)).go_on(None)

    def raised(self, error: Exception) -> None:
        self._request.answering = None
        if not (self._given_up and isinstance(error, CancelledError)):
            self._request.fail(error)

    def wait(self, waiting: Deferred[Any]) -> None:
        self._request.answering = self
        super().wait(waiting)

    def cancel(self) -> None:
        self._given_up = True
        super().cancel()


async def _send_in_pieces(request: Any, answered: Response | StreamedResponse) -> None:
    """Send what more than one write should hold at the pace of the client; each slow one would have a copy of it."""
    request.begin(answered)
    if request.method != b"HEAD":
        async with PacedWriter(request) as flow:
            if isinstance(answered, Response):
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
    """Return the resource that answers with an error.

    The error is not raised: it would keep the frames of each request that it was raised for, as long as it lives.
    """

    async def view(request: Any) -> Response:
        return make_error_response(request, error)

    return ViewResource(view)
