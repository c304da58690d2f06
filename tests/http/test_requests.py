"""The contract of requests (`postd.http.interface.Request`): those of postd's front and of a stock site.

A view or a guard cannot tell them apart. What a site itself answers otherwise is in `tests/front/test_differential.py`.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

import pytest
from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.web.resource import IResource, Resource
from twisted.web.static import Data

from postd.auth.portal import CoroutinePortal
from postd.auth.stock_checker import StockChecker
from postd.auth.throttle import Throttle
from postd.errors import LoginsBusyError, StoreUnavailableError, TooManyFailuresError
from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.http.responses import (
    TEXT,
    Response,
    StreamedResponse,
    make_no_content,
    make_redirect,
    make_response,
    make_streamed_response,
)
from postd.http.stock_request import adapt
from postd.http.urlencoded import FORM_MAX_BYTES, decode_form, decode_query
from postd.http.views import View, ViewResource, error_page
from postd.protect.basic import BasicCredentialFactory
from postd.protect.guard import Guard, PrivateGuard, Realm
from postd.store.memory.logins import MemoryLogins
from tests.helpers import result_of
from tests.http.fronts import FRONTS, Front
from tests.web.wire import FORM, Exchange, Worker, ask, begin

OK = make_response(HTTPStatus.OK, TEXT, b"fine\n", {})


@pytest.fixture(params=FRONTS, ids=lambda front: front.name)
def front(request: pytest.FixtureRequest) -> Front:
    found: Front = request.param
    return found


@pytest.fixture
def serve(front: Front) -> Callable[[IResource], Worker]:
    """A function that serves a resource at any path."""

    def serve(resource: IResource) -> Worker:
        clock = Clock()
        return Worker(front.make_site(resource, clock), clock)

    return serve


Serve = Callable[[IResource], Worker]

T = TypeVar("T")


class Seen:
    """A view that keeps its requests and responds with what it was given."""

    def __init__(self, made: Response | Exception = OK) -> None:
        self.requests: list[Request] = []
        self._made = made

    async def view(self, request: Request) -> Response:
        self.requests.append(request)
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


def shown(serve: Serve, show: Callable[[Request], T], *arguments: Any, **keywords: Any) -> T:
    """Return what a function makes of the request that a view gets."""
    made: list[T] = []

    async def view(request: Request) -> Response:
        made.append(show(request))
        return OK

    assert ask(serve(ViewResource(view)), *arguments, **keywords).status == 200
    return made[0]


class RequestTests:
    @pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "FOO"])
    def test_method_uri_and_path_are_those_of_the_request_line(self, serve: Serve, method: str) -> None:
        found = shown(serve, lambda request: (request.method, request.uri, request.path), method, "/a%2Fb/c?d=e&f")
        assert found == (method.encode(), b"/a%2Fb/c?d=e&f", b"/a%2Fb/c")

    def test_fields_have_all_lines_by_canonical_name(self, serve: Serve) -> None:
        headers = {"x-one": ["a", "b, c"], "ACCEPT": "text/html"}
        fields = shown(serve, lambda request: request.fields, "GET", "/", headers=headers)
        assert (fields[b"X-One"], fields[b"Accept"]) == ([b"a", b"b, c"], [b"text/html"])
        assert b"X-Two" not in fields
        lines = shown(
            serve, lambda request: request.requestHeaders.getRawHeaders(b"x-one"), "GET", "/", headers=headers
        )
        assert lines == [b"a", b"b, c"]

    @pytest.mark.parametrize(
        ("path", "below"), [("/here", []), ("/here/", [b""]), ("/here/a%20b/c", [b"a b", b"c"]), ("/here/%2F", [b"/"])]
    )
    def test_path_below_a_resource_is_decoded_in_segments(self, serve: Serve, path: str, below: list[bytes]) -> None:
        def under(resource: IResource) -> Worker:
            root = Resource()
            root.putChild(b"here", resource)
            return serve(root)

        assert shown(under, lambda request: [*request.postpath], "GET", path) == below

    @pytest.mark.parametrize("body", [b"", b"x" * 1000, bytes(range(256))], ids=len)
    def test_body_is_complete(self, serve: Serve, body: bytes) -> None:
        assert shown(serve, lambda request: request.body, "POST", "/", body) == body

    def test_form_and_query_are_decoded(self, serve: Serve) -> None:
        asked = ("POST", "/?a=1&a=%C3%BC", b"b=2+3&c=%26", {"Content-Type": FORM})
        assert shown(serve, decode_query, *asked) == {"a": ["1", "ü"]}
        assert shown(serve, decode_form, *asked) == {"b": ["2 3"], "c": ["&"]}

    def test_form_that_is_too_large_is_413(self, serve: Serve) -> None:
        async def view(request: Request) -> Response:
            decode_form(request)
            return OK

        large = b"a=" + b"x" * FORM_MAX_BYTES
        assert ask(serve(ViewResource(view)), "POST", "/", large, {"Content-Type": FORM}).status == 413

    @pytest.mark.parametrize(("peer", "network"), [("192.0.2.7", "192.0.2.7"), ("2001:db8::1:2:3:4", "2001:db8::/64")])
    def test_client_is_the_peer_of_the_connection(self, serve: Serve, peer: str, network: str) -> None:
        assert shown(serve, PeerResolver().address, "GET", "/", peer=peer) == peer
        assert shown(serve, PeerResolver().network, "GET", "/", peer=peer) == network

    def test_client_of_a_unix_socket_has_no_address(self, serve: Serve) -> None:
        assert shown(serve, PeerResolver().address, "GET", "/", peer="unix") == "unix"

    def test_client_behind_a_trusted_proxy_is_the_one_that_it_names(self, serve: Serve) -> None:
        headers = {"X-Forwarded-For": "198.51.100.9", "X-Forwarded-Proto": "https"}
        for proxies, found in (
            (["192.0.2.7"], ("198.51.100.9", True, "https://localhost")),
            ([], ("192.0.2.7", False, "http://localhost")),
        ):
            clients = PeerResolver(proxies)

            def show(request: Request, clients: PeerResolver = clients) -> tuple[str, bool, str | None]:
                return clients.address(request), clients.is_secure(request), clients.origin(request)

            assert shown(serve, show, "GET", "/", headers=headers, peer="192.0.2.7") == found

    @pytest.mark.parametrize("tls", [True, False])
    def test_connection_with_tls_is_secure(self, serve: Serve, tls: bool) -> None:  # noqa: FBT001 - a parameter
        assert shown(serve, lambda request: request.isSecure(), "GET", "/", tls=tls) is tls

    def test_request_without_a_guard_has_no_identity(self, serve: Serve) -> None:
        headers = {"Authorization": "Basic eDp5"}
        found = shown(serve, lambda request: (request.identity, request.authentication), "GET", "/", headers=headers)
        assert found == (None, None)

    def test_adapted_request_is_one_already(self, serve: Serve) -> None:
        assert shown(serve, lambda request: adapt(request) is request, "GET", "/")


class ResponseTests:
    @pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
    def test_status_fields_and_body_are_sent(self, serve: Serve, method: str) -> None:
        made = make_response(
            HTTPStatus.NON_AUTHORITATIVE_INFORMATION, TEXT, b"body\n", {b"ETag": b'"x"', b"Cache-Control": b"no-store"}
        )
        answer = ask(serve(ViewResource(Seen(made).view)), method, "/")
        assert (answer.status, answer.body) == (203, b"" if method == "HEAD" else b"body\n")
        assert (answer.header("ETag"), answer.header("Cache-Control")) == ('"x"', "no-store")
        assert answer.header("Content-Length") == "5"

    def test_fields_that_were_added_before_are_sent_in_each_line(self, serve: Serve) -> None:
        async def view(request: Request) -> Response:
            request.add_header(b"Set-Cookie", b"a=1")
            request.add_header(b"Set-Cookie", b"b=2")
            return OK

        assert ask(serve(ViewResource(view)), "GET", "/").headers["set-cookie"] == ["a=1", "b=2"]

    def test_response_without_content_has_no_length(self, serve: Serve) -> None:
        answer = ask(serve(ViewResource(Seen(make_no_content({b"Allow": b"GET"})).view)), "OPTIONS", "/")
        assert (answer.status, answer.body, answer.header("Allow")) == (204, b"", "GET")

    def test_redirect_names_its_target(self, serve: Serve) -> None:
        answer = ask(serve(ViewResource(Seen(make_redirect(b"/there")).view)), "GET", "/")
        assert (answer.status, answer.header("Location")) == (302, "/there")

    def test_large_body_is_sent_whole(self, serve: Serve) -> None:
        body = bytes(range(256)) * 1000
        answer = ask(serve(ViewResource(Seen(make_response(HTTPStatus.OK, TEXT, body, {})).view)), "GET", "/")
        assert answer.body == body

    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    def test_streamed_response_is_sent_in_order(self, serve: Serve, method: str) -> None:
        async def body() -> AsyncGenerator[list[bytes]]:
            yield [b"one ", b"two "]
            yield [b"three"]

        async def view(_request: Request) -> StreamedResponse:
            return make_streamed_response(TEXT, body(), {b"ETag": b'"x"'}, length=13)

        answer = ask(serve(ViewResource(view)), method, "/")
        assert (answer.status, answer.body) == (200, b"" if method == "HEAD" else b"one two three")
        assert answer.header("ETag") == '"x"'

    @pytest.mark.parametrize(
        ("error", "status", "after_s"),
        [
            (Problem(404, "Not here."), 404, None),
            (Problem(405, "No.", headers={b"Allow": b"GET"}), 405, None),
            (StoreUnavailableError("away"), 503, "1"),
            (LoginsBusyError(), 503, "1"),
            (TooManyFailuresError(7), 429, "7"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_error_has_its_status(self, serve: Serve, error: Exception, status: int, after_s: str | None) -> None:
        answer = ask(serve(ViewResource(Seen(error).view)), "GET", "/")
        assert (answer.status, answer.header("Retry-After")) == (status, after_s)
        assert answer.header("Content-Type") == "text/plain; charset=utf-8"

    def test_error_of_a_browser_is_a_page(self, serve: Serve) -> None:
        answer = ask(serve(error_page(Problem(404, "Not here."))), "GET", "/", headers={"Accept": "text/html"})
        assert (answer.status, answer.header("Content-Type")) == (404, "text/html; charset=utf-8")
        assert b"Not here." in answer.body

    def test_other_exception_is_500_and_logged(self, serve: Serve) -> None:
        with capturedLogs() as events:
            answer = ask(serve(ViewResource(Seen(ZeroDivisionError("secret")).view)), "GET", "/")
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert [event for event in events if "log_failure" in event]

    def test_error_within_a_response_aborts_the_connection(self, serve: Serve) -> None:
        async def body() -> AsyncGenerator[list[bytes]]:
            yield [b"one "]
            raise StoreUnavailableError("away")

        async def view(_request: Request) -> StreamedResponse:
            return make_streamed_response(TEXT, body(), {}, length=13)

        exchange = begin(serve(ViewResource(view)), "GET", "/")
        assert exchange.transport.aborted
        assert exchange.transport.value().endswith(b"\r\n\r\none ")


class WaitingTests:
    """Views that wait, and clients that do not."""

    @staticmethod
    def begin_waiting(serve: Serve) -> tuple[Exchange, "Deferred[Response]", list[str]]:
        cancelled: list[str] = []
        waiting: Deferred[Response] = Deferred(lambda _: cancelled.append("cancelled"))

        async def view(_request: Request) -> Response:
            return await waiting

        return begin(serve(ViewResource(view)), "GET", "/"), waiting, cancelled

    def test_response_is_sent_when_it_is_made(self, serve: Serve) -> None:
        exchange, waiting, _ = self.begin_waiting(serve)
        assert not exchange.has_begun
        waiting.callback(OK)
        assert exchange.response().body == b"fine\n"

    def test_error_is_sent_when_it_occurs(self, serve: Serve) -> None:
        exchange, waiting, _ = self.begin_waiting(serve)
        waiting.errback(Problem(409, "Not now."))
        assert exchange.response().status == 409

    def test_disconnect_cancels_the_view(self, serve: Serve) -> None:
        exchange, _, cancelled = self.begin_waiting(serve)
        exchange.disconnect()
        assert cancelled == ["cancelled"]
        assert not exchange.has_begun

    def test_disconnected_request_has_no_channel(self, serve: Serve) -> None:
        seen = Seen()

        async def view(request: Request) -> Response:
            await seen.view(request)
            with suppress(CancelledError):
                await Deferred()
            return OK

        exchange = begin(serve(ViewResource(view)), "GET", "/")
        assert seen.requests[0].channel is not None
        with capturedLogs() as events:
            exchange.disconnect()
        assert seen.requests[0].channel is None
        assert not [event for event in events if "log_failure" in event]


def basic(password: str = "pw") -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'alice:{password}'.encode()).decode()}"}


class GuardTests:
    """A guard, whose checker answers at once or later."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def portal(self, clock: Clock) -> CoroutinePortal:
        store = MemoryLogins(reactor=clock)
        result_of(store.start())
        throttle = Throttle(store, failures=3, address_failures=9, account_failures=9, window_s=9, clock=clock)
        users = InMemoryUsernamePasswordDatabaseDontUse(alice=b"pw")
        return CoroutinePortal(Realm(), [StockChecker(users, throttle, clock=clock)])

    @pytest.fixture
    def guarded(self, serve: Serve, portal: CoroutinePortal) -> Callable[..., Worker]:
        """A function that serves a resource behind a guard."""

        def guarded(resource: IResource, kind: type[Guard] = Guard) -> Worker:
            clients = PeerResolver()
            return serve(kind(portal, [BasicCredentialFactory("postd", clients)], resource, clients=clients))

        return guarded

    def test_right_credentials_lead_to_the_resource(self, guarded: Callable[..., Worker]) -> None:
        seen = Seen()
        assert ask(guarded(ViewResource(seen.view)), "GET", "/a/b", headers=basic()).body == b"fine\n"
        identity = seen.requests[0].identity
        assert identity is not None
        assert (identity.name, identity.scheme) == ("alice", "basic")

    @pytest.mark.parametrize("headers", [{}, basic("wrong"), {"Authorization": "Basic !"}, {"Authorization": "Foo x"}])
    def test_other_credentials_are_401(self, guarded: Callable[..., Worker], headers: dict[str, str]) -> None:
        answer = ask(guarded(ViewResource(Seen().view)), "GET", "/", headers=headers)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, ['Basic realm="postd"'])
        assert answer.header("Cache-Control") == "no-store"

    def test_two_fields_are_400_and_a_long_one_is_431(self, guarded: Callable[..., Worker]) -> None:
        server = guarded(ViewResource(Seen().view))
        values = [basic()["Authorization"]] * 2
        assert ask(server, "GET", "/", headers={"Authorization": values}).status == 400
        assert ask(server, "GET", "/", headers={"Authorization": "Basic " + "x" * 9000}).status == 431

    def test_throttled_client_gets_429(self, guarded: Callable[..., Worker]) -> None:
        server = guarded(ViewResource(Seen().view))
        statuses = [ask(server, "GET", "/", headers=basic("wrong")).status for _ in range(4)]
        assert statuses == [401, 401, 401, 429]
        assert ask(server, "GET", "/", headers=basic(), peer="192.0.2.7").status == 200

    def test_cross_site_write_is_403(self, guarded: Callable[..., Worker]) -> None:
        headers = {**basic(), "Origin": "http://evil.example"}
        assert ask(guarded(ViewResource(Seen().view)), "POST", "/", b"", headers).status == 403

    def test_preflight_is_204(self, guarded: Callable[..., Worker]) -> None:
        headers = {"Origin": "http://elsewhere", "Access-Control-Request-Method": "POST"}
        assert ask(guarded(ViewResource(Seen().view)), "OPTIONS", "/", headers=headers).status == 204

    def test_tree_below_a_guard_is_traversed(self, guarded: Callable[..., Worker]) -> None:
        tree = Resource()
        tree.putChild(b"child", Data(b"the child", "text/plain"))
        server = guarded(tree)
        assert ask(server, "GET", "/child", headers=basic()).body == b"the child"
        assert ask(server, "GET", "/child").status == 401

    def test_responses_of_applications_are_private(self, guarded: Callable[..., Worker]) -> None:
        server = guarded(Data(b"x", "text/plain"), PrivateGuard)
        answer = ask(server, "GET", "/", headers=basic())
        assert (answer.header("Cache-Control"), answer.header("Vary")) == ("private", "Authorization")

    def test_login_that_waits_leads_to_the_resource_later(self, serve: Serve) -> None:
        exchange, checked = self.begin_login(serve)
        assert not exchange.has_begun
        checked.callback(b"alice")
        assert exchange.response().body == b"fine\n"

    def test_login_continues_when_the_client_disconnects(self, serve: Serve) -> None:
        exchange, checked = self.begin_login(serve)
        exchange.disconnect()
        checked.callback(b"alice")  # raises AlreadyCalledError if it was cancelled

    @staticmethod
    def begin_login(serve: Serve) -> tuple[Exchange, "Deferred[bytes]"]:
        checked: Deferred[bytes] = Deferred()

        class Slow(InMemoryUsernamePasswordDatabaseDontUse):
            def requestAvatarId(self, _credentials: Any) -> Any:
                return checked

        clock = Clock()
        store = MemoryLogins(reactor=clock)
        result_of(store.start())
        throttle = Throttle(store, failures=9, address_failures=9, account_failures=9, window_s=9, clock=clock)
        portal = CoroutinePortal(Realm(), [StockChecker(Slow(), throttle, clock=clock)])
        clients = PeerResolver()
        view: View = Seen().view
        guard = Guard(portal, [BasicCredentialFactory("postd", clients)], ViewResource(view), clients=clients)
        return begin(serve(guard), "GET", "/", headers=basic()), checked
