"""Headless browsers and their observations; `chromium.py` and `firefox.py` start them."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import websocket
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver import Remote
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.helpers import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
AXE = Path(os.environ.get("POSTD_TEST_AXE", ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"))

WAIT_MAX_S = PATIENCE_S
POLL_S = 0.1
"""How often a condition is checked that is waited for."""

PHONE = (375, 667)
NARROWEST = (320, 568)
DESK = (1280, 800)

# Without `resultTypes` axe describes each element that passes.
AXE_RUN = """
    const done = arguments[arguments.length - 1];
    const rules = arguments[0] ? {runOnly: arguments[0]} : {rules: {"target-size": {enabled: true}}};
    axe.run({...rules, resultTypes: ["violations", "incomplete"]}).then(done, error => done({error: String(error)}));
"""
AXE_OF_COLORS = ["color-contrast", "link-in-text-block"]
"""The rules of axe that a color scheme or a contrast can break; they take a third of the time of all."""
SMALLEST = """
    const targets = [...document.querySelectorAll(arguments[0])].filter(
        target => target.checkVisibility({opacityProperty: true, visibilityProperty: true})
    );
    return Math.min(...targets.flatMap(target => {
        const {width, height} = target.getBoundingClientRect();
        return [width, height];
    }));
"""
STICKING_OUT = """
    return [...document.querySelectorAll("body, body *:not(option)")].filter(element => {
        const {left, right} = element.getBoundingClientRect();
        return left < 0 || right > window.innerWidth + 0.5;
    }).map(element => element.outerHTML.slice(0, 100));
"""


class Bidi:
    """A connection to a browser by WebDriver BiDi (w3.org/TR/webdriver-bidi); the session is that of the driver."""

    def __init__(self, url: str) -> None:
        self._connection = websocket.create_connection(url, timeout=WAIT_MAX_S, suppress_origin=True)
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command.

        Raises:
            AssertionError: the browser has refused it.
        """
        self.send(method, **parameters)
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert answer["type"] == "success", answer
        result: dict[str, Any] = answer["result"]
        return result

    def close(self) -> None:
        self._connection.close()

    def send(self, method: str, **parameters: Any) -> None:
        """Send a command without waiting for its answer."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))

    def take(self, name: str) -> list[dict[str, Any]]:
        """Return the parameters of the events of this name since the last call, in order."""
        self.ask("session.status")  # whatever came before its answer is read with it
        taken = [event["params"] for event in self._events if event["method"] == name]
        self._events = [event for event in self._events if event["method"] != name]
        return taken

    def wait_for(self, name: str) -> dict[str, Any]:
        """Wait for an event of this name that has not been taken, and take it; return its parameters."""
        while True:
            for event in self._events:
                if event["method"] == name:
                    self._events.remove(event)
                    return dict(event["params"])
            self._receive()

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv())
        if message["type"] == "event":
            self._events.append(message)
        return message


class Browser(ABC):
    """A browser with a profile of its own; `url` is the daemon's origin."""

    def __init__(self, driver: Remote, bidi: Bidi, url: str) -> None:
        self.driver = driver
        self.bidi = bidi
        self.url = url
        self._first: list[str] = []

    @property
    def path(self) -> str:
        """The address in the address bar; below the daemon without its scheme and authority."""
        return self.driver.current_url.removeprefix(self.url)

    @property
    def text(self) -> str:
        """The visible text."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    @property
    def focused(self) -> str:
        """The name of the focused field, or the text of the focused button or link."""
        element = self.driver.switch_to.active_element
        return element.get_attribute("name") or element.get_attribute("value") or element.text

    @property
    def is_loaded(self) -> bool:
        return bool(self.driver.execute_script("return document.readyState") == "complete")

    @property
    def width(self) -> int:
        """The width of the page, with its overflow, in CSS pixels."""
        width: int = self.driver.execute_script("return document.documentElement.scrollWidth")
        return width

    @property
    def sticking_out(self) -> list[str]:
        """The elements that are not within the width of the screen."""
        elements: list[str] = self.driver.execute_script(STICKING_OUT)
        return elements

    def smallest(self, selector: str) -> float:
        """Return the least width or height of the visible elements, in CSS pixels."""
        size: float = self.driver.execute_script(SMALLEST, selector)
        return size

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def type(self, *keys: str) -> None:
        """Press keys."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def wait_until(self, condition: Callable[[], object], expected: str = "") -> None:
        """Wait until a condition holds.

        A driver has many errors for a page that is replaced while it is read (`StaleElementReferenceException`, or
        Chromium's "Node with given id does not belong to the document"): the condition is then checked again.
        """
        wait = WebDriverWait(self.driver, WAIT_MAX_S, POLL_S, ignored_exceptions=[WebDriverException])
        try:
            wait.until(lambda _: condition())
        except TimeoutException:
            raise AssertionError(f"{expected} not in time; at {self.path}: {self.text}") from None

    def wait_for(self, path: str) -> None:
        """Wait until the browser has loaded the page at a path."""
        self.wait_until(lambda: self.path == path and self.is_loaded, path)

    def wait_for_focus(self, name: str) -> None:
        """Wait until an element has the focus: a browser may set it (`autofocus`) some time after loading the page."""
        self.wait_until(lambda: self.focused == name, f"focus on {name!r}")

    def run_first(self, script: str) -> None:
        """Run a script in each page before its own ones, until `begin_anew`."""
        added = self.bidi.ask("script.addPreloadScript", functionDeclaration=f"() => {{ {script} }}")
        self._first.append(added["script"])

    def store_session(self, cookie: str) -> None:
        """Store a session cookie, which is faster than typing a password.

        Args:
            cookie: the name and the value.
        """
        name, _, value = cookie.partition("=")
        host = urlsplit(self.url).hostname
        text = {"type": "string", "value": value}
        stored = {"name": name, "value": text, "domain": host, "httpOnly": True, "sameSite": "lax"}
        self.bidi.ask("storage.setCookie", cookie=stored)

    def open_with_credentials(self, path: str, *given: tuple[str, str] | None) -> None:
        """Open a page for which the browser itself asks for a name and a password.

        Args:
            path: the page.
            given: what is entered each time that the browser asks; None dismisses the dialog.
        """
        self.bidi.ask("session.subscribe", events=["network.authRequired"])
        intercept = self.bidi.ask("network.addIntercept", phases=["authRequired"])["intercept"]
        context = self.driver.current_window_handle
        # Chromium answers this when the page answers.
        self.bidi.send("browsingContext.navigate", context=context, url=self.url + path, wait="none")
        for pair in given:
            request = self.bidi.wait_for("network.authRequired")["request"]["request"]
            answer: dict[str, Any] = {"action": "cancel"}
            if pair:
                credentials = {"type": "password", "username": pair[0], "password": pair[1]}
                answer = {"action": "provideCredentials", "credentials": credentials}
            self.bidi.ask("network.continueWithAuth", request=request, **answer)
        self.wait_for(path)
        self.bidi.ask("network.removeIntercept", intercept=intercept)

    def find_barriers(self, rules: Sequence[str] = ()) -> list[str]:
        """Return the violations that axe finds, and the checks that it could not decide; by all rules unless given."""
        assert AXE.is_file(), f"axe-core is missing: npm install --prefix {ROOT}/.venv/axe axe-core (wanted: {AXE})"
        if not self.driver.execute_script("return 'axe' in window"):
            self.driver.execute_script(AXE.read_text("utf-8"))
        result: Mapping[str, Any] = self.driver.execute_async_script(AXE_RUN, [*rules] or None)
        assert result.get("passes"), result
        return [
            f"{rule['id']}: {rule['help']}: {node['html']}: {node.get('failureSummary')}"
            for rule in [*result["violations"], *result["incomplete"]]
            for node in rule["nodes"]
        ]

    @abstractmethod
    def set_screen(self, size: tuple[int, int]) -> None:
        """Set the size of the screen, width and height in CSS pixels."""

    @abstractmethod
    def turn_off_scripts(self) -> None:
        """Disable JavaScript, until `begin_anew`."""

    @contextmanager
    def at(self, url: str) -> Iterator[Self]:
        """Use it for another daemon, and reset it afterwards."""
        before, self.url = self.url, url
        try:
            yield self
        finally:
            self.begin_anew()
            self.url = before

    def begin_anew(self) -> None:
        """Reset the browser: starting one for each test would take too long."""
        while self._first:
            self.bidi.ask("script.removePreloadScript", script=self._first.pop())
        with suppress(WebDriverException):  # a page without storage, such as about:blank
            self.driver.execute_script("sessionStorage.clear()")
        self.driver.get("about:blank")
        self.reset()

    @abstractmethod
    def add_authenticator(self) -> str:
        """Add an authenticator with a user who is verified; return its id."""

    @abstractmethod
    def remove_authenticator(self, authenticator: str) -> None:
        """Remove an authenticator with its passkeys."""

    @abstractmethod
    def reset(self) -> None:
        """Undo what tests have set, and forget what the browser has stored and observed."""

    @abstractmethod
    def requested(self) -> list[str]:
        """Return the URLs that pages have requested since the last call, in order."""

    @abstractmethod
    def complaints(self) -> list[str]:
        """Return the console messages since the last call: errors, and violations of the policy."""


OpenBrowser = Callable[[str, Path], AbstractContextManager[Browser]]
