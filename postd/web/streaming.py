"""Sending more than one write should hold, at the pace of the client."""

from types import TracebackType
from typing import Any, Self

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

PIECE_BYTES = 64 * 1024
"""What one write holds at the most: Twisted's transports ask for a pause once more than this is waiting."""


@implementer(IPushProducer)
class Flow:
    """Writes to a request as fast as its client reads. Use it as an asynchronous context manager."""

    def __init__(self, request: Any) -> None:
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

    @property
    def paused(self) -> bool:
        """Whether the client has yet to take what was written."""
        return self._paused is not None

    async def write(self, data: bytes) -> None:
        """Write, and return as soon as the client has taken enough for more to be written."""
        for start in range(0, len(data), PIECE_BYTES):
            self._request.write(data[start : start + PIECE_BYTES])
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
        """Called when the connection is lost; the request cancels what writes."""
