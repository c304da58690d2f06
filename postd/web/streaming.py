"""Sending more than one write should hold, at the pace of the client."""

from types import TracebackType
from typing import Any, Self

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer


@implementer(IPushProducer)
class Flow:
    """Tells a coroutine that writes to a request when to go on. Use it as an asynchronous context manager.

    The transport says `pauseProducing` once more than its buffer (64 KiB) is waiting to be sent, and
    `resumeProducing` when that has gone out.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._paused: Deferred[None] | None = None
        self._stopped = False

    async def __aenter__(self) -> Self:
        self._request.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._stopped:
            self._request.unregisterProducer()

    async def drained(self) -> None:
        """Return as soon as the client has taken enough for more to be written."""
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
        # The connection is lost; the router cancels the coroutine.
        self._stopped = True
