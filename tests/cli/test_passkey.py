"""`postd passkey`, as a process, without a running server."""

import re
from pathlib import Path
from typing import cast

import pytest
from twisted.internet import reactor

from postd.auth.user_file import load_accounts, make_account, set_account
from postd.reactor import IReactor
from postd.store.sqlite.store import SqliteStore
from tests.helpers import run_sql
from tests.integration.forking import run
from tests.integration.logins import POSTD

PROVIDER = "https://idp.example#7"


def postd(folder: Path, *arguments: str) -> tuple[int, str, str]:
    ended = run([POSTD, "passkey", *arguments], folder)
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a user file, and a store with passkeys of alice, of a provider's user and of a removed user."""
    content = b""
    for name in ("alice", "bob"):
        content = set_account(content, make_account(name, "secret", "postd"))
    (tmp_path / "users").write_bytes(content)
    path = tmp_path / "postd.db"
    SqliteStore(str(path), reactor=cast(IReactor, reactor)).prepare()
    accounts = load_accounts(str(tmp_path / "users"))
    assert accounts is not None
    for number, (account, entry, backup) in enumerate(
        [("alice", accounts["alice"].entry.hex(), "0, 0"), (PROVIDER, "00", "1, 1"), ("bob", "00", "1, 0")]
    ):
        row = f"x'{number:02x}', 'id{number}aaaaaaaaa', '{account}', x'{entry}', x'00', 'my\nphone', {number}, 0, 0"
        run_sql(path, f"INSERT INTO passkey VALUES ({row}, {backup}, '', '')")
    return tmp_path


def test_passkeys_of_accounts_are_listed_with_their_ids_first(folder: Path) -> None:
    status, shown, error = postd(folder, "list", "--users", "users")
    assert (status, error) == (0, "")
    assert [re.split(" {2,}", line) for line in shown.splitlines()] == [
        ["id0aaaaaaaaa", "alice", "made 1970-01-01 00:00:00", "never used", "on one device", "my\\x0aphone"],
        ["id1aaaaaaaaa", PROVIDER, "made 1970-01-01 00:00:01", "never used", "backed up", "my\\x0aphone"],
    ]
    assert len(postd(folder, "list")[1].splitlines()) == 3
    assert postd(folder, "list", "--account", PROVIDER)[1].startswith("id1")
    assert postd(folder, "list", "--account", "carol") == (0, "no passkeys\n", "")


def test_passkey_is_removed_by_its_id(folder: Path) -> None:
    assert postd(folder, "remove", "id0aaaaaaaaa") == (0, "1 passkey removed\n", "")
    assert postd(folder, "remove", "id0aaaaaaaaa") == (1, "", "postd: there is no passkey with the id 'id0aaaaaaaaa'\n")
    assert postd(folder, "list", "--users", "users")[1].startswith("id1")
