"""Basic and Digest with the password dialog of a browser."""

from collections.abc import Iterator

import pytest

from tests.integration.daemon import Daemon
from tests.system.browser import Browser
from tests.system.test_browser import PASSWORD, add_user

SETTINGS = """
[[page]]
path = "/basic"
schemes = ["basic"]
[[page]]
path = "/digest"
schemes = ["digest"]
"""


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


@pytest.mark.parametrize("scheme", ["basic", "digest"])
def test_browser_dialog_signs_in_once(browser: Browser, scheme: str) -> None:
    browser.open_with_credentials(f"/{scheme}?dismissed", None)
    assert browser.text.startswith("postd\nUnauthorized\nCredentials are required. Reload this page")
    browser.open_with_credentials(f"/{scheme}", ("alice", "wrong"), ("alice", PASSWORD))
    assert browser.text == "Success: alice"
    browser.open(f"/{scheme}?again")
    assert browser.text == "Success: alice"
