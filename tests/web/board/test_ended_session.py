"""Forms of the board that are not handled: the answer has what was typed, and the field has it after the sign-in."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from twisted.logger import capturedLogs

from tests.helpers import InMemoryApi, Response, result_of
from tests.web.board.test_board import Browser, Page, posts_of
from tests.web.clients import check_secret
from tests.web.wire import FORM, ask, user_line

TEXT = 'Grüße & <b>"quotes"</b>\nsecond line 100 % +'
HTML = {"Content-Type": FORM, "Accept": "text/html", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
RULES = {
    "sessions": '[api]\nread = ["session"]\nwrite = ["session"]\n',
    "sessions beside Basic": '[api]\nread = ["session", "basic"]\nwrite = ["session", "basic"]\n',
    "open reading": '[api]\nread = ["open"]\nwrite = ["session"]\n',
}

MakeApi = Callable[[str], InMemoryApi]


@pytest.fixture
def make_api(tmp_path: Path) -> Iterator[MakeApi]:
    made = []

    def make(settings: str) -> InMemoryApi:
        (tmp_path / "users").write_text(user_line("alice", "x"))
        made.append(InMemoryApi(tmp_path, settings))
        return made[-1]

    yield make
    for api in made:
        api.close()


def send(api: InMemoryApi, path: str, fields: Any, **headers: Any) -> Response:
    return ask(api, "POST", path, urlencode(fields).encode(), HTML | headers)


def sign_in(api: InMemoryApi, page: Page, password: str = "x") -> Response:
    fields = {name: value for name, value in page.forms["/login"].items() if name}
    return send(api, "/login", fields | {"username": "alice", "password": password})


@pytest.mark.parametrize("rules", RULES)
def test_text_of_a_new_post_is_in_the_field_after_the_sign_in(make_api: MakeApi, rules: str) -> None:
    api = make_api(RULES[rules])
    with capturedLogs() as events:
        fields = {"post": TEXT, "key": "k", "account": "alice"}
        answer = send(api, "/board", fields, Cookie="session=" + "A" * 43)
        assert (answer.status, answer.header("Location")) == (401, None)
        assert answer.headers["www-authenticate"] == ['Cookie realm="postd", form-action="/login", cookie-name=session']
        page = Page(answer)
        assert page.texts["alert"].startswith("Your session has ended.")
        failed = sign_in(api, page, "wrong")
        assert failed.status == 401
        signed_in = sign_in(api, Page(failed))
        api.clock.advance(1)
    check_secret(events, "second line", "Grüße")
    assert signed_in.status == 200
    assert (signed_in.header("Set-Cookie") or "").startswith("session=")
    board = Page(signed_in)
    assert board.forms["/board"]["post"] == TEXT
    assert board.texts["notice"].startswith("Your session had ended.")
    assert posts_of(api) == []
    cookie = (signed_in.header("Set-Cookie") or "").partition(";")[0]
    assert send(api, "/board", board.forms["/board"], Cookie=cookie).status == 303
    assert posts_of(api) == [(1, TEXT)]


def test_text_of_an_edit_is_in_the_field_and_a_conflict_is_still_found(make_api: MakeApi) -> None:
    api = make_api(RULES["sessions"])
    api.add("hello")
    fields = Browser(api).page("/board/1").forms["/board/1"] | {"post": TEXT}
    Browser(api).save(1, "changed meanwhile")
    signed_in = sign_in(api, Page(send(api, "/board/1", fields)))
    board = Page(signed_in)
    assert board.forms["/board/1"] == {"post": TEXT, "was": "hello", "account": "alice"}
    cookie = (signed_in.header("Set-Cookie") or "").partition(";")[0]
    assert send(api, "/board/1", board.forms["/board/1"], Cookie=cookie).status == 409
    Browser(api).delete(1)
    gone = sign_in(api, Page(send(api, "/board/1", fields)))
    assert (gone.status, Page(gone).forms["/board"]["post"]) == (404, TEXT)


def test_text_of_another_account_is_not_shown(make_api: MakeApi) -> None:
    api = make_api(RULES["sessions"])
    board = Page(sign_in(api, Page(send(api, "/board", {"post": TEXT, "key": "k", "account": "bob"}))))
    assert (board.forms["/board"]["post"], "second line" in board.html) == ("", False)


def test_deletion_after_the_end_of_the_session_asks_again(make_api: MakeApi) -> None:
    api = make_api(RULES["sessions"])
    api.add("hello")
    answer = sign_in(api, Page(send(api, "/board/1/delete", {"was": "hello"})))
    assert (answer.status, answer.header("Location")) == (303, "/board/1/delete")
    assert posts_of(api) == [(1, "hello")]


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}])
def test_form_of_another_site_is_not_carried(make_api: MakeApi, headers: dict[str, str]) -> None:
    api = make_api(RULES["sessions"])
    assert send(api, "/board", {"post": TEXT}, **headers).status == 403
    assert send(api, "/login", {"form": "post=x", "next": "/board"}, **headers).status == 403


def test_sign_in_may_be_longer_with_a_carried_form_only(make_api: MakeApi) -> None:
    api = make_api(RULES["sessions"])
    credentials = {"username": "alice", "password": "x", "next": "/board"}
    longest = "account=alice&post=" + "%C3%BC" * 1300
    assert Page(send(api, "/login", credentials | {"form": longest})).forms["/board"]["post"] == "ü" * 1300
    assert send(api, "/login", credentials | {"other": longest}).status == 413
    assert send(api, "/login", credentials | {"form": "x" * 33_000}).status == 413


@pytest.mark.parametrize("path", ["/board", "/board/1"])
def test_page_of_an_error_has_the_text(make_api: MakeApi, path: str) -> None:
    api = make_api(RULES["sessions"])
    browser = Browser(api)
    result_of(api.store.stop())
    fields = {"post": TEXT, "key" if path == "/board" else "was": "hello", "account": "alice"}
    answer = browser.send(path, fields, Accept="text/html")
    assert (answer.status, answer.header("Retry-After")) == (503, "1")
    page = Page(answer)
    assert page.forms[path] == fields
    assert "Try again in 1 second." in page.texts["why"]


def test_throttled_reader_keeps_the_text(make_api: MakeApi) -> None:
    api = make_api('[api]\nwrite = ["basic"]\n[throttle]\nfailures = 1\n')
    wrong = {"Authorization": "Basic YWxpY2U6eQ=="}
    send(api, "/board", {"post": TEXT, "key": "k"}, **wrong)
    answer = send(api, "/board", {"post": TEXT, "key": "k"}, **wrong)
    assert (answer.status, Page(answer).forms["/board"]["post"]) == (429, TEXT)
