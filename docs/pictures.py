"""Makes the pictures of the documentation anew: `python -m docs.pictures`, from the top of the checkout.

A server with sample posts runs on loopback; Chromium takes pictures of its pages, and a shell runs the commands of the
terminal. It needs the extras `test` and `system`, Debian's chromium, chromium-driver and curl, and no network.
"""

import base64
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from docs.drawings import DRAWINGS
from docs.made_from import MADE_FROM, PICTURES, list_hashes
from docs.terminal import draw_terminal, record
from tests.integration.daemon import Daemon
from tests.integration.logins import run_postd_user
from tests.system.chromium import Chromium, open_chromium

SHOWN = "http://127.0.0.1:8080"
"""The origin that pictures of pages show: that of a server with default settings."""

DESK, LOW, TALL, PHONE = (800, 600), (760, 440), (640, 700), (360, 640)

NAME, OTHER, PASSWORD = "alice", "bob", "correct horse"
SETTINGS = """
users = "users"
[api]
write = ["session", "basic"]
[accounts]
change_password = true
tokens = true
"""
POSTS = (
    (NAME, "Backup of last night is verified: 1,204,331 posts, 9 s."),
    (OTHER, "Grüße aus Zürich! The new rack is up."),
    (NAME, "Reminder: the certificate of posts.example is renewed on Friday."),
    (OTHER, "Who has the key of the lab?"),
    (NAME, "It hangs beside the door, where it always hangs."),
)

TERMINAL = (
    "# A post is on the disk before it is acknowledged.",
    """curl --json '{"post": "Hello, world"}' {origin}/post""",
    "curl --etag-save etag {origin}/post",
    "# A client that has the current list gets 304 and no body.",
    "curl --etag-compare etag -w '%{http_code}' {origin}/post",
    "# Changes are streamed, and resumed after a break.",
    "curl -N -H 'Last-Event-ID: 0' {origin}/post/events",
    "# One password for Digest, Basic and the sign-in form.",
    "curl --digest -u 'alice:correct horse' {origin}/digest",
)


@contextmanager
def serve(settings: str) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in (NAME, OTHER):
            run_postd_user(folder / "users", "add", name, PASSWORD)
        (folder / "postd.toml").write_text(settings)
        with Daemon(folder, "--config", "postd.toml") as daemon:
            yield daemon


def make_terminal() -> None:
    with serve('users = "users"\n') as daemon:
        script = [one.replace("{origin}", daemon.url) for one in TERMINAL]
        lines = [line.replace(daemon.url, "localhost:8080") for line in record(script, daemon.folder)]
    (PICTURES / "terminal.svg").write_text(draw_terminal(lines, "postd at a terminal"))


def make_pages() -> None:
    with serve(SETTINGS) as daemon, tempfile.TemporaryDirectory() as profile:
        for name, text in POSTS:
            add_post(daemon.url, name, text)
        to_daemon = f"--host-resolver-rules=MAP 127.0.0.1:8080 127.0.0.1:{daemon.port}"
        with open_chromium(SHOWN, Path(profile), to_daemon, "--hide-scrollbars") as browser:
            take_pages(browser)


def add_post(url: str, name: str, text: str) -> None:
    credentials = base64.b64encode(f"{name}:{PASSWORD}".encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {credentials}"}
    body = json.dumps({"post": text}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{url}/post", body, headers)).close()  # noqa: S310 - our own server


def take_pages(browser: Chromium) -> None:
    take_looks(browser, "/", "sign-in")
    show(browser, DESK, "light")
    browser.open("/board")
    take(browser, "board-reader")
    show(browser, DESK, "light")
    browser.open("/")
    browser.type(NAME, Keys.TAB, "incorrect horse", Keys.ENTER)
    browser.wait_for("/login")
    take(browser, "sign-in-failed")
    browser.type(PASSWORD, Keys.ENTER)
    browser.wait_for("/home")
    take(browser, "home")
    browser.open("/account")
    take(browser, "account")
    take_looks(browser, "/board", "board", TALL)
    take_looks(browser, "/docs", "api", LOW, "Add a post")
    show(browser, DESK, "light")
    browser.open("/nothing")
    take(browser, "error")


def take_looks(browser: Chromium, path: str, name: str, desk: tuple[int, int] = DESK, link: str = "") -> None:
    """Take pictures of a page: light, dark, and on a phone; of where a link of it leads, if that is given."""
    for size, scheme, look in ((desk, "light", ""), (desk, "dark", "-dark"), (PHONE, "light", "-phone")):
        show(browser, size, scheme)
        browser.open(path)
        if link:
            browser.driver.find_element(By.PARTIAL_LINK_TEXT, link).click()
        take(browser, name + look)


def show(browser: Chromium, size: tuple[int, int], scheme: str) -> None:
    browser.set_screen(size)
    browser.prefer(prefers_color_scheme=scheme)


def take(browser: Chromium, name: str) -> None:
    (PICTURES / f"{name}.png").write_bytes(browser.driver.get_screenshot_as_png())


def main() -> None:
    for name, drawing in DRAWINGS.items():
        (PICTURES / f"{name}.svg").write_text(drawing)
    make_terminal()
    make_pages()
    MADE_FROM.write_text(list_hashes())


if __name__ == "__main__":
    main()
