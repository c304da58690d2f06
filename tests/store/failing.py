"""Helpers for tests of a store that fails and recovers."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import LogEvent, capturedLogs, formatEvent

from postd.errors import ChangesGoneError, PostdError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.opening import open_store
from postd.store.redis import connecting, connection, database, reconnecting
from tests.helpers import PATIENCE_S
from tests.store.contract import error_of, started

reactor = cast(IReactor, global_reactor)


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


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Redis the patience of the tests, where the test is not about how soon it is given up."""
    for module, limit in (
        (connection, "CONNECT_MAX_S"),
        (connecting, "CONNECT_MAX_S"),
        (reconnecting, "ATTEMPT_MAX_S"),
        (database, "DEADLINE_S"),
    ):
        monkeypatch.setattr(module, limit, PATIENCE_S)
    monkeypatch.setattr(database.RedisDatabase.write, "__kwdefaults__", {"deadline_s": PATIENCE_S})


def make_store(url: str, reactor: IReactor = reactor) -> Store:
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


async def fails(*calls: Awaitable[Any]) -> list[PostdError]:
    """Start calls together, all of which must fail, and return the errors."""
    return await all_fail([started(call) for call in calls])


async def fails_at_once(*calls: Awaitable[Any]) -> list[PostdError]:
    """Start calls together, all of which must fail in the reactor's next turn, and return the errors."""
    begun = [started(call) for call in calls]
    await sleep(0)
    assert all(one.called for one in begun)
    return await all_fail(begun)


async def all_fail(begun: Sequence[Deferred[Any]]) -> list[PostdError]:
    errors = []
    for one in begun:
        with pytest.raises(StoreUnavailableError) as caught:
            await one.addTimeout(PATIENCE_S, reactor)
        errors.append(caught.value)
    return cast(list[PostdError], errors)


async def sleep(seconds: float) -> None:
    await deferLater(reactor, seconds)


async def wait_until(condition: Callable[[], bool]) -> None:
    deadline = reactor.seconds() + PATIENCE_S
    while not condition():
        assert reactor.seconds() < deadline
        await sleep(0.02)


async def serves_again(store: Store) -> None:
    """Wait until a store can be read."""
    began = reactor.seconds()
    while True:
        try:
            await store.version()
        except StoreUnavailableError as error:
            assert reactor.seconds() < began + PATIENCE_S, error.why
            await sleep(0.02)
        else:
            return


async def check_no_number_comes_again(store: Store, *, last_id: int, revision: int) -> None:
    assert (await store.version()).revision > revision
    assert isinstance(await error_of(store.list_changes(after=revision, limit=10)), ChangesGoneError)
    assert await store.add_post("on it goes") > last_id


async def wait_for_error(store: Store, words: str) -> StoreUnavailableError:
    """Wait until a store fails for a reason."""
    deadline = reactor.seconds() + PATIENCE_S
    while True:
        try:
            await store.version()
        except StoreUnavailableError as error:
            if words in error.why:
                return error
        assert reactor.seconds() < deadline
        await sleep(0.02)
