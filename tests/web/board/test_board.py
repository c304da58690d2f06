"""The board without its script: pages, forms and access."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from twisted.internet.defer import Deferred

from postd.errors import NoSuchPostError
from postd.model import POST_ID_MAX, PostDetails
from tests.cases import each
from tests.helpers import InMemoryApi, Response, forget_own, result_of
from tests.protect.test_login import check_page, check_text
from tests.web.wire import FORM, ask, user_line

RULES = '[api]\nread = ["session"]\nwrite = ["session"]\n'
NAVIGATION = {"Sec-Fetch-Mode": "navigate"}
READ_ONLY = '[api]\nread = ["session"]\nwrite = ["basic"]\n'
ODD_TEXTS = [
    *("<script>alert(1)</script>", "</textarea><b>", '"><img src=x onerror=x>', "&lt;&amp;&#39;", "$user ${text} $$"),
    *("\n\nleading lines", "two\nlines", " spaces  kept ", "שלום abc", "🚀" * 140, "\u202eturned", "'", "\x01\x0b"),
]

MakeApi = Callable[..., InMemoryApi]


@pytest.fixture
def make_api(tmp_path: Path) -> Iterator[MakeApi]:
    made = []

    def make(settings: str = RULES) -> InMemoryApi:
        (tmp_path / "users").write_text(user_line("alice", "x") + user_line("<b>ob", "x"))
        made.append(InMemoryApi(tmp_path, settings))
        return made[-1]

    yield make
    for api in made:
        api.close()


@pytest.fixture
def api(make_api: MakeApi) -> InMemoryApi:
    return make_api()


class Browser:
    """A signed-in browser without scripts: submits the forms and follows the links of pages."""

    def __init__(self, api: InMemoryApi, name: str = "alice") -> None:
        self.api = api
        body = urlencode({"username": name, "password": "x"}).encode()
        cookie = ask(api, "POST", "/login", body, {"Content-Type": FORM}).header("Set-Cookie") or ""
        self.cookie = {"Cookie": cookie.partition(";")[0]}

    def get(self, path: str = "/board", method: str = "GET", **headers: Any) -> Response:
        return ask(self.api, method, path, None, self.cookie | headers)

    def page(self, path: str = "/board") -> "Page":
        answer = self.get(path)
        assert answer.status == 200
        return Page(answer)

    def send(self, path: str, fields: Any = (), **headers: Any) -> Response:
        body = fields if isinstance(fields, bytes) else urlencode(fields).encode()
        return ask(self.api, "POST", path, body, self.cookie | {"Content-Type": FORM} | headers)

    def submit(self, page: "Page", action: str, text: str | None = None) -> Response:
        """Submit a form of a page, optionally with another text."""
        fields = dict(page.forms[action])
        if text is not None:
            fields["post"] = text
        return self.send(action, {name: _with_crlf(value) for name, value in fields.items()})

    def follow(self, answer: Response) -> "Page":
        assert (answer.status, answer.header("Content-Type")) == (303, "text/plain; charset=utf-8")
        return self.page((answer.header("Location") or "").partition("#")[0])

    def add(self, text: str) -> Response:
        return self.submit(self.page(), "/board", text)

    def save(self, post_id: int, text: str) -> Response:
        return self.submit(self.page(f"/board/{post_id}"), f"/board/{post_id}", text)

    def ask_to_delete(self, post_id: int) -> "Page":
        """Press the button on the page of a post; return the page that asks."""
        question = f"/board/{post_id}/delete"
        assert f'method="GET" action="{question}"' in self.page(f"/board/{post_id}").html
        return self.page(question)

    def delete(self, post_id: int) -> Response:
        return self.submit(self.ask_to_delete(post_id), f"/board/{post_id}/delete")


def _with_crlf(value: str) -> str:
    """Encode line ends as a browser does in every form (URL Standard, HTML Living Standard §4.10.21.4)."""
    return re.sub("\r\n|\r|\n", "\r\n", value)


class Page(HTMLParser):
    """The content of a page: forms with their fields, posts, links, and texts by the ids of their elements."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        assert answer.header("Content-Type") == "text/html; charset=utf-8"
        self.html = answer.body.decode()
        self.tags: list[tuple[str, dict[str, str | None]]] = [("", {})]
        self.forms: dict[str, dict[str, str]] = {}
        self.texts: dict[str, str] = {}
        self.posts: list[tuple[int, str]] = []
        self.hidden: set[str] = set()
        self._form: dict[str, str] = {}
        self._in_template = self._in_text = False
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        name = attributes.get("name") or ""
        if tag == "template":
            self._in_template = True
        elif tag == "form":
            self._form = self.forms[attributes["action"] or ""] = {}
        elif tag in {"input", "textarea"} and name:
            self._form[name] = attributes.get("value") or ""
        elif tag in {"li", "article"} and not self._in_template:
            self.posts.append((int(attributes["data-id"] or ""), ""))
        elif tag == "p":
            self._in_text = attributes.get("class") == "text" and not self._in_template
        if "hidden" in attributes:
            self.hidden.add(attributes.get("id") or "")

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(("/" + tag, {}))
        if tag == "template":
            self._in_template = False
        elif tag == "p":
            self._in_text = False

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1]
        if tag == "textarea":
            self._form["post"] = data.removeprefix("\n")  # HTML Living Standard §13.2.6.4.7
        elif self._in_text:
            self.posts[-1] = self.posts[-1][0], self.posts[-1][1] + data
        key = attributes.get("id") or attributes.get("class") or tag
        self.texts.setdefault(key, data)

    def all(self, wanted: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == wanted]

    def link(self, wanted: str) -> str | None:
        """Return the target of a link, or None if it is hidden."""
        if wanted in self.hidden:
            return None
        return next(attributes["href"] for attributes in self.all("a") if attributes.get("id") == wanted)


def posts_of(api: InMemoryApi) -> list[tuple[int, str]]:
    posts: list[tuple[int, str]] = result_of(api.store.list_posts(limit=1000)).posts
    return posts


def import_posts(api: InMemoryApi, ids: Iterable[int]) -> None:
    async def run() -> None:
        importing = await api.store.begin_import()
        await importing.add([PostDetails(post_id, "x") for post_id in ids])
        await importing.commit()

    running = Deferred.fromCoroutine(run())
    while not running.called:
        api.clock.advance(0)
    result_of(running)


def open_in_two_browsers(api: InMemoryApi) -> tuple[Browser, Browser, Page]:
    """Add a post; return the browsers of two users, and the edit page in the first one."""
    api.add("hello")
    alice, bob = Browser(api), Browser(api, "<b>ob")
    return alice, bob, alice.page("/board/1")


def revision_of(api: InMemoryApi) -> int:
    revision: int = result_of(api.store.version()).revision
    return revision


class RuleTests:
    """Access to the board."""

    PATHS = ("/board", "/board/1", "/board/1/delete", "/board/x")

    def test_disabled_board_is_404(self, make_api: MakeApi) -> None:
        browser = Browser(make_api(f"{RULES}[board]\nenabled = false\n"))
        for path in self.PATHS:
            check_text(browser.get(path), 404, "Not Found\n")
            check_text(browser.send(path, {"post": "x"}), 404, "Not Found\n")
        assert browser.get("/home").header("Link") is None

    def test_home_links_to_the_board(self, api: InMemoryApi) -> None:
        answer = Browser(api).get("/home")
        check_text(answer, 200, "Success: alice\n")
        assert answer.header("Link") == '</board>; rel="related"'
        check_text(Browser(api).get("/home/x"), 404, "Not Found\n")

    def test_request_without_a_session_redirects_to_the_form(self, api: InMemoryApi) -> None:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
            for path in self.PATHS:
                for cookie in ({}, {"Cookie": "session=" + "A" * 43}):
                    answer = ask(api, method, path, b"post=x", {"Content-Type": FORM} | cookie)
                    back = f"?next={path}" if method in {"GET", "HEAD"} else ""
                    assert (answer.status, answer.header("Location")) == (302, f"/{back}")
                    check_page(answer)
        assert posts_of(api) == []

    @each("rules", ['"session", "basic"', '"open"', '"basic"'])
    def test_header_schemes_are_those_of_the_api(self, make_api: MakeApi, rules: str) -> None:
        api = make_api(f"[api]\nread = [{rules}]\nwrite = [{rules}]\n")
        basic = {"Authorization": "Basic " + b64encode(b"alice:x").decode()}
        answer = ask(api, "GET", "/board", None, basic)
        assert answer.status == 200
        page = Page(answer)
        assert 'Signed in as </span><strong dir="auto">alice</strong>' in page.html
        assert set(page.forms) == {"/board"}  # there is no session to sign out of
        sent = ask(api, "POST", "/board", urlencode({"post": "hello"}).encode(), basic | {"Content-Type": FORM})
        assert sent.status == 303
        assert posts_of(api) == [(1, "hello")]
        wrong = {"Authorization": "Basic " + b64encode(b"alice:y").decode(), **NAVIGATION}
        refused = ask(api, "GET", "/board", None, wrong)
        assert (refused.status, refused.headers["www-authenticate"][-1]) == (401, 'Basic realm="postd"')

    def test_program_is_challenged_and_browser_is_redirected_beside_other_schemes(self, make_api: MakeApi) -> None:
        api = make_api('[api]\nread = ["session", "basic"]\nwrite = ["session", "basic"]\n')
        assert ask(api, "GET", "/board").header("WWW-Authenticate") == 'Basic realm="postd"'
        assert ask(api, "GET", "/board?before=7", None, NAVIGATION).header("Location") == "/?next=/board%3Fbefore%3D7"

    def test_open_board_needs_no_sign_in(self, make_api: MakeApi) -> None:
        api = make_api("")
        fields = urlencode({"post": "hello", "key": "k"}).encode()
        assert ask(api, "POST", "/board", fields, {"Content-Type": FORM, "Sec-Fetch-Site": "same-origin"}).status == 303
        page = Page(ask(api, "GET", "/board", None, {"Cookie": "session=" + "A" * 43}))  # one that has ended
        assert page.posts == [(1, "hello")]
        assert set(page.forms) == {"/board"}
        assert '<a href="/?next=/board">Sign in</a>' in page.html
        signed_in = Browser(api).page()
        assert set(signed_in.forms) == {"/board", "/logout"}
        was = Page(ask(api, "GET", "/board/1")).forms["/board/1"]["was"]
        saved = ask(api, "POST", "/board/1", urlencode({"post": "bye", "was": was}).encode(), {"Content-Type": FORM})
        assert saved.status == 303
        assert posts_of(api) == [(1, "bye")]

    @pytest.mark.parametrize(
        ("write", "link"),
        [
            ('"session"', '<a href="/?next=/board">Sign in to post</a>'),
            ('"session", "basic"', '<a href="/?next=/board">Sign in to post</a>'),
            ('"basic"', '<a href="/?next=/board">Sign in</a>'),
        ],
    )
    def test_reader_who_may_not_write_sees_the_posts(self, make_api: MakeApi, write: str, link: str) -> None:
        api = make_api(f"[api]\nwrite = [{write}]\n")
        api.add("hello")
        page = Page(ask(api, "GET", "/board"))
        assert page.posts == [(1, "hello")]
        assert page.forms == {}
        assert link in page.html
        assert Page(ask(api, "GET", "/board/1")).posts == [(1, "hello")]
        check_text(ask(api, "GET", "/board/1/delete"), 403, "Forbidden\n")
        for path in ("/board", "/board/1", "/board/1/delete"):
            answer = ask(api, "POST", path, b"post=x&was=x", {"Content-Type": FORM})
            assert answer.status == (302 if write == '"session"' else 401)
        assert posts_of(api) == [(1, "hello")]

    def test_no_sign_in_is_offered_without_accounts(self) -> None:
        with closing(InMemoryApi(None, '[api]\nwrite = ["session"]\n')) as api:
            page = Page(ask(api, "GET", "/board"))
            assert (page.forms, 'href="/?next=' in page.html) == ({}, False)

    def test_board_without_write_access_has_no_forms_and_refuses_writes(self, make_api: MakeApi) -> None:
        api = make_api(READ_ONLY)
        api.add("hello")
        browser = Browser(api)
        page = browser.page()
        assert page.posts == [(1, "hello")]
        assert set(page.forms) == {"/logout"}
        assert {link["class"] for link in page.all("a") if "/board/" in (link["href"] or "")} == {"number"}
        assert set(browser.page("/board/1").forms) == {"/logout"}
        check_text(browser.get("/board/1/delete"), 403, "Forbidden\n")
        fields = {"post": "x", "was": "", "key": "k"}
        for path in ("/board", "/board/1", "/board/1/delete"):
            check_text(browser.send(path, fields), 401, "Unauthorized\n")  # a session is no credentials of this rule
        assert posts_of(api) == [(1, "hello")]

    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
        ],
    )
    @pytest.mark.parametrize("rules", [RULES, ""])
    def test_cross_site_write_is_refused(self, make_api: MakeApi, rules: str, headers: dict[str, Any]) -> None:
        api = make_api(rules)
        api.add("hello")
        browser = Browser(api)
        was = browser.page("/board/1").forms["/board/1"]["was"]
        for path in ("/board", "/board/1", "/board/1/delete"):
            fields = {"post": "x", "was": was}
            check_text(browser.send(path, fields, **headers), 403, "Forbidden\n")
            sent = {"Content-Type": FORM, **headers}
            check_text(ask(api, "POST", path, urlencode(fields).encode(), sent), 403, "Forbidden\n")
        assert posts_of(api) == [(1, "hello")]
        assert browser.get(**headers).status == 200  # cross-site links are allowed

    def test_page_names_the_user_and_has_a_logout_form(self, api: InMemoryApi) -> None:
        page = Browser(api, "<b>ob").page()
        assert '<strong dir="auto">&lt;b&gt;ob</strong>' in page.html
        assert "/logout" in page.forms


class MethodTests:
    def test_head_has_the_headers_of_get_and_no_body(self, api: InMemoryApi) -> None:
        api.add("hello")
        browser = Browser(api)
        for path in ("/board", "/board?after=0", "/board/1", "/board/2", "/board/x", "/board?after=x"):
            got, head = browser.get(path), browser.get(path, "HEAD")
            forget_own(got, head)
            assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")

    @pytest.mark.parametrize(
        ("path", "allow"),
        [
            ("/board", "GET, HEAD, OPTIONS, POST"),
            ("/board/1", "GET, HEAD, OPTIONS, POST"),
            ("/board/1/delete", "GET, HEAD, OPTIONS, POST"),
        ],
    )
    def test_other_method_is_405_with_allow(self, api: InMemoryApi, path: str, allow: str) -> None:
        browser = Browser(api)
        for method in ("PUT", "DELETE", "PATCH", "get"):
            answer = browser.get(path, method)
            check_text(answer, 405, "Method Not Allowed\n")
            assert answer.header("Allow") == allow
        answer = ask(api, "OPTIONS", path)
        assert (answer.status, answer.header("Allow"), answer.body) == (204, allow, b"")

    @each(
        "path", ["/board/", "/board/0", "/board/01", "/board/x", "/board/1/", "/board/1/x", f"/board/{POST_ID_MAX + 1}"]
    )
    def test_other_path_is_404(self, api: InMemoryApi, path: str) -> None:
        api.add("hello")
        for method in ("GET", "POST"):
            check_text(Browser(api).get(path, method), 404, "Not Found\n")


class PageTests:
    def test_page_is_self_contained_and_has_a_policy(self, api: InMemoryApi) -> None:
        api.add("hello")
        for path in ("/board", "/board/1"):
            answer = Browser(api).get(path)
            check_page(answer)
            page = Page(answer)
            assert not {tag for tag, _ in page.tags} & {"img", "iframe", "object", "base"}
            assert [(link["rel"], link["href"]) for link in page.all("link")] == [("alternate", "/feed.atom")]
            assert answer.header("Link") == '</feed.atom>; rel="alternate"; type="application/atom+xml"'
            for _, attributes in page.tags:
                assert not any(name in {"style", "src"} or name.startswith("on") for name in attributes)
            policy = set((answer.header("Content-Security-Policy") or "").split("; "))
            for tag in ("style", "script"):
                (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page.html, re.DOTALL)
                content_hash = b64encode(hashlib.sha256(content.encode()).digest()).decode()
                assert f"{tag}-src 'sha256-{content_hash}'" in policy
            assert {"connect-src 'self'", "form-action 'self'", "base-uri 'none'"} <= policy

    def test_empty_board_has_a_note_instead_of_posts(self, api: InMemoryApi) -> None:
        page = Browser(api).page()
        assert page.posts == []
        assert {"posts", "newer", "older"} <= page.hidden
        assert "none" not in page.hidden
        api.add("hello")
        page = Browser(api).page()
        assert "none" in page.hidden
        assert "posts" not in page.hidden

    @pytest.mark.parametrize(
        ("write", "how", "curl"),
        [
            ("session", " Write the first one.", "-b cookies.txt -H"),
            ("session, digest", " Write the first one.", "--digest -u '<b>ob' -H"),
            ("basic", "", "-u '<b>ob' -H"),
            ("open", " Write the first one.", "-H"),
        ],
    )
    def test_empty_board_says_how_to_add_a_post(self, make_api: MakeApi, write: str, how: str, curl: str) -> None:
        rules = write.replace(", ", '", "')
        api = make_api(f'public_url = "https://posts.example"\n[api]\nread = ["session"]\nwrite = ["{rules}"]\n')
        answer = Browser(api, "<b>ob").get()
        assert f"<p>There are no posts yet.{how}</p>" in Page(answer).html
        command = re.findall(r'<pre class="sample"><code>(.*?)</code></pre>', Page(answer).html)
        body = """'{"post": "Hello, world"}'"""
        line = f"curl -i {curl} 'Content-Type: application/json' -d {body} 'https://posts.example/post'"
        assert [unescape(one) for one in command] == [line]

    def test_each_post_links_to_its_page_which_leads_back(self, api: InMemoryApi) -> None:
        import_posts(api, range(1, 251))
        browser = Browser(api)
        links = {link["href"] for link in browser.page().all("a") if link.get("class") == "number"}
        assert links == {f"/board/{post_id}" for post_id in [0, *range(151, 251)]}  # a template is the 0 of them
        for post_id in (1, 150, 151, 250):
            page = browser.page(f"/board/{post_id}")
            assert page.posts == [(post_id, "x")]
            (back,) = {link["href"] or "" for link in page.all("a") if "#" in (link["href"] or "")} - {"/board/0#post"}
            path, _, fragment = back.partition("#")
            assert fragment == f"post-{post_id}"
            assert post_id in dict(browser.page(path).posts)

    @pytest.mark.parametrize("path", ["/board", "/docs", "/home"])
    def test_pages_lead_to_each_other(self, api: InMemoryApi, path: str) -> None:
        page = Browser(api).get(path, Accept="text/html").body
        links = set(re.findall(rb'(?:href|action)="([^"]+)"', page))
        wanted = {
            "/board": {b"/docs", b"/logout"},
            "/docs": {b"/board", b"/"},
            "/home": {b"/board", b"/docs", b"/logout"},
        }
        assert wanted[path] <= links
        assert b'<a href="/docs">' in ask(api, "GET", "/").body

    @pytest.mark.parametrize("text", ODD_TEXTS)
    def test_text_is_shown_unchanged(self, api: InMemoryApi, text: str) -> None:
        api.add(text)
        browser = Browser(api)
        assert browser.page().posts == [(1, text)]
        assert browser.page("/board/1").forms["/board/1"]["post"] == text

    def test_every_field_is_labelled_and_described(self, api: InMemoryApi) -> None:
        api.add("hello")
        for path in ("/board", "/board/1", "/board?done=added"):
            page = Browser(api).page(path)
            (field,) = page.all("textarea")
            assert field["id"] in {label["for"] for label in page.all("label")}
            ids = {attributes.get("id") for _, attributes in page.tags}
            assert set((field["aria-describedby"] or "").split()) <= ids

    def test_page_has_its_revision_for_the_event_stream(self, api: InMemoryApi) -> None:
        api.add("one")
        api.add("two")
        for path in ("/board", "/board/1"):
            (revision,) = [tag["data-revision"] for tag in Browser(api).page(path).all("p") if "data-revision" in tag]
            assert revision == str(revision_of(api)) == "2"

    @pytest.mark.parametrize("done", ["added", "saved", "deleted", "gone"])
    def test_known_done_parameter_shows_a_message(self, api: InMemoryApi, done: str) -> None:
        assert Browser(api).page(f"/board?done={done}").texts["done"].startswith("The post was ")

    @each("done", ["", "x", "<b>", "ADDED", "The+post+was+added."])
    def test_unknown_done_parameter_is_ignored(self, api: InMemoryApi, done: str) -> None:
        page = Browser(api).page(f"/board?done={done}")
        assert "done" not in page.texts
        assert Browser(api).page().html.partition('name="key"')[0] == page.html.partition('name="key"')[0]


class PagingTests:
    def test_newest_posts_are_first_and_links_lead_to_older_ones_and_back(self, api: InMemoryApi) -> None:
        for n in range(1, 251):
            api.add(f"post {n}")
        browser = Browser(api)
        newest = browser.page()
        assert [post_id for post_id, _ in newest.posts] == list(range(250, 150, -1))
        assert newest.link("newer") is None
        middle = browser.page(newest.link("older") or "")
        assert [post_id for post_id, _ in middle.posts] == list(range(150, 50, -1))
        oldest = browser.page(middle.link("older") or "")
        assert [post_id for post_id, _ in oldest.posts] == list(range(50, 0, -1))
        assert oldest.link("older") is None
        back = browser.page(oldest.link("newer") or "")
        assert back.posts == middle.posts
        assert browser.page(back.link("newer") or "").posts == newest.posts

    def test_page_with_fewer_newer_posts_than_fit_is_the_newest_page(self, api: InMemoryApi) -> None:
        for n in range(1, 121):
            api.add(f"post {n}")
        for path in ("/board?after=100", "/board?after=120", "/board?before=121", f"/board?before={POST_ID_MAX}"):
            page = Browser(api).page(path)
            assert page.posts[0][0] == 120
            assert len(page.posts) == 100
            assert page.link("newer") is None

    def test_pages_have_every_post_despite_gaps_in_the_ids(self, api: InMemoryApi) -> None:
        ids = [*range(1, 41), *range(1000, 1030), *range(100_001, 100_061), 9_000_000_000_000]
        import_posts(api, ids)
        met: list[int] = []
        path: str | None = "/board"
        while path:
            page = Browser(api).page(path)
            met += [post_id for post_id, _ in page.posts]
            path = page.link("older")
        assert met == ids[::-1]

    @each(
        "query",
        [
            *("after=x", "after=", "after=-1", "after=1&after=2", "before=0", "before=1.5", "before=1&after=1"),
            *("after=%D9%A3", f"before={POST_ID_MAX + 2}", "after=1" + "0" * 40),
        ],
    )
    def test_invalid_paging_parameter_is_400(self, api: InMemoryApi, query: str) -> None:
        check_text(Browser(api).get(f"/board?{query}"), 400, "Bad Request\n")

    def test_write_redirects_to_the_page_of_the_post(self, api: InMemoryApi) -> None:
        for n in range(1, 151):
            api.add(f"post {n}")
        browser = Browser(api)
        answer = browser.save(20, "changed")
        assert (answer.header("Location") or "").endswith("#post-20")
        assert (20, "changed") in browser.follow(answer).posts
        answer = browser.save(149, "changed")
        assert answer.header("Location") == "/board?done=saved#post-149"
        page = browser.follow(browser.delete(21))
        assert page.posts[0][0] == 20
        assert page.texts["done"] == "The post was deleted."


class AddTests:
    @pytest.mark.parametrize("text", ODD_TEXTS)
    def test_any_text_can_be_added(self, api: InMemoryApi, text: str) -> None:
        browser = Browser(api)
        page = browser.follow(browser.add(text))
        assert page.posts == posts_of(api) == [(1, text)]
        assert page.texts["done"] == "The post was added."
        assert page.forms["/board"]["post"] == ""

    @pytest.mark.parametrize("text", ["", "x" * 141, "a\0b", "🚀" * 141, "<b>" * 50])
    def test_invalid_text_is_kept_with_an_error_beside_the_field(self, api: InMemoryApi, text: str) -> None:
        api.add("hello")
        answer = Browser(api).add(text)
        assert answer.status == 422
        check_page(answer)
        page = Page(answer)
        assert page.texts["error"].startswith("The text of a post ")
        (field,) = page.all("textarea")
        assert field["aria-invalid"] == "true"
        assert "error" in (field["aria-describedby"] or "").split()
        assert page.forms["/board"]["post"] == text.replace("\0", "\ufffd")
        assert page.posts == posts_of(api) == [(1, "hello")]

    def test_line_end_of_the_form_counts_as_one_character(self, api: InMemoryApi) -> None:
        text = "\n".join(["🚀"] * 70) + "\n"
        Browser(api).add(text)
        assert posts_of(api) == [(1, text)]

    def test_form_sent_twice_adds_one_post(self, api: InMemoryApi) -> None:
        browser = Browser(api)
        page = browser.page()
        for _ in range(2):
            assert browser.submit(page, "/board", "hello").status == 303
        assert posts_of(api) == [(1, "hello")]

    def test_same_text_in_a_new_form_and_new_text_in_the_old_form_add_posts(self, api: InMemoryApi) -> None:
        browser = Browser(api)
        page = browser.page()
        for again, text in ((page, "hello"), (browser.page(), "hello"), (page, "other")):
            assert browser.submit(again, "/board", text).status == 303
        assert [text for _, text in posts_of(api)] == ["hello", "hello", "other"]

    def test_request_without_a_form_key_adds_a_post(self, api: InMemoryApi) -> None:
        for _ in range(2):
            assert Browser(api).send("/board", {"post": "hello"}).status == 303
        assert len(posts_of(api)) == 2

    @each("body", [b"", b"text=x", b"post=x&post=y", b"post=%ff", b"post=\xff", b"post=%ED%A0%80"])
    def test_malformed_form_is_400(self, api: InMemoryApi, body: bytes) -> None:
        check_text(Browser(api).send("/board", body), 400, "Bad Request\n")

    def test_other_content_type_or_large_form_is_refused(self, api: InMemoryApi) -> None:
        browser = Browser(api)
        for kind in ("text/plain", "application/json", "multipart/form-data; boundary=x"):
            check_text(browser.send("/board", b"post=x", **{"Content-Type": kind}), 415, "Unsupported Media Type\n")
        check_text(browser.send("/board", b"post=".ljust(8193, b"x")), 413, "Content Too Large\n")
        assert browser.send("/board", b"post=".ljust(8192, b"x")).status == 422
        assert posts_of(api) == []

    def test_longest_text_of_the_field_fits_the_form(self, api: InMemoryApi) -> None:
        browser = Browser(api)
        page = browser.page()
        (field,) = page.all("textarea")
        for char in ("€", "\n", "🚀"):
            units = len(char.encode("utf-16-le")) // 2
            text = char * (int(field["maxlength"] or "") // units)
            assert browser.submit(page, "/board", text).status == 422


class EditTests:
    @pytest.mark.parametrize("text", ODD_TEXTS)
    def test_post_may_be_replaced_by_any_text(self, api: InMemoryApi, text: str) -> None:
        api.add("hello")
        browser = Browser(api)
        answer = browser.save(1, text)
        assert answer.header("Location") == "/board?done=saved#post-1"
        assert browser.follow(answer).posts == posts_of(api) == [(1, text)]

    def test_saving_an_unchanged_text_keeps_its_line_ends_and_the_revision(self, api: InMemoryApi) -> None:
        api.add("one\r\ntwo\rthree\nfour")
        before = revision_of(api)
        assert Browser(api).save(1, "one\ntwo\nthree\nfour").status == 303
        assert (posts_of(api), revision_of(api)) == ([(1, "one\r\ntwo\rthree\nfour")], before)

    @pytest.mark.parametrize("text", ["", "x" * 141, "a\0b"])
    def test_invalid_text_is_kept_with_an_error_beside_the_field(self, api: InMemoryApi, text: str) -> None:
        api.add("hello")
        browser = Browser(api)
        answer = browser.save(1, text)
        assert answer.status == 422
        page = Page(answer)
        assert page.texts["error"].startswith("The text of a post ")
        assert page.forms["/board/1"]["post"] == text.replace("\0", "\ufffd")
        assert posts_of(api) == [(1, "hello")]
        assert browser.submit(page, "/board/1", "mended").status == 303
        assert posts_of(api) == [(1, "mended")]

    def test_concurrent_edit_is_a_conflict_until_confirmed(self, api: InMemoryApi) -> None:
        alice, bob, opened = open_in_two_browsers(api)
        bob.save(1, "<bob's>")
        answer = alice.submit(opened, "/board/1", "alice's")
        assert answer.status == 409
        check_page(answer)
        page = Page(answer)
        assert posts_of(api) == [(1, "<bob's>")]
        assert "&lt;bob&#x27;s&gt;</blockquote>" in page.html
        assert page.forms["/board/1"]["post"] == "alice's"
        assert alice.submit(page, "/board/1").status == 303
        assert posts_of(api) == [(1, "alice's")]

    def test_each_further_change_is_a_further_conflict(self, api: InMemoryApi) -> None:
        alice, bob, page = open_in_two_browsers(api)
        for n in range(3):
            bob.save(1, f"bob's {n}")
            answer = alice.submit(page, "/board/1", "alice's")
            assert answer.status == 409
            page = Page(answer)

    def test_invalid_text_does_not_hide_a_conflict(self, api: InMemoryApi) -> None:
        alice, bob, opened = open_in_two_browsers(api)
        bob.save(1, "bob's")
        page = Page(alice.submit(opened, "/board/1", ""))
        assert alice.submit(page, "/board/1", "alice's").status == 409

    @pytest.mark.parametrize(
        ("texts", "text"),
        [(["both"], "both"), (["bob's", "hello"], "alice's")],
        ids=["to the same text", "and changed back"],
    )
    def test_change_to_the_same_or_the_original_text_is_no_conflict(
        self, api: InMemoryApi, texts: list[str], text: str
    ) -> None:
        alice, bob, opened = open_in_two_browsers(api)
        for other in texts:
            bob.save(1, other)
        assert alice.submit(opened, "/board/1", text).status == 303

    def test_text_for_a_deleted_post_can_be_added_as_a_new_post(self, api: InMemoryApi) -> None:
        alice, bob, opened = open_in_two_browsers(api)
        bob.delete(1)
        answer = alice.submit(opened, "/board/1", "<mine>")
        assert answer.status == 404
        check_page(answer)
        page = Page(answer)
        assert page.forms["/board"]["post"] == "<mine>"
        assert alice.follow(alice.submit(page, "/board")).posts == posts_of(api) == [(2, "<mine>")]

    def test_missing_post_is_404_with_a_page(self, api: InMemoryApi) -> None:
        answer = Browser(api).get("/board/7")
        assert answer.status == 404
        check_page(answer)
        page = Page(answer)
        assert page.texts["h1"] == "Post 7 not found"
        assert "/board" in {link["href"] for link in page.all("a")}
        assert set(page.forms) == {"/logout"}

    @pytest.mark.parametrize("body", [b"", b"was=x", b"post=x&was=y&was=z", b"post=x&post=y&was=z"])
    def test_form_without_a_text_or_with_two_is_400(self, api: InMemoryApi, body: bytes) -> None:
        api.add("hello")
        check_text(Browser(api).send("/board/1", body), 400, "Bad Request\n")
        assert posts_of(api) == [(1, "hello")]


class DeleteTests:
    def test_form_deletes_the_post(self, api: InMemoryApi) -> None:
        api.add("hello")
        browser = Browser(api)
        answer = browser.delete(1)
        assert answer.header("Location") == "/board?done=deleted#done"
        assert browser.follow(answer).posts == posts_of(api) == []

    def test_deleting_a_changed_post_is_a_conflict_until_confirmed(self, api: InMemoryApi) -> None:
        alice, bob, _ = open_in_two_browsers(api)
        opened = alice.ask_to_delete(1)
        bob.save(1, "<bob's>")
        answer = alice.submit(opened, "/board/1/delete")
        assert answer.status == 409
        page = Page(answer)
        assert "&lt;bob&#x27;s&gt;</blockquote>" in page.html
        assert posts_of(api) == [(1, "<bob's>")]
        assert alice.submit(page, "/board/1/delete").status == 303
        assert posts_of(api) == []

    def test_deleting_a_deleted_post_shows_a_message(self, api: InMemoryApi) -> None:
        alice, bob, _ = open_in_two_browsers(api)
        opened = alice.ask_to_delete(1)
        bob.delete(1)
        page = alice.follow(alice.submit(opened, "/board/1/delete"))
        assert page.texts["done"] == "The post was already deleted."

    def test_question_deletes_nothing_and_shows_the_post(self, api: InMemoryApi) -> None:
        api.add("<hello>")
        page = Browser(api).ask_to_delete(1)
        assert "&lt;hello&gt;</blockquote>" in page.html
        assert page.forms["/board/1/delete"] == {"was": "<hello>"}
        assert posts_of(api) == [(1, "<hello>")]
        assert Browser(api).get("/board/2/delete").status == 404

    @pytest.mark.parametrize("text", ODD_TEXTS)
    def test_post_of_any_text_can_be_deleted(self, api: InMemoryApi, text: str) -> None:
        api.add(text)
        assert Browser(api).delete(1).header("Location") == "/board?done=deleted#done"
        assert posts_of(api) == []


class ProgramTests:
    """Forms that a program fills in, without the hidden fields of the pages."""

    def test_form_without_the_old_text_replaces_any_text(self, make_api: MakeApi) -> None:
        api = make_api("")
        api.add("hello")
        answer = ask(api, "POST", "/board/1", b"post=bye", {"Content-Type": FORM})
        assert (answer.status, posts_of(api)) == (303, [(1, "bye")])
        answer = ask(api, "POST", "/board/1", b"post=", {"Content-Type": FORM})
        assert (answer.status, posts_of(api)) == (422, [(1, "bye")])
        assert Page(answer).forms["/board/1"]["was"] == "bye"

    @pytest.mark.parametrize("headers", [{"Content-Type": FORM}, {}])
    def test_empty_form_deletes_the_post(self, make_api: MakeApi, headers: dict[str, str]) -> None:
        api = make_api("")
        api.add("hello")
        answer = ask(api, "POST", "/board/1/delete", b"", headers)
        assert (answer.status, answer.header("Location")) == (303, "/board?done=deleted#done")
        assert posts_of(api) == []


class RaceTests:
    """Changes between the comparison of a post and its write."""

    def test_change_just_before_the_replacement_is_a_conflict(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api.add("hello")
        browser = Browser(api)
        opened = browser.page("/board/1")
        replace = api.store.replace_post

        async def replace_late(post_id: int, text: str, **conditions: Any) -> None:
            await replace(post_id, "another text")
            await replace(post_id, text, **conditions)

        monkeypatch.setattr(api.store, "replace_post", replace_late)
        answer = browser.submit(opened, "/board/1", "mine")
        assert answer.status == 409
        assert posts_of(api) == [(1, "another text")]

    def test_change_just_before_the_deletion_is_a_conflict(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api.add("hello")
        browser = Browser(api)
        opened = browser.ask_to_delete(1)
        delete = api.store.delete_post

        async def delete_late(post_id: int, **conditions: Any) -> None:
            await api.store.replace_post(post_id, "another text")
            await delete(post_id, **conditions)

        monkeypatch.setattr(api.store, "delete_post", delete_late)
        assert browser.submit(opened, "/board/1/delete").status == 409
        assert posts_of(api) == [(1, "another text")]

    def test_deletion_just_before_the_replacement_is_404_with_the_text(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api.add("hello")
        browser = Browser(api)
        opened = browser.page("/board/1")

        async def replace_late(post_id: int, _text: str, **_: Any) -> None:
            await api.store.delete_post(post_id)
            raise NoSuchPostError(post_id)

        monkeypatch.setattr(api.store, "replace_post", replace_late)
        answer = browser.submit(opened, "/board/1", "mine")
        assert answer.status == 404
        assert Page(answer).forms["/board"]["post"] == "mine"


def test_unavailable_store_is_503_in_plain_text(api: InMemoryApi) -> None:
    browser = Browser(api)
    page = browser.page()
    result_of(api.store.stop())
    for answer in (browser.get(), browser.submit(page, "/board", "x")):
        check_text(answer, 503, "Service Unavailable\n")
        assert answer.header("Retry-After")
