"""Sessions that a real Chromium binds to its device, at a real `twistd postd` with TLS (W3C draft; docs/how-to).

One browser for all: each test begins where the one before it has ended, and forces a refresh by deleting the proof.
"""

import math
import re
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import httpx
import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By

from postd.protocol.session import BindingTimes
from tests.helpers import make_certificate
from tests.integration.daemon import Daemon
from tests.redis_server import free_port
from tests.system.browser import Browser
from tests.system.chromium import BINDING, PROOF, Chromium, open_chromium
from tests.system.firefox import open_firefox
from tests.system.test_balancers import trust_flag
from tests.web.clients import PASSWORD, account

SETTINGS = """
hosts = ["posts.test", "localhost"]
users = "users"
workers = 2
shutdown_grace = "100ms"
api = {read = ["open"], write = ["session"]}
session = {bind = "offer"}
"""
REFRESHES = 15
"""More take more of the time of all checks; a hundred were tried."""

FETCH = """
const done = arguments[arguments.length - 1];
fetch("/post", {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"post": "by fetch"}'})
    .then(response => done(response.status));
"""
LISTEN = """
const done = arguments[arguments.length - 1], source = new EventSource("/post/events");
source.onopen = () => { source.close(); done("open"); };
source.onerror = () => done("closed");
"""


class Site:
    """A daemon, and a Chromium with one window.

    Attributes:
        ended: the requests of daemons that have ended, with their statuses.
        bound_at: when the session was bound, by the monotonic clock.
    """

    def __init__(self, daemon: Daemon, browser: Chromium, certificate: Path) -> None:
        self.daemon, self.browser, self.driver, self.certificate = daemon, browser, browser.driver, certificate
        self.ended: list[str] = []
        self.bound_at = math.inf

    def sign_in(self) -> None:
        fill_in(self.browser)
        self.browser.wait_until(lambda: self.proof, "a proof")

    @property
    def proof(self) -> str:
        cookie = self.driver.get_cookie(PROOF)
        return "" if cookie is None else str(cookie["value"])

    @property
    def is_signed_in(self) -> bool:
        return self.browser.path.startswith("/home") and "Success: alice" in self.browser.text

    def open_home(self) -> str:
        """Open the page; return its text."""
        self.browser.open("/home")
        return self.browser.text

    def expire(self) -> Self:
        """Have the proof expire."""
        self.driver.execute_cdp_cmd("Network.deleteCookies", {"name": PROOF, "url": self.browser.url})
        return self

    def wait_for_the_end_of_the_grace(self) -> None:
        """Wait until the session's cookie is not enough any more; the tests before have taken that time."""
        time.sleep(max(0.0, self.bound_at + BindingTimes().on_their_way_s + 0.5 - time.monotonic()))

    def stop(self) -> None:
        """Stop the daemon, which writes its whole log."""
        self.daemon.stop()
        found = re.findall(r'"([A-Z]+ \S+) HTTP/1\.1" ([0-9]{3})', self.daemon.log)
        self.ended += [f"{line} {status}" for line, status in found]

    def follow_foreign_link(self, path: str) -> None:
        """Follow a link on a page of another site."""
        page = f'<a href="{self.browser.url}{path}">go</a>'
        self.driver.get(f"data:text/html;base64,{b64encode(page.encode()).decode()}")
        self.driver.find_element(By.TAG_NAME, "a").click()


def fill_in(browser: Browser) -> None:
    """Sign in on the form."""
    browser.driver.find_element(By.NAME, "username").send_keys("alice")
    browser.driver.find_element(By.NAME, "password").send_keys(f"{PASSWORD}\ue007")
    browser.wait_for("/home")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("bound")
    key, certificate = make_certificate(folder)
    (folder / "users").write_text(account("alice"))
    (folder / "users").chmod(0o600)
    (folder / "postd.toml").write_text(SETTINGS)
    port = free_port()
    listen = f"ssl:{port}:privateKey={key}:certKey={certificate}:interface=127.0.0.1"
    flags = (BINDING, trust_flag(certificate), "--host-resolver-rules=MAP *.test 127.0.0.1")
    with (
        Daemon(folder, "-c", "postd.toml", listen=listen) as daemon,
        open_chromium(f"https://posts.test:{port}", folder / "profile", *flags) as browser,
    ):
        browser.open("/")
        site = Site(daemon, browser, certificate)
        site.sign_in()
        yield site


def test_first_request_after_the_registration_binds_the_session(site: Site) -> None:
    site.browser.open("/home")
    assert site.is_signed_in
    site.daemon.wait_for("session bound to a device: 'alice'")
    site.bound_at = time.monotonic()


def test_expired_proof_is_renewed(site: Site) -> None:
    for _ in range(3):
        site.expire().browser.open("/home")
        assert site.is_signed_in
        assert site.proof


def test_tabs_renew_the_proof_once(site: Site) -> None:
    site.expire().driver.execute_script("open('/home'); open('/account')")
    site.browser.wait_until(lambda: len(site.driver.window_handles) == 3)
    first, *others = site.driver.window_handles
    for tab in others:
        site.driver.switch_to.window(tab)
        site.browser.wait_until(lambda: "alice" in site.browser.text)
        site.driver.close()
    site.driver.switch_to.window(first)


def test_script_waits_for_the_proof(site: Site) -> None:
    site.browser.open("/board")
    assert site.expire().driver.execute_async_script(FETCH) == 201
    assert site.expire().driver.execute_async_script(LISTEN) == "open"
    site.expire()
    site.driver.find_element(By.TAG_NAME, "textarea").send_keys("by form")
    site.driver.execute_script("document.querySelector('textarea').form.submit()")
    site.browser.wait_until(lambda: "by form" in site.browser.text)


@pytest.mark.parametrize("name", ["chromium", "firefox"])
def test_browser_without_the_feature_has_a_session_as_before(site: Site, tmp_path: Path, name: str) -> None:
    url = f"https://localhost:{site.daemon.port}"
    if name == "chromium":
        opened: AbstractContextManager[Browser] = open_chromium(url, tmp_path, trust_flag(site.certificate))
    else:
        opened = open_firefox(url, tmp_path)
    with opened as browser:
        browser.open("/")
        fill_in(browser)
        browser.open("/home")
        assert "Success: alice" in browser.text
        assert [cookie["name"] for cookie in browser.driver.get_cookies()] == ["session"]


def test_outage_and_restart_end_no_session(site: Site) -> None:
    posts = site.daemon.folder / "postd.db"
    site.expire()
    posts.rename(posts.with_suffix(".away"))
    site.browser.wait_until(lambda: "not available" in site.open_home(), "an outage")
    posts.with_suffix(".away").rename(posts)
    site.browser.wait_until(lambda: "Success: alice" in site.open_home(), "the page after an outage")
    site.expire().stop()
    with pytest.raises(WebDriverException, match="ERR_CONNECTION_REFUSED"):
        site.browser.open("/home")
    site.daemon.__enter__()
    site.browser.wait_until(lambda: "Success: alice" in site.open_home(), "the page after a restart")


def test_link_of_another_site_leads_to_the_page(site: Site) -> None:
    site.wait_for_the_end_of_the_grace()
    site.expire().follow_foreign_link("/home#here")
    site.browser.wait_until(lambda: site.is_signed_in, "the page")
    site.driver.back()
    assert site.driver.current_url.startswith("data:"), "the page that sends back is not in the history"
    site.driver.forward()
    assert site.is_signed_in
    site.expire().follow_foreign_link("/")
    site.browser.wait_until(lambda: site.is_signed_in, "the page")


def test_copied_cookie_is_worthless(site: Site) -> None:
    session = site.driver.get_cookie("session")
    assert session is not None
    cookies = {"session": str(session["value"])}
    with httpx.Client(base_url=f"https://localhost:{site.daemon.port}", verify=False, cookies=cookies) as thief:
        for _ in range(8):  # of both workers
            assert thief.get("/home", headers={"Connection": "close"}).headers["Location"] == "/"
        thief.cookies.set(PROOF, site.proof)
        assert thief.get("/home").status_code == 200


def test_sign_out_is_final_and_the_next_sign_in_is_bound(site: Site) -> None:
    site.browser.open("/logout")
    site.driver.find_element(By.CSS_SELECTOR, "form [type=submit], form button").click()
    site.browser.wait_for("/")
    site.browser.open("/home")
    site.browser.wait_for("/")
    assert site.proof == ""
    site.sign_in()
    site.browser.open("/home")
    assert site.is_signed_in
    site.expire().browser.open("/home")
    assert site.is_signed_in


@pytest.mark.slow
def test_refreshes_with_restarts_end_no_session(site: Site) -> None:
    for number in range(REFRESHES):
        if number % 15 == 10:
            site.stop()
            site.daemon.__enter__()
        assert "Success: alice" in site.expire().open_home()
        assert site.proof


def test_each_refresh_took_one_request(site: Site) -> None:
    site.stop()
    assert site.ended.count("POST /login/bind 200") == 2
    assert site.ended.count("GET /home 401") + site.ended.count("GET / 401") >= 2, "links of another site"
    binding = [line for line in site.ended if line.startswith("POST /login/bind")]
    assert {line[-3:] for line in binding} == {"200", "503"}
