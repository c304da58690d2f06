"""Checks, backups and restores of a store while a server with workers writes to it."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S, run_sql
from tests.integration.daemon import Daemon
from tests.integration.logins import run_postd_user, see_home, sign_in
from tests.integration.test_transfer import Writer, postd
from tests.store.sqlite.older import NEWEST, make_older

WORKERS = 2
ASKED = 5
"""The number of requests, each on its own connection, that most probably reach both workers."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server with two workers, which the tests share."""
    folder = tmp_path_factory.mktemp("operated")
    run_postd_user(folder / "users", "add", "alice", "secret")
    with Daemon(folder, "--users", "users", "--workers", str(WORKERS)) as daemon:
        yield daemon


def files_of(folder: Path) -> dict[str, tuple[str, int]]:
    """Return contents and times of the files of the store, without the shared memory."""
    files = (folder / "postd.db", folder / "postd.db-wal")
    return {file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns) for file in files}


def tags_of(daemon: Daemon) -> set[str]:
    """Return the entity tags of the list on the workers."""
    return {httpx.get(f"{daemon.url}/post").headers["ETag"] for _ in range(ASKED)}


def test_check_does_not_change_a_live_store(daemon: Daemon) -> None:
    assert httpx.post(f"{daemon.url}/post", json={"post": "x"}).status_code == 201
    (daemon.folder / "broken").write_text("alice:secret\n")
    before = files_of(daemon.folder)
    for command in (["check", "--users", "users"], ["session", "list"], ["export"]):
        assert postd(daemon.folder, *command).returncode == 0
    assert postd(daemon.folder, "check", "--users", "broken").returncode == 1
    assert files_of(daemon.folder) == before


def test_revoked_session_ends_on_all_workers(daemon: Daemon) -> None:
    sessions = [sign_in(daemon, "alice", "secret").cookies["session"] for _ in range(2)]
    for session in sessions * ASKED:
        assert see_home(daemon, session).text == "Success: alice\n"
    listed = postd(daemon.folder, "session", "list", "--users", "users").stdout.decode().splitlines()
    assert [line.split()[0] for line in listed] == ["user", "alice", "alice"]
    assert postd(daemon.folder, "session", "revoke", "--user", "alice").stdout == b"2 sessions ended\n"
    for session in sessions * ASKED:
        assert see_home(daemon, session).headers["Location"] == "/"
    assert postd(daemon.folder, "session", "list").stdout == b"no sessions\n"


def test_backup_has_all_acknowledged_posts_and_restores_under_a_running_server(daemon: Daemon) -> None:
    folder, url = daemon.folder, f"{daemon.url}/post"
    with Writer(daemon.url) as writer:
        while len(writer.added) < 20:
            time.sleep(0.01)
        acknowledged = set(writer.added)
        saved = postd(folder, "backup", "backup.db")
        assert (saved.returncode, saved.stderr) == (0, b"")
    in_backup = {post_id for (post_id,) in run_sql(folder / "backup.db", "SELECT id FROM post")}
    all_posts = {post["id"] for post in httpx.get(url).json()}
    assert acknowledged <= in_backup < all_posts

    tags = tags_of(daemon)
    (folder / "before.db").hardlink_to(folder / "postd.db")
    put_in_place(folder / "backup.db", daemon, in_backup)
    tags_afterwards = tags_of(daemon)
    assert len(tags) == len(tags_afterwards) == 1
    assert not tags & tags_afterwards
    assert int(httpx.post(url, json={"post": "next"}).headers["Location"].rpartition("/")[2]) > max(in_backup)
    assert not tags_of(daemon) & (tags | tags_afterwards)
    assert run_sql(folder / "postd.db", "PRAGMA integrity_check") == [("ok",)]
    # And the file that was there has all that it ever had.
    assert {post_id for (post_id,) in run_sql(folder / "before.db", "SELECT id FROM post")} == all_posts


def test_older_backup_is_migrated_once_under_a_running_server(daemon: Daemon) -> None:
    older = daemon.folder / "older.db"
    make_older(older, 2)
    run_sql(older, "PRAGMA wal_checkpoint(TRUNCATE)")
    posts = {post_id for (post_id,) in run_sql(older, "SELECT id FROM post")}
    upgrades = daemon.log.count("was upgraded from schema")
    put_in_place(older, daemon, posts)
    assert len(tags_of(daemon)) == 1
    assert daemon.log.count(f"was upgraded from schema 2 to {NEWEST}") == upgrades + 1
    assert (daemon.folder / "postd.db.schema-2").exists()


def put_in_place(file: Path, daemon: Daemon, posts: set[int]) -> None:
    """Make a file the store, and wait until each worker has opened it: each looks once a second, at its own time.

    Until then requests may be refused, and requests alone do not show it: one worker may answer all of them.
    """
    opened = daemon.log.count("store: opened ")
    file.rename(daemon.folder / "postd.db")
    deadline = time.monotonic() + PATIENCE_S
    while daemon.log.count("store: opened ") < opened + WORKERS:
        assert httpx.get(f"{daemon.url}/post").status_code in {200, 503}
        assert time.monotonic() < deadline, daemon.log
        time.sleep(0.02)
    for _ in range(ASKED):
        assert {post["id"] for post in httpx.get(f"{daemon.url}/post").json()} == posts
