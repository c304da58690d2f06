"""`postd serve` beside `twistd -n --pidfile= postd`, on a terminal and without one."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers import PATIENCE_S, start_on_terminal
from tests.integration.daemon import FREE_PORT, TWISTD
from tests.integration.forking import run

POSTD = str(Path(sys.executable).with_name("postd"))
SERVE = [POSTD, "serve"]
DAEMON = [TWISTD, "-n", "--pidfile=", "postd"]
BOTH = pytest.mark.parametrize("command", [SERVE, DAEMON], ids=["serve", "twistd"])


class Terminal:
    """A command on a terminal; `shown` is what it has written."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.shown = ""
        self._process, self._terminal = start_on_terminal(command, folder)

    def read_until(self, words: str) -> None:
        """Read until a text was written, or to the end."""
        with suppress(OSError):  # EIO: it has ended
            while words not in self.shown:
                read = os.read(self._terminal, 4096)
                if not read:
                    break
                self.shown += read.decode().replace("\r\n", "\n")

    def press_ctrl_c(self) -> int:
        """Return how it ended, as `subprocess` does."""
        os.write(self._terminal, b"\x03")
        return self.wait()

    def wait(self) -> int:
        """Wait until the command has ended; return how, as `subprocess` does."""
        self.read_until("\0")  # to the end
        os.close(self._terminal)
        return self._process.wait()


@BOTH
def test_start_on_a_terminal_ends_with_the_address_to_open(tmp_path: Path, command: list[str]) -> None:
    terminal = Terminal([*command, "--listen", FREE_PORT], tmp_path)
    terminal.read_until("/board\n")
    address = re.findall(r"^open (http://127\.0\.0\.1:[0-9]+)/board\n\Z", terminal.shown, re.MULTILINE)
    assert address == re.findall(r"postd ready: (\S+)/;", terminal.shown)
    assert terminal.press_ctrl_c() == -signal.SIGINT
    assert terminal.shown.count("open http") == 1
    assert "Traceback" not in terminal.shown
    assert {file.name for file in tmp_path.iterdir()} == {"postd.db"}


@BOTH
def test_start_without_a_terminal_shows_no_address(tmp_path: Path, command: list[str]) -> None:
    process = subprocess.Popen(
        [*command, "--listen", FREE_PORT],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    log = ""
    while "postd ready" not in log:
        log += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (errors, process.returncode) == ("", -signal.SIGINT)
    assert re.search(r"store sqlite:\S+/postd\.db: created, as there was none", log)


def test_daemon_shows_the_address_before_it_leaves_the_terminal(tmp_path: Path) -> None:
    terminal = Terminal([TWISTD, "--pidfile=pid", "--logfile=log", "postd", "--listen", FREE_PORT], tmp_path)
    assert terminal.wait() == 0
    try:
        assert re.fullmatch(r"open http://127\.0\.0\.1:[0-9]+/board\n", terminal.shown)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)


@pytest.mark.parametrize(
    "options",
    [
        ["--bogus"],
        ["--config"],
        ["surplus"],
        ["--config", "missing.toml"],
        ["--workers", "two"],
        ["--listen", "nonsense"],
        ["--store", "mysql:x"],
    ],
)
def test_error_is_the_line_and_the_status_of_twistd(tmp_path: Path, options: list[str]) -> None:
    ended = [run([*command, *options], tmp_path) for command in (SERVE, DAEMON)]
    serve, daemon = [(end.returncode, end.stdout, end.stderr) for end in ended]
    assert (serve[0], serve[1], serve[2].count(b"\n")) == (1, b"", 1)
    assert serve == (*daemon[:2], daemon[2].replace(b"twistd postd --help", b"postd serve --help"))
    assert not [*tmp_path.iterdir()]


def test_help_and_version(tmp_path: Path) -> None:
    ended = [run([*command, option], tmp_path) for option in ("--help", "--version") for command in (SERVE, DAEMON)]
    assert {end.returncode for end in ended} == {0}
    serve_help, daemon_help, serve_version, daemon_version = [end.stdout.decode() for end in ended]
    assert serve_help.startswith("Usage: postd serve [options]\n")
    assert serve_help.partition("\n")[2] == daemon_help.partition("\n")[2]
    assert serve_version == daemon_version
    commands = run([POSTD, "--help"]).stdout.decode()
    assert re.search(r"^  serve +\S", commands, re.MULTILINE)


def test_store_is_beside_the_settings_file(tmp_path: Path) -> None:
    """For the server and for the commands."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "postd.toml").write_text(f'listen = ["{FREE_PORT}"]\n')
    terminal = Terminal([*SERVE, "-c", "etc/postd.toml"], tmp_path)
    terminal.read_until("/board\n")
    terminal.press_ctrl_c()
    exported = run([POSTD, "export", "-c", "etc/postd.toml"], tmp_path)
    assert (exported.returncode, exported.stdout) == (0, b"")
    assert {file.name for file in (tmp_path / "etc").iterdir()} == {"postd.toml", "postd.db"}
    assert {file.name for file in tmp_path.iterdir()} == {"etc"}


@pytest.mark.parametrize("command", [["session", "list"], ["session", "revoke", "--all"], ["check"], ["export"]])
def test_command_makes_no_store(tmp_path: Path, command: list[str]) -> None:
    run([POSTD, *command], tmp_path)
    assert not [*tmp_path.iterdir()]
