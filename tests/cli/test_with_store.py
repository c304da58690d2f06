"""Commands and a store of an older schema: they report it, and do not upgrade it."""

import hashlib
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from twisted.internet import reactor

from postd.cli.main import main
from postd.reactor import IReactor
from postd.store.sqlite.store import SqliteStore
from tests.helpers import run_sql
from tests.store.sqlite.older import NEWEST, OLDER, make_older, names_in, older_postd, tables_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def postd(*arguments: str) -> tuple[int, str, str]:
    run = CliRunner().invoke(main, arguments, input="")
    return run.exit_code, run.stdout, run.stderr


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def older_store(folder: Path, schema: int) -> Path:
    """A store of an older schema, without a write-ahead log."""
    path = folder / "postd.db"
    assert make_older(path, schema) == tables_of(path)
    return path


@pytest.mark.parametrize(
    "command",
    [
        "session list",
        "session revoke --all",
        "export",
        "export posts",
        "import",
        "backup saved.db",
        "copy --to sqlite:new.db",
        "copy --store sqlite:new.db --to sqlite:postd.db",
    ],
)
def test_commands_do_not_upgrade_the_store(folder: Path, command: str) -> None:
    path = older_store(folder, 3)
    if command.startswith("copy --store"):
        SqliteStore(str(folder / "new.db"), reactor=cast(IReactor, reactor)).prepare()
    before, names = hash_of(path), names_in(folder)
    status, shown, error = postd(*command.split())
    assert (status, shown) == (1, "")
    assert error == (
        f"postd: {path}: it has schema 3, of an older postd; the server upgrades it to {NEWEST} when it starts, "
        "and keeps a copy\n"
    )
    assert (hash_of(path), names_in(folder)) == (before, names)


@pytest.mark.parametrize("schema", OLDER)
def test_check_announces_the_upgrade_without_doing_it(folder: Path, schema: int) -> None:
    path = older_store(folder, schema)
    before = hash_of(path)
    status, shown, _ = postd("check")
    problem = f"it has schema {schema}, of an older postd; the server upgrades it to {NEWEST} when it starts"
    assert (status, shown.splitlines()[2]) == (0, f"store: ok, {path}: {problem}, and keeps a copy")
    assert (hash_of(path), names_in(folder)) == (before, {"postd.db"})


def test_check_reports_a_newer_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = older_store(folder, 3)
    with older_postd(monkeypatch, 2):
        status, shown, _ = postd("check")
    assert status == 1
    assert f"store: {path}: it was written by a newer postd (schema 3; this one knows 2)" in shown.splitlines()


def test_check_reports_a_damaged_older_store(folder: Path) -> None:
    path = older_store(folder, 3)
    run_sql(path, "DROP TRIGGER post_added")
    status, shown, _ = postd("check")
    assert status == 1
    assert f"store: {path}: its tables are not those of postd (post_added)" in shown.splitlines()
