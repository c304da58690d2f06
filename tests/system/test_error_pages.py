"""Errors, failed logins and `/home` in Chromium and Firefox: what a person sees, and the way on from there."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.integration.daemon import Daemon
from tests.system.browser import AXE_OF_COLORS, DESK, NARROWEST, PHONE, Browser
from tests.system.chromium import Chromium
from tests.system.test_browser import IN_CHROMIUM, PASSWORD, add_user, sign_in

WINDOW_S = 6
SETTINGS = f"""
[api]
read = ["session"]
write = ["session"]
[throttle]
failures = 2
window = "{WINDOW_S}s"
[[page]]
path = "/both"
schemes = ["basic", "session"]
[[page]]
path = "/others"
schemes = ["session"]
users = ["bob"]
"""
OUT_OF_LINE = """
    const {left} = document.querySelector("h1").getBoundingClientRect();
    return [...document.querySelectorAll("main > a")].filter(link => {
        const range = new Range();
        range.selectNodeContents(link);
        return Math.abs(range.getBoundingClientRect().left - left) > 0.5;
    }).map(link => link.textContent);
"""
FOREIGN_FORM = "data:text/html,<form method=POST action='{}/login'><input name=username><input type=submit></form>"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "postd.toml").write_text(SETTINGS)
    with Daemon(folder, "--config", "postd.toml", "--users", add_user(folder)) as daemon:
        yield daemon


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    yield one_browser
    one_browser.begin_anew()


def fail(browser: Browser, name: str = "alice", path: str = "/") -> None:
    """Sign in with a wrong password."""
    browser.open(path)
    browser.wait_for_focus("username")
    browser.type(name, Keys.TAB, "wrong", Keys.ENTER)
    browser.wait_for("/login")
    browser.wait_for_focus("password")


def alert_in(browser: Browser) -> str:
    return browser.driver.find_element(By.CSS_SELECTOR, "[role=alert]").text


@pytest.mark.parametrize("with_scripts", [True, False])
def test_wrong_password_is_followed_by_the_right_one(browser: Browser, *, with_scripts: bool) -> None:
    if not with_scripts:
        browser.turn_off_scripts()
    fail(browser, path="/?next=/board")
    assert alert_in(browser) == "Login failed"
    assert browser.driver.find_element(By.NAME, "username").get_attribute("value") == "alice"
    browser.type(PASSWORD, Keys.ENTER)
    browser.wait_for("/board")


def test_home_leads_to_the_board_and_to_signing_out(browser: Browser) -> None:
    sign_in(browser)
    browser.type(Keys.TAB)
    assert browser.focused == "Board"
    browser.type(Keys.ENTER)
    browser.wait_for("/board")
    browser.open("/home")
    browser.type(Keys.TAB, Keys.TAB, Keys.TAB)
    assert browser.focused == "Sign out"
    browser.type(Keys.ENTER)
    browser.wait_for("/logout")
    browser.type(Keys.TAB, Keys.ENTER)
    browser.wait_for("/")
    assert browser.driver.get_cookies() == []


def test_throttled_login_succeeds_after_the_time_that_is_named(browser: Browser) -> None:
    def is_let_in() -> bool:
        """Sign in after two failures; their window may end before that on a busy machine."""
        fail(browser)
        fail(browser)
        browser.type(PASSWORD, Keys.ENTER)
        browser.wait_until(lambda: browser.path == "/home" or alert_in(browser).startswith("Too many failed logins"))
        return browser.path == "/home"

    while is_let_in():
        browser.begin_anew()
    words = alert_in(browser).split()
    assert words[-4:-2] == ["again", "in"]
    assert 1 <= int(words[-2]) <= WINDOW_S
    time.sleep(int(words[-2]))
    browser.wait_for_focus("password")
    browser.type(PASSWORD, Keys.ENTER)
    browser.wait_for("/home")


def test_forbidden_page_leads_to_the_start(browser: Browser) -> None:
    sign_in(browser)
    browser.open("/others")
    assert browser.text == "postd\nForbidden\nYou are not authorized to access this resource.\nGo to the start page"
    browser.type(Keys.TAB, Keys.ENTER)
    browser.wait_for("/home")


def test_missing_page_leads_to_the_start(browser: Browser) -> None:
    browser.open("/nothing")
    assert browser.text == "postd\nNot Found\nThere is nothing at this address.\nGo to the start page"
    browser.type(Keys.TAB, Keys.ENTER)
    browser.wait_for("/")


def test_form_takes_the_place_of_the_dialog_and_leads_back(browser: Browser) -> None:
    """Also after a wrong password, for a page that Basic gives access to as well."""
    browser.open("/both?x=y")
    browser.wait_for("/?next=/both%3Fx%3Dy")
    browser.wait_for_focus("username")
    browser.type("alice", Keys.TAB, "wrong", Keys.ENTER)
    browser.wait_for("/login")
    browser.wait_for_focus("password")
    browser.type(PASSWORD, Keys.ENTER)
    browser.wait_for("/both?x=y")
    assert browser.text == "Success: alice"


def test_form_of_another_site_is_refused_with_a_page(browser: Browser) -> None:
    browser.driver.get(FOREIGN_FORM.format(browser.url))
    browser.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    browser.wait_for("/login")
    assert browser.text == "postd\nForbidden\nA page of another site sent this request.\nGo to the start page"


def test_policy_allows_the_pages(browser: Browser) -> None:
    fail(browser, name="bob")
    sign_in(browser)
    browser.open("/nothing")
    assert browser.driver.find_element(By.TAG_NAME, "main").value_of_css_property("border-radius") == "16px"
    assert [line for line in browser.complaints() if "status of 40" not in line] == []
    assert browser.requested() == [
        f"{browser.url}{path}" for path in ("/", "/login", "/", "/login", "/home", "/nothing")
    ]


@IN_CHROMIUM
def test_pages_are_accessible(browser: Chromium) -> None:
    fail(browser, name=140 * "x")
    check_accessible(browser)
    sign_in(browser)
    check_accessible(browser)
    browser.open("/others")
    check_accessible(browser)


def check_accessible(browser: Chromium) -> None:
    """Check the colors in each mode, and the layout on each screen."""
    assert browser.find_barriers() == []
    for scheme in ("light", "dark"):
        for contrast in ("no-preference", "more"):
            browser.prefer(prefers_color_scheme=scheme, prefers_contrast=contrast, prefers_reduced_motion="reduce")
            assert browser.find_barriers(AXE_OF_COLORS) == []
    for size in (DESK, PHONE, NARROWEST):
        browser.set_screen(size)
        assert browser.sticking_out == []
        assert browser.driver.execute_script(OUT_OF_LINE) == []
        assert browser.smallest("input, a") >= 44
    browser.set_screen(DESK)


def test_first_page_of_a_server_without_accounts_leads_to_its_board(browser: Browser, tmp_path: Path) -> None:
    with Daemon(tmp_path) as empty:
        for width, height in (DESK, PHONE, NARROWEST):
            browser.set_screen((width, height))
            browser.driver.get(empty.url)
            assert browser.width <= width
            assert "There are no accounts yet, so no password is accepted." in browser.text
            assert " user add alice -u users\n" in browser.text
        assert browser.find_barriers() == []
        browser.driver.find_element(By.LINK_TEXT, "Board").click()
        browser.wait_until(lambda: browser.driver.current_url == f"{empty.url}/board" and browser.is_loaded)
        browser.driver.find_element(By.ID, "post").send_keys("Without an account", Keys.TAB, Keys.ENTER)
        browser.wait_until(lambda: "Without an account" in httpx.get(f"{empty.url}/post").text)
