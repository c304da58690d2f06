"""`PostClient`: paging, errors, broken connections and timeouts."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import CancelledError, gatherResults

from postd.client import (
    Basic,
    BearerFile,
    Digest,
    NoAnswerError,
    Post,
    PostClient,
    ProblemError,
    SeenPost,
    UnusableAnswerError,
)
from postd.client import posts as module
from postd.client.posts import ATTEMPTS_MAX
from postd.errors import ConfigError, InvalidTextError
from tests.cases import each
from tests.client.server import (
    REACTOR,
    Disconnect,
    Request,
    error_of,
    in_background,
    make_response,
    problem,
    serving,
    wait_until,
)
from tests.held_reactor import HeldReactor
from tests.redis_server import free_port

ADDED = make_response(201, "Success a Post!\n", Location="/post/7")


def listed(*ids: int, more: str = "") -> bytes:
    fields = {"Link": f'<{more}>; rel="next"'} if more else {}
    return make_response(200, json.dumps([{"id": post_id, "post": f"text {post_id}"} for post_id in ids]), **fields)


class FakePostServer:
    """Stores a post for each idempotency key; `bad` are the first responses, sent after storing."""

    def __init__(self, *bad: bytes | Disconnect) -> None:
        self.stored: list[bytes] = []
        self.keys: set[str] = set()
        self._bad = list(bad)

    def __call__(self, request: Request) -> bytes | Disconnect:
        key = request.fields["idempotency-key"]
        if key not in self.keys:
            self.keys.add(key)
            self.stored.append(request.body)
        return self._bad.pop(0) if self._bad else ADDED


def respond_in_turn(*responses: bytes | Disconnect) -> Callable[[Request], bytes | Disconnect]:
    """Return a handler with these responses in turn, then with the last one."""
    left = list(responses)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


@ensureDeferred
async def test_list_is_read_page_by_page() -> None:
    def handler(request: Request) -> bytes:
        if request.target == "/post?limit=2":
            return listed(1, 2, more="/post?limit=2&after=2")
        assert request.target == "/post?limit=2&after=2"
        return listed(5)

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        found = [post async for post in posts.list(page=2)]
        assert found == [Post(1, "text 1"), Post(2, "text 2"), Post(5, "text 5")]
        assert server.connections == 1


DETAILS = {"created": "2026-11-28T09:30:00.250Z", "updated": "2026-11-28T09:31:00.000Z", "author": "alice"}
MOMENTS = datetime(2026, 11, 28, 9, 30, 0, 250_000, UTC), datetime(2026, 11, 28, 9, 31, tzinfo=UTC)


@ensureDeferred
async def test_posts_have_times_and_authors_if_they_are_asked_for() -> None:
    first = {"id": 1, "post": "x", **DETAILS}
    unknown = {"id": 2, "post": "y", "created": None, "updated": None, "author": None}

    def handler(request: Request) -> bytes:
        if request.target == "/post/1?include=meta":
            return make_response(200, json.dumps(first), ETag='"a"')
        if request.target == "/post?limit=1&after=0&include=meta":
            return make_response(200, json.dumps([unknown]))
        assert request.target == "/post?limit=1&include=meta"
        more = "/post?limit=1&after=0&include=meta"
        return make_response(200, json.dumps([first]), Link=f'<{more}>; rel="next"')

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        assert [post async for post in posts.list(page=1, meta=True)] == [Post(1, "x", *MOMENTS, "alice"), Post(2, "y")]
        assert await posts.get(1, meta=True) == SeenPost(1, "x", '"a"', *MOMENTS, "alice")


@ensureDeferred
@pytest.mark.parametrize("moment", ["yesterday", "2026-11-28T09:30:00", 7])
async def test_malformed_time_is_unusable(moment: object) -> None:
    body = json.dumps({"id": 1, "post": "x", **DETAILS, "created": moment})
    async with serving(lambda _: make_response(200, body)) as server, PostClient(REACTOR, server.url) as posts:
        assert isinstance(await error_of(posts.get(1, meta=True)), UnusableAnswerError)


@ensureDeferred
@pytest.mark.parametrize(
    "page",
    [
        listed(2, 1),
        listed(1, more="/post?limit=500"),
        listed(1, more="http://elsewhere.example/post"),
        make_response(200, '[{"id": "1", "post": "x"}]'),
        make_response(200, "<html>"),
        make_response(200, b"\xff"),
    ],
    ids=["out of order", "the same again", "elsewhere", "no posts", "no JSON", "no UTF-8"],
)
async def test_malformed_list_is_refused(page: bytes) -> None:
    async def read_all() -> list[Post]:
        return [post async for post in posts.list()]

    async with serving(lambda _: page) as server, PostClient(REACTOR, server.url) as posts:
        assert await error_of(read_all(), UnusableAnswerError)


@ensureDeferred
async def test_gzip_list_is_decoded() -> None:
    def handler(request: Request) -> bytes:
        assert request.fields["accept-encoding"] == "gzip"
        return make_response(200, gzip.compress(b'[{"id": 1, "post": "x"}]'), Content_Encoding="gzip")

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        assert [post async for post in posts.list()] == [Post(1, "x")]


@ensureDeferred
async def test_etag_of_a_post_is_a_precondition() -> None:
    reply = make_response(200, '{"id": 3, "post": "ä\\n"}', ETag='"abc"')
    async with serving(lambda _: reply) as server, PostClient(REACTOR, server.url + "/") as posts:
        seen = await posts.get(3)
        assert (seen.id, seen.post, seen.etag) == (3, "ä\n", '"abc"')
        await posts.update(3, "b", if_match=seen.etag)
        assert (server.last.method, server.last.target) == ("PUT", "/post/3")
        assert server.last.fields["if-match"] == '"abc"'
        assert server.last.fields["content-type"] == "application/json"
        assert json.loads(server.last.body) == {"post": "b"}
        await posts.delete(3, if_match=seen.etag)
        assert (server.last.method, server.last.fields["if-match"]) == ("DELETE", '"abc"')


@ensureDeferred
async def test_problem_details_are_raised() -> None:
    async with serving(lambda _: problem(422, "Too long.")) as server, PostClient(REACTOR, server.url) as posts:
        error: ProblemError = await error_of(posts.add("x"), ProblemError)
        assert (error.status, error.title, error.detail) == (422, "Some Title", "Too long.")
        assert str(error) == "422 Some Title: Too long."
        assert len(server.requests) == 1


@ensureDeferred
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (make_response(404, "gone"), "404 Not Found"),
        (make_response(404, "[]", Content_Type="application/problem+json"), "404 Not Found"),
        (make_response(404, "{", Content_Type="application/problem+json"), "404 Not Found"),
        (
            make_response(308, "", Location="https://elsewhere.example/"),
            "308 Permanent Redirect: it leads to https://elsewhere",
        ),
        (make_response(599), "599 Unknown Status"),
    ],
    ids=["text", "a list", "no JSON", "a redirect", "an unknown status"],
)
async def test_error_without_problem_details_is_raised(sent: bytes, expected: str) -> None:
    async with serving(lambda _: sent) as server, PostClient(REACTOR, server.url) as posts:
        assert str(await error_of(posts.get(1), ProblemError)).startswith(expected)


@ensureDeferred
@pytest.mark.parametrize(
    "bad",
    [
        Disconnect(),
        Disconnect(in_order=True),
        Disconnect(ADDED[:20]),
        Disconnect(ADDED[:-3], in_order=True),
        problem(503),
        make_response(502),
        problem(409),
    ],
    ids=["reset", "closed", "half a head", "half a body", "503", "502", "409"],
)
async def test_post_is_added_once_despite_lost_responses(bad: bytes | Disconnect) -> None:
    post_server = FakePostServer(bad, bad, bad)
    async with serving(post_server) as server, PostClient(REACTOR, server.url) as posts:
        assert await posts.add("once") == 7
        assert post_server.stored == [b'{"post":"once"}']
        assert len(server.requests) == 4
        assert await posts.add("once") == 7
        assert len(post_server.stored) == 2


@ensureDeferred
async def test_given_idempotency_key_is_sent() -> None:
    post_server = FakePostServer()
    async with serving(post_server) as server, PostClient(REACTOR, server.url) as posts:
        await posts.add("x", key="order-17")
        await posts.add("x", key="order-17")
        assert post_server.keys == {"order-17"}


@ensureDeferred
async def test_closed_keep_alive_connection_is_replaced() -> None:
    async with (
        serving(respond_in_turn(listed(1), Disconnect(), ADDED)) as server,
        PostClient(REACTOR, server.url) as posts,
    ):
        assert [post.id async for post in posts.list()] == [1]
        assert await posts.add("x") == 7


@ensureDeferred
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_obeyed(status: int) -> None:
    async with (
        serving(respond_in_turn(problem(status, Retry_After="1"), ADDED)) as server,
        PostClient(REACTOR, server.url) as posts,
    ):
        began = REACTOR.seconds()
        assert await posts.add("x") == 7
        assert REACTOR.seconds() - began >= 1


@ensureDeferred
async def test_retry_after_beyond_the_window_is_an_error() -> None:
    async with serving(lambda _: problem(503, Retry_After="3600")) as server, PostClient(REACTOR, server.url) as posts:
        error: ProblemError = await error_of(posts.add("x"), ProblemError)
        assert error.retry_after_s == 3600
        assert len(server.requests) == 1


@ensureDeferred
@pytest.mark.parametrize("bad", [problem(503), Disconnect()], ids=["503", "reset"])
async def test_attempts_are_bounded(bad: bytes | Disconnect) -> None:
    async with serving(lambda _: bad) as server, PostClient(REACTOR, server.url) as posts:
        assert await error_of(posts.add("x"))
        assert len(server.requests) == ATTEMPTS_MAX
        assert len({request.fields["idempotency-key"] for request in server.requests}) == 1


@ensureDeferred
async def test_unreachable_server_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    def retry(*_: object) -> None:
        raise AssertionError("it is retried")

    monkeypatch.setattr(module, "deferLater", retry)
    url = f"http://127.0.0.1:{free_port()}"
    async with PostClient(REACTOR, url) as posts:
        error: NoAnswerError = await error_of(posts.add("x"), NoAnswerError)
        assert not error.sent
        assert str(error).startswith(f"{url}: ")
        assert "refused" in str(error)


@ensureDeferred
async def test_update_is_retried_unless_conditional() -> None:
    async with (
        serving(respond_in_turn(Disconnect(), make_response(200))) as server,
        PostClient(REACTOR, server.url) as posts,
    ):
        await posts.update(1, "x")
        assert len(server.requests) == 2
        server.handler = respond_in_turn(Disconnect(), problem(412))
        assert await error_of(posts.update(1, "x", if_match='"a"'), NoAnswerError)
        server.handler = respond_in_turn(problem(429), make_response(200))
        await posts.update(1, "x", if_match='"a"')


@ensureDeferred
async def test_404_after_a_lost_delete_is_success() -> None:
    async with serving(respond_in_turn(Disconnect(), problem(404))) as server, PostClient(REACTOR, server.url) as posts:
        await posts.delete(1)
        assert len(server.requests) == 2
        error: ProblemError = await error_of(posts.delete(1), ProblemError)
        assert error.status == 404
        server.handler = respond_in_turn(problem(429), problem(404))
        assert await error_of(posts.delete(1), ProblemError)


@ensureDeferred
@pytest.mark.parametrize("sent", [b"", ADDED[:-3], ADDED[:20]], ids=["nothing", "half a body", "half a head"])
async def test_missing_response_times_out(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS_MAX", 2)
    reactor = HeldReactor()
    async with serving(lambda _: sent) as server, PostClient(reactor, server.url) as posts:
        adding = in_background(error_of(posts.add("x"), NoAnswerError))
        for attempt in (1, 2):
            await wait_until(lambda: len(server.requests) == attempt)  # noqa: B023 - waited for here
            assert not adding.called
            reactor.advance(module.RESPONSE_MAX_S)
            reactor.advance(1)  # the delay before the next attempt
        assert "no response within" in str(await adding)
        assert len(server.requests) == 2


@ensureDeferred
async def test_too_long_response_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESPONSE_MAX_BYTES", 1000)
    async with serving(lambda _: make_response(200, b" " * 5000)) as server, PostClient(REACTOR, server.url) as posts:
        assert "more than" in str(await error_of(posts.get(1), UnusableAnswerError))


@ensureDeferred
@pytest.mark.parametrize(
    "sent",
    [
        make_response(200),
        make_response(201),
        make_response(201, Location="/post/0"),
        make_response(201, Location="/x/1"),
    ],
)
async def test_added_post_without_location_is_refused(sent: bytes) -> None:
    async with serving(lambda _: sent) as server, PostClient(REACTOR, server.url) as posts:
        assert await error_of(posts.add("x"), UnusableAnswerError)


@ensureDeferred
async def test_invalid_arguments_are_refused() -> None:
    async with PostClient(REACTOR, "http://127.0.0.1:1") as posts:
        assert await error_of(posts.add("\ud800"), InvalidTextError)
        assert await error_of(posts.get(0), ValueError)


@ensureDeferred
async def test_close_fails_requests_in_progress() -> None:
    async with serving(lambda _: b"") as server:
        posts = PostClient(REACTOR, server.url)
        calls = [in_background(posts.update(1, "x", if_match='"a"')) for _ in range(3)]
        await wait_until(lambda: len(server.requests) == 3)
        await posts.close()
        errors = await gatherResults([in_background(error_of(call, NoAnswerError)) for call in calls])
        assert Counter(map(str, errors)).total() == 3
        await wait_until(lambda: not server.open)


@pytest.mark.parametrize("scheme", ["http", "https"])
@ensureDeferred
async def test_close_fails_requests_whose_connection_is_being_made(scheme: str) -> None:
    posts = PostClient(REACTOR, f"{scheme}://127.0.0.1:1")
    call = in_background(posts.add("x"))
    await posts.close()
    assert call.called
    assert await error_of(call, NoAnswerError)


@ensureDeferred
async def test_cancelled_request_is_aborted() -> None:
    async with serving(lambda _: b"") as server, PostClient(REACTOR, server.url) as posts:
        call = in_background(posts.add("x"))
        await wait_until(lambda: server.requests)
        call.cancel()
        assert await error_of(call, CancelledError)
        await wait_until(lambda: not server.open)
        assert len(server.requests) == 1


@ensureDeferred
async def test_closed_client_does_not_retry() -> None:
    async with serving(lambda _: b"") as server:
        posts = PostClient(REACTOR, server.url)
        call = in_background(posts.add("x"))
        await wait_until(lambda: server.requests)
        await posts.close()
        assert await error_of(call, NoAnswerError)
        assert len(server.requests) == 1


@each(
    "url",
    ["", "posts.example", "ftp://posts.example", "http://", "http://a b", "http://h:x", "http://h/path", "http://h?q",
     "http://user@h", "http://[::1]:8080", "http://h:8080/#"],
)  # fmt: skip
def test_url_that_is_no_origin_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PostClient(REACTOR, url)
    assert "\n" not in str(refused.value)


def test_credentials_of_another_kind_are_refused() -> None:
    credentials: Any = ("a", "secret")  # as treq takes them
    with pytest.raises(ConfigError, match="tuple is none of the credentials"):
        PostClient(REACTOR, "https://posts.example", credentials)


@each("auth", [Basic("a", "secret"), BearerFile("f")], ids=["Basic", "BearerFile"])
def test_secret_is_not_sent_in_plain_text(auth: Basic | BearerFile) -> None:
    with pytest.raises(ConfigError) as refused:
        PostClient(REACTOR, "http://posts.example", auth)
    assert "clear text" in str(refused.value)
    assert "secret" not in str(refused.value)
    for url in ("https://posts.example", "http://localhost:8080", "http://127.0.0.2"):
        PostClient(REACTOR, url, auth)
    PostClient(REACTOR, "http://posts.example", auth, plaintext=True)
    PostClient(REACTOR, "http://posts.example", Digest("a", "secret"))
