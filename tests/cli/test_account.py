"""`postd account`, and `postd user remove` with a store, as processes, without a running server."""

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
from tests.cases import each
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


def count(folder: Path, account: str) -> list[int]:
    """Return the numbers of tokens, passkeys and sessions of an account, valid or not."""
    columns = {TOKENS: "account", PASSKEYS: "account", SESSIONS: "username"}
    queries = [f"SELECT count(*) FROM {table} WHERE {column} = '{account}'" for table, column in columns.items()]
    return [run_sql(folder / "postd.db", query)[0][0] for query in queries]


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


class RemoveTests:
    def test_what_the_store_has_of_a_user_ends(self, folder: Path) -> None:
        run_sql(folder / "postd.db", "INSERT INTO password_reset VALUES (x'00', 'alice', x'00', 9e9)")
        shown = postd(folder, "user", "remove", "alice", "-c", "postd.toml")
        assert shown == (0, "alice: removed; 1 session, 2 tokens and 1 passkey ended\n", "")
        assert count(folder, "alice") == [0, 0, 0]
        assert run_sql(folder / "postd.db", "SELECT * FROM password_reset") == []
        assert postd(folder, "user", "remove", "zoë", "-c", "postd.toml") == (0, "zoë: removed\n", "")
        assert count(folder, BOB) == [1, 1, 0]

    def test_name_with_a_number_sign_is_a_user(self, folder: Path) -> None:
        shown = postd(folder, "user", "remove", "al#1\u202e", "-c", "postd.toml")
        assert shown == (0, "al#1\\u202e: removed; 1 session ended\n", "")

    def test_user_of_a_provider_ends_without_a_user_file(self, folder: Path) -> None:
        assert postd(folder, "user", "remove", BOB) == (0, f"{BOB}: 1 token and 1 passkey ended\n", "")
        status, shown, error = postd(folder, "user", "remove", BOB)
        assert (status, shown, error.count("\n")) == (1, "", 1)
        assert f"{BOB!r} has no session, token or passkey in sqlite:" in error

    def test_posts_of_a_user_of_a_provider_are_removed(self, folder: Path) -> None:
        post = {"id": 1, "post": "hi", "author": BOB}
        (folder / "posts").write_text(str(post).replace("'", '"') + "\n")
        assert postd(folder, "import", "posts")[0] == 0
        for ended, number in (f"{BOB}: 1 token and 1 passkey ended\n", "1 post"), ("", "0 posts"):
            status, shown, _ = postd(folder, "user", "remove", BOB, "--posts")
            assert (status, shown) == (0, f"{ended}{BOB}: {number} removed from sqlite:{folder}/postd.db\n")

    @each(
        "store, why",
        [
            ("memory:", "memory: exists only in the process of the server"),
            ("sqlite:none.db", "there is no such file"),
            ("sqlite:users", "it is not an SQLite database"),
        ],
    )
    def test_unusable_store_keeps_no_user(self, folder: Path, users: bytes, store: str, why: str) -> None:
        (folder / "users").write_bytes(users)
        for arguments in (["alice", "--posts"], [BOB]):
            status, shown, error = postd(folder, "user", "remove", *arguments, "-u", "users", "-s", store)
            assert (status, shown, error.count("\n")) == (1, "", 1)
            assert why in error
        status, shown, error = postd(folder, "user", "remove", "alice", "-u", "users", "-s", store)
        assert (status, shown, error.count("\n")) == (0, "alice: removed\n", 1)
        assert error.startswith("postd: sessions, tokens and passkeys of alice end by themselves, with the entry, ")
        assert why in error
        assert not (folder / "none.db").exists()

    def test_what_a_store_keeps_of_a_removed_user_belongs_to_none_of_the_same_name(self, folder: Path) -> None:
        postd(folder, "user", "remove", "alice", "-u", "users", "-s", "memory:")
        assert count(folder, "alice") == [4, 2, 3]
        content = (folder / "users").read_bytes()
        (folder / "users").write_bytes(set_account(content, make_account("alice", "secret", "postd")))
        alice = ["alice", "password, Digest", "0", "0", "0", "unknown"]
        assert alice in rows(postd(folder, "account", "list", "-c", "postd.toml")[1])
