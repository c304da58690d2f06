"""`PostClient.watch`: slow, broken, silent and resumed streams."""

import json
from typing import Any

import pytest
from pytest_twisted import ensureDeferred

from postd.client import Change, ChangeKind, NoAnswerError, PostClient, ProblemError, Reset, UnusableAnswerError, Watch
from postd.client import watching as module
from postd.protocol.event_stream import Event, EventDecoder
from tests.client.server import (
    EVENT_STREAM,
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
from tests.client.test_posts import DETAILS, MOMENTS
from tests.held_reactor import HeldReactor

START = b"retry: 100\nid: 4\n\n"


def added(number: int, text: str = "x") -> bytes:
    return b'event: added\nid: %d\ndata: {"id":%d,"post":"%s"}\n\n' % (number, number * 10, text.encode())


def change(number: int, text: str = "x") -> Change:
    return Change(number, ChangeKind.ADDED, number * 10, text)


async def take(watch: Watch, number: int) -> list[Any]:
    return [await anext(watch) for _ in range(number)]


@ensureDeferred
async def test_changes_have_times_and_authors_if_they_are_asked_for() -> None:
    data = json.dumps({"id": 1, "post": "x", **DETAILS})
    stream = b"%bevent: added\nid: 5\ndata: %b\n\n" % (START, data.encode())
    async with serving(lambda _: EVENT_STREAM + stream) as server, PostClient(REACTOR, server.url) as posts:
        assert await take(posts.watch(meta=True), 1) == [Change(5, ChangeKind.ADDED, 1, "x", *MOMENTS, "alice")]
        assert server.last.target == "/post/events?include=meta"


@ensureDeferred
async def test_changes_are_decoded() -> None:
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
async def test_stream_in_small_pieces_is_decoded(size: int) -> None:
    stream = START + added(5, "ä\u2028") + added(6)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]

    def trickle(request: Request, left: list[bytes]) -> None:
        if left and request.connection.transport:
            request.send(left[0])
            REACTOR.callLater(0, trickle, request, left[1:])

    def handler(request: Request) -> bytes:
        REACTOR.callLater(0, trickle, request, pieces)
        return EVENT_STREAM

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        assert await take(posts.watch(), 2) == [change(5, "ä\u2028"), change(6)]


@ensureDeferred
@pytest.mark.parametrize("in_order", [True, False], ids=["ended", "reset"])
@pytest.mark.parametrize("cut", [len(added(6)) // 2, len(added(6)) - 1, 0])
async def test_broken_stream_resumes_after_its_last_event(cut: int, *, in_order: bool) -> None:
    log = [added(number) for number in range(5, 9)]

    def handler(request: Request) -> bytes | Disconnect:
        after = request.fields.get("last-event-id")
        if after is None:
            return Disconnect(EVENT_STREAM + START + log[0] + log[1][:cut], in_order=in_order)
        # One event is repeated, as by a server that is not sure.
        return EVENT_STREAM + b"".join(log[int(after) - 5 :])

    waits: list[tuple[str, float]] = []
    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        watch = posts.watch(on_wait=lambda *wait: waits.append(wait))
        assert await take(watch, 4) == [change(number) for number in range(5, 9)]
        assert [request.fields.get("last-event-id") for request in server.requests] == [None, "5"]
        assert len(waits) == 1
        assert waits[0][1] < 0.2  # as the server said


@ensureDeferred
async def test_stream_broken_before_its_first_event_resumes() -> None:
    def handler(request: Request) -> bytes | Disconnect:
        if "last-event-id" not in request.fields:
            return Disconnect(EVENT_STREAM + START)
        return EVENT_STREAM + added(5)

    async with serving(handler) as server, PostClient(REACTOR, server.url) as posts:
        assert await take(posts.watch(), 1) == [change(5)]
        assert server.last.fields["last-event-id"] == "4"


@ensureDeferred
async def test_watch_begins_after_a_revision() -> None:
    async with serving(lambda _: EVENT_STREAM + added(9) + added(10)) as server:
        async with PostClient(REACTOR, server.url) as posts:
            assert await take(posts.watch(after=9), 1) == [change(10)]
        assert server.last.fields["last-event-id"] == "9"


@ensureDeferred
async def test_temporary_outage_is_retried() -> None:
    responses: list[bytes | Disconnect] = [
        Disconnect(EVENT_STREAM + START),
        Disconnect(),
        problem(503),
        Disconnect(),
        EVENT_STREAM + added(5),
    ]
    async with serving(lambda _: responses.pop(0)) as server, PostClient(REACTOR, server.url) as posts:
        assert await take(posts.watch(), 1) == [change(5)]


@ensureDeferred
async def test_silent_stream_is_replaced() -> None:
    def handler(request: Request) -> bytes:
        return EVENT_STREAM + (START + added(5) if "last-event-id" not in request.fields else added(6))

    waits: list[str] = []
    reactor = HeldReactor()
    async with serving(handler) as server, PostClient(reactor, server.url) as posts:
        watch = posts.watch(silent_max_s=3, on_wait=lambda why, _: waits.append(why))
        assert await take(watch, 1) == [change(5)]
        second = in_background(anext(watch))
        reactor.advance(3)
        await wait_until(lambda: waits)
        reactor.advance(1)
        assert await second == change(6)
        assert waits == ["nothing was received for 3 s"]


@ensureDeferred
async def test_comments_keep_the_stream_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[bytes] = []

    class NotingDecoder(EventDecoder):
        def decode(self, piece: bytes) -> list[Event]:
            received.append(piece)
            return super().decode(piece)

    monkeypatch.setattr(module, "EventDecoder", NotingDecoder)
    reactor = HeldReactor()
    async with serving(lambda _: EVENT_STREAM + START) as server, PostClient(reactor, server.url) as posts:
        first = in_background(anext(posts.watch(silent_max_s=3)))
        for number in range(5):
            await wait_until(lambda: len(received) > number)  # noqa: B023 - waited for here
            reactor.advance(2)
            server.last.send(b":\n\n" if number < 4 else added(5))
        assert await first == change(5)
        assert len(server.requests) == 1


@ensureDeferred
async def test_first_failure_is_raised() -> None:
    async with serving(lambda _: problem(401, "No.")) as server, PostClient(REACTOR, server.url) as posts:
        error: ProblemError = await error_of(anext(posts.watch()), ProblemError)
        assert (error.status, error.detail) == (401, "No.")
    async with PostClient(REACTOR, server.url) as posts:
        assert await error_of(anext(posts.watch()), NoAnswerError)


@ensureDeferred
async def test_later_refusal_is_raised() -> None:
    responses: list[bytes | Disconnect] = [Disconnect(EVENT_STREAM + START + added(5)), problem(401)]
    async with serving(lambda _: responses.pop(0)) as server, PostClient(REACTOR, server.url) as posts:
        watch = posts.watch()
        assert await take(watch, 1) == [change(5)]
        assert (await error_of(anext(watch), ProblemError)).status == 401
        assert await error_of(anext(watch), StopAsyncIteration)


@ensureDeferred
@pytest.mark.parametrize(
    "sent",
    [
        make_response(200, "<html>", Content_Type="text/html"),
        EVENT_STREAM + b"data: " + b"x" * 100_000,
        EVENT_STREAM + b"event: added\nid: 5\ndata: {}\n\n",
        EVENT_STREAM + b"event: added\nid: x\ndata: {}\n\n",
        EVENT_STREAM + b'event: added\nid: 5\ndata: {"id": 5}\n\n',
        EVENT_STREAM + b"event: deleted\nid: 5\ndata: \xff\n\n",
    ],
    ids=["a page", "a line without end", "no id", "no number", "no post", "no UTF-8"],
)
async def test_malformed_stream_is_refused(sent: bytes) -> None:
    async with serving(lambda _: sent) as server, PostClient(REACTOR, server.url) as posts:
        assert await error_of(anext(posts.watch()), UnusableAnswerError)
        await wait_until(lambda: not server.open)


@ensureDeferred
async def test_close_ends_the_iteration() -> None:
    async def count(watch: Watch) -> int:
        return len([one async for one in watch])

    async with serving(lambda _: EVENT_STREAM + START + added(5)) as server:
        posts = PostClient(REACTOR, server.url)
        first, second = posts.watch(), posts.watch()
        counting = [in_background(count(first)), in_background(count(second))]
        await wait_until(lambda: len(server.requests) == 2)
        first.close()
        assert await counting[0] <= 1
        assert not counting[1].called
        await posts.close()
        assert await counting[1] <= 1
        await wait_until(lambda: not server.open)


@ensureDeferred
async def test_slow_consumer_pauses_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[Any] = []

    class NotedStream(module._EventStream):  # noqa: SLF001 - there is no public way to see that it has paused
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            streams.append(self)

    monkeypatch.setattr(module, "QUEUE_MAX", 10)
    monkeypatch.setattr(module, "_EventStream", NotedStream)
    number, text = 1500, "x" * 14_000  # more than the socket buffers hold

    def handler(request: Request) -> bytes:
        return EVENT_STREAM + START + b"".join(added(5 + index, text) for index in range(number))

    reactor = HeldReactor()
    async with serving(handler) as server, PostClient(reactor, server.url) as posts:
        watch = posts.watch(silent_max_s=3)
        assert await take(watch, 1) == [change(5, text)]
        await wait_until(lambda: streams[0]._paused)  # noqa: SLF001 - see above
        reactor.advance(10)  # no timeout while the client itself has paused
        (connection,) = server.open
        assert len(connection.transport.dataBuffer) + connection.transport._tempDataLen > 0  # noqa: SLF001
        assert [one.revision for one in await take(watch, number - 1)] == list(range(6, 5 + number))
        assert len(server.requests) == 1
