"""The pages below `/account` (reference: Accounts)."""

import re
import time
from collections.abc import Callable, Mapping
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from postd.auth.personal_token import make_personal_token
from postd.auth.session import Sessions
from postd.protocol.personal_token import hash_token, is_token
from tests.cases import each
from tests.helpers import InMemoryApi, Response, result_of
from tests.protect.program import MakeProgram, log_in
from tests.protect.test_login import BROWSER, CHALLENGE, EXPIRED, check_page
from tests.protect.test_sign_in import running
from tests.web.clients import PASSWORD, account
from tests.web.wire import FORM, Server, ask, user_line

MakeApi = Callable[..., InMemoryApi]

PAGES = ["/account", "/account/sessions", "/account/tokens"]
TOKENS = "[accounts]\ntokens = true\n"
FIREFOX = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0"}
NEW = {"label": "Reader", "access": "read", "expires": "30d"}
FORMS = {
    "/account/sessions/end": {"others": "1"},
    "/account/tokens": NEW,
    "/account/tokens/revoke": {"id": "x"},
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


def tokens_of(api: InMemoryApi) -> list[Any]:
    return list(result_of(api.store.list_tokens()))


def write(api: InMemoryApi, call: Any) -> None:
    """Run a write of the store."""
    writing = Deferred.fromCoroutine(call)
    api.clock.advance(0)
    result_of(writing)


def make_token(server: Server, session: Mapping[str, Any], fields: Mapping[str, Any] = NEW) -> str:
    """Make a token on the page; return it."""
    answer = send(server, "/account/tokens", session, fields)
    assert answer.status == 200, answer.body
    (token,) = re.findall(
        r'<input type="text" id="token" class="secret" value="([^"]+)" readonly', answer.body.decode()
    )
    return str(token)


@pytest.fixture
def api(make: MakeApi) -> InMemoryApi:
    return make(TOKENS)


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
        answer = send(api, "/account/tokens", {}, {**NEW, "password": PASSWORD})
        assert (answer.status, answer.header("WWW-Authenticate")) == (401, CHALLENGE)
        (carried,) = hidden(answer.body.decode(), "form")
        assert parse_qs(carried) == {name: [value] for name, value in NEW.items()}
        assert PASSWORD not in answer.body.decode()
        fields = {"username": "alice", "password": PASSWORD, "next": "/account/tokens", "form": carried}
        again = send(api, "/login", {}, fields).body.decode()
        assert hidden(again, "label") == ["Reader"]
        assert 'action="/account/tokens"' in again

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
        sent = FORMS[path]
        if path == "/account/tokens/revoke":
            make_token(api, session)
            sent = {"id": tokens_of(api)[0].id}
        before = tokens_of(api), is_live(api, other)
        answer = send(api, path, session, sent, fields)
        assert (answer.status == 403) == (status == 403)
        assert ((tokens_of(api), is_live(api, other)) == before) == (status == 403)

    @each("path", PAGES)
    def test_get_changes_nothing(self, api: InMemoryApi, path: str) -> None:
        session, other = sign_in(api), sign_in(api)
        make_token(api, session)
        before = tokens_of(api)
        query = urlencode({**NEW, "others": "1", "id": before[0].id, "password": PASSWORD})
        assert ask(api, "GET", f"{path}?{query}", headers=session).status == 200
        assert (tokens_of(api), is_live(api, other)) == (before, True)

    @each("path", ["/account/sessions/end", "/account/tokens/revoke"])
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
        assert {"/logout", "/home", "/account/sessions", "/account/tokens"} <= set(re.findall('href="([^"]+)"', text))

    def test_tasks_are_those_of_the_settings(self, make: MakeApi) -> None:
        api = make("")
        assert "/account/tokens" not in get(api, "/account", sign_in(api))

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


class TokenTests:
    def test_token_is_shown_once_and_stored_as_its_hash(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        answer = send(api, "/account/tokens", session, NEW)
        assert answer.status == 200
        check_page(answer)
        token = make_token(api, session)
        assert is_token(token)
        stored = result_of(api.store.get_token(hash_token(token)))
        now = api.START_S
        assert (stored.account, stored.label, stored.access) == ("alice", "Reader", "read")
        assert (stored.created, stored.expires) == (now, now + 30 * 86400)
        text = get(api, "/account/tokens", session)
        assert token not in text
        assert "Reader" in text

    def test_page_of_a_new_token_has_the_command_line(self, api: InMemoryApi) -> None:
        answer = send(api, "/account/tokens", sign_in(api), NEW, {"Host": "posts.example:8080"})
        (line,) = re.findall("<code>(.*)</code>", answer.body.decode())
        assert re.fullmatch(
            r"curl -H 'Authorization: Bearer postd_[0-9A-Za-z]{46}' 'http://posts.example:8080/post'", unescape(line)
        )

    def test_form_makes_one_token(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        (key,) = hidden(get(api, "/account/tokens", session), "key")
        assert send(api, "/account/tokens", session, {**NEW, "key": key}).status == 200
        again = send(api, "/account/tokens", session, {**NEW, "key": key})
        assert (again.status, again.header("Location")) == (303, "/account/tokens?done=repeated#done")
        assert len(tokens_of(api)) == 1
        assert "not shown again" in get(api, "/account/tokens?done=repeated", session)
        assert send(api, "/account/tokens", sign_in(api, "bob"), {**NEW, "key": key}).status == 200

    def test_token_is_revoked(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        with capturedLogs() as events:
            token = make_token(api, session)
            (shown,) = hidden(get(api, "/account/tokens", session), "id")
            answer = send(api, "/account/tokens/revoke", session, {"id": shown})
        assert (answer.status, answer.header("Location")) == (303, "/account/tokens?done=revoked#done")
        assert tokens_of(api) == []
        again = send(api, "/account/tokens/revoke", session, {"id": shown})
        assert again.header("Location") == "/account/tokens?done=gone#done"
        lines = [*map(formatEvent, events)]
        assert f"account: 'alice' from 127.0.0.1: token {shown} was made" in lines
        assert f"account: 'alice' from 127.0.0.1: token {shown} was revoked" in lines
        assert not any(token[:12] in str(line) for line in lines)

    def test_token_of_another_account_is_as_an_unknown_one(self, api: InMemoryApi) -> None:
        make_token(api, sign_in(api, "bob"))
        for one in (tokens_of(api)[0].id, "0123456789ab", "", "x" * 99):
            answer = send(api, "/account/tokens/revoke", sign_in(api), {"id": one})
            assert (answer.status, answer.header("Location")) == (303, "/account/tokens?done=gone#done")
        assert len(tokens_of(api)) == 1
        assert hidden(get(api, "/account/tokens", sign_in(api)), "id") == []

    def test_fields_have_defaults(self, api: InMemoryApi) -> None:
        make_token(api, sign_in(api), {"label": "x"})
        (stored,) = tokens_of(api)
        assert (stored.access, stored.expires - stored.created) == ("read", 90 * 86400)

    @each(
        "name, value",
        [
            ("label", ""),
            ("label", "  "),
            ("label", "x" * 101),
            ("label", "a\nb"),
            ("access", "admin"),
            ("expires", "91d"),
            ("expires", "never"),
            ("expires", "0s"),
            ("expires", "<b>"),
        ],
    )
    def test_wrong_field_is_422_with_the_typed_values(self, api: InMemoryApi, name: str, value: str) -> None:
        fields = {**NEW, "label": "Müller & <Söhne>", name: value}
        answer = send(api, "/account/tokens", sign_in(api), fields)
        assert answer.status == 422
        text = answer.body.decode()
        assert f'id="{name}-error"' in text
        assert re.search(f'name="{name}"[^>]* aria-invalid="true" autofocus>', text)
        assert text.partition("<main>")[2].count("aria-invalid") == 1
        for field in {"access", "expires"} - {name}:
            assert f'value="{NEW[field]}" selected' in text
        if name != "label":
            assert 'value="Müller &amp; &lt;Söhne&gt;"' in text
            assert f'value="{value.replace("<", "&lt;").replace(">", "&gt;")}" selected' in text
        assert tokens_of(api) == []

    def test_number_of_tokens_is_limited(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        for _ in range(100):
            make_token(api, session)
        answer = send(api, "/account/tokens", session, NEW)
        assert answer.status == 422
        assert "You have 100 tokens" in answer.body.decode()
        assert len(tokens_of(api)) == 100

    @each(
        "lifetime, expires, lasts",
        [("", "never", "never expires"), ("", "", "never expires"), ("12h", "", "expires 15 Jan 2027")],
    )
    def test_lifetime_follows_the_settings(self, make: MakeApi, lifetime: str, expires: str, lasts: str) -> None:
        api = make(f'{TOKENS}token_lifetime = "{lifetime}"')
        session = sign_in(api)
        make_token(api, session, {**NEW, "expires": expires})
        text = re.sub("<[^>]*>", "", get(api, "/account/tokens", session))
        assert lasts in text
        assert ("never\n" in text) == (lifetime == "")
        assert ("in 12 hours" in text) == (lifetime == "12h")

    def test_expired_token_is_marked(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        make_token(api, session, {**NEW, "expires": "10m"})
        api.clock.advance(601)
        text = get(api, "/account/tokens", session)
        assert ">expired</span>" in text
        assert 'value="Remove"' in text

    def test_tokens_of_the_administrator_are_shown_where_users_make_none(self, make: MakeApi) -> None:
        api = make("")
        session = sign_in(api)
        entry = api.logins.context.accounts.entry("alice")
        assert entry is not None
        text, token = make_personal_token("alice", entry, access="read", label="CI", now=0, lifetime_s=9e9)
        write(api, api.store.add_token(hash_token(text), token))
        page = get(api, "/account/tokens", session)
        assert "CI" in page
        assert 'name="label"' not in page
        assert "/account/tokens" in get(api, "/account", session)
        answer = send(api, "/account/tokens", session, NEW)
        assert (answer.status, answer.header("Allow")) == (405, "GET, HEAD, OPTIONS")
        assert send(api, "/account/tokens/revoke", session, {"id": token.id}).status == 303
        assert tokens_of(api) == []


class ConfirmationTests:
    """A token needs a recent sign-in, or the password."""

    def test_sign_in_is_recent_for_a_quarter_of_an_hour(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        api.clock.advance(900)
        make_token(api, session)
        api.clock.advance(1)
        assert send(api, "/account/tokens", session, NEW).status == 401

    def test_page_asks_for_the_password_and_keeps_the_fields(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        api.clock.advance(901)
        fields = {**NEW, "label": "Müller & <Söhne>", "key": "k"}
        answer = send(api, "/account/tokens", session, fields)
        assert (answer.status, answer.header("WWW-Authenticate")) == (401, CHALLENGE)
        check_page(answer)
        text = answer.body.decode()
        assert 'action="/account/tokens"' in text
        assert {name: hidden(text, name) for name in fields} == {name: [value] for name, value in fields.items()}
        assert re.search('<input type="password" name="password"[^>]* autofocus', text)
        assert '<input type="text" value="alice" autocomplete="username" readonly>' in text
        assert tokens_of(api) == []
        make_token(api, session, {**fields, "password": PASSWORD})
        make_token(api, session)  # the session is recent now

    def test_token_of_an_account_that_is_replaced_meanwhile_is_refused(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name is another account's by the time that the password is found right."""
        confirm, entries = Sessions.confirm, api.logins.context.users
        before = entries.entry("alice")

        async def confirm_and_replace(self: Sessions, *args: Any) -> None:
            await confirm(self, *args)
            assert api.users is not None
            api.users.write_text(user_line("alice", "of another"))
            assert entries.refresh()

        monkeypatch.setattr(Sessions, "confirm", confirm_and_replace)
        session = sign_in(api)
        api.clock.advance(901)
        answer = send(api, "/account/tokens", session, {**NEW, "password": PASSWORD})
        assert answer.status == 200
        assert entries.entry("alice") != before
        assert {one.entry for one in tokens_of(api)} <= {before}  # worth nothing, and removed by and by

    def test_wrong_password_is_refused_and_logged_as_a_sign_in(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        api.clock.advance(901)
        with capturedLogs() as events:
            answer = send(api, "/account/tokens", session, {**NEW, "password": "wrong"})
        assert answer.status == 401
        text = answer.body.decode()
        assert "The password is wrong." in text
        assert 'aria-describedby="alert"' in text
        assert "wrong" not in [*hidden(text, "password"), *hidden(text, "label")]
        assert any(
            str(line).startswith("login refused: form 'alice' from 127.0.0.1") for line in map(formatEvent, events)
        )
        assert is_live(api, session)
        assert tokens_of(api) == []

    def test_wrong_passwords_are_throttled(self, make: MakeApi) -> None:
        api = make(f"{TOKENS}[throttle]\nfailures = 2\n")
        session = sign_in(api)
        api.clock.advance(901)
        for _ in range(2):
            assert send(api, "/account/tokens", session, {**NEW, "password": "wrong"}).status == 401
        answer = send(api, "/account/tokens", session, {**NEW, "password": PASSWORD})
        assert answer.status == 429
        assert int(answer.header("Retry-After") or "") > 0
        text = answer.body.decode()
        assert f"Try again in {answer.header('Retry-After')} seconds." in text
        assert hidden(text, "label") == ["Reader"]
        form = urlencode({"username": "alice", "password": PASSWORD}).encode()
        assert ask(api, "POST", "/login", form, {"Content-Type": FORM}).status == 429

    def test_password_of_another_account_is_wrong(self, make: MakeApi) -> None:
        api = make(TOKENS, account("alice") + user_line("bob", "other"))
        session = sign_in(api)
        api.clock.advance(901)
        assert send(api, "/account/tokens", session, {**NEW, "password": "other", "username": "bob"}).status == 401


@ensureDeferred
async def test_user_of_a_provider_confirms_there(tmp_path: Path) -> None:
    arguments = {"tokens": True, "store": f"sqlite:{tmp_path / 'logins.db'}"}
    async with running(tmp_path, arguments=arguments) as site:
        browser = site.browser()
        site.idp.id_token_claims = {"auth_time": int(time.time()) - 3600}
        await browser.sign_in(site.idp)
        text = (await browser.get("/sign-in/account")).text
        assert '<strong dir="auto">Alice</strong>, with Example, ' in text
        answer = await browser.get("/sign-in/account/tokens", "POST", data=NEW)
        assert answer.code == 401
        assert 'type="password"' not in answer.text
        assert hidden(answer.text, "label") == ["Reader"]
        (link,) = re.findall('href="(/sign-in/login/example[^"]*)" target="_blank"', answer.text)
        assert parse_qs(urlsplit(unescape(link)).query) == {
            "fresh": ["1"],
            "next": ["/sign-in/account?done=confirmed"],
        }
        query = f"?{urlsplit(unescape(link)).query}"
        assert (await browser.sign_in(site.idp, query)).code == 401  # its session there is as old as before
        site.idp.id_token_claims = {}
        confirmed = await browser.sign_in(site.idp, query)
        assert confirmed.location == "/sign-in/account?done=confirmed"
        assert "You have signed in again." in (await browser.get(confirmed.location)).text
        answer = await browser.get("/sign-in/account/tokens", "POST", data=NEW)
        assert answer.code == 200
        assert "Example" in (await browser.get("/sign-in/account/sessions")).text


@pytest.mark.parametrize(("auth_time", "status"), [(-60, 200), (-3600, 401), (None, 401), (3600, 200)])
@ensureDeferred
async def test_time_of_the_sign_in_is_that_of_the_provider(tmp_path: Path, auth_time: int | None, status: int) -> None:
    async with running(tmp_path, arguments={"tokens": True}) as site:
        site.idp.id_token_claims = {"auth_time": None if auth_time is None else int(time.time()) + auth_time}
        browser = site.browser()
        await browser.sign_in(site.idp)
        assert (await browser.get("/sign-in/account/tokens", "POST", data=NEW)).code == status


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
