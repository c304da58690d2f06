"""One connection: bytes in, one request after the other to the resource tree, answers out.

This takes the place of twisted.web's `HTTPChannel`; what it is to a `Request` it still is. Departures from stock
Twisted, beside those of `postd.protocol.http1`, which decodes every head and every body:

- A request that is refused gets a problem, 400 or a more exact status, and closes the connection; stock Twisted
  answers bytes of its own or nothing. The connection then lingers (RFC 9112 §9.6): closed at once, with unread input,
  it would be reset, and the client could lose the answer.
- A body over the limit is refused by its `Content-Length`, or when it passes the limit (reference: Post API): 413 goes
  out before the body is read and without `100 Continue`. Bodies are kept in memory, which the limit bounds.
- A request for a host that is not allowed is refused by its head, before its body is read
  (`postd.web.server.allowed_hosts`).
- A head, a body and a pause have each their time, however bytes trickle, and so has a client that takes no byte of its
  answer (`Limits`). One look a moment at all connections sees to that, not a timer for each request.
- Of pipelined requests one is taken in a turn of the reactor, none while the client does not read its answers, and no
  more is read of them than a little. Stock Twisted goes on reading behind a paused response, and answers all that one
  read has brought whether or not the answers can be sent.
- A client may end its side of the connection when it has sent all (`nc -N` does) and gets its answers. Stock Twisted
  takes that for a client that has gone. A client that has gone is then noticed only when it is written to: the work
  for a request must have an end of its own.
- When the server ends, responses carry `Connection: close`, requests in progress finish, and connections without a
  request are closed. Stock Twisted drops them all, with the answers that are not there yet.
"""

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import (
    IAddress,
    IConsumer,
    IDelayedCall,
    IHalfCloseableProtocol,
    IPushProducer,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers
from zope.interface import implementer

from postd.protocol.http1.chunked import ChunkedDecoder, body_too_large
from postd.protocol.http1.head import HEAD_END, Head, PartialHead, decode_head, decode_method_and_target
from postd.protocol.http1.syntax import HEAD_MAX_BYTES, HttpSyntaxError
from postd.twisted_private import NoPushProducer, canonical_header_name
from postd.web.errors import Problem
from postd.web.server.request import HttpRequest
from postd.web.server.socket_state import bytes_taken, end_output, has_unread, has_unsent

if TYPE_CHECKING:  # it imports this module
    from postd.web.server.factory import HttpFactory

LINGER_S = 2
"""How long a client that was refused may go on sending before it is cut off."""

INPUT_MAX_BYTES = 64 * 1024
"""How far a client may send ahead of its answers, give or take one read of the socket."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"Connection: close\r\n"

_NAMED = re.compile(rb"^X-Request-Id:[ \t]*([^\s]+)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class State(StrEnum):
    """What a connection does."""

    IDLE = "no request is there, nor the beginning of one"
    HEAD = "a head is read"
    BODY = "the body of a request is read"
    RESPONDING = "a request is answered; further input waits"
    LINGERING = "the last response is written and our side closed; further input is discarded (RFC 9112 §9.6)"
    CLOSING = "the connection closes when all output is sent; further input is discarded"
    LOST = "the connection is gone"


class Event(StrEnum):
    """What changes the state of a connection."""

    HEAD_BEGUN = "a part of a head has arrived"
    BODY_BEGUN = "a head with a body has arrived"
    REQUEST_READ = "a request is complete"
    RESPONSE_WRITTEN = "the response to it is written, and another request may follow"
    LINGER = "the last response is written, and the client may still be sending"
    CLOSE = "the last response is written, or there is none to write"
    CONNECTION_LOST = "the transport is closed"


OPEN = (State.IDLE, State.HEAD, State.BODY, State.RESPONDING)
"""The states in which input counts."""

_READING = (State.HEAD, State.BODY)

TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.IDLE, Event.HEAD_BEGUN): State.HEAD,
    (State.IDLE, Event.BODY_BEGUN): State.BODY,
    (State.HEAD, Event.BODY_BEGUN): State.BODY,
    (State.IDLE, Event.REQUEST_READ): State.RESPONDING,
    (State.HEAD, Event.REQUEST_READ): State.RESPONDING,
    (State.BODY, Event.REQUEST_READ): State.RESPONDING,
    (State.RESPONDING, Event.RESPONSE_WRITTEN): State.IDLE,
    **{(state, Event.LINGER): State.LINGERING for state in OPEN},
    **{(state, Event.CLOSE): State.CLOSING for state in OPEN},
    **{(state, Event.CONNECTION_LOST): State.LOST for state in State if state is not State.LOST},
}
"""All transitions; any other event in a state is an error of ours."""


@implementer(IHalfCloseableProtocol, IConsumer, IPushProducer)
class HttpConnection(Protocol):
    """An HTTP/1.1 connection.

    Attributes:
        deadline_s: when something must have happened, by the reactor's clock.
        group: what it counts as among the connections of one address, None if that has no limit.
        state: what it does.
    """

    transport: Any
    group: str | None = None
    request: HttpRequest | None = None
    state = State.IDLE
    _persistent = True
    _begun: PartialHead | None = None  # a head, of which not all is there
    _passed_empty_line = False  # before this head
    _head: Head | None = None  # whose body is coming in
    _chunks: ChunkedDecoder | None = None
    _started_s = 0.0  # when the last head was there
    _body_left = 0
    _input_ended = False
    _input_held = False
    _full = False  # the transport has enough to send
    _taken = 0  # what the client had taken by the last look
    _all_sent = False  # it has nothing more to take but the end
    _producer: Any = None
    _next_turn: IDelayedCall | None = None
    _addresses: tuple[IAddress, IAddress] | None = None

    def __init__(self, site: "HttpFactory") -> None:
        self.site = self.factory = site
        self._clock = site.reactor
        self._buffer = b""
        self._body: list[bytes] = []
        self.deadline_s = math.inf

    # From the transport

    def connectionMade(self) -> None:
        transport = self.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        input_: Any = IPushProducer(transport, NoPushProducer())
        self._input = input_
        self._input.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        self.deadline_s = self._clock.seconds() + self.site.limits.idle_s
        self.site.add(self)

    def peer_changed(self) -> bool:
        """Called when a PROXY header has named the client; return whether it may have one connection more."""
        may_stay = self.site.regroup(self, self.getPeer())
        if not may_stay:
            self._enter(Event.CLOSE)
            self.abort()
        return may_stay

    def dataReceived(self, data: bytes) -> None:
        # Over TLS bytes still come in after the connection was closed for a bad request.
        if self.state not in OPEN:
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self.state is not State.RESPONDING and self._next_turn is None and not self._full:
            self._take()
        if self._buffer or self._full:
            self._hold_input()

    def readConnectionLost(self) -> None:
        self._input_ended = True
        self._close_after_input()

    def writeConnectionLost(self) -> None:
        """Called when our own half-close is done."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._enter(Event.CONNECTION_LOST)
        self.deadline_s = math.inf
        request, self.request = self.request, None
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        try:
            if request is not None:
                request.connectionLost(reason)
        finally:
            self.site.forget(self)

    def pauseProducing(self) -> None:
        """Called when the client has much to read."""
        self._full = True
        if self.state in OPEN:
            self._taken = bytes_taken(self.transport)
            self.deadline_s = self._clock.seconds() + self.site.limits.idle_s
        if self._producer is not None:
            self._producer.pauseProducing()
        if self.request is None:
            self._hold_input()

    def resumeProducing(self) -> None:
        """Called when the client has read it."""
        self._full = False
        if self.state is State.RESPONDING:
            self.deadline_s = math.inf
        if self._producer is not None:
            self._producer.resumeProducing()
        if self._buffer and self.request is None:
            self._take_next_later()
        else:
            self._close_after_input()
        self._hold_input()
        if self.site.ending:
            self.close_if_idle()

    def stopProducing(self) -> None:
        """Called when the connection is lost."""
        if self._producer is not None:
            self._producer.stopProducing()

    # From the requests; the names are those that twisted.web's Request calls

    def addresses(self) -> tuple[IAddress, IAddress]:
        """Return the client's address and ours. They are final once a request is there: a PROXY header comes before."""
        if self._addresses is None:
            self._addresses = self.getPeer(), self.getHost()
        return self._addresses

    @cached_property
    def loopback_only(self) -> bool:
        """Whether it came through a listener that only this machine can reach."""
        ours = self.addresses()[1]
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
        """Write an answer of ours, or the beginning of one, at once; `headers` are fields beside those in `head`."""
        parts = [head]
        if headers is not None:
            parts += [b"%b: %b\r\n" % (name, value) for name, values in headers.getAllRawHeaders() for value in values]
        parts.append(self.site.date_line())
        if self.site.ending:
            self._persistent = False
        if not self._persistent:
            parts.append(_CLOSE)
        parts += (b"\r\n", body)
        self.transport.write(b"".join(parts))

    def writeHeaders(self, _version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:
        request = self.request
        own_fields = request.own_fields + request.fields_of_all() if request is not None else b""
        self.write_response(b"HTTP/1.1 %b %b\r\n%b" % (code, reason, own_fields), headers, b"")

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def writeSequence(self, data: list[bytes]) -> None:
        self.transport.write(b"".join(data))

    def registerProducer(self, producer: Any, streaming: bool) -> None:  # noqa: FBT001 - Twisted's signature
        if not streaming:
            raise ValueError("only producers that push are taken")
        self._producer = producer
        # The transport asks for a pause only once, which may have been before this producer was registered.
        if self._full:
            self._producer.pauseProducing()

    def unregisterProducer(self) -> None:
        self._producer = None

    def requestDone(self, _request: HttpRequest) -> None:
        """Called when an answer was written whole."""
        self.request = None
        if self.state is not State.RESPONDING:
            return
        self._enter(Event.RESPONSE_WRITTEN)
        if self.site.ending:  # since the head of the answer went out
            self._persistent = False
        if not self._persistent:
            self.loseConnection()
            return
        self.deadline_s = self._clock.seconds() + self.site.limits.idle_s
        if self._buffer:
            self._take_next_later()
        elif self._input_ended:
            self.loseConnection()
        if self._input_held:
            self._hold_input()

    def loseConnection(self) -> None:
        """Close the connection when all output is sent, or after `idle_s` without progress."""
        self._close(self.site.limits.idle_s)

    # From the site

    def close_if_idle(self) -> None:
        """Close the connection unless a request, or some of one, is there, or an answer is on its way."""
        is_idle = self.state is State.IDLE and not self._buffer and not self._full
        # Bytes that only the kernel has are the beginning of a request, too.
        if is_idle and not has_unread(self.transport):
            self._close_idle()

    def _close_idle(self) -> None:
        self._all_sent = not has_unsent(self.transport)
        if self._all_sent and not self.isSecure():
            end_output(self.transport)  # now: the transport would in a later turn, and lose what comes until then
        self._close(LINGER_S)  # TLS waits for the client to say that it has understood

    def pass_deadline(self) -> None:
        """Called when `deadline_s` has passed."""
        if self.state not in OPEN or self._full:
            taken, self._taken = self._taken, bytes_taken(self.transport)
            if self._taken > taken and not self._all_sent:  # slowly, but it goes on
                more_s = LINGER_S if self.state is State.LINGERING else self.site.limits.idle_s
                self.deadline_s = self._clock.seconds() + more_s
            else:
                self.abort()
        elif self.state in _READING:
            self._refuse(HttpSyntaxError(408, "The request took too long to come in."))
        elif self.state is State.IDLE and not has_unread(self.transport):
            self._close_idle()

    def abort(self) -> None:
        self.transport.abortConnection()

    # Requests

    def _enter(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _take(self) -> None:
        """Take a request from the buffer, if it has a complete one."""
        try:
            head = self._head or self._take_head()
            body = None if head is None else self._take_body()
        except HttpSyntaxError as error:
            self._refuse(error)
            return
        if head is None or body is None:
            return
        self._head = self._chunks = None
        self._persistent = head.persistent
        self.deadline_s = math.inf
        self._enter(Event.REQUEST_READ)
        self.request = HttpRequest(self, head, body, self._started_s)
        self.request.process()

    def _take_head(self) -> Head | None:
        buffer = self._buffer
        if buffer.startswith(b"\r") and not self._passed_empty_line:  # one is passed over (RFC 9112 §2.2)
            if len(buffer) < len(b"\r\n"):
                return None
            self._passed_empty_line = buffer.startswith(b"\r\n")
            if self._passed_empty_line:
                buffer = self._buffer = buffer[2:]
        end = buffer.find(HEAD_END)
        if end < 0:
            if buffer:
                self._await_head(buffer)
            return None
        head = decode_head(buffer[:end], canonical_header_name)
        self._started_s = self._clock.seconds()
        self._begun, self._passed_empty_line = None, False
        self._buffer = buffer[end + len(HEAD_END) :]
        hosts = self.site.hosts
        if hosts is not None and not hosts.allow(head, self):
            self._head = head
            hosts.refuse(head, self)
        if head.length != 0:
            self._begin_body(head)
        return head

    def _begin_body(self, head: Head) -> None:
        # Before the body is looked at: a refusal there is one of this request.
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
        if self._begun is None:
            self._begun = PartialHead(canonical_header_name)
            self._enter(Event.HEAD_BEGUN)
            self.deadline_s = self._clock.seconds() + self.site.limits.header_s
        self._begun.check(buffer)

    def _take_body(self) -> bytes | None:
        """Return the body once it is there."""
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
            # Of a head that is refused nothing counts but what it is called.
            named = _NAMED.findall(self._buffer[:HEAD_MAX_BYTES].partition(HEAD_END)[0])
            head = Head(method, target, target.partition(b"?")[0], 1, {b"X-Request-Id": named} if named else {})
        self._head = self._chunks = None
        self._buffer, self._body = b"", []
        HttpRequest(self, head, b"", self._clock.seconds()).fail(Problem(error.status, error.why))
        self._linger()

    def _linger(self) -> None:
        """Close our side, and discard for a while what still arrives (RFC 9112 §9.6)."""
        self.deadline_s = self._clock.seconds() + LINGER_S
        self._taken = bytes_taken(self.transport)
        self._input.resumeProducing()
        self.transport.unregisterProducer()
        if self._input_ended or self.isSecure():  # TLS says that this is the end, and goes on reading
            self.transport.loseConnection()
        else:  # half-closed, the client gets the whole answer and its end
            self.transport.loseWriteConnection()

    def _take_next_later(self) -> None:
        if self._next_turn is None:
            self._next_turn = self._clock.callLater(0, self._take_next)

    def _take_next(self) -> None:
        """Take the next of several requests that were sent without waiting for answers."""
        self._next_turn = None
        if self._full or self.state not in OPEN or self.state is State.RESPONDING:
            return  # resumeProducing comes back to it
        self._take()
        if self._next_turn is None and self.request is None:
            self._close_after_input()
        if self._input_held:
            self._hold_input()

    def _close_after_input(self) -> None:
        """Close when the client has said its last and has all its answers."""
        if not self._input_ended:
            return
        if self.state is State.LINGERING:  # our side is closed already
            self.transport.loseConnection()
        elif self.state is not State.RESPONDING and self._next_turn is None and not self._full:
            self.loseConnection()

    def _hold_input(self) -> None:
        """Stop reading from a client that does not read its answers, or sends ahead of them by more than a little."""
        hold = (self._full and self.request is None) or len(self._buffer) > INPUT_MAX_BYTES
        if self.state in OPEN and hold != self._input_held:
            self._input_held = hold
            if hold:
                self._input.pauseProducing()
            else:
                self._input.resumeProducing()

    def _close(self, within_s: float) -> None:
        if self.state not in OPEN:
            return
        may_follow = not (self._input_ended or self.isSecure())
        if may_follow and (self._buffer or has_unread(self.transport)):
            self._enter(Event.LINGER)  # closed with unread input, the client could lose its last answer
            self._linger()
            return
        self._enter(Event.CLOSE)
        self._taken = bytes_taken(self.transport)
        self.transport.unregisterProducer()
        self.deadline_s = self._clock.seconds() + within_s
        self.transport.loseConnection()
