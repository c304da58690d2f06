"""`postd user`, in this process and in processes with a terminal."""

import hashlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import bcrypt
import pytest
from click.testing import CliRunner, Result

from postd import __version__
from postd.auth.user_file import Account, decode_users
from postd.cli.main import main
from postd.protocol.password import verify_password
from tests.cases import each
from tests.helpers import PATIENCE_S, start_on_terminal
from tests.integration.forking import Piped

POSTD = str(Path(sys.executable).parent / "postd")
BCRYPT = "$2y$" + bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()[4:]
MD5 = hashlib.md5(b"x").hexdigest()
WAIT_MAX_S = PATIENCE_S


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the user file in the current folder; it does not exist yet."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "users"


def postd(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(main, arguments, input=stdin, prog_name="postd")


def refusal(*arguments: str, stdin: str | bytes = "", status: int = 1) -> str:
    """Return the one line of a command that fails, without `postd: `."""
    result = postd(*arguments, stdin=stdin)
    assert result.exit_code == status
    assert result.stdout == ""
    assert result.stderr.startswith("postd: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("postd: ").removesuffix("\n")


def add(name: str, *options: str, stdin: str | bytes = "secret\n") -> Result:
    result = postd("user", "add", name, "--password-stdin", "-u", "users", *options, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result


def accounts(file: Path) -> dict[str, Account]:
    return decode_users(file.read_bytes(), "users")


class AddTests:
    def test_missing_file_is_created(self, users: Path) -> None:
        result = add("alice")
        assert result.stdout == f'alice: added; Digest works in the realm "postd"\n{users}: created with mode 0600\n'
        assert users.stat().st_mode & 0o777 == 0o600
        alice = accounts(users)["alice"]
        assert verify_password(alice.password_hash, "secret")
        assert alice.h_a1_for("postd", "MD5") == hashlib.md5(b"alice:postd:secret").hexdigest()
        assert alice.h_a1_for("postd", "SHA-256") == hashlib.sha256(b"alice:postd:secret").hexdigest()

    def test_other_lines_are_kept(self, users: Path) -> None:
        users.write_text(f"# ours\n\nbob:{BCRYPT}\n")
        users.chmod(0o600)
        assert add("alice").stdout == 'alice: added; Digest works in the realm "postd"\n'
        assert users.read_text().startswith(f"# ours\n\nbob:{BCRYPT}\nalice:$argon2id$")

    def test_narrowed_mode_is_reported(self, users: Path) -> None:
        users.touch()
        users.chmod(0o644)
        assert add("alice").stderr == (f"postd: {users} mode changed from 0644 to 0600: only the owner can read it\n")

    def test_existing_user_is_refused(self, users: Path) -> None:
        add("Amélie")
        before = users.read_bytes()
        assert refusal("user", "add", "Ame\u0301lie", "-u", "users") == (
            "user 'Amélie' exists already; postd user passwd 'Amélie' sets a new password"
        )
        assert users.read_bytes() == before

    @pytest.mark.parametrize(
        "stdin", ["sé cret", "sé cret\n", "sé cret\r\n", "sé cret\nand more\n\udcff", "\ufeffsé cret\r\n"]
    )
    def test_password_is_the_first_line_of_stdin(self, users: Path, stdin: str) -> None:
        add("alice", stdin=stdin.encode(errors="surrogateescape"))
        assert verify_password(accounts(users)["alice"].password_hash, "sé cret")

    @each(
        "stdin, why",
        [
            (b"", "the password is empty"),
            (b"\n", "the password is empty"),
            (b"\xef\xbb\xbf\n", "the password is empty"),
            (b"\r\nsecret", "the password is empty"),
            (b"a\x00b\n", "the password has a control character, which clients cannot send (RFC 7617 §2)"),
            (b"a\rb\n", "the password has a control character, which clients cannot send (RFC 7617 §2)"),
            (b"\xff\n", "the password is not UTF-8 text"),
            (b"x" * 1001, "the password has more than 1,000 characters"),
            ("🔑".encode() * 1001 + b"\n", "the password has more than 1,000 characters"),
            (b"a" + "🔑".encode() * 9999, "the password has more than 1,000 characters"),
        ],
    )
    def test_invalid_password_is_refused(self, users: Path, stdin: bytes, why: str) -> None:
        assert refusal("user", "add", "alice", "--password-stdin", "-u", "users", stdin=stdin) == why
        assert not users.exists()

    def test_longest_password_is_accepted(self, users: Path) -> None:
        add("alice", stdin="\ufeff" + "🔑" * 1000 + "\r\n")
        assert verify_password(accounts(users)["alice"].password_hash, "🔑" * 1000)

    def test_missing_terminal_names_the_option(self, users: Path) -> None:
        line = "there is no terminal to ask for the password; give --password-stdin to read it"
        assert refusal("user", "add", "alice", "-u", "users", stdin="secret\n") == line

    @each(
        "name, why",
        [
            ("", "the name is empty"),
            ("a:b", "the name has a colon, which would end the name (RFC 7617 §2)"),
            ("#a", "the name begins with #, as a comment does"),
            ("a\x1b[31m", "the name has a control character"),
            ("a ", "the name begins or ends with white space"),
            ("a\udcff", "the name is not UTF-8 text"),
        ],
    )
    def test_invalid_name_is_refused(self, users: Path, name: str, why: str) -> None:
        assert refusal("user", "add", name, "-u", "users") == why


class PasswdTests:
    def test_password_is_replaced_in_place(self, users: Path) -> None:
        users.write_text(f"alice:{BCRYPT}\n# kept\n")
        users.chmod(0o600)
        result = postd("user", "passwd", "alice", "--password-stdin", "-u", "users", stdin="new\n")
        assert result.output == 'alice: password set; Digest works in the realm "postd"\n'
        assert verify_password(accounts(users)["alice"].password_hash, "new")
        assert users.read_text().endswith("\n# kept\n")

    def test_entry_keeps_its_identity_until_the_user_is_removed(self, users: Path) -> None:
        add("alice")
        entry = accounts(users)["alice"].entry
        for password in ("new\n", "newer\n"):
            postd("user", "passwd", "alice", "--password-stdin", "-u", "users", stdin=password)
            assert f":id={entry.hex()},MD5=" in users.read_text()
            assert accounts(users)["alice"].entry == entry
        postd("user", "remove", "alice", "-u", "users")
        add("alice")
        assert "id=" not in users.read_text()
        assert accounts(users)["alice"].entry != entry

    def test_unknown_user_is_refused(self, users: Path) -> None:
        assert (
            refusal("user", "passwd", "alice", "-u", "users")
            == f"user 'alice' does not exist; {users} does not exist yet"
        )
        assert not users.exists()
        add("bob")
        assert refusal("user", "passwd", "alice", "-u", "users") == "user 'alice' does not exist"


OFF = "[accounts] change_password: must be true, so that the server accepts the link"


class ResetTests:
    """`tests/integration/test_new_passwords.py` has the link."""

    @each(
        "settings, why",
        [
            (
                'public_url = "https://posts.example"',
                "[accounts] change_password: must be true, so that the server accepts the link",
            ),
            (
                "[accounts]\nchange_password = false",
                "[accounts] change_password: must be true, so that the server accepts the link",
            ),
            ("[accounts]\nchange_password = true", "public_url: must be set: the link begins with it"),
        ],
    )
    def test_missing_setting_is_named(self, users: Path, settings: str, why: str) -> None:
        Path("postd.toml").write_text(settings)
        assert refusal("user", "reset", "alice", "-u", "users", "-c", "postd.toml") == why

    def test_unknown_user_is_refused(self, users: Path) -> None:
        add("bob")
        Path("postd.toml").write_text('public_url = "https://posts.example"\naccounts = {change_password = true}')
        refused = refusal("user", "reset", "alice", "-u", "users", "-c", "postd.toml")
        assert refused == "user 'alice' does not exist"
        assert sorted(one.name for one in users.parent.iterdir()) == ["postd.toml", "users"]

    def test_no_store_is_made(self, users: Path) -> None:
        add("alice")
        Path("postd.toml").write_text('public_url = "https://posts.example"\naccounts = {change_password = true}')
        assert "postd.db" in refusal("user", "reset", "alice", "-u", "users", "-c", "postd.toml")
        assert sorted(one.name for one in users.parent.iterdir()) == ["postd.toml", "users"]


class RemoveTests:
    def test_user_is_removed(self, users: Path) -> None:
        add("alice")
        add("bob")
        assert postd("user", "remove", "alice", "-u", "users").stdout == "alice: removed\n"
        assert list(accounts(users)) == ["bob"]

    def test_unknown_user_is_refused(self, users: Path) -> None:
        assert (
            refusal("user", "remove", "alice", "-u", "users")
            == f"user 'alice' does not exist; {users} does not exist yet"
        )
        assert not users.exists()
        add("bob")
        assert refusal("user", "remove", "alice", "-u", "users") == "user 'alice' does not exist"


class ListTests:
    def test_hash_kinds_and_realms_are_listed(self, users: Path) -> None:
        add("alice")
        with users.open("a") as opened:
            opened.write(
                f"bob smith:{BCRYPT.replace('$04$', '$12$')}\n"
                f"carol:{BCRYPT}:MD5={MD5},realm=postd\n"
                f"dan:{BCRYPT.replace('$04$', '$10$')}:MD5={MD5},realm=old\n"
            )
        result = postd("user", "list", "-u", "users")
        assert result.exit_code == 0
        assert result.output == (
            '4 users, realm "postd"\n'
            'alice      argon2id                                             Digest in the realm "postd"\n'
            "bob smith  bcrypt cost 12                                       "
            "no Digest (postd user passwd 'bob smith')\n"
            "carol      bcrypt cost 4, weak: cost 10 or more is recommended  "
            'Digest in the realm "postd", not with SHA-256 (postd user passwd carol)\n'
            "dan        bcrypt cost 10                                       "
            'Digest in the realm "old" only (postd user passwd dan)\n'
        )

    def test_missing_file_has_no_users(self, users: Path) -> None:
        result = postd("user", "list", "-u", "users")
        assert (result.exit_code, result.output) == (0, f'0 users, realm "postd"; {users} does not exist yet\n')

    def test_control_characters_of_names_are_escaped(self, users: Path) -> None:
        users.write_text(f"\u202eal\u2028ice:{BCRYPT}\n")
        assert "\\u202eal\\u2028ice  bcrypt" in postd("user", "list", "-u", "users").output
        assert postd("user", "list", "-u", "no\x1b[31m").output.endswith(
            f"; {users.parent}/no\\x1b[31m does not exist yet\n"
        )

    def test_broken_file_is_refused(self, users: Path) -> None:
        users.write_text(f"alice:{BCRYPT}\nbob:hunter2\n")
        for command in (["list"], ["add", "carol", "--password-stdin"], ["remove", "alice"], ["passwd", "alice"]):
            line = refusal("user", *command, "-u", "users", stdin="secret\n")
            assert line.startswith(f"{users}: line 2: the hash is plain text or of an unknown kind; supported ")
            assert "hunter2" not in line


class SettingsTests:
    def test_users_and_realm_come_from_the_settings_file(self, users: Path) -> None:
        (users.parent / "etc").mkdir()
        (users.parent / "etc" / "postd.toml").write_text('users = "people"\nrealm = "The posts"\n')
        result = postd("user", "add", "alice", "--password-stdin", "-c", "etc/postd.toml", stdin="secret\n")
        assert result.stdout.startswith('alice: added; Digest works in the realm "The posts"\n')
        assert accounts(users.parent / "etc" / "people")["alice"].digest_realm == "The posts"

    def test_option_wins_over_the_file(self, users: Path) -> None:
        (users.parent / "postd.toml").write_text('users = "people"\nrealm = "The posts"\n')
        add("alice", "--config", "postd.toml")
        assert accounts(users)["alice"].digest_realm == "The posts"

    @pytest.mark.parametrize("options", [[], ["-u", ""]])
    def test_missing_users_setting_is_reported(self, users: Path, options: list[str]) -> None:
        assert refusal("user", "list", *options) == (
            "no user file: give --users FILE, or --config FILE with a file that has the setting users"
        )

    def test_invalid_settings_are_reported(self, users: Path) -> None:
        assert refusal("user", "list", "-c", "no.toml") == "no.toml: cannot be read: No such file or directory"
        (users.parent / "postd.toml").write_text("users = 1\n")
        assert refusal("user", "list", "-c", "postd.toml").startswith(
            "postd.toml: users: expected a string, got a whole number"
        )


class MainTests:
    def test_version_is_printed(self) -> None:
        assert postd("--version").output == f"postd {__version__}\n"

    @each("command", [[], ["user"], ["user", "add"], ["user", "list"]])
    def test_help_is_printed(self, command: list[str]) -> None:
        result = postd(*command, "--help")
        assert result.exit_code == 0
        assert result.stdout.startswith(f"Usage: {' '.join(['postd', *command])} [OPTIONS]")

    @each("command", [[], ["user"], ["session"]])
    def test_descriptions_of_commands_are_not_cut_off(self, command: list[str]) -> None:
        assert "..." not in postd(*command, "--help").stdout.partition("Commands:")[2]

    @each(
        "arguments, line",
        [
            ([], "Missing command. (postd --help shows the usage)"),
            (["user"], "Missing command. (postd user --help shows the usage)"),
            (["user", "add"], "Missing argument 'NAME'. (postd user add --help shows the usage)"),
            (["user", "list", "x"], "Got unexpected extra argument (x) (postd user list --help shows the usage)"),
        ],
    )
    def test_wrong_usage_is_one_line(self, arguments: list[str], line: str) -> None:
        assert refusal(*arguments, status=2) == line

    @each("arguments", [["no\x1bne"], ["user", "list", "--no\nne"], ["--users"]])
    def test_missing_file_is_reported(self, arguments: list[str]) -> None:
        assert refusal(*arguments, status=2).startswith("No such ")


class Terminal:
    """`postd` with a terminal of its own."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self.process, self._ours = start_on_terminal([POSTD, *arguments], folder)
        self.shown = ""

    def read_until(self, words: str) -> None:
        while words not in self.shown:
            assert self._read(), self.shown

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(WAIT_MAX_S)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], WAIT_MAX_S)[0]:
            raise AssertionError(f"it neither ends nor goes on: {self.shown}")
        try:
            shown = os.read(self._ours, 4096).decode()
        except OSError:  # EIO: the other end of the terminal is closed
            return False
        self.shown += shown.replace("\r\n", "\n")
        return bool(shown)


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    opened = Terminal(folder, arguments)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()


class TerminalTests:
    def test_password_is_asked_twice_without_echo(self, users: Path) -> None:
        with terminal(users.parent, "user", "add", "alice", "-u", "users") as screen:
            screen.read_until("Password for alice: ")
            screen.type("sécret\n")
            screen.read_until("Repeat the password: ")
            screen.type("sécret\n")
            assert screen.end() == 0
        assert screen.shown.startswith(
            'Password for alice: \nRepeat the password: \nalice: added; Digest works in the realm "postd"\n'
        )
        assert verify_password(accounts(users)["alice"].password_hash, "sécret")

    @pytest.mark.parametrize("again", ["other", ""])
    def test_different_passwords_change_nothing(self, users: Path, again: str) -> None:
        with terminal(users.parent, "user", "add", "alice", "-u", "users") as screen:
            screen.read_until("Password for alice: ")
            screen.type("secret\n")
            screen.read_until("Repeat the password: ")
            screen.type(f"{again}\n")
            assert screen.end() == 1
        assert screen.shown.endswith("\npostd: the two passwords are not the same; nothing was changed\n")
        assert not users.exists()

    @pytest.mark.parametrize(("typed", "why"), [("\n", "is empty"), ("a\tb\n", "has a control character")])
    def test_invalid_password_is_not_asked_again(self, users: Path, typed: str, why: str) -> None:
        with terminal(users.parent, "user", "add", "alice", "-u", "users") as screen:
            screen.read_until("Password for alice: ")
            screen.type(typed)
            assert screen.end() == 1
        assert f"\npostd: the password {why}" in screen.shown

    @pytest.mark.parametrize("key", ["\x03", "\x04"])
    def test_ctrl_c_and_ctrl_d_interrupt(self, users: Path, key: str) -> None:
        with terminal(users.parent, "user", "add", "alice", "-u", "users") as screen:
            screen.read_until("Password for alice: ")
            time.sleep(0.05)  # until the terminal hides what is typed
            screen.type(key)
            assert screen.end() == 130
        assert screen.shown.endswith("\npostd: interrupted\n")
        assert "Traceback" not in screen.shown

    def test_existing_user_is_refused_before_the_prompt(self, users: Path) -> None:
        with terminal(users.parent, "user", "passwd", "alice", "-u", "users") as screen:
            assert screen.end() == 1
        assert screen.shown == f"postd: user 'alice' does not exist; {users} does not exist yet\n"


class ProcessTests:
    @pytest.mark.slow
    def test_concurrent_edits_lose_no_user(self, users: Path) -> None:
        names = [f"user{number}" for number in range(8)]
        with ExitStack() as closing:
            running = [closing.enter_context(_start("user", "add", name, "--password-stdin")) for name in names]
            for one in running:
                one.write(b"secret\n")
            ended = [one.end() for one in running]
        assert [status for status, _, _ in ended] == [0] * 8, ended
        assert sorted(accounts(users)) == names
        assert [path.name for path in users.parent.iterdir()] == ["users"]

    def test_one_of_two_equal_additions_is_refused(self, users: Path) -> None:
        with _start("user", "add", "alice", "--password-stdin") as slow:
            slow.write(b"sec")
            add("alice", stdin="first\n")
            status, _, said = slow.end(b"ond\n")
        # Which of its two looks found her depends on how fast it was.
        assert status == 1
        assert said.startswith(b"postd: user 'alice' exists already")
        assert verify_password(accounts(users)["alice"].password_hash, "first")

    def test_closed_pipe_is_no_error(self, users: Path) -> None:
        users.write_text("".join(f"user{number}:{BCRYPT}\n" for number in range(5000)))
        with _start("user", "list") as listing:
            listing.stdout.close()
            assert listing.stderr.read() == b""
            assert listing.process.wait(WAIT_MAX_S) == 1

    def test_full_disk_is_one_line(self, users: Path) -> None:
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run([POSTD, "--version"], stdout=full, stderr=subprocess.PIPE, check=False)
        assert (done.returncode, done.stderr) == (1, b"postd: [Errno 28] No space left on device\n")

    def test_unencodable_names_are_escaped(self, users: Path) -> None:
        users.write_text(f"李:{BCRYPT}\n")
        environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
        done = subprocess.run([POSTD, "user", "list", "-u", "users"], capture_output=True, check=True, env=environment)
        assert b"\\u674e  bcrypt" in done.stdout

    def test_deleted_current_folder_is_reported(self, users: Path) -> None:
        gone = users.parent / "gone"
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
        assert refusal("user", "list", "-u", "users") == "[Errno 2] No such file or directory"


def _start(*arguments: str) -> Piped:
    return Piped([POSTD, *arguments, "-u", "users"], Path.cwd())
