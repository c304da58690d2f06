"""Descriptors of our own of files that SQLite has open too, and locks on bytes of them that SQLite never looks at.

To close any descriptor of a file gives up all the locks of the classic kind that the process has on it (fcntl(2)), and
SQLite has some for as long as a database is open. Without them another process takes itself for the only one, and
removes the write-ahead log or cuts the shared memory off under our feet. So what is opened here is closed only once
no part of the process needs that file any more, and never by the garbage collector.

The locks are of the other kind, "open file description locks": they belong to the descriptor, take no notice of those
that SQLite has in the same process, and end with the process, however that ends.
"""

import errno
import fcntl
import mmap
import os
import struct
from threading import Lock
from typing import NamedTuple

_FIRST_BYTE = 2**62
"""Where our locks begin: far behind the end of any file, and behind what SQLite locks (some bytes from 2**30 on)."""

_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of fcntl(2), its offsets of 64 bits: kind, whence, start, length, process."""


class Identity(NamedTuple):
    """What tells a file from another one of the same name."""

    device: int
    inode: int


def identity_of(path: str) -> Identity | None:
    """Return what tells the file at a path from another one put in its place, None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for each batch of writes; a Path takes twice the time
    except OSError:
        return None
    return Identity(status.st_dev, status.st_ino)


class LockBytes:
    """Some bytes to be locked; `first` counts from 0."""

    def __init__(self, first: int, count: int = 1) -> None:
        start = _FIRST_BYTE + first
        self.exclusive = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
        self.shared = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, start, count, 0)
        self.free = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, count, 0)


_ALL = LockBytes(0, 2**62)


class SharedFile:
    """A descriptor of a file that SQLite has open too.

    Args:
        path: the file.
        flags: for open(2). A lock that is exclusive needs a file that is open for writing.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str, flags: int) -> None:
        self.descriptor = os.open(path, flags | os.O_CLOEXEC)
        status = os.fstat(self.descriptor)
        self.identity = Identity(status.st_dev, status.st_ino)
        with _registry:
            _open.setdefault(self.identity, _Open()).add(self.descriptor)

    def lock(self, wanted: bytes) -> bool:
        """Lock or free bytes (`LockBytes`) without waiting; False if somebody else has them.

        Raises:
            OSError: the file system knows no locks.
        """
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return False
            raise
        return True

    def is_locked(self, wanted: bytes) -> bool:
        """Tell whether somebody else has what a lock of these bytes would have to wait for."""
        found = fcntl.fcntl(self.descriptor, fcntl.F_OFD_GETLK, wanted)
        kind: int = _FLOCK.unpack(found)[0]
        return kind != fcntl.F_UNLCK

    def memory(self, length: int) -> mmap.mmap:
        """Return the first bytes of the file as they are at any time, to be read until `close`.

        Raises:
            ValueError: it is shorter.
        """
        memory = mmap.mmap(self.descriptor, length, access=mmap.ACCESS_READ)
        with _registry:
            _open[self.identity].add_memory(memory)
        return memory

    def close(self) -> None:
        """Give up the locks made here, and the descriptor; only once SQLite has closed the file."""
        self.lock(_ALL.free)
        with _registry:
            if _open[self.identity].leave():
                _open.pop(self.identity).close()


class _Open:
    """The descriptors of one file, and how many still need it."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._memories: list[mmap.mmap] = []
        self._users = 0

    def add(self, descriptor: int) -> None:
        self._descriptors.append(descriptor)
        self._users += 1

    def add_memory(self, memory: mmap.mmap) -> None:
        self._memories.append(memory)  # it has a descriptor of its own

    def leave(self) -> bool:
        self._users -= 1
        return not self._users

    def close(self) -> None:
        for memory in self._memories:
            memory.close()
        for descriptor in self._descriptors:
            os.close(descriptor)


_open: dict[Identity, _Open] = {}
_registry = Lock()
