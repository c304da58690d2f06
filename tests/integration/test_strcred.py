"""`--auth postd:PATH` in a program of Twisted: its FTP server, as a process."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ftplib import FTP, error_perm
from pathlib import Path

import pytest

from tests.helpers import PATIENCE_S
from tests.web.wire import user_line

pytestmark = pytest.mark.slow  # each test starts programs

TWIST = str(Path(sys.executable).parent / "twist")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text(user_line("alice", "secret") + user_line("bob", "p:w"))
    return file


def twist(folder: Path, *options: str) -> tuple[int, str]:
    """Run `twist ftp`; return its exit status and what it has printed."""
    result = subprocess.run([TWIST, "ftp", *options], cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False)
    return result.returncode, (result.stdout + result.stderr).decode()


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """Run the FTP server with the user file `users`; give its port."""
    command = [TWIST, "ftp", "--port", "0", "--root", str(folder), "--auth", "postd:users"]
    log = folder / "log"
    with log.open("wb") as opened:
        process = subprocess.Popen(command, cwd=folder, stdout=opened, stderr=opened)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(r"FTPFactory starting on (\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield int(found[1])
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
    assert "Traceback" not in log.read_text()


def log_in(port: int, name: str, password: str) -> str:
    with FTP(timeout=PATIENCE_S) as client:
        client.connect("127.0.0.1", port)
        return client.login(name, password)


def test_program_logs_in_by_the_user_file(tmp_path: Path, file: Path) -> None:
    with serving(tmp_path) as port:
        for name, password in (("alice", "secret"), ("bob", "p:w"), ("alice", "secret")):
            assert log_in(port, name, password).startswith("230 ")
        for name, password in (("alice", "wrong"), ("alice", ""), ("bob", "secret"), ("carol", "secret")):
            with pytest.raises(error_perm, match="530 "):
                log_in(port, name, password)


def test_program_lists_the_checker(tmp_path: Path) -> None:
    status, printed = twist(tmp_path, "--help-auth")
    assert status == 0
    assert re.search(r"^ +postd +\tPath of a postd user file\.$", printed, re.MULTILINE)


def test_program_has_help_on_the_checker(tmp_path: Path) -> None:
    status, printed = twist(tmp_path, "--help-auth-type", "postd")
    assert status == 0
    assert "Failed logins are not limited" in printed
    assert "WARNING" not in printed  # that the program could not use it


def test_file_that_cannot_be_used_ends_the_program(tmp_path: Path, file: Path) -> None:
    file.write_text(file.read_text() + "carol:secret\n")
    status, printed = twist(tmp_path, "--auth", "postd:users")
    assert status != 0
    assert f"{file}: line 3: the hash is plain text" in printed
    assert "Traceback" not in printed
