"""`GET /post/events` (reference: Event stream), over in-memory connections with slow and fast clients."""

import gc
import json
from collections.abc import Callable, Iterator
from itertools import count
from types import AsyncGeneratorType, CoroutineType
from typing import Any, ClassVar
from unittest.mock import Mock, patch
from urllib.parse import urlencode

import pytest
from msgspec import Struct
from twisted.internet.defer import Deferred, succeed
from twisted.logger import capturedLogs

from postd.auth.identity import Revalidate
from postd.auth.users import UserDirectory
from postd.errors import StoreUnavailableError
from postd.front.access_log import DELAY_S
from postd.model import Change, Version
from postd.store.interface import CHANGES_KEPT
from postd.web.authorship import Form
from postd.web.events import (
    BATCH_MAX,
    BATCH_MAX_BYTES,
    HEARTBEAT_EVERY_S,
    LOOK_EVERY_S,
    RETRY_AFTER_S,
    RETRY_MAX_MS,
    RETRY_MIN_MS,
    SENT_PER_TURN,
)
from postd.web.forms import encode_change
from tests.cases import each
from tests.helpers import InMemoryApi, MemoryTransport, SlowTransport, connect
from tests.web.clients import PASSWORD, basic
from tests.web.test_posts import JSON, check_problem, post_body
from tests.web.wire import FORM as FORM_TYPE
from tests.web.wire import ask, digest_value

FORM = {"Content-Type": FORM_TYPE}
STEP_S = 0.1
NOTICED_S = 1.1
"""After this time a change of another program is noticed."""


@pytest.fixture(autouse=True)
def closed_subscribers() -> Iterator[None]:
    """Close the connections of a test, so that no coroutine is left waiting."""
    Subscriber.opened.clear()
    yield
    for listener in Subscriber.opened:
        if listener.transport.connected:
            listener.transport.loseConnection()


class Event(Struct):
    kind: str
    number: int
    data: Any


class Subscriber:
    """Parses an event stream as HTML §9.2.6 says; it reads its connection when a test asks it to."""

    opened: ClassVar[list["Subscriber"]] = []

    def __init__(self, api: InMemoryApi, path: str = "/post/events", method: str = "GET", **headers: str) -> None:
        self._api = api
        self.opened.append(self)
        self.transport = SlowTransport()
        connect(self.transport, api.site)
        fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.transport.protocol.dataReceived(f"{method} {path} HTTP/1.0\r\nHost: x\r\n{fields}\r\n".encode())
        self.head = ""
        self.beats = 0
        self.last_id = ""
        self.position: int | None = None
        self.retry_ms = 0
        self._body = b""

    def read(self) -> list[Event]:
        """Return the events that have arrived since the last call."""
        sent = self._take()
        while more := self._take():
            sent += more
        if not self.head:
            head, _, sent = sent.partition(b"\r\n\r\n")
            self.head = head.decode()
        *blocks, self._body = (self._body + sent).split(b"\n\n")
        return [event for block in blocks if (event := self._decode(block.decode()))]

    def _take(self) -> bytes:
        if self.transport.producer is not None:
            return self.transport.drain()
        sent: bytes = self.transport.value()  # it is closed, or has no further output
        self.transport.clear()
        return sent

    def _decode(self, block: str) -> Event | None:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            assert name not in fields
            fields[name] = value
        self.beats += ":" in fields
        if "data" not in fields:  # Firefox forgets an id without data
            return None
        self.last_id = fields["id"]
        event = Event(fields["event"], int(fields["id"]), json.loads(fields["data"]))
        if event.kind != "position":
            return event
        assert (self.position, event.data) == (None, {})
        self.position, self.retry_ms = event.number, int(fields["retry"])
        return None

    def wait(self, seconds: float = 2 * STEP_S) -> list[Event]:
        """Advance the clock; return the events that have arrived since the last call."""
        events = []
        for _ in range(round(seconds / STEP_S)):
            self._api.clock.advance(STEP_S)
            for _ in range(3):
                self._api.clock.advance(0)
            events += self.read()
        return events


def put(api: InMemoryApi, post_id: int, text: str) -> None:
    assert ask(api, "PUT", f"/post/{post_id}", post_body(text), JSON).status == 200


def sign_in(api: InMemoryApi) -> str:
    """Sign in by form; return the cookie."""
    answer = ask(api, "POST", "/login", urlencode({"username": "alice", "password": PASSWORD}).encode(), FORM)
    return str(answer.header("Set-Cookie")).partition(";")[0]


def added(number: int, post_id: int, text: str) -> Event:
    return Event("added", number, {"id": post_id, "post": text})


class StreamTests:
    def test_response_is_an_uncached_event_stream(self, api: InMemoryApi) -> None:
        listener = Subscriber(api)
        assert listener.read() == []
        assert listener.head.startswith("HTTP/1.1 200 OK\r\n")
        for line in ("Content-Type: text/event-stream", "Cache-Control: no-store", "X-Content-Type-Options: nosniff"):
            assert f"{line}\r\n" in listener.head
        assert "Content-Length" not in listener.head

    def test_each_change_is_an_event(self, api: InMemoryApi) -> None:
        api.add("before")
        listener = Subscriber(api)
        assert listener.wait() == []
        api.add("two\nlines \u2028 🚀")
        put(api, 1, "after")
        put(api, 1, "after")  # no change
        ask(api, "DELETE", "/post/2")
        assert listener.wait() == [
            added(2, 2, "two\nlines \u2028 🚀"),
            Event("updated", 3, {"id": 1, "post": "after"}),
            Event("deleted", 4, {"id": 2}),
        ]
        assert listener.wait() == []

    def test_all_subscribers_get_the_same_events(self, api: InMemoryApi) -> None:
        listeners = [Subscriber(api) for _ in range(BATCH_MAX + 5)]
        api.add("one")
        listeners[0].wait()
        assert all(listener.read() == [added(1, 1, "one")] for listener in listeners[1:])

    def test_idle_stream_gets_heartbeats(self, api: InMemoryApi) -> None:
        listener = Subscriber(api)
        assert listener.wait(4 * HEARTBEAT_EVERY_S + 1) == []
        assert listener.beats == 4

    def test_log_has_the_size_of_the_stream(self, api: InMemoryApi) -> None:
        transport = MemoryTransport()
        connect(transport, api.site).dataReceived(b"GET /post/events HTTP/1.0\r\nHost: x\r\n\r\n")
        api.add("one")
        api.clock.advance(HEARTBEAT_EVERY_S)
        with capturedLogs() as logged:
            transport.loseConnection()
            api.clock.advance(DELAY_S)
        body = transport.value().partition(b"\r\n\r\n")[2]
        assert body.endswith(b":\n\n")
        assert f'" 200 {len(body)} "-"' in "".join(event.get("lines", "") for event in logged)

    def test_change_is_sent_when_it_is_acknowledged(self, api: InMemoryApi) -> None:
        listener = Subscriber(api)
        listener.wait()
        api.add("one")
        api.clock.advance(0)
        assert listener.read() == [added(1, 1, "one")]

    def test_change_by_another_program_is_sent_within_about_a_second(self, api: InMemoryApi) -> None:
        listener = Subscriber(api)
        listener.wait()
        writer: Any = api.store.database.writer
        writer.execute("INSERT INTO post (post) VALUES ('one')")
        assert listener.wait(NOTICED_S) == [added(1, 1, "one")]

    def test_event_is_encoded_once_for_each_form(self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
        encoded = []

        def encode(change: Change, form: Form) -> bytes:
            encoded.append((change.revision, form))
            return encode_change(change, form)

        monkeypatch.setattr("postd.web.events.encode_change", encode)
        listeners = [Subscriber(api, f"/post/events?{query}") for query in ("", "include=meta") for _ in range(1000)]
        for number in (1, 2):
            api.add(f"post {number}")
            for _ in range(2000 // SENT_PER_TURN):
                api.clock.advance(0)
            received = {(event.number, event.data["post"]) for listener in listeners for event in listener.read()}
            assert received == {(number, f"post {number}")}
        assert encoded == [(number, form) for number in (1, 2) for form in (Form.PLAIN, Form.DETAILED)]

    def test_other_requests_go_on_while_events_are_sent(self, api: InMemoryApi) -> None:
        listeners = [Subscriber(api) for _ in range(3 * SENT_PER_TURN)]
        api.clock.advance(0)
        for listener in listeners:
            listener.read()
        sent = []

        def note_sent() -> None:
            sent.append(sum(bool(listener.transport.value()) for listener in listeners))
            if sent[-1] < len(listeners):
                api.clock.callLater(0, note_sent)

        api.clock.callLater(0, note_sent)
        api.add("one")
        assert [*dict.fromkeys(sent)] == [0, SENT_PER_TURN, 2 * SENT_PER_TURN, 3 * SENT_PER_TURN]

    def test_idle_stream_has_no_coroutine_and_no_timer(self, api: InMemoryApi) -> None:
        def count() -> tuple[int, int]:
            kinds = (CoroutineType, AsyncGeneratorType, Deferred)
            return sum(isinstance(one, kinds) for one in gc.get_objects()), len(api.clock.getDelayedCalls())

        first = Subscriber(api)
        first.wait()
        before = count()
        listeners = [Subscriber(api) for _ in range(100)]
        for listener in listeners:
            listener.read()
        api.clock.advance(0)
        assert count() == before

    def test_log_is_not_read_while_nothing_happens(self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
        listener = Subscriber(api)
        listener.wait()
        reads: list[object] = []
        with monkeypatch.context() as patched:
            for method in ("version", "list_changes"):
                patched.setattr(api.store, method, reads.append)
            listener.wait(4 * HEARTBEAT_EVERY_S)
        assert reads == []
        api.add("one")
        assert listener.wait() == [added(1, 1, "one")]

    def test_closed_stream_is_gone_at_once(self, api: InMemoryApi) -> None:
        listeners = [Subscriber(api) for _ in range(3)]
        listeners[0].wait()
        assert api.events.subscribers == 3
        listeners[1].transport.loseConnection()
        assert api.events.subscribers == 2
        api.add("one")
        assert listeners[0].wait() == listeners[2].read() == [added(1, 1, "one")]

    def test_head_has_the_headers_and_ends(self, api: InMemoryApi) -> None:
        listener = Subscriber(api, method="HEAD")
        assert listener.read() == []
        assert "Content-Type: text/event-stream\r\n" in listener.head
        assert not listener.transport.connected

    @each("method", ["POST", "PUT", "DELETE"])
    def test_other_method_is_405(self, api: InMemoryApi, method: str) -> None:
        answer = ask(api, method, "/post/events", post_body("x"), JSON)
        check_problem(answer, 405)
        assert answer.header("Allow") == "GET, HEAD, OPTIONS"

    def test_no_polling_without_subscribers(self, api: InMemoryApi) -> None:
        listener = Subscriber(api)
        listener.wait()
        listener.transport.loseConnection()
        asked = len(api.clock.getDelayedCalls())
        api.clock.advance(1)
        Subscriber(api)
        assert len(api.clock.getDelayedCalls()) == asked + 3


class ResumeTests:
    def test_resumed_stream_has_each_event_once(self, api: InMemoryApi) -> None:
        first = Subscriber(api)
        api.add("one")
        assert first.wait() == [added(1, 1, "one")]
        first.transport.loseConnection()
        api.add("two")
        put(api, 1, "uno")
        again = Subscriber(api, Last_Event_ID=first.last_id)
        assert again.read() == [added(2, 2, "two"), Event("updated", 3, {"id": 1, "post": "uno"})]
        api.add("three")
        assert again.wait() == [added(4, 3, "three")]

    def test_resumed_stream_has_the_last_change_of_each_post(self, api: InMemoryApi) -> None:
        listener = Subscriber(api)
        for text in ("one", "two", "three"):
            api.add(text)
        for text in ("uno", "eins"):
            put(api, 1, text)
        ask(api, "DELETE", "/post/2")
        # The process has not read the changes for its other subscriber yet.
        left = [
            added(3, 3, "three"),
            Event("added", 5, {"id": 1, "post": "eins"}),
            Event("deleted", 6, {"id": 2}),
        ]
        assert Subscriber(api, Last_Event_ID="0").read() == left
        resumed = Subscriber(api, "/post/events?after=1")
        assert resumed.read() == [left[0], Event("updated", 5, {"id": 1, "post": "eins"}), left[2]]
        assert [event.number for event in listener.wait()] == [1, 2, 3, 4, 5, 6]
        assert Subscriber(api, Last_Event_ID="0").read() == left
        put(api, 1, "ein")
        put(api, 1, "one")
        assert [event.data["post"] for event in resumed.wait()] == ["ein", "one"]

    def test_resumed_stream_reads_on_over_many_changes_of_which_nothing_is_left(self, api: InMemoryApi) -> None:
        api.add("one")
        writer: Any = api.store.database.writer
        many = 3 * BATCH_MAX
        writer.executemany("UPDATE post SET post = ?", [(f"text {n}",) for n in range(many)])
        events = Subscriber(api, Last_Event_ID="0").wait()
        assert events == [Event("added", many + 1, {"id": 1, "post": f"text {many - 1}"})]

    def test_each_id_comes_with_data(self, api: InMemoryApi) -> None:
        """Firefox and npm's eventsource forget an id without data."""
        api.add("one")
        for headers in ({}, {"Last_Event_ID": "0"}, {"Last_Event_ID": "9"}):
            transport = Subscriber(api, **headers).transport
            api.clock.advance(0)
            blocks = transport.value().partition(b"\r\n\r\n")[2].split(b"\n\n")
            assert all((b"\nid: " in block) == (b"\ndata: " in block) for block in blocks)
            assert b"\nid: " in blocks[0]

    def test_delay_before_reconnecting_is_random(self, api: InMemoryApi) -> None:
        listeners = [Subscriber(api) for _ in range(20)]
        delays = set()
        for listener in listeners:
            assert listener.read() == []
            assert listener.position == 0
            delays.add(listener.retry_ms)
        assert len(delays) > 1
        assert all(RETRY_MIN_MS <= delay <= RETRY_MAX_MS for delay in delays)

    def test_stream_resumes_from_the_initial_id(self, api: InMemoryApi) -> None:
        api.add("one")
        first = Subscriber(api)
        first.read()
        assert first.last_id == "1"
        first.transport.loseConnection()
        api.add("two")
        assert Subscriber(api, Last_Event_ID=first.last_id).read() == [added(2, 2, "two")]

    def test_after_parameter_sets_the_start(self, api: InMemoryApi) -> None:
        for text in ("one", "two", "three"):
            api.add(text)
        assert Subscriber(api, "/post/events?after=2").read() == [added(3, 3, "three")]
        # When it comes back the field is newer.
        assert Subscriber(api, "/post/events?after=1", Last_Event_ID="3").read() == []
        assert [event.number for event in Subscriber(api, "/post/events?after=0").read()] == [1, 2, 3]

    def test_whole_change_log_is_streamed(self, api: InMemoryApi) -> None:
        many = 3 * BATCH_MAX + 7
        writer: Any = api.store.database.writer  # many posts at once, without the write queue
        writer.executemany("INSERT INTO post (post) VALUES (?)", [(f"post {n}",) for n in range(many)])
        listener = Subscriber(api, Last_Event_ID="3")
        assert [event.number for event in listener.wait()] == list(range(4, many + 1))
        api.add("one more")
        assert [event.number for event in listener.wait()] == [many + 1]

    @pytest.mark.parametrize("last", ["99", "-1", "x", "1.0", "99999999999999999999", "0x1", "٣"])
    def test_invalid_last_event_id_gets_a_reset(self, api: InMemoryApi, last: str) -> None:
        api.add("one")
        listener = Subscriber(api, Last_Event_ID=last)
        assert listener.wait() == [Event("reset", 1, {})]
        api.add("two")
        assert listener.wait() == [added(2, 2, "two")]

    @each("query", ["", "?after=", "?lastEventId=", "?after=&lastEventId=", "?lastEventId=%20"])
    @each("field", [None, "", " "])
    def test_empty_position_is_none(self, api: InMemoryApi, query: str, field: str | None) -> None:
        """As of a client that has received no event yet."""
        api.add("one")
        fields = {} if field is None else {"Last_Event_ID": field}
        listener = Subscriber(api, f"/post/events{query}", **fields)
        assert listener.wait() == []
        post_id = api.add("two")
        assert listener.wait() == [added(post_id, post_id, "two")]

    def test_polyfill_resumes_by_its_query(self, api: InMemoryApi) -> None:
        """That of Yaffle/EventSource adds `lastEventId` to the URL of the first request."""
        for text in ("one", "two", "three"):
            api.add(text)
        for query in ("lastEventId=2", "after=0&lastEventId=2", "include=meta&lastEventId=2", "after=2&lastEventId="):
            assert [event.number for event in Subscriber(api, f"/post/events?{query}").read()] == [3], query
        assert Subscriber(api, "/post/events?after=0&lastEventId=1", Last_Event_ID="3").read() == []
        for query in ("lastEventId=x", "lastEventId=99", "lastEventId=1&lastEventId=2"):
            assert Subscriber(api, f"/post/events?{query}").wait() == [Event("reset", 3, {})]

    def test_resuming_after_the_log_was_trimmed_gets_a_reset(self, api: InMemoryApi) -> None:
        writer: Any = api.store.database.writer
        writer.execute("BEGIN")
        writer.executemany("INSERT INTO post (post) VALUES (?)", [("x",)] * (CHANGES_KEPT + 500))
        writer.execute("COMMIT")
        listener = Subscriber(api, Last_Event_ID="1")
        assert listener.wait() == [Event("reset", CHANGES_KEPT + 500, {})]
        api.add("now")
        assert [event.number for event in listener.wait()] == [CHANGES_KEPT + 501]

    def test_gap_in_the_log_gets_a_reset(self, api: InMemoryApi) -> None:
        """As after a failover of Redis, or a large import."""
        for n in range(5):
            api.add(f"post {n}")
        writer: Any = api.store.database.writer
        writer.execute("DELETE FROM change WHERE revision = 4")
        events = Subscriber(api, Last_Event_ID="1").wait()
        assert [(event.kind, event.number) for event in events] == [("added", 2), ("added", 3), ("reset", 5)]

    def test_replaced_store_gets_a_reset(self, api: InMemoryApi) -> None:
        for text in ("one", "two", "three"):
            api.add(text)
        listener = Subscriber(api)
        listener.wait()
        writer: Any = api.store.database.writer  # as in a restored backup
        writer.execute("UPDATE version SET revision = 1, tag = randomblob(8)")
        writer.execute("DELETE FROM change WHERE revision > 1")
        assert listener.wait(NOTICED_S) == [Event("reset", 1, {})]
        api.add("four")
        assert [event.number for event in listener.wait()] == [2]


class SlowSubscriberTests:
    def test_slow_subscriber_is_not_buffered_and_misses_nothing(self, api: InMemoryApi) -> None:
        slow, quick = Subscriber(api), Subscriber(api)
        slow.read()
        events = []
        for n in range(5 * BATCH_MAX):
            api.add(f"{n:0100}")
            if n % 50 == 0:
                events += quick.wait()
        events += quick.wait()
        held = len(slow.transport.value())
        assert held < 2 * 64 * 1024
        assert slow.wait() == events
        assert len(events) == 5 * BATCH_MAX

    def test_little_is_buffered_of_long_texts(self, api: InMemoryApi) -> None:
        slow, text = Subscriber(api), "\1" * 140
        slow.read()
        api.add(text)
        for _ in range(2 * BATCH_MAX):
            api.add(text)
        slow.transport.drain()  # the first one
        assert BATCH_MAX_BYTES < len(slow.transport.value()) < 2 * BATCH_MAX_BYTES
        assert [event.number for event in slow.wait()] == [*range(2, 2 * BATCH_MAX + 2)]

    def test_subscriber_that_reads_nothing_times_out(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[limits]\nidle_time = "60s"\n')
        listener = Subscriber(api)
        listener.read()
        for n in range(3 * BATCH_MAX):
            api.add(f"{n:0140}")
        for _ in range(62):
            api.clock.advance(1)
        assert not listener.transport.connected


class AccessTests:
    def test_stream_needs_the_read_rule(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["basic"]\nwrite = ["basic"]\n')
        check_problem(ask(api, "GET", "/post/events"), 401)
        listener = Subscriber(api, **basic())
        ask(api, "POST", "/post", post_body("one"), {**JSON, **basic("bob")})
        assert listener.wait() == [added(1, 1, "one")]

    def test_end_of_the_session_ends_the_stream(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["session"]\nwrite = ["open"]\n')
        cookie = sign_in(api)
        listener = Subscriber(api, Cookie=cookie)
        api.add("one")
        assert listener.wait() == [added(1, 1, "one")]
        assert "\r\nCache-Control: private, no-store\r\n" in listener.head
        ask(api, "POST", "/logout", None, {"Cookie": cookie})
        api.add("two")
        assert listener.wait() == []
        assert not listener.transport.connected

    def test_event_reads_cached_sessions_only(self, make: Callable[..., InMemoryApi]) -> None:
        """A store on a server is not asked about each listener."""
        api = make('[api]\nread = ["session"]\nwrite = ["open"]\n')
        listener = Subscriber(api, Cookie=sign_in(api))
        listener.wait()
        unused = {"side_effect": AssertionError}
        with patch.multiple(api.store, get_session=Mock(**unused), clear_cached_logins=Mock(**unused)):
            api.add("one")
            assert listener.wait() == [added(1, 1, "one")]

    def test_check_at_intervals_reads_sessions_anew(self, make: Callable[..., InMemoryApi]) -> None:
        """Nodes of older versions do not clear the caches of other nodes."""
        api = make('[api]\nread = ["session"]\n')
        listener = Subscriber(api, Cookie=sign_in(api))
        with patch.object(api.store, "clear_cached_logins") as clear:
            listener.wait(LOOK_EVERY_S + STEP_S)
            clear.assert_called_once_with()
            listener.transport.loseConnection()
            assert clear.call_count == 2, "the cache takes memory without listeners"

    def test_stream_does_not_renew_the_session(self, make: Callable[..., InMemoryApi]) -> None:
        api = make('[api]\nread = ["session"]\n[session]\nidle = "5m"\n')
        listener = Subscriber(api, Cookie=sign_in(api))
        listener.wait(4 * 60)
        assert listener.transport.connected
        listener.wait(60 + LOOK_EVERY_S)
        assert not listener.transport.connected

    def test_end_of_the_session_ends_a_stream_without_events(self, make: Callable[..., InMemoryApi]) -> None:
        """The client reads all along, so that nothing but the check at intervals notices it."""
        api = make('[api]\nread = ["session"]\n[session]\nidle = "5m"\n')
        transport = MemoryTransport()
        request = f"GET /post/events HTTP/1.0\r\nHost: x\r\nCookie: {sign_in(api)}\r\n\r\n"
        connect(transport, api.site).dataReceived(request.encode())
        api.clock.pump([1] * (5 * 60 - 1))
        assert transport.connected
        api.clock.pump([1] * (LOOK_EVERY_S + 1))
        assert not transport.connected

    @pytest.mark.parametrize("is_lost", [False, True])
    def test_slow_or_failing_check_of_credentials_delays_no_other(
        self, make: Callable[..., InMemoryApi], monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
    ) -> None:
        slow_result: Deferred[bool] = Deferred()
        ends = False
        outcomes: dict[int, Callable[[], Deferred[bool]]] = {}  # by the number of the stream
        numbers = count()

        def revalidate(_users: UserDirectory, _name: str) -> Revalidate:
            number = next(numbers)

            async def check() -> bool:
                return await outcomes[number]() if number in outcomes else True

            return check

        def fail() -> Deferred[bool]:
            raise RuntimeError

        monkeypatch.setattr(UserDirectory, "revalidate", revalidate)
        api = make('[api]\nread = ["basic"]\nwrite = ["open"]\n')
        listeners = slow, failing, ended, valid = [Subscriber(api, **basic()) for _ in range(4)]
        for listener in listeners:
            assert listener.wait() == []
        outcomes |= {0: lambda: slow_result, 1: fail, 2: lambda: succeed(ends)}
        valid.wait(LOOK_EVERY_S)
        assert failing.transport.aborted
        assert [listener.transport.connected for listener in (slow, ended, valid)] == [True, False, True]
        if is_lost:
            slow.transport.loseConnection()
        slow_result.callback(ends)
        assert not slow.transport.connected
        assert api.events.subscribers == 1

    @pytest.mark.parametrize("scheme", ["basic", "digest"])
    def test_removed_user_gets_no_more_events(self, make: Callable[..., InMemoryApi], scheme: str) -> None:
        api = make(f'[api]\nread = ["{scheme}"]\nwrite = ["open"]\n')
        (challenge,) = ask(api, "GET", "/post/events").headers["www-authenticate"]
        if scheme == "digest":
            credentials = {"Authorization": digest_value(challenge, "alice", PASSWORD, uri="/post/events")}
        else:
            credentials = basic()
        listener = Subscriber(api, **credentials)
        assert listener.wait() == []
        assert api.users is not None
        api.users.write_text("")
        api.clock.advance(1)
        api.clock.advance(1)
        api.add("one")
        assert listener.wait() == []
        assert not listener.transport.connected


class FailureTests:
    def test_stream_resumes_after_a_store_failure(self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
        listener = Subscriber(api)
        listener.read()

        async def unavailable(*_: object, **__: object) -> Any:
            raise StoreUnavailableError("gone fishing")

        with monkeypatch.context() as patched:
            for method in ("version", "list_changes"):
                patched.setattr(api.store, method, unavailable)
            assert listener.wait(2 * HEARTBEAT_EVERY_S + 1) == []
            assert listener.beats == 2
            check_problem(ask(api, "GET", "/post/events"), 503)
        api.add("one")
        assert listener.wait() == [added(1, 1, "one")]

    def test_changes_during_a_store_failure_follow_at_once(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api.add("one")

        async def unavailable(*_: object, **__: object) -> Any:
            raise StoreUnavailableError("gone fishing")

        with monkeypatch.context() as patched:
            patched.setattr(api.store, "list_changes", unavailable)
            listener = Subscriber(api, Last_Event_ID="0")
            assert listener.read() == []
        assert listener.wait(2 * RETRY_AFTER_S) == [added(1, 1, "one")]

    def test_changes_after_a_failure_to_read_follow(self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
        listener = Subscriber(api)
        listener.wait()

        async def unavailable(*_: object, **__: object) -> Any:
            raise StoreUnavailableError("gone fishing")

        with monkeypatch.context() as patched:
            patched.setattr(api.store, "list_changes", unavailable)
            api.add("one")
            assert listener.wait() == []
        assert listener.wait(RETRY_AFTER_S) == [added(1, 1, "one")]

    def test_changes_during_a_read_follow_it(self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also if the last subscriber disconnects and another connects during the read."""
        asked: list[Deferred[None]] = []
        version = api.store.version

        async def slow() -> Version:
            now = await version()
            asked.append(Deferred())
            await asked[-1]
            return now

        listener = Subscriber(api)
        listener.wait()
        monkeypatch.setattr(api.store, "version", slow)
        api.add("one")
        api.add("two")
        assert len(asked) == 1
        listener.transport.loseConnection()
        late = Subscriber(api, Last_Event_ID="0")
        events = late.read()
        for number in (3, 4):
            while asked:
                asked.pop(0).callback(None)
                events += late.wait()
            api.add(f"post {number}")
        while asked:
            asked.pop(0).callback(None)
            events += late.wait()
        assert [event.number for event in events] == [1, 2, 3, 4]

    @pytest.mark.parametrize("what", ["change", "heartbeat"])
    def test_error_ends_one_stream_only(self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
        failing, other = Subscriber(api), Subscriber(api)
        for listener in (failing, other):
            assert listener.wait() == []

        def fail(_data: bytes) -> None:
            raise RuntimeError

        monkeypatch.setattr(failing.transport, "write", fail)
        for round_ in (1, 2):
            if what == "change":
                api.add("text")
                assert [event.number for event in other.wait()] == [round_]
            else:
                other.wait(HEARTBEAT_EVERY_S)
                assert other.beats == round_
        assert failing.transport.aborted

    def test_reload_ends_streams_of_earlier_generations(self, api: InMemoryApi) -> None:
        before = Subscriber(api)
        api.events.begin_generation()  # the new one has no streams yet
        api.add("one")
        assert before.wait() == [added(1, 1, "one")]
        api.events.end_earlier_generations()
        api.clock.advance(0)
        before.read()
        assert not before.transport.connected
        late = Subscriber(api)  # accepted during the reload, by the resource of the earlier generation
        late.read()
        assert not late.transport.connected

    def test_shutdown_ends_the_streams(self, api: InMemoryApi) -> None:
        listeners = [Subscriber(api) for _ in range(3)]
        api.add("one")
        listeners[0].wait()
        api.site.draining = True
        api.events.close()
        api.clock.advance(0)
        for listener in listeners:
            listener.read()
            assert not listener.transport.connected
        late = Subscriber(api)
        late.read()
        assert not late.transport.connected
