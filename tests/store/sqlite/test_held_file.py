"""A database file that is moved, replaced or removed while processes have it open; two stores stand for them."""

import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
import pytest_twisted
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import CancelledError, gatherResults
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent

from postd.errors import StoreMissingError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.sqlite.database_file import DatabaseFile
from postd.store.sqlite.file_locks import identity_of
from postd.store.sqlite.held_file import HeldFile, locked_folder
from postd.store.sqlite.store import SqliteStore
from tests.helpers import PATIENCE_S, run_sql
from tests.store.contract import error_of, started, until_available
from tests.store.sqlite.files import make_store_file, other_program

reactor = cast(IReactor, global_reactor)

POSTS = 30


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postd.store.sqlite.database._RETRY_OPEN_AFTER_S", 0.02)


@pytest_twisted.async_yield_fixture
async def stores(path: Path) -> AsyncIterator[list[SqliteStore]]:
    """Two stores on the file, with posts in its log. They look for the file when a test calls `check_file`."""
    opened = [SqliteStore(str(path), reactor=reactor) for _ in range(2)]
    for store in opened:
        store.prepare()
        await store.start()
        store.database.file_check.stop()
    await gatherResults([started(opened[n % 2].add_post(f"post {n}")) for n in range(POSTS)])
    yield opened
    for store in opened:
        await store.stop()


def beside(path: Path) -> list[Path]:
    return [Path(f"{path}-wal"), Path(f"{path}-shm")]


def identities(path: Path) -> list[object]:
    return [identity_of(str(file)) for file in beside(path)]


def count_in(path: Path) -> int:
    assert run_sql(path, "PRAGMA integrity_check") == [("ok",)]
    return int(run_sql(path, "SELECT count(*) FROM post")[0][0])


async def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        await deferLater(reactor, 0.01)


async def leave(store: SqliteStore) -> None:
    """Let a store look for its file, and wait until it has closed the one that it has open."""
    store.database.check_file()
    await wait_until(lambda: store.database.writer is None)


async def is_available(store: SqliteStore) -> bool:
    """Return whether a store answers after it has had time to open its file."""
    await deferLater(reactor, 0.2)
    with suppress(StoreUnavailableError):
        await store.version()
        return True
    return False


@ensureDeferred
async def test_file_moved_away_and_back_keeps_its_log(path: Path, stores: list[SqliteStore]) -> None:
    """One process has seen it away, and the other one has not."""
    early, late = stores
    before = identities(path)
    away = path.with_name("away")
    path.rename(away)
    await leave(early)
    assert identities(path) == before
    away.rename(path)
    await until_available(early)
    assert identities(path) == before
    assert {await store.add_post("more") for store in stores} == {POSTS + 1, POSTS + 2}
    assert len((await late.list_posts(limit=99)).posts) == POSTS + 2
    assert count_in(path) == POSTS + 2


@ensureDeferred
async def test_file_that_is_back_at_the_second_look_stays_open(path: Path, stores: list[SqliteStore]) -> None:
    store, _ = stores
    writer = store.database.writer
    go_on = Event()
    working = started(store.database.run_on_writer(lambda _: go_on.wait(PATIENCE_S)))
    path.rename(path.with_name("away"))
    store.database.check_file()
    path.with_name("away").rename(path)
    go_on.set()
    assert await working
    await until_available(store)
    assert store.database.writer is writer
    assert await store.add_post("more") == POSTS + 1


@ensureDeferred
async def test_moved_file_has_all_posts_once_a_process_has_left_it(path: Path, stores: list[SqliteStore]) -> None:
    """The others may be killed: the log is emptied by each process, not by the last one alone."""
    early, _ = stores
    away = path.with_name("away")
    path.rename(away)
    await leave(early)
    assert [file.stat().st_size for file in beside(path)[:1]] == [0]
    copy = path.with_name("copy")
    copy.write_bytes(away.read_bytes())
    assert count_in(copy) == POSTS


@ensureDeferred
async def test_file_that_stays_away_has_all_posts_and_leaves_nothing(path: Path, stores: list[SqliteStore]) -> None:
    away = path.with_name("away")
    path.rename(away)
    for store in stores:
        await leave(store)
    assert [file.name for file in path.parent.iterdir()] == ["away"]
    assert count_in(away) == POSTS
    away.rename(path)
    for store in stores:
        await until_available(store)
    assert {await store.add_post("more") for store in stores} == {POSTS + 1, POSTS + 2}


@ensureDeferred
async def test_replacement_is_opened_once_all_processes_have_left_the_old_file(
    path: Path, stores: list[SqliteStore]
) -> None:
    early, late = stores
    old, new = path.with_name("old"), path.with_name("new")
    os.link(path, old)
    make_store_file(new, posts=3)
    before = new.read_bytes()
    new.rename(path)
    await leave(early)
    assert not await is_available(early)
    assert isinstance(await error_of(late.add_post("would be lost")), StoreUnavailableError)
    assert path.read_bytes() == before
    late.database.check_file()
    for store in stores:
        await until_available(store)
    assert {await store.add_post("more") for store in stores} == {4, 5}
    while stores:
        await stores.pop().stop()
    assert (count_in(old), count_in(path)) == (POSTS, 5)


@ensureDeferred
async def test_write_that_waits_during_a_replacement_is_refused(path: Path, stores: list[SqliteStore]) -> None:
    """It depends on the old file: the count of a nonce on the key there."""
    store = stores[0]
    await stores.pop().stop()
    new = path.with_name("new")
    make_store_file(new, posts=3)
    go_on = Event()
    working = started(store.database.run_on_writer(lambda _: go_on.wait(PATIENCE_S)))
    new.rename(path)
    store.database.check_file()
    writing = started(store.use_nonce(b"nonce", 1, expires=2**31))
    go_on.set()
    await working
    assert isinstance(await error_of(writing), StoreUnavailableError)
    await until_available(store)
    assert run_sql(path, "SELECT * FROM nonce_use") == []


@ensureDeferred
async def test_key_of_a_replaced_file_is_not_used_with_the_new_one(
    path: Path, stores: list[SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores[0]
    await stores.pop().stop()
    new = path.with_name("new")
    make_store_file(new)
    write = store.database.write

    async def write_and_replace(*arguments: Any, **options: Any) -> object:
        result = await write(*arguments, **options)
        new.rename(path)
        store.database.check_file()
        await until_available(store)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", write_and_replace)
        old_key = await store.key("digest")
    new_key = await store.key("digest")
    assert old_key != new_key
    assert run_sql(path, "SELECT value FROM service_key") == [(new_key,)]


@ensureDeferred
async def test_export_after_a_replacement_leaves_both_files_alone(path: Path, stores: list[SqliteStore]) -> None:
    """It opens the file by its name, before the store has seen that another one is there."""
    store, _ = stores
    old, new = path.with_name("old"), path.with_name("new")
    os.link(path, old)
    make_store_file(new, posts=3)
    before, log = new.read_bytes(), identities(path)
    new.rename(path)
    with pytest.raises(StoreUnavailableError, match="moved, removed or replaced"):
        await anext(store.read_posts(batch_size=9))
    assert path.read_bytes() == before
    assert identities(path) == log
    while stores:
        await stores.pop().stop()
    assert (count_in(old), count_in(path)) == (POSTS, 3)


@ensureDeferred
async def test_interrupted_export_leaves_no_log(path: Path, stores: list[SqliteStore]) -> None:
    """A connection that only reads does not remove the log if it is the last one to be closed."""
    portions = stores[0].read_posts(batch_size=9)
    await anext(portions)
    waiting = started(anext(portions))
    waiting.cancel()
    with pytest.raises(CancelledError):  # its traceback has the frames of the export
        await waiting
    while stores:
        await stores.pop().stop()
    assert not any(identities(path))


@ensureDeferred
async def test_moved_file_is_not_left_during_an_export(path: Path, stores: list[SqliteStore]) -> None:
    store = stores[0]
    await stores.pop().stop()
    run_sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")  # then a reader does not keep the log from being emptied
    portions = store.read_posts(batch_size=POSTS // 3)
    exported = len(await anext(portions))
    path.rename(path.with_name("away"))
    store.database.check_file()
    assert not await is_available(store)
    assert all(identities(path))
    async for portion in portions:
        exported += len(portion)
    assert exported == POSTS
    await wait_until(lambda: store.database.writer is None)
    assert not any(identities(path))
    path.with_name("away").rename(path)
    await until_available(store)


@ensureDeferred
@pytest.mark.parametrize("names", [("-wal", "-shm"), ("-wal",), ("-shm",)], ids="+".join)
async def test_removed_log_loses_no_post(path: Path, stores: list[SqliteStore], names: tuple[str, ...]) -> None:
    """The processes have it open. No process makes a second one until all have left the first one."""
    early, late = stores
    for name in names:
        Path(f"{path}{name}").unlink()
    assert {await store.add_post("into the removed log") for store in stores} == {POSTS + 1, POSTS + 2}
    with pytest.raises(StoreUnavailableError, match="no longer beside it"):
        SqliteStore(str(path), reactor=reactor).prepare()
    await leave(early)
    assert not await is_available(early)
    late.database.check_file()
    for store in stores:
        await until_available(store)
    assert {await store.add_post("more") for store in stores} == {POSTS + 3, POSTS + 4}
    assert count_in(path) == POSTS + 4


@ensureDeferred
async def test_file_is_not_opened_while_another_program_uses_its_old_log(path: Path, stores: list[SqliteStore]) -> None:
    away = path.with_name("away")
    with other_program(path, "SELECT * FROM post"):
        path.rename(away)
        for store in stores:
            await leave(store)
        assert not any(identities(path))
        with capturedLogs() as events:
            away.rename(path)
            refusal = "no longer beside it; trying again"
            await wait_until(lambda: sum(refusal in (formatEvent(event) or "") for event in events) == len(stores))
    for store in stores:
        await until_available(store)
    assert count_in(path) == POSTS


def test_file_is_not_opened_beside_the_log_of_a_file_that_another_program_has_open(path: Path) -> None:
    make_store_file(path, posts=3)
    new = path.with_name("new")
    make_store_file(new, posts=1)
    before = new.read_bytes()
    with other_program(path, "INSERT INTO post (post) VALUES ('in the log')"):
        new.rename(path)
        with pytest.raises(StoreUnavailableError, match="a file that was there before, and in use"):
            SqliteStore(str(path), reactor=reactor).prepare()
        assert path.read_bytes() == before


@ensureDeferred
async def test_file_that_another_program_reads_is_left_with_its_log_at_stop(path: Path) -> None:
    store = SqliteStore(str(path), reactor=reactor)
    store.prepare()
    await store.start()
    await store.add_post("one")
    away = path.with_name("away")
    with other_program(path, "BEGIN", "SELECT * FROM post"):
        await store.add_post("two")
        path.rename(away)
        with capturedLogs() as events:
            await store.stop()
    line = f"store: {path} was moved, and its newest posts are in {path}-wal: another program reads it"
    assert [formatEvent(event) for event in events] == [line]
    away.rename(path)
    assert count_in(path) == 2


def test_start_does_not_replace_a_file_whose_log_has_its_newest_posts(path: Path) -> None:
    """All processes were killed while the file was away: SQLite removes a log beside an empty file."""
    make_store_file(path, posts=3)
    log, away = Path(f"{path}-wal"), path.with_name("away")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO post (post) VALUES ('in the log')")
        left = {file: file.read_bytes() for file in (path, log)}
    for file, content in left.items():
        file.write_bytes(content)
    path.rename(away)
    with pytest.raises(StoreRefusedError, match="its write-ahead log is there; move the file back"):
        SqliteStore(str(path), reactor=reactor).prepare()
    assert not path.exists()
    assert log.read_bytes() == left[log]
    away.rename(path)
    SqliteStore(str(path), reactor=reactor).prepare()
    assert count_in(path) == 4


def test_backup_beside_the_log_of_a_killed_process_is_refused_and_not_damaged(path: Path) -> None:
    for name, posts in (("old", 600), ("backup", 300)):
        make_store_file(path.with_name(name), posts)
    path.with_name("old").rename(path)
    log = Path(f"{path}-wal")
    with other_program(path, "UPDATE post SET post = substr(post, 2)", "DELETE FROM post WHERE id % 3 = 0"):
        kept = log.read_bytes()
    path.with_name("backup").rename(path)
    log.write_bytes(kept)
    before = path.read_bytes()
    with pytest.raises(StoreRefusedError, match=f"damaged.*remove {log}"):
        SqliteStore(str(path), reactor=reactor).prepare()
    assert (path.read_bytes(), log.read_bytes()) == (before, kept)
    log.unlink()
    SqliteStore(str(path), reactor=reactor).prepare()
    assert count_in(path) == 300


@ensureDeferred
async def test_running_store_makes_no_tables_in_an_empty_file(path: Path, stores: list[SqliteStore]) -> None:
    """A backup that is copied to the path is empty for a moment."""
    path.unlink()
    for store in stores:
        await leave(store)
    path.touch()
    for store in stores:
        assert not await is_available(store)
    assert path.stat().st_size == 0
    with pytest.raises(StoreMissingError, match="it is empty"):
        SqliteStore(str(path), reactor=reactor).prepare(create=False)
    new = path.with_name("new")
    make_store_file(new, posts=1)
    path.write_bytes(new.read_bytes())
    for store in stores:
        await until_available(store)


@ensureDeferred
async def test_store_that_starts_while_its_file_is_away_waits_for_it(path: Path) -> None:
    away = path.with_name("away")
    make_store_file(away, posts=1)
    store = SqliteStore(str(path), reactor=reactor)
    starting = started(store.start())
    assert not await is_available(store)
    assert not starting.called
    assert not path.exists()
    away.rename(path)
    await starting
    assert await store.add_post("more") == 2
    await store.stop()


@pytest.mark.parametrize("open_file", [DatabaseFile.open_writer, DatabaseFile.open_reader], ids=["writer", "reader"])
def test_file_that_is_swapped_while_it_is_opened_is_not_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, open_file: Any
) -> None:
    """Its log would be that of the other file."""
    make_store_file(path, posts=3)
    away, other = path.with_name("away"), path.with_name("other")
    make_store_file(other, posts=1)
    before = other.read_bytes()
    file = DatabaseFile(str(path))
    writer: sqlite3.Connection | None = None
    if open_file is DatabaseFile.open_reader:
        writer, _ = file.open_writer()
        writer.execute("INSERT INTO post (post) VALUES ('in the log')")
    connect = sqlite3.connect

    def swap_and_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        path.rename(away)
        other.rename(path)
        connection: sqlite3.Connection = connect(*arguments, **options)
        path.rename(other)
        away.rename(path)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", swap_and_connect)
        with pytest.raises(StoreUnavailableError, match="moved, removed or replaced"):
            open_file(file)
    assert other.read_bytes() == before
    if writer is not None:
        file.close_writer(writer)
    assert (count_in(path), count_in(other)) == (3 if writer is None else 4, 1)


def test_log_of_a_file_that_is_back_is_not_removed(path: Path) -> None:
    make_store_file(path)
    file = DatabaseFile(str(path))
    writer, held = file.open_writer()
    held.remove_log()
    assert all(identities(path))
    assert path.exists()
    file.close_writer(writer)


def test_file_is_not_opened_while_another_process_opens_or_closes_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store_file(path)
    monkeypatch.setattr("postd.store.sqlite.held_file._FOLDER_MAX_S", 0.01)
    with locked_folder(str(path)), pytest.raises(StoreUnavailableError, match="another process opens or closes it"):
        SqliteStore(str(path), reactor=reactor).prepare()


def test_file_that_is_gone_cannot_be_held(path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="No such file"):
        HeldFile(str(path))
