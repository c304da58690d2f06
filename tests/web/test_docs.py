"""The documentation page: it has every operation, is self-contained, and escapes markup."""

import json
import re
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from postd.schemes import load_schemes
from postd.web.pages.docs import DOCS_POLICY, make_docs_page
from tests.helpers import InMemoryApi
from tests.protect.test_bearer import ISSUERS
from tests.web.test_openapi import ALL, operations, read
from tests.web.wire import ask

VOID = {"meta"}
TITLES = {name: scheme.description.title for name, scheme in load_schemes().items()}
MARKUP = """</title></style></code></p><script>alert(1)</script><!-- $title ${style} & " ' \\"""


class Page(HTMLParser):
    """The content of a page; its tags must be balanced."""

    def __init__(self, source: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.labels: list[str] = []
        self.headings: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        assert not [name for name in given if name.startswith("on") or name == "style"]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if "href" in given else []
        self.labels += [given["aria-labelledby"] or ""] if "aria-labelledby" in given else []
        self.headings += [tag] if re.fullmatch(r"h[1-6]", tag) else []
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


@pytest.fixture
def complete_api(make: Callable[[str], InMemoryApi]) -> InMemoryApi:
    return make(ALL + ISSUERS)


def words(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def test_docs_page_is_self_contained(complete_api: InMemoryApi) -> None:
    answer = ask(complete_api, "GET", "/docs")
    assert answer.header("Content-Type") == "text/html; charset=utf-8"
    assert answer.header("Content-Security-Policy") == DOCS_POLICY.decode()
    assert "script-src" not in DOCS_POLICY.decode()
    assert answer.header("X-Frame-Options") == "DENY"
    assert answer.header("Referrer-Policy") == "same-origin"
    page = Page(answer.body)
    assert not {"script", "link", "img", "iframe", "form", "base"} & set(page.tags)
    assert all(link.startswith("#") or link == "/openapi.json" for link in page.links)


def test_docs_sections_are_labeled_and_links_resolve(complete_api: InMemoryApi) -> None:
    page = Page(ask(complete_api, "GET", "/docs").body)
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links} - {"/openapi.json"} <= set(page.ids)
    assert set(page.labels) <= set(page.ids)
    assert page.tags.count("section") + page.tags.count("article") == len(page.labels)
    # No heading level is skipped.
    levels = [int(heading[1]) for heading in page.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))


def test_docs_page_has_every_operation(complete_api: InMemoryApi) -> None:
    text = words(Page(ask(complete_api, "GET", "/docs").body).text)
    document = read(complete_api)
    told = list(operations(document))
    assert len(told) > 15
    for method, path, operation in told:
        assert f"{method} {path} {operation['summary']}" in text
        assert words(operation["description"]) in text
        assert operation["x-codeSamples"][0]["source"] in text
        for response in operation["responses"].values():
            assert words(response.get("description", "")) in text
    for component in (*document["components"]["parameters"].values(), *document["components"]["responses"].values()):
        assert words(component["description"]) in text


def test_docs_page_names_the_schemes(make: Callable[[str], InMemoryApi]) -> None:
    api = make('[api]\nread = ["open"]\nwrite = ["basic", "digest", "session"]\n')
    text = words(Page(ask(api, "GET", "/docs").body).text)
    assert "GET /post List the posts" in text
    assert text.count("Authentication Digest, Basic or Session.") == 3
    assert "Bearer" not in text


def test_examples_use_the_required_scheme(make: Callable[[str], InMemoryApi]) -> None:
    for scheme, option in {
        "open": "curl -X",
        "basic": "curl -u alice -X",
        "digest": "curl --digest -u alice -X",
        "bearer": 'curl -H "Authorization: Bearer $TOKEN" -X',
        "session": "curl -b cookies.txt -X",
    }.items():
        text = Page(ask(make(f'[api]\nwrite = ["{scheme}"]\n'), "GET", "/docs").body).text
        assert f'{option} DELETE "$POSTD/post/1"' in text


def test_markup_in_the_document_is_escaped(complete_api: InMemoryApi) -> None:
    def add_markup(value: Any) -> Any:
        """Append markup to every text except structural values of the document."""
        if isinstance(value, dict):
            return {name: one if name in kept else add_markup(one) for name, one in value.items()}
        if isinstance(value, list):
            return [add_markup(one) for one in value]
        return value + MARKUP if isinstance(value, str) else value

    kept = {"$ref", "tags", "name", "in", "type", "operationId", "securitySchemes", "security", "required"}
    page = make_docs_page(add_markup(read(complete_api)), TITLES, MARKUP)
    assert b"<script" not in page
    assert b"<!--" not in page
    assert escape(MARKUP).encode() in page
    plain = Page(ask(complete_api, "GET", "/docs").body)
    assert Page(page).tags == plain.tags


def test_markup_in_the_realm_is_escaped(make: Callable[[str], InMemoryApi]) -> None:
    realm = "</style><script>$title</script>&amp;'"
    page = ask(make(f"realm = {json.dumps(realm)}\n"), "GET", "/docs").body
    assert b"<script" not in page
    assert realm in Page(page).text
