"""The checker of a user file for any program of Twisted, and its plugin."""

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import IUsernamePassword, UsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.cred.strcred import ICheckerFactory, InvalidAuthArgumentString
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock
from twisted.plugin import IPlugin
from zope.interface import implementer
from zope.interface.verify import verifyObject

from postd.auth.user_file_checker import UserFileChecker
from postd.auth.users import WATCH_INTERVAL_S
from postd.protocol.password import verify_password
from tests.cases import each
from tests.web.wire import user_line
from twisted.plugins.postd_plugin import user_file_checker

VERIFY = "postd.auth.user_file_checker.verify_password"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text(user_line("alice", "secret", realm="postd") + user_line("jürgen", "pässwörd"))
    return file


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """The hashes and passwords that are verified, and the threads that did so."""
    verified = []

    def verify(stored: str, password: str) -> bool:
        verified.append((stored, password, threading.get_ident()))
        return verify_password(stored, password)

    monkeypatch.setattr(VERIFY, verify)
    return verified


def check(checker: UserFileChecker, name: Any = b"alice", password: Any = b"secret") -> Deferred[Any]:
    return checker.requestAvatarId(UsernamePassword(name, password))


async def check_refused(checker: UserFileChecker, name: Any = b"alice", password: Any = b"secret") -> None:
    with pytest.raises(UnauthorizedLogin):
        await check(checker, name, password)


class CheckerTests:
    def test_provides_twisted_interface(self, file: Path) -> None:
        assert verifyObject(ICredentialsChecker, UserFileChecker(str(file)))

    @pytest.mark.parametrize("as_sent", [str.encode, str], ids=["bytes", "text"])
    @ensureDeferred
    async def test_right_password_returns_the_name(self, file: Path, as_sent: Callable[[str], Any]) -> None:
        checker = UserFileChecker(str(file))
        assert await check(checker, as_sent("alice"), as_sent("secret")) == b"alice"
        decomposed = as_sent("ju\u0308rgen"), as_sent("pa\u0308sswo\u0308rd")
        assert await check(checker, *decomposed) == "jürgen".encode()
        latin_1 = "jürgen".encode("latin-1"), "pässwörd".encode("latin-1")
        assert await check(checker, *latin_1) == "jürgen".encode()

    @pytest.mark.parametrize(
        ("name", "password"),
        [
            (b"alice", b"wrong"),
            (b"alice", b""),
            (b"alice", "pässwörd"),
            (b"bob", b"secret"),
            ("", ""),
            (b"Alice", b"secret"),
        ],
    )
    @ensureDeferred
    async def test_wrong_name_or_password_is_refused(
        self, file: Path, verified: Sequence[object], name: Any, password: Any
    ) -> None:
        """Each costs one verification, unknown names included."""
        await check_refused(UserFileChecker(str(file)), name, password)
        assert len(verified) == 1

    @pytest.mark.parametrize("text", ["\udcff", "\ud800", "x" * 1001, b"x" * 100_000])
    @ensureDeferred
    async def test_text_that_no_account_has_is_refused_at_once(
        self, file: Path, verified: Sequence[object], text: Any
    ) -> None:
        for login in ((text, b"secret"), (b"alice", text)):
            await check_refused(UserFileChecker(str(file)), *login)
        assert verified == []

    @ensureDeferred
    async def test_unknown_user_costs_the_same_each_time(
        self, tmp_path: Path, verified: Sequence[tuple[str, str, int]]
    ) -> None:
        costly = "alice:$2y$05$" + user_line("alice", "secret").partition("$04$")[2]
        (tmp_path / "users").write_text(costly + user_line("bob", "secret"))
        checker = UserFileChecker(str(tmp_path / "users"))
        for name in (f"unknown{n}" for n in range(20)):
            for _ in range(2):
                await check_refused(checker, name)
        used = [stored for stored, _, _ in verified]
        assert used[::2] == used[1::2]
        assert len(set(used)) == 2  # some names that of either account

    @ensureDeferred
    async def test_hashes_are_verified_in_other_threads(
        self, file: Path, verified: Sequence[tuple[str, str, int]]
    ) -> None:
        checker = UserFileChecker(str(file))
        await gatherResults([check(checker) for _ in range(5)])
        assert len(verified) == 5
        assert threading.get_ident() not in {thread for _, _, thread in verified}

    @ensureDeferred
    async def test_password_of_the_credentials_is_not_asked_for(self, file: Path) -> None:
        """`checkPassword` compares with plain text, which the file does not have."""

        @implementer(IUsernamePassword)
        class Credentials:
            username, password = b"alice", b"secret"

            def checkPassword(self, password: bytes) -> bool:
                raise AssertionError(password)

        assert await UserFileChecker(str(file)).requestAvatarId(Credentials()) == b"alice"


class FileTests:
    @ensureDeferred
    async def test_changed_file_is_loaded_after_the_interval(self, file: Path) -> None:
        clock = Clock()
        checker = UserFileChecker(str(file), now=clock.seconds)
        file.write_text(user_line("alice", "other"))
        clock.advance(WATCH_INTERVAL_S - 0.001)
        assert await check(checker) == b"alice"
        clock.advance(0.001)
        await check_refused(checker)
        assert await check(checker, password=b"other") == b"alice"
        file.write_text("alice\n")  # invalid: the last good one is kept
        for _ in range(3):
            clock.advance(WATCH_INTERVAL_S)
            assert await check(checker, password=b"other") == b"alice"

    @ensureDeferred
    async def test_relative_path_is_of_the_folder_at_the_start(
        self, file: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = Clock()
        monkeypatch.chdir(file.parent)
        checker = UserFileChecker("users", now=clock.seconds)
        monkeypatch.chdir(tmp_path_factory.mktemp("another"))
        file.write_text(user_line("alice", "other"))
        clock.advance(WATCH_INTERVAL_S)
        assert await check(checker, password=b"other") == b"alice"

    @ensureDeferred
    async def test_empty_file_has_no_users(self, tmp_path: Path) -> None:
        (tmp_path / "users").write_text("# none yet\n")
        await check_refused(UserFileChecker(str(tmp_path / "users")))

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (None, "users: does not exist"),
            (b"# users\nalice:plain\n", "users: line 2: the hash is plain text"),
            (b"alice\n", "users: line 1: has no colon"),
            (b"\x85:x\n", "users: line 1: the name has a control character"),
        ],
    )
    def test_file_that_cannot_be_used_is_an_error(self, tmp_path: Path, content: bytes | None, words: str) -> None:
        path = tmp_path / "users"
        if content is not None:
            path.write_bytes(content)
        for make, error in (
            (UserFileChecker, ValueError),
            (user_file_checker.generateChecker, InvalidAuthArgumentString),
        ):
            with pytest.raises(error) as caught:
                make(str(path))
            assert str(caught.value).startswith(f"{tmp_path}/{words}")

    @each("path", ["/", "/dev/null", "a\0b"])
    def test_what_is_no_file_is_an_error(self, path: str) -> None:
        with pytest.raises(ValueError, match=r"is not a regular file|cannot be read: "):
            UserFileChecker(path)


class PluginTests:
    def test_provides_twisted_interfaces(self, file: Path) -> None:
        assert verifyObject(ICheckerFactory, user_file_checker)
        assert IPlugin.providedBy(user_file_checker)
        checker = user_file_checker.generateChecker(str(file))
        assert user_file_checker.credentialInterfaces == checker.credentialInterfaces == (IUsernamePassword,)

    def test_missing_path_is_an_error(self) -> None:
        with pytest.raises(InvalidAuthArgumentString, match="expected the path of a user file"):
            user_file_checker.generateChecker("")

    def test_import_loads_nothing_of_postd(self) -> None:
        code = """
import sys, twisted.plugins.postd_plugin
print([name for name in sys.modules if name.startswith(("postd", "twisted.internet.reactor"))])
"""
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert result.stdout == b"[]\n"
