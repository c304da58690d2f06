"""The README, as a newcomer pastes it."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_first_two_blocks_are_one_line_each() -> None:
    for language, block in BLOCKS[:2]:
        assert language == "sh"
        assert block.count("\n") == 1


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the first block does in a folder that has nothing but the sources."""
    folder = tmp_path_factory.mktemp("clone") / "postd"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in files.decode().split("\0")[:-1]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    with subprocess.Popen(["bash", "-c", BLOCKS[0][1]], cwd=folder, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 300
            while not answers():
                assert process.poll() is None, "the first block ended"
                assert time.monotonic() < deadline, "nobody answers"
                time.sleep(0.2)
            yield folder
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def answers() -> bool:
    try:
        return httpx.get("http://127.0.0.1:8080/post").status_code == 200
    except httpx.TransportError:
        return False


def test_the_tour(served: Path) -> None:
    """Each command prints what stands below it."""
    steps = [
        step
        for language, block in BLOCKS
        if language == "console"
        for step in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    assert len(steps) > 10
    for command, shown in steps:
        printed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=True).stdout
        assert printed.replace("\r", "") == shown, command
    assert (served / "postd.db").exists()


def test_the_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
