"""An SQLite file that is open: reads on the reactor's thread; writes are committed by `postd.store.sqlite.committer`.

A read takes a few microseconds; a hop to a thread and back costs more. The reading connection therefore never waits for
a lock: where another process has locked the whole file, a read is retried a few times and then fails.
"""

import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.errors import StoreBusyError, StoreMissingError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.failure_reporter import FailureReporter
from postd.store.interface import OperationObserver, ignore_operation
from postd.store.replaced_texts import ReplacedTexts
from postd.store.sqlite.batches import Write
from postd.store.sqlite.change_watch import ChangeWatch
from postd.store.sqlite.committer import Committer
from postd.store.sqlite.database_file import DatabaseFile
from postd.store.sqlite.deleted_texts import DeletedTexts
from postd.store.sqlite.errors import is_locked, unavailable
from postd.store.sqlite.read_cache import TABLES, ReadCache
from postd.store.sqlite.writer_thread import WriterThread

T = TypeVar("T")

_RETRY_READ_AFTER_S = (0.01, 0.05, 0.2, 0.5)
_RETRY_OPEN_AFTER_S = 0.5
_CHECK_FILE_EVERY_S = 1


class SqliteDatabase:
    """A connection that reads, a connection that writes, and their file (`postd.store.interface.Lifecycle`).

    Each second it checks that the open file is still at its path. If another file is there, such as a restored backup,
    it opens that file.

    Args:
        file: the file, which is not open yet.
        reactor: its clock times the waits; results come back on its thread.
        thread: runs the writes that may have to wait; by default a thread of its own.
        shared_memory: for `replaced_texts`, shared with other processes.

    Attributes:
        description: the store for the log and for messages.
        observer: is called with each read and write.
        cache: results of queries by key, of tables that have not changed.
        committer: commits the writes, by the connection that writes.
        reader: the connection that reads, None while the file is not open.
        file_check: calls `check_file` each second.
        service_keys: cache of the keys in this file; emptied when another file is opened.
        deleted_texts: removes texts of deleted posts from unused space of the file.
        replaced_texts: texts of replaced posts that listeners may still need.
    """

    _log = Logger()

    def __init__(
        self,
        file: DatabaseFile,
        *,
        reactor: IReactor,
        thread: WriterThread | None = None,
        shared_memory: int | None = None,
    ) -> None:
        self._file = file
        self.observer: OperationObserver = ignore_operation
        self.description = "sqlite:" + os.fsencode(file.path).decode(errors="backslashreplace")
        self._reactor = reactor
        self._thread = thread or WriterThread(reactor)
        self.cache = ReadCache(self.read)
        self.committer = Committer(file, self.cache, self._thread, reactor)
        self.reader: sqlite3.Connection | None = None
        self.service_keys: dict[str, bytes] = {}
        self._batch_reads = 0
        self.file_check = LoopingCall(self._check)
        self.file_check.clock = reactor
        self._opening: Deferred[None] | None = None
        self._has_started = False
        self._changed: Callable[[], None] | None = None
        self._watch: ChangeWatch | None = None
        self._watch_fault = ""  # of the last one
        self.deleted_texts = DeletedTexts(self.run_on_file, clock=reactor)
        self.replaced_texts = ReplacedTexts(shared_memory)
        self._reads, self._writes = (FailureReporter(self._log, what, reactor) for what in ("reading", "writing"))

    @property
    def writer(self) -> sqlite3.Connection | None:
        """The connection that writes, None while the file is not open."""
        return self.committer.connection

    def prepare(self, *, create: bool = True) -> bool:
        return self._file.prepare(create=create)

    async def start(self) -> None:
        self._thread.start()
        try:
            # Not in the writer thread: the reactor does not run yet, and the first request must find the store open.
            self._open()
        except (StoreUnavailableError, StoreMissingError) as error:  # missing: `prepare` has found it
            self._opening = Deferred.fromCoroutine(self._retry_open(error.why))
            await self._opening
        self._has_started = True
        self.deleted_texts.remove_later()  # texts that a killed process has left
        self.file_check.start(_CHECK_FILE_EVERY_S, now=False)

    async def stop(self) -> None:
        if self.file_check.running:
            self.file_check.stop()
        self.deleted_texts.stop()
        if self._opening is not None:
            self._opening.addErrback(lambda _: None)
            self._opening.cancel()
        await self.committer.queue.close()
        self.committer.not_open = f"{self.description}: closed"
        self._close_reader()
        await self._thread.run(self._close)
        self._thread.stop()

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
                    failure = unavailable(error, self._file.path)
                    self._reads.failed(failure.why)
                    self.observer("read", time.perf_counter() - began, failed=True)
                    raise failure from None
            else:
                if self._reads.failing:
                    self._reads.succeeded()
                self.observer("read", time.perf_counter() - began, failed=False)
                return result
            await deferLater(self._reactor, wait_s)
        self.observer("read", time.perf_counter() - began, failed=True)
        raise StoreUnavailableError(self.committer.not_open)

    async def read_batches(self, query: str, *values: object, batch_size: int) -> AsyncIterator[list[Any]]:
        """Yield the rows of a query as of one moment, in batches; other work of the reactor runs in between.

        Raises:
            StoreUnavailableError: as for `read`.
        """
        if self.reader is None:
            raise StoreUnavailableError(self.committer.not_open)
        self._batch_reads += 1
        try:
            # On a connection of its own: on the shared one, a running query would hold all other reads at its snapshot.
            # Its rows are closed, too: as long as a traceback has their statement, SQLite keeps the connection open.
            with closing(self._file.open_reader()) as connection, closing(connection.execute(query, values)) as rows:
                while batch := rows.fetchmany(batch_size):
                    yield batch
                    await deferLater(self._reactor, 0)
        except sqlite3.Error as error:
            raise unavailable(error, self._file.path) from None
        finally:
            self._batch_reads -= 1

    async def write(
        self, write: Callable[[sqlite3.Connection], T], *, synced: bool = True, changes: Sequence[str] = TABLES
    ) -> T:
        """Return the result of a write when it is committed.

        Args:
            write: changes the database, in a transaction that it may share with other writes.
            synced: False if the write may be lost in a power failure, but not with the process.
            changes: the tables with cached results (of `TABLES`) that the write may change.

        Raises:
            StoreBusyError: the queue is full.
            StoreFullError: no space is left, or a constraint of the table refuses the write.
            StoreUnavailableError: the file is not open, stays locked, or cannot be written.
        """
        began = time.perf_counter()
        failed = False
        try:
            result: T = await self.committer.queue.submit(Write(write, synced, changes))
        except StoreUnavailableError as error:
            failed = True
            if not isinstance(error, StoreBusyError):  # one line per request would add to the overload
                self._writes.failed(error.why)
            raise
        finally:
            if self.observer is not ignore_operation:
                self.observer("write", time.perf_counter() - began, failed=failed)
        if self._writes.failing:
            self._writes.succeeded()
        if self._changed is not None and "post" in changes:
            self._changed()
        return result

    def watch_changes(self, changed: Callable[[], None] | None) -> None:
        """Call a function after each change of posts, as `postd.store.interface.PostStore.watch_changes`."""
        self._changed = changed
        if self._watch is None and changed is not None and self.cache.detector is not None:
            self._watch = ChangeWatch(self.cache.detector, self._reactor)
        if self._watch is not None:
            self._watch.call(changed)
            fault, before, self._watch_fault = self._watch.fault, self._watch_fault, self._watch.fault
            if fault and fault != before:  # each first listener tries again
                self._log.warn(
                    "store: no inotify ({why}): changes of other processes reach event streams up to a second late",
                    why=fault,
                )

    async def run_on_writer(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function that changes only temporary tables on the writing connection; return its result.

        It runs between two batches, in a transaction that locks nothing of the file.

        Raises:
            StoreUnavailableError: the file is not open, or SQLite failed.
        """
        if self.writer is None:  # the thread may not run either
            raise StoreUnavailableError(self.committer.not_open)
        return await self._thread.run(self.committer.run, work)

    async def run_on_file(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        """Run a function outside of a transaction, with the writing connection and a descriptor of the file.

        No process of postd writes to the file meanwhile.

        Raises:
            StoreUnavailableError: the file is not open, or cannot be used.
        """
        return await self._thread.run(self.committer.run_on_file, work)

    def _check(self) -> None:
        self.check_file()
        if self._watch is not None:
            self._watch.look()
        elif self._changed is not None:  # nothing shows whether there was a commit
            self._changed()

    def check_file(self) -> None:
        """Stop reading a file that is no longer at its path; open the file that is there, or is put there later."""
        if self.reader is not None and not self._file.is_in_place():
            self._close_reader()
            self.committer.not_open = self._file.replaced
            self._opening = Deferred.fromCoroutine(self._reopen())
            self._opening.addErrback(self._reopen_failed)

    def _open(self, *, create: bool = False) -> None:
        """Open the file at the path; if that file is still open, open only the reader.

        If another file is open, this call only closes it, and a later call opens the file at the path: requests that
        depend on the old file are refused meanwhile. The count of a nonce must be stored in the file that has its key.
        """
        if self.writer is not None and not self._file.is_in_place():
            why = "it is being exported" if self._batch_reads else self.committer.close()
            replaced = self._file.replaced
            raise StoreUnavailableError(f"{replaced}; the old file stays open: {why}" if why else replaced)
        if self.writer is None:
            self.committer.open(create=create)
            self.service_keys = {}
        # Last: from now on the reactor's thread serves requests.
        self.reader = self._file.open_reader()
        self.cache.detector = self.committer.detector

    async def _retry_open(self, why: str) -> None:
        """Open the file as soon as that is possible.

        Raises:
            StoreRefusedError: the file must not be used, and the store has never started.
        """
        while True:
            if why != self.committer.not_open:
                self._log.error("store not open: {why}; trying again", why=why)
                self.committer.not_open = why
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
            await self._retry_open(self._file.replaced)
        self.deleted_texts.remove_later()
        if self._changed is not None:
            self.watch_changes(self._changed)
            self._changed()
        self._log.info("store: opened {path}", path=self._file.path)

    def _reopen_failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("store: could not be opened again", failure=failure)

    def _close_reader(self) -> None:
        reader, self.reader = self.reader, None
        self.cache.detector = None
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if reader is not None:
            reader.close()

    def _close(self) -> None:
        """Close everything (in the writer thread, after its last batch)."""
        self._close_reader()
        self.committer.close(stopping=True)
