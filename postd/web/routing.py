"""Routing: from a request to a view of a Klein application, and from its result or error to the response.

This is `KleinResource` with these departures:

- Routing ignores the `Host` field. Klein binds its map to it for each request, and werkzeug raises an exception if it
  is not a host name.
- A path is matched as sent, decoded once: `//post`, `/post//1` and `/post%2F1` do not match `/post` and `/post/1`. A
  path that is not UTF-8 is 404 instead of 400 and a traceback.
- Methods are case-sensitive (RFC 9110 §9.1); werkzeug treats `post` as `POST`.
- Routes are cached; paths that differ only in an id share one. A view that does not wait is answered without a
  Deferred.
- One table maps all errors (`postd.http.errors`; `postd.http.views`).
"""

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

from klein import Klein
from klein.resource import KleinResource
from twisted.web.server import NOT_DONE_YET
from werkzeug.exceptions import MethodNotAllowed, NotFound

from postd.http.errors import Problem, not_found
from postd.http.responses import Response, StreamedResponse, make_no_content
from postd.http.views import respond
from postd.protocol.percent import percent_decode

REMEMBERED_MAX = 4096
"""How many pairs of method and path are cached; the number of paths with ids is unlimited."""

_ID = re.compile(rb"[1-9][0-9]{,14}")
"""A last segment that each converter of ids accepts: it has fewer digits than `POST_ID_MAX`. No route has it as a name.
"""

API_SEGMENTS = (b"post", b".well-known", b"openapi.json")
"""First path segments of the API."""

_API = [[b"", segment] for segment in API_SEGMENTS]

VARIABLE = re.compile(r"<(?:\w+:)?(?:\w+_)?(\w+)>")

_View = Callable[..., Coroutine[Any, Any, Response | StreamedResponse]]

_Match = tuple[_View, Mapping[str, Any], str]
"""A view, its arguments, and the route for the log."""


ViewT = TypeVar("ViewT", bound=_View)


class Application(Klein):
    """A Klein application whose views return `Response` or `StreamedResponse`, which Klein itself cannot render."""

    def route(self, url: str, *arguments: Any, **keywords: Any) -> Callable[[ViewT], ViewT]:  # type: ignore[override]
        decorate: Any = super().route(url, *arguments, **keywords)
        return cast("Callable[[ViewT], ViewT]", decorate)


class Router(KleinResource):
    """The resource of a Klein application; `views` is an instance of the class that has it as its attribute `app`."""

    def __init__(self, views: Any) -> None:
        app: Application = views.app
        super().__init__(app)
        self._views = views
        self._urls = app.url_map.bind("host.invalid")
        self._remembered: dict[tuple[bytes, bytes], _Match] = {}
        # By method and the path before an id: view, name of its argument, route.
        self._remembered_for_ids: dict[tuple[bytes, bytes], tuple[_View, str, str]] = {}

    def render(self, request: Any) -> Any:
        asked = request.method, request.path
        try:
            view, arguments, request.route = self._remembered.get(asked) or self._match(*asked)
        except NotFound:
            raise not_found() from None
        except MethodNotAllowed as error:
            for method in error.valid_methods or ():
                request.route = self._match(method.encode("ascii"), request.path)[2]
                break
            allowed = ", ".join(sorted({*(error.valid_methods or ()), "OPTIONS"}))
            headers = {b"Allow": allowed.encode("ascii")}
            if request.method != b"OPTIONS":
                raise Problem(405, f"Allowed methods: {allowed}.", headers=headers) from None
            request.send(make_no_content(headers))
            return NOT_DONE_YET
        return respond(request, view(request, **arguments))

    def _match(self, method: bytes, path: bytes) -> _Match:
        parent, _, last = path.rpartition(b"/")
        post_id = int(last) if _ID.fullmatch(last) else 0
        known = self._remembered_for_ids.get((method, parent)) if post_id else None
        if known is not None:
            view, name, route = known
            match: _Match = view, {name: post_id}, route
        else:
            match = view, arguments, route = self._look_up(method, path)
            if post_id and [*arguments.values()] == [post_id]:
                self._remembered_for_ids[method, parent] = view, next(iter(arguments)), route
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
            self._remembered_for_ids.clear()
        self._remembered[method, path] = match
        return match

    def _look_up(self, method: bytes, path: bytes) -> _Match:
        name = method.decode("ascii")
        # werkzeug would upper-case the method; a name with a space matches no rule.
        name = name if name == name.upper() else f"not {name}"
        rule, arguments = self._urls.match(_path(path), name, return_rule=True)
        # The method itself, after which Klein names the endpoint: Klein's own call would make a Deferred of it.
        return getattr(self._views, rule.endpoint), arguments, VARIABLE.sub(r"<\1>", rule.rule)


def is_api(path: bytes) -> bool:
    """Return whether errors at a path are problem details; also true of the empty path of an undecodable request."""
    return not path or [percent_decode(segment) for segment in path.split(b"/", 2)[:2]] in _API


def _path(path: bytes) -> str:
    if b"%" in path:
        if b"%2f" in path.lower():
            raise NotFound
        path = percent_decode(path)
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        raise NotFound from None
    if "//" in text:
        raise NotFound
    return text
