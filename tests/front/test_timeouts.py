"""The time limits of connections, on a clock that the tests advance."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from postd.front.connection import LINGER_S, READ_MIN_BYTES_PER_S, READ_WINDOW_MIN_S, HttpConnection
from postd.front.factory import IDLE_GRACE_S
from tests.cases import each
from tests.front.slow_server import BUFFER_BYTES, GET, STEP_S, BufferedTransport, SlowServer
from tests.web.wire import decode_response

HEADER_S, BODY_S, IDLE_S = 10.0, 30.0, 60.0
OVER_S = 1.5
"""How much later than its limit a connection may be closed: limits are checked once a second."""

GET_LAST = b"GET /post HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST_HEAD = b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH_HEAD = POST_HEAD + b"Content-Length: 12\r\n\r\n"
CHUNKED_HEAD = POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"post":"x"}'

UNFINISHED = {
    "a byte": (b"G", HEADER_S),
    "a request line": (b"GET /at-once HTTP/1.1\r\n", HEADER_S),
    "a head without its line ends": (GET[:-4], HEADER_S),
    "a head without its empty line": (GET[:-2], HEADER_S),
    "a head without its last byte": (GET[:-1], HEADER_S),
    "some fields": (POST_HEAD, HEADER_S),
    "a length without a body": (LENGTH_HEAD, BODY_S),
    "a body without its last byte": (LENGTH_HEAD + BODY[:-1], BODY_S),
    "no chunks": (CHUNKED_HEAD, BODY_S),
    "a chunk without its end": (CHUNKED_HEAD + b"C\r\n" + BODY, BODY_S),
    "trailers without their end": (CHUNKED_HEAD + b"C\r\n" + BODY + b"\r\n0\r\nX: y", BODY_S),
    "an expectation": (LENGTH_HEAD[:-2] + b"Expect: 100-continue\r\n\r\n", BODY_S),
}
"""Unfinished requests, each with the limit that applies."""

in_head_and_in_body = pytest.mark.parametrize(
    ("begun", "limit_s"), [(GET[:-2], HEADER_S), (LENGTH_HEAD + BODY[:-1], BODY_S)], ids=["head", "body"]
)


def make_server(*, header_s: float = HEADER_S, body_s: float = BODY_S, idle_s: float = IDLE_S) -> SlowServer:
    return SlowServer(header_s=header_s, body_s=body_s, idle_s=idle_s)


@pytest.fixture
def server() -> SlowServer:
    return make_server()


def is_open(transport: BufferedTransport) -> bool:
    """Return whether the connection is open, and neither a close nor a 408 has begun."""
    return (
        transport.connected
        and not transport.disconnecting
        and not transport.write_closed
        and b" 408 " not in transport.value()
    )


def check_408(transport: BufferedTransport, server: SlowServer) -> None:
    """Check that the last output is one complete 408, and that the connection is closed after it."""
    sent = transport.value()
    answer = decode_response(b"HTTP/1.1 408 " + sent.rpartition(b"HTTP/1.1 408 ")[2])
    assert answer.header("Connection") == "close"
    assert sent.count(b" 408 ") == 1
    server.wait(LINGER_S + OVER_S)
    assert not transport.connected
    assert transport.value() == sent


def check_408_after(
    limit_s: float, transport: BufferedTransport, server: SlowServer, meanwhile: Callable[[], None] | None = None
) -> None:
    """Check that a connection is open until its limit, and then closed with 408."""
    server.wait(limit_s - STEP_S, meanwhile)
    assert is_open(transport)
    server.wait(OVER_S, meanwhile)
    check_408(transport, server)


def check_closed_silently(transport: BufferedTransport) -> None:
    assert transport.value() == b""
    assert not transport.connected
    assert not transport.aborted


def check_closed_silently_after(idle_s: float, transport: BufferedTransport, server: SlowServer) -> None:
    """Check that an idle connection is open until its limit, and then closed without output."""
    transport.clear()
    server.wait(idle_s - STEP_S)
    assert is_open(transport)
    server.wait(OVER_S)
    check_closed_silently(transport)


class UnfinishedRequestTests:
    @pytest.mark.parametrize(("begun", "limit_s"), UNFINISHED.values(), ids=UNFINISHED)
    def test_unfinished_request_is_408_at_its_limit(self, server: SlowServer, begun: bytes, limit_s: float) -> None:
        transport, channel = server.connect()
        channel.dataReceived(begun)
        check_408_after(limit_s, transport, server)
        assert server.slow.taken == 0

    @pytest.mark.parametrize(
        ("begun", "more", "limit_s"),
        [(b"G", b"G", HEADER_S), (CHUNKED_HEAD, b"1\r\nx\r\n", BODY_S)],
        ids=["bytes of a head", "chunks"],
    )
    def test_more_input_does_not_extend_the_limit(
        self, server: SlowServer, begun: bytes, more: bytes, limit_s: float
    ) -> None:
        transport, channel = server.connect()
        channel.dataReceived(begun)
        check_408_after(limit_s, transport, server, lambda: channel.dataReceived(more))

    @in_head_and_in_body
    def test_half_closed_connection_with_an_unfinished_request_is_closed(
        self, server: SlowServer, begun: bytes, limit_s: float
    ) -> None:
        transport, channel = server.connect()
        channel.dataReceived(begun)
        channel.readConnectionLost()
        server.wait(limit_s + OVER_S + LINGER_S + OVER_S)
        assert not transport.connected
        assert server.slow.taken == 0


class HeadTests:
    def test_head_that_ends_at_the_last_moment_is_accepted(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        channel.dataReceived(GET[:-1])
        server.wait(HEADER_S - STEP_S)
        channel.dataReceived(GET[-1:])
        server.slow.answer()
        assert transport.value().startswith(b"HTTP/1.1 200 ")
        server.wait(HEADER_S + OVER_S)
        assert is_open(transport)

    def test_time_of_a_head_starts_with_its_first_byte(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        server.wait(IDLE_S - 1)
        channel.dataReceived(b"G")
        check_408_after(HEADER_S, transport, server)

    def test_each_head_has_its_own_time(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        for answered in range(1, 6):
            server.wait(HEADER_S - 1)
            channel.dataReceived(GET[:9])
            server.wait(HEADER_S - 1)
            channel.dataReceived(GET[9:])
            server.slow.answer()
            assert transport.value().count(b"HTTP/1.1 200 ") == answered
        assert is_open(transport)

    @pytest.mark.parametrize("before", [b"", b"\r\n"], ids=["at the start", "after an empty line"])
    def test_head_may_come_byte_by_byte(self, server: SlowServer, before: bytes) -> None:
        transport, channel = server.connect()
        for byte in before + GET:
            assert is_open(transport)
            channel.dataReceived(bytes([byte]))
            server.wait(STEP_S)
        server.slow.answer()
        assert transport.value().startswith(b"HTTP/1.1 200 ")

    def test_input_after_408_is_discarded(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        channel.dataReceived(POST_HEAD)
        server.wait(HEADER_S + OVER_S)
        channel.dataReceived(b"Content-Length: 12\r\n\r\n" + BODY + GET)
        check_408(transport, server)
        assert server.slow.taken == 0

    def test_empty_line_alone_does_not_keep_a_connection(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        channel.dataReceived(b"\r\n")
        server.wait(IDLE_S + OVER_S + LINGER_S + OVER_S)
        assert not transport.connected


class BodyTests:
    def test_time_of_a_body_starts_with_the_end_of_the_head(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        channel.dataReceived(LENGTH_HEAD[:-1])
        server.wait(HEADER_S - 1)
        channel.dataReceived(LENGTH_HEAD[-1:])
        server.wait(BODY_S - STEP_S)
        assert is_open(transport)
        channel.dataReceived(BODY)
        server.slow.answer()
        assert transport.value().startswith(b"HTTP/1.1 200 ")
        assert is_open(transport)

    def test_limit_of_bodies_may_be_shorter_than_that_of_heads(self) -> None:
        server = make_server(header_s=30, body_s=2, idle_s=20)
        transport, channel = server.connect()
        channel.dataReceived(LENGTH_HEAD)
        check_408_after(2, transport, server)


class IdleTests:
    @pytest.mark.parametrize(
        ("requests", "pause_s"), [(0, 0), (1, 0), (5, 0.9 * IDLE_S)], ids=["no request", "a request", "five requests"]
    )
    def test_idle_connection_is_closed_silently(self, server: SlowServer, requests: int, pause_s: float) -> None:
        """The idle time restarts with each request."""
        transport, channel = server.connect()
        for _ in range(requests):
            server.wait(pause_s)
            channel.dataReceived(GET)
            server.slow.answer()
        assert transport.value().count(b"HTTP/1.1 200 ") == requests
        check_closed_silently_after(IDLE_S, transport, server)

    def test_thousand_idle_connections_are_closed_together(self, server: SlowServer) -> None:
        transports = [server.connect()[0] for _ in range(1000)]
        server.wait(IDLE_S + OVER_S)
        for transport in transports:
            check_closed_silently(transport)
        assert not server.site.channels

    def test_handshake_has_the_time_of_a_head(self, server: SlowServer) -> None:
        transport, channel = server.connect(tls=True)
        server.wait(HEADER_S - STEP_S)
        assert is_open(transport)
        server.wait(OVER_S)
        assert transport.disconnecting
        transport, channel = server.connect(tls=True)
        channel.handshakeCompleted()
        server.wait(IDLE_S - STEP_S)
        assert is_open(transport)

    def test_tls_client_that_does_not_answer_close_notify_is_aborted(self, server: SlowServer) -> None:
        transport, channel = server.connect(tls=True)
        channel.handshakeCompleted()
        server.wait(IDLE_S + OVER_S)
        assert transport.disconnecting
        server.wait(LINGER_S + OVER_S)
        assert transport.aborted
        assert not transport.connected

    def test_slow_tls_client_gets_its_response_before_the_idle_connection_is_aborted(
        self, server: SlowServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel has accepted the response, and the client has not: aborted, the connection would lose it."""
        left, acknowledged = [READ_MIN_BYTES_PER_S * 100], [0]
        monkeypatch.setattr("postd.front.connection.unacknowledged_bytes", lambda _: left[0])
        monkeypatch.setattr("postd.front.connection.bytes_acknowledged", lambda _: acknowledged[0])
        transport, channel = server.connect(tls=True)
        channel.handshakeCompleted()
        channel.dataReceived(GET)
        server.slow.answer()
        while left[0]:
            left[0] -= READ_MIN_BYTES_PER_S * 10
            acknowledged[0] += READ_MIN_BYTES_PER_S * 10
            server.wait(8)
            assert transport.connected
        assert transport.disconnecting
        server.wait(2 * IDLE_S + OVER_S)
        assert transport.aborted

    def test_short_limits_are_checked_more_often(self) -> None:
        server = make_server(header_s=2, body_s=3, idle_s=0.5)
        transport, _ = server.connect()
        server.wait(0.5 - STEP_S)
        assert is_open(transport)
        server.wait(0.5 / 4 + 2 * STEP_S)
        check_closed_silently(transport)


class ResponseTests:
    """The duration of a response is not limited."""

    @each("request_", [GET, LENGTH_HEAD + BODY], ids=["GET", "POST"])
    @each("half_closed", [False, True], ids=["open", "half closed"])
    def test_response_may_take_minutes(self, request_: bytes, *, half_closed: bool) -> None:
        server = make_server(header_s=1, body_s=1, idle_s=1)
        transport, channel = server.connect()
        channel.dataReceived(request_)
        if half_closed:
            channel.readConnectionLost()
        server.wait(300)
        assert is_open(transport)
        server.slow.answer()
        assert transport.value().startswith(b"HTTP/1.1 200 ")
        assert transport.value().endswith(b"done")
        if half_closed:
            transport.clear()
            check_closed_silently(transport)
        else:
            check_closed_silently_after(1, transport, server)  # idle from here on

    def test_response_may_come_in_pieces_over_minutes(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        channel.dataReceived(GET)
        (request,) = server.slow.requests
        for _ in range(5):
            request.write(b"piece")
            server.wait(2 * IDLE_S)
            assert is_open(transport)
        request.finish()
        assert transport.value().endswith(b"0\r\n\r\n")

    def test_pipelined_requests_wait_without_a_limit(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        channel.dataReceived(GET * 4 + LENGTH_HEAD + BODY)
        for answered in range(1, 6):
            server.wait(2 * IDLE_S)
            assert is_open(transport)
            server.slow.answer()
            server.clock.advance(0)
            assert transport.value().count(b"HTTP/1.1 200 ") == answered
        transport.clear()
        server.wait(IDLE_S + OVER_S)
        check_closed_silently(transport)

    @in_head_and_in_body
    def test_time_of_a_pipelined_request_starts_with_the_response_before_it(
        self, server: SlowServer, begun: bytes, limit_s: float
    ) -> None:
        transport, channel = server.connect()
        channel.dataReceived(GET + begun)
        server.wait(2 * IDLE_S)
        assert is_open(transport)
        server.slow.answer()
        check_408_after(limit_s, transport, server)
        assert transport.value().count(b"HTTP/1.1 200 ") == 1

    def test_disconnect_during_a_response_drops_the_connection_and_its_input(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        channel.dataReceived(GET + GET[:-2])
        transport.loseConnection()
        server.wait(2 * IDLE_S)
        assert not server.site.channels
        assert server.slow.taken == 1


class StalledClientTests:
    """Clients that read nothing, or slowly."""

    def stall(self, server: SlowServer, *, tls: bool = False) -> tuple[BufferedTransport, HttpConnection, Any]:
        """Connect and begin a long response that fills the write buffer of the transport."""
        transport, channel = server.connect(tls=tls)
        transport.reading = False
        channel.dataReceived(GET)
        (request,) = server.slow.requests
        request.setHeader(b"Content-Length", b"10000000")
        request.write(b"x" * (BUFFER_BYTES + 1))
        return transport, channel, request

    @pytest.fixture
    def taken(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The number of bytes that the client has acknowledged, according to the kernel."""
        taken = [0]
        monkeypatch.setattr("postd.front.connection.bytes_acknowledged", lambda _: taken[0])
        return taken

    @pytest.mark.parametrize("tls", [False, True], ids=["TCP", "TLS"])
    def test_client_that_reads_nothing_of_a_long_response_is_aborted(self, server: SlowServer, *, tls: bool) -> None:
        transport, *_ = self.stall(server, tls=tls)
        server.wait(IDLE_S - STEP_S)
        assert is_open(transport)
        server.wait(OVER_S)
        assert transport.aborted
        assert not transport.connected
        assert b" 408 " not in transport.value()

    def test_client_that_reads_within_the_idle_time_is_not_aborted(self, server: SlowServer) -> None:
        transport, _, request = self.stall(server)
        for _ in range(10):
            server.wait(IDLE_S - 1)
            transport.read()
            assert is_open(transport)
            request.write(b"x" * (BUFFER_BYTES + 1))
        server.wait(IDLE_S + OVER_S)
        assert transport.aborted

    def test_client_that_waits_for_more_of_a_response_is_not_aborted(self, server: SlowServer) -> None:
        transport, *_ = self.stall(server)
        transport.read()
        server.wait(10 * IDLE_S)
        assert is_open(transport)

    def test_client_that_reads_nothing_of_a_finished_response_is_aborted(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        transport.reading = False
        channel.dataReceived(GET)
        server.slow.answer(b"x" * 2 * BUFFER_BYTES)
        server.wait(IDLE_S - STEP_S)
        assert is_open(transport)
        server.wait(IDLE_S + OVER_S)
        assert transport.aborted

    def test_client_that_sends_without_reading_is_aborted(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        transport.reading = False
        channel.dataReceived(GET.replace(b"/post", b"/at-once") * 2000)
        server.wait(IDLE_S - STEP_S)
        taken = server.slow.taken
        assert taken < 2000
        assert is_open(transport)
        server.wait(OVER_S)
        assert transport.aborted
        assert server.slow.taken == taken

    @pytest.mark.parametrize(
        "sent", [GET, GET_LAST, GET + GET[:-2], GET + LENGTH_HEAD], ids=["idle", "close", "head", "body"]
    )
    def test_client_that_never_reads_a_short_response_is_aborted(self, server: SlowServer, sent: bytes) -> None:
        """A transport that is closing waits until the client has read all output; without a limit, forever."""
        transport, channel = server.connect()
        transport.reading = False
        channel.dataReceived(sent)
        server.slow.answer()
        server.wait(2 * IDLE_S + OVER_S)
        assert transport.aborted
        assert not transport.connected

    @pytest.mark.parametrize("tls", [False, True], ids=["TCP", "TLS"])
    def test_client_that_acknowledges_bytes_of_a_response_is_not_aborted(
        self, server: SlowServer, taken: list[int], *, tls: bool
    ) -> None:
        """Even if they are too few to resume writing; without progress it is aborted."""
        transport, *_ = self.stall(server, tls=tls)
        for _ in range(5):
            taken[0] += round(READ_MIN_BYTES_PER_S * (IDLE_S + OVER_S))
            server.wait(IDLE_S)
            assert transport.connected
        server.wait(IDLE_S + OVER_S)
        assert transport.aborted

    @pytest.mark.parametrize("last", [GET_LAST, GET_LAST + GET, b"BAD\r\n\r\n"], ids=["close", "more", "bad"])
    def test_client_that_acknowledges_bytes_of_the_last_response_is_not_aborted(
        self, server: SlowServer, taken: list[int], last: bytes
    ) -> None:
        transport, channel = server.connect()
        transport.reading = False
        channel.dataReceived(last)
        server.slow.answer()
        for _ in range(5):
            taken[0] += round(READ_MIN_BYTES_PER_S * (LINGER_S + OVER_S))
            server.wait(LINGER_S)
            assert transport.connected
        server.wait(2 * IDLE_S + OVER_S)
        assert transport.aborted

    @pytest.mark.parametrize("left_at_the_end", [0, 1], ids=["has all", "reads no more"])
    def test_client_that_pauses_while_it_reads_the_last_response_is_not_aborted(
        self, server: SlowServer, taken: list[int], monkeypatch: pytest.MonkeyPatch, left_at_the_end: int
    ) -> None:
        """It has sent more, so that its input is discarded for `LINGER_S`; the kernel has accepted the response."""
        left = [1]
        monkeypatch.setattr("postd.front.connection.unacknowledged_bytes", lambda _: left[0])
        transport, channel = server.connect()
        channel.dataReceived(GET_LAST + GET)
        server.slow.answer()
        for _ in range(3):
            server.wait(IDLE_S - OVER_S)
            assert transport.connected
            taken[0] += round(READ_MIN_BYTES_PER_S * (IDLE_S + OVER_S))
            server.wait(OVER_S)
        left[0] = left_at_the_end
        server.wait(IDLE_S + LINGER_S + OVER_S)
        assert transport.aborted

    @pytest.mark.parametrize("tls", [False, True], ids=["TCP", "TLS"])
    def test_client_that_reads_less_than_a_kibibyte_per_second_is_aborted(
        self, server: SlowServer, taken: list[int], *, tls: bool
    ) -> None:
        transport, *_ = self.stall(server, tls=tls)
        steps = 0
        while transport.connected:
            taken[0] += READ_MIN_BYTES_PER_S - 1
            server.wait(1)
            steps += 1
            assert steps < 4 * IDLE_S
        assert transport.aborted
        assert READ_WINDOW_MIN_S <= steps <= max(IDLE_S, READ_WINDOW_MIN_S) + IDLE_S + OVER_S

    def test_half_closed_client_that_reads_slowly_gets_all_its_responses(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        transport.reading = False
        channel.dataReceived(GET.replace(b"/post", b"/long") * 4)
        server.wait(IDLE_S - 1)
        transport.read()
        server.wait(1)
        channel.readConnectionLost()
        for _ in range(3):
            server.wait(IDLE_S - 2)
            transport.read()
        assert server.slow.taken == 4
        server.wait(1)
        assert not transport.connected
        assert not transport.aborted


class ShutdownTests:
    """Time limits while the server shuts down gracefully."""

    GRACE_S = 1000

    @in_head_and_in_body
    def test_incoming_request_keeps_its_time_limit(self, server: SlowServer, begun: bytes, limit_s: float) -> None:
        transport, channel = server.connect()
        channel.dataReceived(begun)
        server.wait(2)
        server.end(within_s=self.GRACE_S)
        server.wait(limit_s - 2 - STEP_S)
        assert is_open(transport)
        assert not server.ended
        server.wait(OVER_S)
        check_408(transport, server)
        assert server.ended

    def test_request_in_progress_is_finished_at_shutdown(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        channel.dataReceived(GET)
        server.end(within_s=self.GRACE_S)
        server.wait(2 * IDLE_S)
        assert is_open(transport)
        assert not server.ended
        server.slow.answer()
        assert transport.value().endswith(b"done")
        assert not transport.connected
        assert server.ended

    def test_client_that_does_not_read_is_aborted_at_shutdown(self, server: SlowServer) -> None:
        transport, channel = server.connect()
        transport.reading = False
        channel.dataReceived(GET)
        server.slow.answer(b"x" * 2 * BUFFER_BYTES)
        server.end(within_s=self.GRACE_S)
        server.wait(2 * IDLE_S + OVER_S)
        assert transport.aborted
        assert server.ended

    @pytest.mark.parametrize("last", [GET_LAST, b"BAD\r\n\r\n"], ids=["closing", "lingering"])
    @pytest.mark.parametrize("reads_for_s", [0, 3])
    def test_client_that_has_its_last_response_and_leaves_its_end_open_does_not_delay_the_shutdown(
        self, server: SlowServer, monkeypatch: pytest.MonkeyPatch, last: bytes, reads_for_s: int
    ) -> None:
        numbers, left = count(), [int(reads_for_s > 0)]
        monkeypatch.setattr("postd.front.connection.bytes_acknowledged", lambda _: next(numbers))
        monkeypatch.setattr("postd.front.connection.unacknowledged_bytes", lambda _: left[0])
        transport, channel = server.connect(tls=True)
        channel.handshakeCompleted()
        channel.dataReceived(last)
        server.slow.answer()
        assert transport.disconnecting
        server.end(within_s=self.GRACE_S)
        server.wait(reads_for_s)
        assert transport.connected
        left[0] = 0
        server.wait(IDLE_GRACE_S + LINGER_S + OVER_S)
        assert transport.aborted
        assert server.ended

    def test_shutdown_leaves_no_timer(self, server: SlowServer) -> None:
        server.connect()
        transport, channel = server.connect()
        channel.dataReceived(GET[:-2])
        server.end(within_s=self.GRACE_S)
        server.wait(HEADER_S + OVER_S + LINGER_S + OVER_S)
        assert server.ended
        assert not transport.connected
        assert server.clock.getDelayedCalls() == []
