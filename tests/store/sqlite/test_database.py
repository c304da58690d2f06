"""The SQLite store: durability, locks, other programs, and a file that is replaced."""

import math
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
from twisted.internet.defer import Deferred, DeferredList, gatherResults
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from postd.errors import ChangesGoneError, StoreFullError, StoreUnavailableError
from postd.model import POST_ID_MAX
from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.sqlite.commit_detector import CommitDetector
from postd.store.sqlite.database import SqliteDatabase
from postd.store.sqlite.database_file import DatabaseFile
from postd.store.sqlite.logins import SqliteLogins
from postd.store.sqlite.nonce_uses import PART_COUNTS
from postd.store.sqlite.store import SqliteStore
from postd.store.sqlite.writer_thread import WriterThread
from tests.helpers import PATIENCE_S, locked, run_sql
from tests.store.contract import (
    KEYS,
    NOW,
    MakeStore,
    error_of,
    id_hash_of,
    make_passkey,
    make_session,
    make_token,
    open_store,
    started,
    until_available,
)
from tests.store.sqlite.files import busy, locks_of, make_store_file, reader_of, statements_of, turns_of, writer_of
from tests.store.sqlite.test_held_file import leave

reactor = cast(IReactor, global_reactor)


@ensureDeferred
async def test_acknowledged_post_is_in_the_file(store: Store, path: Path) -> None:
    await store.add_post("one")
    assert run_sql(path, "SELECT post FROM post") == [("one",)]


@ensureDeferred
async def test_commit_waits_for_the_disk(store: SqliteStore) -> None:
    """Only a power failure would show the difference otherwise."""
    writer = store.database.writer
    assert writer is not None
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@ensureDeferred
async def test_page_and_its_version_are_of_one_moment(store: SqliteStore, path: Path) -> None:
    await store.add_post("one")
    reader = store.database.reader
    assert reader is not None
    asked: list[str] = []

    def trace(statement: str) -> None:
        asked.append(statement)
        if "FROM version" in statement:  # another program writes between the two queries
            run_sql(path, "INSERT INTO post (post) VALUES ('two')")

    reader.set_trace_callback(trace)
    page = await store.list_posts(limit=10)
    reader.set_trace_callback(None)
    assert any("FROM version" in statement for statement in asked)
    assert (page.version.revision, len(page.posts)) in {(1, 1), (2, 2)}


@ensureDeferred
async def test_exhausted_ids_do_not_affect_other_writes(store: SqliteStore, path: Path) -> None:
    await store.add_post("one")
    run_sql(path, "INSERT INTO post (id, post) VALUES (9007199254740991, 'the last')")
    adding, updating = started(store.add_post("one too many")), started(store.replace_post(1, "uno"))
    await updating
    assert isinstance(await error_of(adding), StoreFullError)
    assert (await store.get_post(1)).post == "uno"


@ensureDeferred
async def test_batch_beyond_the_largest_id_stores_the_posts_that_have_ids(store: SqliteStore, path: Path) -> None:
    run_sql(path, f"INSERT INTO post (id, post) VALUES ({POST_ID_MAX - 4}, 'before')")
    adding = [started(store.add_post(f"post {n}")) for n in range(6)]
    outcomes = [outcome for _, outcome in await DeferredList(adding, consumeErrors=True)]
    ids = {outcome: n for n, outcome in enumerate(outcomes) if isinstance(outcome, int)}
    assert sorted(ids) == list(range(POST_ID_MAX - 3, POST_ID_MAX + 1))
    assert [type(one.value) for one in outcomes if isinstance(one, Failure)] == [StoreFullError] * 2
    for post_id, n in ids.items():
        assert (await store.get_post(post_id)).post == f"post {n}"
    assert (await store.version()).revision == len(ids) + 1


@ensureDeferred
async def test_changes_after_a_gap_in_the_log_are_left_out(store: SqliteStore, path: Path) -> None:
    for n in range(5):
        await store.add_post(f"post {n}")
    run_sql(path, "DELETE FROM change WHERE revision = 4")
    assert [change and change.revision for change in await store.list_changes(after=1, limit=9)] == [2, 3]
    assert isinstance(await error_of(store.list_changes(after=3, limit=9)), ChangesGoneError)
    assert [change and change.revision for change in await store.list_changes(after=4, limit=9)] == [5]


@ensureDeferred
async def test_emptied_log_refuses_older_revisions(store: SqliteStore, path: Path) -> None:
    await store.add_post("one")
    run_sql(path, "DELETE FROM change")
    assert isinstance(await error_of(store.list_changes(after=0, limit=1)), ChangesGoneError)
    assert await store.list_changes(after=1, limit=1) == []


@ensureDeferred
async def test_change_by_another_program_is_versioned_and_logged(store: Store, path: Path) -> None:
    version = await store.version()
    run_sql(path, "INSERT INTO post (post) VALUES ('by hand')")
    assert (await store.version()).revision == version.revision + 1
    assert [change and change.post for change in await store.list_changes(after=0, limit=9)] == ["by hand"]


@ensureDeferred
async def test_store_locked_at_start_opens_after_the_lock(make_store: MakeStore, path: Path) -> None:
    make_store_file(path)
    store = make_store()
    with locked(path, "EXCLUSIVE"):
        with pytest.raises(StoreUnavailableError):
            store.prepare()
        starting = started(store.start())
        assert isinstance(await error_of(store.version()), StoreUnavailableError)
        assert isinstance(await error_of(store.add_post("x")), StoreUnavailableError)
        assert not starting.called
    await starting
    assert await store.add_post("x") == 1
    await store.stop()


@ensureDeferred
async def test_store_can_be_stopped_while_waiting_for_a_lock(make_store: MakeStore, path: Path) -> None:
    make_store_file(path)
    store = make_store()
    with locked(path, "EXCLUSIVE"):
        starting = started(store.start())
        starting.addErrback(lambda _: None)
        await store.stop()
        await starting


@ensureDeferred
async def test_locked_write_waits_and_reads_do_not(store: Store, path: Path) -> None:
    with locked(path, "IMMEDIATE"):
        writing = started(store.add_post("waits"))
        assert (await store.list_posts(limit=1)).posts == []
        await deferLater(reactor, 0.1)
        assert not writing.called
    assert await writing == 1


@ensureDeferred
async def test_locked_read_is_retried(store: SqliteStore) -> None:
    errors = [busy(), busy()]

    def query(_: sqlite3.Connection) -> str:
        if errors:
            raise errors.pop()
        return "read"

    assert await store.database.read(query) == "read"


@ensureDeferred
async def test_read_that_stays_locked_fails(store: SqliteStore) -> None:
    def query(_: sqlite3.Connection) -> str:
        raise busy()

    assert isinstance(await error_of(store.database.read(query)), StoreUnavailableError)


@ensureDeferred
async def test_full_disk_refuses_writes_until_there_is_space(store: SqliteStore, path: Path) -> None:
    await store.add_post("kept")
    writer = store.database.writer  # a limit of the connection simulates a full disk
    assert writer is not None
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")
    full = False
    while not full:
        try:
            await store.add_post("x" * 140)
        except StoreFullError:
            full = True
    assert (await store.get_post(1)).post == "kept"
    before = (await store.list_posts(limit=1000)).posts
    writer.execute(f"PRAGMA max_page_count = {pages * 10}")
    post_id = await store.add_post("room again")
    assert (await store.list_posts(limit=1000)).posts == [*before, (post_id, "room again")]


@ensureDeferred
async def test_failure_and_recovery_are_logged_once(store: Store, path: Path) -> None:
    moved = path.with_suffix(".moved")
    with capturedLogs() as events:
        path.rename(moved)
        for _ in range(3):
            await error_of(store.add_post("x"))
        moved.rename(path)
        await store.add_post("x")
        await store.add_post("x")
    lines = [formatEvent(event) or "" for event in events]
    assert ["writing fails" in line for line in lines] == [True, False]
    assert lines[1] == "store: writing works again"


@ensureDeferred
async def test_unexpected_error_leaves_no_transaction_open(store: SqliteStore) -> None:
    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO post (post) VALUES ('half done')")
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        await store.database.write(broken)
    assert await store.add_post("next") == 1


@ensureDeferred
async def test_replaced_file_is_reopened(make_store: Callable[[], SqliteStore], path: Path) -> None:
    """A backup is restored while the server runs."""
    store = await open_store(make_store)
    backup = path.with_suffix(".backup")
    make_store_file(backup, posts=3)
    await gatherResults([started(store.add_post("only in the old one")) for _ in range(50)])
    backup.rename(path)
    error = await error_of(store.add_post("would be lost"))
    assert isinstance(error, StoreUnavailableError)
    assert "moved, removed or replaced" in error.why
    await leave(store)
    await until_available(store)
    assert await store.add_post("new") == 4
    assert len((await store.list_posts(limit=99)).posts) == 4
    await store.stop()
    assert run_sql(path, "PRAGMA integrity_check") == [("ok",)]


@ensureDeferred
async def test_stop_removes_the_log_of_a_replaced_file(make_store: MakeStore, path: Path) -> None:
    store = await open_store(make_store)
    await gatherResults([started(store.add_post("only in the old one")) for _ in range(50)])
    moved = path.with_suffix(".moved")
    path.rename(moved)
    make_store_file(path.with_suffix(".backup"), posts=3)
    path.with_suffix(".backup").rename(path)
    await store.stop()
    assert run_sql(path, "PRAGMA integrity_check", "SELECT count(*) FROM post") == [(3,)]
    # The acknowledged posts are in the file that was moved.
    assert run_sql(moved, "SELECT count(*) FROM post") == [(50,)]


async def until_unavailable(store: Store) -> None:
    """Wait until a store has noticed that its file was replaced."""
    deadline = time.monotonic() + PATIENCE_S
    with suppress(StoreUnavailableError):
        while await store.version():
            assert time.monotonic() < deadline
            await deferLater(reactor, 0.02)


@pytest.mark.slow
@ensureDeferred
@pytest.mark.parametrize("holds", ["SELECT * FROM post", "PRAGMA user_version"], ids=["reading", "idle"])
async def test_replaced_file_that_another_program_has_open_is_not_corrupted(
    make_store: MakeStore, path: Path, holds: str
) -> None:
    store = await open_store(make_store)
    await gatherResults([started(store.add_post("only in the old one")) for _ in range(300)])
    backup = path.with_suffix(".backup")
    make_store_file(backup, posts=100)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute(holds).fetchone()
        backup.rename(path)
        await deferLater(reactor, 2)
        if holds.startswith("SELECT"):  # it needs the log of the old file
            await until_unavailable(store)
        other.execute("ROLLBACK")
        await until_available(store)
        other.execute("INSERT INTO post (post) VALUES ('into the old file')")
        assert await store.add_post("into the new file") == 101
    assert len((await store.list_posts(limit=999)).posts) == 101
    await store.stop()
    assert run_sql(path, "PRAGMA integrity_check") == [("ok",)]
    assert run_sql(path, "SELECT count(*) FROM post") == [(101,)]


@ensureDeferred
async def test_removed_file_is_not_created_again(store: SqliteStore, path: Path) -> None:
    await store.add_post("one")
    moved = path.with_suffix(".moved")
    path.rename(moved)
    await leave(store)
    await deferLater(reactor, 1.8)
    assert not path.exists()
    assert isinstance(await error_of(store.version()), StoreUnavailableError)
    moved.rename(path)
    await until_available(store)
    assert (await store.get_post(1)).post == "one"


@ensureDeferred
async def test_only_uses_and_purges_are_committed_without_a_sync(store: SqliteStore) -> None:
    def synchronous() -> int:
        return int(writer_of(store).execute("PRAGMA synchronous").fetchone()[0])

    normal, full = 1, 2
    await store.use_nonce(b"nonce", 1, expires=NOW)
    assert synchronous() == normal
    for write in (
        lambda: store.add_post("one"),
        lambda: store.replace_post(1, "two"),
        lambda: store.delete_post(1),
        lambda: store.key("new"),
        lambda: store.add_session(id_hash_of(1), make_session()),
        lambda: store.renew_session(id_hash_of(1), seen=NOW, expires=NOW + 9),
        lambda: store.register_device(id_hash_of(1), "key"),
        lambda: store.bind_session(id_hash_of(1), bound=NOW),
        lambda: store.delete_sessions([id_hash_of(1)]),
        lambda: store.add_failure(KEYS, now=NOW, expires=NOW + 9),
        lambda: store.forget_failures(KEYS[0]),
    ):
        await store.use_nonce(b"nonce", 2, expires=NOW)
        assert synchronous() == normal
        await write()
        assert synchronous() == full
    await store.use_proof(b"proof", expires=NOW)
    assert synchronous() == normal
    together = [started(store.use_nonce(b"nonce", n, expires=NOW)) for n in range(3, 9)]
    together.insert(3, started(store.add_post("among them")))
    await gatherResults(together)
    assert synchronous() == full
    await store.purge_expired(now=NOW + 1000, wall=NOW + 1000)
    assert synchronous() == normal


class CountingThread(WriterThread):
    """A writer thread that counts the functions that it has run."""

    _runs = 0

    def run(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        self._runs += 1
        return super().run(function, *args)

    def count_runs(self) -> int:
        return self._runs

    def forget_runs(self) -> None:
        self._runs = 0


@pytest_twisted.async_yield_fixture
async def counted(path: Path) -> AsyncIterator[tuple[SqliteLogins, CountingThread]]:
    """A store of logins, and its thread. The write-ahead log is not empty: the first commit would have to sync it."""
    thread = CountingThread(reactor)
    logins = SqliteLogins(SqliteDatabase(DatabaseFile(str(path)), reactor=reactor, thread=thread))
    logins.prepare()
    await logins.start()
    await logins.key("any")
    thread.forget_runs()
    yield logins, thread
    await logins.stop()


def used_counts(path: Path, nonce: bytes = b"nonce") -> list[int]:
    rows = run_sql(path, f"SELECT part, used FROM nonce_use WHERE nonce = x'{nonce.hex()}'")
    numbers = [(part, int.from_bytes(used)) for part, used in rows]
    return [PART_COUNTS * part + bit for part, bits in numbers for bit in range(PART_COUNTS) if bits >> bit & 1]


def fill_nonces(path: Path, count: int) -> None:
    rows = [f"INSERT INTO nonce_use VALUES (randomblob(9), 0, x'02', {number})" for number in range(count)]
    run_sql(path, "BEGIN", *rows, "COMMIT")


def use_nonces(logins: SqliteLogins, *numbers: int) -> Deferred[list[bool]]:
    return gatherResults([started(logins.use_nonce(b"nonce", number, expires=NOW)) for number in numbers])


@ensureDeferred
async def test_nonce_counts_are_committed_on_the_thread_of_the_reactor(
    counted: tuple[SqliteLogins, CountingThread], path: Path
) -> None:
    logins, thread = counted
    assert await use_nonces(logins, 1, 2, 2, 3) == [True, True, False, True]
    assert used_counts(path) == [1, 2, 3]
    assert not thread.count_runs()
    await logins.add_session(id_hash_of(1), make_session())  # waits for the disk
    assert thread.count_runs() == 1


@ensureDeferred
async def test_nonce_counts_wait_in_the_writer_thread_for_another_process(
    counted: tuple[SqliteLogins, CountingThread], path: Path
) -> None:
    logins, thread = counted
    await use_nonces(logins, 1)
    with locked(path, "IMMEDIATE"):
        using = use_nonces(logins, 1, 2)
        await deferLater(reactor, 0.1)  # the reactor runs
        assert not using.called
    assert await using == [False, True]
    assert thread.count_runs() == 1


@ensureDeferred
async def test_nonce_counts_wait_in_the_writer_thread_for_the_turn_of_another_process(
    counted: tuple[SqliteLogins, CountingThread], path: Path
) -> None:
    logins, thread = counted
    with turns_of(path) as turns, turns.turn():
        using = use_nonces(logins, 1)
        await deferLater(reactor, 0.1)
        assert not using.called
    assert await using == [True]
    assert thread.count_runs() == 1


@ensureDeferred
async def test_large_batch_of_nonce_counts_is_committed_in_the_writer_thread(
    counted: tuple[SqliteLogins, CountingThread],
) -> None:
    logins, thread = counted
    assert all(await use_nonces(logins, *range(1, 33)))
    assert thread.count_runs() == 0
    assert all(await use_nonces(logins, *range(33, 66)))
    assert thread.count_runs() == 1


@ensureDeferred
async def test_nonce_counts_are_not_written_to_a_file_that_was_moved(
    counted: tuple[SqliteLogins, CountingThread], path: Path
) -> None:
    logins, _ = counted
    assert await use_nonces(logins, 1) == [True]
    moved = path.with_suffix(".moved")
    path.rename(moved)
    assert isinstance(await error_of(logins.use_nonce(b"nonce", 2, expires=NOW)), StoreUnavailableError)
    moved.rename(path)
    assert used_counts(path) == [1]
    assert await use_nonces(logins, 1, 2) == [False, True]


@ensureDeferred
async def test_unexpected_error_of_a_write_fails_its_batch_only(counted: tuple[SqliteLogins, CountingThread]) -> None:
    logins, thread = counted
    too_large = 2**63
    with pytest.raises(OverflowError):
        await logins.use_nonce(b"nonce", 1, expires=too_large)
    assert thread.count_runs() == 0
    assert await use_nonces(logins, 1) == [True]
    assert await logins.key("other")


@ensureDeferred
async def test_nonce_counts_without_space_are_refused_until_there_is_some(
    counted: tuple[SqliteLogins, CountingThread],
) -> None:
    logins, thread = counted
    writer = logins.database.writer
    assert writer is not None
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")
    used = 0
    while thread.count_runs() == 0:
        using = [started(logins.use_nonce(os.urandom(200), 1, expires=NOW)) for _ in range(30)]
        outcomes = await DeferredList(using, consumeErrors=True)
        used += sum(succeeded for succeeded, _ in outcomes)
        if not all(succeeded for succeeded, _ in outcomes):
            break
    assert {type(one.value) for _, one in outcomes if isinstance(one, Failure)} == {StoreFullError}
    assert thread.count_runs() == 0
    writer.execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert await use_nonces(logins, 1, 1) == [True, False]
    assert len(writer.execute("SELECT nonce FROM nonce_use").fetchall()) == used + 1


@ensureDeferred
async def test_nonce_counts_wait_for_work_in_the_writer_thread(counted: tuple[SqliteLogins, CountingThread]) -> None:
    logins, thread = counted
    go_on = Event()
    working = started(logins.database.run_on_writer(lambda _: go_on.wait(PATIENCE_S)))
    using = use_nonces(logins, 1)
    await deferLater(reactor, 0.05)
    assert not using.called
    go_on.set()
    assert await working
    assert await using == [True]
    assert thread.count_runs() == 2


@ensureDeferred
async def test_log_of_nonce_counts_alone_is_checkpointed_in_the_writer_thread(
    counted: tuple[SqliteLogins, CountingThread], path: Path
) -> None:
    logins, thread = counted
    batches = 1500
    for number in range(batches):
        await use_nonces(logins, number)
    assert 0 < thread.count_runs() < batches / 5
    checkpoint_pages, page_bytes = 1000, 4096
    assert Path(f"{path}-wal").stat().st_size < 1.1 * checkpoint_pages * page_bytes


@ensureDeferred
async def test_log_is_restarted_in_the_writer_thread(counted: tuple[SqliteLogins, CountingThread], path: Path) -> None:
    """The first commit after a complete checkpoint, of any program, syncs the log."""
    logins, thread = counted
    assert await use_nonces(logins, 1) == [True]
    assert run_sql(path, "PRAGMA wal_checkpoint")[0][0] == 0
    assert await use_nonces(logins, 2) == [True]
    assert thread.count_runs() == 1
    assert await use_nonces(logins, 3) == [True]
    assert thread.count_runs() == 1


@ensureDeferred
async def test_checkpoints_are_made_in_the_writer_thread_whatever_the_nonces(
    counted: tuple[SqliteLogins, CountingThread], path: Path
) -> None:
    """Random nonces change many pages."""
    logins, thread = counted
    fill_nonces(path, 20_000)
    await logins.key("other")
    thread.forget_runs()
    detector = CommitDetector(str(path))
    quick = 0
    for _ in range(200):
        runs = thread.count_runs()
        nonces = [os.urandom(9) for _ in range(32)]
        _, copied = detector.log_frames()
        assert all(await gatherResults([started(logins.use_nonce(nonce, 1, expires=NOW)) for nonce in nonces]))
        if thread.count_runs() == runs:
            quick += 1
            frames, copied_now = detector.log_frames()
            assert copied_now == copied
            assert frames < 1000
    assert 20 < quick < 200
    await logins.stop()  # before the detector is closed: `SharedFile.close`
    detector.close()
    await logins.start()


@ensureDeferred
async def test_counts_are_committed_without_the_writer_thread_but_for_checkpoints(
    counted: tuple[SqliteLogins, CountingThread], path: Path
) -> None:
    """A log that is too long for that is copied at the first commit in the thread, and restarted at the second."""
    logins, thread = counted
    fill_nonces(path, 5000)
    await logins.key("other")
    thread.forget_runs()
    restarts, before = 0, 0
    detector = CommitDetector(str(path))
    for _ in range(200):
        uses = [started(logins.use_nonce(os.urandom(9), 1, expires=NOW)) for _ in range(8)]
        assert all(await gatherResults(uses))
        frames, _ = detector.log_frames()
        restarts, before = restarts + (frames < before), frames
    runs = thread.count_runs()
    await logins.stop()  # before the detector is closed: `SharedFile.close`
    detector.close()
    await logins.start()
    assert restarts > 0
    assert runs <= 2 * (restarts + 1)


@ensureDeferred
async def test_purge_without_expired_rows_begins_no_transaction(store: SqliteStore, path: Path) -> None:
    await store.add_session(id_hash_of(1), make_session())
    await store.add_failure(KEYS, now=NOW, expires=NOW + 300)
    await store.use_nonce(b"nonce", 1, expires=NOW)
    await store.purge_expired(now=NOW + 40, wall=NOW)  # notes the time
    with statements_of(writer_of(store)) as done:
        await store.purge_expired(now=NOW + 59, wall=NOW)
    assert done == []
    with locked(path, "IMMEDIATE"):  # nor a lock needed
        await store.purge_expired(now=NOW + 59, wall=NOW + 59)
    with statements_of(writer_of(store)) as done:
        await store.purge_expired(now=NOW + 60, wall=NOW + 60)
    assert any(statement.startswith("BEGIN") for statement in done)
    assert run_sql(path, "SELECT count(*) FROM nonce_use") == [(0,)]


@ensureDeferred
async def test_purge_of_an_empty_store_begins_no_transaction(store: SqliteStore) -> None:
    with statements_of(writer_of(store)) as done:
        await store.purge_expired(now=NOW, wall=NOW)
    assert done == []


@ensureDeferred
async def test_purge_uses_indexes(store: SqliteStore) -> None:
    with statements_of(reader_of(store)) as asked:
        await store.purge_expired(now=NOW, wall=NOW)
    assert len(asked) == 8  # the clock, sessions, failures, idempotency keys, counts of nonces, proofs, tokens, resets
    for statement in asked[1:]:
        plan = reader_of(store).execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        assert all(row[3].startswith("SEARCH") for row in plan), plan


@ensureDeferred
async def test_purge_of_tokens_that_never_expire_begins_no_transaction(store: SqliteStore) -> None:
    await store.add_token(b"hash", make_token(1, expires=math.inf))
    with statements_of(writer_of(store)) as done:
        await store.purge_expired(now=NOW, wall=NOW)
    assert done == []


@ensureDeferred
async def test_credentials_are_found_by_indexes(store: SqliteStore) -> None:
    calls: list[Any] = [
        store.get_token(b"1"),
        store.list_tokens("alice"),
        store.get_passkey(b"1"),
        store.list_passkeys("alice"),
        store.get_password_reset(b"1"),
        store.list_sessions_of("alice"),
        store.add_token(b"1", make_token(1)),
        store.use_token(b"1", used=NOW),
        store.delete_tokens(["1"], account="alice"),
        store.add_passkey(make_passkey(1)),
        store.use_passkey(b"1", used=NOW, sign_count=1, backed_up=True),
        store.rename_passkey("1", "", account="alice"),
        store.delete_passkeys(["1"]),
        store.use_password_reset(b"1"),
        store.delete_credentials_of({"alice": b"entry"}),
    ]
    with statements_of(reader_of(store)) as asked, statements_of(writer_of(store)) as done:
        for call in calls:
            await call
    searches = [one for one in asked + done if one.split()[0] in {"SELECT", "UPDATE", "DELETE"}]
    assert len(searches) == 18  # one each, three for adding, three for the last
    for statement in searches:
        plan = [row[3] for row in reader_of(store).execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert plan[0].startswith("SEARCH"), (statement, plan)
        assert plan[1:] in ([], ["USE TEMP B-TREE FOR ORDER BY"]), (statement, plan)


@ensureDeferred
async def test_end_of_sessions_at_a_provider_uses_indexes(store: SqliteStore) -> None:
    for claims, index in (
        ({"subject": "1"}, "session_of_subject (fingerprint=? AND subject=?)"),
        ({"sid": "s"}, "session_of_sid (fingerprint=? AND sid=?)"),
        ({"subject": "1", "sid": "s"}, "session_of_sid (fingerprint=? AND sid=?)"),
    ):
        with statements_of(writer_of(store)) as done:
            await store.end_sessions_at(b"provider", **claims)
        (delete,) = [statement for statement in done if statement.startswith("DELETE")]
        plan = reader_of(store).execute(f"EXPLAIN QUERY PLAN {delete}").fetchall()
        # Of the deletion; later rows are of its trigger.
        assert plan[0][3].endswith(f"INDEX {index}"), plan


@ensureDeferred
async def test_lock_of_sqlite_on_the_shared_memory_is_kept(store: Store, path: Path) -> None:
    """Byte 128: a process that does not find the lock truncates the shared memory, which kills this one."""
    await store.version()
    assert ("READ", 128) in locks_of(Path(f"{path}-shm"))
