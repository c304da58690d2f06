"""From a request to a view of a Klein application, and from its result or error to the answer.

This is `KleinResource` with these departures:

- The `Host` field plays no part in routing. Klein binds its map to it for each request, and werkzeug raises for what
  is no host name.
- A path is matched as it was sent, decoded once: `//post`, `/post//1` and `/post%2F1` are not taken for `/post` and
  `/post/1`, and a path that is not UTF-8 is nothing we have (404) instead of 400 and a traceback.
- Methods are case-sensitive (RFC 9110 §9.1); werkzeug would take `post` for `POST`.
- One table has all errors (`postd.web.errors`), and an answer that was begun and cannot be finished is cut off, so that
  nobody takes it for whole.
"""

from typing import Any
from urllib.parse import unquote_to_bytes

from klein import Klein
from klein.resource import KleinResource
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.web.server import NOT_DONE_YET
from werkzeug.exceptions import NotFound

from postd.web.errors import encode_error


class Router(KleinResource):
    """The resource of a Klein application whose views return the body of their answer."""

    _log = Logger()

    def __init__(self, app: Klein) -> None:
        super().__init__(app)
        self._urls = app.url_map.bind("host.invalid")

    def render(self, request: Any) -> Any:
        answering = Deferred.fromCoroutine(self._answer(request))
        if not answering.called:
            # A client that goes away ends what is done for it; what a store has taken on, it finishes.
            request.notifyFinish().addErrback(lambda _: answering.cancel())
        answering.addErrback(lambda failure: self._log.failure("could not answer", failure=failure))
        return NOT_DONE_YET

    async def _answer(self, request: Any) -> None:
        try:
            endpoint, arguments = self._urls.match(_path(request), _method(request))
            view: Any = self._app.execute_endpoint(endpoint, request, **arguments)
            body: bytes = await view
        except CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - the table has them all
            body = encode_error(request, error)
            if request.startedWriting:
                request.transport.abortConnection()
                return
        request.write(body)
        request.finish()


def _path(request: Any) -> str:
    path: bytes = request.path
    if b"%" in path:
        if b"%2f" in path.lower():
            raise NotFound
        path = unquote_to_bytes(path)
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        raise NotFound from None
    if "//" in text:
        raise NotFound
    return text


def _method(request: Any) -> str:
    method: str = request.method.decode("ascii")
    # werkzeug upper-cases what it is asked for; a name with a space in it is no method of any rule.
    return method if method == method.upper() else f"not {method}"
