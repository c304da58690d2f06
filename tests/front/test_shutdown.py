"""Connections at shutdown, over in-memory transports."""

import pytest

from postd.front.connection import LINGER_S
from postd.front.factory import IDLE_GRACE_S
from tests.front.slow_server import GET, BufferedTransport, SlowServer

GRACE_S = 10


@pytest.fixture
def server() -> SlowServer:
    return SlowServer()


def check_last(transport: BufferedTransport, server: SlowServer) -> None:
    """Check that one response announced the close, that the connection is closed, and that the server has ended."""
    assert transport.value().count(b"\r\nConnection: close\r\n") == 1
    assert not transport.connected
    assert server.ended


def test_server_without_connections_ends_at_once(server: SlowServer) -> None:
    server.end(within_s=GRACE_S)
    assert server.ended


def test_connection_without_a_request_is_closed(server: SlowServer) -> None:
    new, _ = server.connect()
    used, channel = server.connect()
    channel.dataReceived(GET)
    server.slow.answer()
    server.end(within_s=GRACE_S)
    server.clock.advance(IDLE_GRACE_S)
    assert not new.connected
    assert not used.connected
    assert server.ended


def test_request_sent_during_the_idle_grace_is_answered_as_the_last(server: SlowServer) -> None:
    """A client learns of the shutdown from the close of its connection; a request sent before that does not fail."""
    used, channel = server.connect()
    channel.dataReceived(GET)
    server.slow.answer()
    server.end(within_s=GRACE_S)
    server.clock.advance(IDLE_GRACE_S / 2)
    channel.dataReceived(GET)
    server.slow.answer()
    assert used.value().count(b"HTTP/1.1 200") == 2
    check_last(used, server)


def test_request_in_progress_is_answered_as_the_last(server: SlowServer) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET)
    server.end(within_s=GRACE_S)
    assert not server.ended
    server.slow.answer()
    assert transport.value().endswith(b"done")
    check_last(transport, server)


def test_incoming_requests_are_answered_as_the_last(server: SlowServer) -> None:
    begun, channel = server.connect()
    channel.dataReceived(GET[:3])
    head, other = server.connect()
    other.dataReceived(GET[:-2])
    server.end(within_s=GRACE_S)
    assert not server.ended
    channel.dataReceived(GET[3:])
    other.dataReceived(GET[-2:])
    server.slow.answer()
    for transport in (begun, head):
        check_last(transport, server)


def test_response_that_has_begun_is_finished_as_the_last(server: SlowServer) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET)
    (request,) = server.slow.requests
    request.write(b"first ")
    server.end(within_s=GRACE_S)
    request.write(b"second")
    request.finish()
    assert transport.value().endswith(b"0\r\n\r\n")
    assert not transport.connected
    assert server.ended


def test_pipelined_requests_behind_the_current_one_are_discarded(server: SlowServer) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET * 3)
    server.end(within_s=GRACE_S)
    server.slow.answer()
    server.clock.advance(0)
    assert transport.value().count(b"HTTP/1.1 200") == 1
    assert server.slow.requests == []
    server.clock.advance(LINGER_S)
    assert server.ended


def test_client_that_has_taken_its_response_does_not_delay_the_end(server: SlowServer) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET)
    server.slow.answer()
    channel.pauseProducing()
    server.end(within_s=GRACE_S)
    assert not server.ended
    channel.resumeProducing()
    assert not transport.connected
    assert server.ended


def test_request_that_outlasts_the_grace_is_cut_off(server: SlowServer) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET)
    server.end(within_s=GRACE_S)
    server.clock.advance(GRACE_S - 1)
    assert not server.ended
    server.clock.advance(1)
    assert transport.aborted
    assert server.ended


def test_silent_tls_client_does_not_delay_the_end(server: SlowServer) -> None:
    transport, _ = server.connect(tls=True)
    server.end(within_s=GRACE_S)
    server.clock.advance(IDLE_GRACE_S)
    assert transport.disconnecting
    assert not server.ended
    server.clock.advance(LINGER_S)
    assert transport.aborted
    assert server.ended
    assert server.clock.getDelayedCalls() == []
