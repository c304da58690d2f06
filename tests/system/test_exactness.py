"""POST with Debian's HTTP clients, in each framing that they use."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon

TEXT = "Grüße, мир, 世界"
BODY = json.dumps({"post": TEXT})
AS_JSON = "Content-Type: application/json"
NODE = "fetch(process.argv[1], {method: 'POST', headers: {'Content-Type': 'application/json'}, body: process.argv[2]})"

COMMANDS: dict[str, Sequence[str]] = {
    "curl": ["curl", "-sSf", "-H", AS_JSON, "-d", BODY, "URL"],
    "curl --http1.0": ["curl", "-sSf", "--http1.0", "-H", AS_JSON, "-d", BODY, "URL"],
    "curl --http2": ["curl", "-sSf", "--http2", "-H", AS_JSON, "-d", BODY, "URL"],
    "curl that asks first": ["curl", "-sSf", "-H", AS_JSON, "-H", "Expect: 100-continue", "-d", BODY, "URL"],
    "curl in chunks": ["curl", "-sSf", "-H", AS_JSON, "-H", "Transfer-Encoding: chunked", "-d", BODY, "URL"],
    "curl --proxy": ["curl", "-sSf", "--proxy", "URL", "-H", AS_JSON, "-d", BODY, "URL"],
    "wget": ["wget", "-q", "-O", "-", "--header", AS_JSON, "--post-data", BODY, "URL"],
    "ab": ["ab", "-q", "-n", "1", "-p", "body", "-T", "application/json", "URL"],
    "ab -k": ["ab", "-q", "-k", "-n", "1", "-p", "body", "-T", "application/json", "URL"],
    "node": ["node", "-e", f"{NODE}.then(answer => process.exit(answer.status == 201 ? 0 : 1))", "URL", BODY],
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("exactness")) as daemon:
        yield daemon
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize("name", COMMANDS)
def test_client_adds_a_post(daemon: Daemon, tmp_path: Path, name: str) -> None:
    (tmp_path / "body").write_text(BODY)
    url = f"{daemon.url}/post"
    before = len(httpx.get(url).json())
    command = [url if word == "URL" else word for word in COMMANDS[name]]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=PATIENCE_S, capture_output=True)
    assert [post["post"] for post in httpx.get(url).json()[before:]] == [TEXT]
