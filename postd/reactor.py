"""The types of the reactor and of its work, and the clocks of a process.

The reactor is passed as an argument; only `tap` and `cli.run_async` import the global one. There are three clocks
(explanation: Time):

- The reactor's, which `use_monotonic_clock` makes independent of the wall clock: all durations and timers.
- `ServiceClock`: dates that postd makes and compares itself.
- `time.time`, the wall clock: dates that other programs make, such as the dates in tokens, dates that people read,
  and the revisions of copies.
"""

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import FrameType, ModuleType
from typing import Any, TypeVar

from twisted.internet.interfaces import (
    IDelayedCall,
    IReactorCore,
    IReactorFDSet,
    IReactorPluggableNameResolver,
    IReactorProcess,
    IReactorTCP,
    IReactorThreads,
    IReactorTime,
)
from zope.interface import implementer

T = TypeVar("T")

Work = Coroutine[Any, Any, T]
"""A coroutine that the reactor runs, and its result; what it awaits, and gets for that, is Twisted's."""


class IReactor(
    IReactorCore,
    IReactorFDSet,
    IReactorThreads,
    IReactorPluggableNameResolver,
    IReactorProcess,
    IReactorTCP,
    IReactorTime,
):
    """The interfaces of a reactor that `postd` uses."""

    def sigInt(number: int, frame: FrameType | None = None) -> None:  # noqa: N805 - an interface has no self
        """Handle SIGINT: stop the reactor once it runs, then end the process by this signal (`ReactorBase`)."""

    def sigTerm(number: int, frame: FrameType | None = None) -> None:  # noqa: N805 - an interface has no self
        """As `sigInt`, for SIGTERM."""


AnyReactor = IReactorTime | ModuleType
"""A reactor as programs pass it: for type checkers the global one of Twisted is a module."""


def use_monotonic_clock(reactor: AnyReactor) -> None:
    """Make the clock of a reactor, and so all its timers, independent of steps of the wall clock.

    Twisted's reactors measure durations by the wall clock: if that is set back by an hour, no timer fires for an hour.
    To be called at the start of a program. If timers are pending, `reactor.seconds()` goes on from its present value;
    else it becomes `time.monotonic`, which takes a fifth of the time of a function in Python.
    """
    clock: Any = reactor
    read, offset_s = time.monotonic, clock.seconds() - time.monotonic()
    clock.seconds = (lambda: read() + offset_s) if clock.getDelayedCalls() else read


_since_boot = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""The seconds since the machine was booted, also while it is suspended. `time.monotonic`, by which the kernel measures
timeouts, stands still meanwhile: by that clock, a session would last longer."""


@implementer(IReactorTime)
class ServiceClock:
    """The clock of the dates in a store: seconds since the epoch that never go back, with the timers of a reactor.

    It begins with the wall clock, and does not follow its steps. If the dates in the store are later, it is brought up
    to them (`LoginStore.purge_expired`).

    Args:
        reactor: for the timers. A clock of tests, such as `twisted.internet.task.Clock`, is the time as well.
        offset_s: that of another process of this machine, to have the same clock.

    Attributes:
        offset_s: how far the clock is ahead of the time since the machine was booted.
    """

    def __init__(self, reactor: IReactorTime, *, offset_s: float | None = None) -> None:
        from twisted.internet.base import ReactorBase  # noqa: PLC0415 - imports most of Twisted

        is_real = isinstance(reactor, ReactorBase)
        self._read = _since_boot if is_real else reactor.seconds
        if offset_s is None:
            offset_s = time.time() - _since_boot() if is_real else 0.0
        self.offset_s = offset_s
        self._reactor = reactor

    def seconds(self) -> float:
        return self._read() + self.offset_s

    def reach(self, moment: float) -> None:
        """Go on from a moment if that is later than now."""
        self.offset_s += max(0.0, moment - self.seconds())

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object) -> IDelayedCall:  # noqa: A002 - the interface's name
        """Call a function after a delay, by the reactor's clock."""
        return self._reactor.callLater(delay, callable, *args, **kwargs)

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        """Return the pending calls of the reactor."""
        return self._reactor.getDelayedCalls()
