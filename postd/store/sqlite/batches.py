"""Run the writes of a batch; rows for the same table, and uses of nonces, with few statements."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import count, repeat
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from postd.errors import PostdError, StoreFullError
from postd.store.group_commit import Outcome
from postd.store.sqlite.nonce_uses import NonceUse, use_nonces
from postd.store.sqlite.rows import ROWS_MAX, execute_rows


class InsertRow(Struct, frozen=True):
    """A write that inserts a row. Rows of a batch with the same statement become one statement, which is cheaper.

    Args:
        insert: the statement up to the values.
        values: of the row; the first is not None.
        columns: the values that the row has, `column1` and so on, perhaps one of them twice; all in order by default.
        numbered: True if the result is the row's id, which must be an AUTOINCREMENT's; the row must not exist yet.
            Else the result is whether the row was inserted; False if a constraint of its table refuses it.
    """

    insert: str
    values: tuple[object, ...]
    columns: str = "*"
    numbered: bool = False

    def __call__(self, connection: sqlite3.Connection) -> Any:
        if self.numbered:
            return _insert(connection, [self]).lastrowid or 0
        try:
            _insert(connection, [self])
        except sqlite3.IntegrityError:
            return False
        return True


class Write(Struct, frozen=True):
    """A write.

    Args:
        run: changes the database.
        synced: whether its commit waits for the disk.
        changes: the tables with cached results (of `postd.store.sqlite.read_cache.TABLES`) that it may change.
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
    done = dict[int, object]()
    for kind, run_together in TOGETHER.items():
        alike = [run for run in runs if type(run) is kind]
        if len(alike) > 1:
            done.update(run_together(alike, connection))
    return [done[id(run)] if id(run) in done else _run(run, connection) for run in runs]


def _insert_together(rows: Sequence[InsertRow], connection: sqlite3.Connection) -> dict[int, object]:
    """Insert rows, many with a statement; return the results by the `id()` of the row.

    A row without a result must be inserted by itself: its statement failed because of it or of one beside it.
    """
    inserted = dict[int, object]()
    by_statement: dict[str, list[InsertRow]] = {}
    for row in rows:
        by_statement.setdefault(row.insert, []).append(row)
    for alike in by_statement.values():
        for start in range(0, len(alike), ROWS_MAX):
            together = alike[start : start + ROWS_MAX]
            try:
                last_id = _insert(connection, together).lastrowid or 0
            except sqlite3.IntegrityError:
                continue  # the statement was undone
            # The ids of one statement are consecutive.
            numbered = together[0].numbered
            results = count(last_id - len(together) + 1) if numbered else repeat(True)  # noqa: FBT003 - a result
            inserted.update(zip(map(id, together), results, strict=False))
    return inserted


def _insert(connection: sqlite3.Connection, rows: Sequence[InsertRow]) -> sqlite3.Cursor:
    first = rows[0]
    statement = partial(_statement, first.insert, first.columns, len(first.values))
    return execute_rows(connection, statement, [row.values for row in rows])


@lru_cache
def _statement(insert: str, columns: str, width: int, places: int) -> str:
    """Return the statement that inserts up to `places` rows of `width` values; in places left over all are NULL."""
    place = f"({', '.join('?' * width)})"
    if places == 1 and columns == "*":
        return f"{insert} VALUES {place}"
    rows = ", ".join([place] * places)
    return f"{insert} SELECT {columns} FROM (VALUES {rows}) WHERE column1 IS NOT NULL"  # noqa: S608 - only places


TOGETHER: Mapping[type, Callable[[Any, sqlite3.Connection], Mapping[int, object]]] = MappingProxyType(
    {InsertRow: _insert_together, NonceUse: use_nonces}
)
"""The kinds of writes of which several in a batch run together, and how: a function to their results by `id()`."""


def _run(write: Callable[[sqlite3.Connection], object], connection: sqlite3.Connection) -> Outcome:
    try:
        return write(connection)
    except PostdError as error:
        return error
    except sqlite3.IntegrityError as error:
        # A constraint of the table, such as the largest id. SQLite has undone this statement only.
        return StoreFullError(f"the database refuses it: {error}")
