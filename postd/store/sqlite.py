"""The SQLite store: one writer thread that commits in groups, reads on the reactor's own.

A read is a few microseconds; a hop to a thread and back costs more than that. The reading connection therefore never
waits: where another process has locked the whole file, a read is tried again a few times and then given up.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from postd.errors import (
    ChangesGoneError,
    NoSuchPostError,
    PostChangedError,
    PostdError,
    StoreBusyError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)
from postd.model import Change, ChangeKind, Post, Version
from postd.reactor import IReactor
from postd.store.interface import Page
from postd.store.sqlite_file import SqliteFile, is_locked, store_error, transaction
from postd.store.writes import GroupCommit, Outcome

T = TypeVar("T")

_READ_AGAIN_AFTER_S = (0.01, 0.05, 0.2, 0.5)
_OPEN_AGAIN_AFTER_S = 0.5
_WATCH_EVERY_S = 1

_Write = Callable[[sqlite3.Connection], object]


class WriterThread:
    """The one thread that writes."""

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(1, 1, "postd-writer")

    def start(self) -> None:
        self._pool.start()

    def run(self, function: Callable[..., T], *args: object) -> Deferred[T]:
        return deferToThreadPool(self._reactor, self._pool, function, *args)

    def stop(self) -> None:
        self._pool.stop()


class SqliteStore:
    """Posts in one SQLite file (`postd.store.interface.PostStore`).

    Args:
        path: the file.
        reactor: its clock times the waits; answers come back on its thread.
        thread: where writes are made, if it is to be another than one of the store's own.
        synchronous: SQLite's word for how durable a commit is.
    """

    _log = Logger()

    def __init__(
        self, path: str, *, reactor: IReactor, thread: WriterThread | None = None, synchronous: str = "FULL"
    ) -> None:
        self._file = SqliteFile(path, synchronous=synchronous)
        self.description = "sqlite:" + os.fsencode(path).decode(errors="backslashreplace")
        self._reactor = reactor
        self._thread = thread or WriterThread(reactor)
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._opened_file: tuple[int, int] | None = None
        self._watch = LoopingCall(self._watch_file)
        self._watch.clock = reactor
        self._opening_later: Deferred[None] | None = None
        self._has_served = False
        self._why_not_open = f"{path}: not open yet"
        self._not_ours = f"{path}: it was moved, removed or replaced"
        self._reading, self._writing = _Trouble(self._log, "reading"), _Trouble(self._log, "writing")
        self._writes: GroupCommit[_Write] = GroupCommit(self._commit, in_thread=self._thread.run, clock=reactor)

    @classmethod
    def in_memory(cls, *, reactor: IReactor, thread: WriterThread | None = None) -> "SqliteStore":
        """Make a store that lasts as long as the process.

        SQLite's own shared memory databases know no write-ahead log, so that readers and the writer would lock each
        other out. This is a file without a name.
        """
        return _NamelessSqliteStore(reactor=reactor, thread=thread)

    def prepare(self) -> None:
        self._file.open_writer(create=True, check_whole=True).close()

    async def start(self) -> None:
        self._thread.start()
        try:
            # At once: the reactor does not run yet, and the first request is to find the store open.
            self._open()
        except StoreUnavailableError as error:
            self._opening_later = Deferred.fromCoroutine(self._open_later(error.why))
            await self._opening_later
        self._has_served = True
        self._watch.start(_WATCH_EVERY_S, now=False)

    async def stop(self) -> None:
        if self._watch.running:
            self._watch.stop()
        if self._opening_later is not None:
            self._opening_later.addErrback(lambda _: None)
            self._opening_later.cancel()
        await self._writes.close()
        self._why_not_open = f"{self.description}: closed"
        self._close_reader()
        await self._thread.run(self._close)
        self._thread.stop()

    async def version(self) -> Version:
        return await self._read(_select_version)

    async def list_posts(self, *, after: int = 0, limit: int) -> Page:
        def query(connection: sqlite3.Connection) -> Page:
            with transaction(connection):  # one state of the database for both questions
                version = _select_version(connection)
                posts = connection.execute(
                    "SELECT id, post FROM post WHERE id > ? ORDER BY id LIMIT ?", (after, limit + 1)
                ).fetchall()
            more = len(posts) > limit
            return Page(version, posts[:limit] if more else posts, more)

        return await self._read(query)

    async def get_post(self, post_id: int) -> Post:
        return Post(post_id, await self._read(lambda connection: _select_text(connection, post_id)))

    async def add_post(self, text: str) -> int:
        def write(connection: sqlite3.Connection) -> int | None:
            return connection.execute("INSERT INTO post (post) VALUES (?)", (text,)).lastrowid

        added: int = await self._write(write)
        return added

    async def replace_post(self, post_id: int, text: str, *, expected: str | None = None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            _expect(connection, post_id, expected)
            connection.execute("UPDATE post SET post = ? WHERE id = ?", (text, post_id))

        await self._write(write)

    async def delete_post(self, post_id: int, *, expected: str | None = None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            _expect(connection, post_id, expected)
            connection.execute("DELETE FROM post WHERE id = ?", (post_id,))

        await self._write(write)

    async def list_changes(self, *, after: int, limit: int) -> list[Change]:
        def query(connection: sqlite3.Connection) -> list[Change]:
            with transaction(connection):  # one state of the database for both questions
                latest = _select_version(connection).revision
                rows = connection.execute(
                    "SELECT revision, kind, id, post FROM change WHERE revision > ? ORDER BY revision LIMIT ?",
                    (after, limit),
                ).fetchall()
            # The log has no holes: what came next is either the first row or was trimmed.
            if after > latest or (after < latest and (not rows or rows[0][0] != after + 1)):
                raise ChangesGoneError(after)
            return [Change(revision, ChangeKind(kind), post_id, text) for revision, kind, post_id, text in rows]

        return await self._read(query)

    def _open(self) -> None:
        # First: a file that is put in its place from now on is seen to be another one.
        self._opened_file = self._file.identity()
        writer = self._file.open_writer()
        try:
            self._reader = self._file.open_reader()
        except PostdError:
            writer.close()
            raise
        self._writer = writer

    async def _open_later(self, why: str) -> None:
        """Open the file as soon as that is possible. Requests are told until then that the store is away.

        Raises:
            StoreRefusedError: it must not be used, and never was; once it has served, we go on trying.
        """
        while True:
            if why != self._why_not_open:
                self._log.error("store not open: {why}; trying again", why=why)
                self._why_not_open = why
            await deferLater(self._reactor, _OPEN_AGAIN_AFTER_S)
            try:
                await self._thread.run(self._open)
            except StoreUnavailableError as error:
                why = error.why
            except StoreRefusedError as error:
                if not self._has_served:
                    raise
                why = error.why
            else:
                return

    def _watch_file(self) -> None:
        """Leave a file that is no longer the one at our path, and open that one: a backup was restored, say."""
        if self._reader is not None and not self._file_is_ours():
            self._close_reader()
            self._why_not_open = self._not_ours
            self._opening_later = Deferred.fromCoroutine(self._reopen())
            self._opening_later.addErrback(self._not_reopened)

    def _not_reopened(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("store: could not be opened again", failure=failure)

    async def _reopen(self) -> None:
        if not await self._thread.run(self._leave_file):
            self._log.error("store: {why}, and another program reads the old one; waiting for it", why=self._not_ours)
            await deferLater(self._reactor, _OPEN_AGAIN_AFTER_S)
            while not await self._thread.run(self._leave_file):
                await deferLater(self._reactor, _OPEN_AGAIN_AFTER_S)
        await self._open_later(self._not_ours)
        self._log.info("store: opened {path}", path=self._file.path)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _close(self) -> None:
        """Close all (in the writer's thread, after whatever that was still doing)."""
        self._close_reader()
        if not self._file_is_ours():
            self._leave_file()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _leave_file(self) -> bool:
        """Close a file that is not at our path any more, if nothing of it is lost by that (in the writer's thread).

        Its write-ahead log would stay behind under its name and be mistaken for that of the new file. What is in it
        is therefore brought into the old file, wherever that is now, and the names are taken away.

        Returns:
            False if it cannot be done now, because another program is reading the old file.
        """
        if self._writer is None:
            return True
        try:
            self._writer.execute("PRAGMA busy_timeout = 0")
            busy = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error:
            busy = True
        if busy:
            return False
        self._writer.close()
        self._writer = None
        self._file.remove_log()
        return True

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        for wait_s in (*_READ_AGAIN_AFTER_S, None):
            if self._reader is None:
                break
            try:
                result = query(self._reader)
            except sqlite3.Error as error:
                if wait_s is None or not is_locked(error):
                    unavailable = self._unavailable(error)
                    self._reading.began(unavailable.why)
                    raise unavailable from None
            else:
                self._reading.ended()
                return result
            await deferLater(self._reactor, wait_s)
        raise StoreUnavailableError(self._why_not_open)

    async def _write(self, write: _Write) -> Any:
        try:
            result = await self._writes.submit(write)
        except StoreBusyError:
            raise  # every refused request would be a line in the log, just when there is most to do
        except StoreUnavailableError as error:
            self._writing.began(error.why)
            raise
        self._writing.ended()
        return result

    def _commit(self, writes: Sequence[_Write]) -> Sequence[Outcome]:
        """Store a batch in one transaction (in the writer thread)."""
        connection = self._writer
        if connection is None:
            raise StoreUnavailableError(self._why_not_open)
        if not self._file_is_ours():
            raise StoreUnavailableError(self._not_ours)
        try:
            with transaction(connection, "BEGIN IMMEDIATE"):  # a BEGIN that reads first cannot wait for a lock
                return [_outcome(write, connection) for write in writes]
        except sqlite3.Error as error:
            raise self._unavailable(error) from None

    def _file_is_ours(self) -> bool:
        """Tell whether the file at our path is the one that is open: nobody would find again what goes into another."""
        return self._file.identity() == self._opened_file

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailableError:
        """Tell what SQLite's error means for a request: once we have served, even a refusal may pass."""
        ours = store_error(error, self._file.path)
        return StoreUnavailableError(ours.why) if isinstance(ours, StoreRefusedError) else ours


class _NamelessSqliteStore(SqliteStore):
    """A store whose file has its name taken away as soon as it is open: it ends with the process, even by kill -9."""

    def __init__(self, *, reactor: IReactor, thread: WriterThread | None = None) -> None:
        super().__init__("memory:", reactor=reactor, thread=thread)
        self.description = "memory:"

    def prepare(self) -> None:
        try:
            Path(tempfile.mkdtemp(prefix="postd-")).rmdir()
        except OSError as error:
            raise StoreRefusedError(f"memory: needs a folder for temporary files: {error.strerror}") from None

    def _open(self) -> None:
        folder = tempfile.mkdtemp(prefix="postd-")
        try:
            self._file = SqliteFile(str(Path(folder) / "posts.db"), synchronous="OFF")
            self._file.open_writer(create=True).close()
            super()._open()
        finally:
            shutil.rmtree(folder)

    def _file_is_ours(self) -> bool:
        return True


class _Trouble:
    """Tells the log when something begins to fail and when it works again, not at every request between."""

    def __init__(self, log: Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._why: str | None = None

    def began(self, why: str) -> None:
        if why != self._why:
            self._log.error("store: {what} fails: {why}", what=self._what, why=why)
        self._why = why

    def ended(self) -> None:
        if self._why is not None:
            self._log.info("store: {what} works again", what=self._what)
        self._why = None


def _outcome(write: _Write, connection: sqlite3.Connection) -> Outcome:
    try:
        return write(connection)
    except PostdError as error:
        return error
    except sqlite3.IntegrityError as error:
        # The table's own fence, such as the end of the ids. SQLite has undone this statement and no other.
        return StoreFullError(f"the database refuses it: {error}")


def _select_version(connection: sqlite3.Connection) -> Version:
    revision, tag = connection.execute("SELECT revision, tag FROM version").fetchone()
    return Version(revision, tag.hex())


def _select_text(connection: sqlite3.Connection, post_id: int) -> str:
    row = connection.execute("SELECT post FROM post WHERE id = ?", (post_id,)).fetchone()
    if row is None:
        raise NoSuchPostError(post_id)
    text: str = row[0]
    return text


def _expect(connection: sqlite3.Connection, post_id: int, expected: str | None) -> None:
    text = _select_text(connection, post_id)
    if expected is not None and text != expected:
        raise PostChangedError(post_id)
