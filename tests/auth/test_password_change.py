"""New passwords in the user file, written while the server runs."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from postd.auth.password import PasswordVerifier
from postd.auth.password_change import CHANGES_MAX, CHANGES_WINDOW_S, LOCK_RETRY_S, LOCK_WAIT_S, PasswordWriter
from postd.auth.user_file import Account, decode_users, make_account
from postd.auth.user_file_editing import edit_user_file, find_write_problem, put_password
from postd.auth.users import UserDirectory
from postd.errors import LoginsBusyError, PasswordChangedError, TooManyChangesError, UserFileError
from postd.protocol.password import verify_password
from postd.reactor import IReactor, ServiceClock
from tests.auth.helpers import Logins
from tests.helpers import NOT_ROOT, make_shared_folder, result_of
from tests.web.wire import user_line

HERE = "192.0.2.7"
ALICE = user_line("alice", "secret")
BEFORE = f"# kept\n{ALICE}{user_line('bob', 'p:w')}"
NOBODY = 12345


class WriterLogins(Logins):
    """A `PasswordWriter`, whose threads work on demand."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, BEFORE)
        self.users = UserDirectory(str(self.user_file))
        self.users.load()
        self.verifier = PasswordVerifier(self.threads, now=self.clock.seconds)
        clock = ServiceClock(cast(IReactor, self.clock))
        self.writer = PasswordWriter(self.users, self.verifier, self.api.store, realm="postd", clock=clock)

    def begin(self, password: str = "new", name: str = "alice") -> Deferred[Any]:
        fingerprint = self.users.fingerprint(name)
        assert fingerprint is not None

        async def write() -> Account:
            account = await self.writer.make(name, password, address=HERE)
            await self.writer.write(account, fingerprint=fingerprint, address=HERE)
            return account

        return Deferred.fromCoroutine(write())

    def work(self) -> None:
        for _ in range(3):
            self.threads.run_waiting()
            self.clock.advance(0)

    def write(self, password: str = "new", name: str = "alice") -> Any:
        writing = self.begin(password, name)
        self.work()
        return result_of(writing)

    def passwords(self) -> dict[str, str]:
        """Return the password of each account, among those of the tests."""
        known = ("secret", "p:w", "new", "newer")
        accounts = decode_users(self.user_file.read_bytes(), "users").items()
        return {name: next(p for p in known if verify_password(one.password_hash, p)) for name, one in accounts}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


class PasswordWriterTests:
    @pytest.fixture
    def logins(self, tmp_path: Path) -> Iterator[WriterLogins]:
        logins = WriterLogins(tmp_path)
        yield logins
        logins.close()

    def test_new_password_is_written_as_by_the_command(self, logins: WriterLogins) -> None:
        logins.user_file.chmod(0o640)
        entry = logins.users.entry("alice")
        account = logins.write()
        assert logins.passwords() == {"alice": "new", "bob": "p:w"}
        assert stat.S_IMODE(logins.user_file.stat().st_mode) == 0o600
        assert logins.user_file.read_text().startswith("# kept\nalice:$argon2id$")
        assert logins.users.refresh()
        stored = logins.users.get("alice")
        assert stored is not None
        assert (stored.fingerprint, stored.entry) == (account.fingerprint, entry)
        assert stored.h_a1_for("postd", "SHA-256") == make_account("alice", "new", "postd").h_a1["SHA-256"]

    def test_threads_hash_and_write(self, logins: WriterLogins) -> None:
        writing = logins.begin()
        logins.clock.advance(60)
        assert logins.user_file.read_text() == BEFORE
        logins.threads.waiting.pop(0)()  # hashed
        assert logins.user_file.read_text() == BEFORE
        logins.work()
        result_of(writing)
        assert logins.threads.done == 2
        assert logins.passwords()["alice"] == "new"

    def test_link_to_the_file_stays_a_link(self, tmp_path: Path, logins: WriterLogins) -> None:
        real = tmp_path / "real"
        logins.user_file.rename(real)
        logins.user_file.symlink_to("real")
        logins.write()
        assert logins.user_file.is_symlink()
        assert logins.passwords()["alice"] == "new"

    def test_one_of_two_changes_of_an_account_is_refused(self, logins: WriterLogins) -> None:
        first, second = logins.begin("new"), logins.begin("newer")
        logins.work()
        result_of(first)
        with pytest.raises(PasswordChangedError):
            result_of(second)
        assert logins.passwords() == {"alice": "new", "bob": "p:w"}

    def test_changes_of_two_accounts_lose_nothing(self, logins: WriterLogins) -> None:
        changes = [logins.begin("new"), logins.begin("newer", "bob")]
        carol = make_account("carol", "new", "postd")
        edit_user_file(logins.user_file, lambda content, _: put_password(content, {}, carol, lambda _: None))
        logins.work()
        for change in changes:
            result_of(change)
        assert logins.passwords() == {"alice": "new", "bob": "newer", "carol": "new"}

    @pytest.mark.parametrize(
        "content", [user_line("alice", "newer"), user_line("bob", "p:w"), ""], ids=["changed", "removed", "empty"]
    )
    def test_account_changed_or_removed_meanwhile_stays_so(self, logins: WriterLogins, content: str) -> None:
        writing = logins.begin()
        logins.user_file.write_text(content)
        logins.work()
        with pytest.raises(PasswordChangedError):
            result_of(writing)
        assert logins.user_file.read_text() == content

    @pytest.mark.parametrize(
        ("password", "why"), [("", "is empty"), ("a\0b", "has a"), ("x" * 1001, "more than 1,000")]
    )
    def test_password_that_the_command_refuses_is_refused(self, logins: WriterLogins, password: str, why: str) -> None:
        with pytest.raises(ValueError, match=f"the password .*{why}"):
            logins.write(password)
        assert logins.user_file.read_text() == BEFORE

    def test_changes_of_an_account_are_limited(self, logins: WriterLogins) -> None:
        for number in range(CHANGES_MAX):
            logins.write(("new", "newer")[number % 2])
            logins.users.refresh()
        logins.clock.advance(CHANGES_WINDOW_S - 1)
        with pytest.raises(TooManyChangesError) as caught:
            logins.write("new")
        assert caught.value.retry_after_s == 1
        assert logins.passwords()["alice"] == "newer"
        logins.write("new", "bob")
        logins.clock.advance(1)
        logins.write("new")
        assert logins.passwords() == {"alice": "new", "bob": "new"}

    def test_lock_of_another_process_is_waited_for_without_a_thread(self, tmp_path: Path, logins: WriterLogins) -> None:
        writing = logins.begin()
        with locked(tmp_path):
            logins.work()
            for _ in range(3):
                assert logins.threads.waiting == []
                assert not writing.called
                logins.clock.advance(LOCK_RETRY_S)
                logins.work()
        logins.clock.advance(LOCK_RETRY_S)
        logins.work()
        result_of(writing)
        assert logins.passwords()["alice"] == "new"

    def test_lock_that_stays_is_an_error(self, tmp_path: Path, logins: WriterLogins) -> None:
        writing = logins.begin()
        with locked(tmp_path), capturedLogs() as events:
            logins.work()
            logins.clock.advance(LOCK_WAIT_S)
            logins.work()
        with pytest.raises(UserFileError):
            result_of(writing)
        assert [formatEvent(event) for event in events] == [
            f"new password not written: {logins.user_file}: cannot be written: another process keeps its folder locked"
        ]
        assert logins.user_file.read_text() == BEFORE

    @pytest.mark.parametrize("fault", ["folder", "line"])
    def test_file_that_cannot_be_written_stays(self, tmp_path: Path, logins: WriterLogins, fault: str) -> None:
        if fault == "folder":
            (tmp_path / ".users.new").mkdir()
        else:
            logins.user_file.write_text(BEFORE + "carol:plain\n")
        before = logins.user_file.read_text()
        with capturedLogs() as events, pytest.raises(UserFileError):
            logins.write()
        (line,) = [formatEvent(event) or "" for event in events]
        assert line.startswith(f"new password not written: {logins.user_file}: ")
        assert "argon2" not in line
        assert logins.user_file.read_text() == before

    def test_full_queue_refuses_the_change(self, logins: WriterLogins, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(*_: object) -> None:
            raise LoginsBusyError

        monkeypatch.setattr(logins.threads, "run", run)
        with pytest.raises(LoginsBusyError):
            logins.write()
        assert logins.user_file.read_text() == BEFORE


class FindWriteProblemTests:
    """What prevents changes is found at the start."""

    def test_file_that_can_be_edited_has_no_problem(self, tmp_path: Path) -> None:
        assert find_write_problem(tmp_path / "users") is None
        (tmp_path / "users").write_text(BEFORE)
        (tmp_path / "link").symlink_to("users")
        for name in ("users", "link"):
            assert find_write_problem(tmp_path / name) is None
        assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "users"]

    def test_missing_folder_is_a_problem(self, tmp_path: Path) -> None:
        assert find_write_problem(tmp_path / "none" / "users") == "cannot be written: No such file or directory"

    def test_folder_and_file_are_a_problem_for_another_user(self) -> None:
        with make_shared_folder(0o755) as folder, as_another_user():
            assert find_write_problem(folder / "users") == (
                f"its folder cannot be written by user {NOBODY}: each change replaces the file"
            )
        with make_shared_folder(0o777) as folder:
            (folder / "users").write_text(BEFORE)
            with as_another_user():
                assert find_write_problem(folder / "users") == f"belongs to root, and this process is of user {NOBODY}"

    def test_read_only_file_system_is_a_problem(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        status = os.statvfs(tmp_path)
        read_only = os.statvfs_result([*status[:8], status.f_flag | os.ST_RDONLY, status.f_namemax])
        monkeypatch.setattr(os, "fstatvfs", lambda _: read_only)
        assert find_write_problem(tmp_path / "users") == (
            "its folder cannot be written: it is on a read-only file system"
        )


@contextmanager
def as_another_user() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip(NOT_ROOT)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
