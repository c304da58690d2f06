"""CORS: access of pages of other origins to the API (Fetch standard)."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cases import each
from tests.helpers import InMemoryApi, Response
from tests.web.clients import basic
from tests.web.test_posts import check_problem
from tests.web.wire import ask, begin, begin_raw, decode_response

APP = "https://app.example"
OTHERS = ["http://localhost:3000", "capacitor://localhost", "safari-web-extension://0F1E-2D3C"]
LISTED = f"[api]\ncors_origins = {[APP, *OTHERS]}\n"
WILDCARD = "[api]\ncors_origins = ['*']\n"
BASIC = "read = ['basic']\nwrite = ['basic']\n"
JSON = {"Content-Type": "application/json"}
BODY = b'{"post":"x"}'
PATHS = ["/post", "/post/1", "/post?limit=1", "/post/events", "/openapi.json", "/.well-known/oauth-protected-resource"]

Make = Callable[..., InMemoryApi]


def cors_in(answer: Response) -> dict[str, list[str]]:
    prefix = "access-control-"
    return {name.removeprefix(prefix): lines for name, lines in answer.headers.items() if name.startswith(prefix)}


def varies_by_origin(answer: Response) -> bool:
    return "Origin" in ", ".join(answer.headers.get("vary", [])).split(", ")


def from_page(origin: Any = APP, **more: str) -> dict[str, Any]:
    return {"Origin": origin, "Sec-Fetch-Site": "cross-site", **more}


def preflight(method: str, origin: Any = APP) -> dict[str, Any]:
    return from_page(origin) | {
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization,content-type",
    }


def words(answer: Response, name: str) -> set[str]:
    return {word.lower() for word in (answer.header(name) or "").split(", ")}


def check_readable(answer: Response, origin: str = APP) -> None:
    """Check that a browser lets a page of this origin read the response."""
    cors = cors_in(answer)
    assert cors.pop("allow-origin") == [origin]
    (exposed,) = cors.pop("expose-headers")
    assert set(exposed.split(", ")) == {
        *("ETag", "Link", "Location", "Retry-After", "WWW-Authenticate", "Authentication-Info", "X-Request-Id"),
    }
    assert cors == {}
    assert varies_by_origin(answer) == (origin != "*")


def check_allowed(answer: Response, method: str, origin: str = APP) -> None:
    """Check that a browser sends the request after this preflight response."""
    assert (answer.status, answer.body) == (204, b"")
    assert answer.header("Access-Control-Allow-Origin") == origin
    assert method.lower() in words(answer, "Access-Control-Allow-Methods")
    assert words(answer, "Access-Control-Allow-Headers") == {
        *(
            "authorization",
            "dpop",
            "content-type",
            "if-match",
            "if-none-match",
            "idempotency-key",
            "last-event-id",
            "x-request-id",
        ),
    }
    assert answer.header("Access-Control-Max-Age") == "600"
    assert answer.header("Access-Control-Allow-Credentials") is None
    assert answer.header("Allow")
    assert "www-authenticate" not in answer.headers


def refusal(api: InMemoryApi, sent: bytes) -> Response:
    """Return the response to a request that is not complete, in the end because of its time limit."""
    exchange = begin_raw(api, sent)
    if not exchange.has_begun:
        exchange.channel.pass_deadline()
    return decode_response(exchange.transport.value())


class ListedTests:
    @pytest.fixture
    def api(self, make: Make) -> InMemoryApi:
        api = make(LISTED)
        api.add("one")
        return api

    @pytest.mark.parametrize("origin", [APP, *OTHERS])
    def test_page_of_an_allowed_origin_reads_and_writes(self, api: InMemoryApi, origin: str) -> None:
        headers = from_page(origin)
        for method, path, body, status in (
            ("GET", "/post", None, 200),
            ("HEAD", "/post", None, 200),
            ("GET", "/post/1", None, 200),
            ("GET", "/openapi.json", None, 200),
            ("POST", "/post", BODY, 201),
            ("PUT", "/post/1", BODY, 200),
            ("DELETE", "/post/1", None, 200),
        ):
            answer = ask(api, method, path, body, headers | JSON)
            assert answer.status == status
            check_readable(answer, origin)

    def test_event_stream_is_readable(self, api: InMemoryApi) -> None:
        asked = begin(api, "GET", "/post/events", None, from_page())
        api.clock.advance(0)
        head = asked.transport.value().partition(b"\r\n\r\n")[0].decode("ascii").split("\r\n")
        assert f"Access-Control-Allow-Origin: {APP}" in head
        assert "Vary: Origin" in head
        asked.disconnect()

    def test_errors_are_readable(self, api: InMemoryApi) -> None:
        for method, path, body, headers, status in (
            ("GET", "/post/7", None, {}, 404),
            ("GET", "/post/x", None, {}, 404),
            ("GET", "/.well-known/nothing", None, {}, 404),
            ("GET", "/post?limit=0", None, {}, 400),
            ("POST", "/post", b"{", JSON, 400),
            ("POST", "/post", BODY, {}, 415),
            ("POST", "/post", b'{"post":""}', JSON, 422),
            ("PATCH", "/post", BODY, JSON, 405),
            ("PUT", "/post/1", BODY, JSON | {"If-Match": '"x"'}, 412),
        ):
            answer = ask(api, method, path, body, from_page() | headers)
            assert answer.status == status
            assert answer.header("Content-Type") == "application/problem+json"
            check_readable(answer)

    @each(
        "fields, body, status",
        [
            (b"Content-Length: 99999", b"", 413),
            (b"Transfer-Encoding: chunked", b"4e20\r\n" + b"x" * 20_000 + b"\r\n0\r\n\r\n", 413),
            (b"Transfer-Encoding: chunked", b"x\r\n", 400),
            (b"Content-Length: 12", b"{", 408),
        ],
    )
    def test_refused_body_is_readable(self, api: InMemoryApi, fields: bytes, body: bytes, status: int) -> None:
        for target in (b"/post", b"/post/1", b"/post/x", b"/%70ost"):
            head = b"PUT %b HTTP/1.1\r\nHost: localhost\r\nOrigin: %b\r\n%b\r\n\r\n" % (target, APP.encode(), fields)
            answer = refusal(api, head + body)
            check_problem(answer, status)
            check_readable(answer)
            other = refusal(api, head.replace(APP.encode(), b"https://evil.example") + body)
            assert other.status == status
            assert cors_in(other) == {}
            page = refusal(api, head.replace(target, b"/login") + body)
            assert page.status == status
            assert cors_in(page) == {}

    def test_503_is_readable(self, api: InMemoryApi) -> None:
        api.close()
        for method in ("GET", "POST"):
            answer = ask(api, method, "/post", BODY if method == "POST" else None, from_page() | JSON)
            assert answer.status == 503
            check_readable(answer)

    def test_304_is_readable(self, api: InMemoryApi) -> None:
        for path in ("/post", "/post/1", "/openapi.json"):
            etag = ask(api, "GET", path).header("ETag") or ""
            answer = ask(api, "GET", path, None, from_page() | {"If-None-Match": etag})
            assert answer.status == 304
            check_readable(answer)

    @each("path", [*PATHS, "/post/x", "/post/0", "/post/1/x", "/.well-known/x", "/%70ost"])
    def test_preflight_is_204(self, api: InMemoryApi, path: str) -> None:
        for method in ("GET", "POST", "PUT", "DELETE"):
            answer = ask(api, "OPTIONS", path, None, preflight(method))
            check_allowed(answer, method)
            assert varies_by_origin(answer)

    def test_preflight_lists_methods_and_headers(self, api: InMemoryApi) -> None:
        for path, allow in (
            ("/post", "GET, HEAD, OPTIONS, POST"),
            ("/post/1", "DELETE, GET, HEAD, OPTIONS, PUT"),
            ("/post/x", "OPTIONS"),
        ):
            assert ask(api, "OPTIONS", path, None, preflight("GET")).header("Allow") == allow

    @each(
        "origin",
        [
            *("https://evil.example", "null", "", "*", "http://app.example", "https://app.example:443", "app.example"),
            *("https://app.example:8443", "https://app.example/", "https://app.example.evil.example", "//app.example"),
            *("https://APP.example", "HTTPS://app.example", "https://xapp.example", "https://app.example, x"),
            *("http://localhost:3001", "http://localhost", "https://app.example https://app.example", b"\xff"),
        ],
    )
    def test_other_origin_gets_no_cors_fields(self, api: InMemoryApi, origin: Any) -> None:
        for method, headers in (("GET", from_page(origin)), ("OPTIONS", preflight("POST", origin))):
            answer = ask(api, method, "/post", None, headers)
            assert answer.status == (200 if method == "GET" else 204)
            assert cors_in(answer) == {}
            assert varies_by_origin(answer)

    @pytest.mark.parametrize("origins", [[APP, APP], [APP, "https://evil.example"], ["https://evil.example", APP]])
    def test_repeated_origin_gets_no_cors_fields(self, api: InMemoryApi, origins: list[str]) -> None:
        for method, headers in (("GET", from_page(origins)), ("OPTIONS", preflight("POST", origins))):
            answer = ask(api, method, "/post", None, headers)
            assert cors_in(answer) == {}

    def test_vary_is_sent_without_an_origin_too(self, api: InMemoryApi) -> None:
        for method, path in (("GET", "/post"), ("GET", "/post/1"), ("GET", "/post/7"), ("OPTIONS", "/post")):
            answer = ask(api, method, path)
            assert cors_in(answer) == {}
            assert varies_by_origin(answer)
        assert "Accept-Encoding" in ask(api, "GET", "/post").headers["vary"]

    def test_options_without_request_method_is_not_a_preflight(self, api: InMemoryApi) -> None:
        answer = ask(api, "OPTIONS", "/post", None, from_page())
        assert (answer.status, answer.header("Allow")) == (204, "GET, HEAD, OPTIONS, POST")
        check_readable(answer)
        assert ask(api, "OPTIONS", "/post/x", None, from_page()).status == 404

    @each("path", ["/", "/login", "/home", "/logout", "/docs", "/basic", "/digest", "/nothing"])
    def test_pages_have_no_cors_fields(self, api: InMemoryApi, path: str) -> None:
        for method, headers in (("GET", from_page()), ("OPTIONS", preflight("POST"))):
            answer = ask(api, method, path, None, headers)
            assert cors_in(answer) == {}
            assert not varies_by_origin(answer)

    def test_private_network_access_is_not_granted(self, api: InMemoryApi) -> None:
        headers = preflight("POST") | {"Access-Control-Request-Private-Network": "true"}
        answer = ask(api, "OPTIONS", "/post", None, headers)
        assert answer.header("Access-Control-Allow-Private-Network") is None


class ProtectedTests:
    @pytest.fixture
    def api(self, make: Make) -> InMemoryApi:
        return make(LISTED + BASIC)

    def test_preflight_needs_no_credentials(self, api: InMemoryApi) -> None:
        for path in PATHS:
            check_allowed(ask(api, "OPTIONS", path, None, preflight("DELETE")), "DELETE")

    def test_explicit_credentials_are_accepted(self, api: InMemoryApi) -> None:
        answer = ask(api, "POST", "/post", BODY, from_page() | JSON | basic())
        assert answer.status == 201
        check_readable(answer)

    @pytest.mark.parametrize("credentials", [{}, basic(password="wrong"), {"Authorization": ["Basic x", "Basic y"]}])
    def test_401_is_readable(self, api: InMemoryApi, credentials: dict[str, Any]) -> None:
        answer = ask(api, "GET", "/post", None, from_page() | credentials)
        assert answer.status in {400, 401}
        check_readable(answer)

    def test_429_is_readable(self, make: Make) -> None:
        api = make(LISTED + BASIC + "[throttle]\nfailures = 1\n")
        for status in (401, 429):
            answer = ask(api, "GET", "/post", None, from_page() | basic(password="wrong"))
            assert answer.status == status
            check_readable(answer)

    def test_cross_site_write_with_a_cookie_is_refused(self, make: Make) -> None:
        api = make(LISTED + "read = ['session']\nwrite = ['session']\n")
        answer = ask(api, "POST", "/post", BODY, from_page() | JSON | {"Cookie": "session=x"})
        check_problem(answer, 403)
        check_readable(answer)
        check_allowed(ask(api, "OPTIONS", "/post", None, preflight("POST")), "POST")


class WildcardTests:
    @pytest.fixture
    def api(self, make: Make) -> InMemoryApi:
        return make(WILDCARD)

    @each("headers", [{}, from_page(), from_page("null"), from_page("https://x.example"), from_page([APP, APP])])
    def test_wildcard_is_the_same_for_every_origin(self, api: InMemoryApi, headers: dict[str, Any]) -> None:
        for path, status in (("/post", 200), ("/post/7", 404), ("/openapi.json", 200), ("/.well-known/x", 404)):
            answer = ask(api, "GET", path, None, headers)
            assert answer.status == status
            check_readable(answer, "*")

    def test_wildcard_preflight_is_the_same_for_every_origin(self, api: InMemoryApi) -> None:
        for origin in (APP, "null"):
            check_allowed(ask(api, "OPTIONS", "/post", None, preflight("PUT", origin)), "PUT", "*")


class DisabledTests:
    def test_no_cors_fields_without_origins(self, api: InMemoryApi) -> None:
        for path in PATHS:
            for method, headers in (("HEAD", from_page()), ("OPTIONS", preflight("POST"))):
                answer = ask(api, method, path, None, headers) if path != "/post/events" else ask(api, "OPTIONS", path)
                assert cors_in(answer) == {}
                assert not varies_by_origin(answer)
        assert json.loads(ask(api, "GET", "/post", None, from_page()).body) == []
