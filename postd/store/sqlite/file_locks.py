"""Descriptors of files that SQLite has open too, and locks on bytes of them that SQLite does not use.

Closing any descriptor of a file releases all POSIX record locks that the process has on it (fcntl(2)), and SQLite has
some as long as a database is open. Without them another process believes it is the only one, and removes the
write-ahead log or truncates the shared memory of this process. So a file that is opened here is closed only when no
part of the process needs it, and never by the garbage collector.

The locks here are "open file description locks": they belong to the descriptor, do not conflict with the locks of
SQLite, and end with the process.
"""

import errno
import fcntl
import mmap
import os
import struct
from contextlib import ExitStack, suppress
from threading import Lock
from typing import NamedTuple

_FIRST_BYTE = 2**62
"""The offset of our locks: far behind the end of any file, and the bytes that SQLite locks (from 2**30 on)."""

_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of fcntl(2) with 64-bit offsets: type, whence, start, length, process."""


class Identity(NamedTuple):
    """The identity of a file, independent of its name."""

    device: int
    inode: int


def identity_of(path: str) -> Identity | None:
    """Return the identity of the file at a path, None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called for each batch of writes; a Path takes twice the time
    except OSError:
        return None
    return Identity(status.st_dev, status.st_ino)


def open_descriptors() -> set[tuple[str, Identity | None]]:
    """Return the descriptors of this process, and their files; none without /proc."""
    with suppress(FileNotFoundError):
        return {(name, _identity_of_descriptor(int(name))) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208
    return set()


def _identity_of_descriptor(descriptor: int) -> Identity | None:
    try:
        status = os.fstat(descriptor)
    except OSError:  # that of the list itself
        return None
    return Identity(status.st_dev, status.st_ino)


class LockBytes:
    """A range of bytes for locks; `first` counts from the first byte of ours, or from `base`."""

    def __init__(self, first: int, count: int = 1, *, base: int = _FIRST_BYTE) -> None:
        start = base + first
        self.exclusive = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
        self.shared = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, start, count, 0)
        self.free = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, count, 0)


_ALL = LockBytes(0, 2**62)


class SharedFile:
    """A descriptor of a file that SQLite has open too.

    Args:
        flags: of open(2). An exclusive lock needs a file that is open for writing.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str, flags: int) -> None:
        self.descriptor = os.open(path, flags | os.O_CLOEXEC)
        status = os.fstat(self.descriptor)
        self.identity = Identity(status.st_dev, status.st_ino)
        with _registry:
            opened = _open.setdefault(self.identity, _Opened())
            opened.users += 1
            opened.callback(os.close, self.descriptor)

    def lock(self, wanted: bytes) -> bool:
        """Lock or unlock bytes (`LockBytes`) without waiting; return False if another descriptor has them locked.

        Raises:
            OSError: the file system does not support locks.
        """
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return False
            raise
        return True

    def is_locked(self, wanted: bytes) -> bool:
        """Return whether another descriptor has a lock that conflicts with this one."""
        found = fcntl.fcntl(self.descriptor, fcntl.F_OFD_GETLK, wanted)
        kind: int = _FLOCK.unpack(found)[0]
        return kind != fcntl.F_UNLCK

    def memory(self, length: int) -> mmap.mmap:
        """Map the first bytes of the file, to be read until `close`.

        Raises:
            ValueError: the file is shorter.
        """
        memory = mmap.mmap(self.descriptor, length, access=mmap.ACCESS_READ)
        with _registry:
            _open[self.identity].callback(memory.close)  # a mapping has a descriptor of its own
        return memory

    def close(self) -> None:
        """Release the locks and the descriptor; only after SQLite has closed the file."""
        self.lock(_ALL.free)
        with _registry:
            opened = _open[self.identity]
            opened.users -= 1
            if not opened.users:
                _open.pop(self.identity).close()


class _Opened(ExitStack):
    """The descriptors and mappings of one file, which are closed together, and the number of their users."""

    users = 0


_open: dict[Identity, _Opened] = {}
_registry = Lock()
