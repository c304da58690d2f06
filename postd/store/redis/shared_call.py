"""One call for all callers of one reactor iteration."""

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from postd.reactor import Work

K = TypeVar("K")
T = TypeVar("T")


class SharedCall(Generic[K, T]):
    """Collects the arguments of one reactor iteration, and calls a function once with all of them.

    Args:
        call: takes the arguments in their order. Each caller gets its result, or its exception.
        reactor: ends the iteration.
    """

    def __init__(self, call: Callable[[list[K]], Work[T]], *, reactor: IReactorTime) -> None:
        self._call = call
        self._reactor = reactor
        self._waiting: list[tuple[K, Deferred[T]]] = []

    async def run(self, argument: K) -> T:
        result: Deferred[T] = Deferred()
        if not self._waiting:
            self._reactor.callLater(0, self._run_once)
        self._waiting.append((argument, result))
        return await result

    def _run_once(self) -> None:
        waiting, self._waiting = self._waiting, []

        def fire(result: T | Failure) -> None:
            for _, waiter in waiting:
                waiter.callback(result)

        Deferred.fromCoroutine(self._call([argument for argument, _ in waiting])).addBoth(fire)
