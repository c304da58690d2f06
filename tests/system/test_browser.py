"""Our pages as people meet them: in Chromium and Firefox, by keyboard and phone, in the dark, without JavaScript.

The form login, and the page about the API. The board has a module of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.integration.daemon import Daemon
from tests.integration.logins import run_postd_user
from tests.system.browser import DESK, NARROWEST, PHONE, Browser
from tests.system.chromium import Chromium, open_chromium

PASSWORD = "pässword & battery=staple+"
LONGEST_WORD = "x" * 160
PAGES = ["/", "/logout"]
DOCS = "/docs"
FOCUS_ORDER = {"/": ["username", "password", "Sign in"], "/logout": ["Sign out", "Stay signed in"]}
STICKING_OUT = """
    return [...document.querySelectorAll("body, body *")].filter(element => {
        const {left, right} = element.getBoundingClientRect();
        return left < 0 || right > window.innerWidth + 0.5;
    }).map(element => element.outerHTML.slice(0, 100));
"""


# Once is enough, of what is in the markup and the sheets.
IN_CHROMIUM = pytest.mark.parametrize("open_browser", [open_chromium], ids=["chromium"], indirect=True)


def add_user(folder: Path) -> str:
    """Make a user file with alice in it; return its path."""
    users = folder / "users"
    run_postd_user(users, "add", "alice", PASSWORD)
    return str(users)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with Daemon(folder, "--users", add_user(folder)) as daemon:
        yield daemon


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    yield one_browser
    one_browser.begin_anew()


def sign_in(browser: Browser) -> None:
    """With the keyboard only; the first field has the focus."""
    browser.open("/")
    browser.type("alice", Keys.TAB, PASSWORD, Keys.ENTER)
    browser.wait_for("/home")


def test_one_signs_in_with_the_keyboard_only(browser: Browser) -> None:
    sign_in(browser)
    assert browser.text == "Success: alice"


def test_one_signs_in_with_the_button(browser: Browser) -> None:
    browser.open("/")
    browser.type("alice", Keys.TAB, PASSWORD, Keys.TAB, Keys.SPACE)
    browser.wait_for("/home")


def test_one_who_is_signed_in_is_led_home(browser: Browser) -> None:
    sign_in(browser)
    browser.open("/")
    assert browser.path == "/home"


def test_one_who_is_not_signed_in_is_led_to_the_form(browser: Browser) -> None:
    browser.open("/home")
    assert browser.path == "/"
    assert browser.focused == "username"


def test_a_wrong_password_is_told_and_not_asked_for_by_the_browser(browser: Browser) -> None:
    """Where a browser is asked to prompt, this one, which has no window to do it in, shows nothing of the answer."""
    browser.open("/")
    browser.type("alice", Keys.TAB, "wrong", Keys.ENTER)
    browser.wait_for("/login")
    assert browser.text == "Login failed"
    assert browser.driver.get_cookies() == []
    browser.open("/home")
    assert browser.path == "/"


def test_it_works_without_javascript(browser: Browser) -> None:
    browser.turn_off_scripts()
    browser.driver.get("data:text/html,<title>off</title><script>document.title='on'</script>")
    assert browser.driver.title == "off"
    sign_in(browser)
    assert browser.text == "Success: alice"
    browser.open("/logout")
    browser.type(Keys.TAB, Keys.ENTER)
    browser.wait_for("/")


def test_one_signs_out_with_the_button(browser: Browser) -> None:
    sign_in(browser)
    browser.open("/logout")
    browser.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    browser.wait_for("/")
    assert browser.focused == "username"
    assert browser.driver.get_cookies() == []
    browser.open("/home")
    assert browser.path == "/"


def test_looking_at_the_sign_out_page_changes_nothing(browser: Browser) -> None:
    sign_in(browser)
    browser.open("/logout")
    browser.type(Keys.TAB, Keys.TAB, Keys.ENTER)
    browser.wait_for("/home")
    assert browser.text == "Success: alice"


def test_the_cookie(browser: Browser) -> None:
    sign_in(browser)
    (cookie,) = browser.driver.get_cookies()
    assert {key: cookie.get(key) for key in ("name", "path", "httpOnly", "sameSite", "secure", "expiry")} == {
        "name": "session",
        "path": "/",
        "httpOnly": True,
        "sameSite": "Lax",
        "secure": False,
        "expiry": None,
    }


@pytest.mark.parametrize("path", PAGES)
def test_the_focus_goes_down_the_page(browser: Browser, path: str) -> None:
    browser.open(path)
    if path == "/logout":
        browser.type(Keys.TAB)
    met = []
    for _ in FOCUS_ORDER[path]:
        met.append(browser.focused)
        browser.type(Keys.TAB)
    assert met == FOCUS_ORDER[path]


@IN_CHROMIUM
@pytest.mark.parametrize("path", [*PAGES, DOCS])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_bars_nobody(browser: Chromium, path: str, scheme: str) -> None:
    for size in (DESK, PHONE):
        for contrast in ("no-preference", "more"):
            browser.set_screen(size)
            browser.prefer(prefers_color_scheme=scheme, prefers_contrast=contrast)
            browser.open(path)
            assert browser.find_barriers() == []


@pytest.mark.parametrize("font_size", [16, 32])
def test_nothing_sticks_out_of_the_smallest_screen(tmp_path: Path, font_size: int) -> None:
    """WCAG 2.2, 1.4.10 (320 px wide) and 1.4.4 (text twice as large), both at once, and with a word too long."""
    settings = tmp_path / "postd.toml"
    settings.write_text(f'realm = "{LONGEST_WORD}"\n')
    with (
        Daemon(tmp_path, "--config", str(settings), "--users", add_user(tmp_path)) as daemon,
        open_chromium(daemon.url, tmp_path / "profile", font_size=font_size) as browser,
    ):
        browser.set_screen(NARROWEST)
        for path in PAGES:
            browser.open(path)
            assert LONGEST_WORD in browser.text
            rem = browser.driver.find_element(By.CSS_SELECTOR, "main > p").value_of_css_property("font-size")
            assert rem == f"{font_size}px"
            elements = browser.driver.find_elements(By.CSS_SELECTOR, "html, body, body *")
            for element in elements:
                assert element.rect["x"] >= 0
                assert element.rect["x"] + element.rect["width"] <= NARROWEST[0]
            assert browser.width <= NARROWEST[0]


@pytest.mark.parametrize("font_size", [16, 32])
def test_nothing_of_the_page_about_the_api_does(tmp_path: Path, font_size: int) -> None:
    settings = tmp_path / "postd.toml"
    rule = '["basic", "digest", "session"]'
    settings.write_text(f'realm = "{LONGEST_WORD}"\n[api]\nread = {rule}\nwrite = {rule}\n')
    with (
        Daemon(tmp_path, "--config", str(settings), "--users", add_user(tmp_path)) as daemon,
        open_chromium(daemon.url, tmp_path / "profile", font_size=font_size) as browser,
    ):
        browser.set_screen(NARROWEST)
        browser.open(DOCS)
        assert LONGEST_WORD in browser.text
        assert browser.driver.find_element(By.CSS_SELECTOR, "header > p").value_of_css_property("font-size") == (
            f"{font_size}px"
        )
        assert browser.driver.execute_script(STICKING_OUT) == []
        assert browser.width <= NARROWEST[0]


def test_the_contents_lead_to_each_operation(browser: Browser) -> None:
    browser.open(DOCS)
    links = browser.driver.find_elements(By.CSS_SELECTOR, "nav a")
    assert len(links) > 10
    assert min(link.size["height"] for link in links) >= 44
    links[3].click()
    heading = browser.driver.find_element(By.CSS_SELECTOR, ":target")
    assert links[3].text.split("\n")[0] in heading.text
    assert (
        0 <= browser.driver.execute_script("return document.querySelector(':target').getBoundingClientRect().y") < 100
    )


@pytest.mark.parametrize("path", PAGES)
def test_what_one_presses_is_large_enough(browser: Browser, path: str) -> None:
    browser.set_screen(PHONE)
    browser.open(path)
    targets = browser.driver.find_elements(By.CSS_SELECTOR, "input, a")
    assert len(targets) >= 2
    assert min(min(target.size["width"], target.size["height"]) for target in targets) >= 44


def test_nobody_else_hears_of_it_and_the_console_is_empty(browser: Browser) -> None:
    sign_in(browser)
    browser.open("/logout")
    browser.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    browser.wait_for("/")
    assert browser.complaints() == []
    assert browser.requested() == [
        f"{browser.url}{path}" for path in ("/", "/login", "/home", "/logout", "/logout", "/")
    ]


def test_the_page_about_the_api_is_one_answer(browser: Browser) -> None:
    browser.open(DOCS)
    assert browser.complaints() == []
    assert browser.requested() == [browser.url + DOCS]
    browser.driver.find_element(By.PARTIAL_LINK_TEXT, "openapi.json").click()
    browser.wait_for("/openapi.json")


def test_the_sheet_is_let_in_by_the_policy(browser: Browser) -> None:
    browser.open(DOCS)
    assert browser.driver.find_element(By.TAG_NAME, "article").value_of_css_property("border-radius") == "16px"
    for path in PAGES:
        browser.open(path)
        assert browser.driver.find_element(By.TAG_NAME, "main").value_of_css_property("border-radius") == "16px"
