"""Lists with gzip: the two representations of a text, and their ETags."""

import gzip
import random
import zlib
from collections.abc import Callable
from typing import Any, cast

import pytest
from twisted.internet.task import Clock

from postd.fair_queue import FairTurns
from postd.http.responses import TEXT
from postd.http.views import ViewResource
from postd.reactor import IReactor
from postd.web.events import Events
from postd.web.lists import compression as compress
from postd.web.lists.compression import COMPRESSED_MIN_BYTES, VARY, NegotiatedText
from postd.web.posts import PostApi
from postd.web.routing import Router
from tests.cases import each
from tests.helpers import InMemoryApi, Response, forget_own, make_site
from tests.web.wire import Worker, ask

GZIP = {"Accept-Encoding": "gzip, deflate, br"}
STEP_S = 0.01


def unzip(answer: Response) -> bytes:
    """Check that the body is exactly one gzip stream; return its text."""
    assert answer.header("Content-Encoding") == "gzip"
    inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
    text = inflating.decompress(answer.body)
    assert (inflating.eof, inflating.unused_data) == (True, b"")
    assert gzip.decompress(answer.body) == text
    return text


def fill(api: InMemoryApi, count: int = 40) -> None:
    for n in range(count):
        api.add(f"post number {n}, with some words to it")


@pytest.fixture
def compressed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The texts that are compressed, in order."""
    compressed: list[bytes] = []

    def note(text: bytes) -> bytes:
        compressed.append(text)
        return gzip.compress(text)

    monkeypatch.setattr(compress, "compress", note)
    return compressed


@pytest.fixture
def full(api: InMemoryApi) -> InMemoryApi:
    """A server with a list that is long enough to be compressed."""
    fill(api)
    return api


class ListTests:
    @pytest.mark.parametrize("path", ["/post", "/post?limit=30", "/post?after=3", "/post?limit=30&after=3"])
    def test_list_has_a_plain_and_a_gzip_representation(self, full: InMemoryApi, path: str) -> None:
        plain, zipped = ask(full, "GET", path), ask(full, "GET", path, None, GZIP)
        assert unzip(zipped) == plain.body
        assert len(zipped.body) < len(plain.body)
        assert plain.header("Content-Encoding") is None
        etag = plain.header("ETag") or ""
        assert zipped.header("ETag") == etag[:-1] + '-gzip"'
        for name in ("Content-Type", "Cache-Control", "Link", "X-Content-Type-Options"):
            assert zipped.header(name) == plain.header(name)
        assert plain.header("Vary") == zipped.header("Vary") == "Accept-Encoding"

    @pytest.mark.parametrize("value", ["", "identity", "gzip;q=0", "br", ["gzip", "gzip;q=0"], "gzip;q=x"])
    def test_client_without_gzip_gets_plain_text(self, full: InMemoryApi, value: Any) -> None:
        answer, plain = ask(full, "GET", "/post", None, {"Accept-Encoding": value}), ask(full, "GET", "/post")
        forget_own(answer, plain)
        assert answer == plain

    @pytest.mark.parametrize("value", ["x-gzip", "*", ["br", "gzip"], "identity;q=0, gzip;q=0.1"])
    def test_client_with_gzip_gets_gzip(self, full: InMemoryApi, value: Any) -> None:
        assert unzip(ask(full, "GET", "/post", None, {"Accept-Encoding": value})) == ask(full, "GET", "/post").body

    @pytest.mark.parametrize("path", ["/post", "/post?limit=30"])
    def test_head_has_the_headers_of_get(self, full: InMemoryApi, path: str) -> None:
        got, head = ask(full, "GET", path, None, GZIP), ask(full, "HEAD", path, None, GZIP)
        forget_own(got, head)
        assert (head.status, head.headers, head.body) == (200, got.headers, b"")

    @pytest.mark.parametrize("path", ["/post", "/post?limit=1", "/post?after=38"])
    def test_short_list_is_not_compressed(self, api: InMemoryApi, path: str) -> None:
        fill(api, 3)
        plain, asked = ask(api, "GET", path), ask(api, "GET", path, None, GZIP)
        forget_own(plain, asked)
        assert asked == plain
        assert (plain.header("Content-Encoding"), plain.header("Vary")) == (None, "Accept-Encoding")

    def test_single_post_is_not_compressed_and_has_no_vary(self, api: InMemoryApi) -> None:
        api.add("x" * 140)
        answer = ask(api, "GET", "/post/1", None, GZIP)
        assert (answer.header("Content-Encoding"), answer.header("Vary")) == (None, None)

    def test_change_shows_in_both_representations(self, full: InMemoryApi) -> None:
        tags = set()
        for n in range(3):
            full.add(f"another {n}")
            plain, zipped = ask(full, "GET", "/post"), ask(full, "GET", "/post", None, GZIP)
            assert unzip(zipped) == plain.body
            assert b"another %d" % n in plain.body
            tags |= {plain.header("ETag"), zipped.header("ETag")}
        assert len(tags) == 6

    def test_private_list_is_compressed(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["basic"]')
        fill(api)
        refused = ask(api, "GET", "/post", None, GZIP)
        assert (refused.status, refused.header("Content-Encoding")) == (401, None)
        zipped = ask(api, "GET", "/post", None, GZIP | {"Authorization": "Basic YWxpY2U6czNjcjN0LXDDpHNzd29yZA=="})
        assert zipped.header("Cache-Control") == "private, no-store"
        assert unzip(zipped).startswith(b"[\n")

    def test_list_is_compressed_once_per_version(self, full: InMemoryApi, compressed: list[bytes]) -> None:
        for _ in range(3):
            ask(full, "GET", "/post")
        assert compressed == []
        bodies = {ask(full, "GET", "/post", None, GZIP).body for _ in range(3)}
        assert (len(bodies), len(compressed)) == (1, 1)


class NotModifiedTests:
    @pytest.mark.parametrize("path", ["/post", "/post?limit=30"])
    def test_acceptable_etag_is_304(self, full: InMemoryApi, path: str) -> None:
        plain = ask(full, "GET", path).header("ETag") or ""
        zipped = ask(full, "GET", path, None, GZIP).header("ETag") or ""
        for named, headers, etag in (
            (plain, {}, plain),
            (zipped, GZIP, zipped),
            (plain, GZIP, plain),
            (f"W/{zipped}", GZIP, zipped),
            (f"{plain}, {zipped}", GZIP, zipped),
            (f"{plain}, {zipped}", {}, plain),
            ("*", {}, plain),
            ("*", GZIP, plain),
        ):
            answer = ask(full, "GET", path, None, {**headers, "If-None-Match": named})
            assert (answer.status, answer.header("ETag"), answer.body) == (304, etag, b"")
            assert answer.header("Vary") == "Accept-Encoding"
            assert answer.header("Cache-Control") == "no-cache"
            assert answer.header("Content-Encoding") is None

    @pytest.mark.parametrize(("headers", "form"), [({}, ""), (GZIP, ""), (GZIP, "-gzip")])
    def test_other_worker_answers_304_without_reading_posts(
        self, full: InMemoryApi, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], form: str
    ) -> None:
        etag = ask(full, "GET", "/post").header("ETag") or ""
        events = Events(full.store, reactor=cast(IReactor, full.clock))
        api = PostApi(full.store, events, FairTurns(full.clock), now=full.clock.seconds)
        monkeypatch.setattr(full.store, "list_posts", None)
        worker = Worker(make_site(Router(api), clock=full.clock), full.clock)
        tag = f'{etag[:-1]}{form}"'
        answer = ask(worker, "GET", "/post", None, {**headers, "If-None-Match": tag})
        assert (answer.status, answer.header("ETag")) == (304, tag)

    @pytest.mark.parametrize("path", ["/post", "/post?limit=30"])
    def test_gzip_etag_without_gzip_is_200(self, full: InMemoryApi, path: str) -> None:
        """A cache would answer this 304 with its gzip representation."""
        zipped = ask(full, "GET", path, None, GZIP).header("ETag")
        answer = ask(full, "GET", path, None, {"If-None-Match": zipped})
        assert (answer.status, answer.header("Content-Encoding")) == (200, None)

    @pytest.mark.parametrize("path", ["/post", "/post?limit=30"])
    def test_outdated_etag_is_200(self, full: InMemoryApi, path: str) -> None:
        tags = [ask(full, "GET", path, None, headers).header("ETag") for headers in ({}, GZIP)]
        full.add("another")
        for tag in tags:
            for headers in ({}, GZIP):
                assert ask(full, "GET", path, None, {**headers, "If-None-Match": tag}).status == 200

    @pytest.mark.parametrize("path", ["/post", "/post?limit=30"])
    def test_if_match_accepts_either_etag(self, full: InMemoryApi, path: str) -> None:
        plain = ask(full, "GET", path).header("ETag") or ""
        zipped = ask(full, "GET", path, None, GZIP).header("ETag") or ""
        for named, headers, status in (
            (plain, {}, 200),
            (plain, GZIP, 200),
            (zipped, GZIP, 200),
            (f"W/{zipped}", GZIP, 412),
            ('"other"', GZIP, 412),
            ('"other"', {}, 412),
        ):
            assert ask(full, "GET", path, None, {**headers, "If-Match": named}).status == status


def serve(text: NegotiatedText) -> Worker:
    clock = Clock()
    return Worker(make_site(ViewResource(text.respond), clock=clock), clock)


class NegotiatedTextTests:
    def text(self, body: bytes) -> NegotiatedText:
        return NegotiatedText(
            TEXT, body, {b"ETag": b'"tag"', b"Cache-Control": b"no-cache", **VARY}, work=FairTurns(Clock())
        )

    def test_incompressible_text_is_sent_plain(self) -> None:
        noise = random.Random(1).randbytes(2 * COMPRESSED_MIN_BYTES)
        worker = serve(self.text(noise))
        plain, asked = ask(worker, "GET", "/"), ask(worker, "GET", "/", None, GZIP)
        forget_own(plain, asked)
        assert asked == plain
        assert (plain.body, plain.header("ETag"), plain.header("Vary")) == (noise, '"tag"', "Accept-Encoding")

    @each("length, coding", [(COMPRESSED_MIN_BYTES - 1, None), (COMPRESSED_MIN_BYTES, "gzip")])
    def test_compression_begins_at_one_kibibyte(self, length: int, coding: str | None) -> None:
        answer = ask(serve(self.text(b"x" * length)), "GET", "/", None, GZIP)
        assert answer.header("Content-Encoding") == coding
