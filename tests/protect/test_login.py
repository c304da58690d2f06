"""Login and logout by form, and attacks on them (reference: Form login)."""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote, quote_plus, urlencode

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.logger import capturedLogs, formatEvent

from postd.daemon.schemes import make_authentication
from postd.daemon.server import make_tree
from postd.protocol.session import Session
from postd.reactor import IReactor, ServiceClock
from postd.settings.loading import LoadedSettings
from postd.settings.schema import Settings
from tests.cases import each
from tests.helpers import FIELD_TEXT, InlineHashThreads, InMemoryApi, Response, forget_own, make_site, result_of
from tests.protect.errors import check_text_error
from tests.web.test_posts import check_problem
from tests.web.wire import FORM, Server, Worker, ask, user_line

EXPIRED = "session=; Path=/; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=0"
CHALLENGE = 'Cookie realm="postd", form-action="/login", cookie-name=session'
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
ALICE = {"username": "alice", "password": "correct horse"}
USERS = {"alice": "correct horse", "bob": "p:w", "jürgen": "pässwörd 🚀", "plus": "a+b &=%41"}

MakeApi = Callable[..., InMemoryApi]


def write_users(folder: Path, users: dict[str, str]) -> None:
    (folder / "users").write_text("".join(user_line(name, password) for name, password in users.items()))


@pytest.fixture
def make_api(tmp_path: Path) -> Iterator[MakeApi]:
    made = []

    def make(settings: str = "", users: dict[str, str] = USERS) -> InMemoryApi:
        write_users(tmp_path, users)
        made.append(InMemoryApi(tmp_path, settings))
        return made[-1]

    yield make
    for api in made:
        api.close()


@pytest.fixture
def api(make_api: MakeApi) -> InMemoryApi:
    return make_api()


@pytest.fixture
def unthrottled_api(make_api: MakeApi) -> InMemoryApi:
    """A server that admits any number of failed logins."""
    return make_api("[throttle]\nfailures = 100000\naddress_failures = 100000\naccount_failures = 100000")


def send_form(
    server: Server, fields: Any = ALICE, headers: dict[str, Any] | None = None, path: str = "/login", **keywords: Any
) -> Response:
    body = fields if isinstance(fields, bytes) else urlencode(fields).encode()
    return ask(server, "POST", path, body, {"Content-Type": FORM} | (headers or {}), **keywords)


def sign_in(server: Server, fields: Any = ALICE, **keywords: Any) -> str:
    """Sign in; return the session's identifier."""
    answer = send_form(server, fields, **keywords)
    assert answer.status == 302
    match = re.match("session=([A-Za-z0-9_-]{22,});", answer.header("Set-Cookie") or "")
    assert match
    return match[1]


def with_cookie(*values: str) -> dict[str, Any]:
    return {"Cookie": "; ".join(f"session={value}" for value in values)}


def home(server: Server, *session_ids: str, **keywords: Any) -> Response:
    return ask(server, "GET", "/home", None, with_cookie(*session_ids) if session_ids else {}, **keywords)


def is_signed_in(server: Server, *session_ids: str) -> bool:
    """Return whether `/home` accepts the session; check its response."""
    answer = home(server, *session_ids)
    if answer.status == 200:
        assert re.fullmatch("Success: .+\n", answer.body.decode())
        return True
    check_redirected_to_form(answer, expires=bool(session_ids))
    return False


def check_page(answer: Response) -> None:
    """Check the headers of all HTML and text pages (reference: Safe by default)."""
    assert answer.header("Cache-Control") == "no-store"
    assert answer.header("X-Content-Type-Options") == "nosniff"
    assert answer.header("Referrer-Policy") == "same-origin"
    assert answer.header("X-Frame-Options") == "DENY"
    policy = answer.header("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def check_text(answer: Response, status: int, body: str) -> None:
    assert (answer.status, answer.body.decode()) == (status, body)
    assert answer.header("Content-Type") == "text/plain; charset=utf-8"
    check_page(answer)


def check_redirected_to_form(answer: Response, *, expires: bool, back: str = "") -> None:
    assert (answer.status, answer.header("Location")) == (302, f"/?next={back}" if back else "/")
    assert answer.header("Set-Cookie") == (EXPIRED if expires else None)
    check_page(answer)


def check_refused(answer: Response) -> None:
    check_text(answer, 401, "Login failed\n")
    assert answer.header("WWW-Authenticate") == CHALLENGE
    assert answer.header("Set-Cookie") is None


def sessions_of(api: InMemoryApi) -> list[Session]:
    return cast("list[Session]", result_of(api.store.list_sessions()))


def writes_of(api: InMemoryApi) -> int:
    """Return how many rows have been written since the store was opened."""
    writer = api.store.database.writer
    assert writer is not None
    return writer.total_changes


class SessionLookups:
    """Counts the queries for sessions."""

    def __init__(self, api: InMemoryApi) -> None:
        self._reader = api.store.database.reader
        self.count = 0

    def __enter__(self) -> Self:
        assert self._reader is not None
        self._reader.set_trace_callback(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._reader is not None
        self._reader.set_trace_callback(None)

    def _note(self, statement: str) -> None:
        self.count += "FROM session" in statement


class Page(HTMLParser):
    """The content of a page: its tags with their attributes, and its style sheet."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.styles: list[str] = []
        self.feed(answer.body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "style" and not self.styles:
            self.styles.append(data)

    def all(self, wanted: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == wanted]


class FormTests:
    """GET `/`."""

    def test_form_matches_the_specification(self, api: InMemoryApi) -> None:
        answer = ask(api, "GET", "/")
        assert (answer.status, answer.header("Content-Type")) == (200, "text/html; charset=utf-8")
        assert answer.header("Set-Cookie") is None
        page = Page(answer)
        (form,) = page.all("form")
        assert (form["name"], form["method"], form["action"]) == ("login_form", "POST", "/login")
        fields = {(field["type"], field.get("name")) for field in page.all("input")}
        assert fields == {("text", "username"), ("password", "password"), ("submit", None)}
        labelled = {label["for"] for label in page.all("label")}
        assert labelled == {field["id"] for field in page.all("input") if field["type"] != "submit"}

    @pytest.mark.parametrize("path", ["/", "/logout"])
    def test_page_is_self_contained_and_has_a_policy(self, api: InMemoryApi, path: str) -> None:
        answer = ask(api, "GET", path)
        check_page(answer)
        page = Page(answer)
        assert not {tag for tag, _ in page.tags} & {"script", "img", "link", "iframe", "object", "base"}
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
        policy = (answer.header("Content-Security-Policy") or "").split("; ")
        (style,) = page.styles
        style_hash = b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert {f"style-src 'sha256-{style_hash}'", "form-action 'self'", "base-uri 'none'"} <= set(policy)
        assert not any(attributes.get("style") for _, attributes in page.tags)

    def test_browser_gets_a_link_to_a_board_that_is_open(self, make_api: MakeApi) -> None:
        for settings, is_open in (
            ("", True),
            ("[api]\nread = ['session']\n", False),
            ("[board]\nenabled = false\n", False),
        ):
            api = make_api(settings)
            plain, html = (ask(api, "GET", "/", None, headers) for headers in ({}, BROWSER))
            links = [[link["href"] for link in Page(answer).all("a")] for answer in (plain, html)]
            assert links == [["/docs"], [*(["/board"] if is_open else []), "/docs"]]
            assert plain.header("Vary") == html.header("Vary") == "Cookie, Accept"

    def test_browser_learns_that_there_are_no_accounts(self, tmp_path: Path) -> None:
        with closing(InMemoryApi(tmp_path)) as api:
            for peer, shown in (
                ("127.0.0.1", "user add alice</code>"),
                ("::1", "user add alice</code>"),
                ("192.0.2.1", ""),
            ):
                text = ask(api, "GET", "/", None, BROWSER, peer=peer).body.decode()
                assert "There are no accounts yet" in text
                assert shown in text
                assert shown or "<code>" not in text
            assert "There are no accounts yet" in send_form(api, headers=BROWSER).body.decode()
            assert b"no accounts" not in ask(api, "GET", "/").body
            (tmp_path / "users").write_text(user_line("alice", "correct horse"))
            api.logins.context.users.refresh()
            assert b"no accounts" not in ask(api, "GET", "/", None, BROWSER).body

    def test_form_with_a_session_redirects_home(self, api: InMemoryApi) -> None:
        answer = ask(api, "GET", "/", None, with_cookie(sign_in(api)))
        assert (answer.status, answer.header("Location"), answer.header("Set-Cookie")) == (302, "/home", None)
        check_page(answer)

    @each("value", ["", "x", "A" * 43, '"', "é", "A" * 5000])
    def test_form_with_an_invalid_cookie_is_shown(self, api: InMemoryApi, value: str) -> None:
        answer = ask(api, "GET", "/", None, with_cookie(value))
        assert (answer.status, answer.body) == (200, ask(api, "GET", "/").body)
        assert answer.header("Set-Cookie") is None

    def test_form_is_not_cached(self, api: InMemoryApi) -> None:
        for headers in ({}, with_cookie(sign_in(api))):
            answer = ask(api, "GET", "/", None, headers)
            assert answer.header("Cache-Control") == "no-store"

    def test_site_name_is_escaped(self, make_api: MakeApi) -> None:
        api = make_api("realm = \"<b>Tom & 'Jerry'</b>\"")
        page = ask(api, "GET", "/").body.decode()
        assert "<b>" not in page
        assert "&lt;b&gt;Tom &amp; &#x27;Jerry&#x27;&lt;/b&gt;" in page


class NextTests:
    """`next`: where the form leads back to."""

    @staticmethod
    def hidden(answer: Response) -> list[dict[str, Any]]:
        assert answer.status == 200
        check_page(answer)
        return [field for field in Page(answer).all("input") if field["type"] == "hidden"]

    @each("path", ["/", "/a/b?c=d&e=%20f", "/a?x=\"<script>'&y", "/grüße", "/a b"])
    def test_form_leads_back(self, api: InMemoryApi, path: str) -> None:
        (field,) = self.hidden(ask(api, "GET", f"/?next={quote(path)}"))
        assert field["name"] == "next"
        answer = send_form(api, ALICE | {"next": field["value"]})
        assert (answer.status, answer.header("Location")) == (302, quote(path, safe="/?=&%\"<>'"))
        session = with_cookie((answer.header("Set-Cookie") or "").partition("=")[2].partition(";")[0])
        assert ask(api, "GET", f"/?next={quote(path)}", None, session).header("Location") == answer.header("Location")

    @each("path", ["", "//evil.example", "/\\evil", "/\t/evil", "https://evil.example/", "a", "/\r\nX: y"])
    def test_unsafe_next_is_ignored(self, api: InMemoryApi, path: str) -> None:
        answer = ask(api, "GET", f"/?next={quote(path, safe='')}")
        assert (answer.status, answer.body) == (200, ask(api, "GET", "/").body)
        signed_in = send_form(api, ALICE | {"next": path})
        assert (signed_in.status, signed_in.header("Location")) == (302, "/home")
        session = with_cookie((signed_in.header("Set-Cookie") or "").partition("=")[2].partition(";")[0])
        assert ask(api, "GET", f"/?next={quote(path, safe='')}", None, session).header("Location") == "/home"

    def test_repeated_next_is_ignored(self, api: InMemoryApi) -> None:
        assert not self.hidden(ask(api, "GET", "/?next=/a&next=/a"))
        body = urlencode([*ALICE.items(), ("next", "/a"), ("next", "/a")]).encode()
        assert send_form(api, body).header("Location") == "/home"

    def test_next_in_the_query_of_login_is_ignored(self, api: InMemoryApi) -> None:
        assert send_form(api, path="/login?next=/a").header("Location") == "/home"

    def test_failed_login_is_the_same_with_next(self, api: InMemoryApi) -> None:
        check_refused(send_form(api, {"username": "alice", "password": "x", "next": "/a"}))


class HeadAndMethodTests:
    def test_head_has_the_headers_of_get_and_no_body(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        for path in ("/", "/logout", "/home", "/nothing"):
            for headers in ({}, with_cookie(session_id), with_cookie("x")):
                got, head = ask(api, "GET", path, None, headers), ask(api, "HEAD", path, None, headers)
                forget_own(got, head)
                assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")

    @pytest.mark.parametrize(
        ("path", "allow"),
        [("/", "GET, HEAD, OPTIONS"), ("/login", "OPTIONS, POST"), ("/logout", "GET, HEAD, OPTIONS, POST")],
    )
    def test_other_method_is_405_with_allow(self, api: InMemoryApi, path: str, allow: str) -> None:
        for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE", "FOO", "get"} - set(allow.split(", ")):
            answer = ask(api, method, path)
            assert (answer.status, answer.header("Allow")) == (405, allow)
            if method != "HEAD":
                check_text(answer, 405, "Method Not Allowed\n")
        answer = ask(api, "OPTIONS", path)
        assert (answer.status, answer.header("Allow"), answer.body) == (204, allow, b"")

    def test_home_allows_reading_only(self, api: InMemoryApi) -> None:
        headers = with_cookie(sign_in(api))
        for method in ("POST", "PUT", "DELETE", "FOO"):
            answer = ask(api, method, "/home", None, headers)
            assert answer.status == 405
            assert {"GET", "HEAD"} <= set((answer.header("Allow") or "").split(", "))
            check_redirected_to_form(ask(api, method, "/home"), expires=False)

    @each("path", ["/login/", "/login/x", "//login", "/logout/", "/logout/x", "/Login", "/login%2F", "//", "/home%2F"])
    def test_path_similar_to_a_page_is_404(self, api: InMemoryApi, path: str) -> None:
        for method in ("GET", "POST"):
            check_text_error(ask(api, method, path, None, with_cookie(sign_in(api))), 404)

    def test_path_below_home_is_404(self, api: InMemoryApi) -> None:
        check_redirected_to_form(ask(api, "GET", "/home/x"), expires=False)
        check_text(ask(api, "GET", "/home/x", None, with_cookie(sign_in(api))), 404, "Not Found\n")


class LoginTests:
    """POST `/login`."""

    def test_correct_password_begins_a_session(self, api: InMemoryApi) -> None:
        answer = send_form(api)
        assert (answer.status, answer.header("Location")) == (302, "/home")
        cookie = answer.header("Set-Cookie") or ""
        assert re.fullmatch("session=[A-Za-z0-9_-]{43}; Path=/; HttpOnly; SameSite=Lax", cookie)
        assert answer.header("WWW-Authenticate") is None
        check_page(answer)
        session_id = cookie.partition(";")[0].partition("=")[2]
        check_text(home(api, session_id), 200, "Success: alice\n")

    @pytest.mark.parametrize(
        "fields",
        [
            {"username": "alice", "password": "wrong"},
            {"username": "unknown", "password": "correct horse"},
            {"username": "Alice", "password": "correct horse"},
            {"username": "alice", "password": "Correct horse"},
            {"username": "alice ", "password": "correct horse"},
            {"username": "alice", "password": "correct horse "},
            {"username": "alice", "password": "correct horse\n"},
            {"username": "alice", "password": "correct horse\0"},
            {"username": "alice\0", "password": "correct horse"},
            {"username": "alice", "password": "x" * 2000},
            {"username": "x" * 2000, "password": "x"},
            {"username": "#alice", "password": "correct horse"},
            {"username": "alice:x", "password": "correct horse"},
            {"username": "bob:p", "password": "w"},
        ],
    )
    def test_wrong_credentials_are_401(self, api: InMemoryApi, fields: dict[str, str]) -> None:
        check_refused(send_form(api, fields))
        assert sessions_of(api) == []

    def test_unknown_user_and_wrong_password_get_the_same_response(self, api: InMemoryApi) -> None:
        answers = []
        for fields in ({"username": "alice", "password": "x"}, {"username": "unknown", "password": "x"}, {}):
            answer = send_form(api, fields)
            forget_own(answer)
            answers.append((answer.status, list(answer.headers.items()), answer.body))
        assert answers[0] == answers[1] == answers[2]

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"&", b"=", b"username", b"username=alice", b"password=correct+horse", b"username=&password="),
            *(b"username=alice&password=", b"username=&password=correct+horse", b"username=alice&password"),
            b"username=alice&username=alice&password=correct+horse",
            b"username=alice&password=correct+horse&password=correct+horse",
            b"username=alice&password=wrong&password=correct+horse",
            b"username=alice&user%6eame=bob&password=correct+horse",
            b"Username=alice&Password=correct+horse",
            b"username[]=alice&password=correct+horse",
            b"username=alice;password=correct+horse",
            b"username=alice\r\npassword=correct horse",
            b'{"username":"alice","password":"correct horse"}',
        ],
    )
    def test_missing_or_repeated_field_is_401(self, api: InMemoryApi, body: bytes) -> None:
        for _ in range(12):  # not counted as failures: no password was verified
            check_refused(send_form(api, body))
        assert sessions_of(api) == []
        sign_in(api)

    def test_fields_in_the_query_are_ignored(self, api: InMemoryApi) -> None:
        check_refused(send_form(api, b"", path=f"/login?{urlencode(ALICE)}"))
        sign_in(api, path="/login?username=bob&password=x")

    def test_other_fields_are_ignored(self, api: InMemoryApi) -> None:
        for more in ("next=https://evil.example/", "return_to=//evil.example", "next=/home&next=/x", "x"):
            for body, path in (
                (f"{urlencode(ALICE)}&{more}".encode(), "/login"),
                (urlencode(ALICE).encode(), f"/login?{more}"),
            ):
                answer = send_form(api, body, path=path)
                assert (answer.status, answer.header("Location")) == (302, "/home")

    @pytest.mark.parametrize("name", USERS)
    def test_user_name_may_be_escaped_or_not(self, api: InMemoryApi, name: str) -> None:
        escapings: list[Callable[[str], str]] = [quote_plus, lambda text: quote(text, safe=""), str]
        if name == "plus":
            escapings.pop()  # must be escaped
        for escape in escapings:
            body = f"username={escape(name)}&password={escape(USERS[name])}".encode()
            check_text(home(api, sign_in(api, body)), 200, f"Success: {name}\n")

    def test_user_name_is_normalized(self, api: InMemoryApi) -> None:
        decomposed = {"username": "ju\u0308rgen", "password": "pa\u0308sswo\u0308rd 🚀"}
        check_text(home(api, sign_in(api, decomposed)), 200, "Success: jürgen\n")

    @each(
        "content_type",
        [
            *("", "text/plain", "application/json", "multipart/form-data; boundary=x", f"{FORM}x", f"x; {FORM}"),
            *([FORM, FORM], [FORM, "text/plain"], f"{FORM}, text/plain", "\xe9"),
        ],
    )
    def test_other_content_type_is_415(self, api: InMemoryApi, content_type: Any) -> None:
        answer = send_form(api, headers={"Content-Type": content_type})
        check_text(answer, 415, "Unsupported Media Type\n")
        assert answer.header("Set-Cookie") is None

    def test_missing_content_type_is_415(self, api: InMemoryApi) -> None:
        check_text(ask(api, "POST", "/login", urlencode(ALICE).encode()), 415, "Unsupported Media Type\n")

    @pytest.mark.parametrize("content_type", [FORM.upper(), f"{FORM};charset=UTF-8", f"{FORM} ; charset=utf-8"])
    def test_content_type_may_have_parameters(self, api: InMemoryApi, content_type: str) -> None:
        sign_in(api, headers={"Content-Type": content_type})

    def test_form_over_8_kib_is_413(self, api: InMemoryApi) -> None:
        body = urlencode(ALICE).encode() + b"&x="
        sign_in(api, body.ljust(8192, b"x"))
        for size in (8193, 16384, 16385, 100_000):
            answer = send_form(api, body.ljust(size, b"x"))
            check_text(answer, 413, "Content Too Large\n")
            assert answer.header("Set-Cookie") is None

    @each(
        "body",
        [
            *(b"username=j\xfcrgen&password=x", b"username=j%FCrgen&password=x", b"username=alice&password=%ff"),
            *(b"username=%ED%A0%80&password=x", b"\xff=x&username=alice&password=x", b"username=%C0%AF&password=x"),
        ],
    )
    def test_invalid_utf_8_is_400(self, api: InMemoryApi, body: bytes) -> None:
        check_text(send_form(api, body), 400, "Bad Request\n")

    def test_any_bytes_are_answered(self, unthrottled_api: InMemoryApi) -> None:
        words = [b"username=", b"password=", b"alice", b"&", b"%", b"%00", b"%C3", b"+", b"="]

        @given(body=st.binary(max_size=60) | st.lists(st.sampled_from(words)).map(b"".join))
        @example(body=b"username=%0&password=%")
        def check(body: bytes) -> None:
            assert send_form(unthrottled_api, body).status in {400, 401}

        check()

    def test_refusal_is_logged_with_its_reason_and_no_secret(self, api: InMemoryApi) -> None:
        with capturedLogs() as events:
            send_form(api, {"username": "alice", "password": "terces-gnorw"})
            send_form(api, {"username": "unknown", "password": "terces-gnorw"})
            session_id = sign_in(api)
            home(api, session_id)
            ask(api, "POST", "/logout", None, with_cookie(session_id))
            home(api, session_id)
            api.clock.advance(1)  # the access log
        log = "\n".join(formatEvent(event) or "" for event in events)
        assert "wrong password" in log
        assert "no such user" in log
        assert "127.0.0.1" in log
        for secret in ("terces-gnorw", "correct horse", "correct+horse", session_id, "$2b$"):
            assert secret not in log


class FixationTests:
    """Session fixation: an identifier that the browser sends is never adopted."""

    def test_planted_session_identifier_is_not_adopted(self, api: InMemoryApi) -> None:
        planted = "A" * 43
        answer = send_form(api, headers=with_cookie(planted))
        assert planted not in (answer.header("Set-Cookie") or "")
        assert not is_signed_in(api, planted)

    def test_earlier_session_of_the_cookie_ends(self, api: InMemoryApi) -> None:
        old = sign_in(api)
        new = sign_in(api, headers=with_cookie(old))
        assert new != old
        assert not is_signed_in(api, old)
        assert is_signed_in(api, new)
        assert len(sessions_of(api)) == 1

    def test_earlier_session_of_another_user_ends(self, api: InMemoryApi) -> None:
        bob = sign_in(api, {"username": "bob", "password": "p:w"})
        new = sign_in(api, headers=with_cookie(bob, "junk"))
        assert not is_signed_in(api, bob)
        check_text(home(api, new), 200, "Success: alice\n")

    def test_sessions_in_other_browsers_continue(self, api: InMemoryApi) -> None:
        here, there = sign_in(api), sign_in(api)
        assert here != there
        assert is_signed_in(api, here)
        assert is_signed_in(api, there)

    def test_account_has_at_most_a_hundred_sessions(self, unthrottled_api: InMemoryApi) -> None:
        api = unthrottled_api
        first, second = sign_in(api), sign_in(api)
        bob = sign_in(api, {"username": "bob", "password": "p:w"})
        api.clock.advance(1)
        for _ in range(98):
            sign_in(api)
        assert is_signed_in(api, first)
        assert is_signed_in(api, second)
        api.clock.advance(1)
        newest = sign_in(api)
        assert [is_signed_in(api, one) for one in (first, second)].count(True) == 1
        assert is_signed_in(api, newest)
        assert is_signed_in(api, bob)

    def test_setting_limits_the_sessions_of_an_account(self, make_api: MakeApi) -> None:
        api = make_api("[session]\nmax_per_account = 2")
        sessions = []
        for _ in range(4):
            sessions.append(sign_in(api))
            api.clock.advance(1)
        assert [is_signed_in(api, one) for one in sessions] == [False, False, True, True]

    def test_failed_login_keeps_the_session(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        check_refused(send_form(api, {"username": "alice", "password": "x"}, headers=with_cookie(session_id)))
        assert is_signed_in(api, session_id)

    def test_store_has_only_the_hash_of_a_session_identifier(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        assert result_of(api.store.get_session(hashlib.sha256(session_id.encode()).digest())).username == "alice"
        writer = api.store.database.writer
        assert writer is not None
        dump = "\n".join(writer.iterdump())
        assert hashlib.sha256(session_id.encode()).hexdigest().upper() in dump
        raw = b"".join(bytes(row[0]) for row in writer.execute("SELECT id_hash FROM session"))
        assert session_id not in dump
        assert session_id.encode().hex().upper() not in dump
        assert session_id.encode() not in raw
        for password in USERS.values():
            assert password not in dump

    def test_session_identifiers_are_unique(self, api: InMemoryApi) -> None:
        assert len({sign_in(api) for _ in range(50)}) == 50


class CookieTests:
    def test_only_valid_session_among_several_cookies_is_accepted(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        for values in (("junk", session_id), (session_id, "junk"), ("A" * 43, session_id, ""), (session_id,) * 2):
            assert is_signed_in(api, *values)
        for lines in ([f"session={session_id}", "session=x"], ["a=b; c", f"; ;x=session=y;session={session_id} ;"]):
            assert ask(api, "GET", "/home", None, {"Cookie": lines}).status == 200

    def test_two_valid_sessions_are_refused(self, api: InMemoryApi) -> None:
        """One of them may have been planted by another site; which one is unknown."""
        alice, bob = sign_in(api), sign_in(api, {"username": "bob", "password": "p:w"})
        assert not is_signed_in(api, alice, bob)
        assert ask(api, "GET", "/", None, with_cookie(alice, bob)).status == 200
        assert is_signed_in(api, alice)
        assert is_signed_in(api, bob)

    def test_expired_session_beside_a_valid_one_is_ignored(self, api: InMemoryApi) -> None:
        ended, valid = sign_in(api), sign_in(api)
        ask(api, "POST", "/logout", None, with_cookie(ended))
        assert is_signed_in(api, ended, valid)

    @each("form", ["{}x", "x{}", '"{}"', "{} x", "%{}", "{}=", "'{}'", "{}\t{}", "{},{}"])
    def test_cookie_similar_to_a_session_is_ignored(self, api: InMemoryApi, form: str) -> None:
        session_id = sign_in(api)
        with SessionLookups(api) as session_lookups:
            assert not is_signed_in(api, form.replace("{}", session_id))
        assert session_lookups.count == 0

    def test_cookie_with_a_similar_name_is_ignored(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        for name in (
            "Session",
            "SESSION",
            "xsession",
            "session ",
            "__Host-session",
            "$session",
            "session[]",
            '"session"',
        ):
            answer = ask(api, "GET", "/home", None, {"Cookie": f"{name}={session_id}"})
            check_redirected_to_form(answer, expires=False)

    @pytest.mark.parametrize(
        "value",
        ["", "x", "a" * 42, "a" * 44, "a" * 257, "a" * 8000, "é" * 43, '"' * 43, "a" * 42 + "=", "a" * 42 + "\t"],
    )
    def test_malformed_identifiers_are_not_looked_up(self, api: InMemoryApi, value: str) -> None:
        with SessionLookups(api) as session_lookups:
            assert not is_signed_in(api, value)
        assert session_lookups.count == 0
        with SessionLookups(api) as session_lookups:
            assert not is_signed_in(api, "a" * 43)
        assert session_lookups.count == 1  # a well-formed identifier is looked up

    def test_malformed_cookies_do_not_hide_a_session(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        malformed = [f"!{n}" for n in range(100)]
        assert is_signed_in(api, *malformed, session_id)
        assert is_signed_in(api, session_id, *malformed)

    def test_thirty_one_unknown_identifiers_do_not_hide_a_session(self, api: InMemoryApi) -> None:
        assert is_signed_in(api, *[f"{n:043}" for n in range(31)] * 2, sign_in(api))

    def test_unknown_identifiers_do_not_hide_the_second_of_two_sessions(self, api: InMemoryApi) -> None:
        """A sibling domain could otherwise make a browser use the attacker's account."""
        mine, planted = sign_in(api), sign_in(api, {"username": "bob", "password": "p:w"})
        for count in (0, 30, 31, 60):
            assert not is_signed_in(api, planted, *[f"{n:043}" for n in range(count)], mine)

    def test_cookie_field_with_too_many_identifiers_causes_no_lookup(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        with SessionLookups(api) as session_lookups:
            assert not is_signed_in(api, *[f"{n:043}" for n in range(300)], session_id)
        assert session_lookups.count == 0

    def test_logout_ends_a_session_among_many_identifiers(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        ask(api, "POST", "/logout", None, with_cookie(*[f"{n:043}" for n in range(300)], session_id))
        assert not is_signed_in(api, session_id)

    def test_any_cookie_is_answered(self, api: InMemoryApi) -> None:
        @given(value=st.binary(max_size=80).filter(lambda value: set(value) <= set(FIELD_TEXT)))
        def check(value: bytes) -> None:
            for cookie in (b"session=" + value, value):
                assert ask(api, "GET", "/home", None, {"Cookie": cookie}).status == 302
                assert ask(api, "GET", "/", None, {"Cookie": cookie}).status == 200

        check()


CROSS_SITE: list[dict[str, Any]] = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "junk"},
    {"Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": ["same-origin", "cross-site"]},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://evil.example"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://evil.example/localhost"},
    {"Origin": "http://localhost:81"},
    {"Origin": "http://sub.localhost"},
    {"Origin": "localhost"},
    {"Origin": "//localhost"},
    {"Origin": ["http://localhost", "http://evil.example"]},
    {"Origin": "http://localhost http://evil.example"},
    {"Origin": "http://localhost", "Host": "localhost:8080"},
]
SAME_ORIGIN: list[dict[str, Any]] = [
    {},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "null"},
    {"Origin": "http://localhost"},
    {"Origin": "HTTP://LOCALHOST", "Host": "LocalHost"},
    {"Origin": "https://localhost"},  # behind a proxy that terminates TLS
    {"Origin": "http://localhost:8080", "Host": "localhost:8080"},
    {"Origin": "http://[::1]:8080", "Host": "[::1]:8080"},
    {"Referer": "http://evil.example/"},
]


class CrossSiteTests:
    """Cross-site request forgery: pages of other sites can neither sign in nor sign out."""

    @each("headers", CROSS_SITE)
    def test_cross_site_request_is_403_and_changes_nothing(self, api: InMemoryApi, headers: dict[str, Any]) -> None:
        session_id = sign_in(api)
        before = writes_of(api)
        for path in ("/login", "/logout"):
            answer = send_form(api, headers=headers | with_cookie(session_id), path=path)
            check_text(answer, 403, "Forbidden\n")
            assert answer.header("Set-Cookie") is None
            assert answer.header("WWW-Authenticate") is None
        for _ in range(12):
            assert send_form(api, {"username": "alice", "password": "x"}, headers=headers).status == 403
        assert writes_of(api) == before
        assert is_signed_in(api, session_id)

    @each("headers", SAME_ORIGIN)
    def test_same_origin_or_non_browser_request_is_processed(self, api: InMemoryApi, headers: dict[str, Any]) -> None:
        session_id = sign_in(api, headers=headers)
        answer = ask(api, "POST", "/logout", None, headers | with_cookie(session_id))
        assert answer.status == 302
        assert not is_signed_in(api, session_id)

    def test_public_url_is_the_only_same_origin(self, make_api: MakeApi) -> None:
        api = make_api('public_url = "https://posts.example"')
        for headers in ({"Origin": "https://posts.example"}, {"Sec-Fetch-Site": "same-origin"}, {}):
            sign_in(api, headers=headers)
        for origin in ("http://posts.example", "http://localhost", "https://posts.example:444", "null"):
            assert send_form(api, headers={"Origin": origin}).status == 403
        assert send_form(api, headers={"Origin": "http://evil", "Host": "evil"}).status == 403

    def test_cross_site_link_is_allowed(self, api: InMemoryApi) -> None:
        headers = {"Sec-Fetch-Site": "cross-site"}
        for path in ("/", "/logout"):
            assert ask(api, "GET", path, None, headers).status == 200
        assert ask(api, "GET", "/home", None, headers | with_cookie(sign_in(api))).status == 200


class ExpiryTests:
    def test_unused_session_expires(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        api.clock.advance(30 * 60 - 0.1)
        assert is_signed_in(api, session_id)  # this renews the session
        api.clock.advance(30 * 60)
        assert not is_signed_in(api, session_id)
        assert ask(api, "GET", "/", None, with_cookie(session_id)).status == 200

    def test_used_session_ends_at_its_lifetime(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        for _ in range(12 * 6 - 1):
            api.clock.advance(600)
            assert is_signed_in(api, session_id)
        api.clock.advance(599)
        assert is_signed_in(api, session_id)
        api.clock.advance(1)
        assert not is_signed_in(api, session_id)

    def test_idle_time_and_lifetime_follow_the_settings(self, make_api: MakeApi) -> None:
        api = make_api('[session]\nidle = "10s"\nlifetime = "15s"')
        session_id = sign_in(api)
        for seconds, alive in ((9, True), (5.5, True), (0.5, False)):
            api.clock.advance(seconds)
            assert is_signed_in(api, session_id) == alive
        other = sign_in(api)
        api.clock.advance(10)
        assert not is_signed_in(api, other)

    def test_idle_time_over_the_lifetime_does_not_extend_it(self, make_api: MakeApi) -> None:
        api = make_api('[session]\nidle = "10h"\nlifetime = "1m"')
        session_id = sign_in(api)
        api.clock.advance(60)
        assert not is_signed_in(api, session_id)

    def test_expired_session_is_deleted_from_the_store(self, api: InMemoryApi) -> None:
        sign_in(api)
        api.clock.advance(30 * 60 + 10)
        api.clock.advance(0)
        assert sessions_of(api) == []

    def test_expired_session_is_not_renewed(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        api.clock.advance(30 * 60)
        for _ in range(3):
            assert not is_signed_in(api, session_id)

    def test_clock_set_back_keeps_sessions(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        api.clock.rightNow -= 3600
        before = writes_of(api)
        assert is_signed_in(api, session_id)
        assert writes_of(api) == before


class RenewalTests:
    @pytest.mark.parametrize(
        ("setting", "every_s"), [("", 60), ('[session]\nidle = "100s"', 10), ('[session]\nidle = "1d"', 60)]
    )
    def test_renewal_is_written_at_intervals(self, make_api: MakeApi, setting: str, every_s: float) -> None:
        api = make_api(setting)
        session_id = sign_in(api)
        for _ in range(5):
            renewed = api.clock.seconds()
            assert is_signed_in(api, session_id)
            api.clock.advance(every_s - 1)
            for _ in range(3):
                assert is_signed_in(api, session_id)
            assert [one.seen for one in result_of(api.store.list_sessions())] == [renewed]
            api.clock.advance(1)
            for _ in range(3):
                before = writes_of(api)
                assert is_signed_in(api, session_id)
                due = api.clock.seconds() != renewed
                renewed = api.clock.seconds()
                assert writes_of(api) == before + due

    def test_form_and_api_renew_the_session(self, make_api: MakeApi) -> None:
        api = make_api('[api]\nread = ["session"]')
        for path in ("/", "/post", "/home"):
            session_id = sign_in(api)
            for _ in range(4):
                api.clock.advance(20 * 60)
                answer = ask(api, "GET", path, None, with_cookie(session_id))
                assert answer.status == (302 if path == "/" else 200)

    def test_asking_for_the_session_does_not_renew_it(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        asked = {"Cookie": f"session={session_id}"}
        for _ in range(2):
            check_text(ask(api, "GET", "/login/session", None, asked), 200, "alice\n")
            api.clock.advance(20 * 60)
        answer = ask(api, "GET", "/login/session", None, asked | {"Accept": "text/html"})
        assert (answer.status, answer.header("WWW-Authenticate")) == (401, CHALLENGE)
        other = {"Cookie": f"session={sign_in(api)}; session={sign_in(api)}"}
        for headers in ({}, {"Cookie": "session=x"}, other):
            check_text(ask(api, "GET", "/login/session", None, headers), 401, "Unauthorized\n")

    def test_request_without_session_writes_nothing(self, api: InMemoryApi) -> None:
        before = writes_of(api)
        for path in ("/", "/home", "/logout"):
            ask(api, "GET", path, None, with_cookie("A" * 43))
            ask(api, "GET", path)
        assert writes_of(api) == before


PROXY = 'trusted_proxies = ["10.0.0.0/8", "unix"]\n'


class SecureTests:
    @pytest.mark.parametrize(
        ("setting", "headers", "keywords", "secure"),
        [
            ("auto", {}, {}, False),
            ("auto", {}, {"tls": True}, True),
            ("never", {}, {"tls": True}, False),
            ("always", {}, {}, True),
            ("auto", {"X-Forwarded-Proto": "https"}, {"peer": "10.1.2.3"}, True),
            ("auto", {"X-Forwarded-Proto": "HTTPS"}, {"peer": "unix"}, True),
            ("auto", {"X-Forwarded-Proto": "http, https"}, {"peer": "10.1.2.3"}, True),
            ("auto", {"X-Forwarded-Proto": ["http", "https"]}, {"peer": "10.1.2.3"}, True),
            ("auto", {"X-Forwarded-Proto": "https, http"}, {"peer": "10.1.2.3"}, False),
            ("auto", {"X-Forwarded-Proto": "http"}, {"peer": "10.1.2.3"}, False),
            ("auto", {"X-Forwarded-Proto": ""}, {"peer": "10.1.2.3"}, False),
            ("auto", {"X-Forwarded-Proto": "https"}, {"peer": "11.1.2.3"}, False),
            ("auto", {"X-Forwarded-Proto": "https"}, {"peer": "::ffff:10.1.2.3"}, True),
            ("auto", {"X-Forwarded-Proto": "https"}, {"peer": "::1"}, False),
            ("never", {"X-Forwarded-Proto": "https"}, {"peer": "10.1.2.3"}, False),
            ("auto", {"X-Forwarded-Proto": "http"}, {"peer": "10.1.2.3", "tls": True}, True),
        ],
    )
    def test_cookie_is_secure_if_the_client_uses_tls(
        self, make_api: MakeApi, setting: str, headers: dict[str, Any], keywords: dict[str, Any], *, secure: bool
    ) -> None:
        api = make_api(f'{PROXY}[session]\nsecure = "{setting}"')
        cookie = send_form(api, headers=headers, **keywords).header("Set-Cookie") or ""
        rest = "; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if secure else "")
        assert re.fullmatch(f"session=[A-Za-z0-9_-]{{43}}{re.escape(rest)}", cookie)

    def test_cookie_is_secure_with_an_https_public_url(self, make_api: MakeApi) -> None:
        for url, secure in (("https://posts.example", True), ("http://posts.example", False)):
            api = make_api(f'public_url = "{url}"')
            assert ("; Secure" in (send_form(api).header("Set-Cookie") or "")) == secure

    def test_session_is_valid_over_tls(self, api: InMemoryApi) -> None:
        assert home(api, sign_in(api, tls=True), tls=True).status == 200

    def test_untrusted_forwarder_is_logged_once(self, api: InMemoryApi) -> None:
        with capturedLogs() as events:
            for _ in range(3):
                sign_in(api, headers={"X-Forwarded-Proto": "https", "X-Forwarded-For": "1.2.3.4"})
        log = [formatEvent(event) or "" for event in events]
        assert sum("trusted_proxies" in line for line in log) == 1


class LogoutTests:
    def test_logout_ends_the_session(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        answer = ask(api, "POST", "/logout", b"", with_cookie(session_id))
        assert (answer.status, answer.header("Location"), answer.header("Set-Cookie")) == (302, "/", EXPIRED)
        check_page(answer)
        assert sessions_of(api) == []
        for _ in range(2):
            assert not is_signed_in(api, session_id)
        assert ask(api, "GET", "/", None, with_cookie(session_id)).status == 200

    @pytest.mark.parametrize("headers", [{}, with_cookie(""), with_cookie("A" * 43), {"Cookie": "a=b"}])
    def test_logout_works_without_a_session(self, api: InMemoryApi, headers: dict[str, Any]) -> None:
        session_id = sign_in(api)
        answer = ask(api, "POST", "/logout", None, headers)
        assert (answer.status, answer.header("Location"), answer.header("Set-Cookie")) == (302, "/", EXPIRED)
        assert is_signed_in(api, session_id)

    def test_logout_ends_every_session_of_the_cookies(self, api: InMemoryApi) -> None:
        one, two, elsewhere = sign_in(api), sign_in(api), sign_in(api)
        ask(api, "POST", "/logout", None, with_cookie(one, "junk", two))
        assert not is_signed_in(api, one)
        assert not is_signed_in(api, two)
        assert is_signed_in(api, elsewhere)

    def test_logout_page_changes_nothing(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        before = writes_of(api)
        answer = ask(api, "GET", "/logout", None, with_cookie(session_id))
        assert (answer.status, answer.header("Content-Type")) == (200, "text/html; charset=utf-8")
        assert answer.header("Set-Cookie") is None
        page = Page(answer)
        (form,) = page.all("form")
        assert (form["method"], form["action"]) == ("POST", "/logout")
        assert [field["type"] for field in page.all("input")] == ["submit"]
        assert writes_of(api) == before
        assert is_signed_in(api, session_id)

    def test_logout_over_tls_clears_the_cache(self, api: InMemoryApi) -> None:
        assert ask(api, "POST", "/logout", tls=True).header("Clear-Site-Data") == '"cache"'
        assert ask(api, "POST", "/logout").header("Clear-Site-Data") is None

    def test_login_after_logout_begins_a_session(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        ask(api, "POST", "/logout", None, with_cookie(session_id))
        assert is_signed_in(api, sign_in(api, headers=with_cookie(session_id)))


class AccountChangeTests:
    """Changes of the user file that end sessions."""

    def test_changed_password_ends_the_sessions(self, api: InMemoryApi, tmp_path: Path) -> None:
        alices, bob = [sign_in(api), sign_in(api)], sign_in(api, {"username": "bob", "password": "p:w"})
        write_users(tmp_path, USERS | {"alice": "battery staple"})
        api.clock.pump([1, 1])
        assert [session.username for session in sessions_of(api)] == ["bob"]
        for session_id in alices:
            assert not is_signed_in(api, session_id)
        assert is_signed_in(api, bob)
        check_refused(send_form(api))
        sign_in(api, ALICE | {"password": "battery staple"})

    def test_removed_account_ends_the_sessions(self, api: InMemoryApi, tmp_path: Path) -> None:
        alice, bob = sign_in(api), sign_in(api, {"username": "bob", "password": "p:w"})
        write_users(tmp_path, {"bob": "p:w"})
        api.clock.pump([1, 1])
        assert [session.username for session in sessions_of(api)] == ["bob"]
        assert not is_signed_in(api, alice)
        assert is_signed_in(api, bob)
        write_users(tmp_path, USERS)
        api.clock.advance(1)
        assert not is_signed_in(api, alice)

    def test_other_user_file_changes_end_no_session(self, api: InMemoryApi, tmp_path: Path) -> None:
        alice = sign_in(api)
        write_users(tmp_path, {"carol": "x", **USERS})
        api.clock.advance(1)
        assert is_signed_in(api, alice)
        check_text(home(api, sign_in(api, {"username": "carol", "password": "x"})), 200, "Success: carol\n")
        for content in ("alice", None):
            if content:
                (tmp_path / "users").write_text(content)
            else:
                (tmp_path / "users").unlink()
            api.clock.advance(1)
            assert is_signed_in(api, alice)
            sign_in(api)

    @pytest.mark.parametrize("changed", [True, False])
    def test_password_changed_while_stopped_ends_sessions(
        self, api: InMemoryApi, tmp_path: Path, *, changed: bool
    ) -> None:
        alice, bob = sign_in(api), sign_in(api, {"username": "bob", "password": "p:w"})
        if changed:
            write_users(tmp_path, USERS | {"alice": "battery staple"})
        restarted = restart(api)
        assert is_signed_in(restarted, alice) == (not changed)
        assert is_signed_in(restarted, bob)

    def test_account_removed_while_stopped_ends_sessions(self, api: InMemoryApi, tmp_path: Path) -> None:
        alice = sign_in(api)
        (tmp_path / "users").unlink()
        assert not is_signed_in(restart(api), alice)


def restart(api: InMemoryApi, settings: Settings | None = None) -> Worker:
    """Return another server on the same store, which has loaded the user file again."""
    reactor = cast(IReactor, api.clock)
    loaded = msgspec.structs.replace(settings or Settings(), users=str(api.users))
    logins = make_authentication(
        LoadedSettings(loaded, {}, {}),
        api.store,
        clock=ServiceClock(reactor),
        reactor=reactor,
        threads=InlineHashThreads(reactor),
    )
    return Worker(make_site(make_tree(loaded, api.store, api.events, logins), clock=api.clock), api.clock)


class ThrottleTests:
    def test_too_many_failures_are_429(self, api: InMemoryApi) -> None:
        wrong = ALICE | {"password": "x"}
        for _ in range(10):
            check_refused(send_form(api, wrong))
        for fields in (wrong, ALICE):  # whether or not the password is right
            answer = send_form(api, fields)
            check_text(answer, 429, "Too Many Requests\n")
            assert answer.header("Retry-After") == "300"
            assert answer.header("WWW-Authenticate") is None
            assert answer.header("Set-Cookie") is None
        sign_in(api, {"username": "bob", "password": "p:w"})
        sign_in(api, peer="192.0.2.7")  # another address
        api.clock.advance(300)
        sign_in(api)

    def test_throttle_does_not_end_a_session(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        for _ in range(12):
            send_form(api, ALICE | {"password": "x"})
        assert is_signed_in(api, session_id)


def stop_store(api: InMemoryApi) -> None:
    result_of(api.store.stop())


class StoreFailureTests:
    def check_503(self, answer: Response) -> None:
        check_text(answer, 503, "Service Unavailable\n")
        assert int(answer.header("Retry-After") or "") >= 1
        assert answer.header("Set-Cookie") is None
        assert answer.header("WWW-Authenticate") is None

    def test_form_is_shown_and_all_else_is_503_while_the_store_is_unavailable(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        form = ask(api, "GET", "/").body
        stop_store(api)
        for headers in ({}, with_cookie(session_id), with_cookie("A" * 43)):
            answer = ask(api, "GET", "/", None, headers)
            assert (answer.status, answer.body) == (200, form)
        self.check_503(home(api, session_id))
        self.check_503(send_form(api))
        self.check_503(send_form(api, ALICE | {"password": "x"}))
        self.check_503(ask(api, "POST", "/logout", None, with_cookie(session_id)))
        check_redirected_to_form(home(api), expires=False)
        check_refused(send_form(api, {}))

    def test_read_only_store_keeps_sessions_valid(self, api: InMemoryApi) -> None:
        session_id = sign_in(api)
        result_of(api.store.database.committer.queue.close())  # as when the disk is full
        api.clock.advance(120)
        assert is_signed_in(api, session_id)
        self.check_503(send_form(api))
        self.check_503(ask(api, "POST", "/logout", None, with_cookie(session_id)))
        assert is_signed_in(api, session_id)


class SessionPageTests:
    """A `[[page]]` whose scheme is "session"."""

    @pytest.fixture
    def api(self, make_api: MakeApi) -> InMemoryApi:
        return make_api(
            '[[page]]\npath = "/club"\nschemes = ["session"]\nusers = ["alice"]\n'
            '[[page]]\npath = "/both"\nschemes = ["session", "basic"]\n'
        )

    def test_page_without_session_redirects_to_the_form(self, api: InMemoryApi) -> None:
        for method in ("GET", "HEAD"):
            check_redirected_to_form(ask(api, method, "/club"), expires=False, back="/club")
        for method in ("POST", "FOO"):
            check_redirected_to_form(ask(api, method, "/club"), expires=False)
        check_redirected_to_form(ask(api, "GET", "/club", None, with_cookie("x")), expires=True, back="/club")
        check_redirected_to_form(ask(api, "GET", "/club/below?a=b"), expires=False, back="/club/below%3Fa%3Db")
        basic = {"Authorization": "Basic Ym9iOnA6dw=="}
        check_redirected_to_form(ask(api, "GET", "/club", None, basic), expires=False, back="/club")

    def test_sign_in_leads_back_to_the_page(self, api: InMemoryApi) -> None:
        """Also after a wrong password, whose form keeps the way back."""
        form = ask(api, "GET", ask(api, "GET", "/both/x?a=b", None, BROWSER).header("Location") or "", None, BROWSER)
        for fields, status in ((ALICE | {"password": "wrong"}, 401), (ALICE, 302)):
            (back,) = [field["value"] for field in Page(form).all("input") if field.get("name") == "next"]
            form = send_form(api, {**fields, "next": back}, BROWSER)
            assert form.status == status
        assert form.header("Location") == "/both/x?a=b"

    @each(
        "headers",
        [
            {"Sec-Fetch-Mode": "navigate"},
            {"Sec-Fetch-Mode": "navigate", "Accept": "*/*"},
            {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"},
            {"Accept": "text/html, application/xhtml+xml, */*"},
            {"Accept": "text/html"},
        ],
    )
    def test_browser_that_opens_a_page_is_redirected_beside_other_schemes(
        self, api: InMemoryApi, headers: dict[str, Any]
    ) -> None:
        check_redirected_to_form(ask(api, "GET", "/both", None, headers), expires=False, back="/both")
        check_redirected_to_form(ask(api, "POST", "/both", None, headers), expires=False)
        wrong = headers | {"Authorization": "Basic Ym9iOng="}  # the browser has to forget it
        assert ask(api, "GET", "/both", None, wrong).status == 401

    @each(
        "headers",
        [
            {},
            {"Accept": "*/*"},
            {"Accept": "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"},
            {"Accept": "text/html, */*;q=0.5"},
            {"Accept": "application/atom+xml, application/xhtml+xml, text/html, */*;q=0.1"},
            {"Accept": "text/html;q=2, application/xhtml+xml"},
            {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Mode": "cors"},
            {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Site": "same-origin"},
            {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Mode": ["navigate", "navigate"]},
        ],
    )
    def test_program_is_challenged_where_there_is_another_scheme(
        self, api: InMemoryApi, headers: dict[str, Any]
    ) -> None:
        answer = ask(api, "GET", "/both", None, headers)
        assert (answer.status, answer.header("WWW-Authenticate")) == (401, 'Basic realm="postd"')

    def test_user_outside_the_users_of_a_page_is_403(self, api: InMemoryApi) -> None:
        check_text(ask(api, "GET", "/club", None, with_cookie(sign_in(api))), 200, "Success: alice\n")
        bob = sign_in(api, {"username": "bob", "password": "p:w"})
        answer = ask(api, "GET", "/club", None, with_cookie(bob))
        check_text(answer, 403, "Forbidden\n")
        assert answer.header("WWW-Authenticate") is None

    def test_page_with_session_and_basic_has_a_basic_challenge(self, api: InMemoryApi) -> None:
        for headers in ({}, with_cookie("A" * 43)):
            answer = ask(api, "GET", "/both", None, headers)
            check_text(answer, 401, "Unauthorized\n")
            assert answer.header("WWW-Authenticate") == 'Basic realm="postd"'
        for headers in (with_cookie(sign_in(api)), {"Authorization": "Basic Ym9iOnA6dw=="}):
            assert ask(api, "GET", "/both", None, headers).status == 200

    def test_wrong_credentials_beside_a_cookie_are_refused(self, api: InMemoryApi) -> None:
        headers = with_cookie(sign_in(api)) | {"Authorization": "Basic Ym9iOng="}
        assert ask(api, "GET", "/both", None, headers).status == 401


JSON = {"Content-Type": "application/json"}


class ApiWithSessionTests:
    """`[api]` with "session" in its rules."""

    @pytest.fixture
    def api(self, make_api: MakeApi) -> InMemoryApi:
        return make_api('[api]\nread = ["session"]\nwrite = ["session"]')

    def test_api_without_session_is_401(self, api: InMemoryApi) -> None:
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            for path in ("/post", "/post/1"):
                for headers in ({}, with_cookie("A" * 43)):
                    answer = ask(api, method, path, b'{"post":"x"}', headers | JSON)
                    check_problem(answer, 401)
                    assert answer.header("Location") is None
                    assert answer.header("Cache-Control") == "no-store"

    def test_api_with_session_reads_and_writes(self, api: InMemoryApi) -> None:
        headers = with_cookie(sign_in(api))
        assert ask(api, "POST", "/post", b'{"post":"x"}', headers | JSON).status == 201
        answer = ask(api, "GET", "/post", None, headers)
        assert (answer.status, json.loads(answer.body)) == (200, [{"id": 1, "post": "x"}])
        assert answer.header("Cache-Control") == "private, no-store"
        assert ask(api, "DELETE", "/post/1", None, headers).status == 200

    @pytest.mark.parametrize("cross_site", CROSS_SITE)
    def test_cross_site_api_write_is_403(self, api: InMemoryApi, cross_site: dict[str, Any]) -> None:
        headers = with_cookie(sign_in(api))
        api.add("untouched")
        for method, path in (("POST", "/post"), ("PUT", "/post/1"), ("DELETE", "/post/1"), ("PATCH", "/post/1")):
            check_problem(ask(api, method, path, b'{"post":"x"}', headers | JSON | cross_site), 403)
        assert json.loads(ask(api, "GET", "/post", None, headers).body) == [{"id": 1, "post": "untouched"}]

    @each("same_origin", SAME_ORIGIN)
    def test_same_origin_api_write_is_processed(self, api: InMemoryApi, same_origin: dict[str, Any]) -> None:
        headers = with_cookie(sign_in(api)) | JSON | same_origin
        assert ask(api, "POST", "/post", b'{"post":"x"}', headers).status == 201

    def test_cross_site_api_read_is_allowed(self, api: InMemoryApi) -> None:
        headers = with_cookie(sign_in(api)) | {"Sec-Fetch-Site": "cross-site"}
        answer = ask(api, "GET", "/post", None, headers)
        assert answer.status == 200
        assert answer.header("Access-Control-Allow-Origin") is None

    def test_preflight_needs_no_session(self, api: InMemoryApi) -> None:
        headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"}
        answer = ask(api, "OPTIONS", "/post/1", None, headers)
        assert answer.status == 204
        assert not any(name.startswith("access-control") for name in answer.headers)

    def test_api_is_503_while_the_store_is_unavailable(self, api: InMemoryApi) -> None:
        headers = with_cookie(sign_in(api))
        stop_store(api)
        answer = ask(api, "GET", "/post", None, headers)
        check_problem(answer, 503)
        assert answer.header("Retry-After")
