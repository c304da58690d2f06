"""The SQLite store: all that a service must remember, in one file."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from postd.errors import StoreRefusedError
from postd.reactor import IReactor
from postd.store.paging import read_by_pages
from postd.store.sqlite.database_file import DatabaseFile
from postd.store.sqlite.engine import WriterThread
from postd.store.sqlite.logins import SqliteLogins
from postd.store.sqlite.posts import SqlitePosts


class SqliteStore(SqlitePosts, SqliteLogins):
    """A store in one SQLite file (`postd.store.interface.Store`); what it is made from is told by `SqliteEngine`."""

    @classmethod
    def in_memory(cls, *, reactor: IReactor, thread: WriterThread | None = None) -> "SqliteStore":
        """Make a store that lasts as long as the process.

        SQLite's own shared memory databases know no write-ahead log, so that readers and the writer would lock each
        other out. This is a file without a name.
        """
        return _NamelessSqliteStore(reactor=reactor, thread=thread)


class _NamelessSqliteStore(SqliteStore):
    """A store whose file has its name taken away as soon as it is open: it ends with the process, even by kill -9."""

    def __init__(self, *, reactor: IReactor, thread: WriterThread | None = None) -> None:
        super().__init__("memory:", reactor=reactor, thread=thread)
        self.description = "memory:"

    def prepare(self, *, create: bool = True) -> None:  # noqa: ARG002 - it is made when it is opened
        try:
            Path(tempfile.mkdtemp(prefix="postd-")).rmdir()
        except OSError as error:
            raise StoreRefusedError(f"memory: needs a folder for temporary files: {error.strerror}") from None

    def _open(self) -> None:
        folder = tempfile.mkdtemp(prefix="postd-")
        try:
            file = Path(folder) / "posts.db"
            file.touch(0o600)
            self._file = DatabaseFile(str(file), synchronous="OFF")
            super()._open()
        finally:
            shutil.rmtree(folder)

    def read_posts(self, *, at_once: int) -> AsyncIterator[Sequence[tuple[int, str]]]:
        return read_by_pages(self.list_posts, at_once=at_once)  # nobody can open the file a second time

    def _file_is_ours(self) -> bool:
        return True
