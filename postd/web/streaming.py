"""Sending large bodies with back-pressure: writing pauses until the client has read."""

from types import TracebackType
from typing import Self

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from postd.web.interface import Request

WRITE_MAX_BYTES = 64 * 1024
"""Size limit of one write: Twisted's transports pause the producer above this."""


@implementer(IPushProducer)
class PacedWriter:
    """Writes to a request as fast as its client reads; an asynchronous context manager."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._paused: Deferred[None] | None = None

    async def __aenter__(self) -> Self:
        self._request.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._request.channel is not None:  # else the connection is lost
            self._request.unregisterProducer()

    async def write(self, data: bytes) -> None:
        """Write, and return once the transport accepts more."""
        for start in range(0, len(data), WRITE_MAX_BYTES):
            self._request.write(data[start : start + WRITE_MAX_BYTES])
            if self._paused is not None:
                await self._paused

    def pauseProducing(self) -> None:
        if self._paused is None:
            self._paused = Deferred()

    def resumeProducing(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None:
            paused.callback(None)

    def stopProducing(self) -> None:
        """Called when the connection is lost; the request then cancels the writing coroutine."""
