"""The commands of README, the tutorial and the how-to pages, run in order as a reader would.

All in this file, which one process of pytest-xdist runs: the pages name ports, such as 8080.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.helpers import PATIENCE_S
from tests.issuer import Key
from tests.pages import ROOT, Reader, read_blocks
from tests.system.provider import REDIRECT_URI, Provider

PAGES = [
    *(str(page.relative_to(ROOT)) for page in (ROOT / "docs/tutorial.md", *sorted(ROOT.glob("docs/how-to/*.md")))),
    "docs/how-to/providers/glewlwyd.md",
]

ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}
"""As in a virtual environment with postd that is activated."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the sources alone."""
    folder = tmp_path / "postd"
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


def test_readme(clone: Path) -> None:
    """The first block installs postd and serves; the second one runs the tests."""
    first, _, *others = read_blocks("README.md")
    # pip does not compile what is never imported.
    with Reader(clone, os.environ | {"PIP_COMPILE": "0"}) as reader:
        reader.follow([first._replace(words=("serve", "8080")), *others])
    assert (clone / "postd.db").exists()


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to(ROOT / "etc")
    with Reader(tmp_path, ENVIRONMENT) as reader:
        reader.follow(read_blocks(page))


def test_mcp_client_that_knows_the_url_signs_in_and_calls_a_tool(tmp_path: Path) -> None:
    """PyPI's mcp finds the issuer of the MCP server of the page by itself."""
    url = "http://127.0.0.1:8080/mcp"
    program = [block for block in read_blocks("docs/how-to/tokens.md") if block.heading == "Protect an MCP server"]
    with (
        Provider(Key.make("RS256"), scopes=["openid", "mcp"], resources={url: "jwt"}) as provider,
        Reader(tmp_path, ENVIRONMENT) as reader,
    ):
        reader.follow(
            block._replace(text=block.text.replace("http://127.0.0.1:9000", provider.issuer))
            for block in program
            if block.file or block.port == 8080
        )
        registration = {
            "client_id": "app-RS256",
            "redirect_uris": [REDIRECT_URI],
            "token_endpoint_auth_method": "none",
            "issuer": provider.issuer,
        }
        with subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("mcp_client.py")), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdin
            assert client.stdout
            print(json.dumps(registration), file=client.stdin, flush=True)
            asked = dict(parse_qsl(urlsplit(client.stdout.readline().strip()).query))
            assert (asked["scope"], asked["resource"]) == ("mcp", url)
            said, _ = client.communicate(json.dumps(provider.sign_in("alice", asked)), timeout=PATIENCE_S)
    assert (client.returncode, said) == (0, "whoami: alice\n")
