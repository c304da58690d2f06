"""One SQLite file, open: a writer thread that commits in groups, reads on the reactor's own.

A read is a few microseconds; a hop to a thread and back costs more than that. The reading connection therefore never
waits: where another process has locked the whole file, a read is tried again a few times and then given up.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.errors import PostdError, StoreBusyError, StoreFullError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.failure_reporter import FailureReporter
from postd.store.group_commit import GroupCommit, Outcome
from postd.store.interface import Timed, untimed
from postd.store.sqlite.commit_detector import CommitDetector
from postd.store.sqlite.database_file import DatabaseFile, is_locked, store_error, transaction
from postd.store.sqlite.file_locks import Identity
from postd.store.sqlite.wal_files import WalFiles
from postd.store.sqlite.write_turn import WriteTurn

T = TypeVar("T")

_READ_AGAIN_AFTER_S = (0.01, 0.05, 0.2, 0.5)
_OPEN_AGAIN_AFTER_S = 0.5
_WATCH_EVERY_S = 1

_LEAVING_TIMEOUT_MS = 1000
"""How long a stop waits for others that read a file that is not at our path any more."""

ROWS_AT_ONCE = 128
"""How many rows one statement adds, a power of two: SQLite before 3.32 takes no more than 999 values."""

RECALLED_MAX = 4096
"""How many results of queries are kept for as long as nothing is committed."""

_Write = tuple[Callable[[sqlite3.Connection], object], bool]
"""What makes a write, and whether it is to be on the disk before it is acknowledged."""


class NewRow(Struct, frozen=True):
    """A write that adds a row. Those of a batch that have the same statement become one.

    To change between the threads for each of them costs more than they do.

    Args:
        insert: the statement up to the values.
        values: the row.
        numbered: True if it comes to the row's id, which must be an AUTOINCREMENT's, and no row may be like it. Else
            it comes to whether there was none like it; if there is, nothing is added.
    """

    insert: str
    values: tuple[object, ...]
    numbered: bool = False

    def __call__(self, connection: sqlite3.Connection) -> object:
        if self.numbered:
            return _insert(connection, [self]).lastrowid
        return _insert(connection, [self], "ON CONFLICT DO NOTHING").rowcount > 0


class WriterThread:
    """The one thread that writes."""

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def start(self) -> None:
        # Not made before: twistd forks in between, and from Python 3.13 on only what was made since can be started.
        self._thread = Thread(target=self._work, name="postd-writer")
        self._thread.start()

    def run(self, function: Callable[..., T], *args: object) -> Deferred[T]:
        """Run a function in the thread: with less ado than a pool of one takes, for each batch of writes does it."""
        result: Deferred[T] = Deferred()

        def job() -> None:
            try:
                outcome: T | Failure = function(*args)
            except BaseException:  # noqa: BLE001 - whoever waits is told
                outcome = Failure()
            self._reactor.callFromThread(result.callback, outcome)

        self._jobs.put(job)
        return result

    def stop(self) -> None:
        """End the thread, after what was asked for until now."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class SqliteEngine:
    """The life of a store in one SQLite file; what is in it is the business of the classes derived from this one.

    Args:
        path: the file.
        reactor: its clock times the waits; answers come back on its thread.
        thread: where writes are made, if it is to be another than one of the store's own.
        synchronous: SQLite's word for how durable a commit is.
        upgrade: whether a file that an older postd has left is brought up to date, and not refused.
    """

    _log = Logger()

    def __init__(
        self,
        path: str,
        *,
        reactor: IReactor,
        thread: WriterThread | None = None,
        synchronous: str = "FULL",
        upgrade: bool = True,
    ) -> None:
        self._file = DatabaseFile(path, synchronous=synchronous, upgrade=upgrade)
        self.timed: Timed = untimed
        self.description = "sqlite:" + os.fsencode(path).decode(errors="backslashreplace")
        self._reactor = reactor
        self._thread = thread or WriterThread(reactor)
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._turnstile: WriteTurn | None = None
        self._log_files: WalFiles | None = None
        self._mark: CommitDetector | None = None
        self._keys: dict[str, bytes] = {}  # of the file that is open
        self._recalled: dict[object, Any] = {}
        self._recalled_at = b""
        self._opened_file: Identity | None = None
        self._watch = LoopingCall(self._watch_file)
        self._watch.clock = reactor
        self._opening_later: Deferred[None] | None = None
        self._has_served = False
        self._why_not_open = f"{path}: not open yet"
        self._not_ours = f"{path}: it was moved, removed or replaced"
        self._reading, self._writing = (FailureReporter(self._log, what, reactor) for what in ("reading", "writing"))
        self._writes: GroupCommit[_Write] = GroupCommit(self._commit, in_thread=self._thread.run, clock=reactor)

    def prepare(self, *, create: bool = True) -> None:
        self._file.open_writer(create=create, check_whole=True).close()

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

    def _open(self) -> None:
        # First: a file that is put in its place from now on is seen to be another one.
        self._opened_file = self._file.identity()
        writer = self._file.open_writer()
        try:
            reader = self._file.open_reader()
        except PostdError:
            writer.close()
            raise
        try:
            self._turnstile = WriteTurn(self._file.path)
            self._log_files = WalFiles(self._file.path, self._opened_file)
        except OSError as error:
            reader.close()
            writer.close()
            self._let_go()
            raise StoreUnavailableError(f"{self._file.path}: {error.strerror}") from None
        with suppress(OSError):
            self._mark = CommitDetector(self._file.path)
        self._recalled_at = b""
        self._keys = {}
        # Last: from now on requests are answered, in another thread.
        self._reader, self._writer = reader, writer

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

    def _close_writer(self) -> None:
        """Close the writer, after the reader."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _let_go(self) -> None:
        """Let go of what may not be closed before reader and writer."""
        for shared in (self._mark, self._log_files, self._turnstile):
            if shared is not None:
                shared.close()
        self._mark = self._log_files = self._turnstile = None

    def _close(self) -> None:
        """Close all (in the writer's thread, after whatever that was still doing)."""
        self._close_reader()
        if not self._file_is_ours():
            self._leave_file(_LEAVING_TIMEOUT_MS)
        if self._turnstile is not None:
            # SQLite removes the write-ahead log when the last connection closes. Of two processes that close at the
            # same time each would find the other there, and leave the log behind.
            with suppress(OSError), self._turnstile.turn():
                self._close_writer()
        self._close_writer()
        self._let_go()

    def _leave_file(self, busy_timeout_ms: int = 0) -> bool:
        """Close a file that is not at our path any more, if nothing of it is lost by that (in the writer's thread).

        Its write-ahead log would stay behind under its name and be mistaken for that of the new file. What is in it
        is therefore brought into the old file, wherever that is now, and the names are taken away. Of several processes
        one does so after the other: else the second could take away what the first has made anew with the new file.

        Returns:
            False if it cannot be done now, because another program is reading the old file.
        """
        if self._writer is None or self._turnstile is None or self._log_files is None:
            return True
        with self._turnstile.leaving() as alone:
            if not alone:
                return False
            # A link may lead elsewhere now, and the file be where it was, and be used under its names.
            moved = not self._log_files.are_in_use()
            if moved and not self._empty_log(self._writer, busy_timeout_ms):
                return False
            self._close_writer()
            if moved:
                self._log_files.remove()
        self._let_go()
        return True

    def _empty_log(self, writer: sqlite3.Connection, busy_timeout_ms: int) -> bool:
        try:
            writer.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
            busy = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error:
            return False
        return not busy

    async def _recall(self, question: object, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a query returned the last time if nothing was committed since, else what it returns now.

        The mark is read before the query is made: what is kept under a mark is at least as new as that, and once
        anything newer is committed the mark is another one.

        Args:
            question: tells the query and its parameters from others.
            query: reads.
        """
        mark = self._mark.read() if self._mark is not None and self._reader is not None else None
        if mark is None or mark != self._recalled_at or len(self._recalled) > RECALLED_MAX:
            self._recalled.clear()
            self._recalled_at = mark or b""
        elif question in self._recalled:
            recalled: T = self._recalled[question]
            return recalled
        result = await self._read(query)
        # Only if nobody else has begun anew meanwhile: the result may be older than what they recall.
        if mark is not None and mark == self._recalled_at:
            self._recalled[question] = result
        return result

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        began = time.perf_counter()
        for wait_s in (*_READ_AGAIN_AFTER_S, None):
            if self._reader is None:
                break
            try:
                result = query(self._reader)
            except sqlite3.Error as error:
                if wait_s is None or not is_locked(error):
                    unavailable = self._unavailable(error)
                    self._reading.began(unavailable.why)
                    self.timed("read", time.perf_counter() - began, failed=True)
                    raise unavailable from None
            else:
                self._reading.ended()
                self.timed("read", time.perf_counter() - began, failed=False)
                return result
            await deferLater(self._reactor, wait_s)
        self.timed("read", time.perf_counter() - began, failed=True)
        raise StoreUnavailableError(self._why_not_open)

    async def _write(self, write: Callable[[sqlite3.Connection], object], *, synced: bool = True) -> Any:
        """Return what a write returns, once it cannot be lost.

        Args:
            write: changes the database; its transaction is that of other writes, too.
            synced: False if it need not outlive a power cut, but only the process.
        """
        began = time.perf_counter()
        failed = False
        try:
            result = await self._writes.submit((write, synced))
        except StoreUnavailableError as error:
            failed = True
            if not isinstance(error, StoreBusyError):  # else a line for every request, just when there is most to do
                self._writing.began(error.why)
            raise
        finally:
            self.timed("write", time.perf_counter() - began, failed=failed)
        self._writing.ended()
        return result

    def _commit(self, writes: Sequence[_Write]) -> Sequence[Outcome]:
        """Store a batch in one transaction (in the writer thread)."""
        connection, turnstile = self._writer, self._turnstile
        if connection is None or turnstile is None:
            raise StoreUnavailableError(self._why_not_open)
        if not self._file_is_ours():
            raise StoreUnavailableError(self._not_ours)
        try:
            self._file.set_synchronous(connection, synced=any(synced for _, synced in writes))
            with turnstile.turn() as waited_s:
                self._file.set_waited(connection, waited_s)
                with transaction(connection, "BEGIN IMMEDIATE"):  # a BEGIN that reads first cannot wait for a lock
                    outcomes = _outcomes([write for write, _ in writes], connection)
                    if not self._file_is_ours():  # by now: we may have waited for seconds
                        raise StoreUnavailableError(self._not_ours)
                return outcomes
        except sqlite3.Error as error:
            raise self._unavailable(error) from None
        except OSError as error:
            raise StoreUnavailableError(f"{self._file.path}: {error.strerror}") from None

    def _file_is_ours(self) -> bool:
        """Tell whether the file at our path is the one that is open: nobody would find again what goes into another."""
        return self._file.identity() == self._opened_file

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailableError:
        """Tell what SQLite's error means for a request: once we have served, even a refusal may pass."""
        ours = store_error(error, self._file.path)
        return StoreUnavailableError(ours.why) if isinstance(ours, StoreRefusedError) else ours


def _outcomes(
    writes: Sequence[Callable[[sqlite3.Connection], object]], connection: sqlite3.Connection
) -> list[Outcome]:
    added = _insert_together([write for write in writes if isinstance(write, NewRow)], connection)
    return [added[id(write)] if id(write) in added else _outcome(write, connection) for write in writes]


def _insert_together(rows: Sequence[NewRow], connection: sqlite3.Connection) -> dict[int, object]:
    """Add rows, many with a statement; return what came of those that are added, by the `id()` of the row.

    What is missing there has to be tried for itself: the table has a row like one of those that were added with it.
    """
    added = dict[int, object]()
    for insert in {row.insert for row in rows}:
        alike = [row for row in rows if row.insert == insert]
        while alike:
            # As many as a power of two: so that there are few statements, which SQLite has compiled already.
            many = min(ROWS_AT_ONCE, 1 << (len(alike).bit_length() - 1))
            together, alike = alike[:many], alike[many:]
            try:
                last_id = _insert(connection, together).lastrowid or 0
            except sqlite3.IntegrityError:
                continue  # nothing was done
            # The ids of one statement follow one another.
            first_id = last_id - many + 1
            added.update((id(row), first_id + n if row.numbered else True) for n, row in enumerate(together))
    return added


def _insert(connection: sqlite3.Connection, rows: Sequence[NewRow], otherwise: str = "") -> sqlite3.Cursor:
    places = ", ".join([f"({', '.join('?' * len(rows[0].values))})"] * len(rows))
    values = [value for row in rows for value in row.values]
    return connection.execute(f"{rows[0].insert} VALUES {places} {otherwise}", values)


def _outcome(write: Callable[[sqlite3.Connection], object], connection: sqlite3.Connection) -> Outcome:
    try:
        return write(connection)
    except PostdError as error:
        return error
    except sqlite3.IntegrityError as error:
        # The table's own fence, such as the end of the ids. SQLite has undone this statement and no other.
        return StoreFullError(f"the database refuses it: {error}")
