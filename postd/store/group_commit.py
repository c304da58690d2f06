"""Group commit: what is asked for while one batch is being written goes into the next, together.

Nothing waits for a timer: an idle store takes a write up at the end of the reactor's turn, a busy one takes all that
has come in while the last batch was made durable. One thread, one batch at a time, one call back to the reactor.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from postd.errors import PostdError, StoreBusyError, StoreUnavailableError

QUEUE_MAX = 4096
"""Writes that may wait; one more is refused."""

BATCH_MAX = 512
"""Writes in one transaction."""

WriteT = TypeVar("WriteT")

Outcome = object | PostdError
"""What became of one write: its result, or why it alone was refused."""


class GroupCommit(Generic[WriteT]):
    """Hands batches of writes to a function that stores them, and each result back to whom it belongs.

    Args:
        commit: stores a batch and returns an outcome for each write, in order. It runs in a thread. What it raises,
            all the batch and all that waits behind it is failed with: they would meet the same wall, later.
        in_thread: runs a function in that thread.
        clock: the reactor.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[WriteT]], Sequence[Outcome]],
        *,
        in_thread: Callable[..., Deferred[Any]],
        clock: IReactorTime,
    ) -> None:
        self._commit = commit
        self._in_thread = in_thread
        self._clock = clock
        self._waiting: deque[tuple[WriteT, Deferred[Any]]] = deque()
        self._under_way = False
        self._closed = False
        self._idle: list[Deferred[None]] = []

    def submit(self, write: WriteT) -> Deferred[Any]:
        """Queue a write; the Deferred fires when it is durable.

        Raises:
            StoreBusyError: `QUEUE_MAX` writes are waiting already.
            StoreUnavailableError: the store is stopping.
        """
        if self._closed:
            raise StoreUnavailableError("the store is being closed")
        if len(self._waiting) >= QUEUE_MAX:
            raise StoreBusyError(f"{QUEUE_MAX} writes are waiting")
        result: Deferred[Any] = Deferred()
        self._waiting.append((write, result))
        if not self._under_way:
            self._under_way = True
            self._clock.callLater(0, self._next_batch)
        return result

    async def close(self) -> None:
        """Refuse what comes from now on; return when all that was taken on is done."""
        self._closed = True
        if self._under_way:
            idle: Deferred[None] = Deferred()
            self._idle.append(idle)
            await idle

    def _next_batch(self) -> None:
        if not self._waiting:
            self._under_way = False
            idle, self._idle = self._idle, []
            for waiter in idle:
                waiter.callback(None)
            return
        batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
        done = self._in_thread(self._commit, [write for write, _ in batch])
        done.addCallbacks(self._succeeded, self._failed, callbackArgs=(batch,), errbackArgs=(batch,))

    def _succeeded(self, outcomes: Sequence[Outcome], batch: list[tuple[WriteT, Deferred[Any]]]) -> None:
        # The next batch is on its way to its thread before the answers of this one are made.
        self._next_batch()
        for (_, result), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, PostdError):
                result.errback(outcome)
            else:
                result.callback(outcome)

    def _failed(self, failure: Failure, batch: list[tuple[WriteT, Deferred[Any]]]) -> None:
        behind, self._waiting = self._waiting, deque()
        self._next_batch()
        for _, result in (*batch, *behind):
            result.errback(failure.value)
