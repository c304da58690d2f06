"""A real Chromium without a window, and what it saw."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import TimeoutException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.integration.daemon import Daemon

CHROMIUM = "/usr/bin/chromium"
CHROMEDRIVER = "/usr/bin/chromedriver"
ROOT = Path(__file__).parent.parent.parent
AXE = Path(os.environ.get("POSTD_TEST_AXE", ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"))

WAIT_MAX_S = 15.0
PHONE = (375, 667)
NARROWEST = (320, 568)
DESK = (1280, 800)

# It is to speak to nobody but the daemon, and root may not have Chromium's sandbox.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE_RUN = """
    const done = arguments[arguments.length - 1];
    axe.run({rules: {"target-size": {enabled: true}}}).then(done, error => done({error: String(error)}));
"""


class Browser:
    """One browser with a profile of its own; the daemon's page is `url` and below."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    @property
    def path(self) -> str:
        """The address in the address bar; below the daemon without its scheme and authority."""
        return self.driver.current_url.removeprefix(self.url)

    @property
    def text(self) -> str:
        """What there is to read."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    @property
    def focused(self) -> str:
        """The name of the field that has the focus, or else the word on the button or the link."""
        element = self.driver.switch_to.active_element
        return element.get_attribute("name") or element.get_attribute("value") or element.text

    @property
    def is_loaded(self) -> bool:
        return bool(self.driver.execute_script("return document.readyState") == "complete")

    @property
    def width(self) -> int:
        """How wide the page is, with what one has to scroll for, in CSS pixels."""
        width: int = self.driver.execute_script("return document.documentElement.scrollWidth")
        return width

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def type(self, *keys: str) -> None:
        """Press keys, without touching the pointer."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def wait_for(self, path: str) -> None:
        """Wait until the browser is there, with the whole page."""
        try:
            WebDriverWait(self.driver, WAIT_MAX_S).until(lambda _: self.path == path and self.is_loaded)
        except TimeoutException:
            raise AssertionError(f"not at {path} but at {self.path}: {self.text}") from None

    def command(self, name: str, **parameters: Any) -> None:
        """Send a command of the Chrome DevTools protocol."""
        self.driver.execute_cdp_cmd(name, parameters)

    def set_screen(self, size: tuple[int, int]) -> None:
        """Take a screen of so many CSS pixels, width and height."""
        width, height = size
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, **features: str) -> None:
        """Ask for what @media tells: `prefer(prefers_color_scheme="dark")`."""
        self.command(
            "Emulation.setEmulatedMedia",
            features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()],
        )

    def begin_anew(self) -> None:
        """Be as it was at first: to start another one for each test would take too long."""
        self.command("Emulation.setScriptExecutionDisabled", value=False)
        self.command("Emulation.clearDeviceMetricsOverride")
        self.prefer()
        self.open("/")
        self.driver.delete_all_cookies()
        self.command("Network.clearBrowserCache")
        self.driver.get("about:blank")
        self.command("Page.resetNavigationHistory")
        self.complaints()
        self.requested()

    def requested(self) -> list[str]:
        """Return the addresses that it sent requests to since the last call, in order, but for its own parts."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
            and not message["params"]["request"]["url"].startswith(("chrome:", "chrome-untrusted:", "data:"))
        ]

    def complaints(self) -> list[str]:
        """Return what the console has got since the last call: errors, and violations of the policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def find_barriers(self) -> list[str]:
        """Return what axe finds wrong with the page, and what it could not decide."""
        assert AXE.is_file(), f"axe-core is missing: npm install --prefix {ROOT}/.venv/axe axe-core (wanted: {AXE})"
        self.driver.execute_script(AXE.read_text("utf-8"))
        result: Mapping[str, Any] = self.driver.execute_async_script(AXE_RUN)
        assert result.get("passes"), result
        return [
            f"{rule['id']}: {rule['help']}: {node['html']}: {node.get('failureSummary')}"
            for rule in [*result["violations"], *result["incomplete"]]
            for node in rule["nodes"]
        ]


@pytest.fixture(scope="module")
def one_browser(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests of a module, for the daemon of it; who uses it has it `begin_anew`."""
    with open_browser(daemon.url, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@contextmanager
def open_browser(url: str, profile: Path, *flags: str, font_size: int = 16) -> Iterator[Browser]:
    """Yield a browser for the daemon at `url`, its files in `profile`, with further `flags` of the command line.

    `font_size` in CSS pixels is the reader's.
    """
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, *flags, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"webkit.webprefs.default_font_size": font_size})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Selenium itself: no driver is fetched, no statistics are sent.
    service = Service(CHROMEDRIVER, env={**os.environ, "SE_OFFLINE": "true", "SE_AVOID_STATS": "true"})
    driver = Chrome(options, service)
    try:
        driver.set_page_load_timeout(WAIT_MAX_S)
        yield Browser(driver, url)
    finally:
        driver.quit()
