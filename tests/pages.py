"""Markdown pages as scripts: their code blocks, run in order.

The first word after a fence is the language. The words after it, which readers of the rendered page do not see, say
what the tests do with the block:

| fence | what is done |
|---|---|
| `sh` | The commands are run; they succeed. |
| `sh serve PORT` | The command is run in the background until the page ends, or another block serves on the port. |
| `console` | Each command after `$ ` is run; it prints the lines that follow. `…` stands for any text within a line. |
| `LANGUAGE FILE` | The block is written to the file. |
| `LANGUAGE skip REASON` | Nothing. `tests/test_pages.py` counts these blocks. |
| other languages alone | Nothing is run; `tests/test_pages.py` checks `toml` and `python`. |

The block after `sh serve` is run once the server answers. `postd user add` and `passwd` ask for a password on the
terminal; here they read it from standard input.
"""

import http.client
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple, Self

from tests.helpers import PATIENCE_S

ROOT = Path(__file__).parent.parent
PASSWORD = "correct horse"
SERVER_PATIENCE_S = 300
"""How long a server may take to start. README's first command installs postd before."""

_PART = re.compile(r"^#+ (.+)$|^( *)```([\w{}]+) *(.*)\n((?s:.*?))^\2```$", re.MULTILINE)
"""A heading, or a code block."""
_STEP = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_ASKS_FOR_PASSWORD = re.compile(r"^(\S*postd user (?:add|passwd) .*)$", re.MULTILINE)


class Block(NamedTuple):
    """A code block of a page.

    Args:
        page: its path from the top of the repository.
        line: the number of the line with the fence.
        heading: the nearest one above.
        language: the first word after the fence.
        words: the words after the language.
        text: the contents, without the indentation of the fence.
    """

    page: str
    line: int
    heading: str
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def skipped(self) -> bool:
        return self.words[:1] == ("skip",)

    @property
    def port(self) -> int:
        """The port on which the block serves; 0 if it does not."""
        return int(self.words[1]) if self.words[:1] == ("serve",) else 0

    @property
    def file(self) -> str:
        """The name of the file that the block shows; "" if it shows none."""
        return "" if self.skipped or self.port or not self.words else self.words[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: str) -> list[Block]:
    """Return the code blocks of a page, which is a path from the top of the repository."""
    text = (ROOT / page).read_text("utf-8")
    blocks, above = [], ""
    for part in _PART.finditer(text):
        heading, indentation, language, words, inside = part.groups()
        if heading:
            above = heading
        else:
            line = text.count("\n", 0, part.start()) + 1
            contents = re.sub(rf"^{indentation}", "", inside, flags=re.MULTILINE)
            blocks.append(Block(page, line, above, language, tuple(words.split()), contents))
    return blocks


class Reader:
    """Runs the blocks of a page in a folder.

    Args:
        folder: where commands are run and files are written.
        environment: of all commands.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._folder, self._environment = folder, environment
        self._servers: dict[int, ExitStack] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._servers.values()):
            server.close()

    def follow(self, blocks: Iterable[Block]) -> None:
        """Run blocks in order.

        Raises:
            AssertionError: if a command fails, or prints other text than the page shows.
        """
        for block in blocks:
            if block.port:
                self._serve(block)
            elif block.file:
                (self._folder / block.file).write_text(block.text)
            elif block.language == "sh" and not block.skipped:
                result = self._run(f"set -euo pipefail\n{block.text}")
                assert result.returncode == 0, (str(block), result.stdout, result.stderr)
            elif block.language == "console" and not block.skipped:
                self._check_steps(block)

    def _check_steps(self, block: Block) -> None:
        steps = _STEP.findall(block.text)
        assert steps, str(block)
        for command, shown in steps:
            result = self._run(command)
            pattern = re.escape(shown.rstrip("\n")).replace("…", ".*")
            printed = result.stdout.replace("\r", "").rstrip("\n")
            assert re.fullmatch(pattern, printed), (str(block), command, printed, result.stderr)

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        command = _ASKS_FOR_PASSWORD.sub(rf"echo '{PASSWORD}' | \1 --password-stdin", command)
        return subprocess.run(
            ["bash", "-c", command], cwd=self._folder, env=self._environment,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def _serve(self, block: Block) -> None:
        if block.port in self._servers:
            self._servers.pop(block.port).close()
        assert not _is_open(block.port), f"{block}: another program listens on port {block.port}"
        stack = ExitStack()
        log = stack.enter_context((self._folder / f"log-{block.line}").open("w+"))
        process = subprocess.Popen(
            ["bash", "-c", block.text], cwd=self._folder, env=self._environment,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        stack.callback(_end, process, block.port, Path(log.name))
        self._servers[block.port] = stack
        deadline = time.monotonic() + SERVER_PATIENCE_S
        while not _is_ready(block.port):
            assert process.poll() is None, (str(block), Path(log.name).read_text())
            assert time.monotonic() < deadline, (str(block), Path(log.name).read_text())
            time.sleep(0.05)


def _is_open(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def _is_ready(port: int) -> bool:
    """Return whether a server answers: if it speaks HTTP, by another status than the 503 of one that still starts."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with closing(connection):
        try:
            connection.request("GET", "/")
            return connection.getresponse().status != http.HTTPStatus.SERVICE_UNAVAILABLE
        except ConnectionRefusedError:
            return False
        except (ConnectionError, http.client.HTTPException):
            return True  # by another protocol


def _end(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    # The shell of a command with a redirection ends before the server, whose parent it is.
    while process.poll() is None or _is_open(port):
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"{log}: the server did not end")
        time.sleep(0.01)
    assert "Traceback" not in log.read_text(), log.read_text()
