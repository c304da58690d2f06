"""`postd session`, as a process, with and without a running server."""

import time
from pathlib import Path
from typing import cast

import httpx
import pytest
from twisted.internet import reactor

from postd.auth.user_file import make_account, set_account
from postd.reactor import IReactor
from postd.store.sqlite.store import SqliteStore
from tests.helpers import locked, run_sql
from tests.integration.daemon import Daemon
from tests.integration.forking import run
from tests.integration.logins import POSTD


def postd(folder: Path, *arguments: str) -> tuple[int, str, str]:
    ended = run([POSTD, *arguments], folder)
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


def write_users(folder: Path, *names: str) -> None:
    content = b""
    for name in names:
        content = set_account(content, make_account(name, "secret", "postd"))
    (folder / "users").write_bytes(content)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with four sessions: two of alice, one of bob, and an expired one."""
    path = tmp_path / "postd.db"
    SqliteStore(str(path), reactor=cast(IReactor, reactor)).prepare()
    now = time.time()
    for number, (name, created, expires) in enumerate(
        [("alice", -100, 60), ("bob", -300, 60), ("alice", -200, 60), ("gone", -900, -1)]
    ):
        row = f"(x'{number:064x}', '{name}', x'00', {now + created}, {now - 50}, {now + expires}, {now + 3600})"
        run_sql(
            path, f"INSERT INTO session (id_hash, username, fingerprint, created, seen, expires, ends) VALUES {row}"
        )
    return path


def test_live_sessions_are_listed_oldest_first(store: Path) -> None:
    status, shown, error = postd(store.parent, "session", "list")
    assert (status, error) == (0, "")
    heading, *lines = shown.splitlines()
    assert heading.startswith("user   signed in by  since")
    assert [line.split()[0] for line in lines] == ["bob", "alice", "alice"]
    assert [line.split()[1] for line in lines] == ["password"] * 3
    assert time.strftime("%Y-%m-%d", time.gmtime()) in lines[0]


def test_bound_sessions_are_marked(store: Path) -> None:
    run_sql(store, f"UPDATE session SET device_key = 'key', bound = 1 WHERE id_hash = x'{2:064x}'")
    heading, *lines = postd(store.parent, "session", "list")[1].splitlines()
    assert heading.endswith("  bound")
    assert [line.endswith("  to a device") for line in lines] == [False, True, False]
    assert [line.endswith("  no") for line in lines] == [True, False, True]


def test_sessions_of_old_passwords_are_not_listed(store: Path) -> None:
    write_users(store.parent, "alice")
    assert postd(store.parent, "session", "list", "--users", "users") == (0, "no sessions\n", "")


def test_sessions_of_a_user_are_revoked(store: Path) -> None:
    assert postd(store.parent, "session", "revoke", "--user", "alice") == (0, "2 sessions ended\n", "")
    assert run_sql(store, "SELECT username FROM session ORDER BY 1") == [("bob",), ("gone",)]
    assert postd(store.parent, "session", "revoke", "--user", "unknown") == (0, "0 sessions ended\n", "")


def test_all_sessions_are_revoked(store: Path) -> None:
    assert postd(store.parent, "session", "revoke", "--all", "--store", f"sqlite:{store}")[:2] == (
        0,
        "4 sessions ended\n",
    )
    assert postd(store.parent, "session", "list") == (0, "no sessions\n", "")


def test_revoke_needs_user_or_all(store: Path) -> None:
    for arguments in ([], ["--all", "--user", "alice"]):
        status, shown, error = postd(store.parent, "session", "revoke", *arguments)
        assert (status, shown, error.count("\n")) == (2, "", 1)
        assert "either --user NAME or --all" in error
    assert run_sql(store, "SELECT count(*) FROM session") == [(4,)]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite:missing.db", "missing.db: there is no such file"),
        ("memory:", "memory: exists only in the process of the server"),
        ("mysql:x", "'mysql:x' is not a store"),
        ("sqlite:text", "it is not an SQLite database"),
    ],
)
def test_unusable_store_is_one_line_and_not_created(tmp_path: Path, url: str, why: str) -> None:
    (tmp_path / "text").write_text("not a database, but a text that is long enough to be one" * 20)
    for command in (["list"], ["revoke", "--all"]):
        status, shown, error = postd(tmp_path, "session", *command, "--store", url)
        assert (status, shown, error.count("\n")) == (1, "", 1)
        assert error.startswith("postd: ")
        assert why in error
    assert [file.name for file in tmp_path.iterdir()] == ["text"]


def test_locked_store_is_reported_at_once(store: Path) -> None:
    with locked(store, "EXCLUSIVE"):
        status, _, error = postd(store.parent, "session", "revoke", "--all")
    assert (status, error.count("\n")) == (1, 1)
    assert "locked" in error


def test_revocation_applies_to_a_running_server(tmp_path: Path) -> None:
    write_users(tmp_path, "alice")
    with Daemon(tmp_path, "--users", "users") as daemon, httpx.Client(base_url=daemon.url) as client:
        assert client.post("/login", data={"username": "alice", "password": "secret"}).status_code == 302
        assert client.get("/home").text == "Success: alice\n"
        assert postd(tmp_path, "session", "list", "--users", "users")[1].splitlines()[1].startswith("alice ")
        assert postd(tmp_path, "session", "revoke", "--user", "alice") == (0, "1 session ended\n", "")
        assert client.get("/home").headers["Location"] == "/"
