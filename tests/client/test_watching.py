"""`PostClient.watch`: streams that trickle, break, fall silent and come back."""

from typing import Any

import pytest
from pytest_twisted import ensureDeferred

from postd.client import Change, ChangeKind, NoAnswerError, PostClient, ProblemError, Reset, UnusableAnswerError, Watch
from postd.client import watching as module
from tests.client.server import (
    EVENT_STREAM,
    REACTOR,
    Asked,
    Cut,
    answer,
    error_of,
    in_background,
    problem,
    serving,
    wait_until,
)

START = b"retry: 100\nid: 4\n\n"


def added(number: int, text: str = "x") -> bytes:
    return b'event: added\nid: %d\ndata: {"id":%d,"post":"%s"}\n\n' % (number, number * 10, text.encode())


def change(number: int, text: str = "x") -> Change:
    return Change(number, ChangeKind.ADDED, number * 10, text)


async def take(watch: Watch, number: int) -> list[Any]:
    return [await anext(watch) for _ in range(number)]


@ensureDeferred
async def test_changes_are_told() -> None:
    stream = (
        START
        + added(5, "grüße")
        + b': a comment\n\nevent: updated\nid: 6\ndata: {"id":50,"post":"b"}\n\n'
        + b'event: deleted\nid: 7\ndata: {"id":50}\n\nevent: reset\nid: 3\ndata: {}\n\n'
        + b"event: news\nid: 4\ndata: {}\n\n"
        + added(5)
    )
    async with serving(lambda _: EVENT_STREAM + stream) as server, PostClient(REACTOR, server.url) as posts:
        watch = posts.watch()
        assert await take(watch, 5) == [
            Change(5, ChangeKind.ADDED, 50, "grüße"),
            Change(6, ChangeKind.UPDATED, 50, "b"),
            Change(7, ChangeKind.DELETED, 50, None),
            Reset(3),
            Change(5, ChangeKind.ADDED, 50, "x"),
        ]
        assert server.last.target == "/post/events"
        assert "last-event-id" not in server.last.fields


@ensureDeferred
@pytest.mark.parametrize("size", [1, 7])
async def test_a_stream_that_trickles(size: int) -> None:
    stream = START + added(5, "ä\u2028") + added(6)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]

    def trickle(asked: Asked, left: list[bytes]) -> None:
        if left and asked.connection.transport:
            asked.send(left[0])
            REACTOR.callLater(0, trickle, asked, left[1:])

    def handler(asked: Asked) -> bytes:
        REACTOR.callLater(0, trickle, asked, pieces)
        return EVENT_STREAM

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        assert await take(posts.watch(), 2) == [change(5, "ä\u2028"), change(6)]


@ensureDeferred
@pytest.mark.parametrize("in_order", [True, False], ids=["ended", "reset"])
@pytest.mark.parametrize("cut", [len(added(6)) // 2, len(added(6)) - 1, 0])
async def test_a_stream_that_was_cut_goes_on_where_it_was(cut: int, *, in_order: bool) -> None:
    log = [added(number) for number in range(5, 9)]

    def handler(asked: Asked) -> bytes | Cut:
        after = asked.fields.get("last-event-id")
        if after is None:
            return Cut(EVENT_STREAM + START + log[0] + log[1][:cut], in_order=in_order)
        # One comes twice, as after a server that is not sure.
        return EVENT_STREAM + b"".join(log[int(after) - 5 :])

    waits: list[tuple[str, float]] = []
    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        watch = posts.watch(on_wait=lambda *told: waits.append(told))
        assert await take(watch, 4) == [change(number) for number in range(5, 9)]
        assert [asked.fields.get("last-event-id") for asked in server.asked] == [None, "5"]
        assert len(waits) == 1
        assert waits[0][1] < 0.2  # as the server said


@ensureDeferred
async def test_a_stream_that_breaks_before_the_first_change_misses_none() -> None:
    def handler(asked: Asked) -> bytes | Cut:
        if "last-event-id" not in asked.fields:
            return Cut(EVENT_STREAM + START)
        return EVENT_STREAM + added(5)

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        assert await take(posts.watch(), 1) == [change(5)]
        assert server.last.fields["last-event-id"] == "4"


@ensureDeferred
async def test_from_a_change_on() -> None:
    async with serving(lambda _: EVENT_STREAM + added(9) + added(10)) as server:
        async with PostClient(REACTOR, server.url) as posts:
            assert await take(posts.watch(after=9), 1) == [change(10)]
        assert server.last.fields["last-event-id"] == "9"


@ensureDeferred
async def test_a_server_that_is_away_for_a_while() -> None:
    responses: list[bytes | Cut] = [Cut(EVENT_STREAM + START), Cut(), problem(503), Cut(), EVENT_STREAM + added(5)]
    async with serving(lambda _: responses.pop(0)) as server, PostClient(REACTOR, server.url) as posts:
        assert await take(posts.watch(), 1) == [change(5)]


@ensureDeferred
async def test_a_stream_that_falls_silent_is_made_anew() -> None:
    def handler(asked: Asked) -> bytes:
        return EVENT_STREAM + (START if "last-event-id" not in asked.fields else added(5))

    waits: list[str] = []
    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        watch = posts.watch(silent_max_s=0.2, on_wait=lambda why, _: waits.append(why))
        assert await take(watch, 1) == [change(5)]
        assert waits[0].startswith("nothing was heard")


@ensureDeferred
async def test_comments_are_no_silence() -> None:
    def beat(asked: Asked, times: int) -> None:
        asked.send(b":\n\n" if times else added(5))
        if times:
            REACTOR.callLater(0.1, beat, asked, times - 1)

    def handler(asked: Asked) -> bytes:
        REACTOR.callLater(0, beat, asked, 20)
        return EVENT_STREAM

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        assert await take(posts.watch(silent_max_s=1.0), 1) == [change(5)]
        assert len(server.asked) == 1


@ensureDeferred
async def test_the_first_failure_is_told() -> None:
    async with serving(lambda _: problem(401, "No.")) as server, PostClient(REACTOR, server.url) as posts:
        error: ProblemError = await error_of(anext(posts.watch()), ProblemError)
        assert (error.status, error.detail) == (401, "No.")
    async with PostClient(REACTOR, server.url) as posts:
        assert await error_of(anext(posts.watch()), NoAnswerError)


@ensureDeferred
async def test_who_is_not_let_in_any_more_is_told() -> None:
    responses: list[bytes | Cut] = [Cut(EVENT_STREAM + START + added(5)), problem(401)]
    async with serving(lambda _: responses.pop(0)) as server, PostClient(REACTOR, server.url) as posts:
        watch = posts.watch()
        assert await take(watch, 1) == [change(5)]
        assert (await error_of(anext(watch), ProblemError)).status == 401
        assert await error_of(anext(watch), StopAsyncIteration)


@ensureDeferred
@pytest.mark.parametrize(
    "sent",
    [
        answer(200, "<html>", Content_Type="text/html"),
        EVENT_STREAM + b"data: " + b"x" * 100_000,
        EVENT_STREAM + b"event: added\nid: 5\ndata: {}\n\n",
        EVENT_STREAM + b"event: added\nid: x\ndata: {}\n\n",
        EVENT_STREAM + b'event: added\nid: 5\ndata: {"id": 5}\n\n',
        EVENT_STREAM + b"event: deleted\nid: 5\ndata: \xff\n\n",
    ],
    ids=["a page", "a line without end", "no id", "no number", "no post", "no UTF-8"],
)
async def test_what_is_no_stream_of_changes(sent: bytes) -> None:
    async with serving(lambda _: sent) as server, PostClient(REACTOR, server.url) as posts:
        assert await error_of(anext(posts.watch()), UnusableAnswerError)
        await wait_until(lambda: not server.open)


@ensureDeferred
async def test_closing_ends_the_waiting() -> None:
    async def count(watch: Watch) -> int:
        return len([one async for one in watch])

    async with serving(lambda _: EVENT_STREAM + START + added(5)) as server:
        posts = PostClient(REACTOR, server.url)
        first, second = posts.watch(), posts.watch()
        counting = [in_background(count(first)), in_background(count(second))]
        await wait_until(lambda: len(server.asked) == 2)
        first.close()
        assert await counting[0] <= 1
        assert not counting[1].called
        await posts.close()
        assert await counting[1] <= 1
        await wait_until(lambda: not server.open)


@ensureDeferred
async def test_who_does_not_keep_up_holds_the_server_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_MAX", 10)
    number, text = 1500, "x" * 14_000  # more than the system keeps of a connection

    def handler(asked: Asked) -> bytes:
        return EVENT_STREAM + START + b"".join(added(5 + index, text) for index in range(number))

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        watch = posts.watch(silent_max_s=0.3)
        assert await take(watch, 1) == [change(5, text)]
        # Longer than silence is borne: but it is we who do not listen.
        began = REACTOR.seconds()
        await wait_until(lambda: REACTOR.seconds() > began + 0.5)
        (connection,) = server.open
        assert len(connection.transport.dataBuffer) + connection.transport._tempDataLen > 0  # noqa: SLF001
        assert [one.revision for one in await take(watch, number - 1)] == list(range(6, 5 + number))
        assert len(server.asked) == 1
