"""`GET /feed.atom` (reference: Feed)."""

import gzip
import json
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.model import PostCollection, PostDetails
from postd.protocol.timestamp import format_timestamp
from postd.web.feed import ENTRIES_MAX, KEPT_MAX, TITLE_MAX_CHARS, make_feed
from tests.atom import NAMESPACE, check_feed, entries_of, links_of, text_of
from tests.cases import each
from tests.helpers import InMemoryApi, Response, forget_own, result_of
from tests.store.contract import texts
from tests.web.clients import basic
from tests.web.test_details import START, add
from tests.web.test_posts import JSON, check_problem, post_body
from tests.web.wire import ask

Make = Callable[..., InMemoryApi]
URL = "http://localhost/feed.atom"
OPEN = '[api]\nread = ["open"]\nwrite = ["basic"]\n'
COLLECTION = PostCollection("0123456789abcdef" * 2, 1_700_000_000_000)


def get(api: InMemoryApi, **headers: Any) -> Response:
    answer = ask(api, "GET", "/feed.atom", None, headers)
    assert answer.status == 200, answer
    return answer


def read(api: InMemoryApi, **headers: Any) -> ET.Element:
    answer = get(api, **headers)
    assert answer.header("Content-Type") == "application/atom+xml; charset=utf-8"
    return check_feed(answer.body, url=URL)


def ids_of(root: ET.Element) -> list[str]:
    return [text_of(element, "id") for element in (root, *root.findall(f"{NAMESPACE}entry"))]


def in_xml(text: str) -> str:
    """Return a text as it comes back from XML 1.0."""
    return re.sub("[^\t\n\r\x20-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


class ContentTests:
    def test_feed_without_posts_is_valid(self, make: Make) -> None:
        root = read(make('realm = "News & <views>"\n'))
        assert text_of(root, "title") == "News & <views>"
        assert links_of(root, "alternate") == ["http://localhost/board"]

    def test_newest_post_is_first_with_its_times_and_author(self, make: Make) -> None:
        api = make(OPEN)
        add(api, "one")
        api.add("two")
        api.clock.advance(1.5)
        ask(api, "PUT", "/post/1", post_body("uno"), JSON | basic("bob"))
        began = format_timestamp(result_of(api.store.collection()).began)
        root = read(api)
        assert entries_of(root) == [
            {"content": "two", "published": began, "updated": began, "author": None},
            {
                "content": "uno",
                "published": START,
                "updated": START.replace("00.000", "01.500"),
                "author": "alice",
            },
        ]
        pages = [links_of(entry, "alternate") for entry in root.findall(f"{NAMESPACE}entry")]
        assert pages == [["http://localhost/board/2"], ["http://localhost/board/1"]]

    def test_old_post_that_was_changed_since_has_the_time_of_the_change(self, make: Make) -> None:
        api = make("")
        api.add("one")
        ask(api, "PUT", "/post/1", post_body("uno"), JSON)
        (entry,) = entries_of(read(api))
        assert entry["updated"] == START

    def test_feed_has_the_newest_posts_as_they_stand(self, make: Make) -> None:
        api = make("")
        for n in range(1, ENTRIES_MAX + 6):
            api.add(f"post {n}")
        ask(api, "DELETE", f"/post/{ENTRIES_MAX + 3}")
        root = read(api)
        wanted = [f"post {n}" for n in range(ENTRIES_MAX + 5, 4, -1) if n != ENTRIES_MAX + 3]
        assert [entry["content"] for entry in entries_of(root)] == wanted
        assert len(wanted) == ENTRIES_MAX

    def test_ids_depend_on_neither_host_nor_settings_nor_changes(self, make: Make) -> None:
        api = make('[api]\nread = ["open"]\n')
        for text in ("one", "two"):
            api.add(text)
        before = ids_of(read(api))
        ask(api, "PUT", "/post/2", post_body("due"), JSON)
        ask(api, "DELETE", "/post/1")
        api.add("three")
        other = check_feed(get(api, Host="127.0.0.1:8080").body, url="http://127.0.0.1:8080/feed.atom")
        assert ids_of(other)[0] == before[0]
        assert ids_of(other)[2] == before[1]
        assert ids_of(other)[1] not in before

    def test_links_have_the_public_url(self, make: Make) -> None:
        api = make('public_url = "https://posts.example"\n')
        api.add("one")
        root = check_feed(get(api).body, url="https://posts.example/feed.atom")
        (entry,) = root.findall(f"{NAMESPACE}entry")
        assert links_of(entry, "alternate") == ["https://posts.example/board/1"]

    def test_without_the_board_posts_have_no_pages(self, make: Make) -> None:
        api = make("[board]\nenabled = false\n")
        api.add("one")
        answer = get(api)
        root = check_feed(answer.body, url=URL)
        assert [links_of(element, "alternate") for element in (root, root[-1])] == [[], []]
        assert answer.header("Link") is None
        assert get(make("")).header("Link") == '</board>; rel="alternate"; type="text/html"'

    @given(st.lists(texts, max_size=3), st.none() | texts)
    def test_any_text_gives_a_valid_feed(self, contents: list[str], author: str | None) -> None:
        posts = [PostDetails(n, text, n, n, author) for n, text in enumerate(contents, 1)]
        title = "<&>"
        made = make_feed(posts, COLLECTION, title=title, url_of=str, has_board=True, shows_authors=True)
        root = check_feed(made.encode())
        for post, entry in zip(posts, entries_of(root), strict=True):
            assert entry["content"] == in_xml(post.post)
            assert entry["author"] == (author and in_xml(author))

    @each(
        "text, title",
        [
            ("one", "one"),
            ("  one\t two \nthree", "one two"),
            ("\n \r\n\ttwo", "two"),
            ("\n \u2003", "Post 7"),
            ("x" * TITLE_MAX_CHARS, "x" * TITLE_MAX_CHARS),
            ("x" * (TITLE_MAX_CHARS - 2) + " yz", "x" * (TITLE_MAX_CHARS - 2) + "…"),
            ("a\x00\x1b[31mb".replace("\x00", ""), "a\ufffd[31mb"),
        ],
    )
    def test_title_is_the_beginning_of_the_text(self, text: str, title: str) -> None:
        made = make_feed([PostDetails(7, text)], COLLECTION, title="x", url_of=str, has_board=True, shows_authors=True)
        (entry,) = check_feed(made.encode()).findall(f"{NAMESPACE}entry")
        assert text_of(entry, "title") == title

    def test_post_that_was_changed_before_times_were_kept_has_consistent_times(self) -> None:
        post = PostDetails(1, "x", None, COLLECTION.began - 5000)
        made = make_feed([post], COLLECTION, title="x", url_of=str, has_board=True, shows_authors=True)
        (entry,) = entries_of(check_feed(made.encode()))
        assert entry["published"] == entry["updated"] == format_timestamp(COLLECTION.began - 5000)


class CachingTests:
    def test_unchanged_feed_is_304(self, make: Make) -> None:
        api = make("")
        api.add("one")
        answer = get(api)
        etag = answer.header("ETag")
        assert answer.header("Cache-Control") == "no-cache"
        unchanged = ask(api, "GET", "/feed.atom", None, {"If-None-Match": etag})
        assert (unchanged.status, unchanged.body, unchanged.header("ETag")) == (304, b"", etag)
        api.add("two")
        assert get(api, If_None_Match=etag or "").header("ETag") != etag
        assert ask(api, "GET", "/feed.atom", None, {"If-Match": etag}).status == 412

    def test_head_has_the_headers_of_get(self, make: Make) -> None:
        api = make("")
        got, head = get(api), ask(api, "HEAD", "/feed.atom")
        forget_own(got, head)
        assert (head.status, head.headers, head.body) == (200, got.headers, b"")

    def test_long_feed_is_compressed(self, make: Make) -> None:
        api = make("")
        for n in range(9):
            api.add(f"post {n}")
        gzipped = ask(api, "GET", "/feed.atom", None, {"Accept-Encoding": "gzip"})
        assert gzip.decompress(gzipped.body) == get(api).body
        assert gzipped.header("Vary") == "Accept-Encoding"

    def test_feeds_for_many_hosts_are_not_all_kept(self, make: Make) -> None:
        api = make('hosts = ["*"]\n')
        api.add("one")
        for n in range(2 * KEPT_MAX):
            check_feed(get(api, Host=f"h{n}.example").body, url=f"http://h{n}.example/feed.atom")

    def test_other_methods_are_405(self, make: Make) -> None:
        answer = ask(make(""), "POST", "/feed.atom", b"", JSON)
        check_problem(answer, 405)
        assert answer.header("Allow") == "GET, HEAD, OPTIONS"


class AccessTests:
    @pytest.mark.parametrize("scheme", ["basic", "digest"])
    def test_read_rule_applies(self, make: Make, scheme: str) -> None:
        api = make(f'[api]\nread = ["{scheme}"]\n')
        answer = ask(api, "GET", "/feed.atom")
        check_problem(answer, 401)
        assert (answer.header("WWW-Authenticate") or "").startswith(scheme.title())

    def test_credentials_are_accepted_and_the_feed_is_not_stored(self, make: Make) -> None:
        answer = get(make('[api]\nread = ["basic"]\n'), **basic())
        assert answer.header("Cache-Control") == "private, no-store"

    def test_session_as_the_only_scheme_is_401_for_browsers_too(self, make: Make) -> None:
        api = make('[api]\nread = ["session"]\n')
        browser = {"Accept": "text/html,application/xhtml+xml", "Sec-Fetch-Mode": "navigate"}
        for headers in ({}, browser):
            check_problem(ask(api, "GET", "/feed.atom", None, headers), 401)

    def test_names_are_hidden_from_clients_without_credentials(self, make: Make) -> None:
        api = make(f'{OPEN}show_authors = "signed-in"\n')
        add(api, "one")
        hidden, shown = get(api), get(api, **basic("bob"))
        assert [entry["author"] for entry in entries_of(check_feed(hidden.body))] == [None]
        assert b"alice" not in hidden.body
        assert hidden.header("Vary") == "Accept-Encoding, Authorization, Cookie"
        assert [entry["author"] for entry in entries_of(check_feed(shown.body))] == ["alice"]
        assert shown.header("Cache-Control") == "private, no-store"
        assert json.loads(ask(api, "GET", "/post").body)
