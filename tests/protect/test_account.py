"""The pages below `/account` (reference: Accounts)."""

import re
from collections.abc import Callable, Mapping
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from twisted.logger import capturedLogs, formatEvent

from tests.cases import each
from tests.helpers import InMemoryApi, Response
from tests.protect.program import MakeProgram, log_in
from tests.protect.test_login import BROWSER, CHALLENGE, EXPIRED, check_page
from tests.web.clients import PASSWORD
from tests.web.wire import FORM, Server, ask

MakeApi = Callable[..., InMemoryApi]

PAGES = ["/account", "/account/sessions"]
FIREFOX = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0"}
FORMS = {
    "/account/sessions/end": {"others": "1"},
}
"""The forms of all pages."""


def sign_in(server: Server, name: str = "alice", headers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sign in; return the header fields of the session."""
    form = urlencode({"username": name, "password": PASSWORD}).encode()
    answer = ask(server, "POST", "/login", form, {"Content-Type": FORM, **(headers or {})})
    assert answer.status == 302
    return {"Cookie": (answer.header("Set-Cookie") or "").partition(";")[0]}


def send(
    server: Server,
    path: str,
    session: Mapping[str, Any],
    fields: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> Response:
    """Send a form as a browser."""
    headers = {**BROWSER, "Content-Type": FORM, **session, **(more or {})}
    return ask(server, "POST", path, urlencode(fields, doseq=True).encode(), headers)


def get(server: Server, path: str, session: Mapping[str, Any]) -> str:
    """Return the text of a page."""
    answer = ask(server, "GET", path, headers={**BROWSER, **session})
    assert answer.status == 200
    return answer.body.decode()


def hidden(text: str, name: str) -> list[str]:
    """Return the values of the hidden fields of a name."""
    return [unescape(value) for value in re.findall(f'<input type="hidden" name="{name}" value="([^"]*)"', text)]


def ids_of_others(server: Server, session: Mapping[str, Any]) -> list[str]:
    return hidden(get(server, "/account/sessions", session), "id")


def is_live(server: Server, session: Mapping[str, Any]) -> bool:
    return ask(server, "GET", "/home", headers=session).status == 200


@pytest.fixture
def api(make: MakeApi) -> InMemoryApi:
    return make("")


class VisitorTests:
    @pytest.mark.parametrize("path", PAGES)
    def test_page_needs_a_session(self, api: InMemoryApi, path: str) -> None:
        for headers in ({}, BROWSER, {"Authorization": "Basic YWxpY2U6Y29ycmVjdCBob3JzZQ=="}):
            answer = ask(api, "GET", path, headers=headers)
            assert (answer.status, answer.header("Location")) == (302, f"/?next={path}")
            check_page(answer)
        ended = ask(api, "GET", path, headers={"Cookie": f"session={'x' * 43}"})
        assert (ended.status, ended.header("Set-Cookie")) == (302, EXPIRED)

    @pytest.mark.parametrize("path", PAGES)
    def test_two_live_sessions_are_none(self, api: InMemoryApi, path: str) -> None:
        both = "; ".join(sign_in(api, name)["Cookie"] for name in ("alice", "bob"))
        assert ask(api, "GET", path, headers={"Cookie": both}).status == 302

    @pytest.mark.parametrize("path", PAGES)
    def test_page_is_private_and_has_a_policy(self, api: InMemoryApi, path: str) -> None:
        session = sign_in(api)
        answer = ask(api, "GET", path, headers=session)
        assert (answer.status, answer.header("Content-Type")) == (200, "text/html; charset=utf-8")
        check_page(answer)
        assert "Cookie" in (answer.header("Vary") or "")
        head = ask(api, "HEAD", path, headers=session)
        assert (head.status, head.body, head.header("Content-Length")) == (200, b"", str(len(answer.body)))

    @pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
    def test_other_method_is_405_with_allow(self, api: InMemoryApi, method: str) -> None:
        answer = ask(api, method, "/account", headers=sign_in(api))
        assert (answer.status, answer.header("Allow")) == (405, "GET, HEAD, OPTIONS")

    @pytest.mark.parametrize("path", ["/account/", "/account/x", "/account/sessions/x", "/accounts"])
    def test_unknown_path_is_404(self, api: InMemoryApi, path: str) -> None:
        assert ask(api, "GET", path, headers=sign_in(api)).status == 404

    def test_use_of_a_page_prolongs_the_session(self, make: MakeApi) -> None:
        api = make('[session]\nidle = "10m"')
        session = sign_in(api)
        for _ in range(4):
            api.clock.advance(300)
            assert ask(api, "GET", "/account", headers=session).status == 200

    def test_form_of_a_browser_without_a_session_is_carried(self, api: InMemoryApi) -> None:
        answer = send(api, "/account/sessions/end", {}, {"others": "1", "password": PASSWORD})
        assert (answer.status, answer.header("WWW-Authenticate")) == (401, CHALLENGE)
        (carried,) = hidden(answer.body.decode(), "form")
        assert parse_qs(carried) == {"others": ["1"]}
        assert PASSWORD not in answer.body.decode()
        fields = {"username": "alice", "password": PASSWORD, "next": "/account/sessions/end", "form": carried}
        again = send(api, "/login", {}, fields).body.decode()
        assert hidden(again, "others") == ["1"]
        assert 'action="/account/sessions/end"' in again

    @each("path", FORMS)
    def test_form_of_a_program_without_a_session_is_401(self, api: InMemoryApi, path: str) -> None:
        answer = send(api, path, {}, FORMS[path], {"Accept": "*/*"})
        assert (answer.status, answer.header("WWW-Authenticate")) == (401, CHALLENGE)

    @each("path", FORMS)
    @each("type, status", [("application/json", 415), ("multipart/form-data; boundary=x", 415)])
    def test_form_of_another_type_is_refused(self, api: InMemoryApi, path: str, type: str, status: int) -> None:  # noqa: A002
        assert send(api, path, sign_in(api), FORMS[path], {"Content-Type": type}).status == status

    @each("path", FORMS)
    def test_form_that_is_too_large_is_refused(self, api: InMemoryApi, path: str) -> None:
        assert send(api, path, sign_in(api), {"id": "x" * 9000}).status == 413


class CrossSiteTests:
    """Pages of other sites cannot send a form (reference: Form login, F11)."""

    @each("path", FORMS)
    @each(
        "fields, status",
        [
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "same-site"}, 403),
            ({"Origin": "https://other.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Sec-Fetch-Site": "same-origin"}, None),
            ({"Origin": "http://localhost"}, None),
            ({}, None),
        ],
    )
    def test_form_of_another_site_is_refused(
        self, api: InMemoryApi, path: str, fields: dict[str, str], status: int | None
    ) -> None:
        session, other = sign_in(api), sign_in(api)
        answer = send(api, path, session, FORMS[path], fields)
        assert (answer.status == 403) == (status == 403)
        assert is_live(api, other) == (status == 403)

    @each("path", PAGES)
    def test_get_changes_nothing(self, api: InMemoryApi, path: str) -> None:
        session, other = sign_in(api), sign_in(api)
        query = urlencode({"others": "1", "id": ids_of_others(api, session)[0], "password": PASSWORD})
        assert ask(api, "GET", f"{path}?{query}", headers=session).status == 200
        assert is_live(api, other)

    @each("path", FORMS)
    def test_change_has_no_page(self, api: InMemoryApi, path: str) -> None:
        answer = ask(api, "GET", path, headers=sign_in(api))
        assert (answer.status, answer.header("Allow")) == (405, "OPTIONS, POST")


class OverviewTests:
    def test_page_says_who_is_signed_in(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        api.clock.advance(120)
        text = get(api, "/account", session)
        assert '<strong dir="auto">alice</strong>, with a password, ' in text
        assert ">2 min ago</time>" in text
        assert {"/logout", "/home", "/account/sessions"} <= set(re.findall('href="([^"]+)"', text))

    def test_page_path_at_the_account_is_refused(self, make: MakeApi) -> None:
        with pytest.raises(Exception, match="reserved for postd"):
            make('[[page]]\npath = "/account/x"\nschemes = ["basic"]')


class SessionTests:
    def test_page_shows_browser_address_and_times(self, api: InMemoryApi) -> None:
        session = sign_in(api, headers=FIREFOX)
        api.clock.advance(600)
        sign_in(api)
        text = get(api, "/account/sessions", session)
        own, other = re.findall("<li>(.*?)</li>", text, re.DOTALL)
        plain = [re.sub("<[^>]*>", "", one).split("\n")[0] for one in (own, other)]
        assert plain == [
            "Firefox on Linux this oneSigned in with a password 10 min ago from 127.0.0.1. Last used just now.",
            "Unknown browserSigned in with a password just now from 127.0.0.1. Last used just now.",
        ]
        assert (hidden(own, "id"), len(hidden(other, "id"))) == ([], 1)

    def test_user_agent_is_never_repeated(self, api: InMemoryApi) -> None:
        session = sign_in(api, headers={"User-Agent": "<script>Firefox/1 on Mars" + "x" * 3000})
        assert "Mars" not in get(api, "/account/sessions", session)

    def test_id_is_neither_the_cookie_nor_its_hash(self, api: InMemoryApi) -> None:
        session, other = sign_in(api), sign_in(api)
        (shown,) = ids_of_others(api, session)
        assert shown not in other["Cookie"]
        for value in (shown, shown.removeprefix("session-")):
            assert not is_live(api, {"Cookie": f"session={value}"})

    def test_one_session_ends(self, api: InMemoryApi) -> None:
        session, other, third = (sign_in(api) for _ in range(3))
        first, _ = ids_of_others(api, session)
        answer = send(api, "/account/sessions/end", session, {"id": first})
        assert (answer.status, answer.header("Location")) == (303, "/account/sessions?done=ended#done")
        assert sorted(is_live(api, one) for one in (other, third)) == [False, True]
        assert is_live(api, session)
        assert "The session has ended." in get(api, "/account/sessions?done=ended", session)
        again = send(api, "/account/sessions/end", session, {"id": first})
        assert again.header("Location") == "/account/sessions?done=gone#done"

    def test_all_other_sessions_end(self, api: InMemoryApi) -> None:
        session, other, third, of_bob = (sign_in(api, name) for name in ("alice", "alice", "alice", "bob"))
        with capturedLogs() as events:
            answer = send(api, "/account/sessions/end", session, {"others": "1"})
        assert answer.header("Location") == "/account/sessions?done=others#done"
        assert [is_live(api, one) for one in (session, other, third, of_bob)] == [True, False, False, True]
        assert "account: 'alice' from 127.0.0.1: 2 sessions ended" in map(formatEvent, events)

    def test_own_session_ends(self, api: InMemoryApi) -> None:
        session, other = sign_in(api), sign_in(api)
        (own,) = ids_of_others(api, other)
        answer = send(api, "/account/sessions/end", session, {"id": own})
        assert (answer.status, answer.header("Location"), answer.header("Set-Cookie")) == (303, "/", EXPIRED)
        assert [is_live(api, one) for one in (session, other)] == [False, True]

    def test_session_of_another_account_is_as_an_unknown_one(self, api: InMemoryApi) -> None:
        session, bob, other = sign_in(api), sign_in(api, "bob"), sign_in(api, "bob")
        for one in [*ids_of_others(api, bob), *ids_of_others(api, other), "session-0123456789abcdef", "", "x" * 99]:
            answer = send(api, "/account/sessions/end", session, {"id": one})
            assert (answer.status, answer.header("Location")) == (303, "/account/sessions?done=gone#done")
        assert is_live(api, bob)
        assert is_live(api, other)

    @each("fields", [{}, {"id": "x", "others": "1"}, {"id": ["x", "y"]}])
    def test_form_needs_one_of_its_fields(self, api: InMemoryApi, fields: dict[str, Any]) -> None:
        assert send(api, "/account/sessions/end", sign_in(api), fields).status == 400

    def test_expired_session_is_not_listed(self, make: MakeApi) -> None:
        api = make('[session]\nidle = "10m"')
        sign_in(api)
        api.clock.advance(500)
        session = sign_in(api)
        api.clock.advance(200)
        assert ids_of_others(api, session) == []


class LibraryTests:
    def test_pages_are_below_the_form(self, make_program: MakeProgram) -> None:
        program = make_program(sign_in="/sign-in")
        program.root.putChild(b"sign-in", program.protection.pages(after="/app"))
        answer = program.get("/sign-in/account")
        assert (answer.status, answer.header("Location")) == (302, "/sign-in?next=/sign-in/account")
        session = log_in(program, "/sign-in/login")
        text = program.get("/sign-in/account", session).body.decode()
        assert 'href="/sign-in/logout"' in text
        assert 'href="/app"' in text
        assert program.get("/sign-in/account/x", session).status == 404
        assert program.get("/sign-in/account", session, method="PUT").status == 405
