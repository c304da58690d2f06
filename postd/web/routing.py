"""Routing: one table from the method and the path of a request to a guard and a view.

The views belong to Klein applications. `KleinResource` binds its map to the `Host` of each request, and redirects
paths. docs/explanation/front.md lists the departures; `tests/web/test_routing.py` tests them. A path is matched once,
with the guard before the view, and the match is cached. Paths that differ only in an id share one match.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar, cast

from klein import Klein
from msgspec import Struct
from werkzeug.exceptions import MethodNotAllowed, NotFound

from postd.http.errors import Problem, not_found
from postd.http.interface import Request
from postd.http.responses import Response, make_no_content
from postd.http.views import Responding, View, ViewResource, error_page
from postd.protocol.percent import decode_segments, percent_decode

REMEMBERED_MAX = 4096
"""How many pairs of method and path are cached; the number of paths with ids is unlimited."""

REMEMBERED_PATH_MAX_BYTES = 256
"""The longest cached path: 4,096 paths of 8 KiB, which clients choose, would be 64 MiB."""

_ID = re.compile(rb"[1-9][0-9]{,14}")
"""A last segment that each converter of ids accepts: it has fewer digits than `POST_ID_MAX`. No route has it as a name.
"""

API_SEGMENTS = (b"post", b"feed.atom", b".well-known", b"openapi.json")
"""First path segments of the API."""

_API = [[b"", segment] for segment in API_SEGMENTS]

VARIABLE = re.compile(r"<(?:\w+:)?(?:\w+_)?(\w+)>")

_KleinView = Callable[..., Responding]

_NOT_FOUND = error_page(not_found()).view

ViewT = TypeVar("ViewT", bound=_KleinView)


class Application(Klein):
    """A Klein application whose views return `Response` or `StreamedResponse`, which Klein itself cannot render."""

    def route(self, url: str, *arguments: Any, **keywords: Any) -> Callable[[ViewT], ViewT]:  # type: ignore[override]
        decorate: Any = super().route(url, *arguments, **keywords)
        return cast("Callable[[ViewT], ViewT]", decorate)


class Middleware(Protocol):
    """What a request passes before its view, such as a `postd.protect.guard.Guard`."""

    def enter(self, request: Request, view: View) -> Responding:
        """Return the response of the view, or another one in its place."""


class _Mounted:
    """An application below its first path segments."""

    def __init__(self, make: Callable[[], Any], read: Middleware | None, write: Middleware | None) -> None:
        self._make = make
        self.by_method = {b"OPTIONS": None, b"GET": read, b"HEAD": read}
        self.write = write

    @cached_property
    def views(self) -> Any:
        return self._make()

    @cached_property
    def urls(self) -> Any:
        return self.views.app.url_map.bind("host.invalid")


class _Page(Struct, frozen=True):
    """A view that serves a path and all below it."""

    route: str
    view: View
    middleware: Middleware | None


class Router(ViewResource):
    """The table of routes; it is the view of a whole site.

    Args:
        applications: instances of classes that have a Klein application as their attribute `app`. Their routes are
            written out in full.
        of_api: what requests for all paths of the API pass first, also for paths that do not exist.
    """

    def __init__(self, *applications: Any, of_api: Middleware | None = None) -> None:
        super().__init__(self._respond)
        self._mounted: dict[bytes, _Mounted] = {}
        self._pages: dict[tuple[bytes, ...], _Page] = {}
        self._longest = 0
        self._of_api = of_api
        # By method and path: the route for the log and the metrics, and the view behind its middleware.
        self._remembered: dict[tuple[bytes, bytes], tuple[str | None, View]] = {}
        # By method and the path before an id: a view of the application, the name of its argument, the rule.
        self._remembered_for_ids: dict[tuple[bytes, bytes], tuple[_KleinView, str, str]] = {}
        for views in applications:
            self.add(views)

    @property
    def segments(self) -> set[str]:
        """The first path segments of all that was added."""
        return {segment.decode("ascii") for segment in (*self._mounted, *(first for first, *_ in self._pages))}

    def add(self, views: Any, *, read: Middleware | None = None, write: Middleware | None = None) -> None:
        """Add an application; GET and HEAD pass `read` first, all other methods but OPTIONS pass `write`."""
        segments = {rule.rule.split("/")[1] for rule in views.app.url_map.iter_rules()}
        self.add_on_demand([segment.encode("ascii") for segment in segments], lambda: views, read=read, write=write)

    def add_on_demand(
        self,
        segments: Sequence[bytes],
        make: Callable[[], Any],
        *,
        read: Middleware | None = None,
        write: Middleware | None = None,
    ) -> None:
        """Add an application that is made at the first request for one of its first path segments."""
        self._mounted.update(dict.fromkeys(segments, _Mounted(make, read, write)))

    def add_page(self, path: str, view: View, middleware: Middleware | None) -> None:
        """Add a view for a path and all below it; the segments below are `postpath`."""
        segments = tuple(path.encode("ascii").split(b"/")[1:])
        self._pages[segments] = _Page(path, view, middleware)
        self._longest = max(self._longest, len(segments))

    def _respond(self, request: Request) -> Responding:
        asked = request.method, request.path
        request.route, view = self._remembered.get(asked) or self._match(*asked)
        return view(request)

    def refuse(self, method: bytes, path: bytes, error: Exception) -> tuple[str | None, View]:
        route, _ = self._remembered.get((method, path)) or self._match(method, path)
        outer = self._of_api if percent_decode(path[1:].partition(b"/")[0]) in API_SEGMENTS else None
        return route, _behind(outer, error_page(error).view)

    def _match(self, method: bytes, path: bytes) -> tuple[str | None, View]:
        first = percent_decode(path[1:].partition(b"/")[0])
        mounted = self._mounted.get(first)
        outer = self._of_api if first in API_SEGMENTS else None
        if mounted is None:
            return self._match_page(method, path, outer)
        route, view, is_allowed = self._find(mounted, method, path)
        view = _behind(mounted.by_method.get(method, mounted.write), view)
        match = route, _behind(outer, view)
        if is_allowed:
            self._remember(method, path, match)
        return match

    def _match_page(self, method: bytes, path: bytes, outer: Middleware | None) -> tuple[str | None, View]:
        """Match the page with the longest path that is a prefix of a path."""
        segments = tuple(decode_segments(path))
        for length in range(min(len(segments), self._longest), 0, -1):
            page = self._pages.get(segments[:length])
            if page is not None:
                view = partial(_show_below, _behind(page.middleware, page.view), segments[length:])
                match = page.route, _behind(outer, view)
                if length == len(segments):
                    self._remember(method, path, match)
                return match
        return None, _behind(outer, _NOT_FOUND)

    def _remember(self, method: bytes, path: bytes, match: tuple[str | None, View]) -> None:
        if len(path) > REMEMBERED_PATH_MAX_BYTES:
            return
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
            self._remembered_for_ids.clear()
        self._remembered[method, path] = match

    def _find(self, mounted: _Mounted, method: bytes, path: bytes) -> tuple[str | None, View, bool]:
        """Return the route, the view, and whether the view is the application's or refuses the request."""
        parent, _, last = path.rpartition(b"/")
        post_id = int(last) if _ID.fullmatch(last) else 0
        known = self._remembered_for_ids.get((method, parent)) if post_id else None
        if known is not None:
            view, name, rule = known
            return rule, partial(view, **{name: post_id}), True
        try:
            view, arguments, rule = _look_up(mounted, method, path)
        except NotFound:
            return None, _NOT_FOUND, False
        except MethodNotAllowed as error:
            valid = sorted(error.valid_methods or ())
            rule = _look_up(mounted, valid[0].encode("ascii"), path)[2]
            return rule, partial(_refuse_method, ", ".join(sorted({*valid, "OPTIONS"}))), False
        if post_id and [*arguments.values()] == [post_id]:
            self._remembered_for_ids[method, parent] = view, next(iter(arguments)), rule
        return rule, partial(view, **arguments), True


def _behind(middleware: Middleware | None, view: View) -> View:
    return view if middleware is None else partial(middleware.enter, view=view)


def _show_below(view: View, below: Sequence[bytes], request: Any) -> Responding:
    request.postpath = [*below]
    return view(request)


async def _refuse_method(allowed: str, request: Request) -> Response:
    headers = {b"Allow": allowed.encode("ascii")}
    if request.method != b"OPTIONS":
        raise Problem(405, f"Allowed methods: {allowed}.", headers=headers)
    return make_no_content(headers)


def _look_up(mounted: _Mounted, method: bytes, path: bytes) -> tuple[_KleinView, Mapping[str, Any], str]:
    name = method.decode("ascii")
    # werkzeug would upper-case the method; a name with a space matches no rule.
    name = name if name == name.upper() else f"not {name}"
    rule, arguments = mounted.urls.match(_path(path), name, return_rule=True)
    # The method itself, after which Klein names the endpoint: Klein's own call would make a Deferred of it.
    return getattr(mounted.views, rule.endpoint), arguments, VARIABLE.sub(r"<\1>", rule.rule)


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
