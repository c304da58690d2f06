"""Has anything been committed? Asked without a question to SQLite.

To begin and to end a reading takes SQLite some microseconds, and three times as many when the processor has done
something else in between, as it has for each request. SQLite keeps what it needs to know for that in memory that all
processes share, the "-shm" file beside the database: a header of 48 bytes that every commit changes, and that nothing
else changes but a recovery (https://sqlite.org/walformat.html, "The WAL-Index Header"). SQLite itself compares them to
find out whether what it has read before is still true. So do we.
"""

import os
import struct

from postd.store.sqlite.file_locks import SharedFile

_HEADER_BYTES = 48
_VERSION = 3007000
"""Of the header's format, which SQLite has not changed since 3.7.0; in the machine's own byte order."""


class CommitDetector:
    """A look at the shared memory of a database that is open, in write-ahead mode.

    Args:
        database: the path of the database.

    Raises:
        OSError: there is no such memory, or not in the format that we know.
    """

    def __init__(self, database: str) -> None:
        # Beside the file itself, as SQLite has it, if the path is that of a link.
        path = os.path.realpath(database) + "-shm"
        self._file = SharedFile(path, os.O_RDONLY)
        try:
            self._memory = self._file.memory(2 * _HEADER_BYTES)
        except ValueError as error:  # the file is shorter than that
            raise OSError(f"{path}: {error}") from None
        version = struct.unpack_from("=I", self._memory)[0]
        if version != _VERSION or not self._memory[12]:
            raise OSError(f"{path}: not a WAL-index header of format {_VERSION}")

    def read(self) -> bytes:
        """Return what is another after each commit, by whatever process.

        A header that is being written just now is like none before: what is compared with it counts as changed.
        """
        return self._memory[:_HEADER_BYTES]

    def close(self) -> None:
        """Let go of the memory; only once SQLite has closed the database."""
        self._file.close()
