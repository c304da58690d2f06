"""An SQLite file that is open: reads on the reactor's thread, group commit of writes.

A read takes a few microseconds; a hop to a thread and back costs more. The reading connection therefore never waits for
a lock: where another process has locked the whole file, a read is retried a few times and then fails.

Writes are committed in a thread of their own, because they wait for the disk. Batches of rows that do not, such as the
counts of Digest nonces, are committed on the reactor's thread, unless they would have to wait for another process or
for a checkpoint. With the writer thread they take three times as much CPU time, because the two threads pass Python's
lock to each other at each system call.
"""

import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.errors import StoreBusyError, StoreMissingError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.failure_reporter import FailureReporter
from postd.store.group_commit import GroupCommit, Outcome
from postd.store.interface import OperationObserver, ignore_operation
from postd.store.replaced_texts import ReplacedTexts
from postd.store.sqlite.batches import InsertRow, Write, run_batch
from postd.store.sqlite.commit_detector import CommitDetector
from postd.store.sqlite.database_file import DatabaseFile, remaining_timeout_ms, transaction
from postd.store.sqlite.deleted_texts import DeletedTexts
from postd.store.sqlite.errors import is_locked, store_error
from postd.store.sqlite.file_locks import identity_of
from postd.store.sqlite.read_cache import TABLES, ReadCache
from postd.store.sqlite.write_turn import WriteTurn
from postd.store.sqlite.writer_thread import WriterThread

T = TypeVar("T")

_RETRY_READ_AFTER_S = (0.01, 0.05, 0.2, 0.5)
_RETRY_OPEN_AFTER_S = 0.5
_CHECK_FILE_EVERY_S = 1

_QUICK_ROWS_MAX = 32
"""Limit on the rows of a batch that is committed on the reactor's thread."""

_CHECKPOINT_FRAMES = 1000
"""The length of the write-ahead log at which a commit makes a checkpoint (SQLite's default)."""

_FRAMES_OF_A_ROW_MAX = 4
"""Frames that a row of a batch adds to the log at most: pages of its table and its index, and their splits. Rows with
random keys were measured to add 2.2 each, those of one nonce next to nothing."""

_ALONE_TIMEOUT_MS = 100
"""How long `run_on_file` waits for readers, while other processes cannot write."""


class _WouldWaitError(Exception):
    """A batch cannot be committed without waiting."""


class SqliteDatabase:
    """A connection that reads, a connection that writes, and their file (`postd.store.interface.Lifecycle`).

    Each second it checks that the file is still the one at its path; if a backup was restored there, it opens that.

    Args:
        reactor: its clock times the waits; results come back on its thread.
        thread: runs the writes that may have to wait; by default a thread of its own.
        upgrade: whether a file with an older schema is upgraded instead of refused.
        shared_memory: for `replaced_texts`, shared with other processes.

    Attributes:
        description: the store for the log and for messages.
        observer: is called with each read and write.
        writer: the connection that writes, None while the file is not open. Used by the writer thread, and by the
            reactor's thread while the writer thread is idle.
        reader: the connection that reads, None while the file is not open.
        write_queue: the writes that wait for their commit.
        file_check: calls `check_file` each second.
        service_keys: cache of the keys in this file; emptied when another file is opened.
        deleted_texts: those that are to be removed from the file.
        replaced_texts: those that listeners may still need.
    """

    _log = Logger()

    def __init__(
        self,
        path: str,
        *,
        reactor: IReactor,
        thread: WriterThread | None = None,
        upgrade: bool = True,
        shared_memory: int | None = None,
    ) -> None:
        self._file = DatabaseFile(path, upgrade=upgrade)
        self.observer: OperationObserver = ignore_operation
        self.description = "sqlite:" + os.fsencode(path).decode(errors="backslashreplace")
        self._reactor = reactor
        self._thread = thread or WriterThread(reactor)
        self.writer: sqlite3.Connection | None = None
        self.reader: sqlite3.Connection | None = None
        self._write_turn: WriteTurn | None = None
        self._commit_detector: CommitDetector | None = None
        self.service_keys: dict[str, bytes] = {}
        self._cache = ReadCache()
        self._batch_reads = 0
        self.file_check = LoopingCall(self.check_file)
        self.file_check.clock = reactor
        self._opening: Deferred[None] | None = None
        self._has_started = False
        self._not_open = f"{path}: not open yet"
        self._replaced = f"{path}: it was moved, removed or replaced"
        self.deleted_texts = DeletedTexts(self.run_on_file, clock=reactor)
        self.replaced_texts = ReplacedTexts(shared_memory)
        self._reads, self._writes = (FailureReporter(self._log, what, reactor) for what in ("reading", "writing"))
        self.write_queue: GroupCommit[Write] = GroupCommit(self._commit, clock=reactor)

    def prepare(self, *, create: bool = True) -> None:
        self._file.prepare(create=create)

    async def start(self) -> None:
        self._thread.start()
        try:
            # Not in the writer thread: the reactor does not run yet, and the first request must find the store open.
            self._open()
        except (StoreUnavailableError, StoreMissingError) as error:  # missing: `prepare` has found it
            self._opening = Deferred.fromCoroutine(self._retry_open(error.why))
            await self._opening
        self._has_started = True
        self.deleted_texts.remove_later()  # those that a killed process has left
        self.file_check.start(_CHECK_FILE_EVERY_S, now=False)

    async def stop(self) -> None:
        if self.file_check.running:
            self.file_check.stop()
        self.deleted_texts.stop()
        if self._opening is not None:
            self._opening.addErrback(lambda _: None)
            self._opening.cancel()
        await self.write_queue.close()
        self._not_open = f"{self.description}: closed"
        self._close_reader()
        await self._thread.run(self._close)
        self._thread.stop()

    async def read_cached(self, table: str, key: object, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of the query with this key if it is cached and its table has not changed, else run it.

        Raises:
            StoreUnavailableError: as for `read`.
        """
        # The state is read before the query runs: a cached result is never older than the state it is cached for.
        detector = self._commit_detector
        state = detector.read() if detector is not None and self.reader is not None else None
        results = self._cache.results(table, state)
        if key in results:
            cached: T = results[key]
            return cached
        result = await self.read(query)
        # While the query was retried another read may have emptied the cache for a newer state.
        if state is not None and state == self._cache.state:
            results[key] = result
        return result

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on the reactor's thread and return its result.

        Raises:
            StoreUnavailableError: the file is not open, stays locked, or cannot be read.
        """
        began = time.perf_counter()
        for wait_s in (*_RETRY_READ_AFTER_S, None):
            if self.reader is None:
                break
            try:
                result = query(self.reader)
            except sqlite3.Error as error:
                if wait_s is None or not is_locked(error):
                    unavailable = self._unavailable(error)
                    self._reads.failed(unavailable.why)
                    self.observer("read", time.perf_counter() - began, failed=True)
                    raise unavailable from None
            else:
                self._reads.succeeded()
                self.observer("read", time.perf_counter() - began, failed=False)
                return result
            await deferLater(self._reactor, wait_s)
        self.observer("read", time.perf_counter() - began, failed=True)
        raise StoreUnavailableError(self._not_open)

    async def read_batches(self, query: str, *, batch_size: int) -> AsyncIterator[list[Any]]:
        """Yield the rows of a query as of one moment, in batches; other work of the reactor runs in between.

        Raises:
            StoreUnavailableError: as for `read`.
        """
        if self.reader is None:
            raise StoreUnavailableError(self._not_open)
        self._batch_reads += 1
        try:
            # On a connection of its own: on the shared one, a running query would hold all other reads at its snapshot.
            with closing(self._file.open_reader()) as connection:
                rows = connection.execute(query)
                while batch := rows.fetchmany(batch_size):
                    yield batch
                    await deferLater(self._reactor, 0)
        except sqlite3.Error as error:
            raise self._unavailable(error) from None
        finally:
            self._batch_reads -= 1

    async def write(
        self, write: Callable[[sqlite3.Connection], T], *, synced: bool = True, changes: Sequence[str] = TABLES
    ) -> T:
        """Return the result of a write when it is committed.

        Args:
            write: changes the database, in a transaction that it may share with other writes.
            synced: False if the write may be lost in a power failure, but not with the process.
            changes: those of the tables with cached results (`TABLES`) that it may change.

        Raises:
            StoreBusyError: the queue is full.
            StoreFullError: no space is left, or a constraint of the table refuses the write.
            StoreUnavailableError: the file is not open, stays locked, or cannot be written.
        """
        began = time.perf_counter()
        failed = False
        try:
            result: T = await self.write_queue.submit(Write(write, synced, changes))
        except StoreUnavailableError as error:
            failed = True
            if not isinstance(error, StoreBusyError):  # one line per request would add to the overload
                self._writes.failed(error.why)
            raise
        finally:
            self.observer("write", time.perf_counter() - began, failed=failed)
        self._writes.succeeded()
        return result

    async def run_on_writer(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function that changes only temporary tables on the writing connection; return its result.

        It runs between two batches, in a transaction that locks nothing of the file.

        Raises:
            StoreUnavailableError: the file is not open, or SQLite failed.
        """

        def in_thread() -> T:
            if self.writer is None:
                raise StoreUnavailableError(self._not_open)
            try:
                with transaction(self.writer):
                    return work(self.writer)
            except sqlite3.Error as error:
                raise self._unavailable(error) from None

        if self.writer is None:  # the thread may not run either
            raise StoreUnavailableError(self._not_open)
        return await self._thread.run(in_thread)

    async def run_on_file(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        """Run a function outside of a transaction, with the writing connection and a descriptor of the file.

        No process of postd writes to the file meanwhile.

        Raises:
            StoreUnavailableError: the file is not open, or cannot be used.
        """

        def in_thread() -> T:
            if self.writer is None or self._write_turn is None:
                raise StoreUnavailableError(self._not_open)
            if not self._file_is_in_place():
                raise StoreUnavailableError(self._replaced)
            try:
                with self._write_turn.turn():
                    self._file.set_busy_timeout(self.writer, _ALONE_TIMEOUT_MS)
                    return work(self.writer, self._write_turn.descriptor)
            except sqlite3.Error as error:
                raise self._unavailable(error) from None
            except OSError as error:
                raise StoreUnavailableError(f"{self._file.path}: {error.strerror}") from None

        return await self._thread.run(in_thread)

    def check_file(self) -> None:
        """Stop reading a file that is no longer at its path; open the one that is there, or comes there."""
        if self.reader is not None and not self._file.is_in_place():
            self._close_reader()
            self._not_open = self._replaced
            self._opening = Deferred.fromCoroutine(self._reopen())
            self._opening.addErrback(self._reopen_failed)

    def _open(self, *, create: bool = False) -> None:
        """Open the file at the path; if that is still open, only the reader. Another one is closed first.

        It is opened by a later call: requests that depend on the old file are refused meanwhile. The count of a nonce
        must not get into another file than the one with its key.
        """
        if self.writer is not None and not self._file.is_in_place():
            why = self._close_writer()
            raise StoreUnavailableError(f"{self._replaced}; the old file stays open: {why}" if why else self._replaced)
        if self.writer is None:
            self.writer, held = self._file.open_writer(create=create)
            self._write_turn = WriteTurn(held.file)
            with suppress(OSError):
                self._commit_detector = CommitDetector(held.path)
            self._cache.clear()
            self.service_keys = {}
        # Last: from now on the reactor's thread serves requests.
        self.reader = self._file.open_reader()

    async def _retry_open(self, why: str) -> None:
        """Open the file as soon as that is possible.

        Raises:
            StoreRefusedError: the file must not be used, and the store has never started.
        """
        while True:
            if why != self._not_open:
                self._log.error("store not open: {why}; trying again", why=why)
                self._not_open = why
            await deferLater(self._reactor, _RETRY_OPEN_AFTER_S)
            try:
                await self._thread.run(self._open)
            except StoreUnavailableError as error:
                why = error.why
            except StoreRefusedError as error:
                if not self._has_started and not isinstance(error, StoreMissingError):
                    raise
                why = error.why
            else:
                return

    async def _reopen(self) -> None:
        try:
            await self._thread.run(self._open)
        except (StoreUnavailableError, StoreRefusedError):
            await self._retry_open(self._replaced)
        self.deleted_texts.remove_later()
        self._log.info("store: opened {path}", path=self._file.path)

    def _reopen_failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("store: could not be opened again", failure=failure)

    def _close_reader(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()

    def _close_writer(self, *, stopping: bool = False) -> str:
        """Close the file, after the reader (in the writer thread); return what `DatabaseFile.close_writer` does."""
        if self._batch_reads and not stopping:
            return "it is being exported"
        if self.writer is not None and (why := self._file.close_writer(self.writer, stopping=stopping)):
            return why
        self.writer = self._write_turn = None
        if self._commit_detector is not None:
            self._commit_detector.close()
            self._commit_detector = None
        return ""

    def _close(self) -> None:
        """Close everything (in the writer thread, after its last batch)."""
        self._close_reader()
        self._close_writer(stopping=True)

    def _commit(self, writes: Sequence[Write]) -> Deferred[Sequence[Outcome]]:
        """Commit a batch: on the reactor's thread if it does not have to wait there, else in the writer thread."""
        if self._is_quick(writes):
            with suppress(_WouldWaitError):
                return succeed(self._commit_batch(writes, may_wait=False))
        return self._thread.run(self._commit_batch, writes)

    def _is_quick(self, writes: Sequence[Write]) -> bool:
        """Return whether a batch can be committed now without waiting for the disk or for the writer thread."""
        detector = self._commit_detector
        if len(writes) > _QUICK_ROWS_MAX or detector is None or not self._thread.is_idle:
            return False
        if any(one.synced or not isinstance(one.run, InsertRow) for one in writes):
            return False
        frames, copied = detector.log_frames()
        # A commit that restarts the log syncs it, and so does the checkpoint after one that makes it long.
        return copied < frames < _CHECKPOINT_FRAMES - _FRAMES_OF_A_ROW_MAX * len(writes)

    def _commit_batch(self, writes: Sequence[Write], *, may_wait: bool = True) -> Sequence[Outcome]:
        """Commit a batch in one transaction.

        Raises:
            _WouldWaitError: it has to wait for another process, and may not.
            StoreUnavailableError: it cannot be committed.
        """
        connection, write_turn, detector = self.writer, self._write_turn, self._commit_detector
        if connection is None or write_turn is None:
            raise StoreUnavailableError(self._not_open)
        if not self._file_is_in_place():
            raise StoreUnavailableError(self._replaced)
        try:
            self._file.set_synchronous(connection, synced=any(one.synced for one in writes))
            with write_turn.turn(may_wait=may_wait) as waited_s:
                if waited_s is None:
                    raise _WouldWaitError
                self._file.set_busy_timeout(connection, remaining_timeout_ms(waited_s) if may_wait else 0)
                with transaction(connection, "BEGIN IMMEDIATE"):  # one that reads first cannot wait for a lock
                    before = b"" if detector is None else detector.read()
                    outcomes = run_batch(writes, connection)
                    if not self._file_is_in_place():  # again, after seconds of waiting perhaps
                        raise StoreUnavailableError(self._replaced)
                if detector is not None:
                    changes = {table for one in writes for table in one.changes}
                    self._cache.note_commit(before, detector.read(), changes)
                return outcomes
        except sqlite3.Error as error:
            if not may_wait and is_locked(error):
                raise _WouldWaitError from None
            raise self._unavailable(error) from None
        except OSError as error:
            raise StoreUnavailableError(f"{self._file.path}: {error.strerror}") from None

    def _file_is_in_place(self) -> bool:
        """Return whether the open file is the one at its path; writes to another file would be lost."""
        held = self._file.held
        return held is not None and identity_of(self._file.path) == held.file.identity

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailableError:
        """Return our error for one of SQLite. Once the store has started, even a refusal counts as temporary."""
        ours = store_error(error, self._file.path)
        return StoreUnavailableError(ours.why) if isinstance(ours, StoreRefusedError) else ours
