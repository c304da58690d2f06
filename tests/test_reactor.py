"""The clocks of a process: timers and dates that do not follow steps of the wall clock."""

import time
from typing import Any, cast

import pytest
from twisted.internet.base import ReactorBase
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock, LoopingCall
from zope.interface.verify import verifyObject

from postd.reactor import ServiceClock, use_monotonic_clock


class Reactor(ReactorBase):
    """A reactor for timers alone."""

    def installWaker(self) -> None:
        """Install nothing: there are no threads."""


class WallClock:
    """A wall clock that a test sets, in the place of `time.time` and of the clock of Twisted's reactors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_s, self._read = 0.0, time.time
        monkeypatch.setattr("time.time", self.read)
        monkeypatch.setattr(ReactorBase, "seconds", staticmethod(self.read))

    def read(self) -> float:
        return self._read() + self._ahead_s

    def step(self, seconds: float) -> None:
        self._ahead_s += seconds


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


@pytest.fixture
def reactor(wall: WallClock) -> Any:
    return Reactor()


@pytest.mark.parametrize("step", [3600, -3600])
def test_timers_do_not_follow_the_wall_clock(reactor: Any, wall: WallClock, step: float) -> None:
    calls: list[str] = []
    reactor.callLater(0, calls.append, "before")
    before = reactor.seconds()
    use_monotonic_clock(reactor)
    assert before <= reactor.seconds() < before + 60
    late, reset = (reactor.callLater(60, calls.append, name) for name in ("late", "reset"))
    loop = LoopingCall(calls.append, "loop")
    loop.clock = reactor
    loop.start(60).addErrback(lambda failure: calls.append(str(failure)))
    wall.step(step)
    reset.reset(60)
    reactor.callLater(0, calls.append, "after")
    reactor.runUntilCurrent()
    assert calls == ["loop", "before", "after"]
    assert 0 < reactor.timeout() <= 60
    assert reset.getTime() >= late.getTime() > before


def test_monotonic_clock_that_is_set_again_goes_on(reactor: Any, wall: WallClock) -> None:
    use_monotonic_clock(reactor)
    before = reactor.seconds()
    wall.step(3600)
    use_monotonic_clock(reactor)
    assert before <= reactor.seconds() < before + 60


def test_clock_without_pending_timers_is_that_of_the_system(reactor: Any) -> None:
    use_monotonic_clock(reactor)
    assert reactor.seconds is time.monotonic


@pytest.mark.parametrize("is_monotonic", [False, True])
def test_service_clock_begins_with_the_wall_clock(reactor: Any, wall: WallClock, *, is_monotonic: bool) -> None:
    if is_monotonic:
        use_monotonic_clock(reactor)
    wall.step(-7200)
    clock, began = ServiceClock(reactor), wall.read()
    for step in (3600, -7200):
        wall.step(step)
        assert -1 < clock.seconds() - began < 60
    worker = ServiceClock(reactor, offset_s=clock.offset_s)
    assert clock.seconds() <= worker.seconds() < clock.seconds() + 1


def test_service_clock_never_goes_back() -> None:
    timers = Clock()
    clock = ServiceClock(timers)
    verifyObject(IReactorTime, clock)
    for moment, now in ((50.0, 50.0), (20.0, 50.0), (60.5, 60.5)):
        clock.reach(moment)
        assert clock.seconds() == now
    timers.advance(10)
    assert clock.seconds() == 70.5


def test_timers_of_a_service_clock_are_those_of_the_reactor() -> None:
    timers, calls = Clock(), list[int]()
    clock = ServiceClock(timers)
    call = clock.callLater(5, calls.append, 1)
    assert clock.getDelayedCalls() == [cast("Any", call)]
    clock.reach(3600)
    timers.advance(4.9)
    assert calls == []
    timers.advance(0.1)
    assert calls == [1]
