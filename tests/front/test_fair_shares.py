"""Shares of clients in the memory for responses and in the connections for event streams, in memory."""

import math
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from zope.interface import alsoProvides

from postd.front.access_log import DELAY_S
from postd.front.connection import LINGER_S
from postd.front.factory import SWEEP_MAX_S
from postd.http.responses import (
    TEXT,
    Response,
    StreamedResponse,
    make_response,
    make_streamed_response,
)
from postd.http.views import respond
from postd.net.transports import Poller, TCPTransport
from postd.reactor import IReactor
from tests.front.slow_server import BUFFER_BYTES, BufferedTransport
from tests.helpers import connect, make_site
from tests.net.test_transports import TurnReactor

GONE = Failure(ConnectionLost())
BODY = b"x" * (4 * BUFFER_BYTES)


class Views(Resource):
    """`/body` is one long body, `/bodies` a new one each time, `/short` a short one, `/stream` an event stream, which
    has an event as long as the body once `event` is called.
    """

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.shared = make_response(HTTPStatus.OK, TEXT, BODY, {})
        self.ended = 0
        self._streams: list[Any] = []

    def event(self) -> None:
        for request in self._streams:
            request.write(BODY)

    def render(self, request: Any) -> int:
        return respond(request, self._view(request))

    async def _view(self, request: Any) -> Response | StreamedResponse:
        match request.path:
            case b"/body":
                return self.shared
            case b"/bodies":
                return make_response(HTTPStatus.OK, TEXT, bytes(bytearray(BODY)), {})
            case b"/short":
                return make_response(HTTPStatus.OK, TEXT, b"short", {})
        return make_streamed_response(b"text/event-stream", None, {}, live=self._begin_stream)

    def _begin_stream(self, request: Any) -> None:
        request.responder = self
        self._streams.append(request)
        request.write(b":\n\n")

    def cancel(self) -> None:
        self.ended += 1


class Server:
    def __init__(self, **limits: int) -> None:
        self.clock = Clock()
        self.views = Views()
        self.site = make_site(self.views, clock=self.clock, **limits)
        self.site.client_of = lambda request: getattr(request.getClientAddress(), "host", "")

    def ask(self, path: str, host: str = "192.0.2.1") -> BufferedTransport:
        """Send a request on a new connection whose client does not read the response."""
        transport = BufferedTransport(peerAddress=IPv4Address("TCP", host, 1))
        transport.reading = False
        connect(transport, self.site)
        transport.protocol.dataReceived(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        return transport


def end_input(transport: BufferedTransport) -> None:
    protocol: Any = transport.protocol
    protocol.readConnectionLost()


def status_of(transport: BufferedTransport) -> int:
    return int(transport.value()[9:12])


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(response_memory_bytes=8 * 3 * len(BODY), connections=20)
    yield server
    for channel in list(server.site.channels):
        channel.connectionLost()
    assert server.site.memory.used_bytes == 0


class MemoryTests:
    def test_client_over_its_share_gets_503_with_retry_after(self, server: Server) -> None:
        asked = [server.ask("/bodies") for _ in range(5)]
        assert [status_of(one) for one in asked] == [200, 200, 200, 503, 503]
        assert b"\r\nRetry-After: 1\r\n" in asked[3].value()
        assert status_of(server.ask("/short")) == 200
        assert status_of(server.ask("/bodies", "192.0.2.2")) == 200

    @pytest.mark.parametrize("end", ["read", "reset"])
    def test_memory_is_free_when_the_response_is_read_or_its_client_gone(self, server: Server, end: str) -> None:
        asked = [server.ask("/bodies") for _ in range(3)]
        while asked[0].connected and server.site.memory.used_bytes == 3 * len(BODY):
            if end == "read":
                asked[0].read()
            else:
                asked[0].protocol.connectionLost(GONE)
        assert status_of(server.ask("/bodies")) == 200
        assert status_of(server.ask("/bodies")) == 503

    def test_readers_of_one_body_share_its_memory(self, server: Server) -> None:
        assert [status_of(server.ask("/body")) for _ in range(15)] == [200] * 15
        assert server.site.memory.used_bytes == len(BODY)

    def test_head_holds_nothing(self, server: Server) -> None:
        transport = BufferedTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 1))
        transport.reading = False
        connect(transport, server.site)
        transport.protocol.dataReceived(b"HEAD /bodies HTTP/1.1\r\nHost: x\r\n\r\n")
        assert server.site.memory.used_bytes == 0

    def test_refused_response_leaves_the_connection_open(self, server: Server) -> None:
        for _ in range(3):
            server.ask("/bodies")
        refused = server.ask("/bodies")
        refused.clear()
        refused.protocol.dataReceived(b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status_of(refused) == 200


class StreamTests:
    def test_client_has_half_of_the_connections_and_all_have_nine_tenths(self, server: Server) -> None:
        streams = [server.ask("/stream") for _ in range(11)]
        assert [status_of(one) for one in streams] == [200] * 10 + [503]
        streams.pop().protocol.connectionLost(GONE)
        others = [server.ask("/stream", "192.0.2.2") for _ in range(9)]
        assert [status_of(one) for one in others] == [200] * 8 + [503]
        others.pop().protocol.connectionLost(GONE)
        assert status_of(server.ask("/short")) == 200
        others[0].protocol.connectionLost(GONE)
        assert status_of(server.ask("/stream", "192.0.2.3")) == 200

    def test_streams_that_do_not_read_take_the_memory_of_their_client_only(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("postd.front.connection.unsent_memory", lambda transport: (transport.buffered, None, 0))
        streams = [server.ask("/stream") for _ in range(9)]
        assert [status_of(one) for one in streams] == [200] * 9
        server.views.event()
        server.clock.advance(0)
        assert [one.connected for one in streams] == [True] * 2 + [False] * 7
        assert server.views.ended == 7
        assert server.site.memory.used_bytes < 3 * len(BODY)
        assert status_of(server.ask("/bodies", "192.0.2.2")) == 200

    def test_stream_has_a_timeout_only_while_its_client_does_not_read(self, server: Server) -> None:
        stream = server.ask("/stream")
        stream.read()
        server.clock.advance(SWEEP_MAX_S)
        assert not server.clock.getDelayedCalls()
        server.views.event()
        stream.read()
        server.clock.advance(SWEEP_MAX_S)
        assert not server.clock.getDelayedCalls()
        server.views.event()
        server.clock.pump([SWEEP_MAX_S] * (math.ceil(server.site.limits.idle_s / SWEEP_MAX_S) + 1))
        assert not stream.connected
        assert server.views.ended == 1

    def test_connection_whose_stream_has_ended_has_a_timeout(self, server: Server) -> None:
        stream = server.ask("/stream")
        stream.read()
        (channel,) = server.site.channels
        assert channel.request is not None
        channel.request.finish()
        stream.read()
        assert stream.connected
        server.clock.pump([SWEEP_MAX_S] * (math.ceil(server.site.limits.idle_s / SWEEP_MAX_S) + 1))
        assert not stream.connected

    @pytest.mark.parametrize("tls", [False, True], ids=["has output to read", "does not answer close_notify"])
    def test_silent_client_of_a_stream_does_not_delay_the_shutdown(self, server: Server, *, tls: bool) -> None:
        stream = BufferedTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 1))
        stream.reading = tls
        if tls:
            alsoProvides(stream, ISSLTransport)
        connect(stream, server.site)
        stream.protocol.dataReceived(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        server.site.draining = True
        drained = Deferred.fromCoroutine(server.site.drain(within_s=10 * LINGER_S))
        (channel,) = server.site.channels
        assert channel.request is not None
        channel.request.finish()
        assert stream.connected
        server.clock.advance(LINGER_S)
        assert stream.aborted
        assert drained.called

    def test_stream_keeps_only_the_fields_that_are_logged(self, server: Server) -> None:
        stream = BufferedTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 1))
        connect(stream, server.site)
        logged = {b"Referer": b"http://x/board", b"User-Agent": b"Mozilla/5.0", b"X-Forwarded-For": b"192.0.2.7"}
        lines = b"".join(b"%b: %b\r\n" % field for field in {b"Host": b"x", b"Cookie": b"session=1", **logged}.items())
        stream.protocol.dataReceived(b"GET /stream HTTP/1.1\r\n%b\r\n" % lines)
        (channel,) = server.site.channels
        assert channel.request is not None
        assert channel.request.fields == {name: [value] for name, value in logged.items()}
        with capturedLogs() as events:
            end_input(stream)
            server.clock.advance(DELAY_S)
        assert '"http://x/~5" "Mozilla/5.0"' in "".join(event.get("lines", "") for event in events)

    @pytest.mark.skipif(
        sys.version_info >= (3, 14), reason="how many names are shared depends on the version of CPython"
    )
    def test_connection_of_a_stream_shares_the_names_of_its_attributes(self, server: Server) -> None:
        """An object that has others than the first ones of its class takes 600 bytes more."""
        reactor = TurnReactor()
        poller = Poller(cast(IReactor, reactor))
        server.site.connections_max = 100
        transports = []
        with ExitStack() as closing:
            listener = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(40):
                client = closing.enter_context(socket.create_connection(listener.getsockname()))
                ours, address = listener.accept()
                channel: Any = server.site.buildProtocol(None)
                transports.append(TCPTransport(ours, channel, address, None, 1, reactor, poller=poller))
                channel.makeConnection(transports[-1])
            client.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
            reactor.turn()
            assert channel.request is not None
            sizes = [sys.getsizeof(vars(kept)) for kept in (channel, channel.transport)]
            assert max(sizes) < 400, sizes
        for transport in transports:
            transport.connectionLost(GONE)

    def test_stream_ends_with_the_input_of_its_client(self, server: Server) -> None:
        stream = server.ask("/stream")
        stream.read()
        stream.reading = True
        end_input(stream)
        assert not stream.connected
        assert server.views.ended == 1
        assert not server.site.channels

    def test_stream_whose_client_has_ended_its_input_is_aborted_if_it_is_not_read(self, server: Server) -> None:
        stream = server.ask("/stream")
        end_input(stream)
        assert stream.connected
        server.clock.advance(LINGER_S)
        assert stream.aborted

    def test_stream_that_is_requested_after_the_end_of_input_ends_at_once(self, server: Server) -> None:
        transport = BufferedTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 1))
        connect(transport, server.site)
        transport.protocol.dataReceived(
            b"GET /short HTTP/1.1\r\nHost: x\r\n\r\nGET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        end_input(transport)
        for _ in range(5):
            server.clock.advance(0)
        assert not transport.connected
        assert server.views.ended == 1
        assert not server.site._streams  # noqa: SLF001 - nothing else shows a count that is too high

    def test_other_response_outlasts_the_input_of_its_client(self, server: Server) -> None:
        transport = server.ask("/body")
        end_input(transport)
        while transport.connected:
            transport.read()
            server.clock.advance(0)
        assert transport.value().endswith(BODY)
