"""The SQLite stores: all that a service must remember, in one file."""

from functools import partial

from postd.reactor import IReactor
from postd.store.assembled import AssembledStore
from postd.store.paging import read_by_pages
from postd.store.sqlite.database import SqliteDatabase
from postd.store.sqlite.logins import SqliteLogins
from postd.store.sqlite.memory import MemoryDatabase
from postd.store.sqlite.posts import SqlitePosts
from postd.store.sqlite.writer_thread import WriterThread


class SqliteStore(AssembledStore[SqliteDatabase]):
    """A store in one SQLite file (`postd.store.interface.Store`); the arguments are those of `SqliteDatabase`."""

    def __init__(self, path: str, *, reactor: IReactor, upgrade: bool = True) -> None:
        database = SqliteDatabase(path, reactor=reactor, upgrade=upgrade)
        super().__init__(database, SqlitePosts(database), SqliteLogins(database))


class MemoryStore(AssembledStore[SqliteDatabase]):
    """A store that lasts as long as the process; the arguments are those of `MemoryDatabase`."""

    def __init__(self, *, reactor: IReactor, thread: WriterThread | None = None) -> None:
        database = MemoryDatabase(reactor=reactor, thread=thread)
        super().__init__(database, SqlitePosts(database), SqliteLogins(database))
        self.read_posts = partial(read_by_pages, self.list_posts)
