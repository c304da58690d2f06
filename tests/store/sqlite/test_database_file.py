"""Creating and checking the file of an SQLite store."""

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet import reactor as global_reactor

from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.sqlite.database_file import DatabaseFile, schema_steps
from postd.store.sqlite.store import SqliteStore
from tests.helpers import run_sql
from tests.store.sqlite.files import make_store_file
from tests.store.sqlite.older import NEWEST

reactor = cast(IReactor, global_reactor)


def test_new_file_has_mode_0600(path: Path) -> None:
    old = os.umask(0)
    try:
        SqliteStore(str(path), reactor=reactor).prepare()
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    SqliteStore(str(path), reactor=reactor).prepare()
    assert run_sql(path, "SELECT count(*) FROM post") == [(0,)]


def test_store_created_by_another_process_meanwhile_is_not_foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers that start at the same time: the other one creates the tables between two checks of the first.

    It is an older one, which does not lock the folder.
    """
    others: list[DatabaseFile] = []

    def create(file: DatabaseFile) -> None:
        writer, _ = file.open_writer(create=True)
        file.close_writer(writer)

    class Interrupted(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            if statement == "SELECT count(*) FROM sqlite_master" and not others:
                others.append(DatabaseFile(str(path)))
                with suppress(StoreUnavailableError):  # the first one has locked the file
                    create(others[0])
            return super().execute(statement, *parameters)

    monkeypatch.setattr("postd.store.sqlite.database_file.OPEN_TIMEOUT_MS", 10)
    monkeypatch.setattr("postd.store.sqlite.database_file.locked_folder", lambda _: nullcontext(enter_result=True))
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Interrupted))
    create(DatabaseFile(str(path)))
    assert others
    monkeypatch.undo()
    assert run_sql(path, "SELECT count(*) FROM post") == [(0,)]


def _text_file(path: Path) -> None:
    path.write_text("not a database at all\n" * 200)


def _overwritten(path: Path) -> None:
    make_store_file(path, posts=500)
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xa5" * 4096 * 4)


def _cut_off(path: Path) -> None:
    make_store_file(path, posts=500)
    os.truncate(path, path.stat().st_size // 2)


def _foreign(path: Path) -> None:
    run_sql(path, "CREATE TABLE post (id INTEGER PRIMARY KEY, post TEXT)")


def _without_trigger(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "DROP TRIGGER post_added")


def _without_version(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "DELETE FROM version")


def _half_made(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "PRAGMA user_version = 0")


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere.db")


def _newer(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "PRAGMA user_version = 4711")


def _in_no_folder(path: Path) -> None:
    path.parent.rmdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_text_file, "not an SQLite database"),
        (_overwritten, "damaged"),
        (_cut_off, "damaged"),
        (_foreign, "another program"),
        (_without_trigger, "not those of postd (post_added)"),
        (_without_version, "not those of postd (version has no row)"),
        (_half_made, "not those of postd (table post already exists)"),
        (_dangling, "there is no such file"),
        (_newer, f"newer postd (schema 4711; this one knows {NEWEST})"),
        (_in_no_folder, "cannot be created: No such file or directory"),
        (Path.mkdir, "not a file"),
        (_pipe, "not a file"),
    ],
)
def test_unusable_file_is_refused_in_one_line(path: Path, spoil: Callable[[Path], None], why: str) -> None:
    spoil(path)
    with pytest.raises(StoreRefusedError) as caught:
        SqliteStore(str(path), reactor=reactor).prepare()
    assert why in caught.value.why
    assert str(path) in caught.value.why
    assert "\n" not in caught.value.why


def test_foreign_views_in_the_file_are_accepted(path: Path) -> None:
    make_store_file(path)
    run_sql(path, "CREATE VIEW shout AS SELECT upper(post) FROM post")
    SqliteStore(str(path), reactor=reactor).prepare()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO post (post) VALUES (x'00ff')",
        "INSERT INTO post (post) VALUES ('')",
        "INSERT INTO post (id, post) VALUES (9007199254740992, 'x')",
        "INSERT INTO post (id, post) VALUES (0, 'x')",
        "UPDATE post SET id = 7",
        "INSERT OR REPLACE INTO post (id, post) VALUES (1, 'y')",
    ],
)
def test_table_refuses_invalid_posts(path: Path, statement: str) -> None:
    make_store_file(path, posts=1)
    with pytest.raises(sqlite3.IntegrityError):
        run_sql(path, statement)


def test_refused_file_is_not_changed(path: Path) -> None:
    _foreign(path)
    before = path.read_bytes()
    with pytest.raises(StoreRefusedError):
        SqliteStore(str(path), reactor=reactor).prepare()
    assert path.read_bytes() == before


def test_failed_schema_step_is_rolled_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*schema_steps(), "CREATE TABLE next (id);\nCREATE TABLE post (id);\n"]
    make_store_file(path)
    monkeypatch.setattr("postd.store.sqlite.database_file.schema_steps", lambda: broken)
    with pytest.raises(StoreRefusedError, match="already exists"):
        SqliteStore(str(path), reactor=reactor).prepare()
    assert run_sql(path, "PRAGMA user_version") == [(len(broken) - 1,)]
    assert run_sql(path, "SELECT count(*) FROM sqlite_master WHERE name = 'next'") == [(0,)]
