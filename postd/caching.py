"""Results that are used again: a TTL cache, and single flight."""

import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

K = TypeVar("K")
T = TypeVar("T")


class TTLCache(Generic[K, T]):
    """A cache with expiring values, which evicts the oldest one beyond `max_size`."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values: OrderedDict[K, tuple[float, T]] = OrderedDict()

    def get(self, key: K, now: float) -> T | None:
        until, value = self._values.get(key, (-math.inf, None))
        return value if now < until else None

    def put(self, key: K, value: T, *, until: float) -> None:
        self._values.pop(key, None)  # a value put again becomes the newest
        self._values[key] = until, value
        if len(self._values) > self._max_size:
            self._values.popitem(last=False)

    def clear(self) -> None:
        self._values.clear()


class SingleFlight(Generic[K, T]):
    """Runs work once for all concurrent callers with the same key."""

    def __init__(self) -> None:
        self._waiting: dict[K, list[Deferred[T]]] = {}
        self._running: dict[K, Deferred[Any]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `work`, or of the work already running for this key.

        A caller that is cancelled does not cancel the work.
        """

        def finish(result: T | Failure) -> None:
            del self._running[key]
            for waiter in self._waiting.pop(key):
                waiter.callback(result)

        answer: Deferred[T] = Deferred()
        waiting = self._waiting.setdefault(key, [])
        waiting.append(answer)
        if len(waiting) == 1:
            self._running[key] = Deferred.fromCoroutine(work())
            self._running[key].addBoth(finish)
        return await answer

    def cancel(self) -> None:
        """Cancel all running work; its callers get the resulting exceptions."""
        for running in list(self._running.values()):
            running.cancel()
