"""How a command waits for what takes time: it runs the reactor until its work is done, once."""

import select
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

import click
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from postd.reactor import IReactor

T = TypeVar("T")


def global_reactor() -> IReactor:
    """Return the reactor, which is installed by the first who asks for it."""
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it

    return cast("IReactor", reactor)


def run(work: Callable[[], Coroutine[Any, Any, T]], *, most_s: float | None = None) -> T:
    """Return what `work` comes to. A process can do this only once.

    Args:
        work: is begun when the reactor runs.
        most_s: how long it may take, in seconds; None for as long as it needs.

    Raises:
        click.Abort: somebody pressed Ctrl-C.
        twisted.internet.defer.TimeoutError: it took longer.
    """
    clock = cast("Any", global_reactor())
    results: list[T | Failure] = []
    is_ending = False

    def end(running: Deferred[None]) -> Deferred[None]:
        nonlocal is_ending
        is_ending = True
        running.cancel()
        return running

    def begin() -> None:
        running = Deferred.fromCoroutine(work())
        if most_s is not None:
            running.addTimeout(most_s, clock)
        running.addBoth(results.append)
        # Ctrl-C ends the reactor, and that the work; what it has opened is closed all the same.
        clock.addSystemEventTrigger("before", "shutdown", end, running)
        running.addBoth(lambda _: None if is_ending else clock.callLater(0, clock.stop))

    def interrupt() -> None:
        with suppress(ReactorNotRunning):  # it is ending already: stock Twisted would show a traceback
            clock.stop()

    clock.callWhenRunning(begin)
    for number in (signal.SIGINT, signal.SIGTERM):
        clock.callWhenRunning(signal.signal, number, lambda *_: clock.callFromThread(interrupt))
    clock.run()
    if not results or (isinstance(results[0], Failure) and results[0].check(CancelledError)):
        raise click.Abort
    result = results[0]
    if isinstance(result, Failure):
        result.raiseException()
    return result


_LOOK_AGAIN_AFTER_S = 0.02


async def ready(descriptor: int, event: int) -> None:
    """Return when reading or writing a little will not block: while a call blocks, Ctrl-C is not heard.

    Args:
        descriptor: of a file of any kind; the reactor itself would not take one on a disk.
        event: `select.POLLIN`, or `select.POLLOUT`: then a pipe takes `select.PIPE_BUF` bytes.
    """
    poll = select.poll()
    poll.register(descriptor, event)
    await deferLater(global_reactor(), 0)
    while not poll.poll(0):
        await deferLater(global_reactor(), _LOOK_AGAIN_AFTER_S)
