"""`PostClient` against a server that pages, refuses, breaks off and is late."""

import gzip
import json
from collections import Counter
from collections.abc import Callable

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import CancelledError, gatherResults

from postd.client import Basic, BearerFile, Digest, NoAnswerError, Post, PostClient, ProblemError, UnusableAnswerError
from postd.client import posts as module
from postd.client.posts import TRIES_MAX
from postd.errors import ConfigError, InvalidTextError
from tests.client.server import REACTOR, Asked, Cut, answer, error_of, in_background, problem, serving, wait_until

ADDED = answer(201, "Success a Post!\n", Location="/post/7")


def listed(*ids: int, more: str = "") -> bytes:
    fields = {"Link": f'<{more}>; rel="next"'} if more else {}
    return answer(200, json.dumps([{"id": post_id, "post": f"text {post_id}"} for post_id in ids]), **fields)


class Keyed:
    """Stores posts, each key once. `bad` is what it does in turn once it has stored: an answer that gets lost."""

    def __init__(self, *bad: bytes | Cut) -> None:
        self.stored: list[bytes] = []
        self.keys: set[str] = set()
        self._bad = list(bad)

    def __call__(self, asked: Asked) -> bytes | Cut:
        key = asked.fields["idempotency-key"]
        if key not in self.keys:
            self.keys.add(key)
            self.stored.append(asked.body)
        return self._bad.pop(0) if self._bad else ADDED


def in_turn(*answers: bytes | Cut) -> Callable[[Asked], bytes | Cut]:
    """Answer one after the other, and with the last one ever after."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


@ensureDeferred
async def test_a_list_is_read_page_by_page() -> None:
    def handler(asked: Asked) -> bytes:
        if asked.target == "/post?limit=2":
            return listed(1, 2, more="/post?limit=2&after=2")
        assert asked.target == "/post?limit=2&after=2"
        return listed(5)

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        found = [post async for post in posts.list(page=2)]
        assert found == [Post(1, "text 1"), Post(2, "text 2"), Post(5, "text 5")]
        assert server.connections == 1


@ensureDeferred
@pytest.mark.parametrize(
    "page",
    [
        listed(2, 1),
        listed(1, more="/post?limit=500"),
        listed(1, more="http://elsewhere.example/post"),
        answer(200, '[{"id": "1", "post": "x"}]'),
        answer(200, "<html>"),
        answer(200, b"\xff"),
    ],
    ids=["out of order", "the same again", "elsewhere", "no posts", "no JSON", "no UTF-8"],
)
async def test_a_list_that_is_none(page: bytes) -> None:
    async def read_all() -> list[Post]:
        return [post async for post in posts.list()]

    async with serving(lambda _: page) as server, PostClient(REACTOR, server.url) as posts:
        assert await error_of(read_all(), UnusableAnswerError)


@ensureDeferred
async def test_a_list_that_is_compressed() -> None:
    def handler(asked: Asked) -> bytes:
        assert asked.fields["accept-encoding"] == "gzip"
        return answer(200, gzip.compress(b'[{"id": 1, "post": "x"}]'), Content_Encoding="gzip")

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        assert [post async for post in posts.list()] == [Post(1, "x")]


@ensureDeferred
async def test_one_post_comes_with_its_tag() -> None:
    reply = answer(200, '{"id": 3, "post": "ä\\n"}', ETag='"abc"')
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
async def test_a_problem_is_told() -> None:
    async with serving(lambda _: problem(422, "Too long.")) as server, PostClient(REACTOR, server.url) as posts:
        error: ProblemError = await error_of(posts.add("x"), ProblemError)
        assert (error.status, error.title, error.detail) == (422, "Some Title", "Too long.")
        assert str(error) == "422 Some Title: Too long."
        assert len(server.asked) == 1


@ensureDeferred
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (answer(404, "gone"), "404 Not Found"),
        (answer(404, "[]", Content_Type="application/problem+json"), "404 Not Found"),
        (answer(404, "{", Content_Type="application/problem+json"), "404 Not Found"),
        (
            answer(308, "", Location="https://elsewhere.example/"),
            "308 Permanent Redirect: it leads to https://elsewhere",
        ),
        (answer(599), "599 Unknown Status"),
    ],
    ids=["text", "a list", "no JSON", "a redirect", "a status nobody knows"],
)
async def test_a_refusal_without_problem_details(sent: bytes, told: str) -> None:
    async with serving(lambda _: sent) as server, PostClient(REACTOR, server.url) as posts:
        assert str(await error_of(posts.get(1), ProblemError)).startswith(told)


@ensureDeferred
@pytest.mark.parametrize(
    "bad",
    [
        Cut(),
        Cut(in_order=True),
        Cut(ADDED[:20]),
        Cut(ADDED[:-3], in_order=True),
        problem(503),
        answer(502),
        problem(409),
    ],
    ids=["reset", "closed", "half a head", "half a body", "503", "502", "409"],
)
async def test_a_post_is_added_once_whatever_becomes_of_the_answer(bad: bytes | Cut) -> None:
    keyed = Keyed(bad, bad, bad)
    async with serving(keyed) as server, PostClient(REACTOR, server.url) as posts:
        assert await posts.add("once") == 7
        assert keyed.stored == [b'{"post":"once"}']
        assert len(server.asked) == 4
        assert await posts.add("once") == 7
        assert len(keyed.stored) == 2


@ensureDeferred
async def test_a_key_of_ones_own() -> None:
    keyed = Keyed()
    async with serving(keyed) as server, PostClient(REACTOR, server.url) as posts:
        await posts.add("x", key="order-17")
        await posts.add("x", key="order-17")
        assert keyed.keys == {"order-17"}


@ensureDeferred
async def test_a_kept_connection_that_the_server_has_ended() -> None:
    async with serving(in_turn(listed(1), Cut(), ADDED)) as server, PostClient(REACTOR, server.url) as posts:
        assert [post.id async for post in posts.list()] == [1]
        assert await posts.add("x") == 7


@ensureDeferred
@pytest.mark.parametrize("status", [429, 503])
async def test_when_to_come_back_is_heeded(status: int) -> None:
    async with (
        serving(in_turn(problem(status, Retry_After="1"), ADDED)) as server,
        PostClient(REACTOR, server.url) as posts,
    ):
        began = REACTOR.seconds()
        assert await posts.add("x") == 7
        assert REACTOR.seconds() - began >= 1


@ensureDeferred
async def test_too_long_is_not_waited_for() -> None:
    async with serving(lambda _: problem(503, Retry_After="3600")) as server, PostClient(REACTOR, server.url) as posts:
        error: ProblemError = await error_of(posts.add("x"), ProblemError)
        assert error.retry_after_s == 3600
        assert len(server.asked) == 1


@ensureDeferred
@pytest.mark.parametrize("bad", [problem(503), Cut()], ids=["503", "reset"])
async def test_tries_are_bounded(bad: bytes | Cut) -> None:
    async with serving(lambda _: bad) as server, PostClient(REACTOR, server.url) as posts:
        assert await error_of(posts.add("x"))
        assert len(server.asked) == TRIES_MAX
        assert len({asked.fields["idempotency-key"] for asked in server.asked}) == 1


@ensureDeferred
async def test_who_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_WAIT_S", 30.0)
    began = REACTOR.seconds()
    async with serving(lambda _: b"") as server:
        pass
    async with PostClient(REACTOR, server.url) as posts:
        error: NoAnswerError = await error_of(posts.add("x"), NoAnswerError)
        assert not error.sent
        assert str(error).startswith(f"{server.url}: ")
        assert "refused" in str(error)
        assert REACTOR.seconds() - began < 20


@ensureDeferred
async def test_an_update_is_sent_again_unless_it_would_tell_of_itself() -> None:
    async with serving(in_turn(Cut(), answer(200))) as server, PostClient(REACTOR, server.url) as posts:
        await posts.update(1, "x")
        assert len(server.asked) == 2
        server.handler = in_turn(Cut(), problem(412))
        assert await error_of(posts.update(1, "x", if_match='"a"'), NoAnswerError)
        server.handler = in_turn(problem(429), answer(200))
        await posts.update(1, "x", if_match='"a"')


@ensureDeferred
async def test_what_an_earlier_try_has_deleted_is_deleted() -> None:
    async with serving(in_turn(Cut(), problem(404))) as server, PostClient(REACTOR, server.url) as posts:
        await posts.delete(1)
        assert len(server.asked) == 2
        error: ProblemError = await error_of(posts.delete(1), ProblemError)
        assert error.status == 404
        server.handler = in_turn(problem(429), problem(404))
        assert await error_of(posts.delete(1), ProblemError)


@ensureDeferred
@pytest.mark.parametrize("sent", [b"", ADDED[:-3], ADDED[:20]], ids=["nothing", "half a body", "half a head"])
async def test_who_never_answers_is_given_up(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_MAX_S", 1.0)  # the server has read it by then, on a busy machine, too
    monkeypatch.setattr(module, "TRIES_MAX", 2)
    async with serving(lambda _: sent) as server, PostClient(REACTOR, server.url) as posts:
        assert "no answer within" in str(await error_of(posts.add("x"), NoAnswerError))
        assert len(server.asked) == 2


@ensureDeferred
async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_MAX_BYTES", 1000)
    async with serving(lambda _: answer(200, b" " * 5000)) as server, PostClient(REACTOR, server.url) as posts:
        assert "more than" in str(await error_of(posts.get(1), UnusableAnswerError))


@ensureDeferred
@pytest.mark.parametrize(
    "sent", [answer(200), answer(201), answer(201, Location="/post/0"), answer(201, Location="/x/1")]
)
async def test_a_server_that_does_not_say_what_it_added(sent: bytes) -> None:
    async with serving(lambda _: sent) as server, PostClient(REACTOR, server.url) as posts:
        assert await error_of(posts.add("x"), UnusableAnswerError)


@ensureDeferred
async def test_a_text_that_cannot_be_sent() -> None:
    async with PostClient(REACTOR, "http://127.0.0.1:1") as posts:
        assert await error_of(posts.add("\ud800"), InvalidTextError)
        assert await error_of(posts.get(0), ValueError)


@ensureDeferred
async def test_closing_ends_what_goes_on() -> None:
    async with serving(lambda _: b"") as server:
        posts = PostClient(REACTOR, server.url)
        calls = [in_background(posts.update(1, "x", if_match='"a"')) for _ in range(3)]
        await wait_until(lambda: len(server.asked) == 3)
        await posts.close()
        errors = await gatherResults([in_background(error_of(call, NoAnswerError)) for call in calls])
        assert Counter(map(str, errors)).total() == 3
        await wait_until(lambda: not server.open)


@ensureDeferred
async def test_who_stops_to_wait_is_not_made_to() -> None:
    async with serving(lambda _: b"") as server, PostClient(REACTOR, server.url) as posts:
        call = in_background(posts.add("x"))
        await wait_until(lambda: server.asked)
        call.cancel()
        assert await error_of(call, CancelledError)
        await wait_until(lambda: not server.open)
        assert len(server.asked) == 1


@ensureDeferred
async def test_nothing_is_sent_again_by_a_client_that_was_closed() -> None:
    async with serving(lambda _: b"") as server:
        posts = PostClient(REACTOR, server.url)
        call = in_background(posts.add("x"))
        await wait_until(lambda: server.asked)
        await posts.close()
        assert await error_of(call, NoAnswerError)
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "url",
    ["", "posts.example", "ftp://posts.example", "http://", "http://a b", "http://h:x", "http://h/path", "http://h?q",
     "http://user@h", "http://[::1]:8080", "http://h:8080/#"],
)  # fmt: skip
def test_a_url_that_names_no_server(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PostClient(REACTOR, url)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("auth", [Basic("a", "secret"), BearerFile("f")], ids=["Basic", "BearerFile"])
def test_what_could_be_read_along_is_not_sent(auth: Basic | BearerFile) -> None:
    with pytest.raises(ConfigError) as refused:
        PostClient(REACTOR, "http://posts.example", auth)
    assert "plain text" in str(refused.value)
    assert "secret" not in str(refused.value)
    for url in ("https://posts.example", "http://localhost:8080", "http://127.0.0.2"):
        PostClient(REACTOR, url, auth)
    PostClient(REACTOR, "http://posts.example", auth, plaintext=True)
    PostClient(REACTOR, "http://posts.example", Digest("a", "secret"))
