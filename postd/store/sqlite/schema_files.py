"""The numbered schema files, in the folder `schema`."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from importlib import resources

_SELECT_SCHEMA = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"


def schema_steps() -> list[str]:
    """Return the schema files, in order: step n leads from schema n-1 to schema n."""
    folder = resources.files("postd.store.sqlite") / "schema"
    return [step.read_text("utf-8") for step in sorted(folder.iterdir(), key=lambda file: file.name)]


def apply_step(connection: sqlite3.Connection, step: str) -> None:
    """Execute the statements of a schema file in the transaction that is open; `executescript` would commit it."""
    statement = ""
    for line in step.splitlines(keepends=True):
        statement += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def find_missing(connection: sqlite3.Connection, steps: Sequence[str]) -> list[str]:
    """Return the names of tables, indexes and triggers of some schema files that a database lacks, or has otherwise."""
    missing = _objects_of(tuple(steps)) - set(connection.execute(_SELECT_SCHEMA))
    return sorted(name for _, name, _ in missing)


@cache
def _objects_of(steps: tuple[str, ...]) -> frozenset[tuple[str, str, str]]:
    """Return type, name and SQL of all that some schema files create."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        for step in steps:
            model.executescript(step)
        return frozenset(model.execute(_SELECT_SCHEMA))
