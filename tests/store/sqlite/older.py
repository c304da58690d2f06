"""Create files with an older schema, and read files with any schema."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

from postd.store.sqlite.database_file import APPLICATION_ID, schema_steps
from tests.store.contract import ID_TOKEN, KEYS, NOW, id_hash_of, make_provider_session

STEPS = schema_steps()
NEWEST = len(STEPS)
OLDER = range(1, NEWEST)

POSTS = 300

_SESSION_COLUMNS = "id_hash, username, fingerprint, created, seen, expires, ends"  # of all schemas
_PROVIDER_COLUMNS = f"{_SESSION_COLUMNS}, shown_name, provider, subject, sid"  # since schema 10
_SESSION = (id_hash_of(1), "alice", b"first", NOW, NOW, NOW + 1800, NOW + 43200)
_LOGINS = (
    ("INSERT INTO service_key VALUES (?, ?)", ("digest", bytes(range(32)))),
    ("INSERT INTO nonce_count VALUES (?, ?, ?)", (NOW, b"nonce", 7)),
    ("INSERT INTO nonce_count VALUES (?, ?, ?)", (NOW, b"nonce", 5000)),
    ("INSERT INTO nonce_count VALUES (?, ?, ?)", (NOW, b"proof", 1)),
    (f"INSERT INTO session ({_SESSION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", _SESSION),
    *(("INSERT INTO failure (key, expires) VALUES (?, ?)", (key, NOW + 60)) for key in KEYS),
)
_TABLES = ("post", "sqlite_sequence", "version", "change", "service_key", "session", "failure")

Tables = dict[str, list[Any]]
"""The rows of each table that exists."""


def make_older(path: Path, schema: int, posts: int = POSTS) -> Tables:
    """Create a file as a killed postd with an older schema leaves it: all posts but the first are in the log.

    Of the posts the second has been changed, and the last one deleted: the next id is two more than that of the last.
    """
    made = path.with_name("made")
    with closing(sqlite3.connect(made, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        for step in STEPS[:schema]:
            connection.executescript(step)
        connection.execute(f"PRAGMA user_version = {schema}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("INSERT INTO post (post) VALUES ('post 1')")
        connection.execute("PRAGMA wal_checkpoint")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO post (post) VALUES (?)", ((f"post {n}",) for n in range(2, posts + 2)))
        connection.execute("UPDATE post SET post = 'changed' WHERE id = 2")
        connection.execute("DELETE FROM post WHERE id = ?", (posts + 1,))
        for statement, row in _LOGINS if schema > 1 else ():
            connection.execute(statement, row)
        if schema > 7:
            connection.execute("INSERT INTO used_proof VALUES (?, ?)", (NOW, b"proof"))
        if schema > 9:
            session = astuple(make_provider_session("1", "s"))[:10]
            connection.execute(
                f"INSERT INTO session ({_PROVIDER_COLUMNS}) VALUES (?{', ?' * 10})", (id_hash_of(2), *session)
            )
            connection.execute("INSERT INTO id_token VALUES (?, ?)", (id_hash_of(2), ID_TOKEN))
        connection.execute("COMMIT")
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{made}{suffix}", f"{path}{suffix}")
        tables = _tables_of(connection)
    made.unlink()
    return tables


def tables_of(path: Path) -> Tables:
    """Return the tables of a file, after an integrity check."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return _tables_of(connection)


def schema_of(path: Path) -> int:
    """Return the schema of a file; it must have exactly the tables of that schema."""
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(":memory:")) as model:
        schema: int = connection.execute("PRAGMA user_version").fetchone()[0]
        for step in STEPS[:schema]:
            model.executescript(step)
        found, wanted = ({*one.execute("SELECT name, sql FROM sqlite_master")} for one in (connection, model))
        assert found == wanted
    return schema


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@contextmanager
def older_postd(monkeypatch: pytest.MonkeyPatch, schema: int) -> Iterator[None]:
    """Be a postd without later schemas within."""
    with monkeypatch.context() as patch:
        patch.setattr("postd.store.sqlite.database_file.schema_steps", lambda: STEPS[:schema])
        yield


def _tables_of(connection: sqlite3.Connection) -> Tables:
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    columns = {  # of all schemas
        "change": "revision, kind, id",
        "post": "id, post",
        "session": _SESSION_COLUMNS,
    }
    return {
        name: connection.execute(f"SELECT {columns.get(name, '*')} FROM {name}").fetchall()
        for name in _TABLES
        if name in there
    }
