"""The last step of every request: a coroutine makes the body, and whatever happens there is an answer."""

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from postd.web.errors import encode_error

_log = Logger()


def answer(request: Any, making: Coroutine[Any, Any, bytes]) -> int:
    """Answer a request with the body that a coroutine returns, or with the error that it raises.

    An answer that was begun and cannot be finished is cut off, so that nobody takes it for whole.
    """
    answering = Deferred.fromCoroutine(_answer(request, making))
    if not answering.called:
        # A client that goes away ends what is done for it; what a store has taken on, it finishes.
        request.notifyFinish().addErrback(lambda _: answering.cancel())
    answering.addErrback(lambda failure: _log.failure("could not answer", failure=failure))
    return NOT_DONE_YET


async def _answer(request: Any, making: Coroutine[Any, Any, bytes]) -> None:
    try:
        body = await making
    except CancelledError:
        return
    except Exception as error:  # noqa: BLE001 - the table has them all
        body = encode_error(request, error)
        if request.startedWriting:
            request.transport.abortConnection()
            return
    request.write(body)
    request.finish()


class Answer(Resource):
    """A resource, with all below it, that answers in one way."""

    isLeaf = True

    def __init__(self, view: Callable[[Any], Coroutine[Any, Any, bytes]]) -> None:
        super().__init__()
        self._view = view

    def render(self, request: Any) -> Any:
        return answer(request, self._view(request))


def error_page(error: Exception) -> Answer:
    """Return the resource that answers with an error."""

    async def view(_request: Any) -> bytes:
        raise error

    return Answer(view)
