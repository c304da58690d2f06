"""`postd account`, as a process, without a running server."""

import re
import time
from pathlib import Path
from typing import cast

import pytest
from twisted.internet import reactor

from postd.auth.user_file import load_accounts, make_account, set_account
from postd.protocol.id_token import IdTokenPolicy
from postd.reactor import IReactor
from postd.store.sqlite.store import SqliteStore
from tests.cli.test_session import postd
from tests.helpers import run_sql

SETTINGS = """
users = "users"
[[sign_in]]
id = "example"
name = "Example"
issuer = "https://idp.example"
client_id = "posts"
"""
PROVIDER = IdTokenPolicy("https://idp.example", "posts").fingerprint.hex()
BOB = "https://idp.example#bob"
HEAD = ["account", "signs in by", "tokens", "passkeys", "sessions", "last seen"]
TOKENS, PASSKEYS, SESSIONS = "personal_token", "passkey", "session"


@pytest.fixture(scope="module")
def users() -> bytes:
    content = b""
    for name in ("zoë", "alice"):
        content = set_account(content, make_account(name, "secret", "postd"))
    return content + set_account(b"", make_account("al#1\u202e", "secret", "other"))


@pytest.fixture
def folder(tmp_path: Path, users: bytes) -> Path:
    """A folder with settings, three users, and a store with sessions, tokens and passkeys."""
    (tmp_path / "users").write_bytes(users)
    (tmp_path / "users").chmod(0o600)
    (tmp_path / "postd.toml").write_text(SETTINGS)
    SqliteStore(str(tmp_path / "postd.db"), reactor=cast(IReactor, reactor)).prepare()
    accounts = load_accounts(str(tmp_path / "users"))
    assert accounts is not None
    alice, al = accounts["alice"], accounts["al#1\u202e"]
    for account, entry, used, expires in (
        ("alice", alice.entry.hex(), 200, 60),
        ("alice", alice.entry.hex(), 0, 9e999),
        ("alice", alice.entry.hex(), 900, -1),
        ("alice", "00", 900, 60),
        ("gone", "00", 900, 60),
        (BOB, PROVIDER, 0, 60),
    ):
        add_token(tmp_path, account, entry, used, expires)
    for account, entry, used in (("alice", alice.entry.hex(), 300), ("alice", "00", 900), (BOB, PROVIDER, 0)):
        add_passkey(tmp_path, account, entry, used)
    for account, fingerprint, seen, expires in (
        ("alice", alice.fingerprint.hex(), 100, 60),
        ("alice", alice.fingerprint.hex(), 900, -1),
        ("alice", "00", 900, 60),
        (al.name, al.fingerprint.hex(), 400, 60),
        ("https://idp.example#carol", PROVIDER, 500, 60),
        ("https://idp.example#dan", "00", 900, 60),
    ):
        add_session(tmp_path, account, fingerprint, seen, expires)
    return tmp_path


def add_token(folder: Path, account: str, entry: str, used: float, expires: float) -> None:
    times = f"0, {time.time() + expires}, {used}" if expires < 1e9 else f"0, 9e999, {used}"
    row = f"randomblob(32), hex(randomblob(6)), '{account}', x'{entry}', '', 'read', {times}"
    run_sql(folder / "postd.db", f"INSERT INTO {TOKENS} VALUES ({row})")


def add_passkey(folder: Path, account: str, entry: str, used: float) -> None:
    row = f"randomblob(8), hex(randomblob(6)), '{account}', x'{entry}', x'00', '', 0, {used}, 0, 0, 0, '', ''"
    run_sql(folder / "postd.db", f"INSERT INTO {PASSKEYS} VALUES ({row})")


def add_session(folder: Path, account: str, fingerprint: str, seen: float, expires: float) -> None:
    columns = "id_hash, username, fingerprint, created, seen, expires, ends, provider"
    end, provider = time.time() + expires, "example" if ":" in account else ""
    row = f"randomblob(32), '{account}', x'{fingerprint}', 0, {seen}, {end}, {end}, '{provider}'"
    run_sql(folder / "postd.db", f"INSERT INTO {SESSIONS} ({columns}) VALUES ({row})")


def rows(shown: str) -> list[list[str]]:
    return [re.split(" {2,}", line) for line in shown.splitlines()]


class ListTests:
    def test_accounts_have_their_means_and_the_numbers_of_what_is_valid(self, folder: Path) -> None:
        status, shown, error = postd(folder, "account", "list", "-c", "postd.toml")
        assert (status, error) == (0, "")
        assert rows(shown) == [
            HEAD,
            ["zoë", "password, Digest", "0", "0", "0", "unknown"],
            ["alice", "password, Digest, passkey", "2", "1", "1", "1970-01-01 00:05:00"],
            ["al#1\\u202e", "password", "0", "0", "1", "1970-01-01 00:06:40"],
            [BOB, "example, passkey", "1", "1", "0", "unknown"],
            ["https://idp.example#carol", "example", "0", "0", "1", "1970-01-01 00:08:20"],
        ]

    def test_without_a_user_file_the_store_alone_has_accounts(self, folder: Path) -> None:
        (folder / "postd.toml").write_text(SETTINGS.replace("users =", "# users ="))
        found = rows(postd(folder, "account", "list", "-c", "postd.toml")[1])
        assert [row[0] for row in found] == [
            "account", "al#1\\u202e", "alice", "gone", BOB, "https://idp.example#carol",
        ]  # fmt: skip

    def test_without_the_provider_its_users_are_named_by_the_issuer(self, folder: Path) -> None:
        found = rows(postd(folder, "account", "list", "-u", "users")[1])
        assert [BOB, "https://idp.example, passkey", "1", "1", "0", "unknown"] in found

    def test_users_are_listed_before_there_is_a_store(self, folder: Path) -> None:
        status, shown, error = postd(folder, "account", "list", "-u", "users", "-s", "sqlite:none.db")
        assert status == 0
        assert [row[0] for row in rows(shown)] == ["account", "zoë", "alice", "al#1\\u202e"]
        assert {(*row[2:],) for row in rows(shown)[1:]} == {("0", "0", "0", "unknown")}
        assert re.fullmatch(r"postd: no tokens, passkeys and sessions are known: .*none\.db: .*no such file.*\n", error)
        assert not (folder / "none.db").exists()

    def test_nothing_at_all_is_one_line(self, tmp_path: Path) -> None:
        status, shown, error = postd(tmp_path, "account", "list")
        assert (status, shown, error.count("\n")) == (1, "", 1)
        assert "no such file" in error
        SqliteStore(str(tmp_path / "postd.db"), reactor=cast(IReactor, reactor)).prepare()
        assert postd(tmp_path, "account", "list") == (0, "no accounts\n", "")
