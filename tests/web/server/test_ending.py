"""What becomes of connections when the server ends, on their bytes."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import alsoProvides

from postd.web.server.connection import LINGER_S, HttpConnection
from postd.web.server.factory import IDLE_GRACE_S
from tests.helpers import MemoryTransport, connect, make_site

GET = b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n"
GRACE_S = 10


class Slow(Resource):
    """Answers when it is told to."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Any] = []

    def render(self, request: Any) -> Any:
        self.requests.append(request)
        return NOT_DONE_YET

    def answer(self) -> None:
        for request in self.requests:
            request.setHeader(b"Content-Length", b"4")
            request.write(b"done")
            request.finish()
        self.requests = []


class Transport(MemoryTransport):
    """A client's end; over TLS it does not answer the end of the connection unless it is asked to."""

    def loseConnection(self) -> None:
        self.disconnecting = True
        if not ISSLTransport.providedBy(self) or self.aborted:
            super().loseConnection()

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: FBT001 - Twisted's signature
        """Called for each connection that provides TCP."""


class Ending:
    """A server with connections that is told to end."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.slow = Slow()
        self.site = make_site(self.slow, clock=self.clock)
        self.ended = False

    def connect(self, *, tls: bool = False) -> tuple[Transport, HttpConnection]:
        transport = Transport()
        if tls:
            alsoProvides(transport, ISSLTransport)
        return transport, connect(transport, self.site)

    def end(self) -> None:
        def note(_: None) -> None:
            self.ended = True

        self.site.begin_end()
        Deferred.fromCoroutine(self.site.finish(within_s=GRACE_S)).addCallback(note)


@pytest.fixture
def server() -> Ending:
    return Ending()


def test_without_connections_it_ends_at_once(server: Ending) -> None:
    server.end()
    assert server.ended


def test_a_connection_without_a_request_is_closed(server: Ending) -> None:
    new, _ = server.connect()
    used, channel = server.connect()
    channel.dataReceived(GET)
    server.slow.answer()
    server.end()
    server.clock.advance(IDLE_GRACE_S)
    assert not new.connected
    assert not used.connected
    assert server.ended


def test_a_request_that_was_just_being_sent_is_answered_and_is_the_last(server: Ending) -> None:
    """A client cannot know that we end before it has read that; what it sends until then is no failure."""
    used, channel = server.connect()
    channel.dataReceived(GET)
    server.slow.answer()
    server.end()
    server.clock.advance(IDLE_GRACE_S / 2)
    channel.dataReceived(GET)
    server.slow.answer()
    assert used.value().count(b"HTTP/1.1 200") == 2
    assert used.value().count(b"\r\nConnection: close\r\n") == 1
    assert not used.connected
    assert server.ended


def test_a_request_that_is_under_way_is_answered_and_is_the_last(server: Ending) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET)
    server.end()
    assert not server.ended
    server.slow.answer()
    assert b"\r\nConnection: close\r\n" in transport.value()
    assert transport.value().endswith(b"done")
    assert not transport.connected
    assert server.ended


def test_a_request_that_is_still_coming_in_is_answered(server: Ending) -> None:
    begun, channel = server.connect()
    channel.dataReceived(GET[:3])
    head, other = server.connect()
    other.dataReceived(GET[:-2])
    server.end()
    assert not server.ended
    channel.dataReceived(GET[3:])
    other.dataReceived(GET[-2:])
    server.slow.answer()
    for transport in (begun, head):
        assert b"\r\nConnection: close\r\n" in transport.value()
        assert not transport.connected
    assert server.ended


def test_an_answer_that_has_begun_is_finished_and_is_the_last(server: Ending) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET)
    (request,) = server.slow.requests
    request.write(b"first ")
    server.end()
    request.write(b"second")
    request.finish()
    assert transport.value().endswith(b"0\r\n\r\n")
    assert not transport.connected
    assert server.ended


def test_pipelined_requests_behind_the_current_one_are_not_taken(server: Ending) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET * 3)
    server.end()
    server.slow.answer()
    server.clock.advance(0)
    assert transport.value().count(b"HTTP/1.1 200") == 1
    assert server.slow.requests == []
    server.clock.advance(LINGER_S)
    assert server.ended


def test_a_client_that_has_taken_its_answer_does_not_hold_it_up(server: Ending) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET)
    server.slow.answer()
    channel.pauseProducing()
    server.end()
    assert not server.ended
    channel.resumeProducing()
    assert not transport.connected
    assert server.ended


def test_request_that_outlasts_the_grace_is_cut_off(server: Ending) -> None:
    transport, channel = server.connect()
    channel.dataReceived(GET)
    server.end()
    server.clock.advance(GRACE_S - 1)
    assert not server.ended
    server.clock.advance(1)
    assert transport.aborted
    assert server.ended


def test_a_client_over_tls_that_says_nothing_does_not_hold_it_up(server: Ending) -> None:
    transport, _ = server.connect(tls=True)
    server.end()
    server.clock.advance(IDLE_GRACE_S)
    assert transport.disconnecting
    assert not server.ended
    server.clock.advance(LINGER_S)
    assert transport.aborted
    assert server.ended
    assert server.clock.getDelayedCalls() == []
