"""Group commit: writes that arrive while a batch is being committed make the next batch.

No timer is involved: an idle store starts a batch at the end of the reactor's iteration. A busy one acknowledges the
last batch and starts the next after one more iteration, which reads what the acknowledged clients send next: with 32
busy clients most batches have 32 writes, where a start at once made batches of 2 and of 29 in turn. A synced batch
costs a sync and some switches of threads, whatever its size. One batch is committed at a time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from postd.errors import PostdError, StoreBusyError, StoreUnavailableError

QUEUE_MAX = 4096
"""Capacity of the queue; one more write is refused."""

BATCH_MAX = 512
"""Writes in one transaction."""

WriteT = TypeVar("WriteT")

Outcome = object | PostdError
"""The result of one write, or the error that concerns it alone."""


_Queued = tuple[WriteT, Deferred[Any]]
"""A write, and its result."""


class GroupCommit(Generic[WriteT]):
    """A queue of writes that are committed in batches.

    Args:
        commit: stores a batch; the Deferred fires with an outcome for each write, in order. If it fails, the batch and
            all queued writes fail with that error: each would run into the same timeout, one after the other.
        clock: the reactor.
    """

    def __init__(
        self, commit: Callable[[Sequence[WriteT]], Deferred[Sequence[Outcome]]], *, clock: IReactorTime
    ) -> None:
        self._commit = commit
        self._clock = clock
        self._queue: deque[_Queued[WriteT]] = deque()
        self._is_committing = False
        self._closed = False
        self._idle: list[Deferred[None]] = []

    def submit(self, write: WriteT) -> Deferred[Any]:
        """Queue a write; the Deferred fires when it is durable.

        Raises:
            StoreBusyError: `QUEUE_MAX` writes are queued.
            StoreUnavailableError: the store is stopping.
        """
        if self._closed:
            raise StoreUnavailableError("the store is being closed")
        if len(self._queue) >= QUEUE_MAX:
            raise StoreBusyError(f"{QUEUE_MAX} writes are waiting")
        result: Deferred[Any] = Deferred()
        self._queue.append((write, result))
        if not self._is_committing:
            self._is_committing = True
            self._clock.callLater(0, self._next_batch)
        return result

    async def close(self) -> None:
        """Refuse new writes; return when the queued ones are done."""
        self._closed = True
        if self._is_committing:
            idle: Deferred[None] = Deferred()
            self._idle.append(idle)
            await idle

    def _next_batch(self) -> None:
        if not self._queue:
            self._is_committing = False
            idle, self._idle = self._idle, []
            for waiter in idle:
                waiter.callback(None)
            return
        batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
        done = maybeDeferred(self._commit, [write for write, _ in batch])
        done.addCallbacks(self._succeeded, self._failed, callbackArgs=(batch,), errbackArgs=(batch,))

    def _succeeded(self, outcomes: Sequence[Outcome], batch: list[_Queued[WriteT]]) -> None:
        for (_, result), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, PostdError):
                result.errback(outcome)
            else:
                result.callback(outcome)
        if self._queue:
            # The outer call runs in this iteration of the reactor, before it looks for input; the inner one after that.
            self._clock.callLater(0, self._clock.callLater, 0, self._next_batch)
        else:
            self._next_batch()

    def _failed(self, failure: Failure, batch: list[_Queued[WriteT]]) -> None:
        queued, self._queue = self._queue, deque()
        self._next_batch()
        for _, result in (*batch, *queued):
            result.errback(failure.value)
