"""A real Firefox without a window, driven by Selenium without geckodriver, which Debian does not have.

geckodriver translates WebDriver into Marionette, the protocol that Firefox itself speaks
(firefox-source-docs.mozilla.org, "Marionette"): most commands have the same names and parameters in both.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from selenium.webdriver import FirefoxOptions, Remote
from selenium.webdriver.remote.client_config import ClientConfig
from selenium.webdriver.remote.command import Command
from selenium.webdriver.remote.remote_connection import RemoteConnection

from tests.helpers import PATIENCE_S
from tests.system.browser import WAIT_MAX_S, Bidi, Browser

FIREFOX = "/usr/bin/firefox-esr"
START_MAX_S = PATIENCE_S

# No requests but to the daemon. Port 0 is any free one.
PREFERENCES: dict[str, bool | int | str] = {
    "marionette.port": 0,
    "app.normandy.enabled": False,
    "app.update.disabledForTesting": True,
    "browser.newtabpage.enabled": False,
    "browser.region.network.url": "",
    "browser.safebrowsing.malware.enabled": False,
    "browser.safebrowsing.phishing.enabled": False,
    "browser.safebrowsing.update.enabled": False,
    "browser.search.update": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage": "about:blank",
    "browser.startup.page": 0,
    "captivedetect.canonicalURL": "",
    "datareporting.healthreport.uploadEnabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.getAddons.cache.enabled": False,
    "extensions.systemAddon.update.enabled": False,
    "extensions.update.enabled": False,
    "media.gmp-manager.updateEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.dns.disablePrefetch": True,
    "network.http.speculative-parallel-limit": 0,
    "network.prefetch-next": False,
    "security.webauth.webauthn_enable_softtoken": True,  # else no authenticator of a test is used
    "security.webauth.webauthn_enable_usbtoken": False,
    "services.settings.server": "data:,#remote-settings-dummy/v1",
    "signon.rememberSignons": False,
    "toolkit.telemetry.server": "",
}
NAMES = {
    Command.ADD_COOKIE: "AddCookie",
    Command.CLEAR_ELEMENT: "ElementClear",
    Command.CLICK_ELEMENT: "ElementClick",
    Command.GET: "Navigate",
    Command.GET_ALL_COOKIES: "GetCookies",
    Command.GET_CURRENT_URL: "GetCurrentURL",
    Command.GET_ELEMENT_VALUE_OF_CSS_PROPERTY: "GetElementCSSValue",
    Command.GO_BACK: "Back",
    Command.GO_FORWARD: "Forward",
    Command.QUIT: "DeleteSession",
    Command.SCREENSHOT: "TakeScreenshot",
    Command.SEND_KEYS_TO_ELEMENT: "ElementSendKeys",
    Command.W3C_ACTIONS: "PerformActions",
    Command.W3C_CLEAR_ACTIONS: "ReleaseActions",
    Command.W3C_EXECUTE_SCRIPT: "ExecuteScript",
    Command.W3C_EXECUTE_SCRIPT_ASYNC: "ExecuteAsyncScript",
    Command.W3C_GET_ACTIVE_ELEMENT: "GetActiveElement",
    Command.W3C_GET_CURRENT_WINDOW_HANDLE: "GetWindowHandle",
}
"""Marionette's names of commands that are not those of Selenium with a capital."""

CLEAN = """
    Services.cookies.removeAll();
    Services.cache2.clear();
    Cc["@mozilla.org/network/http-auth-manager;1"].getService(Ci.nsIHttpAuthManager).clearAll();
    Services.prefs.clearUserPref("javascript.enabled");
    Services.console.reset();
"""
# Violations of the policy are among them.
READ_CONSOLE = """
    const messages = Services.console.getMessageArray().filter(message =>
        message instanceof Ci.nsIScriptError && message.sourceName.startsWith(arguments[0]));
    Services.console.reset();
    return messages.map(message => message.errorMessage);
"""


class Marionette(RemoteConnection):
    """Selenium's way to a Firefox that listens on a port of this machine.

    A message is `LENGTH:JSON`; a command is `[0, number, name, parameters]`, its answer `[1, number, error, result]`.
    """

    def __init__(self, port: int) -> None:
        super().__init__(client_config=ClientConfig(f"http://127.0.0.1:{port}"))  # which it does not connect to
        self._socket = socket.create_connection(("127.0.0.1", port), START_MAX_S)
        self._reader = self._socket.makefile("rb")
        self._number = 0
        self._receive()  # its greeting

    def execute(self, command: str, params: dict[str, Any]) -> dict[str, Any]:
        if command == Command.NEW_SESSION:
            params = {"webSocketUrl": True, "acceptInsecureCerts": True}
        params.pop("sessionId", None)
        name = NAMES.get(command) or command[0].upper() + command[1:]
        return self.send(f"WebDriver:{name}", params)

    def send(self, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a command as Selenium expects it of a driver."""
        self._number += 1
        message = json.dumps([0, self._number, name, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._receive()
        if error:
            return {"status": 500, "value": json.dumps(error)}
        return result if isinstance(result, dict) and "value" in result else {"value": result}

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def _receive(self) -> Any:
        length = b""
        while (byte := self._reader.read(1)) != b":":
            assert byte, "Firefox has ended the connection"
            length += byte
        return json.loads(self._reader.read(int(length)))


class Firefox(Browser):
    """Firefox; what a page cannot do is done by scripts of the browser itself."""

    def __init__(self, driver: Remote, bidi: Bidi, url: str, marionette: Marionette) -> None:
        super().__init__(driver, bidi, url)
        self._marionette = marionette
        self.bidi.ask("session.subscribe", events=["network.beforeRequestSent"])

    def set_screen(self, size: tuple[int, int]) -> None:
        self._set_viewport({"width": size[0], "height": size[1]})

    def turn_off_scripts(self) -> None:
        self._run_inside('Services.prefs.setBoolPref("javascript.enabled", false)')

    def add_authenticator(self) -> str:
        options = {"protocol": "ctap2_1", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True}
        sent = {**options, "isUserConsenting": True, "isUserVerified": True}
        return str(self._marionette.send("WebAuthn:AddVirtualAuthenticator", sent)["value"])

    def remove_authenticator(self, authenticator: str) -> None:
        self._marionette.send("WebAuthn:RemoveVirtualAuthenticator", {"authenticatorId": authenticator})

    def reset(self) -> None:
        self._run_inside(CLEAN)
        self._set_viewport(None)
        self.requested()

    def requested(self) -> list[str]:
        urls = [event["request"]["url"] for event in self.bidi.take("network.beforeRequestSent")]
        return [url for url in urls if not url.startswith(("data:", "about:"))]

    def complaints(self) -> list[str]:
        complaints: list[str] = self._run_inside(READ_CONSOLE, self.url)
        return complaints

    def _set_viewport(self, viewport: dict[str, int] | None) -> None:
        self.bidi.ask("browsingContext.setViewport", context=self.driver.current_window_handle, viewport=viewport)

    def _run_inside(self, script: str, *arguments: str) -> Any:
        self._marionette.send("Marionette:SetContext", {"value": "chrome"})
        try:
            return self.driver.execute_script(script, *arguments)
        finally:
            self._marionette.send("Marionette:SetContext", {"value": "content"})


@contextmanager
def open_firefox(url: str, profile: Path) -> Iterator[Firefox]:
    """Yield a Firefox for the daemon at `url`, its files in `profile`."""
    profile.mkdir(exist_ok=True)
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items())
    (profile / "user.js").write_text("".join(lines))
    command = [FIREFOX, "--headless", "--no-remote", "--profile", str(profile)]
    command += ["--marionette", "--remote-debugging-port", "0", "--remote-allow-system-access"]
    with (profile / "output").open("wb") as output:
        environment = os.environ | {"HOME": str(profile), "MOZ_CRASHREPORTER_DISABLE": "1"}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        port = _read_port(profile / "MarionetteActivePort", process)
        with closing(Marionette(port)) as marionette, Remote(marionette, options=FirefoxOptions()) as driver:
            driver.set_page_load_timeout(WAIT_MAX_S)
            with closing(Bidi(driver.caps["webSocketUrl"])) as bidi:
                yield Firefox(driver, bidi, url, marionette)
    finally:
        process.terminate()
        process.wait(START_MAX_S)


def _read_port(file: Path, process: subprocess.Popen[bytes]) -> int:
    """Wait until Firefox has written where it listens."""
    deadline = time.monotonic() + START_MAX_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(FileNotFoundError, ValueError):
            return int(file.read_text())
        time.sleep(0.05)
    raise AssertionError((file.parent / "output").read_text())
