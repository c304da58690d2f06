"""The cache of query results, and the commit detector."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.task import deferLater

from postd.reactor import IReactor
from postd.store.sqlite.commit_detector import CommitDetector
from postd.store.sqlite.database import CACHED_RESULTS_MAX
from postd.store.sqlite.store import SqliteStore
from tests.helpers import run_sql
from tests.store.contract import (
    KEYS,
    NOW,
    MakeStore,
    id_hash_of,
    make_session,
    open_store,
    started,
    until_available,
)
from tests.store.sqlite.files import busy, make_store_file, reader_of, statements_of

reactor = cast(IReactor, global_reactor)


@ensureDeferred
async def test_query_results_are_cached_until_a_commit(store: SqliteStore, path: Path) -> None:
    await store.add_session(id_hash_of(1), make_session())
    with statements_of(reader_of(store)) as asked:
        for _ in range(5):
            assert await store.get_session(id_hash_of(1)) == make_session()
            assert await store.get_session(id_hash_of(2)) is None
            assert await store.count_failures(KEYS, now=NOW) == {}
    assert len(asked) == 3
    with statements_of(reader_of(store)) as asked:
        run_sql(path, "INSERT INTO post (post) VALUES ('something else')")
        await store.get_session(id_hash_of(1))
    assert len(asked) == 1


@ensureDeferred
async def test_commit_of_another_program_is_visible_at_once(store: SqliteStore, path: Path) -> None:
    """Cached results are never older than the last commit."""
    await store.add_session(id_hash_of(1), make_session())
    failure = f"INSERT INTO failure (key, expires) VALUES (x'{KEYS[0].hex()}', {NOW + 300})"
    for n in range(1, 200):
        for _ in range(2):
            session = await store.get_session(id_hash_of(1))
            assert session is not None
            counted = await store.count_failures(KEYS, now=NOW)
        run_sql(path, f"UPDATE session SET seen = {n}", failure)
        session = await store.get_session(id_hash_of(1))
        counted = await store.count_failures(KEYS, now=NOW)
        assert session is not None
        assert (session.seen, counted[KEYS[0]].count) == (n, n)
    run_sql(path, "DELETE FROM session", "DELETE FROM failure")
    assert await store.get_session(id_hash_of(1)) is None
    assert await store.count_failures(KEYS, now=NOW) == {}


@ensureDeferred
async def test_commit_after_a_checkpoint_is_visible_at_once(store: SqliteStore, path: Path) -> None:
    """A checkpoint resets the log and the numbers in its header."""
    await store.add_session(id_hash_of(1), make_session())
    for n in range(1, 6):
        for checkpoint in ("PASSIVE", "FULL", "RESTART", "TRUNCATE"):
            assert await store.get_session(id_hash_of(1)) is not None
            run_sql(path, f"PRAGMA wal_checkpoint({checkpoint})", "DELETE FROM session")
            assert await store.get_session(id_hash_of(1)) is None
            run_sql(path, f"PRAGMA wal_checkpoint({checkpoint})")
            await store.add_session(id_hash_of(1), make_session(created=NOW + n))
            assert await store.get_session(id_hash_of(1)) == make_session(created=NOW + n)
            run_sql(path, f"PRAGMA wal_checkpoint({checkpoint})")


@ensureDeferred
async def test_uncommitted_write_is_not_visible(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute(f"INSERT INTO failure (key, expires) VALUES (x'{KEYS[0].hex()}', {NOW + 300})")
        other.execute("PRAGMA cache_spill = 1")
        assert await store.count_failures(KEYS, now=NOW) == {}
        other.execute("ROLLBACK")
        assert await store.count_failures(KEYS, now=NOW) == {}
        other.execute(f"INSERT INTO failure (key, expires) VALUES (x'{KEYS[0].hex()}', {NOW + 300})")
        assert len(await store.count_failures(KEYS, now=NOW)) == 1


@ensureDeferred
async def test_cache_of_query_results_is_bounded(store: SqliteStore) -> None:
    for n in range(CACHED_RESULTS_MAX + 2):
        assert await store.get_session(id_hash_of(n)) is None
    with statements_of(reader_of(store)) as asked:
        assert await store.get_session(id_hash_of(CACHED_RESULTS_MAX + 1)) is None
        assert len(asked) == 0
        assert await store.get_session(id_hash_of(0)) is None
        assert len(asked) == 1


@ensureDeferred
async def test_cache_is_emptied_when_the_file_is_replaced(make_store: MakeStore, path: Path) -> None:
    store = await open_store(make_store)
    await store.add_session(id_hash_of(1), make_session())
    key = await store.key("one")
    assert await store.get_session(id_hash_of(1)) is not None
    backup = path.with_suffix(".backup")
    make_store_file(backup)
    backup.rename(path)
    await deferLater(reactor, 1.1)  # time for the next check of the file
    await until_available(store)
    assert await store.get_session(id_hash_of(1)) is None
    assert await store.key("one") != key
    await store.stop()


@ensureDeferred
async def test_result_of_a_retried_read_is_not_cached_for_a_newer_state(store: SqliteStore, path: Path) -> None:
    """A read waits for a lock, while others do not and there is a commit."""
    await store.add_session(id_hash_of(1), make_session())
    errors = [busy()]

    def slow(connection: sqlite3.Connection) -> str:
        if errors:
            raise errors.pop()
        return str(connection.execute("SELECT username FROM session").fetchone()[0])

    asking = started(store.database.read_cached("question", slow))
    run_sql(path, "UPDATE session SET username = 'bob'")
    assert await asking == "bob"
    run_sql(path, "UPDATE session SET username = 'carol'")
    assert await store.database.read_cached("question", slow) == "carol"


@pytest.mark.parametrize("header", [b"", b"\0" * 136, b"\x01\0\0\0" * 34, b"\xff" * 32768], ids=["no", "0", "1", "ff"])
@ensureDeferred
async def test_shared_memory_of_another_format_disables_the_cache(
    make_store: MakeStore, path: Path, monkeypatch: pytest.MonkeyPatch, header: bytes
) -> None:
    other = path.with_suffix(".other")
    Path(f"{other}-shm").write_bytes(header)
    with pytest.raises(OSError, match="-shm"):
        CommitDetector(str(other))
    monkeypatch.setattr("postd.store.sqlite.database.CommitDetector", lambda _: CommitDetector(str(other)))
    store = await open_store(make_store)
    for n in range(3):
        await store.add_session(id_hash_of(n), make_session())
        assert await store.get_session(id_hash_of(n)) == make_session()
        run_sql(path, "DELETE FROM session")
        assert await store.get_session(id_hash_of(n)) is None
    await store.stop()


@ensureDeferred
async def test_commit_detector_changes_with_each_commit_only(store: SqliteStore, path: Path) -> None:
    detector = CommitDetector(str(path))
    seen = {detector.read()}
    for n in range(50):
        run_sql(path, "INSERT INTO post (post) VALUES ('x')")
        assert detector.read() not in seen
        seen.add(detector.read())
        run_sql(path, "SELECT * FROM post", "BEGIN IMMEDIATE", "DELETE FROM post", "ROLLBACK")
        assert detector.read() in seen
        assert len(seen) == n + 2
    detector.close()
