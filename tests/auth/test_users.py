"""The user file while the server runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from twisted.logger import capturedLogs, formatEvent

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
    def told(self) -> list[Mapping[str, bytes | None]]:
        return []

    def make(self, file: Path, told: list[Any] | None = None) -> UserDirectory:
        users = UserDirectory(str(file), changed=(told if told is not None else []).append)
        users.load()
        return users

    def names(self, users: UserDirectory) -> set[str]:
        return {name for name in ("alice", "bob", "carol") if users.get(name)}

    def test_without_a_file_there_is_nobody(self, file: Path) -> None:
        users = UserDirectory("")
        users.load()
        assert (users.accounts, users.get("alice"), users.get(""), users.fingerprint("alice")) == (None,) * 4
        assert not users.refresh()

    def test_one_that_is_not_there_yet_is_taken_up_when_it_is(self, file: Path, told: list[Any]) -> None:
        users = self.make(file, told)
        assert users.accounts is None
        assert not users.refresh()
        file.write_text(ALICE)
        assert users.refresh()
        assert self.names(users) == {"alice"}
        assert [dict(names) for names in told] == [{}]  # nobody has lost anything

    @pytest.mark.parametrize(
        "content", ["alice", "alice:plain", "alice:$apr1$x$y", b"\xff:x", pytest.param(ALICE + ALICE, id="twice")]
    )
    def test_at_start_a_broken_one_is_refused(self, file: Path, content: str | bytes) -> None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ConfigError, match=r"line [12]"):
            self.make(file)

    def test_at_start_an_unreadable_one_is_refused(self, file: Path) -> None:
        file.mkdir()
        with pytest.raises(ConfigError, match=str(file)):
            self.make(file)

    def test_a_look_takes_nothing_up(self, file: Path) -> None:
        """A reload looks first, and takes up all or nothing."""
        file.write_text(ALICE)
        users = self.make(file)
        file.write_text(BOB)
        users.check()
        assert self.names(users) == {"alice"}
        file.write_text("bob:what\n")
        with pytest.raises(ConfigError, match="line 1"):
            users.check()
        file.unlink()
        with pytest.raises(ConfigError, match="is gone"):
            users.check()
        assert self.names(users) == {"alice"}

    def test_a_change_is_taken_up(self, file: Path) -> None:
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

    def test_an_empty_file_is_taken_up_at_the_second_look(self, file: Path) -> None:
        """Programs that do not rename, such as htpasswd, leave it so for a moment; nobody is signed out by that."""
        file.write_text(ALICE)
        told: list[Mapping[str, bytes | None]] = []
        users = self.make(file, told)
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
        assert [set(names) for names in told] == [set(), {"alice", "bob"}]

    def test_a_change_that_keeps_size_and_time_is_seen(self, file: Path) -> None:
        """As `cp -p` and `rsync -t` may do it, and an editor that puts the time back."""
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

    def test_an_older_file_put_in_its_place_is_seen(self, file: Path) -> None:
        backup = file.with_suffix(".backup")
        backup.write_text(BOB)
        os.utime(backup, (1, 1))
        file.write_text(ALICE)
        users = self.make(file)
        backup.rename(file)
        assert users.refresh()
        assert self.names(users) == {"bob"}

    def test_who_has_changed_is_told_and_nobody_else(self, file: Path, told: list[Any]) -> None:
        file.write_text(ALICE + BOB)
        users = self.make(file, told)
        file.write_text("# a comment\n" + BOB + ALICE)
        users.refresh()
        assert told.pop() == {}
        file.write_text(ALICE_ANEW + BOB)
        users.refresh()
        assert told.pop() == {"alice": users.fingerprint("alice")}
        file.write_text(ALICE_ANEW)
        users.refresh()
        assert told.pop() == {"bob": None}
        file.write_text(ALICE_ANEW + BOB)
        users.refresh()
        assert told.pop() == {}  # a new one has no session that could end
        assert told == []

    def test_a_fingerprint_is_of_the_password_alone(self, file: Path) -> None:
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

    def test_a_fingerprint_does_not_give_the_hash_away(self, file: Path) -> None:
        file.write_text(ALICE)
        fingerprint = self.make(file).fingerprint("alice") or b""
        assert fingerprint not in ALICE.encode()
        assert len(fingerprint) >= 16

    def check_kept(self, file: Path, users: UserDirectory, told: list[Any], wanted: str) -> None:
        """Check that the old accounts stay, and that the log has one line of it however long that lasts."""
        with capturedLogs() as events:
            assert not any(users.refresh() for _ in range(5))
        lines = [(event["log_level"].name, formatEvent(event) or "") for event in events]
        assert [level for level, _ in lines] == ["error"]
        assert str(file) in lines[0][1]
        assert wanted in lines[0][1]
        assert "$2b$" not in lines[0][1]
        assert self.names(users) == {"alice"}
        assert told == []

    def test_one_that_is_gone_leaves_the_old_in_force(self, file: Path, told: list[Any]) -> None:
        file.write_text(ALICE)
        users = self.make(file, told)
        file.unlink()
        self.check_kept(file, users, told, "gone")
        file.write_text(BOB)
        assert users.refresh()
        assert self.names(users) == {"bob"}
        assert told == [{"alice": None}]

    def test_a_broken_one_leaves_the_old_in_force(self, file: Path, told: list[Any]) -> None:
        file.write_text(ALICE)
        users = self.make(file, told)
        file.write_text(BOB + "carol:plain\n")
        self.check_kept(file, users, told, "line 2")
        file.write_text(BOB + BOB)
        self.check_kept(file, users, told, "line 2")
        file.write_text(ALICE)
        assert users.refresh()
        assert told == [{}]

    def test_an_unreadable_one_leaves_the_old_in_force(self, file: Path, told: list[Any]) -> None:
        file.write_text(ALICE)
        users = self.make(file, told)
        file.unlink()
        file.mkdir()
        self.check_kept(file, users, told, "cannot be read")
        file.rmdir()
        os.mkfifo(file)  # and does not hang
        self.check_kept(file, users, told, "regular file")
        file.unlink()
        file.symlink_to(file.name)
        self.check_kept(file, users, told, "")

    def test_one_that_becomes_readable_without_a_change_of_its_own_is_taken_up(self, file: Path) -> None:
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

    def test_all_of_them_can_be_had(self, file: Path) -> None:
        file.write_text(ALICE + BOB)
        users = self.make(file)
        assert users.accounts is not None
        assert list(users.accounts) == ["alice", "bob"]
        file.write_text("")
        users.refresh()
        users.refresh()
        assert users.accounts == {}  # there is a file, with nobody in it


class WatchTests:
    """What the running server makes of it: `Authentication` looks at the file each second."""

    def test_a_file_that_is_not_there_yet_is_warned_of_once(self, tmp_path: Path) -> None:
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

    def test_a_change_is_in_force_within_2_s(self, tmp_path: Path) -> None:
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
NOBODY = [f"nobody{n}" for n in range(300)]


class HashInPlaceTests:
    """What is verified for a user that there is not."""

    def test_it_is_one_of_those_that_there_are_and_stays_the_same(self, tmp_path: Path) -> None:
        file = tmp_path / "users"
        lines = [f"user{cost}:{bcrypt.hashpw(b'x', bcrypt.gensalt(cost)).decode()}\n" for cost in (4, 5, 6)]
        file.write_text("".join(lines))
        users = UserDirectory(str(file))
        users.load()
        hashes = {line.strip().partition(":")[2] for line in lines}
        chosen = {name: users.dummy_hash(name, KEY) for name in NOBODY}
        assert set(chosen.values()) == hashes
        assert all(users.dummy_hash(name, KEY) == stored for name, stored in chosen.items())

    def test_what_it_costs_stays_the_same_over_restarts_and_new_users(self, tmp_path: Path) -> None:
        """Else whose time changes would be known for nobody."""
        file = tmp_path / "users"
        lines = [f"user{cost}:{bcrypt.hashpw(b'x', bcrypt.gensalt(cost)).decode()}\n" for cost in (4, 5, 6)]
        costs = set()
        for content in (lines, lines[::-1], [*lines, user_line("new", "y")]):
            file.write_text("".join(content))
            users = UserDirectory(str(file))
            users.load()
            costs.add(tuple(cost_of(users.dummy_hash(name, KEY)) for name in NOBODY))
        assert len(costs) == 1
        assert tuple(cost_of(users.dummy_hash(name, b"another key")) for name in NOBODY) not in costs

    def test_without_users_it_is_of_todays_kind_and_of_no_password(self) -> None:
        users = UserDirectory("")
        users.load()
        assert users.dummy_hash("x", KEY) == DUMMY_HASH
        assert not verify_password(DUMMY_HASH, "")
        assert not verify_password(DUMMY_HASH, "x")

    def test_any_name_has_one(self, tmp_path: Path) -> None:
        users = UserDirectory("")
        for name in ("", "\0", "\udcff", "x" * 100_000, "ü"):
            assert users.dummy_hash(name, KEY) == DUMMY_HASH
