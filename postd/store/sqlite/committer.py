"""Commit writes to the file of a store, in batches: the writing connection, and all that a commit needs.

Batches are committed in a thread of their own, because a commit waits for the disk. Batches of rows that are not
synced, such as the counts of Digest nonces, are committed on the reactor's thread, unless the commit would have to wait
for another process or for a checkpoint. In the writer thread such a batch takes three times as much CPU time, because
the two threads pass Python's lock to each other at each system call.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from postd.errors import StoreUnavailableError
from postd.store.group_commit import GroupCommit, Outcome
from postd.store.sqlite.batches import TOGETHER, Write, run_batch
from postd.store.sqlite.commit_detector import CommitDetector
from postd.store.sqlite.database_file import BUSY_TIMEOUT_MS, DatabaseFile, transaction
from postd.store.sqlite.errors import is_locked, unavailable
from postd.store.sqlite.file_locks import identity_of
from postd.store.sqlite.read_cache import ReadCache
from postd.store.sqlite.write_turn import WriteTurn
from postd.store.sqlite.writer_thread import WriterThread

T = TypeVar("T")

_QUICK_ROWS_MAX = 32
"""Limit on the rows of a batch that is committed on the reactor's thread."""

_CHECKPOINT_FRAMES = 1000
"""The length of the write-ahead log at which a commit makes a checkpoint (SQLite's default)."""

_FRAMES_OF_A_ROW_MAX = 4
"""Frames that a row of a batch adds to the log at most: pages of its table and its index, and their splits. Rows with
random keys were measured to add 2.2 each, rows of one nonce next to nothing."""

_QUICK_FRAMES_MAX = _CHECKPOINT_FRAMES - _FRAMES_OF_A_ROW_MAX * _QUICK_ROWS_MAX
"""The longest log to which a batch is committed on the reactor's thread: no checkpoint follows."""

_ALONE_TIMEOUT_MS = 100
"""How long `run_on_file` waits for readers, while other processes cannot write."""


class _WouldWaitError(Exception):
    """A batch cannot be committed without waiting."""


class Committer:
    """The writing connection to a file, and the queue of writes.

    Its methods run in the writer thread, or on the reactor's thread while the writer thread is idle.

    Args:
        file: the file of the store.
        cache: is informed of each commit, and emptied when another file is opened.
        thread: the writer thread.
        clock: the reactor.

    Attributes:
        queue: the writes that wait for their commit.
        connection: None while the file is not open.
        detector: detects commits of all processes; None while the file is not open, or if it has no shared memory.
        not_open: the reason why the file is not open, for errors.
    """

    def __init__(self, file: DatabaseFile, cache: ReadCache, thread: WriterThread, clock: IReactorTime) -> None:
        self._file = file
        self._cache = cache
        self._thread = thread
        self.queue: GroupCommit[Write] = GroupCommit(self._commit, clock=clock)
        self.connection: sqlite3.Connection | None = None
        self.detector: CommitDetector | None = None
        self.not_open = f"{file.path}: not open yet"
        self._turn: WriteTurn | None = None
        self._synced, self._busy_timeout_ms = True, BUSY_TIMEOUT_MS

    def open(self, *, create: bool) -> None:
        """Open the file at its path for writing; it raises what `DatabaseFile.open_writer` raises."""
        self.connection, held = self._file.open_writer(create=create)
        self._synced, self._busy_timeout_ms = True, BUSY_TIMEOUT_MS
        self._turn = WriteTurn(held.file)
        with suppress(OSError):
            self.detector = CommitDetector(held.path)
        self._cache.clear()

    def close(self, *, stopping: bool = False) -> str:
        """Close the file, after its readers; return what `DatabaseFile.close_writer` returns."""
        self._busy_timeout_ms = -1  # which it changes
        if self.connection is not None and (why := self._file.close_writer(self.connection, stopping=stopping)):
            return why
        self.connection = self._turn = None
        if self.detector is not None:
            self.detector.close()
            self.detector = None
        return ""

    def _commit(self, writes: Sequence[Write]) -> Deferred[Sequence[Outcome]]:
        """Commit a batch: on the reactor's thread if it does not have to wait there, else in the writer thread."""
        if not self._thread.pending and self.detector is not None and _may_be_quick(writes):
            with suppress(_WouldWaitError):
                return succeed(self._commit_batch(writes, may_wait=False))
        return self._thread.run(self._commit_in_thread, writes)

    def _commit_in_thread(self, writes: Sequence[Write]) -> Sequence[Outcome]:
        """Commit a batch, as `_commit_batch`; then copy a long log, after which batches can be quick again.

        Not after a synced batch: its acknowledgement would wait for that, too.
        """
        outcomes = self._commit_batch(writes)
        connection, detector = self.connection, self.detector
        if connection and detector and not self._synced and detector.is_long(_QUICK_FRAMES_MAX):
            with suppress(sqlite3.Error):  # the batch is committed
                connection.execute("PRAGMA wal_checkpoint")
        return outcomes

    def _commit_batch(self, writes: Sequence[Write], *, may_wait: bool = True) -> Sequence[Outcome]:
        """Commit a batch in one transaction.

        Raises:
            StoreUnavailableError: it cannot be committed.
            _WouldWaitError: it has to wait for another process or for the disk, and `may_wait` is False.
        """
        connection, turn, detector = self.connection, self._turn, self.detector
        if connection is None or turn is None:
            raise StoreUnavailableError(self.not_open)
        if may_wait:
            self._check_place()
        try:
            self._set_synchronous(connection, synced=any(write.synced for write in writes))
            with turn.turn(may_wait=may_wait) as waited_s:
                if waited_s is None:
                    raise _WouldWaitError
                self._set_busy_timeout(connection, _remaining_timeout_ms(waited_s) if may_wait else 0)
                connection.execute("BEGIN IMMEDIATE")  # a transaction that reads first cannot wait for a lock
                with connection:  # commits, or undoes it on an error
                    before = b"" if detector is None else detector.read()
                    if detector is not None and not may_wait and not detector.appends_within(_QUICK_FRAMES_MAX):
                        raise _WouldWaitError
                    outcomes = run_batch(writes, connection)
                    self._check_place()  # again, after seconds of waiting perhaps
                if detector is not None:
                    changes = {table for write in writes for table in write.changes}
                    self._cache.note_commit(before, detector.read(), changes)
                    if "post" in changes:
                        detector.touch()
                return outcomes
        except sqlite3.Error as error:
            if not may_wait and is_locked(error):
                raise _WouldWaitError from None
            raise unavailable(error, self._file.path) from None
        except OSError as error:
            raise StoreUnavailableError(f"{self._file.path}: {error.strerror}") from None

    def _set_synchronous(self, connection: sqlite3.Connection, *, synced: bool) -> None:
        """Make the next commits wait for the disk, or for the operating system only."""
        if synced != self._synced and self._file.synchronous == "FULL":
            connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            self._synced = synced

    def _set_busy_timeout(self, connection: sqlite3.Connection, busy_timeout_ms: int) -> None:
        """Set how long the next statements wait for the lock of another process; 0: they fail at once."""
        if busy_timeout_ms != self._busy_timeout_ms:
            connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
            self._busy_timeout_ms = busy_timeout_ms

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function in a transaction that locks nothing of the file; return its result.

        Raises:
            StoreUnavailableError: the file is not open, or SQLite failed.
        """
        if self.connection is None:
            raise StoreUnavailableError(self.not_open)
        try:
            with transaction(self.connection):
                return work(self.connection)
        except sqlite3.Error as error:
            raise unavailable(error, self._file.path) from None

    def run_on_file(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        """Run a function outside of a transaction, with a descriptor of the file, in the turn of this process.

        Raises:
            StoreUnavailableError: the file is not open, or cannot be used.
        """
        connection, turn, file = self.connection, self._turn, self._file
        if connection is None or turn is None:
            raise StoreUnavailableError(self.not_open)
        self._check_place()
        try:
            with turn.turn():
                self._set_busy_timeout(connection, _ALONE_TIMEOUT_MS)
                return work(connection, turn.descriptor)
        except sqlite3.Error as error:
            raise unavailable(error, file.path) from None
        except OSError as error:
            raise StoreUnavailableError(f"{file.path}: {error.strerror}") from None

    def _check_place(self) -> None:
        """Raise StoreUnavailableError if the open file is no longer at its path: writes to it would be lost."""
        file = self._file
        if not file.unlinked and (file.held is None or identity_of(file.path) != file.held.file.identity):
            raise StoreUnavailableError(file.replaced)


def _may_be_quick(writes: Sequence[Write]) -> bool:
    """Return whether a batch has few enough rows, and none that waits for the disk."""
    are_quick = [type(write.run) in TOGETHER and not write.synced for write in writes]
    return len(writes) <= _QUICK_ROWS_MAX and all(are_quick)


def _remaining_timeout_ms(waited_s: float) -> int:
    """Return how long a write that has waited already may wait for SQLite's lock, in steps of 100 ms."""
    return BUSY_TIMEOUT_MS - int(waited_s * 10) * 100
