"""Lists with gzip, as Debian's curl and wget read them."""

import json
import subprocess
from pathlib import Path

import httpx

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon

COUNT = 50


def run(*command: str) -> bytes:
    return subprocess.run(command, check=True, timeout=PATIENCE_S, stdout=subprocess.PIPE).stdout


def test_curl_and_wget_decode_gzip(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, httpx.Client() as client:
        for n in range(COUNT):
            client.post(f"{daemon.url}/post", json={"post": f"post {n}"})
        plain = run("curl", "-sS", f"{daemon.url}/post")
        assert len(json.loads(plain)) == COUNT
        heads, body = tmp_path / "heads", tmp_path / "body"
        assert run("curl", "-sS", "--compressed", "-D", str(heads), f"{daemon.url}/post") == plain
        assert "Content-Encoding: gzip" in heads.read_text()
        run("wget", "-q", "--compression=gzip", "-O", str(body), f"{daemon.url}/post")
        assert body.read_bytes() == plain
        etag = tmp_path / "etag"
        once, again = (
            run(
                "curl",
                "-sS",
                "--compressed",
                *option,
                str(etag),
                "-w",
                "%{http_code}",
                "-o",
                "/dev/null",
                f"{daemon.url}/post",
            )
            for option in (["--etag-save"], ["--etag-compare"])
        )
        assert (once, again) == (b"200", b"304")
