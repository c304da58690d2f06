"""Execute a statement with several rows of values."""

import sqlite3
from collections.abc import Callable, Sequence

ROWS_MAX = 128
"""How many rows a statement has at most: SQLite before 3.32 accepts no more than 999 values."""


def execute_rows(
    connection: sqlite3.Connection, statement: Callable[[int], str], rows: Sequence[tuple[object, ...]]
) -> sqlite3.Cursor:
    """Execute a statement with some rows of values, from one to `ROWS_MAX`; in places left over all values are NULL.

    With powers of two for the number of places, the statements are few enough that sqlite3 keeps them compiled.
    """
    places = 1 << (len(rows) - 1).bit_length()
    values = [value for row in rows for value in row]
    values += [None] * (len(rows[0]) * (places - len(rows)))
    return connection.execute(statement(places), values)
