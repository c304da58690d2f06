"""Helpers for tests of a store that fails and recovers."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from twisted.internet import reactor as global_reactor
from twisted.internet.task import deferLater
from twisted.logger import LogEvent, capturedLogs, formatEvent

from postd.errors import ChangesGoneError, PostdError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.opening import open_store
from tests.store.contract import error_of, started

reactor = cast(IReactor, global_reactor)

ENDS_WITHIN_S = 2.0
"""How long a failing call may take (reference: Workers and nodes)."""

AT_ONCE_S = 1.5
"""How long a call may take that fails without waiting, on a busy machine."""

BACK_WITHIN_S = 5.0
"""How long a recovery may take, on a busy machine; some 0.5 s on an idle one."""


class Log:
    """The events of the log."""

    def __init__(self) -> None:
        self.events: Sequence[LogEvent] = []

    def lines(self, words: str) -> list[str]:
        """Return the lines that contain a text."""
        return [line for event in self.events if words in (line := formatEvent(event) or "")]


@pytest.fixture
def log() -> Iterator[Log]:
    """Capture the log, which must have no unexpected failure at the end."""
    log = Log()
    gc.freeze()  # all that is there: the collection below takes 0.1 s otherwise, in a process that has run many tests
    with capturedLogs() as log.events:
        yield log
        gc.collect()  # a Deferred logs an unhandled error when it is collected
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
    """Start calls together, all of which must fail in time, and return the errors."""
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
    """Wait until a condition holds, within a time."""
    deadline = reactor.seconds() + within_s
    while not condition():
        assert reactor.seconds() < deadline
        await sleep(0.02)


async def serves_again(store: Store, within_s: float = BACK_WITHIN_S) -> float:
    """Wait until a store can be read, within a time; return how long it took."""
    began = reactor.seconds()
    while True:
        try:
            await store.version()
        except StoreUnavailableError as error:
            assert reactor.seconds() < began + within_s, error.why
            await sleep(0.02)
        else:
            return reactor.seconds() - began


async def check_no_number_comes_again(store: Store, *, last_id: int, revision: int) -> None:
    assert (await store.version()).revision > revision
    assert isinstance(await error_of(store.list_changes(after=revision, limit=10)), ChangesGoneError)
    assert await store.add_post("on it goes") > last_id


async def wait_for_error(store: Store, words: str) -> StoreUnavailableError:
    """Wait until a store fails for a reason, within a time."""
    deadline = reactor.seconds() + BACK_WITHIN_S
    while True:
        try:
            await store.version()
        except StoreUnavailableError as error:
            if words in error.why:
                return error
        assert reactor.seconds() < deadline
        await sleep(0.02)
