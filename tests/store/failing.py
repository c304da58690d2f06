"""What tests of a Redis store in trouble share."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from twisted.internet import reactor as global_reactor
from twisted.internet.task import deferLater
from twisted.logger import LogEvent, capturedLogs, formatEvent

from postd.errors import PostdError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.opening import open_store
from tests.store.contract import started

reactor = cast(IReactor, global_reactor)

ENDS_WITHIN_S = 2.0
"""How long a call may take that fails (contract 5)."""

AT_ONCE_S = 1.5
"""How long a call may take that has nothing to wait for; the machine may be busy."""

BACK_WITHIN_S = 5.0
"""When a store has to serve again that can be had again: some 0.5 s where the machine has nothing else to do."""


class Log:
    """What the log was told."""

    def __init__(self) -> None:
        self.events: Sequence[LogEvent] = []

    def lines(self, words: str) -> list[str]:
        """Return the lines that have some words in them."""
        return [line for event in self.events if words in (line := formatEvent(event) or "")]


@pytest.fixture
def log() -> Iterator[Log]:
    """The log, which no failure is to come to that nobody has looked at."""
    log = Log()
    with capturedLogs() as log.events:
        yield log
        gc.collect()  # a Deferred tells of an error that nobody handled when it goes
    assert [event for event in log.events if "log_failure" in event] == []


def make_store(url: str) -> Store:
    return open_store(url, where="store", reactor=reactor)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Store]:
    """A store that is prepared and started."""
    store = make_store(url)
    store.prepare()
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def fails(*calls: Awaitable[Any], within_s: float = ENDS_WITHIN_S) -> list[PostdError]:
    """Begin calls together, and return the errors that they all end in, soon."""
    begun = [started(call).addTimeout(within_s, reactor) for call in calls]
    errors = []
    for one in begun:
        with pytest.raises(StoreUnavailableError) as caught:
            await one
        errors.append(caught.value)
    return cast(list[PostdError], errors)


async def sleep(seconds: float) -> None:
    await deferLater(reactor, seconds)


async def wait_until(condition: Callable[[], bool], within_s: float = BACK_WITHIN_S) -> None:
    """Wait until something holds, which it has to soon."""
    deadline = reactor.seconds() + within_s
    while not condition():
        assert reactor.seconds() < deadline
        await sleep(0.02)


async def serves_again(store: Store, within_s: float = BACK_WITHIN_S) -> float:
    """Wait until a store can be read, which it has to soon; return how long it took."""
    began = reactor.seconds()
    while True:
        try:
            await store.version()
        except StoreUnavailableError as error:
            assert reactor.seconds() < began + within_s, error.why
            await sleep(0.02)
        else:
            return reactor.seconds() - began
