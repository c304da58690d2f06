"""Detect commits, and the length of the write-ahead log, from the WAL-index header, without a query.

A read transaction takes SQLite some microseconds, and three times as many with cold processor caches, as in a server.
SQLite itself detects commits of other processes in shared memory, the "-shm" file beside the database: its header of 48
bytes changes with every commit, and otherwise in a recovery only (https://sqlite.org/walformat.html, "The WAL-Index
Header"). This module compares the same bytes.
"""

import os
import struct
from contextlib import suppress

from postd.store.sqlite.file_locks import SharedFile

_HEADER_BYTES = 48  # there are two copies, which `walCkptInfo` follows
_COUNT = struct.Struct("=I")
_FRAMES_AT = 16  # mxFrame, "Number of valid and committed frames in the WAL file"
_COPIED_AT = 2 * _HEADER_BYTES  # nBackfill, "Number of WAL frames that have been backfilled into the database"
_VERSION = 3007000
"""The version of the header's format, unchanged since SQLite 3.7.0; in native byte order."""


class CommitDetector:
    """The shared memory of a database that is open, in WAL mode.

    Attributes:
        descriptor: of its file.

    Raises:
        OSError: there is no shared memory, or its format is unknown.
    """

    def __init__(self, database: str) -> None:
        # SQLite resolves symlinks, too.
        path = os.path.realpath(database) + "-shm"
        self._file = SharedFile(path, os.O_RDONLY)
        self.descriptor = self._file.descriptor
        try:
            self._memory = self._file.memory(_COPIED_AT + _COUNT.size)
        except ValueError as error:  # the file is shorter than that
            raise OSError(f"{path}: {error}") from None
        version = struct.unpack_from("=I", self._memory)[0]
        if version != _VERSION or not self._memory[12]:
            raise OSError(f"{path}: not a WAL-index header of format {_VERSION}")

    def read(self) -> bytes:
        """Return a value that changes with each commit, of any process.

        A header that is read while it is written differs from every complete header: it counts as a change.
        """
        return self._memory[:_HEADER_BYTES]

    def log_frames(self) -> tuple[int, int]:
        """Return the number of frames in the write-ahead log, and how many of them are copied into the database.

        If all are, the next commit restarts the log. A header that is read while it is written may give other numbers.
        """
        memory = self._memory
        return _COUNT.unpack_from(memory, _FRAMES_AT)[0], _COUNT.unpack_from(memory, _COPIED_AT)[0]

    def appends_within(self, frames: int) -> bool:
        """Return whether the next commit appends to the write-ahead log, which has fewer frames.

        Otherwise the commit restarts the log, or a checkpoint may follow it: both wait for the disk.
        """
        written, copied = self.log_frames()
        return copied < written < frames

    def is_long(self, frames: int) -> bool:
        """Return whether the write-ahead log has so many frames, and not all of them are copied into the database."""
        written, copied = self.log_frames()
        return written >= frames and written > copied

    def touch(self) -> None:
        """Set the times of the file, which wakes up the processes that watch it (`postd.store.sqlite.change_watch`)."""
        with suppress(OSError):  # it is another user's: they look each second, too
            os.utime(self.descriptor)

    def close(self) -> None:
        """Unmap the memory; only after SQLite has closed the database."""
        self._file.close()
