"""A server whose answers, clients and clock wait for a test: for limits of time, and for its end."""

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import alsoProvides

from postd.web.server.connection import HttpConnection
from tests.helpers import MemoryTransport, connect, make_site

BUFFER_BYTES = 64 * 1024
"""What waits for a client before Twisted's transports ask for a pause."""

STEP_S = 1 / 16
"""How far the clock goes at once; a sum of many such steps is exact."""

GET = b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n"
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
    """A TCP connection whose client reads, or does not; what was written waits for it as it does in a transport.

    Over TLS the client does not answer the end of the connection.
    """

    reading = True
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

    def read(self) -> None:
        """Let the client take all that waits for it."""
        self.waiting = 0
        if self.disconnecting:
            super().loseConnection()
        elif self.producer is not None:
            self.producer.resumeProducing()

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: FBT001 - Twisted's signature
        """Called for each connection that provides TCP."""


class SlowServer:
    """A server with connections, and the clock; `limits` are fields of `Limits`."""

    def __init__(self, **limits: float) -> None:
        self.clock = Clock()
        self.slow = Slow()
        self.site = make_site(self.slow, clock=self.clock, **limits)
        self.ended = False

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

    def end(self, *, within_s: float) -> None:
        """Begin the end; `ended` is set as soon as it is over."""

        def note(_: None) -> None:
            self.ended = True

        self.site.draining = True
        Deferred.fromCoroutine(self.site.drain(within_s=within_s)).addCallback(note)
