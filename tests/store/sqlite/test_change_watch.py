"""Watching a file for the changes of other processes; a second store stands for them."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_twisted
from pytest_twisted import ensureDeferred

from postd.store.sqlite.store import SqliteStore
from tests.helpers import run_sql
from tests.store.contract import check_changes_are_noticed
from tests.store.failing import Log, reactor, wait_until
from tests.store.sqlite.files import make_store_file

Stores = tuple[SqliteStore, SqliteStore]


@pytest_twisted.async_yield_fixture
async def stores(path: Path) -> AsyncIterator[Stores]:
    here, there = (SqliteStore(str(path), reactor=reactor) for _ in range(2))
    for store in (here, there):
        store.prepare()
        await store.start()
    yield here, there
    for store in (here, there):
        await store.stop()


@ensureDeferred
async def test_changes_are_noticed_by_inotify_alone(stores: Stores) -> None:
    here, there = stores
    here.database.file_check.stop()
    await check_changes_are_noticed(here, there)


@ensureDeferred
async def test_change_by_another_program_is_noticed_within_about_a_second(stores: Stores, path: Path) -> None:
    calls: list[int] = []
    stores[0].watch_changes(lambda: calls.append(1))
    run_sql(path, "INSERT INTO post (post) VALUES ('one')")
    await wait_until(lambda: bool(calls))


@ensureDeferred
async def test_watcher_is_not_called_while_nothing_happens(stores: Stores) -> None:
    calls: list[int] = []
    stores[0].watch_changes(lambda: calls.append(1))
    for _ in range(5):
        stores[0].database.file_check.f()
    assert calls == []


@ensureDeferred
async def test_without_inotify_changes_are_noticed_each_second(
    stores: Stores, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(_descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    message = "no inotify (Too many open files): changes of other processes reach event streams up to a second late"
    with monkeypatch.context() as patched:
        patched.setattr("postd.store.sqlite.change_watch._watch", watch)
        await check_changes_are_noticed(*stores)
        calls: list[int] = []
        stores[0].watch_changes(lambda: calls.append(1))
        assert log.lines("inotify") == [f"store: {message}"]
    here, there = stores
    here.database.file_check.f()  # it works again, for listeners that are there
    here.database.file_check.stop()
    await there.add_post("one")
    await wait_until(lambda: bool(calls))
    assert log.lines("inotify") == [f"store: {message}"]


@ensureDeferred
async def test_inotify_instance_stays_open_without_listeners(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may take milliseconds to close it, and clients decide how often there is a first listener."""
    here, there = stores
    here.database.file_check.stop()
    calls: list[int] = []
    closed: list[int] = []
    here.watch_changes(lambda: calls.append(1))
    with monkeypatch.context() as patched:
        patched.setattr("postd.store.sqlite.change_watch.os.close", closed.append)
        here.watch_changes(None)
        await there.add_post("unheard")
        here.watch_changes(lambda: calls.append(2))
    assert (closed, calls) == ([], [])
    await there.add_post("heard")
    await wait_until(lambda: bool(calls))
    assert set(calls) == {2}


@ensureDeferred
async def test_change_is_noticed_in_the_file_that_took_the_place_of_another(stores: Stores, path: Path) -> None:
    here, there = stores
    await there.add_post("one")
    calls: list[int] = []
    here.watch_changes(lambda: calls.append(1))
    other = path.with_name("other.db")
    make_store_file(other, posts=5)
    other.rename(path)
    for store in stores:
        store.database.check_file()
    await wait_until(lambda: here.database.reader is not None and there.database.reader is not None)
    here.database.file_check.stop()
    calls.clear()
    await there.add_post("two")
    await wait_until(lambda: bool(calls))
