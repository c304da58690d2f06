"""Run a coroutine in a command: the reactor runs until it has finished, once in a process."""

import select
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import click
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from postd.reactor import IReactor, Work, use_monotonic_clock

T = TypeVar("T")


def global_reactor() -> IReactor:
    """Return the global reactor, with a monotonic clock; the first call installs it."""
    from twisted.internet import reactor  # noqa: PLC0415 - importing the reactor installs it

    use_monotonic_clock(reactor)
    return cast("IReactor", reactor)


def run(work: Callable[[], Work[T]], *, timeout_s: float | None = None) -> T:
    """Run the reactor until `work` has finished; return its result. A process can call this only once.

    Args:
        work: called when the reactor runs.
        timeout_s: the limit in seconds; None for no limit.

    Raises:
        click.Abort: interrupted by Ctrl-C or SIGTERM.
        twisted.internet.defer.TimeoutError: the limit was exceeded.
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
        if timeout_s is not None:
            running.addTimeout(timeout_s, clock)
        running.addBoth(results.append)
        # Ctrl-C stops the reactor, which cancels the work: its finally clauses still run.
        clock.addSystemEventTrigger("before", "shutdown", end, running)
        running.addBoth(lambda _: None if is_ending else clock.callLater(0, clock.stop))

    def interrupt() -> None:
        with suppress(ReactorNotRunning):  # already stopping: stock Twisted would show a traceback
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


_POLL_EVERY_S = 0.02


async def wait_ready(descriptor: int, event: int) -> None:
    """Wait until a file descriptor can be read or written without blocking: a blocked call ignores Ctrl-C.

    Args:
        descriptor: of any kind of file; the reactor's epoll refuses files on a disk.
        event: `select.POLLIN`, or `select.POLLOUT`: then a pipe takes `select.PIPE_BUF` bytes.
    """
    poll = select.poll()
    poll.register(descriptor, event)
    await deferLater(global_reactor(), 0)
    while not poll.poll(0):
        await deferLater(global_reactor(), _POLL_EVERY_S)
