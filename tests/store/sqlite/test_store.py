"""The SQLite stores: the contract, and failures of a file."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import DeferredList, gatherResults
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from postd.errors import ChangesGoneError, StoreFullError, StoreRefusedError, StoreUnavailableError
from postd.model import POST_ID_MAX
from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.sqlite.commit_detector import CommitDetector
from postd.store.sqlite.database import CACHED_RESULTS_MAX
from postd.store.sqlite.schema_files import schema_steps
from postd.store.sqlite.store import MemoryStore, SqliteStore
from tests.helpers import locked, run_sql
from tests.store.contract import (
    KEYS,
    NOW,
    LastingLoginStoreContract,
    LastingStoreContract,
    LoginStoreContract,
    MakeStore,
    PostStoreContract,
    check_text_comes_back,
    error_of,
    id_hash_of,
    make_session,
    open_store,
    started,
    until_available,
    with_any_text,
)
from tests.store.contract import store as store  # noqa: PLC0414 - a fixture

reactor = cast(IReactor, global_reactor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "posts.db"


class SqliteStoreTests(LastingStoreContract, LastingLoginStoreContract):
    @pytest.fixture
    def make_store(self, path: Path) -> MakeStore:
        return lambda: SqliteStore(str(path), reactor=reactor)

    @with_any_text
    @ensureDeferred
    async def test_text_is_stored_exactly(self, store: Store, text: str) -> None:
        await check_text_comes_back(store, text)


class MemoryStoreTests(PostStoreContract, LoginStoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda: MemoryStore(reactor=reactor)

    @with_any_text
    @ensureDeferred
    async def test_text_is_stored_exactly(self, store: Store, text: str) -> None:
        await check_text_comes_back(store, text)

    @ensureDeferred
    async def test_memory_store_leaves_no_file_behind(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        store = await open_store(lambda: MemoryStore(reactor=reactor))
        assert await store.add_post("x") == 1
        assert (await store.get_post(1)).post == "x"
        assert list(tmp_path.iterdir()) == []  # not even while it runs, so that kill -9 leaves nothing either
        await store.stop()


def test_new_file_has_mode_0600(path: Path) -> None:
    old = os.umask(0)
    try:
        SqliteStore(str(path), reactor=reactor).prepare()
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    SqliteStore(str(path), reactor=reactor).prepare()
    assert run_sql(path, "SELECT count(*) FROM post") == [(0,)]


def make_store_file(path: Path, posts: int = 0) -> None:
    SqliteStore(str(path), reactor=reactor).prepare()
    run_sql(path, "BEGIN", *["INSERT INTO post (post) VALUES ('" + "x" * 140 + "')"] * posts, "COMMIT")


def _text_file(path: Path) -> None:
    path.write_text("not a database at all\n" * 200)


def _overwritten(path: Path) -> None:
    make_store_file(path, posts=500)
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xa5" * 4096 * 4)


def _cut_off(path: Path) -> None:
    make_store_file(path, posts=500)
    os.truncate(path, path.stat().st_size // 2)


def _foreign(path: Path) -> None:
    run_sql(path, "CREATE TABLE post (id INTEGER PRIMARY KEY, post TEXT)")


def _without_trigger(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "DROP TRIGGER post_added")


def _without_version(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "DELETE FROM version")


def _half_made(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "PRAGMA user_version = 0")


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere.db")


def _newer(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "PRAGMA user_version = 4711")


def _in_no_folder(path: Path) -> None:
    path.parent.rmdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_text_file, "not an SQLite database"),
        (_overwritten, "damaged"),
        (_cut_off, "damaged"),
        (_foreign, "another program"),
        (_without_trigger, "not those of postd (post_added)"),
        (_without_version, "not those of postd (version has no row)"),
        (_half_made, "not those of postd (table post already exists)"),
        (_dangling, "there is no such file"),
        (_newer, "newer postd (schema 4711; this one knows 4)"),
        (_in_no_folder, "cannot be created: No such file or directory"),
        (Path.mkdir, "not a file"),
        (_pipe, "not a file"),
    ],
)
def test_unusable_file_is_refused_in_one_line(path: Path, spoil: Callable[[Path], None], why: str) -> None:
    spoil(path)
    with pytest.raises(StoreRefusedError) as caught:
        SqliteStore(str(path), reactor=reactor).prepare()
    assert why in caught.value.why
    assert str(path) in caught.value.why
    assert "\n" not in caught.value.why


def test_foreign_views_in_the_file_are_accepted(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "CREATE VIEW shout AS SELECT upper(post) FROM post")
    SqliteStore(str(path), reactor=reactor).prepare()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO post (post) VALUES (x'00ff')",
        "INSERT INTO post (post) VALUES ('')",
        "INSERT INTO post (id, post) VALUES (9007199254740992, 'x')",
        "INSERT INTO post (id, post) VALUES (0, 'x')",
        "UPDATE post SET id = 7",
        "INSERT OR REPLACE INTO post (id, post) VALUES (1, 'y')",
    ],
)
def test_table_refuses_invalid_posts(path: Path, statement: str) -> None:
    make_store_file(path, posts=1)
    with pytest.raises(sqlite3.IntegrityError):
        run_sql(path, statement)


def test_refused_file_is_not_changed(path: Path) -> None:
    _foreign(path)
    before = path.read_bytes()
    with pytest.raises(StoreRefusedError):
        SqliteStore(str(path), reactor=reactor).prepare()
    assert path.read_bytes() == before


def test_failed_schema_step_is_rolled_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*schema_steps(), "CREATE TABLE next (id);\nCREATE TABLE post (id);\n"]
    make_store_file(path)
    monkeypatch.setattr("postd.store.sqlite.database_file.schema_steps", lambda: broken)
    with pytest.raises(StoreRefusedError, match="already exists"):
        SqliteStore(str(path), reactor=reactor).prepare()
    assert run_sql(path, "PRAGMA user_version") == [(len(broken) - 1,)]
    assert run_sql(path, "SELECT count(*) FROM sqlite_master WHERE name = 'next'") == [(0,)]


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
    assert [change.revision for change in await store.list_changes(after=1, limit=9)] == [2, 3]
    assert isinstance(await error_of(store.list_changes(after=3, limit=9)), ChangesGoneError)
    assert [change.revision for change in await store.list_changes(after=4, limit=9)] == [5]


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
    assert [change.post for change in await store.list_changes(after=0, limit=9)] == ["by hand"]


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


def busy() -> sqlite3.OperationalError:
    """Return a rare error of reads in WAL mode: another process is recovering the log after a crash."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY_RECOVERY"
    return error


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
async def test_replaced_file_is_reopened(make_store: MakeStore, path: Path) -> None:
    """A backup is restored while the server runs."""
    store = await open_store(make_store)
    backup = path.with_suffix(".backup")
    make_store_file(backup, posts=3)
    await gatherResults([started(store.add_post("only in the old one")) for _ in range(50)])
    backup.rename(path)
    error = await error_of(store.add_post("would be lost"))
    assert isinstance(error, StoreUnavailableError)
    assert "moved, removed or replaced" in error.why
    await deferLater(reactor, 1.1)  # time for the next check of the file
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
            assert isinstance(await error_of(store.version()), StoreUnavailableError)
        other.execute("ROLLBACK")
        await until_available(store)
        other.execute("INSERT INTO post (post) VALUES ('into the old file')")
        assert await store.add_post("into the new file") == 101
    assert len((await store.list_posts(limit=999)).posts) == 101
    await store.stop()
    assert run_sql(path, "PRAGMA integrity_check") == [("ok",)]
    assert run_sql(path, "SELECT count(*) FROM post") == [(101,)]


@ensureDeferred
async def test_removed_file_is_not_created_again(store: Store, path: Path) -> None:
    await store.add_post("one")
    moved = path.with_suffix(".moved")
    path.rename(moved)
    await deferLater(reactor, 1.8)
    assert not path.exists()
    assert isinstance(await error_of(store.version()), StoreUnavailableError)
    moved.rename(path)
    await until_available(store)
    assert (await store.get_post(1)).post == "one"


def writer_of(store: SqliteStore) -> sqlite3.Connection:
    writer = store.database.writer
    assert writer is not None
    return writer


def reader_of(store: SqliteStore) -> sqlite3.Connection:
    reader = store.database.reader
    assert reader is not None
    return reader


@contextmanager
def statements_of(connection: sqlite3.Connection) -> Iterator[list[str]]:
    """Record the statements of a connection."""
    done: list[str] = []
    connection.set_trace_callback(done.append)
    yield done
    connection.set_trace_callback(None)


@ensureDeferred
async def test_only_nonce_counts_are_committed_without_a_sync(store: SqliteStore) -> None:
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
        lambda: store.delete_sessions([id_hash_of(1)]),
        lambda: store.add_failure(KEYS, now=NOW, expires=NOW + 9),
        lambda: store.forget_failures(KEYS[0]),
        lambda: store.purge_expired(now=NOW + 1000),
    ):
        await store.use_nonce(b"nonce", 2, expires=NOW)
        assert synchronous() == normal
        await write()
        assert synchronous() == full
    together = [started(store.use_nonce(b"nonce", n, expires=NOW)) for n in range(3, 9)]
    together.insert(3, started(store.add_post("among them")))
    await gatherResults(together)
    assert synchronous() == full


@ensureDeferred
async def test_purge_without_expired_rows_begins_no_transaction(store: SqliteStore, path: Path) -> None:
    await store.add_session(id_hash_of(1), make_session())
    await store.add_failure(KEYS, now=NOW, expires=NOW + 300)
    await store.use_nonce(b"nonce", 1, expires=NOW)
    with statements_of(writer_of(store)) as done:
        await store.purge_expired(now=NOW)
    assert done == []
    with locked(path, "IMMEDIATE"):  # nor a lock needed
        await store.purge_expired(now=NOW + 59)
    with statements_of(writer_of(store)) as done:
        await store.purge_expired(now=NOW + 60)
    assert any(statement.startswith("BEGIN") for statement in done)
    assert run_sql(path, "SELECT count(*) FROM nonce_count") == [(0,)]


@ensureDeferred
async def test_purge_uses_indexes(store: SqliteStore) -> None:
    with statements_of(reader_of(store)) as asked:
        await store.purge_expired(now=NOW)
    assert len(asked) == 4  # sessions, failures, idempotency keys, counts of nonces
    for statement in asked:
        plan = reader_of(store).execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        assert all(row[3].startswith("SEARCH") for row in plan), plan


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


@pytest.fixture
def make_store(path: Path) -> MakeStore:
    return lambda: SqliteStore(str(path), reactor=reactor)


@ensureDeferred
async def test_lock_of_sqlite_on_the_shared_memory_is_kept(store: Store, path: Path) -> None:
    """Byte 128: a process that does not find the lock truncates the shared memory, which kills this one."""
    await store.version()
    inode = Path(f"{path}-shm").stat().st_ino
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]
    assert any(lock[3] == "READ" and lock[4] == str(os.getpid()) and lock[6] == "128" for lock in held)
