"""From a request to a view of a Klein application, and from its result or error to the answer.

This is `KleinResource` with these departures:

- The `Host` field plays no part in routing. Klein binds its map to it for each request, and werkzeug raises for what
  is no host name.
- A path is matched as it was sent, decoded once: `//post`, `/post//1` and `/post%2F1` are not taken for `/post` and
  `/post/1`, and a path that is not UTF-8 is nothing we have (404) instead of 400 and a traceback.
- Methods are case-sensitive (RFC 9110 §9.1); werkzeug would take `post` for `POST`.
- One table has all errors (`postd.web.errors`; `postd.web.front.answering`).
"""

from typing import Any
from urllib.parse import unquote_to_bytes

from klein import Klein
from klein.resource import KleinResource
from werkzeug.exceptions import NotFound

from postd.web.front.answering import answer


class Router(KleinResource):
    """The resource of a Klein application whose views return the body of their answer."""

    def __init__(self, app: Klein) -> None:
        super().__init__(app)
        self._urls = app.url_map.bind("host.invalid")

    def render(self, request: Any) -> Any:
        return answer(request, self._view(request))

    async def _view(self, request: Any) -> bytes:
        endpoint, arguments = self._urls.match(_path(request), _method(request))
        view: Any = self._app.execute_endpoint(endpoint, request, **arguments)
        body: bytes = await view
        return body


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
