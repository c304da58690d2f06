"""The HTML pages in Chromium and Firefox: by keyboard, on a phone, in dark mode, without JavaScript.

The form login, and the page about the API. The board has a module of its own, and so have the pages of errors.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.integration.daemon import Daemon
from tests.integration.logins import run_postd_user
from tests.system.browser import AXE_OF_COLORS, DESK, NARROWEST, PHONE, Browser
from tests.system.chromium import Chromium, open_chromium
from tests.system.sign_in_site import BUTTON, CONFIRM, USER, serve_site

PASSWORD = "pässword & battery=staple+"
LONGEST_WORD = "x" * 160
PAGES = ["/", "/logout"]
DOCS = "/docs"
ACCOUNT_PAGES = ["/account", "/account/sessions", "/account/tokens"]
ACCOUNTS = "[accounts]\ntokens = true\n"
FOCUS_ORDER = {"/": ["username", "password", "Sign in"], "/logout": ["Sign out", "Stay signed in"]}


# Once is enough, of what is in the markup and the sheets.
IN_CHROMIUM = pytest.mark.parametrize("open_browser", ["chromium"], indirect=True)


def add_user(folder: Path) -> str:
    """Create a user file with the user alice; return its path."""
    users = folder / "users"
    run_postd_user(users, "add", "alice", PASSWORD)
    return str(users)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "postd.toml").write_text(ACCOUNTS)
    with Daemon(folder, "--config", "postd.toml", "--users", add_user(folder)) as daemon:
        yield daemon


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    yield one_browser
    one_browser.begin_anew()


def sign_in(browser: Browser) -> None:
    """With the keyboard only; the first field has the focus."""
    browser.open("/")
    browser.wait_for_focus("username")
    browser.type("alice", Keys.TAB, PASSWORD, Keys.ENTER)
    browser.wait_for("/home")


def store_session(browser: Browser) -> None:
    """Have the cookie of a new session, without typing: for tests of something else than the form."""
    answer = httpx.post(f"{browser.url}/login", data={"username": "alice", "password": PASSWORD})
    browser.store_session(answer.headers["Set-Cookie"].partition(";")[0])


def test_keyboard_signs_in(browser: Browser) -> None:
    sign_in(browser)
    assert "Success: alice" in browser.text


def test_button_signs_in(browser: Browser) -> None:
    browser.open("/")
    browser.type("alice", Keys.TAB, PASSWORD, Keys.TAB, Keys.SPACE)
    browser.wait_for("/home")


def test_live_session_redirects_to_home(browser: Browser) -> None:
    store_session(browser)
    browser.open("/")
    assert browser.path == "/home"


def test_missing_session_redirects_to_the_form(browser: Browser) -> None:
    browser.open("/home")
    assert browser.path == "/"
    assert browser.focused == "username"


def test_wrong_password_is_shown_without_browser_prompt(browser: Browser) -> None:
    """A headless browser that was asked to prompt would show no body."""
    browser.open("/")
    browser.type("alice", Keys.TAB, "wrong", Keys.ENTER)
    browser.wait_for("/login")
    assert "Login failed" in browser.text
    assert browser.driver.get_cookies() == []
    browser.open("/home")
    assert browser.path == "/"


def test_form_works_without_javascript(browser: Browser) -> None:
    browser.turn_off_scripts()
    browser.driver.get("data:text/html,<title>off</title><script>document.title='on'</script>")
    assert browser.driver.title == "off"
    sign_in(browser)
    assert "Success: alice" in browser.text
    browser.open("/logout")
    browser.type(Keys.TAB, Keys.ENTER)
    browser.wait_for("/")


def test_button_signs_out(browser: Browser) -> None:
    store_session(browser)
    browser.open("/logout")
    browser.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    browser.wait_for("/")
    assert browser.focused == "username"
    assert browser.driver.get_cookies() == []
    browser.open("/home")
    assert browser.path == "/"


def test_get_logout_keeps_the_session(browser: Browser) -> None:
    store_session(browser)
    browser.open("/logout")
    browser.type(Keys.TAB, Keys.TAB, Keys.ENTER)
    browser.wait_for("/home")
    assert "Success: alice" in browser.text


def test_session_cookie_attributes(browser: Browser) -> None:
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
def test_focus_order_follows_the_page(browser: Browser, path: str) -> None:
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
def test_axe_finds_no_violation(browser: Chromium, path: str, scheme: str) -> None:
    browser.open(path)
    for size in (DESK, PHONE):
        browser.set_screen(size)
        for contrast in ("no-preference", "more"):
            browser.prefer(prefers_color_scheme=scheme, prefers_contrast=contrast)
            is_first = (scheme, contrast) == ("light", "no-preference")
            assert browser.find_barriers(() if is_first else AXE_OF_COLORS) == []


@pytest.fixture(scope="module", params=[16, 32])
def font_size(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    return size


@pytest.fixture(scope="module")
def narrow(font_size: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """WCAG 2.2, 1.4.10 (320 px wide) and 1.4.4 (text twice as large), both at once, and with a word too long."""
    folder = tmp_path_factory.mktemp("narrow")
    rule = '["basic", "digest", "session"]'
    (folder / "postd.toml").write_text(f'realm = "{LONGEST_WORD}"\n[api]\nread = {rule}\nwrite = {rule}\n{ACCOUNTS}')
    with (
        Daemon(folder, "--config", "postd.toml", "--users", add_user(folder)) as daemon,
        open_chromium(daemon.url, folder / "profile", font_size=font_size) as browser,
    ):
        browser.set_screen(NARROWEST)
        yield browser


def test_content_fits_the_smallest_screen(narrow: Chromium, font_size: int) -> None:
    for path in PAGES:
        narrow.open(path)
        assert LONGEST_WORD in narrow.text
        rem = narrow.driver.find_element(By.CSS_SELECTOR, "main > p").value_of_css_property("font-size")
        assert rem == f"{font_size}px"
        assert narrow.sticking_out == []
        assert narrow.width <= NARROWEST[0]
    store_session(narrow)
    for path in ACCOUNT_PAGES:
        narrow.open(path)
        assert LONGEST_WORD in narrow.text
        assert (narrow.sticking_out, narrow.width <= NARROWEST[0]) == ([], True)


def test_docs_content_fits_the_smallest_screen(narrow: Chromium, font_size: int) -> None:
    narrow.open(DOCS)
    assert LONGEST_WORD in narrow.text
    size = narrow.driver.find_element(By.CSS_SELECTOR, "header > p").value_of_css_property("font-size")
    assert size == f"{font_size}px"
    assert narrow.sticking_out == []
    assert narrow.width <= NARROWEST[0]


def test_docs_contents_link_each_operation(browser: Browser) -> None:
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


@pytest.mark.parametrize("scripts", ["with", "without"])
def test_docs_sample_is_opened_by_a_key_and_selected_by_a_click(browser: Browser, scripts: str) -> None:
    if scripts == "without":
        browser.turn_off_scripts()
    browser.open(f"{DOCS}#addPost")
    _, httpx, _ = browser.driver.find_elements(By.CSS_SELECTOR, "[aria-labelledby=addPost] summary")
    sample = browser.driver.find_element(By.CSS_SELECTOR, "[aria-labelledby=addPost] details:nth-of-type(2) .sample")
    assert not sample.is_displayed()
    httpx.send_keys(Keys.ENTER)
    assert sample.text.startswith("import httpx\n\nresponse = httpx.post(")
    assert browser.url in sample.text
    sample.click()
    assert browser.driver.execute_script("return getSelection().toString()").strip() == sample.text


@pytest.mark.parametrize("path", PAGES)
def test_targets_are_large_enough(browser: Browser, path: str) -> None:
    browser.set_screen(PHONE)
    browser.open(path)
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, "input, a")) >= 2
    assert browser.smallest("input, a") >= 44


def test_page_requests_no_other_host_and_logs_nothing(browser: Browser) -> None:
    sign_in(browser)
    browser.open("/logout")
    browser.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    browser.wait_for("/")
    assert browser.complaints() == []
    assert browser.requested() == [
        f"{browser.url}{path}" for path in ("/", "/login", "/home", "/logout", "/logout", "/")
    ]


def test_docs_page_is_one_response(browser: Browser) -> None:
    browser.open(DOCS)
    assert browser.complaints() == []
    assert browser.requested() == [browser.url + DOCS]
    browser.driver.find_element(By.PARTIAL_LINK_TEXT, "openapi.json").click()
    browser.wait_for("/openapi.json")


def test_style_sheet_is_allowed_by_the_policy(browser: Browser) -> None:
    browser.open(DOCS)
    assert browser.driver.find_element(By.TAG_NAME, "article").value_of_css_property("border-radius") == "16px"
    for path in PAGES:
        browser.open(path)
        assert browser.driver.find_element(By.TAG_NAME, "main").value_of_css_property("border-radius") == "16px"


@IN_CHROMIUM
def test_account_is_managed_by_keyboard(browser: Chromium) -> None:
    store_session(browser)  # another one: the cookie of the next replaces it
    store_session(browser)
    browser.set_screen(PHONE)
    browser.open("/account")
    browser.type(Keys.TAB, Keys.ENTER)
    browser.wait_for("/account/sessions")
    count = browser.text.count("Signed in ")
    assert browser.text.count("this one") == 1
    browser.type(Keys.TAB, Keys.TAB, Keys.ENTER)
    browser.wait_until(lambda: browser.text.count("Signed in ") == count - 1)
    assert browser.focused == "The session has ended."
    browser.open("/account/tokens")
    browser.driver.find_element(By.ID, "label").send_keys("Feed reader", Keys.ENTER)
    browser.wait_until(lambda: "Copy the token now." in browser.text)
    token = browser.driver.find_element(By.ID, "token").get_attribute("value") or ""
    assert browser.focused == token
    assert token in browser.text
    assert httpx.get(f"{browser.url}/post", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert browser.find_barriers() == []
    browser.driver.back()
    browser.open("/account/tokens")
    assert token not in browser.driver.page_source
    browser.driver.find_element(By.CSS_SELECTOR, ".quiet").send_keys(Keys.ENTER)
    browser.wait_until(lambda: "You have no tokens." in browser.text)
    for path in ACCOUNT_PAGES:
        browser.open(path)
        assert browser.find_barriers() == []
        assert browser.smallest("input:not([type=hidden]), select, a") >= 44
    assert browser.complaints() == []


def test_user_of_a_provider_signs_in_and_out(one_browser: Browser, tmp_path: Path) -> None:
    """Cookies that are `SameSite` are sent when another site leads back, and the policy lets forms lead there."""
    with serve_site(tmp_path) as site, one_browser.at(site.url) as browser:
        browser.open("/board")
        assert browser.path == "/?next=/board"
        browser.driver.find_element(By.LINK_TEXT, BUTTON).click()
        browser.wait_until(lambda: "Sign-in" in browser.text, "the page of the provider")
        browser.driver.find_element(By.NAME, "login").send_keys("alice", Keys.TAB, "any", Keys.ENTER)
        browser.wait_until(lambda: "Continue" in browser.text, "the question for consent")
        browser.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()
        browser.wait_for("/board")
        browser.open("/home")
        assert USER in browser.text
        browser.open("/logout")
        browser.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()
        browser.wait_until(lambda: CONFIRM in browser.text, CONFIRM)
        browser.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()
        browser.wait_for("/")
        browser.open("/board")
        assert browser.path == "/?next=/board"
        assert [line for line in browser.complaints() if f"{site.url}/" in line] == []


def sign_out(browser: Browser) -> None:
    browser.open("/logout")
    browser.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    browser.wait_for("/")


def press(browser: Browser, label: str) -> None:
    browser.driver.find_element(By.CSS_SELECTOR, f'[type=submit][value="{label}"]').click()


def test_passkey_signs_in(one_browser: Browser, tmp_path: Path) -> None:
    """By the button, and in Chromium by autofill, whose authenticator is touched at once or never."""
    (tmp_path / "postd.toml").write_text(f"users = {add_user(tmp_path)!r}\n[accounts]\npasskeys = true\n")
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        with one_browser.at(daemon.url.replace("127.0.0.1", "localhost")) as browser:
            authenticator = browser.add_authenticator()
            try:
                sign_in(browser)
                browser.open("/account/passkeys")
                press(browser, "Add a passkey")
                browser.wait_for("/account/passkeys?done=added#done")
                if isinstance(browser, Chromium):
                    assert browser.find_barriers() == []
                    browser.set_presence(authenticator, enabled=False)
                sign_out(browser)
                if isinstance(browser, Chromium):
                    # The request of autofill stays pending: the button has to end it.
                    browser.wait_until(lambda: f"{browser.url}/login/passkey" in browser.requested())
                    assert browser.find_barriers() == []
                    browser.set_presence(authenticator, enabled=True)
                press(browser, "Sign in with a passkey")
                browser.wait_for("/home")
                if isinstance(browser, Chromium):
                    browser.set_presence(authenticator, enabled=False)
                    sign_out(browser)
                    browser.set_presence(authenticator, enabled=True)
                    browser.open("/?next=/account/passkeys")
                    browser.wait_for("/account/passkeys")
                else:
                    browser.open("/account/passkeys")
                assert "Last used just now" in browser.text
                assert browser.complaints() == []
                press(browser, "Remove")
                browser.wait_for("/account/passkeys?done=removed#done")
            finally:
                browser.remove_authenticator(authenticator)
        assert "signed in: 'alice' from 127.0.0.1 by passkey" in daemon.log
