"""Views: coroutines that return a response. They run here; the response, or the response to an error, is sent."""

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, Self

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from postd.http.errors import make_error_response
from postd.http.interface import Request
from postd.http.responses import Parts, Response, StreamedResponse
from postd.http.stock_request import adapt

WRITE_MAX_BYTES = 64 * 1024
"""Size limit of one write: Twisted's transports pause the producer above this."""

Responding = Coroutine[Any, Any, Response | StreamedResponse | None]
"""A coroutine that returns the response to a request, None if a resource of twisted.web sends it."""

View = Callable[[Request], Responding]
"""Begins to respond to a request; errors are raised by the coroutine alone."""

_log = Logger()


def respond(
    request: Request,
    making: Responding,
    result: object = None,
    *,
    cancelled: bool = False,
) -> int:
    """Respond to a request with the result of a coroutine, or with the error that it raises.

    If an error occurs within a response, the connection is aborted, so that the response is not taken for complete. The
    coroutine may return None if it has sent the response itself. It is cancelled when the client disconnects, unless
    the request is shielded then; a write that the store has accepted is still executed.

    Unlike `Deferred.fromCoroutine` this needs no Deferred for each request, and no turn of the reactor if nothing is
    awaited. A coroutine that has waited goes on with the result of its Deferred; it was `cancelled` meanwhile or not.
    """
    end: Callable[[Request, Any], None]
    outcome: Any
    try:
        if isinstance(result, Failure):
            waiting: Deferred[Any] = result.throwExceptionIntoGenerator(making)
        else:
            waiting = making.send(result)
    except StopIteration as stop:
        end, outcome = _answer, stop.value
    except Exception as error:  # noqa: BLE001 - each is an answer
        end, outcome = _ignore if cancelled and isinstance(error, CancelledError) else _fail, error
    else:
        _Responder(request, making, waiting, cancelled=cancelled)
        return NOT_DONE_YET
    try:
        end(request, outcome)
    except Exception:  # noqa: BLE001 - the error would be lost in the Deferred of the view
        _log.failure("the response could not be sent")
    finally:
        # The frames of an error refer to the failure that it came in: a cycle that would keep credentials in memory.
        # Since Python 3.13 those of an error that the coroutine has handled do so, too.
        if isinstance(outcome, Exception):
            outcome.__traceback__ = None
        if isinstance(result, Failure) and result.value is not None:
            result.value.__traceback__ = None
        del end, outcome, result
    return NOT_DONE_YET


def _answer(request: Request, made: Response | StreamedResponse | None) -> None:
    if made is None or request.channel is None:  # it is sent, or the connection is lost
        return
    if isinstance(made, Response) and len(made.body) <= WRITE_MAX_BYTES:
        request.send(made)
    else:
        respond(request, send_in_pieces(request, made))


def _fail(request: Request, error: Exception) -> None:
    request.fail(error)


def _ignore(_request: Request, _error: Exception) -> None:
    """Do nothing: the client has disconnected, and the coroutine was cancelled."""


class _Responder:
    """Resumes a coroutine when the Deferred that it awaits has fired. Meanwhile it is the request's `responder`."""

    __slots__ = ("_cancelled", "_coroutine", "_request", "_waiting")

    def __init__(self, request: Request, coroutine: Responding, waiting: Deferred[Any], *, cancelled: bool) -> None:
        self._request = request
        self._coroutine = coroutine
        self._cancelled = cancelled
        self._waiting: Deferred[Any] | None = waiting
        request.responder = self
        waiting.addBoth(self._resume)

    def _resume(self, result: object) -> None:
        # First: request and responder refer to each other.
        self._waiting = self._request.responder = None
        respond(self._request, self._coroutine, result, cancelled=self._cancelled)

    def cancel(self) -> None:
        """Called when the client has disconnected."""
        if self._waiting is not None and not self._request.is_shielded:
            self._cancelled = True
            self._waiting.cancel()


async def send_in_pieces(request: Request, made: Response | StreamedResponse) -> None:
    """Send a large body at the pace of the client."""
    request.begin(made)
    if isinstance(made, StreamedResponse) and made.live is not None and request.method != b"HEAD":
        made.live(request)
        return
    if request.method != b"HEAD":
        async with PacedWriter(request) as flow:
            if isinstance(made, Response):
                body = memoryview(made.body)  # not copied, which each slow client would keep in memory
                for start in range(0, len(body), WRITE_MAX_BYTES):
                    await flow.writeSequence([body[start : start + WRITE_MAX_BYTES]])
            elif made.pieces is not None:
                async with aclosing(made.pieces) as pieces:
                    async for piece in pieces:
                        await flow.writeSequence(piece)
    request.finish()


@implementer(IPushProducer)
class PacedWriter:
    """Writes to a request as fast as its client reads; an asynchronous context manager."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._paused: Deferred[None] | None = None

    async def __aenter__(self) -> Self:
        self._request.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._request.channel is not None:  # else the connection is lost
            self._request.unregisterProducer()

    async def write(self, data: bytes) -> None:
        """Write, and return once the transport accepts more."""
        for start in range(0, len(data), WRITE_MAX_BYTES):
            self._request.write(data[start : start + WRITE_MAX_BYTES])
            if self._paused is not None:
                await self._paused

    async def writeSequence(self, parts: Parts) -> None:
        """Write parts together, undivided, and return once the transport accepts more."""
        self._request.writeSequence(parts)
        if self._paused is not None:
            await self._paused

    def pauseProducing(self) -> None:
        if self._paused is None:
            self._paused = Deferred()

    def resumeProducing(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None:
            paused.callback(None)

    def stopProducing(self) -> None:
        """Called when the connection is lost; the request then cancels the writing coroutine."""


class ViewResource(Resource):
    """A view as a resource of twisted.web, for all paths below it, too."""

    isLeaf = True

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view

    def refuse(self, _method: bytes, _path: bytes, error: Exception) -> tuple[str | None, View]:
        """Return route and view of a request that is refused with an error before it is complete; no route is None."""
        return None, error_page(error).view

    def render(self, request: object) -> int:
        adapted = adapt(request)
        return respond(adapted, self.view(adapted))


def view_of(resource: IResource) -> View:
    """Return the view of a resource: that of a `ViewResource`, for others one that renders it or what is below it."""
    if isinstance(resource, ViewResource):
        return resource.view

    async def render(request: Request) -> None:
        request.render_resource(resource)

    return render


def refusal_by(resource: IResource) -> Callable[[bytes, bytes, Exception], tuple[str | None, View]]:
    """Return the function that returns route and view of a refused request below a resource."""
    return (resource if isinstance(resource, ViewResource) else ViewResource(view_of(resource))).refuse


def error_page(error: Exception) -> ViewResource:
    """Return the resource that answers with an error.

    The error is not raised: otherwise its traceback would keep the frames of each request in memory.
    """

    async def view(request: Request) -> Response:
        return make_error_response(request, error)

    return ViewResource(view)
