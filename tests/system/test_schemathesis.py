"""The daemon tested by schemathesis, which generates requests from /openapi.json and checks the responses."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import httpx
import pytest

from tests.integration.daemon import Daemon

SCHEMATHESIS = str(Path(sys.executable).parent / "schemathesis")
CONFIG = Path(__file__).with_name("schemathesis.toml")
RUN_MAX_S = 240
PASSWORD = "pässword"
SETTINGS = {
    "open to everybody": "",
    "with all that settings add": """
        users = "users"
        [api]
        read = ["basic", "session"]
        write = ["basic", "digest", "session", "bearer"]
        [accounts]
        tokens = true
        [[bearer]]
        issuer = "http://127.0.0.1:9"
        jwks_uri = "http://127.0.0.1:9/keys"
        audience = "https://posts.example"
        """,
}
# One address guesses all the passwords.
NO_THROTTLE = """
    [throttle]
    failures = 1000000
    address_failures = 1000000
    account_failures = 1000000
    """


CONFORMANCE = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance"
)


@contextmanager
def run_daemon(folder: Path, settings: str) -> Iterator[Daemon]:
    (folder / "postd.toml").write_text(SETTINGS[settings] + NO_THROTTLE)
    (folder / "users").write_text(f"alice:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    with Daemon(folder, "--config", "postd.toml", "--store", "memory:") as daemon:
        yield daemon
        # Nor has it failed without having said so.
        assert "Traceback" not in daemon.log
        assert "unexpected error" not in daemon.log


def check(daemon: Daemon, *options: str) -> None:
    run = subprocess.run(
        [SCHEMATHESIS, "--config-file", str(CONFIG), "run", f"{daemon.url}/openapi.json", *options],
        cwd=daemon.folder,
        capture_output=True,
        text=True,
        timeout=RUN_MAX_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for phase in ("Examples", "Coverage", "Fuzzing"):
        assert f"✅ {phase}" in run.stdout, run.stdout


@pytest.mark.parametrize("settings", SETTINGS)
def test_server_conforms_to_its_openapi_document(tmp_path: Path, settings: str) -> None:
    with run_daemon(tmp_path, settings) as daemon:
        check(daemon, "--auth", f"alice:{PASSWORD}")


def test_pages_behind_a_session_conform_to_the_document(tmp_path: Path) -> None:
    """Responses only: the cookie is always sent, and pages report errors in plain text."""
    with run_daemon(tmp_path, "with all that settings add") as daemon:
        signed_in = httpx.post(f"{daemon.url}/login", data={"username": "alice", "password": PASSWORD})
        cookie = signed_in.headers["Set-Cookie"].partition(";")[0]
        options = ["--header", f"Cookie: {cookie}", "--include-path-regex", "^/(home|account.*|board.*)$"]
        check(daemon, *options, "--checks", CONFORMANCE)
        # The session has held, so that it was the pages that answered.
        assert "Success: alice" in httpx.get(f"{daemon.url}/home", headers={"Cookie": cookie}).text
        for line in (
            '"GET /board HTTP/1.1" 200',
            '"POST /board HTTP/1.1" 303',
            '"POST /account/sessions/end HTTP/1.1" 303',
            '"POST /account/tokens HTTP/1.1" 200',
        ):
            daemon.wait_for(line)
