"""The router, with a small application."""

import gc
import weakref
from collections.abc import AsyncGenerator, Callable
from http import HTTPStatus
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure
from twisted.web.resource import IResource
from werkzeug.routing import MapAdapter
from zope.interface.verify import verifyObject

from postd.errors import StoreBusyError, StoreFullError, StoreUnavailableError
from postd.http.errors import Problem
from postd.http.responses import TEXT, Response, StreamedResponse, make_response, make_streamed_response
from postd.model import POST_ID_MAX
from postd.web import routing
from postd.web.posts import PostIdConverter
from postd.web.routing import Application, Router
from tests.helpers import MemoryTransport, connect, make_site


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
        self.send = connect(self.transport, make_site(cast(IResource, self.router))).dataReceived

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
