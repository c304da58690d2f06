"""Imports into an SQLite file, and reading all of it."""

from pathlib import Path
from typing import cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import CancelledError, gatherResults

from postd.errors import PostExistsError, StoreFullError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.sqlite.store import SqliteStore
from tests.helpers import locked, run_sql
from tests.store.contract import MakeStore, error_of, import_posts, open_store, posts_of, started, without_details

reactor = cast(IReactor, global_reactor)


def make_store_again(path: Path) -> Store:
    """Check the file as the start of a server does: it must have all tables and triggers."""
    store = SqliteStore(str(path), reactor=reactor)
    store.prepare(create=False)
    return store


@ensureDeferred
async def test_posts_are_read_as_of_one_moment(store: Store) -> None:
    await import_posts(store, [(n, "old") for n in range(1, 1001)])
    read: list[tuple[int, str]] = []
    async for portion in store.read_posts(batch_size=100):
        read += [(post.id, post.post) for post in portion]
        await store.delete_post(1001 - len(read) // 100)
        await store.replace_post(1000 - len(read) // 2, "new")
        await store.add_post("new")
    assert read == [(n, "old") for n in range(1, 1001)]


@ensureDeferred
async def test_staging_an_import_locks_nothing(store: Store, path: Path) -> None:
    taken = await store.begin_import()
    with locked(path, "IMMEDIATE"):
        await taken.add(without_details([(1, "one")]))
    assert await taken.commit() == 1


@pytest.mark.slow
@ensureDeferred
async def test_locked_file_refuses_the_commit_of_an_import_whole(store: Store, path: Path) -> None:
    taken = await store.begin_import()
    await taken.add(without_details([(1, "one")]))
    with locked(path, "IMMEDIATE"):
        assert isinstance(await error_of(taken.commit()), StoreUnavailableError)
    assert await posts_of(store) == []
    assert await taken.commit() == 1  # what was gathered is not lost by that


@ensureDeferred
async def test_triggers_are_restored_after_each_outcome_of_an_import(store: Store, path: Path) -> None:
    await store.add_post("one")
    assert await import_posts(store, [(2, "two")]) == 1
    assert isinstance(await error_of(import_posts(store, [(2, "zwei")])), PostExistsError)
    assert isinstance(await error_of(import_posts(store, [(3, "x" * 141)])), StoreFullError)
    make_store_again(path)
    run_sql(path, "INSERT INTO post (post) VALUES ('past postd')")
    assert (await store.version()).revision == 3
    logged = await store.list_changes(after=0, limit=9)
    assert [change and change.post for change in logged] == ["one", "two", "past postd"]


@ensureDeferred
async def test_import_that_the_table_refuses_does_not_affect_concurrent_writes(store: Store) -> None:
    """The caller validates texts; the table refuses invalid ones too."""
    taken = await store.begin_import()
    await taken.add(without_details([(5, "good"), (7, "x" * 141)]))
    outcomes = await gatherResults(
        [
            started(store.add_post("before")),
            started(error_of(taken.commit(last_id=70, revision=70))),
            started(store.add_post("after")),
        ]
    )
    assert isinstance(outcomes[1], StoreFullError)
    assert await posts_of(store) == [(1, "before"), (2, "after")]
    assert ((await store.version()).revision, await store.last_id()) == (2, 2)


@ensureDeferred
async def test_foreign_triggers_fire_during_an_import(store: Store, path: Path) -> None:
    run_sql(
        path,
        "CREATE TABLE seen (id)",
        "CREATE TRIGGER mine AFTER INSERT ON post BEGIN INSERT INTO seen VALUES (NEW.id); END",
    )
    await import_posts(store, [(3, "three"), (4, "four")])
    assert run_sql(path, "SELECT id FROM seen ORDER BY id") == [(3,), (4,)]


@ensureDeferred
async def test_import_cancelled_during_its_commit_stores_nothing(store: Store, path: Path) -> None:
    taken = await store.begin_import()
    for start in range(1, 300_001, 10_000):
        await taken.add(without_details([(n, "x" * 100) for n in range(start, start + 10_000)]))
    committing = started(taken.commit())
    reactor.callLater(0.1, committing.cancel)
    with pytest.raises(CancelledError):
        await committing
    await taken.discard()
    assert await posts_of(store) == []
    assert (await store.version()).revision == 0
    assert await store.add_post("one") == 1
    make_store_again(path)


@ensureDeferred
async def test_import_fails_when_the_file_is_replaced(make_store: MakeStore, path: Path) -> None:
    store = await open_store(make_store)
    taken = await store.begin_import()
    await taken.add(without_details([(1, "one")]))
    other = path.with_name("other.db")
    SqliteStore(str(other), reactor=reactor).prepare()
    other.replace(path)
    assert isinstance(await error_of(posts_of(store)), StoreUnavailableError)
    assert isinstance(await error_of(taken.commit()), StoreUnavailableError)
    await store.stop()
    assert run_sql(path, "SELECT count(*) FROM post") == [(0,)]
