"""Clients that generators make from the OpenAPI document, against the server."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.web.clients import PASSWORD, account

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
INSTALLED = Path(os.environ.get("POSTD_TEST_CLIENTS", ROOT / ".venv/clients"))
"""The generators that npm has."""

SETTINGS = 'store = "memory:"\nusers = "users"\n[api]\nwrite = ["basic", "digest", "session"]\n'
COMPILER_OPTIONS = (
    *("--strict", "--skipLibCheck", "--lib", "es2022,dom,dom.iterable", "--esModuleInterop"),
    *("--target", "es2022", "--module", "commonjs", "--moduleResolution", "node10", "--outDir", "made"),
)
OUTCOMES = ["Success a Post!\n", "/post", ["one"], "one", "Update a Post!\n", 412, "Delete a Post!\n", 404]
"""Of adding, adding an empty text, listing, reading, replacing, replacing it again, deleting, and reading again."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "postd.toml").write_text(SETTINGS)
    (tmp_path / "users").write_text(account("alice"))
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        (tmp_path / "openapi.json").write_bytes(httpx.get(f"{daemon.url}/openapi.json").content)
        yield daemon


def run(folder: Path, *command: str | Path) -> str:
    """Run a program; return what it prints."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_python_client(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "settings.yml").write_text("post_hooks: []\n")  # by default it runs ruff
    generator = Path(sys.executable).with_name("openapi-python-client")
    options = ("--path=openapi.json", "--output-path=generated", "--meta=none", "--config=settings.yml")
    document = json.loads((tmp_path / "openapi.json").read_text())
    del document["paths"]["/feed.atom"]  # it warns of each response that is neither JSON nor text
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    run(tmp_path, generator, "generate", *options, "--fail-on-warning")
    shutil.copy(HERE / "generated_client.py", tmp_path)
    output = run(tmp_path, sys.executable, "generated_client.py", daemon.url, "alice", PASSWORD)
    assert json.loads(output) == OUTCOMES


def test_typescript_clients(daemon: Daemon, tmp_path: Path) -> None:
    packages = "openapi-typescript openapi-fetch @hey-api/openapi-ts typescript"
    assert INSTALLED.is_dir(), f"npm install --prefix {ROOT}/.venv/clients {packages} (wanted: {INSTALLED})"
    (tmp_path / "node_modules").symlink_to(INSTALLED / "node_modules")
    programs = tmp_path / "node_modules" / ".bin"
    run(tmp_path, programs / "openapi-typescript", "openapi.json", "-o", "schema.d.ts")
    run(tmp_path, programs / "openapi-ts", "-i", "openapi.json", "-o", "hey-api", "--no-log-file")
    shutil.copy(HERE / "generated_clients.ts", tmp_path)
    run(tmp_path, programs / "tsc", *COMPILER_OPTIONS, "generated_clients.ts")
    output = run(tmp_path, "node", "made/generated_clients.js", daemon.url, "alice", PASSWORD)
    assert json.loads(output) == [OUTCOMES, OUTCOMES]
