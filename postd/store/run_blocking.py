"""Run asynchronous work while the reactor of the process does not run yet; it could run only once."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.internet.selectreactor import SelectReactor
from twisted.python.failure import Failure

from postd.reactor import IReactor, Work, use_monotonic_clock

T = TypeVar("T")

_ITERATE_MAX_S = 0.1


def run_blocking(work: Callable[[IReactor], Work[T]]) -> T:
    """Run `work` in a reactor of its own, which is closed afterwards with all that it has open; return its result."""
    reactor: Any = SelectReactor()
    use_monotonic_clock(reactor)
    results: list[T | Failure] = []
    # Not `reactor.run()`: that would log exceptions, KeyboardInterrupt too, and continue.
    reactor.startRunning(installSignalHandlers=False)
    try:
        Deferred.fromCoroutine(work(cast("IReactor", reactor))).addBoth(results.append)
        while not results:
            reactor.iterate(_ITERATE_MAX_S if (wait_s := reactor.timeout()) is None else min(wait_s, _ITERATE_MAX_S))
    finally:
        reactor.stop()
        reactor.iterate()  # its threads end
        reactor.waker.connectionLost(None)  # its own descriptors, which no reactor closes
    result = results[0]
    if isinstance(result, Failure):
        result.raiseException()
    return result
