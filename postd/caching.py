"""What is not done twice: results that are remembered for a while, and work that several wait for."""

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

K = TypeVar("K")
T = TypeVar("T")


class Remembered(Generic[K, T]):
    """Values that are forgotten after a time, and the oldest when there are too many.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, tuple[float, float, T]] = OrderedDict()

    def get(self, key: K, now: float) -> T | None:
        since, until, value = self._values.get(key, (0.0, 0.0, None))
        # A clock that was set back makes nothing last for longer.
        return value if since <= now < until else None

    def put(self, key: K, value: T, *, since: float, until: float) -> None:
        self._values.pop(key, None)  # to the end of the line
        self._values[key] = since, until, value
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def forget_all(self) -> None:
        self._values.clear()


def is_within(seconds: float, since: float, now: float) -> bool:
    """Tell whether no more time than that has passed. Of a clock that was set back nothing can be said."""
    return 0 <= now - since < seconds


class Told:
    """What was told last, so that it is not told again."""

    def __init__(self) -> None:
        self._last = ""

    def is_news(self, what: str) -> bool:
        """Tell whether it is something else than the last time, which it is from now on."""
        news = what != self._last
        self._last = what
        return news


class UnderWay(Generic[K, T]):
    """Work that is done once for all who want it at the same time."""

    def __init__(self) -> None:
        self._waiting: dict[K, list[Deferred[T]]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    async def join(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `work` comes to, or the same work that somebody else has begun. It goes on without those who
        have stopped to wait for it.
        """
        answer: Deferred[T] = Deferred()
        if key in self._waiting:
            self._waiting[key].append(answer)
            return await answer
        self._waiting[key] = [answer]

        def tell(result: T | Failure) -> None:
            for waiter in self._waiting.pop(key):
                waiter.callback(result)

        Deferred.fromCoroutine(work()).addBoth(tell)
        return await answer
