"""DNS rebinding in Chromium: a page of another host whose name resolves to the address that postd listens on."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.daemon import Daemon
from tests.system.browser import Browser
from tests.system.chromium import open_chromium
from tests.system.test_cors import fetch, pages

RESOLVE = "--host-resolver-rules=MAP *.example 127.0.0.1"
ADD = {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": '{"post": "from the page"}'}
KEPT = "of this machine alone"


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_chromium("", tmp_path_factory.mktemp("profile"), RESOLVE) as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    yield one_browser
    one_browser.begin_anew()


@pytest.mark.parametrize(("settings", "reached"), [("", False), ('hosts = ["*"]\n', True)], ids=["default", "any host"])
def test_rebinding_page_reads_no_posts(browser: Browser, tmp_path: Path, settings: str, *, reached: bool) -> None:
    """With `hosts = ["*"]` the page does read them: the rule refuses it, not the browser."""
    (tmp_path / "postd.toml").write_text(settings)
    with pages(tmp_path / "evil") as attacker:
        port = attacker.rpartition(":")[2]
        browser.open(f"http://evil.example:{port}/")
        assert browser.driver.title == "another origin"
    # The attacker's server is gone, its page is still there: to the browser its origin is now postd.
    with Daemon(tmp_path, "-c", "postd.toml", listen=f"tcp:{port}:interface=127.0.0.1") as daemon:
        httpx.post(f"{daemon.url}/post", json={"post": KEPT})
        # Chromium may still have connections to that server which it opened ahead.
        while "Error code: 404" in fetch(browser, "/post")["body"]:
            pass
        read, added, preflight = (fetch(browser, "/post", options) for options in (None, ADD, {"method": "OPTIONS"}))
        assert [answer["status"] for answer in (read, added, preflight)] == ([200, 201, 204] if reached else [421] * 3)
        assert (KEPT in read["body"]) is reached
        posts = [post["post"] for post in httpx.get(f"{daemon.url}/post").json()]
        assert posts == ([KEPT, "from the page"] if reached else [KEPT])
        assert fetch(browser, "/")["status"] == (200 if reached else 421)


def test_browser_reaches_loopback_by_its_own_names(browser: Browser, tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        for host in ("localhost", "posts.localhost", "127.0.0.1", "127.1", "0x7f.1", "localhost."):
            browser.open(f"http://{host}:{daemon.port}/post")
            assert browser.text == "[]"
