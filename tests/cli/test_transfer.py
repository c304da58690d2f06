"""`postd export`, `import`, `copy` and `backup`, as processes: each runs the reactor."""

import json
import os
import pty
import shutil
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet import reactor

from postd.reactor import IReactor
from postd.store.sqlite.store import SqliteStore
from tests.helpers import PATIENCE_S, locked, run_sql
from tests.integration.forking import run
from tests.integration.logins import POSTD

POSTS = [(2, "two"), (3, "Grüße, 世界 🚀"), (70, "a\nb")]
LINES = '{"id":2,"post":"two"}\n{"id":3,"post":"Grüße, 世界 🚀"}\n{"id":70,"post":"a\\nb"}\n'


def postd(folder: Path, *arguments: str, given: str = "") -> tuple[int, str, str]:
    ended = run([POSTD, *arguments], folder, given=given.encode())
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


def make_store(path: Path, posts: Iterable[tuple[int, str]] = POSTS) -> Path:
    SqliteStore(str(path), reactor=cast(IReactor, reactor)).prepare()
    for post_id, text in posts:
        run_sql(path, f"INSERT INTO post (id, post) VALUES ({post_id}, '{text}')")
    return path


def posts_in(path: Path) -> list[Any]:
    return run_sql(path, "SELECT id, post FROM post ORDER BY id")


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with three posts; the one that would have the id 71 was deleted."""
    path = make_store(tmp_path / "postd.db")
    run_sql(path, "INSERT INTO post (post) VALUES ('gone')", "DELETE FROM post WHERE id = 71")
    return path


def test_posts_are_exported_as_json_lines(store: Path) -> None:
    for arguments in ([], ["-", "-s", "sqlite:postd.db"]):
        assert postd(store.parent, "export", *arguments) == (0, LINES, "")
    assert postd(store.parent, "export", "posts.jsonl") == (0, "3 posts exported to posts.jsonl\n", "")
    exported = store.parent / "posts.jsonl"
    assert exported.read_text() == LINES
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    assert names_in(store.parent) == {"postd.db", "posts.jsonl"}


def test_empty_store_exports_nothing(tmp_path: Path) -> None:
    make_store(tmp_path / "postd.db", [])
    assert postd(tmp_path, "export") == (0, "", "")
    assert postd(tmp_path, "export", "none")[0] == 0
    assert (tmp_path / "none").read_bytes() == b""


def test_closed_pipe_ends_the_export_without_error(tmp_path: Path) -> None:
    make_store(tmp_path / "postd.db", [])
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    run_sql(tmp_path / "postd.db", f"{many} INSERT INTO post (id, post) SELECT i, 'post ' || i FROM n")
    ended = subprocess.run(
        f"{POSTD} export | head -1", shell=True, cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (ended.stdout, ended.stderr) == (b'{"id":1,"post":"post 1"}\n', b"")


@pytest.mark.parametrize("command", ["export", "backup"])
def test_existing_file_is_not_overwritten(store: Path, command: str) -> None:
    before = store.read_bytes()
    (store.parent / "link").symlink_to("nowhere")
    for name in ("postd.db", "link", "."):
        status, shown, error = postd(store.parent, command, name)
        assert (status, shown, error.count("\n")) == (1, "", 1)
        assert f"{name}: the file exists already" in error
    assert store.read_bytes() == before
    assert names_in(store.parent) == {"postd.db", "link"}


@pytest.mark.parametrize("command", ["export", "backup"])
def test_unwritable_file_is_named(store: Path, command: str) -> None:
    status, shown, error = postd(store.parent, command, "missing/file")
    assert (status, shown, error) == (1, "", "postd: missing/file: the folder does not exist\n")


@pytest.mark.parametrize("command", [["export"], ["export", "new"], ["backup", "new"], ["copy", "--to", "sqlite:new"]])
def test_unusable_store_is_one_line_and_creates_nothing(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "text").write_text("not a database, but a text that is long enough to be one" * 20)
    for url, why in (
        ("sqlite:missing.db", "missing.db: there is no such file"),
        ("memory:", "memory: exists only in the process of the server"),
        ("mysql:x", "'mysql:x' is not a store"),
        ("sqlite:text", "it is not an SQLite database"),
    ):
        status, shown, error = postd(tmp_path, *command, "--store", url)
        assert (status, shown, error.count("\n")) == (1, "", 1)
        assert error.startswith("postd: ")
        assert why in error
    assert names_in(tmp_path) == {"text"}


def test_export_is_imported_into_a_new_store(tmp_path: Path) -> None:
    created = f"sqlite:{tmp_path}/postd.db: created, as there was none\n"
    assert postd(tmp_path, "import", given=LINES) == (0, f"{created}3 posts imported\n", "")
    assert posts_in(tmp_path / "postd.db") == POSTS
    assert names_in(tmp_path) == {"postd.db"}
    run_sql(tmp_path / "postd.db", "INSERT INTO post (post) VALUES ('next')")
    assert posts_in(tmp_path / "postd.db")[-1] == (71, "next")
    assert postd(tmp_path, "export")[1] == LINES + '{"id":71,"post":"next"}\n'


def test_failed_import_into_a_new_store_has_one_line_on_stderr(tmp_path: Path) -> None:
    status, shown, error = postd(tmp_path, "import", given="[]\n")
    assert (status, shown) == (1, f"sqlite:{tmp_path}/postd.db: created, as there was none\n")
    assert error.startswith("postd: standard input: line 1: ")
    assert error.count("\n") == 1


def test_import_adds_to_existing_posts(store: Path) -> None:
    lines = '\n  \n{"post":"one","id":1}\r\n\n{"id":5,"post":"five","more":true}'
    (store.parent / "lines").write_text(lines)
    (store.parent / "postd.toml").write_text('store = "sqlite:postd.db"\n')
    assert postd(store.parent, "import", "lines", "-c", "postd.toml") == (0, "2 posts imported\n", "")
    assert posts_in(store) == sorted([*POSTS, (1, "one"), (5, "five")])
    assert postd(store.parent, "import", "-", given="\n") == (0, "0 posts imported\n", "")
    assert postd(store.parent, "import", given='\ufeff{"id":6,"post":"\ufeffsix"}\n') == (0, "1 post imported\n", "")
    assert posts_in(store)[-2] == (6, "\ufeffsix")


def test_existing_id_refuses_the_import(store: Path) -> None:
    given = '{"id":1,"post":"new"}\n{"id":3,"post":"other"}\n'
    status, shown, error = postd(store.parent, "import", given=given)
    assert (status, shown, error.count("\n")) == (1, "", 1)
    assert "standard input: a post with id 3 exists already" in error
    assert "--skip-existing" in error
    assert error.endswith("nothing was imported\n")
    assert posts_in(store) == POSTS
    said = "1 post imported; 1 skipped because their ids exist already\n"
    assert postd(store.parent, "import", "--skip-existing", given=given) == (0, said, "")
    assert posts_in(store) == [(1, "new"), *POSTS]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "it is not JSON"),
        ('{"id":0,"post":"x"}', "its id is not a whole number"),
        ('{"id":9,"post":""}', "must not be empty"),
        ('{"id":1,"post":"twice"}', "id 1 is on an earlier line already"),
        (f'{{"id":9,"post":"x"{" " * 70000}}}', "it has more than 64 KiB"),
        pytest.param("x" * 1_000_000, "it has more than 64 KiB", id="a megabyte"),
    ],
)
def test_bad_line_refuses_the_import(store: Path, bad: str, why: str) -> None:
    many = "".join(f'{{"id":{number},"post":"x"}}\n' for number in range(1000, 3000))
    (store.parent / "lines").write_text('{"id":1,"post":"x"}\n' + many + "\n" + bad + '\n{"id":4,"post":"x"}\n')
    status, shown, error = postd(store.parent, "import", "lines")
    assert (status, shown, error.count("\n")) == (1, "", 1)
    assert error.startswith("postd: lines: line 2003: ")
    assert why in error
    assert error.endswith("; nothing was imported\n")
    assert posts_in(store) == POSTS


def test_unreadable_file_creates_no_store(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, why in (("missing", "No such file"), ("folder", "Is a directory")):
        status, _, error = postd(tmp_path, "import", name)
        assert (status, error.count("\n")) == (1, 1)
        assert f"{name}: it cannot be read: {why}" in error
    assert names_in(tmp_path) == {"folder"}


def test_import_into_a_locked_store_fails_at_once(store: Path) -> None:
    with locked(store, "EXCLUSIVE"):
        status, _, error = postd(store.parent, "import", given=LINES)
    assert (status, error.count("\n")) == (1, 1)
    assert "locked" in error


@pytest.mark.parametrize("command", [["copy", "--to", "sqlite:new.db"], ["backup", "new.db"], ["export", "new.db"]])
def test_deleted_text_id_token_and_credentials_are_in_no_copy(store: Path, command: list[str]) -> None:
    added = [f"INSERT INTO post (post) VALUES ('deleted text {n}')" for n in range(3)]
    run_sql(store, "PRAGMA secure_delete = OFF", *added, "DELETE FROM post WHERE post LIKE 'deleted text %'")
    run_sql(
        store,
        "INSERT INTO id_token VALUES (x'01', 'an ID token')",
        "INSERT INTO personal_token VALUES (CAST('a hash' AS BLOB), '1', 'alice', x'01', 'a label', 'read', 1, 2, 0)",
        "INSERT INTO passkey VALUES (CAST('an id' AS BLOB), '1', 'alice', x'01', x'01', 'a label', "
        "1, 0, 0, 1, 1, '', '')",
        "INSERT INTO password_reset VALUES (CAST('a hash' AS BLOB), 'alice', x'01', 2)",
    )
    assert b"deleted text" in store.read_bytes()
    assert postd(store.parent, *command)[0] == 0
    copy = (store.parent / "new.db").read_bytes()
    left_out = (b"deleted text", b"an ID token", b"a hash", b"an id", b"a label", b"alice")
    assert [text for text in left_out if text in copy] == []


@pytest.mark.parametrize("command", [["copy", "--to", "sqlite:new.db"], ["backup", "new.db"]])
def test_copy_and_backup_continue_ids_and_revisions(store: Path, command: list[str]) -> None:
    run_sql(store, "INSERT INTO failure (key, expires) VALUES (x'00', 9e9)")
    revision = run_sql(store, "SELECT revision FROM version")[0][0]
    status, shown, error = postd(store.parent, *command)
    created = f"sqlite:{store.parent}/new.db: created, as there was none\n" if command[0] == "copy" else ""
    assert (status, error) == (0, "")
    assert shown.startswith(f"{created}3 posts ")
    new = store.parent / "new.db"
    assert posts_in(new) == POSTS
    assert run_sql(new, "SELECT min(revision) FROM change")[0][0] > revision + 1
    assert run_sql(new, "SELECT count(*) FROM failure UNION SELECT count(*) FROM service_key") == [(0,)]
    run_sql(new, "INSERT INTO post (post) VALUES ('next')")
    assert posts_in(new)[-1] == (72, "next")
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    assert names_in(store.parent) == {"postd.db", "new.db"}
    assert posts_in(store) == POSTS


def test_restored_backups_and_later_copies_repeat_no_revision(store: Path) -> None:
    """An event stream that resumes with a revision of another one must get a reset."""
    folder = store.parent
    assert postd(folder, "backup", "backup.db")[0] == 0
    assert postd(folder, "export", "-s", "sqlite:backup.db")[0] == 0  # no server
    last = run_sql(folder / "backup.db", "SELECT revision FROM version")[0][0]
    for name in ("restored.db", "restored-again.db"):
        shutil.copy(folder / "backup.db", folder / name)
        SqliteStore(str(folder / name), reactor=cast(IReactor, reactor)).prepare()
        run_sql(folder / name, "INSERT INTO post (post) VALUES ('next')")
        ((first, count, version),) = run_sql(
            folder / name, "SELECT min(change.revision), count(*), version.revision FROM change, version"
        )
        assert first > last + 1
        assert count == 1
        last = version
    assert postd(folder, "copy", "--to", "sqlite:copy.db")[0] == 0
    assert run_sql(folder / "copy.db", "SELECT min(revision) FROM change")[0][0] > last + 1


def test_copy_needs_an_empty_target(store: Path) -> None:
    other = make_store(store.parent / "other.db", [(1, "x")])
    status, _, error = postd(store.parent, "copy", "--to", f"sqlite:{other}")
    assert (status, error) == (1, f"postd: sqlite:{other}: the store has posts; copy to an empty store\n")
    assert posts_in(other) == [(1, "x")]
    run_sql(other, "DELETE FROM post")
    assert postd(store.parent, "copy", "--to", f"sqlite:{other}")[0] == 0
    assert posts_in(other) == POSTS


def test_copy_to_the_same_store_is_refused(store: Path) -> None:
    (store.parent / "link.db").symlink_to("postd.db")
    os.link(store, store.parent / "hard.db")
    for name in ("./postd.db", "link.db", "hard.db"):
        status, shown, error = postd(store.parent, "copy", "--to", f"sqlite:{name}")
        assert (status, shown, error.count("\n")) == (1, "", 1)
        assert "is the source of the copy" in error
    assert "--to: memory: exists only" in postd(store.parent, "copy", "--to", "memory:")[2]
    status, _, error = postd(store.parent, "copy")
    assert (status, error.count("\n")) == (2, 1)
    assert "--to" in error


def test_help_names_effects_and_limits(tmp_path: Path) -> None:
    for command, words in (
        ("export", "JSON Lines"),
        ("import", "--skip-existing"),
        ("copy", "sign in again"),
        ("backup", "a snapshot of all posts"),
    ):
        status, shown, error = postd(tmp_path, command, "--help")
        assert (status, error) == (0, "")
        for option in (words, "--config", "--store"):
            assert option in " ".join(shown.split())


def test_progress_of_a_pipe_is_shown_in_kib(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"id": n, "post": "x"}) + "\n" for n in range(1, 2001))
    terminal, theirs = pty.openpty()
    ended = subprocess.run(
        [POSTD, "import"],
        cwd=tmp_path,
        input=lines.encode(),
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(theirs)
    shown = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert ended.stdout.endswith(b"\n2000 posts imported\n")
    assert shown.split("\r")[-2] == f"importing  {len(lines) // 1024} KiB"


def test_backup_to_standard_output_is_refused(tmp_path: Path) -> None:
    status, shown, error = postd(tmp_path, "backup", "-")
    assert (status, shown) == (2, "")
    assert "a backup is written to a file, not to stdout; give a file name" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(json.dumps({"id": n, "post": "x"}) + "\n" for n in range(1, 2001)))
    for command in (["import", "lines"], ["export", "out"], ["copy", "--to", "sqlite:copy.db"], ["backup", "b.db"]):
        terminal, theirs = pty.openpty()
        ended = subprocess.run(
            [POSTD, *command],
            cwd=tmp_path,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=PATIENCE_S,
            check=False,
        )
        os.close(theirs)
        shown = os.read(terminal, 65536).decode()
        os.close(terminal)
        assert ended.returncode == 0
        assert "100%" in shown
        assert b"2000 posts " in ended.stdout
