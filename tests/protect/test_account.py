"""The pages below `/account` (reference: Accounts)."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.helpers import InMemoryApi, Response
from tests.protect.program import MakeProgram, log_in
from tests.protect.test_login import BROWSER, EXPIRED, check_page
from tests.web.clients import PASSWORD
from tests.web.wire import FORM, Server, ask

MakeApi = Callable[..., InMemoryApi]

PAGES = ["/account"]


def sign_in(server: Server, name: str = "alice", headers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sign in; return the header fields of the session."""
    form = urlencode({"username": name, "password": PASSWORD}).encode()
    answer = ask(server, "POST", "/login", form, {"Content-Type": FORM, **(headers or {})})
    assert answer.status == 302
    return {"Cookie": (answer.header("Set-Cookie") or "").partition(";")[0]}


def send(
    server: Server, path: str, session: Mapping[str, Any], fields: Mapping[str, str], more: Mapping[str, Any] = {}
) -> Response:
    """Send a form as a browser."""
    headers = {**BROWSER, "Content-Type": FORM, **session, **more}
    return ask(server, "POST", path, urlencode(fields).encode(), headers)


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


class OverviewTests:
    def test_page_says_who_is_signed_in(self, api: InMemoryApi) -> None:
        session = sign_in(api)
        api.clock.advance(120)
        text = ask(api, "GET", "/account", headers=session).body.decode()
        assert '<strong dir="auto">alice</strong>' in text
        assert ">2 min ago</time>" in text
        assert 'href="/logout"' in text
        assert 'href="/home"' in text

    def test_page_path_at_the_account_is_refused(self, make: MakeApi) -> None:
        with pytest.raises(Exception, match="reserved for postd"):
            make('[[page]]\npath = "/account/x"\nschemes = ["basic"]')


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
