"""Reloading the user file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from twisted.logger import capturedLogs, formatEvent

from postd.auth.user_file import Account, decode_users
from postd.auth.user_file_editing import edit_user_file, put_password
from postd.auth.users import UserDirectory
from postd.errors import ConfigError
from postd.protocol.password import DUMMY_HASH, cost_of, verify_password
from tests.helpers import InMemoryApi
from tests.web.wire import ask, user_line

ALICE, ALICE_ANEW, BOB = user_line("alice", "secret"), user_line("alice", "other"), user_line("bob", "p:w")


class UserDirectoryTests:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "users"

    @pytest.fixture
    def changes(self) -> list[Mapping[str, Account | None]]:
        return []

    def make(self, file: Path, changes: list[Any] | None = None) -> UserDirectory:
        users = UserDirectory(str(file), changed=(changes if changes is not None else []).append)
        users.load()
        return users

    def names(self, users: UserDirectory) -> set[str]:
        return {name for name in ("alice", "bob", "carol") if users.get(name)}

    def test_no_file_means_no_accounts(self, file: Path) -> None:
        users = UserDirectory("")
        users.load()
        assert (users.accounts, users.get("alice"), users.get(""), users.fingerprint("alice")) == (None,) * 4
        assert not users.refresh()

    def test_file_created_later_is_loaded(self, file: Path, changes: list[Any]) -> None:
        users = self.make(file, changes)
        assert users.accounts is None
        assert not users.refresh()
        file.write_text(ALICE)
        assert users.refresh()
        assert self.names(users) == {"alice"}
        assert [dict(names) for names in changes] == [{}]  # no account changed

    @pytest.mark.parametrize(
        "content", ["alice", "alice:plain", "alice:$apr1$x$y", b"\xff:x", pytest.param(ALICE + ALICE, id="twice")]
    )
    def test_invalid_file_is_refused_at_the_start(self, file: Path, content: str | bytes) -> None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ConfigError, match=r"line [12]"):
            self.make(file)

    def test_unreadable_file_is_refused_at_the_start(self, file: Path) -> None:
        file.mkdir()
        with pytest.raises(ConfigError, match=str(file)):
            self.make(file)

    def test_check_changes_nothing(self, file: Path) -> None:
        """A reload checks all settings first, and applies all or none."""
        file.write_text(ALICE)
        users = self.make(file)
        file.write_text(BOB)
        users.check()
        assert self.names(users) == {"alice"}
        file.write_text("bob:what\n")
        with pytest.raises(ConfigError, match="line 1"):
            users.check()
        file.unlink()
        with pytest.raises(ConfigError, match="no longer exists"):
            users.check()
        assert self.names(users) == {"alice"}

    def test_changed_file_is_loaded(self, file: Path) -> None:
        file.write_text(ALICE)
        users = self.make(file)
        assert not users.refresh()
        file.write_text(ALICE + BOB)
        assert users.refresh()
        assert not users.refresh()
        assert self.names(users) == {"alice", "bob"}
        file.write_text(BOB)
        assert users.refresh()
        assert self.names(users) == {"bob"}

    def test_empty_file_is_loaded_at_the_second_check(self, file: Path) -> None:
        """Programs that write in place, such as htpasswd, leave it empty for a moment, which must sign no user out."""
        file.write_text(ALICE)
        changes: list[Mapping[str, Account | None]] = []
        users = self.make(file, changes)
        file.write_text("")
        assert not users.refresh()
        file.write_text(ALICE + BOB)
        assert users.refresh()
        file.write_text("")
        assert not users.refresh()
        assert self.names(users) == {"alice", "bob"}
        assert users.refresh()
        assert self.names(users) == set()
        assert not users.refresh()
        assert [set(names) for names in changes] == [set(), {"alice", "bob"}]

    def test_empty_file_is_not_loaded_by_requests(self, file: Path) -> None:
        file.write_text(ALICE)
        users = self.make(file)
        file.write_text("")
        for _ in range(3):
            users.recheck()
        assert not users.refresh()  # the first periodic check
        users.recheck()
        assert self.names(users) == {"alice"}
        file.write_text(ALICE + BOB)
        users.recheck()
        assert self.names(users) == {"alice", "bob"}
        file.write_text("")
        assert [users.refresh(), users.refresh()] == [False, True]

    def test_change_with_equal_size_and_time_is_detected(self, file: Path) -> None:
        """As by `cp -p`, `rsync -t`, and editors that restore the time."""
        file.write_text(ALICE)
        users = self.make(file)
        before = file.stat()
        for replace in (True, False):
            changed = file.read_text().replace("alice:", "alicf:" if replace else "x").replace("alicf:", "carol:")
            changed = (ALICE_ANEW if not replace else changed).ljust(before.st_size, "\n")[: before.st_size]
            file.write_text(changed)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            after = file.stat()
            assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
                before.st_size,
                before.st_mtime_ns,
                before.st_ino,
            )
            assert users.refresh()
            assert self.names(users) == ({"carol"} if replace else {"alice"})

    def test_older_file_is_detected(self, file: Path) -> None:
        backup = file.with_suffix(".backup")
        backup.write_text(BOB)
        os.utime(backup, (1, 1))
        file.write_text(ALICE)
        users = self.make(file)
        backup.rename(file)
        assert users.refresh()
        assert self.names(users) == {"bob"}

    def test_callback_gets_changed_and_removed_accounts_only(self, file: Path, changes: list[Any]) -> None:
        file.write_text(ALICE + BOB)
        users = self.make(file, changes)
        file.write_text("# a comment\n" + BOB + ALICE)
        users.refresh()
        assert changes.pop() == {}
        file.write_text(ALICE_ANEW + BOB)
        users.refresh()
        assert changes.pop() == {"alice": users.get("alice")}
        file.write_text(ALICE_ANEW.strip() + ":id=" + "0f" * 6 + "\n" + BOB)  # by hand: the entry of another account
        users.refresh()
        assert changes.pop() == {"alice": users.get("alice")}
        assert users.entry("alice") == b"\x0f" * 6
        file.write_text(ALICE_ANEW + BOB)
        users.refresh()
        assert [*changes.pop()] == ["alice"]
        file.write_text(ALICE_ANEW)
        users.refresh()
        assert changes.pop() == {"bob": None}
        file.write_text(ALICE_ANEW + BOB)
        users.refresh()
        assert changes.pop() == {}  # a new one has no session that could end
        assert changes == []

    def test_fingerprint_depends_on_the_password_only(self, file: Path) -> None:
        file.write_text(ALICE + BOB)
        users = self.make(file)
        first = users.fingerprint("alice")
        assert first
        assert first != users.fingerprint("bob")
        assert self.make(file).fingerprint("alice") == first  # after a restart, in another worker
        file.write_text(ALICE_ANEW)
        users.refresh()
        assert users.fingerprint("alice") != first
        assert users.fingerprint("bob") is None
        file.write_text(ALICE)
        users.refresh()
        assert users.fingerprint("alice") == first

    def test_entry_stays_when_the_password_changes(self, file: Path) -> None:
        file.write_text(ALICE)
        users = self.make(file)
        first = users.entry("alice")
        anew = decode_users(ALICE_ANEW.encode(), "")["alice"]
        edit_user_file(file, lambda content, accounts: put_password(content, accounts, anew, lambda _: None))
        users.refresh()
        assert users.fingerprint("alice") != first == users.entry("alice")
        for content, entry in (("", None), (ALICE_ANEW, anew.entry)):  # removed, and added again
            file.write_text(content)
            users.refresh()
            users.refresh()  # an empty file is loaded at the second check
            assert users.entry("alice") == entry

    def test_fingerprint_does_not_contain_the_hash(self, file: Path) -> None:
        file.write_text(ALICE)
        fingerprint = self.make(file).fingerprint("alice") or b""
        assert fingerprint not in ALICE.encode()
        assert len(fingerprint) >= 16

    def check_kept(self, file: Path, users: UserDirectory, changes: list[Any], wanted: str) -> None:
        """Check that the old accounts stay, with one line in the log however long that lasts."""
        with capturedLogs() as events:
            assert not any(users.refresh() for _ in range(5))
        lines = [(event["log_level"].name, formatEvent(event) or "") for event in events]
        assert [level for level, _ in lines] == ["error"]
        assert str(file) in lines[0][1]
        assert wanted in lines[0][1]
        assert "$2b$" not in lines[0][1]
        assert self.names(users) == {"alice"}
        assert changes == []

    def test_removed_file_keeps_the_accounts(self, file: Path, changes: list[Any]) -> None:
        file.write_text(ALICE)
        users = self.make(file, changes)
        file.unlink()
        self.check_kept(file, users, changes, "no longer exists")
        file.write_text(BOB)
        assert users.refresh()
        assert self.names(users) == {"bob"}
        assert changes == [{"alice": None}]

    def test_invalid_file_keeps_the_accounts(self, file: Path, changes: list[Any]) -> None:
        file.write_text(ALICE)
        users = self.make(file, changes)
        file.write_text(BOB + "carol:plain\n")
        self.check_kept(file, users, changes, "line 2")
        file.write_text(BOB + BOB)
        self.check_kept(file, users, changes, "line 2")
        file.write_text(ALICE)
        assert users.refresh()
        assert changes == [{}]

    def test_unreadable_file_keeps_the_accounts(self, file: Path, changes: list[Any]) -> None:
        file.write_text(ALICE)
        users = self.make(file, changes)
        file.unlink()
        file.mkdir()
        self.check_kept(file, users, changes, "cannot be read")
        file.rmdir()
        os.mkfifo(file)  # and does not hang
        self.check_kept(file, users, changes, "regular file")
        file.unlink()
        file.symlink_to(file.name)
        self.check_kept(file, users, changes, "")

    def test_file_that_becomes_readable_is_loaded(self, file: Path) -> None:
        file.write_text(ALICE)
        users = self.make(file)
        file.rename(file.with_suffix(".away"))
        users.refresh()
        file.with_suffix(".away").rename(file)
        file.write_text(BOB)
        assert users.refresh()
        assert self.names(users) == {"bob"}

    def test_names_are_normalized(self, file: Path) -> None:
        file.write_text(user_line("ju\u0308rgen", "x"))
        users = self.make(file)
        assert users.get("jürgen")
        assert users.get("ju\u0308rgen") is None  # the caller's business

    def test_accounts_are_listed(self, file: Path) -> None:
        file.write_text(ALICE + BOB)
        users = self.make(file)
        assert users.accounts is not None
        assert list(users.accounts) == ["alice", "bob"]
        file.write_text("")
        users.refresh()
        users.refresh()
        assert users.accounts == {}  # there is a file, without accounts


class WatchTests:
    """`Authentication` checks the file periodically."""

    def test_reload_for_a_request_is_followed_by_the_next_check(self, tmp_path: Path) -> None:
        (tmp_path / "users").write_text(ALICE)
        with capturedLogs() as events:
            api = InMemoryApi(tmp_path)
            assert ask(api, "GET", "/basic", None, {"Authorization": "Basic YWxpY2U6c2VjcmV0"}).status == 200
            (tmp_path / "users").write_text("")
            api.logins.context.users.refresh()
            api.logins.context.users.refresh()
            api.clock.pump([1, 1])
        assert sum("no user can sign in" in (formatEvent(event) or "") for event in events) == 1
        api.close()

    def test_missing_file_is_warned_of_once(self, tmp_path: Path) -> None:
        with capturedLogs() as events:
            api = InMemoryApi(tmp_path)
            api.clock.pump([1] * 5)
        lines = [formatEvent(event) or "" for event in events if event["log_level"].name == "warn"]
        assert len(lines) == 1
        assert str(tmp_path / "users") in lines[0]
        (tmp_path / "users").write_text(ALICE)
        api.clock.advance(1)
        assert ask(api, "GET", "/basic", None, {"Authorization": "Basic YWxpY2U6c2VjcmV0"}).status == 200
        api.close()

    def test_change_takes_effect_within_2_s(self, tmp_path: Path) -> None:
        (tmp_path / "users").write_text(ALICE)
        api = InMemoryApi(tmp_path)
        old = {"Authorization": "Basic YWxpY2U6c2VjcmV0"}
        assert ask(api, "GET", "/basic", None, old).status == 200  # and is remembered
        (tmp_path / "users").write_text(ALICE_ANEW)
        api.clock.advance(2)
        assert ask(api, "GET", "/basic", None, old).status == 401
        assert ask(api, "GET", "/basic", None, {"Authorization": "Basic YWxpY2U6b3RoZXI="}).status == 200
        api.close()


KEY = b"key"
UNKNOWN = [f"unknown{n}" for n in range(300)]


class DummyHashTests:
    """The hash to verify against for an unknown user."""

    def test_dummy_hash_is_that_of_an_account_and_constant(self, tmp_path: Path) -> None:
        file = tmp_path / "users"
        lines = [f"user{cost}:{bcrypt.hashpw(b'x', bcrypt.gensalt(cost)).decode()}\n" for cost in (4, 5, 6)]
        file.write_text("".join(lines))
        users = UserDirectory(str(file))
        users.load()
        hashes = {line.strip().partition(":")[2] for line in lines}
        chosen = {name: users.dummy_hash(name, KEY) for name in UNKNOWN}
        assert set(chosen.values()) == hashes
        assert all(users.dummy_hash(name, KEY) == stored for name, stored in chosen.items())

    def test_cost_of_the_dummy_hash_is_constant_over_restarts_and_new_users(self, tmp_path: Path) -> None:
        """Otherwise a changed time would reveal that a user is unknown."""
        file = tmp_path / "users"
        lines = [f"user{cost}:{bcrypt.hashpw(b'x', bcrypt.gensalt(cost)).decode()}\n" for cost in (4, 5, 6)]
        costs = set()
        for content in (lines, lines[::-1], [*lines, user_line("new", "y")]):
            file.write_text("".join(content))
            users = UserDirectory(str(file))
            users.load()
            costs.add(tuple(cost_of(users.dummy_hash(name, KEY)) for name in UNKNOWN))
        assert len(costs) == 1
        assert tuple(cost_of(users.dummy_hash(name, b"another key")) for name in UNKNOWN) not in costs

    def test_dummy_hash_without_accounts_is_argon2id_of_no_password(self) -> None:
        users = UserDirectory("")
        users.load()
        assert users.dummy_hash("x", KEY) == DUMMY_HASH
        assert not verify_password(DUMMY_HASH, "")
        assert not verify_password(DUMMY_HASH, "x")

    def test_any_name_has_a_dummy_hash(self, tmp_path: Path) -> None:
        users = UserDirectory("")
        for name in ("", "\0", "\udcff", "x" * 100_000, "ü"):
            assert users.dummy_hash(name, KEY) == DUMMY_HASH
