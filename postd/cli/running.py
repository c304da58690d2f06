"""How a command waits for what takes time: it runs the reactor until its work is done, once."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import click
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from postd.reactor import IReactor

T = TypeVar("T")


def global_reactor() -> IReactor:
    """Return the reactor, which is installed by the first who asks for it."""
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it

    return cast("IReactor", reactor)


def run(work: Callable[[], Coroutine[Any, Any, T]], *, most_s: float) -> T:
    """Return what `work` comes to. A process can do this only once.

    Args:
        work: is begun when the reactor runs.
        most_s: how long it may take, in seconds.

    Raises:
        click.Abort: somebody pressed Ctrl-C.
        twisted.internet.defer.TimeoutError: it took longer.
    """
    clock = cast("Any", global_reactor())
    results: list[T | Failure] = []

    def end(running: Deferred[None]) -> Deferred[None]:
        running.cancel()
        return running

    def begin() -> None:
        running = Deferred.fromCoroutine(work())
        running.addTimeout(most_s, clock).addBoth(results.append)
        # Ctrl-C ends the reactor, and that the work; what it has opened is closed all the same.
        clock.addSystemEventTrigger("before", "shutdown", end, running)
        running.addBoth(lambda _: clock.callLater(0, clock.stop) if clock.running else None)

    clock.callWhenRunning(begin)
    clock.run()
    if not results or (isinstance(results[0], Failure) and results[0].check(CancelledError)):
        raise click.Abort
    result = results[0]
    if isinstance(result, Failure):
        result.raiseException()
    return result
