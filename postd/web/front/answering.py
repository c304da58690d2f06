"""The last step of every request: a coroutine makes the answer, and whatever happens there is an answer."""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
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

    What needs nothing to be waited for is answered at once, without a Deferred. An answer that was begun and cannot
    be finished is cut off, so that nobody takes it for whole.
    """
    try:
        waiting = making.send(None)
    except StopIteration as made:
        answered: Answer | Stream = made.value
        if isinstance(answered, Answer) and len(answered.body) <= PIECE_BYTES:
            request.send(answered)
        else:
            _answer_later(request, _send_in_pieces(request, answered))
    except Exception as error:  # noqa: BLE001 - the table has them all
        request.send(answer_error(request, error))
    else:
        _answer_later(request, _send(request, _go_on(making, waiting)))
    return NOT_DONE_YET


def _answer_later(request: Any, sending: Coroutine[Any, Any, None]) -> None:
    answering = Deferred.fromCoroutine(_answer_errors(request, sending))
    if not answering.called:
        # A client that goes away ends what is done for it; what a store has taken on, it finishes.
        request.notifyFinish().addErrback(lambda _: answering.cancel())
    answering.addErrback(lambda failure: _log.failure("could not answer", failure=failure))


async def _answer_errors(request: Any, sending: Coroutine[Any, Any, None]) -> None:
    try:
        await sending
    except CancelledError:
        pass
    except Exception as error:  # noqa: BLE001 - the table has them all
        answered = answer_error(request, error)
        if request.startedWriting:
            request.transport.abortConnection()
        else:
            request.send(answered)


@coroutine
def _go_on(making: Coroutine[Any, Any, Any], waiting: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that waits for something already."""
    while True:
        try:
            result = yield waiting
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's to deal with
            step = partial(making.throw, error)
        else:
            step = partial(making.send, result)
        try:
            waiting = step()
        except StopIteration as made:
            return made.value


async def _send(request: Any, making: Any) -> None:
    answered = await making
    if isinstance(answered, Answer) and len(answered.body) <= PIECE_BYTES:
        request.send(answered)
    else:
        await _send_in_pieces(request, answered)


async def _send_in_pieces(request: Any, answered: Answer | Stream) -> None:
    """Send what more than one write should hold, at the pace of the client.

    Written at once, a large body would be copied into the buffer of each slow client.
    """
    request.begin(answered)
    if request.method != b"HEAD":
        async with Flow(request) as flow:
            if isinstance(answered, Answer):
                await flow.write(answered.body)
            else:
                await _write_all(flow, answered.pieces)
    request.finish()


async def _write_all(flow: Flow, pieces: AsyncIterator[bytes]) -> None:
    async for piece in pieces:
        await flow.write(piece)


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
