"""Sign-in at a real OpenID provider, npm's oidc-provider, at a real `twistd postd`, without JavaScript.

`test_browser.py` does the same in Chromium and Firefox.
"""

from collections.abc import Iterator

import pytest

from tests.helpers import wait_until
from tests.system.form_browser import FormBrowser
from tests.system.sign_in_site import BUTTON, CONFIRM, USER, Site, serve_site

CONNECTIONS = 16
"""Requests on connections of their own, which reach both workers."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serve_site(tmp_path_factory.mktemp("daemon")) as site:
        yield site


def sign_in(browser: FormBrowser, site: Site) -> list[int]:
    """Sign in, from the address of the board back to it; return the number of redirects of each step."""
    counts = [
        browser.open(f"{site.url}/board"),
        browser.follow(BUTTON),
        browser.press("Sign-in", login="alice", password="any"),
        browser.press("Continue"),
    ]
    assert (browser.status, browser.url) == (200, f"{site.url}/board")
    return counts


def test_user_signs_in_and_out(site: Site) -> None:
    with FormBrowser() as browser:
        assert sign_in(browser, site) == [1, 2, 2, 3]
        browser.open("/home")
        assert USER in browser.text
        browser.open("/logout")
        assert browser.press("Sign out") == 1
        assert browser.redirects[0].startswith(f"{site.provider.issuer}/session/end?id_token_hint=")
        browser.press(CONFIRM)
        assert (browser.redirects, browser.url) == ([f"{site.url}/"], f"{site.url}/")
        browser.open("/home")
        assert browser.redirects == [f"{site.url}/"]
        browser.follow(BUTTON)
        assert "Sign-in" in browser.buttons, "the provider has ended its session, too"


def test_second_sign_in_has_no_page(site: Site) -> None:
    """While the session at the provider lasts, the button alone signs in."""
    with FormBrowser() as browser:
        sign_in(browser, site)
        assert browser.open("/login/example?next=/board") == 3
        assert browser.url == f"{site.url}/board"
        callback = browser.redirects[-2]
        browser.open(callback)
        assert browser.status == 400
        assert browser.follow(BUTTON) == 3, "a bookmark of the callback leads to the button"


def test_back_channel_logout_ends_the_session_on_all_workers(site: Site) -> None:
    with FormBrowser() as browser, FormBrowser() as other:
        sign_in(browser, site)
        sign_in(other, site)
        browser.open(f"{site.provider.issuer}/session/end")
        browser.press(CONFIRM)
        wait_until(lambda: not any(is_signed_in(browser, site) for _ in range(CONNECTIONS)))
        assert is_signed_in(other, site)
    assert "the provider has ended 1 session" in site.daemon.log


def is_signed_in(browser: FormBrowser, site: Site) -> bool:
    """Return whether a session lives, asked on a new connection."""
    browser.open(f"{site.url}/home")
    browser.disconnect()
    return browser.url == f"{site.url}/home"


def test_log_has_neither_code_nor_token(site: Site) -> None:
    with FormBrowser() as browser:
        sign_in(browser, site)
    assert "/login/example/callback" in site.daemon.log
    assert [secret for secret in ("code=", "state=", "eyJ") if secret in site.daemon.log] == []
    assert "Traceback" not in site.daemon.log
