"""Headless Chromium, driven by Debian's chromedriver."""

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from tests.system.browser import WAIT_MAX_S, Bidi, Browser

CHROMIUM = "/usr/bin/chromium"
CHROMEDRIVER = "/usr/bin/chromedriver"

# No requests but to the daemon, and no process started for the next page; Chromium's sandbox does not run as root.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-features=SpareRendererForSitePerProcess",
    "--disable-sync",
]

BINDING = (
    "--enable-features=DeviceBoundSessions:RefreshQuota/false,EnableBoundSessionCredentialsSoftwareKeysForManualTesting"
)
"""The flag with which it binds sessions to its device, by keys in software and as often as a test wants it."""

PROOF = "__Host-session-proof"
"""The cookie that it renews."""


class Chromium(Browser):
    """Chromium; what a page cannot do is done by the Chrome DevTools protocol."""

    driver: Chrome

    def command(self, name: str, **parameters: Any) -> Any:
        """Send a command of the Chrome DevTools protocol; return its result."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def set_screen(self, size: tuple[int, int]) -> None:
        width, height = size
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def turn_off_scripts(self) -> None:
        self.command("Emulation.setScriptExecutionDisabled", value=True)

    def prefer(self, **features: str) -> None:
        """Emulate media features: `prefer(prefers_color_scheme="dark")`."""
        self.command(
            "Emulation.setEmulatedMedia",
            features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()],
        )

    def add_authenticator(self) -> str:
        self.command("WebAuthn.enable")
        options = {"protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True}
        added = self.command("WebAuthn.addVirtualAuthenticator", options={**options, "isUserVerified": True})
        return str(added["authenticatorId"])

    def set_presence(self, authenticator: str, *, enabled: bool) -> None:
        """Set whether the user of an authenticator touches it at once, or never; a pending request stays pending."""
        self.command("WebAuthn.setAutomaticPresenceSimulation", authenticatorId=authenticator, enabled=enabled)

    def remove_authenticator(self, authenticator: str) -> None:
        self.command("WebAuthn.removeVirtualAuthenticator", authenticatorId=authenticator)
        self.command("WebAuthn.disable")

    def reset(self) -> None:
        self.command("Emulation.setScriptExecutionDisabled", value=False)
        self.command("Emulation.clearDeviceMetricsOverride")
        self.prefer()
        self.command("Network.clearBrowserCookies")
        self.command("Network.clearBrowserCache")
        self.command("Page.resetNavigationHistory")
        self.complaints()
        self.requested()

    def requested(self) -> list[str]:
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
            and not message["params"]["request"]["url"].startswith(("chrome:", "chrome-untrusted:", "data:"))
        ]

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def open_chromium(url: str, profile: Path, *flags: str, font_size: int = 16) -> Iterator[Chromium]:
    """Yield a Chromium for the daemon at `url`, its files in `profile`, with further `flags` of the command line.

    `font_size` in CSS pixels is the reader's.
    """
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    options.accept_insecure_certs = True
    for flag in [*FLAGS, *flags, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"webkit.webprefs.default_font_size": font_size})
    options.set_capability("webSocketUrl", True)  # noqa: FBT003 - Selenium's way
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Selenium itself: no driver is fetched, no statistics are sent.
    service = Service(CHROMEDRIVER, env={**os.environ, "SE_OFFLINE": "true", "SE_AVOID_STATS": "true"})
    driver = Chrome(options, service)
    try:
        driver.set_page_load_timeout(WAIT_MAX_S)
        with closing(Bidi(driver.caps["webSocketUrl"])) as bidi:
            browser = Chromium(driver, bidi, url)
            browser.complaints()  # BiDi's own first line
            yield browser
    finally:
        driver.quit()
