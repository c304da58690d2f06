"""CORS in Chromium: requests of pages of other origins to the API."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.daemon import Daemon
from tests.redis_server import free_port
from tests.system.browser import Browser
from tests.system.chromium import open_chromium

FETCH = """
    const [url, options, done] = arguments;
    fetch(url, options).then(
        async answer => done({
            status: answer.status,
            body: await answer.text(),
            location: answer.headers.get("Location"),
            etag: answer.headers.get("ETag"),
        }),
        error => done({refused: String(error)}));
"""
ADD = {
    "method": "POST",
    "headers": {"Content-Type": "application/json", "Idempotency-Key": "k-1"},
    "body": '{"post": "from another origin"}',
}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing on standard error."""


@contextmanager
def pages(folder: Path) -> Iterator[str]:
    """Serve an empty page on a port of its own, which is free afterwards; yield the origin."""
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html><title>another origin</title>")
    with ThreadingHTTPServer(("127.0.0.1", free_port()), partial(_Quiet, directory=str(folder))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def fetch(browser: Browser, url: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = browser.driver.execute_async_script(FETCH, url, options or {})
    return answer


@pytest.mark.parametrize("everybody", [False, True])
def test_only_pages_of_listed_origins_use_the_api(tmp_path: Path, *, everybody: bool) -> None:
    with pages(tmp_path / "listed") as listed, pages(tmp_path / "other") as other:
        (tmp_path / "postd.toml").write_text(f"[api]\ncors_origins = ['{'*' if everybody else listed}']\n")
        with Daemon(tmp_path, "-c", "postd.toml") as daemon, open_chromium(listed, tmp_path / "profile") as browser:
            browser.open("/")
            added = fetch(browser, f"{daemon.url}/post", ADD)
            assert (added["status"], added["body"], added["location"]) == (201, "Success a Post!\n", "/post/1")
            got = fetch(browser, f"{daemon.url}/post/1")
            assert "from another origin" in got["body"]
            changed = fetch(
                browser,
                f"{daemon.url}/post/1",
                ADD | {"method": "PUT", "headers": {"Content-Type": "application/json", "If-Match": got["etag"]}},
            )
            assert changed["status"] == 200
            assert fetch(browser, f"{daemon.url}/post/0", {"method": "DELETE"})["status"] == 404
            assert fetch(browser, f"{daemon.url}/openapi.json")["status"] == 200

            browser.driver.get(other)
            for path, options in (
                ("/post", ADD | {"headers": {"Content-Type": "application/json"}}),
                ("/post/1", None),
            ):
                answer = fetch(browser, daemon.url + path, options)
                assert ("refused" in answer) == (not everybody)
            assert len(httpx.get(f"{daemon.url}/post").json()) == (2 if everybody else 1)
            # Cookies and stored passwords are never shared.
            answer = fetch(browser, f"{daemon.url}/post", {"credentials": "include"})
            assert "refused" in answer
