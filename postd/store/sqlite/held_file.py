"""A database file that is renamed, replaced or removed while processes have it open.

A process holds the file and its "-wal" and "-shm" files by descriptors, which a rename does not affect. SQLite finds
the last two by their names alone: a process that opens a database uses the two files beside it. If they belong to a
database that was there before, or if other processes use the database with two files that are no longer there, the
database is corrupted.

So processes open and close databases one after the other, under a lock on the folder. A process that has a database
open claims the "-shm" file for it, by a lock on a byte. A process that opens a database first looks for claims, and for
locks of SQLite, also in other programs. Only the last process that closes a moved database unlinks the two files, and
only after they were checkpointed into it.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from postd.errors import StoreUnavailableError
from postd.store.sqlite.file_locks import Identity, LockBytes, SharedFile, identity_of

_FOLDER_MAX_S = 5.0
"""Timeout for other processes that open or close a database in the folder; each takes some milliseconds."""

_CONFLICT_MAX_S = 0.05
"""How long the locks of SQLite may conflict: another program that opens or closes a file takes one after the other."""

_POLL_EVERY_S = 0.001

_INODES = 2**61

_OF_ANOTHER = "the write-ahead log beside it is that of a file that was there before, and in use"
_GONE = "another program has it open, with a write-ahead log that is no longer beside it"

# Locks of SQLite (os.h and os_unix.c of its source): a process with a database open has a read lock on the shared bytes
# of the file, before it looks for a write-ahead log, and one on byte 128 of the "-shm" file.
_PENDING = LockBytes(2**30, base=0)
_SHARED = LockBytes(2**30 + 2, 510, base=0)
_MEMORY_IN_USE = LockBytes(128, base=0)


@contextmanager
def locked_folder(database: str) -> Iterator[bool]:
    """Lock out other processes of postd that open or close a database in a folder.

    The value is False if the lock was not free in time. A folder that is gone, or cannot be read, is not locked.
    """
    try:
        folder = os.open(Path(database).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        yield _lock_folder(folder)
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)  # a child process may have a copy of the descriptor
        os.close(folder)


def _lock_folder(folder: int) -> bool:
    deadline = time.monotonic() + _FOLDER_MAX_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_EVERY_S)
        else:
            return True


class HeldFile:
    """A database file that SQLite opens next, or has open.

    Only `is_in_place` and `was_moved` need no lock on the folder.

    Attributes:
        path: its path when it was opened, with symlinks resolved, as SQLite does it for the names of the two files.
        file: a descriptor of it.
        has_old_log: whether there was a write-ahead log beside it that no process used: they were killed. If another
            file was put in the place of theirs, it does not belong to this one.

    Raises:
        StoreUnavailableError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = _open_shared(path, os.O_RDWR)
        self._memory: SharedFile | None = None
        self._log: dict[str, Identity | None] = {}
        self.has_old_log = False
        with suppress(FileNotFoundError):
            has_log = Path(f"{path}-wal").stat().st_size > 0
            self.has_old_log = has_log and not self.file.is_locked(_SHARED.exclusive)

    def find_conflict(self) -> str:
        """Return why SQLite must not open the file now; empty: it may."""
        if self._is_locked_beside(*_claims_of_others(self.file.identity)):
            return _OF_ANOTHER
        deadline = time.monotonic() + _CONFLICT_MAX_S
        while (why := self._find_conflict()) and time.monotonic() < deadline:
            time.sleep(_POLL_EVERY_S)
        return why

    def _find_conflict(self) -> str:
        if self.file.is_locked(_SHARED.shared):
            return "it is locked by another program"
        in_use, log_in_use = self.file.is_locked(_SHARED.exclusive), self._is_locked_beside(_MEMORY_IN_USE)
        if log_in_use and not in_use:
            return _OF_ANOTHER
        if in_use and not (log_in_use and identity_of(f"{self.path}-wal")):
            return _GONE
        return ""

    def _is_locked_beside(self, *ranges: LockBytes) -> bool:
        """Return whether bytes of the "-shm" file beside the database are locked."""
        try:
            with closing(SharedFile(f"{self.path}-shm", os.O_RDONLY)) as memory:
                return any(memory.is_locked(places.exclusive) for places in ranges)
        except OSError:  # there is none, or SQLite cannot open it either
            return False

    def is_in_use(self) -> bool:
        """Return whether another process of postd, of any version, has the file open."""
        claim = _claim(self.file.identity)
        return self._is_locked_beside(claim) if self._memory is None else self._memory.is_locked(claim.exclusive)

    def claim(self) -> None:
        """Claim the "-shm" file, once SQLite has opened it.

        Raises:
            StoreUnavailableError: it was removed meanwhile.
        """
        # The shared memory is unlinked last: as long as it exists, its lock identifies the owner of the log beside it.
        self._log = {name: identity_of(name) for name in (f"{self.path}-wal", f"{self.path}-shm")}
        self._memory = _open_shared(f"{self.path}-shm", os.O_RDONLY)
        self._memory.lock(_claim(self.file.identity).shared)

    @contextmanager
    def old_log_kept(self) -> Iterator[None]:
        """Let SQLite close a file that is not used after all, without copying an old log into it."""
        # SQLite does so only with an exclusive lock.
        locked = self.has_old_log and self._memory is None and self.file.lock(_SHARED.shared)
        try:
            yield
        finally:
            if locked:
                self.file.lock(_SHARED.free)

    def was_moved(self) -> bool:
        """Return whether the database is no longer at its path."""
        return identity_of(self.path) != self.file.identity

    def is_in_place(self) -> bool:
        """Return whether the database, and the two files beside it, are still the files that SQLite has open."""
        return not self.was_moved() and all(identity_of(name) == identity for name, identity in self._log.items())

    def remove_log(self) -> None:
        """Unlink the two files if the database was moved.

        Only if no other process of postd has it open, after its log was checkpointed and SQLite has closed it.
        """
        # Without this lock of SQLite, another program could open the database, if it is moved back at this moment.
        if self.file.lock(_PENDING.exclusive):
            if self.was_moved():
                for name, identity in self._log.items():
                    if identity_of(name) == identity:
                        Path(name).unlink(missing_ok=True)
            self.file.lock(_PENDING.free)

    def close(self) -> None:
        """Release the claim and the descriptors; only after SQLite has closed the database."""
        if self._memory is not None:
            self._memory.close()
        self.file.close()


def _open_shared(path: str, flags: int) -> SharedFile:
    try:
        return SharedFile(path, flags)
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error.strerror}") from None


def _claim(identity: Identity) -> LockBytes:
    return LockBytes(identity.inode % _INODES)


def _claims_of_others(identity: Identity) -> list[LockBytes]:
    own = identity.inode % _INODES
    return [*([LockBytes(0, own)] if own else []), LockBytes(own + 1, _INODES - own)]
