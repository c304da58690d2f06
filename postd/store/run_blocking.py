"""Waiting for something asynchronous where the process's own reactor does not run yet, and could run only once."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.internet.selectreactor import SelectReactor
from twisted.python.failure import Failure

from postd.reactor import IReactor

T = TypeVar("T")

_TURN_MAX_S = 0.1


def run_blocking(work: Callable[[IReactor], Coroutine[Any, Any, T]]) -> T:
    """Return what `work` comes to, run in a reactor of its own, which is gone afterwards with all it had open.

    Args:
        work: is handed that reactor. It has to come to an end by itself.
    """
    reactor: Any = SelectReactor()
    results: list[T | Failure] = []
    # Turn by turn, and not by its own loop: that would log what goes wrong in it, Ctrl-C too, and go on.
    reactor.startRunning(installSignalHandlers=False)
    try:
        Deferred.fromCoroutine(work(cast("IReactor", reactor))).addBoth(results.append)
        while not results:
            reactor.iterate(_TURN_MAX_S if (wait_s := reactor.timeout()) is None else min(wait_s, _TURN_MAX_S))
    finally:
        reactor.stop()
        reactor.iterate()  # its threads end
        reactor.waker.connectionLost(None)  # its own descriptors, which no reactor closes
    result = results[0]
    if isinstance(result, Failure):
        result.raiseException()
    return result
