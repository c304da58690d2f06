"""The commands of docs/tokens.md, with their output, as they stand there but for the addresses."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.test_protect_page import ENVIRONMENT, ROOT, block, sections
from tests.redis_server import free_port

pytestmark = pytest.mark.slow  # each test starts programs

DISCOVERY, BOUND, MCP = "From a 401 to a token", "Tokens bound to a key", "An MCP server"


class Page:
    """The page with addresses of this test, in a folder that has `etc/try_issuer.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, issuer_port = free_port(), free_port()
        self.issuer = f"http://127.0.0.1:{issuer_port}"
        issuer = (ROOT / "etc" / "try_issuer.py").read_text()
        (folder / "etc").mkdir()
        (folder / "etc" / "try_issuer.py").write_text(
            self._replace(issuer).replace('("127.0.0.1", 9000)', f'("127.0.0.1", {issuer_port})')
        )

    def block(self, heading: str, language: str) -> str:
        return self._replace(block(sections("tokens.md")[heading], language))

    def _replace(self, text: str) -> str:
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}").replace("tcp:8080:", f"tcp:{self.port}:")
        return text.replace("http://127.0.0.1:9000", self.issuer)

    def commands(self, heading: str) -> list[str]:
        """Return the commands of the first block for a shell, without those that run until they are stopped."""
        return [
            line for line in self.block(heading, "sh").splitlines() if "hello.py" not in line and "twistd" not in line
        ]

    def check_console(self, heading: str) -> None:
        """Run the commands of a section; each prints what the page shows."""
        steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", self.block(heading, "console"), re.MULTILINE)
        assert steps
        for command, shown in steps:
            assert self.run(command).replace("\r", "").rstrip("\n") == shown.rstrip("\n"), command

    def run(self, command: str) -> str:
        run = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return run.stdout + run.stderr

    @contextmanager
    def running(self, command: str, *, until: Path) -> Iterator[None]:
        """Run a command of the page that ends in `&`, until the end of the block; a file is there when it is ready."""
        until.unlink(missing_ok=True)
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.removesuffix('&')}"], cwd=self.folder, env=ENVIRONMENT
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not until.exists() or not until.read_text():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@contextmanager
def program(page: Page) -> Iterator[None]:
    """Run the MCP server of the page."""
    (page.folder / "hello.py").write_text(page.block(MCP, "python"))
    log = page.folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "hello.py"], cwd=page.folder, env=ENVIRONMENT, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not answers(page.port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
    assert "Traceback" not in log.read_text()


def answers(port: int) -> bool:
    try:
        return httpx.post(f"http://127.0.0.1:{port}/mcp").status_code == 401
    except httpx.TransportError:
        return False


def test_commands_for_posts_print_what_the_page_shows(tmp_path: Path) -> None:
    page = Page(tmp_path)
    (tmp_path / "postd.toml").write_text(page.block(DISCOVERY, "toml"))
    (tmp_path / "prove").write_text(page.block(BOUND, "bash"))
    (issuer,) = page.commands(DISCOVERY)
    listen = f"tcp:{page.port}:interface=127.0.0.1"
    with ExitStack() as stack:
        with page.running(issuer, until=tmp_path / "token"):
            daemon = stack.enter_context(Daemon(tmp_path, "-c", "postd.toml", listen=listen))
            page.check_console(DISCOVERY)
        make_key, issuer = page.commands(BOUND)
        page.run(make_key)
        with page.running(issuer, until=tmp_path / "bound"):
            page.check_console(BOUND)
    assert "Traceback" not in daemon.log


def test_commands_for_mcp_print_what_the_page_shows(tmp_path: Path) -> None:
    page = Page(tmp_path)
    (issuer,) = page.commands(MCP)
    with page.running(issuer, until=tmp_path / "token"), program(page):
        page.check_console(MCP)
