"""A browser without JavaScript: it follows redirects and links, keeps cookies and submits forms."""

from html.parser import HTMLParser
from typing import Self
from urllib.parse import urlencode, urljoin, urlsplit

import httpx
from msgspec import Struct, field

from tests.helpers import PATIENCE_S

HEADERS = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
FORM = "application/x-www-form-urlencoded"
REDIRECTS_MAX = 20

Pairs = list[tuple[str, str]]


class Button(Struct):
    """A submit button; its label is its text, or its value."""

    name: str = ""
    value: str = ""
    label: str = ""


class Form(Struct):
    """A form: what it submits without a button, and its buttons."""

    action: str
    method: str
    fields: Pairs = field(default_factory=list)
    buttons: list[Button] = field(default_factory=list)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: dict[str, str] = {}
        self._by_id: dict[str, Form] = {}
        self._form: Form | None = None
        self._button: Button | None = None
        self._link = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        name, value = given.get("name", ""), given.get("value", "")
        form = self._by_id.get(given.get("form", ""), self._form)
        if tag == "form":
            self._form = Form(given.get("action", ""), given.get("method", "get").lower())
            self.forms.append(self._form)
            if "id" in given:
                self._by_id[given["id"]] = self._form
        elif tag == "a":
            self._link = given.get("href", "")
        elif form and tag == "button":
            self._button = Button(name, value)
            form.buttons.append(self._button)
        elif form and tag == "input":
            kind = given.get("type", "text")
            if kind == "submit":
                form.buttons.append(Button(name, value, value))
            elif name and (kind not in {"checkbox", "radio"} or "checked" in given):
                form.fields.append((name, value))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "button":
            self._button = None
        elif tag == "a":
            self._link = ""

    def handle_data(self, data: str) -> None:
        if self._button:
            self._button.label = f"{self._button.label} {data.strip()}".strip()
        elif self._link:
            self.links.setdefault(data.strip(), self._link)


class FormBrowser:
    """Opens one page after another; ends with the `with` block. What opens a page returns the number of redirects.

    Attributes:
        url: the address of the page.
        text: its HTML.
        status: its status.
        redirects: the URLs that it was redirected to since the last link or button.
    """

    def __init__(self) -> None:
        self._client = httpx.Client(headers=HEADERS, timeout=PATIENCE_S)
        self.url = self.text = ""
        self.status = 0
        self.redirects: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def buttons(self) -> list[str]:
        """The labels of all buttons."""
        return [button.label for form in self._parsed().forms for button in form.buttons]

    def open(self, url: str) -> int:
        return self._send(self._client.build_request("GET", urljoin(self.url, url)))

    def follow(self, link: str) -> int:
        """Open a link by its text."""
        return self.open(self._parsed().links[link])

    def press(self, label: str, **filled: str) -> int:
        """Press a button by its label; first fill in fields of its form."""
        found = [(form, one) for form in self._parsed().forms for one in form.buttons if one.label == label]
        assert found, f"no button {label!r}, but {self.buttons} at {self.url}: {self.text}"
        form, button = found[0]
        pairs = [(name, value) for name, value in form.fields if name not in filled]
        pairs += [*filled.items(), *([(button.name, button.value)] if button.name else [])]
        url = urljoin(self.url, form.action)
        if form.method == "get":
            return self._send(self._client.build_request("GET", f"{url}?{urlencode(pairs)}"))
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(self.url))
        headers = {"Content-Type": FORM, "Origin": origin, "Referer": self.url}
        return self._send(self._client.build_request("POST", url, content=urlencode(pairs), headers=headers))

    def disconnect(self) -> None:
        """Close the connections: the next request opens one."""
        cookies = self._client.cookies
        self._client.close()
        self._client = httpx.Client(headers=HEADERS, timeout=PATIENCE_S, cookies=cookies)

    def _parsed(self) -> _Parser:
        parser = _Parser()
        parser.feed(self.text)
        return parser

    def _send(self, request: httpx.Request) -> int:
        self.redirects = []
        response = self._client.send(request)
        while response.next_request:
            self.redirects.append(str(response.next_request.url))
            assert len(self.redirects) <= REDIRECTS_MAX, self.redirects
            response = self._client.send(self._client.build_request("GET", response.next_request.url))
        self.url, self.text, self.status = str(response.url), response.text, response.status_code
        return len(self.redirects)
