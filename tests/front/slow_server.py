"""A server whose responses, clients and clock a test controls, for tests of time limits and of shutdown."""

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import alsoProvides

from postd.front.connection import HttpConnection
from tests.helpers import MemoryTransport, connect, make_site

BUFFER_BYTES = 64 * 1024
"""The size of the write buffer above which Twisted's transports pause their producer."""

STEP_S = 1 / 16
"""The step of the clock: a binary fraction, so that a sum of steps is exact."""

GET = b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n"
AT_ONCE = {b"/at-once": b"done", b"/long": b"x" * 2 * BUFFER_BYTES}


class Slow(Resource):
    """A resource that responds when a test calls `answer`; `/at-once` and `/long` get their response at once."""

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
        """Respond to all pending requests."""
        requests, self.requests = self.requests, []
        for request in requests:
            request.setHeader(b"Content-Length", b"%d" % len(body))
            request.write(body)
            request.finish()


class BufferedTransport(MemoryTransport):
    """A transport whose client reads only while `reading` is true; other output is buffered.

    Over TLS the client does not answer the close_notify alert.
    """

    reading = True
    buffered = 0

    def write(self, data: bytes) -> None:
        super().write(data)
        if not self.reading:
            self.buffered += len(data)
            if self.buffered > BUFFER_BYTES and self.producer is not None:
                self.producer.pauseProducing()

    def writeSequence(self, data: Any) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        self.disconnecting = True
        if self.aborted or not (self.buffered or ISSLTransport.providedBy(self)):
            super().loseConnection()

    def read(self) -> None:
        """Let the client read all buffered output."""
        self.buffered = 0
        if self.disconnecting:
            super().loseConnection()
        elif self.producer is not None:
            self.producer.resumeProducing()

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: FBT001 - Twisted's signature
        """Called for each connection that provides TCP."""


class SlowServer:
    """A server, its connections and its clock; `limits` are fields of `Limits`."""

    def __init__(self, **limits: float) -> None:
        self.clock = Clock()
        self.slow = Slow()
        self.site = make_site(self.slow, clock=self.clock, **limits)
        self.ended = False

    def connect(self, *, tls: bool = False) -> tuple[BufferedTransport, HttpConnection]:
        transport = BufferedTransport()
        if tls:
            alsoProvides(transport, ISSLTransport)
        return transport, connect(transport, self.site)

    def wait(self, s: float, meanwhile: Callable[[], None] | None = None) -> None:
        """Advance the clock; `meanwhile` is called every half second."""
        for step in range(round(s / STEP_S)):
            if meanwhile is not None and step % 8 == 0:
                meanwhile()
            self.clock.advance(STEP_S)

    def end(self, *, within_s: float) -> None:
        """Begin the shutdown; `ended` is set when it is complete."""

        def note(_: None) -> None:
            self.ended = True

        self.site.draining = True
        Deferred.fromCoroutine(self.site.drain(within_s=within_s)).addCallback(note)
