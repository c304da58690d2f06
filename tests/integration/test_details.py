"""Times and authors of posts, through the commands that keep, print or use them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import run_sql
from tests.integration import forking
from tests.integration.daemon import Daemon
from tests.integration.logins import POSTD
from tests.integration.test_logins import PASSWORD, write_users
from tests.redis_server import RedisServer

SETTINGS = 'users = "users"\nstore = "sqlite:posts.db"\n[api]\nwrite = ["basic"]\nown = true\nmoderators = ["bob"]\n'
PASSWORD_LINE = f"{PASSWORD}\n"
TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def run(folder: Path, *arguments: str, given: str = "", status: int = 0) -> tuple[str, str]:
    """Run a command; return its output and its errors."""
    result = forking.run([POSTD, *arguments], folder, given=given.encode())
    assert result.returncode == status, result.stderr.decode()
    return result.stdout.decode(), result.stderr.decode()


def as_user(daemon: Daemon, name: str, *arguments: str, status: int = 0) -> tuple[str, str]:
    options = ("--url", daemon.url, "--basic", name, "--password-stdin")
    return run(daemon.folder, *arguments, *options, given=PASSWORD_LINE, status=status)


def exported(folder: Path, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(folder, "export", *options)[0].splitlines()]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Posts 1 and 3 of alice, 2 of bob, and 4 without an author."""
    write_users(tmp_path, alice=PASSWORD, bob=PASSWORD)
    (tmp_path / "users").chmod(0o600)
    (tmp_path / "postd.toml").write_text(SETTINGS)
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        for name, text in (("alice", "one"), ("bob", "=2"), ("alice", "three")):
            as_user(daemon, name, "add", text)
        run_sql(tmp_path / "posts.db", "INSERT INTO post (post) VALUES ('four')")
        yield daemon


def test_details_are_listed_exported_and_kept_by_every_copy(daemon: Daemon, tmp_path: Path) -> None:
    listed = [
        json.loads(line) for line in run(tmp_path, "list", "--meta", "--json", "--url", daemon.url)[0].splitlines()
    ]
    assert [post["author"] for post in listed] == ["alice", "bob", "alice", None]
    assert all(TIME.fullmatch(post["created"]) and post["created"] == post["updated"] for post in listed[:3])
    assert listed[3] == {"id": 4, "post": "four", "created": None, "updated": None, "author": None}
    first, *_, last = run(tmp_path, "list", "--meta", "--url", daemon.url)[0].splitlines()
    assert (first, last) == (f"1  {listed[0]['created']}  alice  one", "4  -  -  four")

    lines = run(tmp_path, "export", "-c", "postd.toml")[0]
    assert [json.loads(line) for line in lines.splitlines()] == [*listed[:3], {"id": 4, "post": "four"}]
    rows = run(tmp_path, "export", "--format", "csv", "-c", "postd.toml")[0]
    head, second, fourth = (rows.split("\r\n")[n] for n in (0, 2, 4))
    created = listed[1]["created"]
    assert (head, second) == ("id,post,created,updated,author", f"2,=2,{created},{created},bob")
    assert fourth == "4,four,,,"
    safe = run(tmp_path, "export", "--format", "csv", "--safe-for-spreadsheets", "-c", "postd.toml")[0]
    assert safe == rows.replace("2,=2,", "2,'=2,")
    _, why = run(tmp_path, "export", "--safe-for-spreadsheets", status=2)
    assert "--safe-for-spreadsheets goes with --format csv" in why

    run(tmp_path, "import", "-s", "sqlite:imported.db", given=lines)
    run(tmp_path, "backup", "backup.db", "-c", "postd.toml")
    run(tmp_path, "copy", "--to", "sqlite:copy.db", "-c", "postd.toml")
    with RedisServer(tmp_path) as server:
        run(tmp_path, "copy", "--to", server.url, "-c", "postd.toml")
        assert run(tmp_path, "export", "-s", server.url)[0] == lines
        run(tmp_path, "copy", "--to", "sqlite:back.db", "-s", server.url)
    for name in ("imported", "backup", "copy", "back"):
        assert run(tmp_path, "export", "-s", f"sqlite:{name}.db")[0] == lines
    stores = ("posts", "backup", "copy", "back", "imported")
    ids = [run_sql(tmp_path / f"{name}.db", "SELECT id, began FROM collection")[0] for name in stores]
    assert len({*ids[:4]}) == 1  # an import is not the same collection
    assert ids[4] != ids[0]


def test_posts_of_an_author_are_deleted_by_who_may(daemon: Daemon, tmp_path: Path) -> None:
    _, why = as_user(daemon, "alice", "delete", "--author", "bob", status=1)
    assert why == "postd: 0 posts deleted; the server refuses to delete 1\n"
    assert as_user(daemon, "alice", "delete", "--author", "carol")[0] == "0 posts deleted\n"
    assert as_user(daemon, "alice", "delete", "--author", "alice", "--json")[0] == '{"deleted": 2}\n'
    assert as_user(daemon, "bob", "delete", "--author", "bob")[0] == "1 post deleted\n"
    assert exported(tmp_path, "-c", "postd.toml") == [{"id": 4, "post": "four"}]


def test_user_is_removed_with_the_posts_and_a_new_one_inherits_none_silently(daemon: Daemon, tmp_path: Path) -> None:
    out, err = run(tmp_path, "user", "remove", "alice", "-c", "postd.toml")
    assert (out, err) == ("alice: removed\n", "")
    add = ("user", "add", "alice", "--password-stdin", "-c", "postd.toml")
    out, err = run(tmp_path, *add, given=PASSWORD_LINE)
    assert out == 'alice: added; Digest works in the realm "postd"\n'
    assert err == "postd: posts have the author alice already; `postd user remove alice --posts` removes them\n"
    out, _ = run(tmp_path, "user", "remove", "alice", "--posts", "-c", "postd.toml")
    assert out == f"alice: removed\nalice: 2 posts removed from sqlite:{tmp_path}/posts.db\n"
    assert [post["id"] for post in exported(tmp_path, "-c", "postd.toml")] == [2, 4]
    out, _ = run(tmp_path, "user", "remove", "alice", "--posts", "-c", "postd.toml")
    assert out == f"alice: 0 posts removed from sqlite:{tmp_path}/posts.db\n"
    assert run(tmp_path, *add, given=PASSWORD_LINE)[1] == ""


def test_user_is_added_although_the_store_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "posts.db").write_text("no database")
    options = ("--password-stdin", "-u", "users", "-s")
    out, err = run(tmp_path, "user", "add", "alice", *options, "sqlite:posts.db", given=PASSWORD_LINE)
    assert out.startswith("alice: added")
    assert err.startswith("postd: whether posts have the author alice is not known: ")
    assert err.count("\n") == 1
    out, err = run(tmp_path, "user", "add", "bob", *options, "sqlite:none.db", given=PASSWORD_LINE)
    assert err == ""
    assert not (tmp_path / "none.db").exists()
