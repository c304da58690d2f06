"""One HTTP/1.1 connection: decodes requests, one after the other, and writes responses.

`HttpConnection` takes the place of twisted.web's `HTTPChannel`, with the same interface to a `Request`. Stock
`HTTPChannel` has no hook for this strictness and these limits. docs/explanation/front.md lists the departures;
`tests/front/test_differential.py` compares the accepted requests with stock Twisted, and `test_timeouts.py`,
`test_connections.py`, `test_fair_shares.py` and `test_shutdown.py` beside it test the limits.
"""

import math
import re
from functools import cached_property
from typing import Any

from twisted.internet.interfaces import (
    IAddress,
    IConsumer,
    IHalfCloseableProtocol,
    IHandshakeListener,
    IPushProducer,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers
from zope.interface import implementer

from postd.errors import ServerBusyError
from postd.front.connection_states import OPEN, READING, TRANSITIONS, Event, State
from postd.front.interface import Site
from postd.front.request import HttpRequest
from postd.front.request_turns import LOW_COST, REQUEST_COST
from postd.front.response_memory import Holding
from postd.front.socket_state import (
    bytes_acknowledged,
    end_output,
    has_unread,
    segment_bytes,
    unacknowledged_bytes,
    unsent_bytes,
    unsent_memory,
)
from postd.http.errors import Problem
from postd.http.responses import NO_MEMORY, Parts, Response, StreamedResponse
from postd.http.views import respond
from postd.protocol.http1.chunked import ChunkedDecoder, body_too_large
from postd.protocol.http1.head import HEAD_END, Head, HeadDecoder, PartialHead, decode_method_and_target
from postd.protocol.http1.syntax import HEAD_MAX_BYTES, HttpSyntaxError
from postd.twisted_private import NoPushProducer, canonical_header_name

LINGER_S = 2
"""How long a client may go on sending after its request was refused, or stay silent when nothing that it needs is left
to send, before the connection is aborted."""

READ_MIN_BYTES_PER_S = 1024
"""How fast a client must read a response, on average of a whole `Limits.idle_s`."""

READ_WINDOW_MIN_S = 10
"""The shortest time over which the average is taken."""

INPUT_MAX_BYTES = 64 * 1024
"""Limit on input read ahead of the responses, within one read of the socket."""

# Members that are used for each request: Python 3.11 makes a call to look one up.
_RESPONDING = State.RESPONDING
_REQUEST_READ, _RESPONSE_WRITTEN = Event.REQUEST_READ, Event.RESPONSE_WRITTEN

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"Connection: close\r\n"

_NAMED = re.compile(rb"^X-Request-Id:[ \t]*([^\s]+)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


@implementer(IHalfCloseableProtocol, IHandshakeListener, IConsumer, IPushProducer)
class HttpConnection(Protocol):
    """An HTTP/1.1 connection.

    Attributes:
        deadline_s: when the current timeout ends, by the reactor's clock; infinite if none runs.
        group: the group in which it is counted, such as the peer's address; None if it has no limit.
    """

    transport: Any
    group: str | None = None
    _body_left = 0
    _body_skipped = False  # the body of this request, which is the last one, is not read
    _input_ended = False
    _input_held = False
    _output_paused = False  # the transport's buffer is full
    _acknowledged = 0  # bytes that the client had acknowledged at the last check
    _reading = (0.0, 0.0, 0.0)  # when it began, when it was checked last, and how many bytes it was behind then
    _all_sent = False  # nothing that the client needs is left to send
    _held: Holding | None = None  # the memory of a long body
    _held_output: Holding | None = None  # the memory of output that the transport has buffered
    _output_client = ""  # whose output is buffered, if the peer is a proxy
    _waits_as: str | None = None  # the client for which it waits to process its next request

    def __init__(self, site: Site) -> None:
        # All that most connections set (`postd.net.transports`).
        self.site = self.factory = site
        self._clock = site.reactor
        self._turns = site.turns
        self._heads = HeadDecoder(canonical_header_name)
        self._buffer = b""
        self._body: list[bytes] = []
        self.deadline_s = math.inf
        self.request: HttpRequest | None = None
        self.state = State.IDLE
        self._persistent = True
        self._partial_head: PartialHead | None = None  # a head that is not complete
        self._skipped_empty_line = False  # before this head
        self._head: Head | None = None  # of the request whose body is being read
        self._chunks: ChunkedDecoder | None = None
        self._started_s = 0.0  # when the last head was complete
        self._stream_client: str | None = None  # whose event stream the response is
        self._producer: Any = None

    # Called by the transport

    def connectionMade(self) -> None:
        transport = self.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        input_: Any = IPushProducer(transport, NoPushProducer())
        self._input = input_
        self._input.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        limits = self.site.limits
        # A handshake is the beginning of the first request.
        self.deadline_s = self._clock.seconds() + (limits.header_s if self.isSecure() else limits.idle_s)
        self.site.add(self)

    def handshakeCompleted(self) -> None:
        if self.state is State.IDLE:
            self.deadline_s = self._clock.seconds() + self.site.limits.idle_s

    def peer_changed(self) -> bool:
        """Called when a PROXY header has named the client; return whether the client is within its limit."""
        may_stay = self.site.regroup(self, self.getPeer())
        if not may_stay:
            self._enter(Event.CLOSE)
            self.abort()
        return may_stay

    def dataReceived(self, data: bytes) -> None:
        # Over TLS bytes still arrive after the connection was closed for a bad request.
        if self.state not in OPEN:
            return
        self._buffer = self._buffer + data if self._buffer else data
        turns = self._turns
        turns.left -= len(data)
        if self.state is not _RESPONDING and self._waits_as is None and not self._output_paused:
            if turns.left > 0:
                self._process()
            else:
                self._process_next_later()
        if self._buffer or self._output_paused:
            self._hold_input()

    def readConnectionLost(self) -> None:
        self._input_ended = True
        if self._stream_client is not None:
            self._all_sent = True  # the client does not read it any more
            self.loseConnection()
        self._close_after_input()

    def writeConnectionLost(self) -> None:
        """Called when this side is closed."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._enter(Event.CONNECTION_LOST)
        self.deadline_s = math.inf
        request, self.request = self.request, None
        self._output_paused = False
        self._end_response()
        self._free_output()
        if self._waits_as is not None:
            self._turns.discard(self._waits_as, self)
            self._waits_as = None
        try:
            if request is not None:
                request.connectionLost(reason)
        finally:
            self.site.forget(self)

    def pauseProducing(self) -> None:
        """Called when the kernel has not accepted all output."""
        self._output_paused = True
        self._hold_output()
        if self._stream_client is not None and not self._has_room():
            # It was admitted before it had much to send; its client may resume later. Not now: it is being written to.
            self._clock.callLater(0, self.abort)
        if self.state in OPEN:
            self._await_reading(self.site.limits.idle_s)
        if self._producer is not None:
            self._producer.pauseProducing()
        if self.request is None:
            self._hold_input()

    def resumeProducing(self) -> None:
        """Called when the kernel has accepted all output."""
        self._output_paused = False
        self._free_output()
        if self.state is _RESPONDING:
            self.deadline_s = math.inf
            if self._stream_client is not None:
                self.site.unwatch(self)
        elif self.state is State.IDLE:
            self.deadline_s = self._clock.seconds() + self.site.limits.idle_s
        if self._producer is not None:
            self._producer.resumeProducing()
        if self._buffer and self.request is None:
            self._process_next_later()
        else:
            self._close_after_input()
        self._hold_input()
        if self.site.draining:
            self.close_if_idle()

    def stopProducing(self) -> None:
        """Called when the connection is lost."""
        if self._producer is not None:
            self._producer.stopProducing()

    def _client_network(self) -> str:
        if self.group is not None:
            return self.group
        return self._output_client if self.request is None else self.request.client_network

    def _await_reading(self, within_s: float) -> None:
        """Begin the time in which the client must read some of the response."""
        now = self._clock.seconds()
        self._acknowledged = bytes_acknowledged(self.transport)
        self._reading = now, now, 0.0
        self.deadline_s = now + within_s
        if self._stream_client is not None:
            self.site.watch(self)

    def _reads_enough(self) -> bool:
        """Return whether the client has read since the last check, and fast enough."""
        before, self._acknowledged = self._acknowledged, bytes_acknowledged(self.transport)
        began_s, checked_s, behind = self._reading
        now = self._clock.seconds()
        behind = max(0.0, behind + READ_MIN_BYTES_PER_S * (now - checked_s) - (self._acknowledged - before))
        self._reading = began_s, now, behind
        if now - began_s < READ_WINDOW_MIN_S:
            return self._acknowledged > before
        # A client acknowledges in steps of up to a segment.
        return self._acknowledged > before and behind <= segment_bytes(self.transport)

    def _hold_output(self) -> None:
        """Count the memory of the output that the kernel has not accepted."""
        self._free_output()
        own_bytes, viewed, viewed_bytes = unsent_memory(self.transport)
        if self._held is not None:  # the buffer refers to what is held, and has no copy
            own_bytes = 0
        if own_bytes or viewed_bytes:
            memory = own_bytes, viewed, viewed_bytes
            self._held_output = self.site.memory.hold(self._client_network(), memory)

    def _has_room(self) -> bool:
        """Return whether the client holds no more memory than its share."""
        try:
            self.site.memory.require_room(self._client_network())
        except ServerBusyError:
            return False
        return True

    def _free_output(self) -> None:
        if self._held_output is not None:
            self._held_output.release()
            self._held_output = None

    def _free_body(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def _end_response(self) -> None:
        """Called when the response is written completely, or the connection is lost."""
        if self._stream_client is not None:
            self.site.end_stream(self._stream_client)
            self.site.watch(self)
            self._stream_client = None
        self._free_body()

    # Called by requests, most of it by twisted.web's Request

    @cached_property
    def addresses(self) -> tuple[IAddress, IAddress]:
        """The addresses of the client and of the server, from the PROXY header if there is one."""
        return self.getPeer(), self.getHost()

    @cached_property
    def loopback_only(self) -> bool:
        """Whether its listener can be reached only from this machine."""
        ours = self.addresses[1]
        return (getattr(ours, "host", ""), getattr(ours, "port", 0)) in self.site.local_addresses

    def getPeer(self) -> IAddress:
        peer: IAddress = self.transport.getPeer()
        return peer

    def getHost(self) -> IAddress:
        host: IAddress = self.transport.getHost()
        return host

    def isSecure(self) -> bool:
        return bool(ISSLTransport.providedBy(self.transport))

    def write_response(self, head: bytes, headers: Headers | None, body: bytes) -> None:
        """Write a response, or its beginning, in one piece; `headers` are fields beside the fields in `head`."""
        parts = [head]
        if headers is not None:
            parts += [b"%b: %b\r\n" % (name, value) for name, values in headers.getAllRawHeaders() for value in values]
        parts.append(self.site.date_line())
        if self.site.draining:
            self._persistent = False
        if not self._persistent:
            parts.append(_CLOSE)
        parts += (b"\r\n", body)
        self.transport.write(b"".join(parts))

    def writeHeaders(self, _version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:
        request = self.request
        extra_headers = request.extra_headers + request.common_headers() if request is not None else b""
        self.write_response(b"HTTP/1.1 %b %b\r\n%b" % (code, reason, extra_headers), headers, b"")

    def hold(self, response: Response | StreamedResponse) -> None:
        """Hold the memory of the response that is about to be sent (`postd.front.interface.Connection`)."""
        assert self.request is not None
        client, memory = self.request.client_network, response.memory
        self.site.memory.require_room(client, memory)
        if isinstance(response, StreamedResponse) and response.live is not None:
            self.site.begin_stream(client)
            self.site.unwatch(self)
            self._stream_client = client
            self._heads.forget()
            if self._input_ended:
                self._clock.callLater(0, self.readConnectionLost)
        elif memory != NO_MEMORY:
            self._held = self.site.memory.hold(client, memory)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def writeSequence(self, data: Parts) -> None:
        self.transport.writeSequence(data)

    def registerProducer(self, producer: Any, streaming: bool) -> None:  # noqa: FBT001 - Twisted's signature
        if not streaming:
            raise ValueError("only push producers are supported")
        self._producer = producer
        # The transport asks for a pause only once, which may have been before this producer was registered.
        if self._output_paused:
            self._producer.pauseProducing()

    def unregisterProducer(self) -> None:
        self._producer = None

    def requestDone(self, request: HttpRequest) -> None:
        """Called when a response is written completely."""
        self.request = None
        if self.group is None and unsent_bytes(self.transport):
            self._output_client = request.client_network
        was_stream = self._stream_client is not None
        if self._held is not None or was_stream:
            self._end_response()
        if self.state is not _RESPONDING:
            return
        self._enter(_RESPONSE_WRITTEN)
        if self.site.draining:  # since the head of the response was written
            self._persistent = False
        if not self._persistent:
            self._all_sent = was_stream  # its client resumes elsewhere: it is not waited for
            self.loseConnection()
            return
        self.deadline_s = self._clock.seconds() + self.site.limits.idle_s
        if self._buffer:
            self._process_next_later()
        elif self._input_ended:
            self.loseConnection()
        if self._input_held:
            self._hold_input()

    def loseConnection(self) -> None:
        """Close the connection when all output is sent, or abort it after `idle_s` without progress.

        If nothing that the client needs is left to send, abort it after `LINGER_S`.
        """
        if self.state not in OPEN:
            return
        may_follow = not (self._input_ended or self.isSecure())
        if may_follow and (self._buffer or self._body_skipped or has_unread(self.transport)):
            self._enter(Event.LINGER)  # closed with unread input, the client could lose the last response
            self._linger()
            return
        self._enter(Event.CLOSE)
        self._await_reading(LINGER_S if self._all_sent else self.site.limits.idle_s)
        self._hold_output()
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    # Called by the factory

    def close_if_idle(self) -> None:
        """Close the connection unless a request has begun or a response is being sent.

        If it is closing, and its client has all, the client's end is waited for at most `LINGER_S` from now.
        """
        is_idle = self.state is State.IDLE and not self._buffer and not self._output_paused
        # Bytes that only the kernel has yet are the beginning of a request, too.
        if is_idle and not has_unread(self.transport):
            self._close_idle()
        elif self.state in (State.CLOSING, State.LINGERING) and not unacknowledged_bytes(self.transport):
            self._all_sent = True  # only the client's end is missing
            self.deadline_s = min(self.deadline_s, self._clock.seconds() + LINGER_S)

    def _close_idle(self) -> None:
        # The kernel goes on sending for a plain connection. TLS waits for the client's close_notify, or is aborted.
        left = unacknowledged_bytes if self.isSecure() else unsent_bytes
        self._all_sent = not left(self.transport)
        if self._all_sent and not self.isSecure():
            end_output(self.transport)  # now: the transport would do so later, and lose what arrives until then
        self.loseConnection()

    def pass_deadline(self) -> None:
        """Called when `deadline_s` has passed."""
        if self.state not in OPEN or self._output_paused:
            now, idle_s, lingers = self._clock.seconds(), self.site.limits.idle_s, self.state is State.LINGERING
            due_s = self._reading[1] + idle_s  # since the last check
            if lingers and now < due_s and unacknowledged_bytes(self.transport):
                self.deadline_s = due_s  # the client may pause while it reads
            elif not self._all_sent and self._reads_enough():
                self.deadline_s = now + (LINGER_S if lingers else idle_s)
            else:
                self.abort()
        elif self.state in READING:
            self._refuse(HttpSyntaxError(408, "The request was not received in time."))
        elif self.state is State.IDLE and not has_unread(self.transport):
            self._close_idle()

    def abort(self) -> None:
        self.transport.abortConnection()

    # Requests

    def _enter(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _process(self) -> None:
        """Process the next request in the buffer, if it is complete."""
        turns = self._turns
        turns.left -= REQUEST_COST
        if turns.left <= LOW_COST:
            turns.schedule()
        try:
            head = self._head or self._decode_head()
            body = None if head is None else self._decode_body()
            if head is not None and body is not None:
                self._head = self._chunks = None
                self._persistent = head.persistent
                self.deadline_s = math.inf
                self._enter(_REQUEST_READ)
                self.request = HttpRequest(self, head, body, self._started_s)
                self.request.process()
        except HttpSyntaxError as error:
            self._refuse(error)

    def _decode_head(self) -> Head | None:
        buffer = self._buffer
        if buffer.startswith(b"\r") and not self._skipped_empty_line:  # one is skipped (RFC 9112 §2.2)
            if len(buffer) < len(b"\r\n"):
                return None
            self._skipped_empty_line = buffer.startswith(b"\r\n")
            if self._skipped_empty_line:
                buffer = self._buffer = buffer[2:]
        end = buffer.find(HEAD_END)
        if end < 0:
            if buffer:
                self._await_head(buffer)
            return None
        head = self._heads.decode(buffer[:end])
        self._started_s = self._clock.seconds()
        self._partial_head, self._skipped_empty_line = None, False
        self._buffer = buffer[end + len(HEAD_END) :]
        hosts = self.site.hosts
        if hosts is not None and not hosts.allow(head, self):
            self._head = head
            hosts.refuse(head, self)
        if head.length != 0:
            if head.path in self.site.bodiless_paths:
                # A proxy may describe a request with its fields and send no body. What follows is no next request.
                self._body_skipped, head.persistent = True, False
            else:
                self._begin_body(head)
        return head

    def _begin_body(self, head: Head) -> None:
        # Set first: if the body is refused, the response is logged with this head.
        self._head = head
        self._enter(Event.BODY_BEGUN)
        self.deadline_s = self._started_s + self.site.limits.body_s
        max_body_bytes = self.site.limits.max_body_bytes
        if head.length is None:
            self._chunks = ChunkedDecoder(max_body_bytes, canonical_header_name)
        else:
            self._body_left = head.length
            if head.length > max_body_bytes:
                raise body_too_large(max_body_bytes)
        if head.expects_continue and not self._buffer:
            self.transport.write(_CONTINUE)

    def _await_head(self, buffer: bytes) -> None:
        if self._partial_head is None:
            self._partial_head = PartialHead(canonical_header_name)
            self._enter(Event.HEAD_BEGUN)
            self.deadline_s = self._clock.seconds() + self.site.limits.header_s
        self._partial_head.check(buffer)

    def _decode_body(self) -> bytes | None:
        """Return the body once it is complete, None before."""
        if self._head is None:
            return b""
        if self._chunks is not None:
            self._body += self._chunks.feed(self._buffer)
            self._buffer = self._chunks.unused_data if self._chunks.finished else b""
            if not self._chunks.finished:
                return None
        else:
            piece = self._buffer[: self._body_left]
            self._buffer = self._buffer[len(piece) :]
            self._body.append(piece)
            self._body_left -= len(piece)
            if self._body_left:
                return None
        body, self._body = b"".join(self._body), []
        return body

    def _refuse(self, error: HttpSyntaxError) -> None:
        self._enter(Event.LINGER)
        self._persistent = False
        head = self._head
        if head is None:
            method, target = decode_method_and_target(self._buffer)
            # Only the X-Request-Id of a malformed head is used.
            named = _NAMED.findall(self._buffer[:HEAD_MAX_BYTES].partition(HEAD_END)[0])
            head = Head(method, target, target.partition(b"?")[0], 1, {b"X-Request-Id": named} if named else {})
        request = HttpRequest(self, head, b"", self._clock.seconds())
        is_known = self._head is not None  # only its body or its host is refused
        self._head = self._chunks = None
        self._buffer, self._body = b"", []
        problem = Problem(error.status, error.why)
        if is_known:
            request.route, view = self.site.refuse(head.method, head.path, problem)
            respond(request, view(request))
        else:
            request.fail(problem)
        self._linger()

    def _linger(self) -> None:
        """Close this side, and discard further input for a while (RFC 9112 §9.6)."""
        self._await_reading(LINGER_S)
        self._input.resumeProducing()
        self._hold_output()
        self.transport.unregisterProducer()
        if self._input_ended or self.isSecure():  # TLS sends close_notify, and goes on reading
            self.transport.loseConnection()
        else:  # half-closed: the client gets the whole response and its end
            self.transport.loseWriteConnection()

    def _process_next_later(self) -> None:
        if self._waits_as is None:
            self._waits_as = self.group or ""
            self._turns.add(self._waits_as, self)

    def process_next(self) -> None:
        """Process the next pipelined request."""
        self._waits_as = None
        if self._output_paused or self.state not in OPEN or self.state is _RESPONDING:
            return  # resumeProducing continues
        self._process()
        if self._waits_as is None and self.request is None:
            self._close_after_input()
        if self._input_held:
            self._hold_input()

    def _close_after_input(self) -> None:
        """Close the connection if the client has half-closed it and has all its responses."""
        if not self._input_ended:
            return
        if self.state is State.LINGERING:  # our side is closed already
            self.transport.loseConnection()
        elif self.state is not _RESPONDING and self._waits_as is None and not self._output_paused:
            self.loseConnection()

    def _hold_input(self) -> None:
        """Pause reading while the client does not read responses or has sent `INPUT_MAX_BYTES` ahead; else resume."""
        hold = (self._output_paused and self.request is None) or len(self._buffer) > INPUT_MAX_BYTES
        if self.state in OPEN and hold != self._input_held:
            self._input_held = hold
            if hold:
                self._input.pauseProducing()
            else:
                self._input.resumeProducing()
