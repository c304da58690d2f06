"""HTTP connections over in-memory transports: pipelining, framing, limits and refusals."""

import json
from typing import Any
from unittest.mock import Mock

import pytest
from twisted.internet.interfaces import IHalfCloseableProtocol, ISSLTransport
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import alsoProvides
from zope.interface.verify import verifyObject

from postd.auth.identity import AuthenticationResult
from postd.front.access_log import DELAY_S, LINES_MAX
from postd.front.connection import INPUT_MAX_BYTES, LINGER_S
from postd.http.views import PacedWriter, view_of
from postd.monitoring.tally import Tally
from tests.helpers import MemoryTransport, connect, make_site

LIMIT = 100


class Recorder(Resource):
    """Records the bodies of the requests that reach it."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.username: str | None = None

    def render(self, request: Any) -> Any:
        request.authentication = AuthenticationResult("bearer", "accepted", self.username)
        self.bodies.append(request.content.read())
        return NOT_DONE_YET if request.path == b"/never" else b"done"


class HalfClosableTransport(MemoryTransport):
    full = False
    closes_slowly = False

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.full and self.producer is not None:
            self.producer.pauseProducing()

    def loseConnection(self) -> None:
        self.disconnecting = True
        if not self.closes_slowly:
            super().loseConnection()


class Connection:
    def __init__(self) -> None:
        self.clock = Clock()
        self.recorder = Recorder()
        self.transport = HalfClosableTransport()
        self.site = make_site(self.recorder, clock=self.clock, max_body_bytes=LIMIT)
        self.channel = connect(self.transport, self.site)

    def send(self, data: bytes) -> bytes:
        """Send bytes; return the output that follows."""
        self.transport.clear()
        self.channel.dataReceived(data)
        answer: bytes = self.transport.value()
        return answer


@pytest.fixture
def connection() -> Connection:
    return Connection()


def head(*fields: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("POST /post HTTP/1.1", "Host: x", *fields, "")).encode()


def check_refused(answer: bytes, connection: Connection) -> None:
    top, body = answer.split(b"\r\n\r\n", 1)
    assert top.startswith(b"HTTP/1.1 413 Content Too Large\r\n")
    assert b"Connection: close" in top
    assert b"Content-Length: %d" % len(body) in top
    assert json.loads(body)["status"] == 413
    assert connection.recorder.bodies == []
    # The response can be read to its end; further input is discarded and not parsed as a request.
    assert connection.transport.write_closed
    assert connection.send(b"x" * 10_000 + b"\r\nPOST /post HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx") == b""
    assert connection.transport.connected
    connection.clock.advance(LINGER_S)
    assert connection.transport.aborted
    assert connection.recorder.bodies == []
    assert connection.clock.getDelayedCalls() == []


@pytest.mark.parametrize(
    "length", [LIMIT + 1, 10**9, 2**64, 10**4000], ids=["one byte over", "1 GB", "2**64", "4001 digits"]
)
def test_content_length_over_the_limit_is_413_before_the_body(connection: Connection, length: int) -> None:
    check_refused(connection.send(head(f"Content-Length: {length}")), connection)


@pytest.mark.parametrize("field", ["Content-Length: 77", "Content-Length: 10000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("more", ["", "Expect: 100-continue"])
@pytest.mark.parametrize("sent", [b"", b"x", b"0\r\n\r\n"])
def test_body_of_a_bodiless_path_is_not_awaited(connection: Connection, field: str, more: str, sent: bytes) -> None:
    connection.site.bodiless_paths = {b"/post"}
    hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = connection.send(head(field, *filter(None, [more])) + sent + (hidden if sent else b""))
    connection.clock.advance(0)
    answer = connection.transport.value()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer
    # The rest of the body is discarded: with unread input, a close would be a reset and lose the response.
    assert connection.transport.write_closed
    assert connection.send(b"x" * 77 + hidden) == b""
    connection.clock.advance(LINGER_S)
    assert connection.transport.aborted
    assert connection.recorder.bodies == [b""]


def test_request_without_a_body_at_a_bodiless_path_keeps_the_connection(connection: Connection) -> None:
    connection.site.bodiless_paths = {b"/post"}
    for fields in ((), ("Content-Length: 0",)):
        assert b"Connection: close" not in connection.send(head(*fields))
    assert connection.recorder.bodies == [b"", b""]


class PipelineTests:
    """A client that sends requests without waiting for the responses."""

    GET = b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n"

    def test_requests_are_processed_in_order_one_per_reactor_turn(self, connection: Connection) -> None:
        posts = b"".join(head("Content-Length: 1") + b"%d" % n for n in range(5))
        connection.send(posts)
        assert connection.recorder.bodies == [b"0"]
        for _ in range(4):
            connection.clock.advance(0)
        assert connection.recorder.bodies == [b"0", b"1", b"2", b"3", b"4"]

    def test_unread_responses_pause_parsing_and_reading(self, connection: Connection) -> None:
        connection.send(self.GET * 5)
        connection.channel.pauseProducing()
        for _ in range(9):
            connection.clock.advance(0)
        assert len(connection.recorder.bodies) == 1
        assert connection.transport.producerState == "paused"
        connection.channel.resumeProducing()
        for _ in range(9):
            connection.clock.advance(0)
        assert len(connection.recorder.bodies) == 5
        assert connection.transport.producerState == "producing"

    def test_response_that_fills_the_write_buffer_pauses_reading(self, connection: Connection) -> None:
        """The transport pauses its producer during the write of the response; stock Twisted would go on reading."""
        connection.transport.full = True
        connection.send(self.GET)
        assert connection.transport.producerState == "paused"

    def test_input_buffered_behind_a_slow_request_is_limited(self, connection: Connection) -> None:
        connection.send(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.send(self.GET * (INPUT_MAX_BYTES // len(self.GET)))
        assert connection.transport.producerState == "producing"
        connection.send(self.GET * 5)
        assert connection.transport.producerState == "paused"

    def test_producer_registered_on_a_paused_connection_is_paused(self, connection: Connection) -> None:
        connection.channel.pauseProducing()
        producer = Mock(spec=PacedWriter)
        connection.channel.registerProducer(producer, streaming=True)
        producer.pauseProducing.assert_called_once_with()

    def test_reading_resumes_when_the_buffered_requests_are_processed(self, connection: Connection) -> None:
        sent = INPUT_MAX_BYTES // len(self.GET) + 5
        connection.send(self.GET * sent)
        assert connection.transport.producerState == "paused"
        for _ in range(sent):
            connection.clock.advance(0)
        assert connection.transport.producerState == "producing"
        assert len(connection.recorder.bodies) == sent
        connection.send(self.GET)
        assert len(connection.recorder.bodies) == sent + 1

    def test_input_after_connection_close_is_discarded(self, connection: Connection) -> None:
        connection.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + self.GET)
        connection.clock.advance(1)
        assert len(connection.recorder.bodies) == 1
        # The server reads until the client closes: with unread input, a close would be a reset and lose the response.
        assert connection.transport.write_closed
        connection.channel.readConnectionLost()
        assert not connection.transport.connected

    def test_disconnect_leaves_no_timer_and_drops_pipelined_requests(self, connection: Connection) -> None:
        connection.send(self.GET * 3)
        connection.transport.loseConnection()
        connection.clock.advance(DELAY_S)
        assert connection.clock.getDelayedCalls() == []
        assert len(connection.recorder.bodies) == 1


def test_input_after_a_bad_request_is_discarded(connection: Connection) -> None:
    """Over TLS, input continues to arrive, record by record, until the connection is closed."""
    connection.transport.closes_slowly = True
    assert connection.send(b"POST /post HTTP/1.1\r\nBad Name: x\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert connection.send(b"\r\n") == b""
    assert connection.send(head("Content-Length: 1") + b"x") == b""
    assert connection.recorder.bodies == []


@pytest.mark.parametrize(
    ("coding", "status"),
    [("identity", 400), ("gzip", 400), ("gzip, chunked", 501), ("chunked, chunked", 400), ("", 400)],
)
def test_body_with_an_invalid_transfer_coding_is_not_parsed_as_a_request(
    connection: Connection, coding: str, status: int
) -> None:
    hidden = head("Content-Length: 1") + b"x"
    assert connection.send(head(f"Transfer-Encoding: {coding}") + hidden).startswith(b"HTTP/1.1 %d " % status)
    connection.clock.advance(1)
    assert connection.recorder.bodies == []


@pytest.mark.parametrize("hosts", [b"", b"Host: x\r\nHost: x\r\n", b"Host: x\r\nHost: y\r\n"])
def test_missing_or_repeated_host_is_400(connection: Connection, hosts: bytes) -> None:
    answer = connection.send(b"GET /post HTTP/1.1\r\n" + hosts + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"application/problem+json" in answer
    assert connection.recorder.bodies == []


def test_http_1_0_request_needs_no_host(connection: Connection) -> None:
    assert connection.send(b"GET /post HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 OK")


def test_expect_100_continue_over_the_limit_is_413_without_100(connection: Connection) -> None:
    answer = connection.send(head("Expect: 100-continue", f"Content-Length: {LIMIT + 1}"))
    assert b"100 Continue" not in answer
    check_refused(answer, connection)


def test_expect_100_continue_within_the_limit_gets_100(connection: Connection) -> None:
    answer = connection.send(head("Expect: 100-continue", f"Content-Length: {LIMIT}"))
    assert answer == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(b"x" * LIMIT)
    assert connection.recorder.bodies == [b"x" * LIMIT]


def test_body_over_the_limit_sent_with_its_head_is_413(connection: Connection) -> None:
    check_refused(connection.send(head(f"Content-Length: {LIMIT + 1}") + b"x" * (LIMIT + 1)), connection)


def test_chunked_body_is_413_when_it_exceeds_the_limit(connection: Connection) -> None:
    assert connection.send(head("Transfer-Encoding: chunked") + b"64\r\n" + b"x" * LIMIT + b"\r\n") == b""
    check_refused(connection.send(b"1\r\nx\r\n0\r\n\r\n"), connection)


def test_chunks_over_the_limit_in_one_read_get_one_413(connection: Connection) -> None:
    chunks = b"33\r\n" + b"x" * 0x33 + b"\r\n"
    check_refused(connection.send(head("Transfer-Encoding: chunked") + chunks * 5 + b"0\r\n\r\n"), connection)


def test_body_of_exactly_the_limit_is_accepted(connection: Connection) -> None:
    connection.send(head(f"Content-Length: {LIMIT}") + b"x" * LIMIT)
    connection.send(head("Transfer-Encoding: chunked") + b"64\r\n" + b"y" * LIMIT + b"\r\n0\r\n\r\n")
    assert connection.recorder.bodies == [b"x" * LIMIT, b"y" * LIMIT]
    assert connection.transport.connected


def test_disconnect_after_413_leaves_no_timer(connection: Connection) -> None:
    connection.send(head(f"Content-Length: {LIMIT + 1}"))
    connection.transport.loseConnection()
    connection.clock.advance(DELAY_S)
    assert connection.clock.getDelayedCalls() == []


@pytest.mark.parametrize(
    ("tls", "unsent", "half_closed"),
    [(False, False, True), (False, True, False), (True, False, False), (True, True, False)],
    ids=["all is sent", "unsent output", "TLS", "TLS and unsent output"],
)
def test_idle_connection_is_half_closed_only_without_tls_and_unsent_output(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, *, tls: bool, unsent: bool, half_closed: bool
) -> None:
    """TLS has its own end, close_notify, which must still be sent, as must the rest of a response."""
    end_output = Mock()
    monkeypatch.setattr("postd.front.connection.unsent_bytes", lambda _: unsent)
    monkeypatch.setattr("postd.front.connection.unacknowledged_bytes", lambda _: 1)
    monkeypatch.setattr("postd.front.connection.end_output", end_output)
    if tls:
        alsoProvides(connection.transport, ISSLTransport)
    connection.channel.close_if_idle()
    assert connection.transport.disconnecting
    assert end_output.called is half_closed


def test_connection_closed_twice_closes_its_transport_once(connection: Connection) -> None:
    connection.transport.closes_slowly = True
    closing = Mock(side_effect=connection.transport.loseConnection)
    connection.transport.loseConnection = closing  # type: ignore[method-assign]
    for _ in range(2):
        connection.channel.loseConnection()
    assert closing.call_count == 1


def test_half_close_after_413_closes_the_connection(connection: Connection) -> None:
    connection.send(head(f"Content-Length: {LIMIT + 1}") + b"the body begins")
    connection.channel.readConnectionLost()
    assert not connection.transport.connected


def test_connection_provides_half_close(connection: Connection) -> None:
    assert verifyObject(IHalfCloseableProtocol, connection.channel)


def test_connection_without_a_request_is_closed_after_a_minute(connection: Connection) -> None:
    connection.clock.advance(59)
    assert connection.transport.connected
    connection.clock.advance(2)
    assert not connection.transport.connected


def test_each_request_has_a_line_in_the_access_log(connection: Connection) -> None:
    with capturedLogs() as events:
        connection.send(b'GET /post?a HTTP/1.1\r\nHost: x\r\n\r\nGET /b"\\ HTTP/1.1\r\nHost: x\r\n\r\n')
        connection.clock.advance(DELAY_S)
    (event,) = [event for event in events if event["log_namespace"] == "postd.access"]
    first, second = event["lines"].splitlines()
    assert '"GET /~4?~1 HTTP/1.1" 200 4 ' in first
    assert '"GET /~3 HTTP/1.1" 200 4 ' in second


def test_many_lines_are_written_without_waiting(connection: Connection) -> None:
    one = b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n"
    with capturedLogs() as events:
        for _ in range(2 * LINES_MAX + 1):
            connection.send(one)
        lines = [event["lines"].count("route=") for event in events if event["log_namespace"] == "postd.access"]
        assert lines == [LINES_MAX, LINES_MAX]
        connection.clock.advance(DELAY_S)
        connection.send(one)
        connection.clock.advance(DELAY_S)
    lines = [event["lines"].count("route=") for event in events if event["log_namespace"] == "postd.access"]
    assert lines == [LINES_MAX, LINES_MAX, 1, 1]


def test_authenticated_request_is_counted_by_scheme_and_outcome(connection: Connection) -> None:
    connection.site._tally = tally = Tally()  # noqa: SLF001 - make_site has none
    connection.send(b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n")
    counters = tally.metrics(full=False).counters
    assert counters["auth", "bearer", "accepted"] == 1
    assert counters["requests", "none", "GET", "200", "bearer"] == 1


def test_access_log_shows_a_user_name_that_looks_like_a_token(connection: Connection) -> None:
    """User names are not redacted: otherwise a user could choose a name that the log does not show."""
    connection.recorder.username = "https://idp.example#eyJx.alice"
    with capturedLogs() as events:
        connection.send(b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.clock.advance(DELAY_S)
    (event,) = [event for event in events if event["log_namespace"] == "postd.access"]
    assert " - https://idp.example#eyJx.alice " in event["lines"]


def test_response_has_a_date_and_no_server_field(connection: Connection) -> None:
    answer = connection.send(b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Server:" not in answer
    assert b"Date: " in answer


def test_alpn_offers_http_1_1_only() -> None:
    site = make_site(Resource())
    assert site.acceptableProtocols() == [b"http/1.1"]


def test_resource_that_changes_fields_leaves_those_of_the_next_request(connection: Connection) -> None:
    seen = []

    class Changing(Resource):
        isLeaf = True

        def render(self, request: Any) -> bytes:
            seen.append(list(request.requestHeaders.getRawHeaders(b"A")))
            request.requestHeaders.addRawHeader(b"A", b"2")
            assert request.fields[b"A"] == [b"1", b"2"]
            request.requestHeaders.removeHeader(b"Host")
            return b""

    connection.site.view = view_of(Changing())
    for _ in range(2):
        assert connection.send(b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert seen == [[b"1"], [b"1"]]
