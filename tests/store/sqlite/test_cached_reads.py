"""The cache of query results, and the commit detector."""

import sqlite3
import struct
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor

from postd.protocol.password_reset import PasswordReset
from postd.reactor import IReactor
from postd.store.interface import Failures
from postd.store.sqlite.commit_detector import CommitDetector
from postd.store.sqlite.read_cache import CACHED_RESULTS_MAX, TABLES, ReadCache
from postd.store.sqlite.store import SqliteStore
from tests.helpers import result_of, run_sql
from tests.store.contract import (
    KEYS,
    NOW,
    MakeStore,
    id_hash_of,
    make_passkey,
    make_session,
    make_token,
    open_store,
    started,
    until_available,
)
from tests.store.sqlite.files import busy, make_store_file, reader_of, statements_of
from tests.store.sqlite.test_held_file import leave

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
async def test_own_commit_removes_only_results_of_what_it_changes(store: SqliteStore) -> None:
    session, nonce, keys = id_hash_of(1), b"nonce", KEYS
    tables = ["version", "session", "failure", "token"]

    async def read_all() -> list[str]:
        """Read something of each table; return what had to be asked of the file."""
        with statements_of(reader_of(store)) as asked:
            await store.version()
            await store.get_session(session)
            await store.count_failures(keys, now=NOW)
            await store.get_token(b"hash")
        return [next(name for name in tables if name in text) for text in asked]

    await store.add_session(session, make_session())
    assert await read_all() == tables
    writes: list[tuple[Callable[[], Awaitable[object]], list[str]]] = [
        (lambda: store.use_nonce(nonce, 1, expires=NOW), []),
        (lambda: store.use_nonce(nonce, 1, expires=NOW), []),  # nothing is committed
        (lambda: store.key("x"), []),
        (lambda: store.renew_session(session, seen=1.0, expires=NOW), ["session"]),
        (lambda: store.register_device(session, "key"), ["session"]),
        (lambda: store.bind_session(session, bound=NOW), ["session"]),
        (lambda: store.add_failure(keys, now=NOW, expires=NOW + 1), ["failure"]),
        (lambda: store.add_post("x"), ["version"]),
        (lambda: store.replace_post(1, "y"), ["version"]),
        (lambda: store.add_token(b"hash", make_token(1)), ["token"]),
        (lambda: store.use_token(b"hash", used=NOW), ["token"]),
        (lambda: store.delete_tokens(["token1"]), ["token"]),
        (lambda: store.add_token(b"hash", make_token(1)), ["token"]),
        (lambda: store.delete_credentials_of({"alice": None}), ["token"]),
        (lambda: store.add_passkey(make_passkey(1)), []),
        (lambda: store.use_passkey(id_hash_of(1), used=NOW, sign_count=1, backed_up=True), []),
        (lambda: store.delete_passkeys(["key1"]), []),
        (lambda: store.add_password_reset(b"1", PasswordReset("alice", b"", NOW)), []),
        (lambda: store.use_password_reset(b"1"), []),
        (lambda: store.purge_expired(now=NOW + 10, wall=NOW + 10), tables),
    ]
    for write, asked in writes:
        await write()
        assert await read_all() == asked
        assert await read_all() == []


@ensureDeferred
async def test_own_commit_hides_no_commit_of_another_program(store: SqliteStore, path: Path) -> None:
    """Before it, and after it before the next read."""
    for n in range(1, 50):
        assert await store.count_failures(KEYS, now=NOW) == ({} if n == 1 else _failures(2 * n - 2))
        run_sql(path, _FAILURE)
        await store.use_nonce(b"nonce", n, expires=NOW)
        run_sql(path, _FAILURE)
        assert await store.count_failures(KEYS, now=NOW) == _failures(2 * n)


_FAILURE = f"INSERT INTO failure (key, expires) VALUES (x'{KEYS[0].hex()}', {NOW + 300})"


def _failures(count: int) -> dict[bytes, Failures]:
    return {KEYS[0]: Failures(count, NOW + 300)}


async def _run(query: Callable[[Any], object]) -> object:
    return query(None)


class ReadCacheTests:
    """States are made up: only their count of commits is looked at."""

    def state(self, count: int, rest: bytes = b"") -> bytes:
        return b"12345678" + struct.pack("=I", count) + rest

    def filled(self, state: bytes) -> ReadCache:
        cache = ReadCache(_run)
        for table in TABLES:
            self.fill(cache, table, state)
        return cache

    def fill(self, cache: ReadCache, table: str, state: bytes) -> None:
        cache.detector = Mock(read=lambda: state)
        result_of(cache.read(table, 1, lambda _: table))

    def kept(self, cache: ReadCache, state: bytes) -> list[str]:
        cache.detector = Mock(read=lambda: state)
        kept = []
        for table in TABLES:
            with suppress(ZeroDivisionError):  # the query is run, and its result is not cached
                kept.append(result_of(cache.read(table, 1, lambda _: 1 // 0)))
        return kept

    def test_results_are_of_one_state(self) -> None:
        cache = self.filled(self.state(1))
        assert self.kept(cache, self.state(1)) == list(TABLES)
        assert self.kept(cache, self.state(2)) == []
        assert self.kept(self.filled(self.state(1)), b"") == []

    def test_noted_commits_are_followed_one_after_the_other(self) -> None:
        cache = self.filled(self.state(1))
        cache.note_commit(self.state(1), self.state(2), ())
        cache.note_commit(self.state(2), self.state(3), ("post",))
        assert self.kept(cache, self.state(3)) == ["session", "failure", "personal_token"]
        cache.note_commit(self.state(3), self.state(4), ("session",))
        assert self.kept(cache, self.state(4)) == ["failure", "personal_token"]

    def test_count_wraps_around(self) -> None:
        cache = self.filled(self.state(0xFFFFFFFF))
        cache.note_commit(self.state(0xFFFFFFFF), self.state(0), ())
        assert self.kept(cache, self.state(0)) == list(TABLES)

    def test_foreign_commit_empties_it(self) -> None:
        for before, after, now in (
            (self.state(2), self.state(3), self.state(3)),  # before ours
            (self.state(1), self.state(2), self.state(3)),  # after ours
            (self.state(1), self.state(3), self.state(3)),  # between the two looks at the header
            (self.state(1), self.state(2, b"torn"), self.state(2)),  # while it was read
        ):
            cache = self.filled(self.state(1))
            cache.note_commit(before, after, ())
            assert self.kept(cache, now) == []

    def test_commits_that_were_overtaken_are_ignored(self) -> None:
        """A read may see a commit before the writer thread has noted it."""
        cache = self.filled(self.state(1))
        assert self.kept(cache, self.state(2)) == []
        self.fill(cache, "post", self.state(2))
        cache.note_commit(self.state(1), self.state(2), TABLES)
        cache.note_commit(self.state(2), self.state(3), ("failure",))
        assert self.kept(cache, self.state(3)) == ["post"]

    def test_commits_are_remembered_within_bounds(self) -> None:
        cache = self.filled(self.state(0))
        for n in range(100):
            cache.note_commit(self.state(n), self.state(n + 1), ())
        assert self.kept(cache, self.state(100)) == []


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
async def test_cache_is_emptied_when_the_file_is_replaced(store: SqliteStore, path: Path) -> None:
    await store.add_session(id_hash_of(1), make_session())
    key = await store.key("one")
    assert await store.get_session(id_hash_of(1)) is not None
    backup = path.with_suffix(".backup")
    make_store_file(backup)
    backup.rename(path)
    await leave(store)
    await until_available(store)
    assert await store.get_session(id_hash_of(1)) is None
    assert await store.key("one") != key


@ensureDeferred
async def test_result_of_a_retried_read_is_not_cached_for_a_newer_state(store: SqliteStore, path: Path) -> None:
    """A read waits for a lock, while others do not and there is a commit."""
    await store.add_session(id_hash_of(1), make_session())
    errors = [busy()]

    def slow(connection: sqlite3.Connection) -> str:
        if errors:
            raise errors.pop()
        return str(connection.execute("SELECT username FROM session").fetchone()[0])

    asking = started(store.database.cache.read("session", "question", slow))
    run_sql(path, "UPDATE session SET username = 'bob'")
    assert await asking == "bob"
    run_sql(path, "UPDATE session SET username = 'carol'")
    assert await store.database.cache.read("session", "question", slow) == "carol"


@pytest.mark.parametrize("header", [b"", b"\0" * 136, b"\x01\0\0\0" * 34, b"\xff" * 32768], ids=["no", "0", "1", "ff"])
@ensureDeferred
async def test_shared_memory_of_another_format_disables_the_cache(
    make_store: MakeStore, path: Path, monkeypatch: pytest.MonkeyPatch, header: bytes
) -> None:
    other = path.with_suffix(".other")
    Path(f"{other}-shm").write_bytes(header)
    with pytest.raises(OSError, match="-shm"):
        CommitDetector(str(other))
    monkeypatch.setattr("postd.store.sqlite.committer.CommitDetector", lambda _: CommitDetector(str(other)))
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
