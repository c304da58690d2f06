"""Pages for people: errors, failed logins and `/home`, for clients that prefer HTML (reference: Pages for browsers)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from postd.http.pages.template import STYLE
from tests.cases import each
from tests.helpers import InMemoryApi, Response, forget_own, result_of
from tests.protect.test_login import CHALLENGE, Page, check_page, send_form, with_cookie
from tests.web.clients import PASSWORD, basic
from tests.web.wire import ask

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PROGRAMS: list[dict[str, Any]] = [
    {},
    {"Accept": "*/*"},
    {"Accept": "text/html, text/plain"},
    {"Accept": ["text/plain", "text/html;q=0.9"]},
    {"Accept": "application/json"},
    {"Accept": "text/html;q=2"},
]
FETCH = {"Sec-Fetch-Mode": "cors"}
"""A page's script requests it: a browser that opens a page with sessions is redirected to the form."""
ODD_NAMES = ["", "alice", "<script>alert(1)</script>", "\"'>&amp;$next", "jürgen\t🚀", "&" * 2700]
SETTINGS = """
[throttle]
failures = 2
[[page]]
path = "/basic"
schemes = ["basic"]
[[page]]
path = "/both"
schemes = ["basic", "session"]
[[page]]
path = "/mine"
schemes = ["basic"]
users = ["bob"]
"""
TEXT_POLICY = "default-src 'none'; frame-ancestors 'none'"
COMMON = {
    "cache-control": ["no-store"],
    "referrer-policy": ["same-origin"],
    "x-content-type-options": ["nosniff"],
    "x-frame-options": ["DENY"],
    "vary": ["Accept"],
}
"""The fields of all answers here, whatever their form."""

ALICE = {"username": "alice", "password": PASSWORD}
WRONG = ALICE | {"password": "wrong"}
BASIC = {"www-authenticate": ['Basic realm="postd"']}
COOKIE = {"www-authenticate": [CHALLENGE]}

Send = Callable[[InMemoryApi, dict[str, Any]], Response]


def get(path: str, more: dict[str, Any] | None = None, method: str = "GET") -> Send:
    return lambda api, headers: ask(api, method, path, None, headers | (more or {}))


def log_in(fields: Any = WRONG, more: dict[str, Any] | None = None) -> Send:
    return lambda api, headers: send_form(api, fields, headers | (more or {}))


def after_failures(send: Send) -> Send:
    def fail_first(api: InMemoryApi, headers: dict[str, Any]) -> Response:
        for _ in range(2):
            send_form(api, WRONG)
        return send(api, headers)

    return fail_first


def without_store(send: Send) -> Send:
    def stop_first(api: InMemoryApi, headers: dict[str, Any]) -> Response:
        result_of(api.store.stop())
        return send(api, headers)

    return stop_first


CASES: dict[str, tuple[Send, int, str, dict[str, list[str]], str]] = {
    "no credentials": (get("/basic"), 401, "Unauthorized\n", BASIC, "Reload this page, and enter your user name"),
    "wrong ones": (get("/basic", basic(password="x")), 401, "Unauthorized\n", BASIC, "The credentials are invalid."),
    "form is possible": (get("/both", FETCH), 401, "Unauthorized\n", BASIC, '<a href="/">Sign in with the form</a>'),
    "not authorized": (get("/mine", basic()), 403, "Forbidden\n", {}, "You are not authorized"),
    "cross-site": (
        log_in(more={"Sec-Fetch-Site": "cross-site"}),
        403,
        "Forbidden\n",
        {},
        "A page of another site sent this request.",
    ),
    "not found": (
        get("/basic/below", basic()),
        404,
        "Not Found\n",
        {},
        '<p>There is nothing at this address.</p>\n<a href="/">Go to the start page</a>',
    ),
    "method": (
        get("/basic", basic(), "DELETE"),
        405,
        "Method Not Allowed\n",
        {"allow": ["GET, HEAD"]},
        "Allowed methods: GET, HEAD.",
    ),
    "throttled": (
        after_failures(get("/basic", basic())),
        429,
        "Too Many Requests\n",
        {"retry-after": ["300"]},
        "<p>Too many failed logins. Try again in 300 seconds.</p>",
    ),
    "store": (
        without_store(get("/both", with_cookie("A" * 43))),
        503,
        "Service Unavailable\n",
        {"retry-after": ["1"]},
        "<p>The store is not available. Try again in 1 second.</p>",
    ),
    "login": (log_in(), 401, "Login failed\n", COOKIE, 'role="alert">Login failed</p>'),
    "unknown user": (log_in(WRONG | {"username": "x"}), 401, "Login failed\n", COOKIE, 'role="alert">Login failed</p>'),
    "empty form": (log_in(b""), 401, "Login failed\n", COOKIE, 'role="alert">Login failed</p>'),
    "login throttled": (
        after_failures(log_in(ALICE)),
        429,
        "Too Many Requests\n",
        {"retry-after": ["300"]},
        'role="alert">Too many failed logins. Try again in 300 seconds.</p>',
    ),
    "login without store": (
        without_store(log_in()),
        503,
        "Service Unavailable\n",
        {"retry-after": ["1"]},
        'role="alert">The store is not available. Try again in 1 second.</p>',
    ),
    "no form": (
        log_in(more={"Content-Type": "text/plain"}),
        415,
        "Unsupported Media Type\n",
        {},
        "The form must be sent as Content-Type: application/x-www-form-urlencoded.",
    ),
}


@pytest.fixture
def api(make: Callable[..., InMemoryApi]) -> InMemoryApi:
    return make(SETTINGS)


def fields_of(answer: Response) -> dict[str, list[str]]:
    """Return the fields of an answer without those that every answer of its front has."""
    forget_own(answer)
    # A guard of a stock site adds it to what is inside; here it is to be there beside Accept.
    answer.headers["vary"] = [value for value in answer.headers["vary"] if value != "Authorization"]
    return {name: values for name, values in answer.headers.items() if name not in {"server", "connection"}}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("headers", PROGRAMS)
def test_programs_get_text(api: InMemoryApi, case: str, headers: dict[str, Any]) -> None:
    send, status, body, own, _ = CASES[case]
    answer = send(api, headers)
    assert (answer.status, answer.body) == (status, body.encode())
    assert fields_of(answer) == {
        **COMMON,
        **own,
        "content-type": ["text/plain; charset=utf-8"],
        "content-length": [str(len(body))],
        "content-security-policy": [TEXT_POLICY],
    }


@pytest.mark.parametrize("case", CASES)
def test_browsers_get_a_page_with_the_same_fields(api: InMemoryApi, case: str) -> None:
    send, status, _, own, said = CASES[case]
    answer = send(api, BROWSER)
    assert answer.status == status
    assert said in answer.body.decode()
    check_page(answer)
    check_self_contained(answer)
    policy = ask(api, "GET", "/").header("Content-Security-Policy")
    assert fields_of(answer) == {
        **COMMON,
        **own,
        "content-type": ["text/html; charset=utf-8"],
        "content-length": [str(len(answer.body))],
        "content-security-policy": [policy],
    }


def check_self_contained(answer: Response) -> None:
    page = Page(answer)
    assert not {tag for tag, _ in page.tags} & {"script", "img", "link", "iframe", "object", "base"}
    assert page.styles == [STYLE]
    assert [attributes["lang"] for attributes in page.all("html")] == ["en"]
    assert len(page.all("h1")) == 1


@each("path", ["/basic", "/basic/below", "/mine", "/both"])
@each("credentials", [{}, basic()], ids=["none", "alice"])
def test_head_has_the_fields_of_get(api: InMemoryApi, path: str, credentials: dict[str, Any]) -> None:
    got, head = (ask(api, method, path, None, BROWSER | credentials) for method in ("GET", "HEAD"))
    forget_own(got, head)
    assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")


def test_success_of_a_page_stays_text(api: InMemoryApi) -> None:
    plain, html = (ask(api, "GET", "/basic", None, basic() | headers) for headers in ({}, BROWSER))
    forget_own(plain, html)
    assert plain == html
    assert "Accept" not in (plain.header("Vary") or "")


@each("name", ODD_NAMES)
def test_failed_login_keeps_the_user_name_and_the_way_back(api: InMemoryApi, name: str) -> None:
    answer = send_form(api, {"username": name, "password": "wrong & secret", "next": "/a?b=c&d=\"'"}, BROWSER)
    assert answer.status == 401
    page = Page(answer)
    fields = {field.get("name") or field["type"]: field for field in page.all("input")}
    assert list(fields) == ["next", "username", "password", "submit"]
    assert (fields["username"]["value"], fields["next"]["value"]) == (name, "/a?b=c&d=\"'")
    assert "value" not in fields["password"]
    assert "secret" not in answer.body.decode()
    assert [name for name, field in fields.items() if "autofocus" in field] == ["password"]
    (alert,) = [attributes for attributes in page.all("p") if attributes.get("role") == "alert"]
    assert alert["id"] == fields["password"]["aria-describedby"]
    again = send_form(api, ALICE | {"next": fields["next"]["value"]}, BROWSER)
    assert (again.status, again.header("Location")) == (302, "/a?b=c&d=\"'")


def test_throttled_login_keeps_the_way_back(api: InMemoryApi) -> None:
    for fields in (WRONG, WRONG, ALICE):
        answer = send_form(api, fields | {"next": "/board?before=7"}, BROWSER)
    assert answer.status == 429
    assert [field["value"] for field in Page(answer).all("input") if field.get("name") == "next"] == ["/board?before=7"]


def test_unsafe_way_back_is_dropped(api: InMemoryApi) -> None:
    assert b"evil" not in send_form(api, WRONG | {"next": "//evil.example"}, BROWSER).body


def test_page_is_the_same_for_wrong_user_and_wrong_password(api: InMemoryApi) -> None:
    bodies = [send_form(api, {"username": name, "password": "x"}, BROWSER).body for name in ("alice", "carol")]
    assert bodies[0].replace(b"alice", b"carol") == bodies[1]


@pytest.mark.parametrize("part", ["<script>x</script>", "\"onload=x'"])
def test_no_page_echoes_the_request(api: InMemoryApi, part: str) -> None:
    hostile = {"User-Agent": part, "X-Request-Id": part, "Referer": part, "Cookie": f"session={part}"}
    for path in (f"/basic/{quote(part)}?{quote(part)}", f"/mine?x={quote(part)}"):
        for credentials in ({}, basic(), basic(part, part)):
            answer = ask(api, "GET", path, None, BROWSER | hostile | credentials)
            assert answer.status >= 400
            assert "onload" not in answer.body.decode()
            assert "script" not in answer.body.decode()


class OwnFrontTests:
    """What a stock site leaves to the application."""

    def sign_in(self, api: InMemoryApi) -> dict[str, Any]:
        return {"Cookie": (send_form(api, ALICE).header("Set-Cookie") or "").partition(";")[0]}

    @pytest.mark.parametrize(
        ("settings", "has_board"),
        [
            ("", True),
            ("[api]\nread = ['session']\n", True),
            ("[api]\nread = ['basic']\n", False),
            ("[board]\nenabled = false\n", False),
        ],
    )
    def test_home(self, make: Callable[..., InMemoryApi], settings: str, *, has_board: bool) -> None:
        api = make(settings)
        session = self.sign_in(api)
        plain, html = (ask(api, "GET", "/home", None, session | headers) for headers in ({}, BROWSER))
        assert plain.body == b"Success: alice\n"
        links = [attributes["href"] for attributes in Page(html).all("a")]
        assert links == [*(["/board"] if has_board else []), "/account", "/logout", "/docs"]
        assert "<h1>Success: alice</h1>" in html.body.decode()
        assert "postd" in html.body.decode()
        check_page(html)
        check_self_contained(html)
        form = {**fields_of(plain), "content-type": ["text/html; charset=utf-8"]}
        form["content-length"] = [str(len(html.body))]
        form["content-security-policy"] = [ask(api, "GET", "/").header("Content-Security-Policy") or ""]
        assert fields_of(html) == form
        assert form["vary"] == ["Authorization, Cookie, Accept"]
        assert form.get("link") == (['</board>; rel="related"'] if has_board else None)
        head = ask(api, "HEAD", "/home", None, session | BROWSER)
        assert (head.status, fields_of(head), head.body) == (200, form, b"")

    def test_unknown_path_is_404_with_a_link_to_the_start(self, api: InMemoryApi) -> None:
        answer = ask(api, "GET", "/nothing", None, BROWSER)
        assert answer.status == 404
        assert [attributes["href"] for attributes in Page(answer).all("a")] == ["/"]

    @each("case", CASES)
    def test_page_names_the_realm_above_its_heading(self, make: Callable[..., InMemoryApi], case: str) -> None:
        answer = CASES[case][0](make("realm = 'A & B'\n" + SETTINGS), BROWSER)
        page = answer.body.decode()
        assert '<p class="site">A &amp; B</p>\n<h1>' in page
        assert " \N{EN DASH} A &amp; B</title>" in page

    @pytest.mark.parametrize("below", ["nothing", "secret.txt", "%ff"])
    def test_error_of_a_folder_is_a_page(self, make: Callable[..., InMemoryApi], tmp_path: Path, below: str) -> None:
        (tmp_path / "f").mkdir()
        (tmp_path / "f" / "secret.txt").symlink_to("/etc/passwd")
        api = make(f"[[page]]\npath = '/files'\nschemes = ['basic']\nfiles = '{tmp_path / 'f'}'\n")
        got, head = (ask(api, method, f"/files/{below}", None, basic() | BROWSER) for method in ("GET", "HEAD"))
        assert got.status == 404
        check_page(got)
        check_self_contained(got)
        assert b"<h1>Not Found</h1>" in got.body
        forget_own(got, head)
        assert (head.status, head.headers, head.body) == (404, got.headers, b"")

    @pytest.mark.parametrize("path", ["/board/0", "/board?after=x"])
    def test_error_of_the_board_is_a_page(self, make: Callable[..., InMemoryApi], path: str) -> None:
        api = make("[api]\nread = ['session']\n")
        answer = ask(api, "GET", path, None, self.sign_in(api) | BROWSER)
        assert answer.status in {400, 404}
        check_page(answer)
        check_self_contained(answer)

    @pytest.mark.parametrize("path", ["/post/0", "/post/7", "/post?limit=x", "/.well-known/nothing"])
    def test_errors_of_the_api_are_problem_details(self, api: InMemoryApi, path: str) -> None:
        plain, html = (ask(api, "GET", path, None, headers) for headers in ({}, BROWSER))
        forget_own(plain, html)
        assert plain == html
        assert html.header("Content-Type") == "application/problem+json"
        assert html.header("Vary") is None
