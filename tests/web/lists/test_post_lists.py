"""How often lists read the store; test_posts.py has their content."""

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from postd.model import Version
from postd.store.interface import Page
from postd.web.lists.compression import NegotiatedText
from postd.web.lists.encoded_posts import PIECE_POSTS
from postd.web.lists.post_lists import KEPT_OVERHEAD_BYTES
from tests.helpers import InMemoryApi, result_of
from tests.web.wire import ask, begin

Spans = list[tuple[int, int]]


@pytest.fixture
def spans_read(api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> Spans:
    """The arguments `after` and `limit` of each read of the store."""
    spans: Spans = []
    list_posts = api.store.list_posts

    async def reading(*, after: int = 0, limit: int, since: Version | None = None) -> Page[tuple[int, str]]:
        spans.append((after, limit))
        return await list_posts(after=after, limit=limit, since=since)

    monkeypatch.setattr(api.store, "list_posts", reading)
    for number in range(9):
        api.add(f"post {number}")
    return spans


def bodies(api: InMemoryApi, paths: Sequence[str]) -> list[bytes]:
    return [ask(api, "GET", path).body for path in paths]


@pytest.mark.parametrize(
    ("path", "limits"),
    [
        *(
            (path, [PIECE_POSTS, 0])
            for path in ("/post", "/post?after=4", "/post?limit=200", "/post?after=4&limit=200")
        ),
        *((path, [3, 3]) for path in ("/post?limit=3", "/post?after=4&limit=3")),
    ],
)
def test_list_is_read_once_for_each_version(api: InMemoryApi, spans_read: Spans, path: str, limits: list[int]) -> None:
    """And from the second version on, the changes alone; a short page costs less."""
    assert len(set(bodies(api, [path] * 3))) == 1
    assert len(spans_read) == 1
    api.add("a newer post")
    bodies(api, [path] * 3)
    assert [limit for _, limit in spans_read] == limits


def test_short_page_is_made_of_the_pieces_of_its_version(api: InMemoryApi, spans_read: Spans) -> None:
    bodies(api, ["/post", "/post?limit=3", "/post?after=4&limit=3"])
    assert len(spans_read) == 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[NegotiatedText]:
    """The responses that were made."""
    made: list[NegotiatedText] = []
    make = NegotiatedText.__init__

    def note(text: NegotiatedText, *arguments: Any, **options: Any) -> None:
        made.append(text)
        make(text, *arguments, **options)

    monkeypatch.setattr(NegotiatedText, "__init__", note)
    return made


@pytest.mark.parametrize("path", ["/post", "/post?after=3", "/post?limit=3", "/post?limit=200"])
def test_concurrent_requests_share_one_query_and_response(
    api: InMemoryApi, monkeypatch: pytest.MonkeyPatch, made: list[NegotiatedText], path: str
) -> None:
    reading: list[Deferred[Page[tuple[int, str]]]] = []

    async def list_posts(**_: int) -> Page[tuple[int, str]]:
        reading.append(Deferred())
        return await reading[-1]

    monkeypatch.setattr(api.store, "list_posts", list_posts)
    monkeypatch.setattr("postd.web.lists.encoded_posts.TURN_MAX_S", float("inf"))  # no waiting for the clock
    exchanges = [begin(api, "GET", path) for _ in range(3)]
    version = result_of(Deferred.fromCoroutine(api.store.version()))
    reading.pop().callback(Page(version, [(1, "shared")], more=False))
    assert not reading
    assert len(made) == 1
    assert all(b"shared" in exchange.response().body for exchange in exchanges)


def test_kept_responses_are_limited(
    api: InMemoryApi, spans_read: Spans, made: list[NegotiatedText], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postd.web.lists.post_lists.KEPT_MAX_BYTES", 4 * (KEPT_OVERHEAD_BYTES + 60))
    paths = [f"/post?limit=1&after={after}" for after in range(5)]
    bodies(api, paths[:4] * 3)
    assert len(made) == 4
    bodies(api, paths)
    assert len(made) == 5
    bodies(api, paths[:1])
    assert len(made) == 6
    assert len(spans_read) == 6


@pytest.mark.usefixtures("spans_read")
def test_link_is_in_200_alone_whether_the_page_is_kept_or_not(api: InMemoryApi) -> None:
    first, kept = (ask(api, "GET", "/post?limit=3") for _ in range(2))
    assert first.header("Link") == kept.header("Link") == '</post?limit=3&after=3>; rel="next"'
    not_modified = ask(api, "GET", "/post?limit=3", headers={"If-None-Match": first.header("ETag") or ""})
    assert (not_modified.status, not_modified.header("Link")) == (304, None)
