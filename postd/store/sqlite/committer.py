"""Commit batches of writes to the file of a store: the writing connection, and all that a commit needs."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from postd.errors import StoreUnavailableError
from postd.store.group_commit import Outcome
from postd.store.sqlite.batches import InsertRow, Write, run_batch
from postd.store.sqlite.commit_detector import CommitDetector
from postd.store.sqlite.database_file import BUSY_TIMEOUT_MS, DatabaseFile, transaction
from postd.store.sqlite.errors import is_locked, unavailable
from postd.store.sqlite.file_locks import identity_of
from postd.store.sqlite.read_cache import ReadCache
from postd.store.sqlite.write_turn import WriteTurn

T = TypeVar("T")

_QUICK_ROWS_MAX = 32
"""Limit on the rows of a batch that is committed on the reactor's thread."""

_CHECKPOINT_FRAMES = 1000
"""The length of the write-ahead log at which a commit makes a checkpoint (SQLite's default)."""

_FRAMES_OF_A_ROW_MAX = 4
"""Frames that a row of a batch adds to the log at most: pages of its table and its index, and their splits. Rows with
random keys were measured to add 2.2 each, rows of one nonce next to nothing."""

_ALONE_TIMEOUT_MS = 100
"""How long `run_on_file` waits for readers, while other processes cannot write."""


class _WouldWaitError(Exception):
    """A batch cannot be committed without waiting."""


class Committer:
    """The writing connection to a file.

    Its methods run in the writer thread, or on the reactor's thread while the writer thread is idle.

    Args:
        file: the file of the store.
        cache: is informed of each commit, and emptied when another file is opened.

    Attributes:
        connection: None while the file is not open.
        detector: detects commits of all processes; None while the file is not open, or if it has no shared memory.
        not_open: the reason why the file is not open, for errors.
    """

    def __init__(self, file: DatabaseFile, cache: ReadCache) -> None:
        self._file = file
        self._cache = cache
        self.connection: sqlite3.Connection | None = None
        self.detector: CommitDetector | None = None
        self.not_open = f"{file.path}: not open yet"
        self._turn: WriteTurn | None = None

    def open(self, *, create: bool) -> None:
        """Open the file at its path for writing; it raises what `DatabaseFile.open_writer` raises."""
        self.connection, held = self._file.open_writer(create=create)
        self._turn = WriteTurn(held.file)
        with suppress(OSError):
            self.detector = CommitDetector(held.path)
        self._cache.clear()

    def close(self, *, stopping: bool = False) -> str:
        """Close the file, after its readers; return what `DatabaseFile.close_writer` returns."""
        if self.connection is not None and (why := self._file.close_writer(self.connection, stopping=stopping)):
            return why
        self.connection = self._turn = None
        if self.detector is not None:
            self.detector.close()
            self.detector = None
        return ""

    def commit_at_once(self, writes: Sequence[Write]) -> Sequence[Outcome] | None:
        """Commit a batch without waiting for another process or for the disk.

        Returns:
            None if it cannot be committed without waiting. Then nothing of it is committed.

        Raises:
            StoreUnavailableError: it cannot be committed.
        """
        detector = self.detector
        if detector is None or len(writes) > _QUICK_ROWS_MAX:
            return None
        for write in writes:
            if write.synced or not isinstance(write.run, InsertRow):
                return None
        frames, copied = detector.log_frames()
        # A commit that restarts the log syncs it, and so does the checkpoint after a commit that makes it long.
        if not copied < frames < _CHECKPOINT_FRAMES - _FRAMES_OF_A_ROW_MAX * len(writes):
            return None
        try:
            return self.commit(writes, may_wait=False)
        except _WouldWaitError:
            return None

    def commit(self, writes: Sequence[Write], *, may_wait: bool = True) -> Sequence[Outcome]:
        """Commit a batch in one transaction.

        Raises:
            StoreUnavailableError: it cannot be committed.
            _WouldWaitError: it has to wait for another process, and `may_wait` is False.
        """
        connection, turn, file = self.connection, self._turn, self._file
        if connection is None or turn is None:
            raise StoreUnavailableError(self.not_open)
        self._check_place()
        try:
            file.set_synchronous(connection, synced=any(write.synced for write in writes))
            with turn.turn(may_wait=may_wait) as waited_s:
                if waited_s is None:
                    raise _WouldWaitError
                file.set_busy_timeout(connection, _remaining_timeout_ms(waited_s) if may_wait else 0)
                with transaction(connection, "BEGIN IMMEDIATE"):  # one that reads first cannot wait for a lock
                    before = b"" if self.detector is None else self.detector.read()
                    outcomes = run_batch(writes, connection)
                    self._check_place()  # again, after seconds of waiting perhaps
                if self.detector is not None:
                    changes = {table for write in writes for table in write.changes}
                    self._cache.note_commit(before, self.detector.read(), changes)
                return outcomes
        except sqlite3.Error as error:
            if not may_wait and is_locked(error):
                raise _WouldWaitError from None
            raise unavailable(error, file.path) from None
        except OSError as error:
            raise StoreUnavailableError(f"{file.path}: {error.strerror}") from None

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
                file.set_busy_timeout(connection, _ALONE_TIMEOUT_MS)
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


def _remaining_timeout_ms(waited_s: float) -> int:
    """Return how long a write that has waited already may wait for SQLite's lock, in steps of 100 ms."""
    return BUSY_TIMEOUT_MS - int(waited_s * 10) * 100
