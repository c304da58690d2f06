"""Run the writes of a batch, and rows for the same table with one statement."""

import sqlite3
from collections.abc import Callable, Sequence

from msgspec import Struct

from postd.errors import PostdError, StoreFullError
from postd.store.group_commit import Outcome

ROWS_MAX = 128
"""Rows that one statement inserts, a power of two: SQLite before 3.32 accepts no more than 999 values."""


class InsertRow(Struct, frozen=True):
    """A write that inserts a row. Those of a batch with the same statement become one statement, which is cheaper.

    Args:
        insert: the statement up to the values.
        numbered: True if the result is the row's id, which must be an AUTOINCREMENT's; the row must not exist yet.
            Else the result is whether the row was inserted; False if one with the same key exists.
    """

    insert: str
    values: tuple[object, ...]
    numbered: bool = False

    def __call__(self, connection: sqlite3.Connection) -> int:
        if self.numbered:
            return _insert(connection, [self]).lastrowid or 0
        return _insert(connection, [self], "ON CONFLICT DO NOTHING").rowcount > 0


class Write(Struct, frozen=True):
    """A write.

    Args:
        run: changes the database.
        synced: whether its commit waits for the disk.
        changes: those of the tables with cached results (`postd.store.sqlite.read_cache.TABLES`) that it may change.
    """

    run: Callable[[sqlite3.Connection], object]
    synced: bool
    changes: Sequence[str]


def run_batch(writes: Sequence[Write], connection: sqlite3.Connection) -> list[Outcome]:
    """Run writes in the transaction that is open; return the outcome of each.

    Raises:
        sqlite3.Error: none of them can be committed.
    """
    runs = [write.run for write in writes]
    inserted = _insert_together([run for run in runs if isinstance(run, InsertRow)], connection)
    return [inserted[id(run)] if id(run) in inserted else _run(run, connection) for run in runs]


def _insert_together(rows: Sequence[InsertRow], connection: sqlite3.Connection) -> dict[int, object]:
    """Insert rows, many with a statement; return the results by the `id()` of the row.

    A row without a result must be inserted by itself: its statement failed because of it or of one beside it.
    """
    inserted = dict[int, object]()
    for insert in {row.insert for row in rows}:
        alike = [row for row in rows if row.insert == insert]
        while alike:
            # A power of two, so that the number of different statements, which SQLite caches compiled, is small.
            many = min(ROWS_MAX, 1 << (len(alike).bit_length() - 1))
            together, alike = alike[:many], alike[many:]
            try:
                last_id = _insert(connection, together).lastrowid or 0
            except sqlite3.IntegrityError:
                continue  # the statement was undone
            # The ids of one statement are consecutive.
            first_id = last_id - many + 1
            inserted.update((id(row), first_id + n if row.numbered else True) for n, row in enumerate(together))
    return inserted


def _insert(connection: sqlite3.Connection, rows: Sequence[InsertRow], on_conflict: str = "") -> sqlite3.Cursor:
    places = ", ".join([f"({', '.join('?' * len(rows[0].values))})"] * len(rows))
    values = [value for row in rows for value in row.values]
    return connection.execute(f"{rows[0].insert} VALUES {places} {on_conflict}", values)


def _run(write: Callable[[sqlite3.Connection], object], connection: sqlite3.Connection) -> Outcome:
    try:
        return write(connection)
    except PostdError as error:
        return error
    except sqlite3.IntegrityError as error:
        # A constraint of the table, such as the largest id. SQLite has undone this statement only.
        return StoreFullError(f"the database refuses it: {error}")
