"""The SQLite stores: the whole state of a service, in one file."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from postd.errors import StoreRefusedError
from postd.model import PostDetails
from postd.reactor import IReactor
from postd.store.base import read_by_pages, read_ids_by_pages
from postd.store.sqlite.credentials import SqliteCredentials
from postd.store.sqlite.database import SqliteDatabase
from postd.store.sqlite.database_file import MARK_AS_BACKUP, DatabaseFile
from postd.store.sqlite.logins import SqliteLogins
from postd.store.sqlite.posts import SqlitePosts
from postd.store.sqlite.writer_thread import WriterThread


class SqliteStore(SqlitePosts, SqliteLogins, SqliteCredentials):
    """A store in one SQLite file (`postd.store.interface.Store`).

    The arguments are passed to `DatabaseFile` and `SqliteDatabase`.
    """

    def __init__(self, path: str, *, reactor: IReactor, upgrade: bool = True, shared_memory: int | None = None) -> None:
        file = DatabaseFile(path, upgrade=upgrade)
        super().__init__(SqliteDatabase(file, reactor=reactor, shared_memory=shared_memory))

    async def mark_as_backup(self) -> None:
        """Let the posts have a new version once a server opens the file, as a backup may be restored several times."""
        await self.database.write(lambda connection: connection.execute(MARK_AS_BACKUP))


class MemoryDatabase(SqliteDatabase):
    """A database that lasts as long as the process, in an unlinked file.

    SQLite's own in-memory databases have no write-ahead log when connections share them: readers and the writer would
    lock each other out. This one is a temporary file, unlinked as soon as it is open, so that it ends with the process
    even after `kill -9`. It cannot be opened a second time: `read_batches` does not work.
    """

    def __init__(self, *, reactor: IReactor, thread: WriterThread | None = None) -> None:
        super().__init__(DatabaseFile("memory:", synchronous="OFF", unlinked=True), reactor=reactor, thread=thread)
        self.description = "memory:"

    def prepare(self, *, create: bool = True) -> bool:  # noqa: ARG002 - the file is created when it is opened
        try:
            Path(tempfile.mkdtemp(prefix="postd-")).rmdir()
        except OSError as error:
            raise StoreRefusedError(f"memory: needs a folder for temporary files: {error.strerror}") from None
        return False

    def _open(self, *, create: bool = True) -> None:
        folder = tempfile.mkdtemp(prefix="postd-")
        try:
            self._file.path = str(Path(folder) / "posts.db")
            super()._open(create=create)
        finally:
            shutil.rmtree(folder)

    def check_file(self) -> None:
        pass


class MemoryStore(SqlitePosts, SqliteLogins, SqliteCredentials):
    """A store that lasts as long as the process."""

    def __init__(self, *, reactor: IReactor, thread: WriterThread | None = None) -> None:
        super().__init__(MemoryDatabase(reactor=reactor, thread=thread))

    def read_posts(self, *, batch_size: int) -> AsyncIterator[Sequence[PostDetails]]:
        return read_by_pages(self.list_details, batch_size=batch_size)

    def read_ids_of(self, author: str, *, batch_size: int) -> AsyncIterator[Sequence[int]]:
        return read_ids_by_pages(self.list_details, author, batch_size=batch_size)
