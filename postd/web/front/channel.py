"""One connection, and one request on it.

Departures from stock Twisted:

- A body over the limit is refused as soon as its `Content-Length`, or the count of its bytes, tells (contract 2): 413
  goes out before the body is read and without `100 Continue`. The connection then lingers (RFC 9112 §9.6): closed at
  once, with unread input, it would be reset, and the client could lose the answer.
- A `Transfer-Encoding` other than chunked is a bad request, and so is HTTP/1.1 with no `Host` or with two (RFC 9112
  §3.2, §6.1); a target in absolute form is taken (§3.2.2). The other doubts of RFC 9112 are as stock Twisted has them.
- Of pipelined requests one is taken in a turn of the reactor, none while the client does not read its answers, and no
  more is read of them than a little. Stock Twisted goes on reading behind a paused response, answers all that one read
  has brought whether or not the answers can be sent, and copies the rest for each.
- A client may end its side of the connection when it has sent all (`nc -N` does) and gets its answers. Stock Twisted
  takes that for a client that has gone.
- Bodies are kept in memory, which the limit bounds; stock Twisted makes a temporary file from 100,000 bytes on.
- No `Server` field with a version in it (contract 7).
- The access log goes out in bundles: an event of Twisted's log for each line takes a third of a request's time.
- When the server ends, answers carry `Connection: close`, what is under way is finished, and connections without a
  request are closed. Stock Twisted drops them all, with the answers that are not there yet.
- HTTP/1.1 only: after ALPN to h2 Twisted changes to a channel that has none of these limits.
"""

import re
from functools import lru_cache
from io import BytesIO
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IAddress, IDelayedCall, IHalfCloseableProtocol, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.http_headers import Headers
from twisted.web.resource import IResource
from twisted.web.server import Request, Site
from zope.interface import implementer

from postd.errors import without_tokens
from postd.web.errors import Problem, encode_problem

LINGER_S = 2
"""How long a client that was refused may go on sending before it is cut off."""

INPUT_MAX_BYTES = 64 * 1024
"""How far a client may send ahead of its answers, give or take one read of the socket."""

ACCESS_LOG_DELAY_S = 0.1
"""How long lines of the access log wait for others, to be one event of the log together."""

_LENGTH_MAX_DIGITS = 1000
_ABSOLUTE_FORM = re.compile(rb"^https?://[^/]*", re.IGNORECASE)

_SECRET = re.compile(r"([?&;#](?:password|access_token|id_token|token)=)[^&;\s\"#]+", re.IGNORECASE)

_log = Logger()
_access_log = Logger("postd.access")


class PostdRequest(Request):
    """A request whose body is counted while it comes in; `username` is who it was found to come from."""

    defaultContentType = None
    username: str | None = None
    channel: Any
    _body_room = 0

    def gotLength(self, length: int | None) -> None:
        """Called with the `Content-Length`, None if there is none, before any of the body."""
        limit = self.channel.site.max_body_bytes
        if length is not None and length > limit:
            raise _too_large(limit)
        self._body_room = limit
        self.content = BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        self._body_room -= len(data)
        if self._body_room < 0:
            raise _too_large(self.channel.site.max_body_bytes)
        super().handleContentChunk(data)

    def process(self) -> None:
        """Find the resource and let it render: the stock way, less `Server` and the hooks that we don't use."""
        self.site = self.channel.site
        self.setHeader(b"Date", http.datetimeToString())
        if self.path == b"*":
            self._handleStar()
            return
        if not self.path.startswith(b"/"):
            self.path = _ABSOLUTE_FORM.sub(b"", self.path) or b"/"
        self.prepath = []
        self.postpath = [unquote_to_bytes(segment) for segment in self.path[1:].split(b"/")]
        self.render(self.site.getResourceFor(self))

    def refuse(self, method: bytes, uri: bytes, version: bytes, problem: Problem) -> None:
        """Answer without having received the whole request."""
        self.method, self.uri, self.clientproto = method, uri, version
        self.path = uri.partition(b"?")[0]
        self.setHeader(b"Date", http.datetimeToString())
        self.setHeader(b"Connection", b"close")
        self.write(encode_problem(self, problem))
        self.finish()


def _too_large(limit: int) -> Problem:
    return Problem(413, f"The body has more than {limit} bytes.")


@implementer(IHalfCloseableProtocol)
class Channel(http.HTTPChannel):
    """An HTTP/1.1 connection that can refuse a request while it is still coming in."""

    site: "PostdSite"
    _refused = False
    _input_ended = False
    _next_turn: IDelayedCall | None = None

    def connectionMade(self) -> None:
        super().connectionMade()
        self.site.channels.add(self)

    def headerReceived(self, line: bytes) -> bool:
        name, _, value = line.partition(b":")
        # Stock Twisted passes over "identity" and takes the body for the next request.
        hidden = name.lower() == b"transfer-encoding" and value.strip(b" \t").lower() != b"chunked"
        # More digits than int() takes; far more than any limit of ours.
        endless = name.lower() == b"content-length" and len(value) > _LENGTH_MAX_DIGITS
        if hidden or endless:
            self._respondToBadRequestAndDisconnect()
            return False
        received: bool = super().headerReceived(line)
        return received

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: ARG002 - Twisted's signature
        """Called with the beginning of a line that is too long; stock Twisted closes without an answer."""
        if self.requests:
            self._refuse(Problem(431, "A field of the header is too large."))
        else:
            self._respondToBadRequestAndDisconnect()

    def allHeadersReceived(self) -> None:
        hosts = self.requests[-1].requestHeaders.getRawHeaders(b"Host", [])
        if len(hosts) > 1 or (not hosts and self._version == b"HTTP/1.1"):  # RFC 9112 §3.2
            self._refuse(Problem(400, "The request must have one Host field."))
            return
        try:
            super().allHeadersReceived()
        except Problem as problem:
            self._refuse(problem)

    def allContentReceived(self) -> None:
        if not self._refused:
            super().allContentReceived()

    def rawDataReceived(self, data: bytes) -> None:
        if self._refused:
            return
        if self._handlingRequest:
            self._dataBuffer.append(data)
            return
        try:
            super().rawDataReceived(data)
        except Problem as problem:
            self._refuse(problem)

    def dataReceived(self, data: bytes) -> None:
        # Over TLS bytes still come in after the connection was closed for a bad request.
        transport: Any = self.transport
        if not (self._refused or transport.disconnecting):
            super().dataReceived(data)
            self._hold_input()

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:
        if self.site.ending:
            self.persistent = False
            headers.setRawHeaders(b"Connection", [b"close"])
        super().writeHeaders(version, code, reason, headers)

    def requestDone(self, request: Request) -> None:
        if self.site.ending:  # since the head of the answer went out
            self.persistent = False
        self.paused = True  # the line receiver's word: what it has got it keeps
        super().requestDone(request)
        if self._buffer:
            self._take_next_later()
        else:
            self.paused = False
            self._close_after_input()
        self._hold_input()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        if self.paused:
            self._take_next_later()
        self._hold_input()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        self.site.forget(self)

    def close_if_idle(self) -> None:
        """Close the connection unless a request, or some of one, is there, or an answer is on its way."""
        transport: Any = self.transport
        if self.requests or self._buffer or self.paused or self._refused or transport.disconnecting:
            return
        self.loseConnection()
        if self.isSecure():  # TLS waits for the client to say that it has understood
            self._abortingCall = self.callLater(LINGER_S, self.forceAbortClient)

    def abort(self) -> None:
        transport: Any = self.transport
        transport.abortConnection()

    def _take_next_later(self) -> None:
        if self._next_turn is None and self.persistent:
            self._next_turn = self.callLater(0, self._take_next)

    def _take_next(self) -> None:
        """Take the next of several requests that were sent without waiting for answers."""
        self._next_turn = None
        if self._waitingForTransport:
            return  # resumeProducing comes back to it
        self.paused = False
        self.dataReceived(b"")
        if not self.paused and not self._handlingRequest:
            self._networkProducer.resumeProducing()
            self._close_after_input()

    def readConnectionLost(self) -> None:
        self._input_ended = True
        self._close_after_input()

    def writeConnectionLost(self) -> None:
        """Called when our own half-close is done."""

    def _close_after_input(self) -> None:
        """Close when the client has said its last and has all its answers."""
        if not self._input_ended:
            return
        if self._refused:  # our side has been closed already
            transport: Any = self.transport
            transport.loseConnection()
        elif not self._handlingRequest and not self.paused:
            self.loseConnection()

    def _hold_input(self) -> None:
        """Stop reading from a client that does not read its answers, or sends ahead of them by more than a little."""
        unread_answers = self._waitingForTransport and not self._handlingRequest
        if unread_answers or len(self._buffer) + sum(map(len, self._dataBuffer)) > INPUT_MAX_BYTES:
            self._networkProducer.pauseProducing()

    def registerProducer(self, producer: Any, streaming: bool) -> None:  # noqa: FBT001 - Twisted's signature
        super().registerProducer(producer, streaming)
        # TLS asks for a pause once; who comes later would never hear of it.
        if self._waitingForTransport and streaming:
            producer.pauseProducing()

    def _refuse(self, problem: Problem) -> None:
        self._refused = True
        self.persistent = False
        self.requests[-1].refuse(self._command, self._path, self._version, problem)

    def loseConnection(self) -> None:
        if not self._refused:
            super().loseConnection()
            return
        # Half-closed, the client gets the whole answer and its end. TLS has no half-close: there it reads
        # `Connection: close` and the length.
        self.setTimeout(None)
        transport: Any = self.transport
        transport.unregisterProducer()
        if not self.isSecure():
            transport.loseWriteConnection()
        self._abortingCall = self.callLater(LINGER_S, self.forceAbortClient)


def _access_line(date: str | None, request: Any) -> str:
    """Return the line of the access log: the combined form of Apache, with the user, without secrets.

    A password or a token has no place in a target, but programs have put them there; the log is not to keep them.
    """
    line = without_tokens(http.combinedLogFormatter(date, request))
    if "=" in line:
        line = _SECRET.sub(r"\1[redacted]", line)
    if request.username is not None:  # last: who it was is told, whatever the name looks like
        line = line.replace(" - - ", f" - {_quoted(request.username)} ", 1)
    return line


@lru_cache(maxsize=1024)
def _quoted(username: str) -> str:
    return quote(username, safe="@+:/#")


class PostdSite(Site):
    """The factory of connections.

    Args:
        root: the resource tree.
        max_body_bytes: the largest body of a request.
        idle_s: seconds after which a connection without a request is closed.
        reactor: its clock.
    """

    requestFactory = PostdRequest
    reactor: IReactorTime
    noisy = False

    def __init__(self, root: IResource, *, max_body_bytes: int, idle_s: float, reactor: IReactorTime) -> None:
        # Stock Twisted parses the body of every POST that might be a form, with the library for e-mail headers.
        super().__init__(root, timeout=idle_s, reactor=reactor, parsePOSTFormSubmission=False)
        self.max_body_bytes = max_body_bytes
        self.channels: set[Channel] = set()
        self.ending = False
        self._all_closed: Deferred[None] | None = None
        self._access_lines: list[str] = []
        self._stopped = False

    def stopFactory(self) -> None:
        self._stopped = True
        self._write_access_lines()
        super().stopFactory()

    def log(self, request: http.Request) -> None:
        """Note a request for the access log."""
        if not self._access_lines:
            self.reactor.callLater(ACCESS_LOG_DELAY_S, self._write_access_lines)
        self._access_lines.append(_access_line(self._logDateTime, request))
        if self._stopped:  # nobody would come for it later
            self._write_access_lines()

    def _write_access_lines(self) -> None:
        lines, self._access_lines = self._access_lines, []
        if lines:
            _access_log.info("{lines}", lines="\n".join(lines))

    def buildProtocol(self, _addr: IAddress | None) -> Any:
        # Without the proxy that stock Twisted puts around each channel to be ready for h2.
        channel: Any = Channel()
        channel.factory = channel.site = self
        channel.requestFactory = self.requestFactory
        channel.timeOut = self.timeOut
        channel.callLater = self.reactor.callLater
        return channel

    def forget(self, channel: Channel) -> None:
        """Called when a connection is gone."""
        self.channels.discard(channel)
        if self._all_closed is not None and not self.channels:
            closed, self._all_closed = self._all_closed, None
            closed.callback(None)

    def begin_end(self) -> None:
        """From now on each answer is the last of its connection."""
        self.ending = True

    async def finish(self, *, within_s: float) -> None:
        """Close the connections that have no request, and return when all others have had their answers.

        Args:
            within_s: what is still under way after so many seconds is cut off.
        """
        for channel in list(self.channels):
            channel.close_if_idle()
        if not self.channels:
            return
        self._all_closed = Deferred()
        try:
            await self._all_closed.addTimeout(within_s, self.reactor)
        except DeferredTimeoutError:
            self._all_closed = None
            left = list(self.channels)
            _log.warn("{count} connections are cut off, after {s} s", count=len(left), s=within_s)
            for channel in left:
                channel.abort()

    def acceptableProtocols(self) -> list[bytes]:
        return [b"http/1.1"]
