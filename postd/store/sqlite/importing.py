"""Import posts with their ids into an SQLite file (`postd.store.interface.Import`).

Posts are staged in a temporary table, which SQLite keeps in a file of its own: staging locks nothing, memory is
bounded, and a process that is killed leaves no file behind. Then one transaction copies them.

That transaction drops the triggers of new posts and creates them again: for each of a million posts they would write to
the log, which keeps only the last 10,000 changes, and other writers would wait eight times as long. The work of the
triggers is done here, in the same transaction.
"""

import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import astuple
from twisted.internet.defer import CancelledError

from postd.errors import PostExistsError, StoreNotEmptyError, StoreUnavailableError
from postd.model import PostCollection, PostDetails
from postd.store.interface import CHANGES_KEPT
from postd.store.sqlite.database import SqliteDatabase
from postd.store.sqlite.database_file import transaction


class SqliteImport:
    """An import into one file, by a temporary table of its writing connection."""

    def __init__(self, database: SqliteDatabase, connection: sqlite3.Connection, table: str) -> None:
        self._database = database
        self._connection = connection
        self._table = table
        self._cancelled = False

    @classmethod
    async def begin(cls, database: SqliteDatabase) -> "SqliteImport":
        table = f"temp.import_{secrets.token_hex(8)}"

        def create(connection: sqlite3.Connection) -> sqlite3.Connection:
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, post TEXT, created, updated, author)")
            return connection

        return cls(database, await database.run_on_writer(create), table)

    async def add(self, posts: Sequence[PostDetails]) -> None:
        def stage(connection: sqlite3.Connection) -> None:
            self._check_open(connection)
            before = connection.total_changes
            try:
                connection.executemany(self._sql("INSERT INTO {table} VALUES (?, ?, ?, ?, ?)"), map(astuple, posts))
            except sqlite3.IntegrityError:
                raise PostExistsError(posts[connection.total_changes - before].id) from None

        await self._database.run_on_writer(stage)

    async def commit(
        self,
        *,
        skip_existing: bool = False,
        into_empty: bool = False,
        last_id: int = 0,
        revision: int = 0,
        collection: PostCollection | None = None,
    ) -> int:
        def store(connection: sqlite3.Connection) -> int:
            self._check_open(connection)
            # An error undoes the statements here, and no other write of the same transaction.
            with transaction(connection, "SAVEPOINT import", "RELEASE import", "ROLLBACK TO import"):
                if into_empty and connection.execute("SELECT EXISTS (SELECT 1 FROM post)").fetchone()[0]:
                    raise StoreNotEmptyError
                if skip_existing:
                    connection.execute(self._sql(_DELETE_EXISTING))
                elif existing := connection.execute(self._sql(_SELECT_EXISTING)).fetchone():
                    raise PostExistsError(existing[0])
                connection.execute(
                    "UPDATE version SET revision = :least, tag = randomblob(8) WHERE revision < :least",
                    {"least": revision},
                )
                stored = self._copy_staged(connection)
                _raise_last_id(connection, last_id)
                if collection is not None:
                    values = (bytes.fromhex(collection.id), collection.began)
                    connection.execute("UPDATE collection SET id = ?, began = ?", values)
                connection.execute(self._sql("DROP TABLE {table}"))
            return stored

        try:
            return await self._database.write(store)
        except CancelledError:
            # Do not wait until a million posts are stored after all.
            self._cancelled = True
            with suppress(sqlite3.ProgrammingError):  # closed already
                self._connection.interrupt()
            raise

    async def discard(self) -> None:
        def drop(connection: sqlite3.Connection) -> None:
            if connection is self._connection:
                connection.execute(self._sql("DROP TABLE IF EXISTS {table}"))

        await self._database.run_on_writer(drop)

    def _copy_staged(self, connection: sqlite3.Connection) -> int:
        """Store the staged posts in the order of their ids, with a change for each; return their number."""
        triggers = connection.execute(_SELECT_TRIGGERS).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        stored = connection.execute(self._sql(_COPY_STAGED)).rowcount
        if stored:
            connection.execute("UPDATE version SET revision = revision + ?, tag = randomblob(8)", (stored,))
            connection.execute(self._sql(_LOG_LATEST), (CHANGES_KEPT,))
        for _, trigger in triggers:
            connection.execute(trigger)
        return stored

    def _check_open(self, connection: sqlite3.Connection) -> None:
        if self._cancelled:
            raise StoreUnavailableError("the import was cancelled")
        if connection is not self._connection:
            raise StoreUnavailableError("the file of the store was replaced during the import")

    def _sql(self, statement: str) -> str:
        return statement.format(table=self._table)


_SELECT_TRIGGERS = "SELECT name, sql FROM sqlite_master WHERE name IN ('post_added', 'post_not_replaced')"
# Most ids are larger than the largest one, and need no lookup.
_SELECT_EXISTING = """
    SELECT id FROM {table} WHERE id <= (SELECT max(id) FROM post) AND id IN (SELECT id FROM post) ORDER BY id LIMIT 1
"""
_DELETE_EXISTING = """
    DELETE FROM {table} WHERE id <= (SELECT max(id) FROM post) AND id IN (SELECT id FROM post)
"""
_COPY_STAGED = """
    INSERT INTO post (id, post, created, updated, author)
    SELECT id, post, created, updated, author FROM {table} ORDER BY id
"""
# Counted back from the last post: only changes that the log keeps are inserted.
_LOG_LATEST = """
    INSERT INTO change
    SELECT revision + 1 - row_number() OVER (ORDER BY latest.id DESC), 'added', latest.id, version.tag
    FROM (SELECT id FROM {table} ORDER BY id DESC LIMIT ?) AS latest, version
"""


def _raise_last_id(connection: sqlite3.Connection, last_id: int) -> None:
    """Make later ids larger than `last_id`."""
    raised = connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'post'", (last_id,))
    if not raised.rowcount and last_id:
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('post', ?)", (last_id,))
