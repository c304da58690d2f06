"""Texts of deleted and replaced posts are gone from the file and its write-ahead log (docs: Deleted texts)."""

import os
import random
import re
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent

from postd.errors import NoSuchPostError
from postd.model import PostDetails
from postd.reactor import IReactor
from postd.store.replaced_texts import AUTHOR_MAX_BYTES, TEXTS_MAX, ReplacedTexts, make_shared_memory
from postd.store.sqlite import deleted_texts
from postd.store.sqlite.database import SqliteDatabase
from postd.store.sqlite.database_file import SCHEMA_WITHOUT_TEXTS, DatabaseFile
from postd.store.sqlite.deleted_texts import REMOVE_AFTER_S, RETRY_AFTER_S, VACUUM_RETRY_AFTER_S
from postd.store.sqlite.logins import SqliteLogins
from postd.store.sqlite.posts import SqlitePosts
from postd.store.sqlite.store import MemoryDatabase
from tests.helpers import InlineThread, result_of, run_sql
from tests.store.contract import NOW, id_hash_of, make_provider_session, make_session
from tests.store.sqlite.older import make_older


class Posts:
    """Posts in a database without threads, whose clock stands still until a test advances it."""

    def __init__(self, make: Callable[..., SqliteDatabase], *file: DatabaseFile) -> None:
        self.clock = MemoryReactorClock()
        reactor = cast(IReactor, self.clock)
        self.database = make(*file, reactor=reactor, thread=InlineThread(reactor))
        self.store = SqlitePosts(self.database)
        self.store.prepare()
        result_of(self.store.start())

    def write(self, write: Coroutine[Any, Any, Any]) -> Any:
        waiting = Deferred.fromCoroutine(write)
        self.clock.advance(0)
        return result_of(waiting)

    def wait(self, seconds: float = REMOVE_AFTER_S) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        result_of(self.store.stop())


@pytest.fixture
def posts(path: Path) -> Iterator[Posts]:
    opened = Posts(SqliteDatabase, DatabaseFile(str(path)))
    yield opened
    opened.close()


@pytest.fixture
def memory() -> Iterator[Posts]:
    opened = Posts(MemoryDatabase)
    yield opened
    opened.close()


def content_of(folder: Path) -> bytes:
    """Return the content of a database and its write-ahead log."""
    return b"".join(file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm"))


def open_content(name: str) -> bytes:
    """Return the content of the files with a name that this process has open, even if they are unlinked."""
    links = {link: str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    return b"".join(link.read_bytes() for link, file in links.items() if name in file and "-shm" not in file)


def text_of(n: int, length: int) -> str:
    return f"<text {n}>".ljust(length, "~")


def change_posts(posts: Posts, *, seed: int) -> set[bytes]:
    """Add, replace and delete posts, with texts of all lengths; return the texts that are left."""
    chance = random.Random(seed)
    texts = dict[int, str]()
    writes = list[Deferred[Any]]()

    def begin(write: Coroutine[Any, Any, Any]) -> None:
        writes.append(Deferred.fromCoroutine(write))

    added = 0
    for n in range(4000):
        text = text_of(n, chance.choice([12, 40, 70, 100, 139]))
        what = chance.random()
        post_id = chance.choice([*texts] or [0])
        if len(texts) < 300 or what < 0.2:
            begin(posts.store.add_post(text))
            added += 1
            texts[added] = text
        elif what < 0.7:
            begin(posts.store.replace_post(post_id, text))
            texts[post_id] = text
        else:
            begin(posts.store.delete_post(post_id))
            del texts[post_id]
        if n % 400 == 0:
            posts.wait(0)
    posts.wait(0)
    return {text.encode() for text in texts.values()}


def numbers_in(content: bytes) -> set[bytes]:
    """Return the numbers of the texts that begin in some bytes."""
    return set(re.findall(rb"<text (\d+)>", content))


def found_in(content: bytes) -> set[bytes]:
    return set(re.findall(rb"<text \d+>~*", content))


def count_texts(content: bytes) -> int:
    """Return the number of texts in the content of a file; random bytes that follow one may look like its end."""
    return len({text.rstrip(b"~") for text in found_in(content)})


def test_deleted_text_is_gone_from_the_file_and_the_log(posts: Posts, path: Path) -> None:
    posts.write(posts.store.add_post("kept text"))
    posts.write(posts.store.add_post("deleted text"))
    posts.write(posts.store.add_post("replaced text"))
    posts.write(posts.store.delete_post(2))
    posts.write(posts.store.replace_post(3, "new text"))
    posts.wait()
    content = content_of(path.parent)
    assert (b"deleted text" in content, b"replaced text" in content) == (False, False)
    assert (b"kept text" in content, b"new text" in content) == (True, True)


def test_checkpoint_of_another_program_removes_a_deleted_text(posts: Posts, path: Path) -> None:
    posts.write(posts.store.add_post("deleted text"))
    posts.write(posts.store.delete_post(1))
    run_sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    assert b"deleted text" not in content_of(path.parent)


def test_deleted_text_is_gone_from_the_memory_store(memory: Posts) -> None:
    name = Path(memory.database._file.path).parent.name  # noqa: SLF001 - the file has no other name
    memory.write(memory.store.add_post("deleted text"))
    memory.write(memory.store.delete_post(1))
    assert b"deleted text" in open_content(name)
    memory.wait()
    assert b"deleted text" not in open_content(name)


def test_text_is_gone_when_the_request_that_deletes_it_is_cancelled(posts: Posts, path: Path) -> None:
    posts.write(posts.store.add_post("deleted text"))
    posts.wait()  # what is planned at the start
    deleting = Deferred.fromCoroutine(posts.store.delete_post(1))
    deleting.cancel()
    with pytest.raises(CancelledError):
        result_of(deleting)
    posts.wait(0)
    posts.wait()
    assert b"deleted text" not in content_of(path.parent)


def test_refused_change_plans_nothing(posts: Posts) -> None:
    posts.wait()
    with pytest.raises(NoSuchPostError):
        posts.write(posts.store.delete_post(1))
    assert not [call for call in posts.clock.getDelayedCalls() if call.getTime() > posts.clock.seconds() + 5]


def test_nothing_is_planned_after_the_last_write_of_a_stopped_store(path: Path) -> None:
    posts = Posts(SqliteDatabase, DatabaseFile(str(path)))
    posts.write(posts.store.add_post("deleted text"))
    deleting, stopping = (Deferred.fromCoroutine(one) for one in (posts.store.delete_post(1), posts.store.stop()))
    posts.wait(0)
    result_of(deleting)
    result_of(stopping)
    assert posts.clock.getDelayedCalls() == []
    assert b"deleted text" not in content_of(path.parent)


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_no_text_is_left_after_many_changes(posts: Posts, path: Path, seed: int) -> None:
    """SQLite 3.40 leaves some in unused space with each of the seeds."""
    left = change_posts(posts, seed=seed)
    posts.wait()
    assert found_in(content_of(path.parent)) == left


def test_log_is_emptied_when_a_reader_ends(posts: Posts, path: Path) -> None:
    posts.write(posts.store.add_post("deleted text"))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT post FROM post").fetchall() == [("deleted text",)]
        posts.write(posts.store.delete_post(1))
        posts.wait()
        assert b"deleted text" in content_of(path.parent)
        posts.write(posts.store.add_post("meanwhile"))
        posts.wait(RETRY_AFTER_S)
        assert b"deleted text" in content_of(path.parent)
        reader.execute("COMMIT")
        posts.wait(RETRY_AFTER_S)
    assert b"deleted text" not in content_of(path.parent)


def test_log_of_added_posts_is_not_emptied(posts: Posts, path: Path) -> None:
    posts.wait()
    log = path.with_name("posts.db-wal")
    posts.write(posts.store.add_post("one"))
    posts.wait(10 * REMOVE_AFTER_S)
    assert log.stat().st_size
    posts.write(posts.store.delete_post(1))
    posts.wait()
    assert not log.stat().st_size


def test_id_tokens_of_ended_sessions_are_gone_from_the_file_and_the_log(posts: Posts, path: Path) -> None:
    chance = random.Random(7)
    logins = SqliteLogins(posts.database)
    lengths = [12, 300, 900, 2000, 4000, 4096]
    for n in range(10, 210):
        session = make_provider_session(f"{n % 50}", f"{n}", expires=NOW + n % 3)
        token = text_of(n, chance.choice(lengths))
        replaced = [id_hash_of(n - 3)] if n % 5 == 0 else []
        adding = logins.add_session(id_hash_of(n), session, id_token=token, in_place_of=replaced, max_of_user=3)
        posts.write(adding)
        if n % 7 == 0:
            posts.write(logins.delete_sessions([id_hash_of(n - 2)]))
        if n % 11 == 0:
            posts.write(logins.end_sessions_at(b"provider", subject=f"{n % 50 - 1}"))
    kept = b"".join(token.encode() for (token,) in run_sql(path, "SELECT id_token FROM id_token"))
    assert numbers_in(content_of(path.parent)) > numbers_in(kept)
    posts.wait()
    assert numbers_in(content_of(path.parent)) == numbers_in(kept)
    posts.write(logins.purge_expired(now=NOW + 1, wall=NOW))
    posts.wait()
    later = b"".join(token.encode() for (token,) in run_sql(path, "SELECT id_token FROM id_token"))
    assert numbers_in(content_of(path.parent)) == numbers_in(later) < numbers_in(kept)
    posts.write(logins.delete_all_sessions())
    posts.wait()
    assert b"<text" not in content_of(path.parent)
    assert b"~~~~~" not in content_of(path.parent)


def test_log_of_sessions_without_id_token_is_not_emptied(posts: Posts, path: Path) -> None:
    posts.wait()
    logins = SqliteLogins(posts.database)
    posts.write(logins.add_session(id_hash_of(1), make_session()))
    posts.write(logins.add_session(id_hash_of(2), make_session(), in_place_of=[id_hash_of(1)]))
    posts.write(logins.delete_all_sessions())
    posts.wait(10 * REMOVE_AFTER_S)
    assert path.with_name("posts.db-wal").stat().st_size


def test_text_that_a_killed_process_left_in_the_log_is_removed(path: Path) -> None:
    """The log of the killed process is still used by another one, whose read keeps this one from emptying it."""
    with closing(sqlite3.connect(path)) as other:
        killed = Posts(SqliteDatabase, DatabaseFile(str(path)))
        killed.write(killed.store.add_post("deleted text"))
        killed.write(killed.store.delete_post(1))
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM post").fetchall()
        killed.close()
        other.rollback()
        assert b"deleted text" in content_of(path.parent)
        again = Posts(SqliteDatabase, DatabaseFile(str(path)))
        again.wait()
        assert b"deleted text" not in content_of(path.parent)
        again.close()


def test_vacuum_takes_a_small_share_of_the_time(posts: Posts, monkeypatch: pytest.MonkeyPatch) -> None:
    vacuumed = list[None]()
    monkeypatch.setattr(deleted_texts, "find_texts", lambda *_: iter([False, True]))
    monkeypatch.setattr(time, "monotonic", posts.clock.seconds)
    began = posts.clock.seconds()

    def slow_vacuum(_: object) -> None:
        vacuumed.append(None)
        posts.clock.rightNow += 2

    monkeypatch.setattr(deleted_texts, "vacuum", slow_vacuum)
    posts.write(posts.store.add_post("one"))
    for n in range(200):
        posts.write(posts.store.replace_post(1, f"{n}"))
        posts.wait()
    assert len(vacuumed) == 1 + int((posts.clock.seconds() - began - REMOVE_AFTER_S) / 2002)


def fill_disk(_: sqlite3.Connection) -> None:
    """Fail as VACUUM without space for a second file."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"
    raise error


def test_failed_vacuum_is_logged_and_tried_again(posts: Posts, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(deleted_texts, "find_texts", lambda *_: iter([True]))
    monkeypatch.setattr(time, "monotonic", posts.clock.seconds)
    posts.write(posts.store.add_post("one"))
    with capturedLogs() as events, monkeypatch.context() as patched:
        patched.setattr(deleted_texts, "vacuum", fill_disk)
        for n in range(5):
            posts.write(posts.store.replace_post(1, f"{n}"))
            posts.wait()
    assert [formatEvent(event) for event in events] == [
        f"store: {path}: no space left (SQLITE_FULL): unused space of the file still has texts of deleted posts"
    ]
    vacuumed = list[sqlite3.Connection]()
    monkeypatch.setattr(deleted_texts, "vacuum", vacuumed.append)
    posts.wait(VACUUM_RETRY_AFTER_S)
    assert len(vacuumed) == 1


def test_texts_of_programs_without_secure_delete_are_removed_at_start(path: Path) -> None:
    DatabaseFile(str(path)).prepare(create=True)
    rows = ",".join(f"('{text_of(n, 100)}')" for n in range(500))
    run_sql(
        path, "PRAGMA secure_delete = OFF", f"INSERT INTO post (post) VALUES {rows}", "DELETE FROM post WHERE id > 3"
    )
    assert len(found_in(content_of(path.parent))) > 200
    DatabaseFile(str(path), upgrade=False).prepare()  # that of a command
    assert len(found_in(content_of(path.parent))) > 200
    DatabaseFile(str(path)).prepare()
    assert found_in(content_of(path.parent)) == {text_of(n, 100).encode() for n in range(3)}


@pytest.mark.parametrize("schema", range(1, SCHEMA_WITHOUT_TEXTS))
def test_upgrade_removes_deleted_texts(path: Path, schema: int) -> None:
    make_older(path, schema)
    updates = [f"UPDATE post SET post = '{text_of(n, 100)}' WHERE id = 3" for n in range(100)]
    run_sql(path, "PRAGMA secure_delete = OFF", *updates, "DELETE FROM post WHERE id > 10")
    assert count_texts(content_of(path.parent)) == 100
    DatabaseFile(str(path)).prepare()
    assert found_in(path.read_bytes()) == {text_of(99, 100).encode()}
    assert b"post 11" not in path.read_bytes()
    assert count_texts(path.with_name(f"posts.db.schema-{schema}").read_bytes()) == 100


def test_upgrade_without_space_for_vacuum_is_logged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_older(path, 3)
    update, delete = f"UPDATE post SET post = '{text_of(1, 100)}' WHERE id % 2", "DELETE FROM post WHERE id % 2"
    run_sql(path, "PRAGMA secure_delete = OFF", update, delete)

    with monkeypatch.context() as patched, capturedLogs() as events:
        patched.setattr("postd.store.sqlite.database_file.vacuum", fill_disk)
        file = DatabaseFile(str(path))
        writer, _ = file.open_writer()
        file.close_writer(writer)
    assert found_in(path.read_bytes())
    assert formatEvent(events[-1]) == (
        f"store: {path}: no space left (SQLITE_FULL): unused space of the file still has texts of deleted posts; "
        "VACUUM takes 1 MiB in the folder of the file, and as much in that for temporary files"
    )
    DatabaseFile(str(path)).prepare()
    assert not found_in(path.read_bytes())


def test_replaced_text_is_known_until_another_takes_its_place() -> None:
    texts = ReplacedTexts()
    tag, other = b"12345678", b"87654321"
    longest = PostDetails(2**53 - 1, "🚀" * 140, -(10**15), 10**15, "é" * (AUTHOR_MAX_BYTES // 2))
    texts.add(5, tag, longest)
    assert texts.get(5, tag) == longest
    assert (texts.get(5, other), texts.get(5 + TEXTS_MAX, tag), texts.get(6, tag)) == (None, None, None)
    later = PostDetails(1, "later")
    texts.add(5 + TEXTS_MAX, tag, later)
    assert (texts.get(5, tag), texts.get(5 + TEXTS_MAX, tag)) == (None, later)


def test_replaced_text_of_an_author_with_a_very_long_name_is_not_known() -> None:
    texts = ReplacedTexts()
    texts.add(TEXTS_MAX - 1, b"12345678", PostDetails(1, "x" * 140, author="a" * 4096))
    assert texts.get(TEXTS_MAX - 1, b"12345678") is None


def test_replaced_text_is_known_to_processes_that_share_the_memory() -> None:
    descriptor = make_shared_memory()
    here, there = ReplacedTexts(descriptor), ReplacedTexts(descriptor)
    os.close(descriptor)
    here.add(1, b"12345678", PostDetails(1, "one"))
    assert there.get(1, b"12345678") == PostDetails(1, "one")
