"""The commands and programs in the README, run in order."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from postd.settings.loading import load_settings

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_first_two_blocks_are_one_line_each() -> None:
    for language, block in BLOCKS[:2]:
        assert language == "sh"
        assert block.count("\n") == 1


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources alone."""
    folder = tmp_path_factory.mktemp("clone") / "postd"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in files.decode().split("\0")[:-1]:
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@contextmanager
def running(command: str, folder: Path, url: str = "http://127.0.0.1:8080/post", status: int = 200) -> Iterator[None]:
    """Run a server until the end of the block, once it answers at an address with a status."""
    with subprocess.Popen(["bash", "-c", command], cwd=folder, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 300
            while not answers(url, status):
                assert process.poll() is None, "it ended"
                assert time.monotonic() < deadline, "no response"
                time.sleep(0.2)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def answers(url: str = "http://127.0.0.1:8080/post", status: int = 200) -> bool:
    try:
        return httpx.get(url).status_code == status
    except httpx.TransportError:
        return False


def check_steps(heading: str, folder: Path, *, least: int = 10) -> None:
    """Run the commands below a heading; check the output of each."""
    text = re.split(r"^## ", README, flags=re.MULTILINE)
    (section,) = [part for part in text if part.startswith(heading)]
    steps = [
        step
        for block in re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        for step in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    assert len(steps) > least
    for command, shown in steps:
        run = subprocess.run(
            ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=30, check=False
        )
        assert run.stdout.replace("\r", "") == shown, (command, run.stderr)


def test_commands_of_the_first_block_and_the_tour(clone: Path) -> None:
    with running(BLOCKS[0][1], clone):
        check_steps("A tour with curl", clone)
    assert (clone / "postd.db").exists()


def test_commands_of_authentication(clone: Path) -> None:
    """After the first block, which installs postd."""
    (commands,) = [block for _, block in BLOCKS if "postd user add" in block]
    add, serve = commands.splitlines()
    run = subprocess.run(
        ["bash", "-c", f"{add} --password-stdin"],
        cwd=clone,
        input="correct horse\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.startswith('alice: added; Digest works in the realm "postd"\n'), run.stderr
    (program,) = [block for language, block in BLOCKS if language == "python" and "import treq" in block]
    (protected,) = [block for language, block in BLOCKS if language == "python" and "postd.protect" in block]
    (clone / "hello.py").write_text(protected)
    with running("exec .venv/bin/python hello.py", clone, "http://127.0.0.1:8000/", 401):
        check_steps("Other applications", clone, least=0)
    with running(serve, clone):
        check_steps("Who may come in", clone)
        check_steps("Clients", clone, least=4)
        check_clients(clone)
        printed = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
        )
        assert printed.stdout == "Success: alice\n" * 2


def check_clients(clone: Path) -> None:
    """Run the programs that use the client, in the virtual environment of the first block."""
    said = [
        subprocess.run(
            [str(clone / ".venv/bin/python"), "-c", program], capture_output=True, text=True, timeout=60, check=True
        ).stdout.splitlines()
        for language, program in BLOCKS
        if language == "python" and "from postd.client import" in program
    ]
    posts, digest = said
    assert (posts[0], posts[-1], len(posts)) == ("412", "changed", 3)
    assert digest == ["Success: alice"]


def test_commands_of_access_tokens(clone: Path) -> None:
    """After the first block; the issuer starts before the server."""
    (issuer,) = [block for _, block in BLOCKS if block.startswith(".venv/bin/python etc/")]
    (serve,) = [block for _, block in BLOCKS if block.startswith("cat > tokens.toml")]
    with subprocess.Popen(["bash", "-c", f"exec {issuer}"], cwd=clone, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 30
            while not (clone / "token").exists():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            with running(serve, clone):
                check_steps("Access tokens", clone, least=5)
        finally:
            process.terminate()


def test_commands_of_moving_posts(clone: Path) -> None:
    """After the first block, which installs postd."""
    check_steps("The store", clone, least=4)


def test_commands_of_more_than_one_process(clone: Path) -> None:
    """After the first block, which installs postd."""
    (redis,) = [block for language, block in BLOCKS if language == "sh" and "redis-server" in block]
    first, second = [block for language, block in BLOCKS if language == "sh" and "-s redis://" in block]
    subprocess.run(["bash", "-c", redis], cwd=clone, check=True, timeout=30)
    try:
        with running(first, clone), running(second, clone, "http://127.0.0.1:8081/post"):
            check_steps("More than one process", clone, least=9)
    finally:
        subprocess.run(["redis-cli", "-p", "6380", "shutdown"], capture_output=True, timeout=30, check=False)


def test_settings_in_the_text_are_valid(tmp_path: Path) -> None:
    board, rules, log = [block for language, block in BLOCKS if language == "toml"]
    (tmp_path / "board.toml").write_text(board)
    assert load_settings("board.toml", {}, tmp_path).settings.api.read == ("session",)
    (tmp_path / "postd.toml").write_text(rules + log)
    settings = load_settings("postd.toml", {}, tmp_path).settings
    assert settings.api.write == ("basic", "digest", "session", "bearer")
    assert settings.log.file == "/var/log/postd/postd.log"


def test_links_lead_to_files_and_headings() -> None:
    for target in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
