"""Posts that come with their ids, on their way into an SQLite file (`postd.store.interface.Import`).

They are gathered in a temporary table, which SQLite keeps in a file of its own: nothing is locked meanwhile, memory is
bounded, and a process that is killed leaves nothing behind. Then one transaction takes them over.

In it the triggers of new posts are set aside: for each of a million they would write what the log keeps of the last
10,000 only, and other writers would wait eight times as long. What they see to is seen to here, in the same
transaction.
"""

import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from twisted.internet.defer import CancelledError

from postd.errors import PostExistsError, StoreNotEmptyError, StoreUnavailableError
from postd.store.interface import CHANGES_KEPT
from postd.store.sqlite.database import SqliteDatabase


class SqliteImport:
    """An import into one file.

    Args:
        database: has the file open.
        connection: the writing one, to which the temporary table belongs.
        table: its name.
    """

    def __init__(self, database: SqliteDatabase, connection: sqlite3.Connection, table: str) -> None:
        self._database = database
        self._connection = connection
        self._table = table
        self._given_up = False

    @classmethod
    async def begin(cls, database: SqliteDatabase) -> "SqliteImport":
        table = f"temp.import_{secrets.token_hex(8)}"

        def create(connection: sqlite3.Connection) -> sqlite3.Connection:
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, post TEXT NOT NULL)")
            return connection

        return cls(database, await database.run_on_writer(create), table)

    async def add(self, posts: Sequence[tuple[int, str]]) -> None:
        def stage(connection: sqlite3.Connection) -> None:
            self._check_same(connection)
            before = connection.total_changes
            try:
                connection.executemany(self._sql("INSERT INTO {table} VALUES (?, ?)"), posts)
            except sqlite3.IntegrityError:
                raise PostExistsError(posts[connection.total_changes - before][0]) from None

        await self._database.run_on_writer(stage)

    async def commit(
        self, *, skip_existing: bool = False, into_empty: bool = False, last_id: int = 0, revision: int = 0
    ) -> int:
        def store(connection: sqlite3.Connection) -> int:
            self._check_same(connection)
            with _savepoint(connection):
                if into_empty and connection.execute("SELECT EXISTS (SELECT 1 FROM post)").fetchone()[0]:
                    raise StoreNotEmptyError
                if skip_existing:
                    connection.execute(self._sql(_LEAVE_OUT_EXISTING))
                elif existing := connection.execute(self._sql(_SELECT_EXISTING)).fetchone():
                    raise PostExistsError(existing[0])
                connection.execute(
                    "UPDATE version SET revision = :least, tag = randomblob(8) WHERE revision < :least",
                    {"least": revision},
                )
                stored = self._take_over(connection)
                _raise_last_id(connection, last_id)
                connection.execute(self._sql("DROP TABLE {table}"))
            return stored

        try:
            stored: int = await self._database.write(store)
        except CancelledError:
            # Who gave up is not to wait until a million posts are stored after all.
            self._given_up = True
            with suppress(sqlite3.ProgrammingError):  # closed: there is nothing to be interrupted
                self._connection.interrupt()
            raise
        return stored

    async def discard(self) -> None:
        def drop(connection: sqlite3.Connection) -> None:
            if connection is self._connection:
                connection.execute(self._sql("DROP TABLE IF EXISTS {table}"))

        await self._database.run_on_writer(drop)

    def _take_over(self, connection: sqlite3.Connection) -> int:
        """Make posts of what was gathered, in the order of the ids, and each a change of its own."""
        triggers = connection.execute(_SELECT_TRIGGERS).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        stored = connection.execute(self._sql(_TAKE_OVER)).rowcount
        if stored:
            connection.execute("UPDATE version SET revision = revision + ?, tag = randomblob(8)", (stored,))
            connection.execute(self._sql(_LOG_LATEST), (CHANGES_KEPT,))
        for _, trigger in triggers:
            connection.execute(trigger)
        return stored

    def _check_same(self, connection: sqlite3.Connection) -> None:
        if self._given_up:
            raise StoreUnavailableError("the import was given up")
        if connection is not self._connection:
            raise StoreUnavailableError("the file of the store was replaced during the import")

    def _sql(self, statement: str) -> str:
        return statement.format(table=self._table)


_SELECT_TRIGGERS = "SELECT name, sql FROM sqlite_master WHERE name IN ('post_added', 'post_not_replaced')"
# Larger ids than the largest one, which most are, need not be looked up.
_SELECT_EXISTING = """
    SELECT id FROM {table} WHERE id <= (SELECT max(id) FROM post) AND id IN (SELECT id FROM post) ORDER BY id LIMIT 1
"""
_LEAVE_OUT_EXISTING = """
    DELETE FROM {table} WHERE id <= (SELECT max(id) FROM post) AND id IN (SELECT id FROM post)
"""
_TAKE_OVER = "INSERT INTO post (id, post) SELECT id, post FROM {table} ORDER BY id"
# Counted back from the last one: what the log has no room for is left out at once.
_LOG_LATEST = """
    INSERT INTO change
    SELECT revision + 1 - row_number() OVER (ORDER BY latest.id DESC), 'added', latest.id, latest.post
    FROM (SELECT id, post FROM {table} ORDER BY id DESC LIMIT ?) AS latest, version
"""


def _raise_last_id(connection: sqlite3.Connection, last_id: int) -> None:
    """Let the ids that are given out from now on be larger than `last_id`."""
    raised = connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'post'", (last_id,))
    if not raised.rowcount and last_id:
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('post', ?)", (last_id,))


@contextmanager
def _savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """Undo what is done within if any of it fails, and nothing of what others do in the same transaction."""
    connection.execute("SAVEPOINT import")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors SQLite has undone the whole transaction
            connection.execute("ROLLBACK TO import")
            connection.execute("RELEASE import")
        raise
    connection.execute("RELEASE import")
