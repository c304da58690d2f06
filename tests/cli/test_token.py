"""`postd token`, as a process, without a running server."""

import re
from pathlib import Path
from typing import cast

import pytest
from twisted.internet import reactor

from postd.auth.user_file import make_account, set_account
from postd.protocol.personal_token import hash_token, is_token
from postd.reactor import IReactor
from postd.store.sqlite.store import SqliteStore
from tests.cases import each
from tests.cli.test_session import postd
from tests.helpers import run_sql

SETTINGS = """
users = "users"
[api]
write = ["token"]
[accounts]
token_lifetime = "30d"
[[sign_in]]
id = "example"
name = "Example"
issuer = "https://idp.example"
client_id = "posts"
"""
LINE = re.compile(
    r"([0-9a-z]{12})  (\S+) +(read|write) +made \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (expires \S+ \S+|never expires) +"
    r"never used *(.*)"
)


@pytest.fixture(scope="module")
def users() -> bytes:
    content = b""
    for name in ("alice", "zoë"):
        content = set_account(content, make_account(name, "secret", "postd"))
    return content


@pytest.fixture
def folder(tmp_path: Path, users: bytes) -> Path:
    """A folder with settings, two users and a store without tokens."""
    (tmp_path / "users").write_bytes(users)
    (tmp_path / "postd.toml").write_text(SETTINGS)
    SqliteStore(str(tmp_path / "postd.db"), reactor=cast(IReactor, reactor)).prepare()
    return tmp_path


def token(folder: Path, *arguments: str) -> tuple[int, str, str]:
    return postd(folder, "token", *arguments, "-c", "postd.toml")


def test_token_is_printed_alone_and_stored_as_a_hash(folder: Path) -> None:
    status, shown, note = token(folder, "add", "alice", "--label", " CI of site ")
    text = shown.removesuffix("\n")
    assert (status, is_token(text)) == (0, True)
    assert text not in note
    (row,) = run_sql(folder / "postd.db", "SELECT token_hash, account, label, access FROM personal_token")
    assert row == (hash_token(text), "alice", "CI of site", "read")
    assert text[6:].encode() not in b"".join(path.read_bytes() for path in folder.glob("postd.db*"))
    (expires, created) = run_sql(folder / "postd.db", "SELECT expires, created FROM personal_token")[0]
    assert expires - created == pytest.approx(30 * 86400)


def test_lines_begin_with_ids_which_revoke(folder: Path) -> None:
    for arguments in (["alice", "--access", "write", "--expires", "1d", "--label", "a b"], ["zoe\u0308"]):
        assert token(folder, "add", *arguments)[0] == 0
    assert token(folder, "add", "https://idp.example#bob")[0] == 0
    status, shown, error = token(folder, "list")
    assert (status, error) == (0, "")
    matches = [LINE.fullmatch(line) for line in shown.splitlines()]
    found = [match.groups() for match in matches if match is not None]
    assert [(account, access, label) for _, account, access, _, label in found] == [
        ("alice", "write", "a b"),
        ("zoë", "read", ""),
        ("https://idp.example#bob", "read", ""),
    ]
    of_zoe = token(folder, "list", "--account", "zoe\u0308")[1]
    assert of_zoe.split() == shown.splitlines()[1].split()
    assert token(folder, "revoke", found[0][0]) == (0, "1 token revoked\n", "")
    status, shown, error = token(folder, "revoke", found[0][0])
    assert (status, shown, error.count("\n"), found[0][0] in error) == (1, "", 1, True)
    assert token(folder, "revoke", "--account", "https://idp.example#bob") == (0, "1 token revoked\n", "")
    assert [line.split()[0] for line in token(folder, "list")[1].splitlines()] == [found[1][0]]


@each(
    "arguments, why",
    [
        (["add", "carol"], "has no user 'carol'"),
        (["add", "https://other.example#bob"], "no ISSUER#NAME of a provider"),
        (["add", "https://idp.example#"], "no ISSUER#NAME of a provider"),
        (["add", "alice", "--expires", "31d"], "postd.toml: accounts.token_lifetime allows"),
        (["add", "alice", "--expires", ""], "postd.toml: accounts.token_lifetime allows"),
        (["add", "alice", "--expires", "soon"], "--expires: expected"),
        (["add", "alice", "--access", "admin"], "'admin' is not one of"),
        (["add", "alice", "--label", "a\nb"], "the label has a control character"),
        (["add", "alice", "--label", "x" * 101], "the label has more than 100 characters"),
        (["revoke"], "give either the ID"),
        (["revoke", "x", "--account", "alice"], "give either the ID"),
        (["revoke", "unknown"], "no token with the id 'unknown'"),
        (["revoke", "postd_" + "0" * 46], "not the id of one"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(folder: Path, arguments: list[str], why: str) -> None:
    status, shown, error = token(folder, *arguments)
    assert status != 0
    assert (shown, error.count("\n")) == ("", 1)
    assert why in error
    assert run_sql(folder / "postd.db", "SELECT id FROM personal_token") == []


def test_token_without_a_bound_never_expires(folder: Path) -> None:
    (folder / "postd.toml").write_text(SETTINGS.replace('"30d"', '""'))
    for arguments in ([], ["--expires", ""]):
        assert token(folder, "add", "alice", *arguments)[0] == 0
    assert token(folder, "add", "alice", "--expires", "3650d")[0] == 0
    shown = token(folder, "list")[1]
    assert ["never expires" in line for line in shown.splitlines()] == [True, True, False]


def test_tokens_of_removed_users_are_not_listed(folder: Path) -> None:
    token(folder, "add", "alice")
    (folder / "users").write_bytes(b"")
    assert token(folder, "list") == (0, "no tokens\n", "")


def test_store_is_not_made(tmp_path: Path, users: bytes) -> None:
    (tmp_path / "users").write_bytes(users)
    for arguments in (["add", "alice", "-u", "users"], ["list"], ["revoke", "x"]):
        status, shown, error = postd(tmp_path, "token", *arguments)
        assert (status, shown, error.count("\n")) == (1, "", 1)
    assert not [*tmp_path.glob("postd.db*")]


def test_rules_without_the_scheme_are_named(folder: Path) -> None:
    assert "no token is accepted" not in token(folder, "add", "alice")[2]
    assert "no token is accepted" in postd(folder, "token", "add", "alice", "-u", "users")[2]
