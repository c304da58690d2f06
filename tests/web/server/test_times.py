"""When a connection is closed because of the time: to the moment, on a clock that tests move."""

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import alsoProvides

from postd.web.server.connection import LINGER_S, HttpConnection
from tests.helpers import MemoryTransport, connect, make_site
from tests.web.wire import decode_response

HEADER_S, BODY_S, IDLE_S = 10.0, 30.0, 60.0
OVER_S = 1.5
"""How much later than at a limit a connection may be closed: limits are looked at once a second."""

STEP_S = 1 / 16
"""How far the clock goes at once; a sum of many such steps is exact."""

BUFFER_BYTES = 64 * 1024
"""What waits for a client before Twisted's transports ask for a pause."""

GET = b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n"
GET_LAST = b"GET /post HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST_HEAD = b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH_HEAD = POST_HEAD + b"Content-Length: 12\r\n\r\n"
CHUNKED_HEAD = POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"post":"x"}'
AT_ONCE = {b"/at-once": b"done", b"/long": b"x" * 2 * BUFFER_BYTES}


class Slow(Resource):
    """Answers when it is told to, as one whose store takes its time; `/at-once` and `/long` it answers at once."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Any] = []
        self.taken = 0

    def render(self, request: Any) -> Any:
        self.taken += 1
        if request.path in AT_ONCE:
            return AT_ONCE[request.path]
        self.requests.append(request)
        return NOT_DONE_YET

    def answer(self, body: bytes = b"done") -> None:
        """Answer all that wait."""
        requests, self.requests = self.requests, []
        for request in requests:
            request.setHeader(b"Content-Length", b"%d" % len(body))
            request.write(body)
            request.finish()


class Line(MemoryTransport):
    """A TCP connection whose client reads, or does not; what was written waits for it as it does in a transport."""

    reading = True
    write_closed = False
    waiting = 0

    def write(self, data: bytes) -> None:
        super().write(data)
        if not self.reading:
            self.waiting += len(data)
            if self.waiting > BUFFER_BYTES and self.producer is not None:
                self.producer.pauseProducing()

    def writeSequence(self, data: Any) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        self.disconnecting = True
        if self.aborted or not (self.waiting or ISSLTransport.providedBy(self)):
            super().loseConnection()

    def loseWriteConnection(self) -> None:
        self.write_closed = True

    def read(self) -> None:
        """Let the client take all that waits for it."""
        self.waiting = 0
        if self.disconnecting:
            super().loseConnection()
        elif self.producer is not None:
            self.producer.resumeProducing()

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: FBT001 - Twisted's signature
        """Called for each connection that provides TCP."""


class Front:
    """A server with connections, and the clock."""

    def __init__(self, *, header_s: float = HEADER_S, body_s: float = BODY_S, idle_s: float = IDLE_S) -> None:
        self.clock = Clock()
        self.slow = Slow()
        self.site = make_site(self.slow, clock=self.clock, header_s=header_s, body_s=body_s, idle_s=idle_s)

    def connect(self, *, tls: bool = False) -> tuple[Line, HttpConnection]:
        line = Line()
        if tls:
            alsoProvides(line, ISSLTransport)
        return line, connect(line, self.site)

    def wait(self, s: float, meanwhile: Callable[[], None] | None = None) -> None:
        """Let time pass; `meanwhile` is called every half second."""
        for step in range(round(s / STEP_S)):
            if meanwhile is not None and step % 8 == 0:
                meanwhile()
            self.clock.advance(STEP_S)


@pytest.fixture
def front() -> Front:
    return Front()


def is_open(line: Line) -> bool:
    """Tell whether the connection is there, and nothing has been said of its end."""
    return line.connected and not line.disconnecting and not line.write_closed and b" 408 " not in line.value()


def check_408(line: Line, front: Front) -> None:
    """Make sure that the last thing that was sent is the answer 408, whole, and that the connection goes with it."""
    sent = line.value()
    answer = decode_response(b"HTTP/1.1 408 " + sent.rpartition(b"HTTP/1.1 408 ")[2])
    assert answer.header("Connection") == "close"
    assert sent.count(b" 408 ") == 1
    front.wait(LINGER_S + OVER_S)
    assert not line.connected
    assert line.value() == sent


def check_closed_silently(line: Line) -> None:
    assert line.value() == b""
    assert not line.connected
    assert not line.aborted


class HeadTests:
    @pytest.mark.parametrize(
        "begun", [b"G", b"GET /at-once HTTP/1.1\r\n", GET[:-4], GET[:-2], GET[:-1], POST_HEAD], ids=range(6)
    )
    def test_it_has_its_time_and_no_more(self, front: Front, begun: bytes) -> None:
        line, channel = front.connect()
        channel.dataReceived(begun)
        front.wait(HEADER_S - STEP_S)
        assert is_open(line)
        front.wait(OVER_S)
        check_408(line, front)
        assert front.slow.taken == 0

    def test_bytes_do_not_prolong_it(self, front: Front) -> None:
        line, channel = front.connect()
        front.wait(HEADER_S - STEP_S, lambda: channel.dataReceived(b"G"))
        assert is_open(line)
        front.wait(OVER_S, lambda: channel.dataReceived(b"G"))
        check_408(line, front)

    def test_its_end_may_come_at_the_last_moment(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(GET[:-1])
        front.wait(HEADER_S - STEP_S)
        channel.dataReceived(GET[-1:])
        front.slow.answer()
        assert line.value().startswith(b"HTTP/1.1 200 ")
        front.wait(HEADER_S + OVER_S)
        assert is_open(line)

    def test_its_time_begins_with_its_first_byte(self, front: Front) -> None:
        line, channel = front.connect()
        front.wait(IDLE_S - 1)
        channel.dataReceived(b"G")
        front.wait(HEADER_S - STEP_S)
        assert is_open(line)
        front.wait(OVER_S)
        check_408(line, front)

    def test_each_has_its_own(self, front: Front) -> None:
        line, channel = front.connect()
        for answered in range(1, 6):
            front.wait(HEADER_S - 1)
            channel.dataReceived(GET[:9])
            front.wait(HEADER_S - 1)
            channel.dataReceived(GET[9:])
            front.slow.answer()
            assert line.value().count(b"HTTP/1.1 200 ") == answered
        assert is_open(line)

    @pytest.mark.parametrize("before", [b"", b"\r\n"], ids=["", "after an empty line"])
    def test_it_may_come_byte_by_byte(self, front: Front, before: bytes) -> None:
        line, channel = front.connect()
        for byte in before + GET:
            assert is_open(line)
            channel.dataReceived(bytes([byte]))
            front.wait(STEP_S)
        front.slow.answer()
        assert line.value().startswith(b"HTTP/1.1 200 ")

    def test_input_after_408_is_discarded(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(POST_HEAD)
        front.wait(HEADER_S + OVER_S)
        channel.dataReceived(b"Content-Length: 12\r\n\r\n" + BODY + GET)
        check_408(line, front)
        assert front.slow.taken == 0

    def test_an_empty_line_alone_does_not_keep_a_connection(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(b"\r\n")
        front.wait(IDLE_S + OVER_S + LINGER_S + OVER_S)
        assert not line.connected

    def test_a_client_that_has_said_its_last_in_the_middle_of_one_is_let_go(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(GET[:-2])
        channel.readConnectionLost()
        front.wait(HEADER_S + OVER_S + LINGER_S + OVER_S)
        assert not line.connected
        assert front.slow.taken == 0


class BodyTests:
    @pytest.mark.parametrize(
        "begun",
        [
            LENGTH_HEAD,
            LENGTH_HEAD + BODY[:-1],
            CHUNKED_HEAD,
            CHUNKED_HEAD + b"C\r\n" + BODY,
            CHUNKED_HEAD + b"C\r\n" + BODY + b"\r\n0\r\nX: y",
            LENGTH_HEAD[:-2] + b"Expect: 100-continue\r\n\r\n",
        ],
        ids=range(6),
    )
    def test_it_has_its_time_and_no_more(self, front: Front, begun: bytes) -> None:
        line, channel = front.connect()
        channel.dataReceived(begun)
        front.wait(BODY_S - STEP_S)
        assert is_open(line)
        front.wait(OVER_S)
        check_408(line, front)
        assert front.slow.taken == 0

    def test_chunks_do_not_prolong_it(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(CHUNKED_HEAD)
        front.wait(BODY_S - STEP_S, lambda: channel.dataReceived(b"1\r\nx\r\n"))
        assert is_open(line)
        front.wait(OVER_S, lambda: channel.dataReceived(b"1\r\nx\r\n"))
        check_408(line, front)

    def test_its_time_begins_with_the_end_of_the_head(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(LENGTH_HEAD[:-1])
        front.wait(HEADER_S - 1)
        channel.dataReceived(LENGTH_HEAD[-1:])
        front.wait(BODY_S - STEP_S)
        assert is_open(line)
        channel.dataReceived(BODY)
        front.slow.answer()
        assert line.value().startswith(b"HTTP/1.1 200 ")
        assert is_open(line)

    def test_a_limit_that_is_shorter_than_that_of_heads_holds(self) -> None:
        front = Front(header_s=30, body_s=2, idle_s=20)
        line, channel = front.connect()
        channel.dataReceived(LENGTH_HEAD)
        front.wait(2 - STEP_S)
        assert is_open(line)
        front.wait(OVER_S)
        check_408(line, front)

    def test_a_client_that_has_said_its_last_in_the_middle_of_one_is_let_go(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(LENGTH_HEAD + BODY[:-1])
        channel.readConnectionLost()
        front.wait(BODY_S + OVER_S + LINGER_S + OVER_S)
        assert not line.connected
        assert front.slow.taken == 0


class IdleTests:
    def test_a_connection_without_a_byte_is_closed_without_a_word(self, front: Front) -> None:
        line, _ = front.connect()
        front.wait(IDLE_S - STEP_S)
        assert is_open(line)
        front.wait(OVER_S)
        check_closed_silently(line)

    def test_so_is_one_without_another_request(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(GET)
        front.slow.answer()
        line.clear()
        front.wait(IDLE_S - STEP_S)
        assert is_open(line)
        front.wait(OVER_S)
        check_closed_silently(line)

    def test_each_request_begins_it_anew(self, front: Front) -> None:
        line, channel = front.connect()
        for _ in range(5):
            front.wait(0.9 * IDLE_S)
            channel.dataReceived(GET)
            front.slow.answer()
        line.clear()
        front.wait(IDLE_S - STEP_S)
        assert is_open(line)
        front.wait(OVER_S)
        check_closed_silently(line)

    def test_a_thousand_are_closed_together(self, front: Front) -> None:
        lines = [front.connect()[0] for _ in range(1000)]
        front.wait(IDLE_S + OVER_S)
        for line in lines:
            check_closed_silently(line)
        assert not front.site.channels

    def test_over_tls_a_client_that_does_not_answer_the_end_is_cut_off(self, front: Front) -> None:
        line, _ = front.connect(tls=True)
        front.wait(IDLE_S + OVER_S)
        assert line.disconnecting
        front.wait(LINGER_S + OVER_S)
        assert line.aborted
        assert not line.connected

    def test_short_limits_are_looked_at_more_often(self) -> None:
        front = Front(header_s=2, body_s=3, idle_s=0.5)
        line, _ = front.connect()
        front.wait(0.5 - STEP_S)
        assert is_open(line)
        front.wait(0.5 / 4 + 2 * STEP_S)
        check_closed_silently(line)


class UnderWayTests:
    """No limit is for the time that an answer takes."""

    @pytest.mark.parametrize("request_", [GET, LENGTH_HEAD + BODY], ids=["GET", "POST"])
    @pytest.mark.parametrize("half_closed", [False, True])
    def test_a_store_that_takes_five_minutes(self, request_: bytes, *, half_closed: bool) -> None:
        front = Front(header_s=1, body_s=1, idle_s=1)
        line, channel = front.connect()
        channel.dataReceived(request_)
        if half_closed:
            channel.readConnectionLost()
        front.wait(300)
        assert is_open(line)
        front.slow.answer()
        assert line.value().startswith(b"HTTP/1.1 200 ")
        assert line.value().endswith(b"done")
        line.clear()
        if not half_closed:
            front.wait(1 - STEP_S)
            assert is_open(line)  # it has its time from here on
            front.wait(OVER_S)
        check_closed_silently(line)

    def test_an_answer_that_comes_in_pieces_over_minutes(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(GET)
        (request,) = front.slow.requests
        for _ in range(5):
            request.write(b"piece")
            front.wait(2 * IDLE_S)
            assert is_open(line)
        request.finish()
        assert line.value().endswith(b"0\r\n\r\n")

    def test_requests_that_were_sent_without_waiting_wait_as_long_as_it_takes(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(GET * 4 + LENGTH_HEAD + BODY)
        for answered in range(1, 6):
            front.wait(2 * IDLE_S)
            assert is_open(line)
            front.slow.answer()
            front.clock.advance(0)
            assert line.value().count(b"HTTP/1.1 200 ") == answered
        line.clear()
        front.wait(IDLE_S + OVER_S)
        check_closed_silently(line)

    @pytest.mark.parametrize(
        ("begun", "limit_s"), [(GET[:-2], HEADER_S), (LENGTH_HEAD + BODY[:-1], BODY_S)], ids=["head", "body"]
    )
    def test_time_of_a_pipelined_head_starts_with_the_response_before_it(
        self, front: Front, begun: bytes, limit_s: float
    ) -> None:
        line, channel = front.connect()
        channel.dataReceived(GET + begun)
        front.wait(2 * IDLE_S)
        assert is_open(line)
        front.slow.answer()
        front.wait(limit_s - STEP_S)
        assert is_open(line)
        front.wait(OVER_S)
        check_408(line, front)
        assert line.value().count(b"HTTP/1.1 200 ") == 1

    def test_a_client_that_goes_away_meanwhile_leaves_nothing_behind(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(GET + GET[:-2])
        line.loseConnection()
        front.wait(2 * IDLE_S)
        assert not front.site.channels
        assert front.slow.taken == 1


class ReaderTests:
    """Clients that do not read."""

    def stall(self, front: Front, line: Line, channel: HttpConnection) -> Any:
        """Be in the middle of a long answer, with more of it waiting than a transport likes."""
        line.reading = False
        channel.dataReceived(GET)
        (request,) = front.slow.requests
        request.setHeader(b"Content-Length", b"10000000")
        request.write(b"x" * (BUFFER_BYTES + 1))
        return request

    @pytest.mark.parametrize("tls", [False, True])
    def test_one_that_takes_nothing_of_a_long_answer_is_cut_off(self, front: Front, *, tls: bool) -> None:
        line, channel = front.connect(tls=tls)
        self.stall(front, line, channel)
        front.wait(IDLE_S - STEP_S)
        assert is_open(line)
        front.wait(OVER_S)
        assert line.aborted
        assert not line.connected
        assert b" 408 " not in line.value()

    def test_one_that_takes_some_now_and_then_is_not(self, front: Front) -> None:
        line, channel = front.connect()
        request = self.stall(front, line, channel)
        for _ in range(10):
            front.wait(IDLE_S - 1)
            line.read()
            assert is_open(line)
            request.write(b"x" * (BUFFER_BYTES + 1))
        front.wait(IDLE_S + OVER_S)
        assert line.aborted

    def test_one_that_waits_for_more_of_an_answer_is_not(self, front: Front) -> None:
        line, channel = front.connect()
        self.stall(front, line, channel)
        line.read()
        front.wait(10 * IDLE_S)
        assert is_open(line)

    def test_one_that_takes_nothing_of_an_answer_that_is_done_is_cut_off(self, front: Front) -> None:
        line, channel = front.connect()
        line.reading = False
        channel.dataReceived(GET)
        front.slow.answer(b"x" * 2 * BUFFER_BYTES)
        front.wait(IDLE_S - STEP_S)
        assert is_open(line)
        front.wait(IDLE_S + OVER_S)
        assert line.aborted

    def test_one_that_sends_on_and_on_is_cut_off(self, front: Front) -> None:
        line, channel = front.connect()
        line.reading = False
        channel.dataReceived(GET.replace(b"/post", b"/at-once") * 2000)
        front.wait(IDLE_S - STEP_S)
        taken = front.slow.taken
        assert taken < 2000
        assert is_open(line)
        front.wait(OVER_S)
        assert line.aborted
        assert front.slow.taken == taken

    @pytest.mark.parametrize(
        "sent",
        [GET, GET[:-2] + b"Connection: close\r\n\r\n", GET + GET[:-2], GET + LENGTH_HEAD],
        ids=["idle", "close", "head", "body"],
    )
    def test_however_little_waits_one_that_never_takes_it_is_let_go(self, front: Front, sent: bytes) -> None:
        """A transport that is to close waits until all has been taken, for ever if nobody sees to it."""
        line, channel = front.connect()
        line.reading = False
        channel.dataReceived(sent)
        front.slow.answer()
        front.wait(2 * IDLE_S + OVER_S)
        assert line.aborted
        assert not line.connected

    @pytest.mark.parametrize("tls", [False, True])
    def test_one_of_whom_the_kernel_knows_that_it_takes_some_is_not(
        self, front: Front, monkeypatch: pytest.MonkeyPatch, *, tls: bool
    ) -> None:
        """Less than would let us write again; until nothing is taken any more."""
        taken = [0]
        monkeypatch.setattr("postd.web.server.connection.bytes_taken", lambda _: taken[0])
        line, channel = front.connect(tls=tls)
        self.stall(front, line, channel)
        for _ in range(5):
            taken[0] += 1
            front.wait(IDLE_S)
            assert line.connected
        front.wait(IDLE_S + OVER_S)
        assert line.aborted

    @pytest.mark.parametrize("last", [GET_LAST, GET_LAST + GET, b"BAD\r\n\r\n"], ids=["close", "more", "bad"])
    def test_so_it_is_when_the_answer_was_the_last(
        self, front: Front, monkeypatch: pytest.MonkeyPatch, last: bytes
    ) -> None:
        taken = [0]
        monkeypatch.setattr("postd.web.server.connection.bytes_taken", lambda _: taken[0])
        line, channel = front.connect()
        line.reading = False
        channel.dataReceived(last)
        front.slow.answer()
        for _ in range(5):
            taken[0] += 1
            front.wait(LINGER_S)
            assert line.connected
        front.wait(2 * IDLE_S + OVER_S)
        assert line.aborted

    def test_one_that_has_said_its_last_and_takes_its_time_gets_all_its_answers(self, front: Front) -> None:
        line, channel = front.connect()
        line.reading = False
        channel.dataReceived(GET.replace(b"/post", b"/long") * 4)
        front.wait(IDLE_S - 1)
        line.read()
        front.wait(1)
        channel.readConnectionLost()
        for _ in range(3):
            front.wait(IDLE_S - 2)
            line.read()
        assert front.slow.taken == 4
        front.wait(1)
        assert not line.connected
        assert not line.aborted


class EndTests:
    """The server ends, and gives what is under way some time."""

    GRACE_S = 1000

    def end(self, front: Front) -> list[str]:
        """Begin the end; there is something in the list that is returned as soon as it is over."""
        over: list[str] = []
        front.site.begin_end()
        Deferred.fromCoroutine(front.site.finish(within_s=self.GRACE_S)).addCallback(lambda _: over.append("over"))
        return over

    @pytest.mark.parametrize(
        ("begun", "limit_s"), [(GET[:-2], HEADER_S), (LENGTH_HEAD + BODY[:-1], BODY_S)], ids=["head", "body"]
    )
    def test_incoming_request_keeps_its_time_limit(self, front: Front, begun: bytes, limit_s: float) -> None:
        line, channel = front.connect()
        channel.dataReceived(begun)
        front.wait(2)
        over = self.end(front)
        front.wait(limit_s - 2 - STEP_S)
        assert is_open(line)
        assert not over
        front.wait(OVER_S)
        check_408(line, front)
        assert over

    def test_request_in_progress_is_finished_when_the_server_ends(self, front: Front) -> None:
        line, channel = front.connect()
        channel.dataReceived(GET)
        over = self.end(front)
        front.wait(2 * IDLE_S)
        assert is_open(line)
        assert not over
        front.slow.answer()
        assert line.value().endswith(b"done")
        assert not line.connected
        assert over

    def test_client_that_does_not_read_is_cut_off_when_the_server_ends(self, front: Front) -> None:
        line, channel = front.connect()
        line.reading = False
        channel.dataReceived(GET)
        front.slow.answer(b"x" * 2 * BUFFER_BYTES)
        over = self.end(front)
        front.wait(2 * IDLE_S + OVER_S)
        assert line.aborted
        assert over

    def test_no_timer_is_left(self, front: Front) -> None:
        front.connect()
        line, channel = front.connect()
        channel.dataReceived(GET[:-2])
        over = self.end(front)
        front.wait(HEADER_S + OVER_S + LINGER_S + OVER_S)
        assert over
        assert not line.connected
        assert front.clock.getDelayedCalls() == []
