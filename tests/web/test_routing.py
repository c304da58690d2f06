"""The router, with a small application."""

import gc
import weakref
from collections.abc import AsyncGenerator, Callable
from http import HTTPStatus
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.web.resource import IResource
from werkzeug.routing import MapAdapter
from zope.interface.verify import verifyObject

from postd.errors import StoreBusyError, StoreFullError, StoreUnavailableError
from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.responses import TEXT, Response, StreamedResponse, make_response, make_streamed_response
from postd.http.views import View, ViewResource
from postd.model import POST_ID_MAX
from postd.web import routing
from postd.web.posts import PostIdConverter
from postd.web.routing import Application, Router
from tests.helpers import MemoryTransport, connect, make_site
from tests.web.wire import Worker, ask


class Views:
    app = Application()
    app.url_map.converters["post_id"] = PostIdConverter

    def __init__(self) -> None:
        self.waiting: list[Deferred[bytes]] = []
        self.cancelled = 0

    @app.route("/post", methods=["GET"])
    async def wait(self, _request: Any) -> Response:
        self.waiting.append(Deferred(self._cancel))
        return make_response(HTTPStatus.OK, TEXT, await self.waiting[-1], {})

    @app.route("/post/begun")
    async def begin_and_fail(self, _request: Any) -> StreamedResponse:
        return make_streamed_response(TEXT, self._fail_in_the_middle(), {})

    @app.route("/post/<post_id:number>", methods=["GET"])
    async def get_number(self, _request: Any, number: int) -> Response:
        return make_response(HTTPStatus.OK, TEXT, b"get %d" % number, {})

    @app.route("/post/<post_id:number>", methods=["PUT"])
    async def put_number(self, _request: Any, number: int) -> Response:
        return make_response(HTTPStatus.OK, TEXT, b"put %d" % number, {})

    @app.route("/named/<name>", methods=["GET"])
    async def get_named(self, _request: Any, name: str) -> Response:
        return make_response(HTTPStatus.OK, TEXT, b"named " + name.encode(), {})

    async def _fail_in_the_middle(self) -> AsyncGenerator[list[bytes]]:
        yield [b"begun"]
        raise ValueError("secret")

    def _cancel(self, _: Deferred[bytes]) -> None:
        self.cancelled += 1


class Connection:
    def __init__(self) -> None:
        self.views = Views()
        self.router = Router(self.views)
        self.transport = MemoryTransport()
        self.send = connect(self.transport, make_site(self.router)).dataReceived

    def get(self, path: str, method: str = "GET") -> None:
        self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
def connection() -> Connection:
    return Connection()


def test_router_provides_iresource(connection: Connection) -> None:
    assert verifyObject(IResource, connection.router)


def test_response_waits_for_the_view(connection: Connection) -> None:
    connection.get("/post")
    assert connection.transport.value() == b""
    connection.views.waiting[0].callback(b"answer")
    assert connection.transport.value().endswith(b"\r\n\r\nanswer")


def test_disconnect_cancels_the_view(connection: Connection) -> None:
    connection.get("/post")
    connection.transport.loseConnection()
    assert connection.views.cancelled == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreUnavailableError("why"), b"503 Service Unavailable"),
        (StoreBusyError("why"), b"503 Service Unavailable"),
        (StoreFullError("why"), b"507 Insufficient Storage"),
    ],
)
def test_store_error_has_its_status_and_retry_after(connection: Connection, error: Exception, status: bytes) -> None:
    connection.get("/post")
    connection.views.waiting[0].errback(error)
    answer = connection.transport.value()
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"Retry-After: 1\r\n" in answer
    assert b"why" not in answer


def test_unexpected_error_is_500_without_details(connection: Connection) -> None:
    connection.get("/post")
    connection.views.waiting[0].errback(ValueError("secret"))
    answer = connection.transport.value()
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error")
    assert b"application/problem+json" in answer
    assert b"secret" not in answer
    assert b"Traceback" not in answer


def test_response_that_fails_halfway_aborts_the_connection(connection: Connection) -> None:
    """With a regular last chunk the body would look complete."""
    connection.get("/post/begun")
    assert b"begun" in connection.transport.value()
    assert connection.transport.aborted
    assert not connection.transport.value().endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("method", ["get", "Get", "head"])
def test_methods_are_case_sensitive(connection: Connection, method: str) -> None:
    connection.get("/post", method)
    assert connection.transport.value().startswith(b"HTTP/1.1 405 Method Not Allowed")


@pytest.mark.parametrize("first", ["/post/7", "/post/8", "/named/7"])
def test_cached_routes_are_exact(connection: Connection, first: str) -> None:
    def answer(method: str, path: str) -> tuple[str, str]:
        connection.transport.clear()
        connection.get(path, method)
        head, body = connection.transport.value().decode().split("\r\n\r\n", 1)
        return head.split(" ")[1], body

    connection.get(first)
    for _ in range(2):
        assert answer("GET", "/post/7") == ("200", "get 7")
        assert answer("PUT", "/post/7") == ("200", "put 7")
        assert answer("GET", f"/post/{POST_ID_MAX}") == ("200", f"get {POST_ID_MAX}")
        assert answer("GET", "/named/7") == ("200", "named 7")
        assert answer("GET", "/named/8") == ("200", "named 8")
        assert answer("PATCH", "/post/7")[0] == "405"
        for name in ("7/", "-7", "7a", "0", "07", "%37a", POST_ID_MAX + 1, 10**17, 10**18, 10**30):
            assert answer("GET", f"/post/{name}")[0] == "404"
        assert {answer("GET", path)[0] for path in ("/7", "//post/7", "/post//7")} == {"404"}


@pytest.fixture
def matched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that werkzeug has matched."""
    paths = list[str]()
    match = MapAdapter.match

    def note(adapter: MapAdapter, path: str, *arguments: Any, **keywords: Any) -> Any:
        paths.append(path)
        return match(adapter, path, *arguments, **keywords)

    monkeypatch.setattr(MapAdapter, "match", note)
    return paths


def test_ids_share_one_match(connection: Connection, matched: list[str]) -> None:
    for number in (7, 8, 9, 7):
        connection.get(f"/post/{number}")
    assert matched == ["/post/7"]


def test_only_so_many_routes_are_cached(
    connection: Connection, matched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "REMEMBERED_MAX", 2)
    for path in ("/post/7", "/named/a", "/post/7", "/named/b", "/post/8", "/named/b"):
        connection.get(path)
    assert matched == ["/post/7", "/named/a", "/named/b", "/post/8"]


def test_long_path_is_not_cached(connection: Connection, matched: list[str]) -> None:
    long = "/named/" + "a" * routing.REMEMBERED_PATH_MAX_BYTES
    for _ in range(2):
        connection.get(long)
    assert matched == [long, long]


def answer(connection: Connection) -> None:
    connection.views.waiting.pop().callback(b"answer")


def fail(connection: Connection) -> None:
    connection.views.waiting.pop().errback(Problem(409, "Not now."))


def disconnect(connection: Connection) -> None:
    channel: Any = connection.send.__self__  # type: ignore[attr-defined]
    connection.views.waiting.pop()
    channel.connectionLost(Failure(ConnectionLost()))


@pytest.mark.parametrize("end", [answer, fail, disconnect])
def test_delayed_response_leaves_no_cycle(connection: Connection, end: Callable[[Connection], None]) -> None:
    connection.get("/post")
    channel: Any = connection.send.__self__  # type: ignore[attr-defined]
    request = weakref.ref(channel.request)
    gc.disable()
    try:
        end(connection)
        assert request() is None
    finally:
        gc.enable()


class Closed:
    """Middleware that lets no request with the field `X-Out` in, and notes the methods of all."""

    def __init__(self) -> None:
        self.methods: list[bytes] = []

    async def enter(self, request: Request, view: View) -> Response | StreamedResponse | None:
        self.methods.append(request.method)
        if b"X-Out" in request.fields:
            raise Problem(403, "Out.")
        return await view(request)


def ask_for(router: Router, method: str, path: str, **headers: str) -> tuple[int, str | None]:
    """Make a request; return the status of the response, and the route in the log."""
    seen: list[Request] = []

    def view(request: Request) -> Any:
        seen.append(request)
        return router.view(request)

    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = ask(Worker(make_site(ViewResource(view)), Clock()), method, path, headers=fields)
    return answer.status, seen[0].route


class MiddlewareTests:
    def test_methods_pass_the_middleware_of_their_kind(self) -> None:
        router = Router()
        read, write = Closed(), Closed()
        router.add(Views(), read=read, write=write)
        for _ in range(2):
            statuses = [ask_for(router, method, "/post/7")[0] for method in ("GET", "HEAD", "PUT", "OPTIONS")]
            assert statuses == [200, 200, 200, 204]
        assert ask_for(router, "DELETE", "/post/7") == (405, "/post/<number>")
        assert read.methods == [b"GET", b"HEAD"] * 2
        assert write.methods == [b"PUT"] * 2 + [b"DELETE"]

    @pytest.mark.parametrize("path", ["/post/7", "/post/x", "/post/7/8"])
    def test_middleware_is_before_all_paths_of_an_application(self, path: str) -> None:
        router = Router()
        closed = Closed()
        router.add(Views(), read=closed, write=closed)
        route = "/post/<number>" if path == "/post/7" else None
        assert ask_for(router, "GET", path, X_Out="1") == (403, route)
        assert ask_for(router, "GET", path) == (404 if route is None else 200, route)

    def test_page_with_the_longest_path_serves_what_is_below_it(self) -> None:
        router = Router()
        below = []

        async def show_below(request: Request) -> Response:
            below.append(request.postpath)
            return make_response(HTTPStatus.OK, TEXT, b"", {})

        closed = Closed()
        router.add_page("/a", show_below, None)
        router.add_page("/a/b", show_below, closed)
        for path in ("/a", "/a", "/a/%63/d%2Fe", "/a/"):
            assert ask_for(router, "GET", path, X_Out="1") == (200, "/a")
        assert below == [[], [], [b"c", b"d/e"], [b""]]
        assert ask_for(router, "GET", "/a/b/c", X_Out="1") == (403, "/a/b")
        assert ask_for(router, "GET", "/b") == (404, None)

    def test_application_on_demand_is_made_once_at_its_first_request(self) -> None:
        router = Router()
        made = []

        def make() -> Views:
            made.append(Views())
            return made[-1]

        router.add_on_demand([b"post"], make)
        assert ask_for(router, "GET", "/named/7") == (404, None)
        assert made == []
        assert [ask_for(router, "GET", f"/post/{number}")[0] for number in (7, 8)] == [200, 200]
        assert len(made) == 1

    def test_application_that_cannot_be_made_is_500(self) -> None:
        router = Router()
        router.add_on_demand([b"post"], lambda: 1 // 0)
        with capturedLogs() as events:
            assert ask_for(router, "GET", "/post/7")[0] == 500
        assert len([event for event in events if "log_failure" in event]) == 1

    def test_middleware_of_the_api_is_before_paths_that_do_not_exist(self) -> None:
        router = Router(Views(), of_api=Closed())
        assert ask_for(router, "GET", "/.well-known/x", X_Out="1") == (403, None)
        assert ask_for(router, "GET", "/post/7", X_Out="1") == (403, "/post/<number>")
        assert ask_for(router, "GET", "/named/7", X_Out="1") == (200, "/named/<name>")
