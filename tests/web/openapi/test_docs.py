"""The documentation page: it has every operation, is self-contained, and escapes markup."""

import json
import re
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pkgutil import resolve_name
from typing import Any

import pytest

from postd.protect.schemes.interface import SchemeDescription
from postd.scheme_names import SCHEMES
from postd.web.openapi import document as documents
from postd.web.openapi.page import DOCS_POLICY, make_docs_page
from postd.web.samples import SampleRequest, make_samples
from tests.helpers import InMemoryApi
from tests.protect.test_bearer import ISSUERS
from tests.web.openapi.test_openapi import ALL, operations, read
from tests.web.wire import ask

VOID = {"meta"}
TITLES = {name: resolve_name(place).description.title for name, place in SCHEMES.items()}
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
    assert [link for link in page.links if not link.startswith("#")] == ["/", "/board", "/openapi.json"]


def test_docs_sections_are_labeled_and_links_resolve(complete_api: InMemoryApi) -> None:
    page = Page(ask(complete_api, "GET", "/docs").body)
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} <= set(page.ids)
    assert set(page.labels) <= set(page.ids)
    assert page.tags.count("section") + page.tags.count("article") == len(page.labels)
    # No heading level is skipped.
    levels = [int(heading[1]) for heading in page.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))


def test_docs_page_has_every_operation(complete_api: InMemoryApi) -> None:
    text = words(Page(ask(complete_api, "GET", "/docs", headers={"Host": "127.0.0.1:8080"}).body).text)
    document = read(complete_api)
    described = list(operations(document))
    assert len(described) > 15
    for method, path, operation in described:
        assert f"{method} {path} {operation['summary']}" in text
        assert words(operation["description"]) in text
        for sample in operation["x-codeSamples"]:
            assert words(sample["source"]) in text
        for response in operation["responses"].values():
            assert words(response.get("description", "")) in text
    for component in (*document["components"]["parameters"].values(), *document["components"]["responses"].values()):
        assert words(component["description"]) in text


def test_docs_page_names_the_schemes(make: Callable[[str], InMemoryApi]) -> None:
    api = make('[api]\nread = ["open"]\nwrite = ["basic", "digest", "session"]\n')
    text = words(Page(ask(api, "GET", "/docs").body).text)
    assert "GET /post List the posts" in text
    assert text.count("Authentication Digest, Basic or Session.") == 6
    assert text.count("Authentication Optional: Digest, Basic or Session.") == 7
    assert "Bearer" not in text


@pytest.mark.parametrize(
    ("scheme", "curl", "httpx", "treq"),
    [
        ("open", "curl -i -X", "", ""),
        ("basic", "curl -i -u alice -X", 'auth=("alice", getpass())', 'auth=("alice", getpass())'),
        ("digest", "curl -i --digest -u alice -X", "auth=httpx.DigestAuth(", "agent=client.agent"),
        ("bearer", 'curl -i -H "Authorization: Bearer $TOKEN" -X', 'headers={"Auth', 'headers={"Auth'),
        ("session", "curl -i -b cookies.txt -X", "cookies=form.cookies)", "cookies=form.cookies())"),
    ],
)
def test_samples_use_the_required_scheme(
    make: Callable[[str], InMemoryApi], scheme: str, curl: str, httpx: str, treq: str
) -> None:
    samples = read(make(f'[api]\nwrite = ["{scheme}"]\n'))["paths"]["/post/{id}"]["delete"]["x-codeSamples"]
    assert [(sample["lang"], sample["label"]) for sample in samples] == [
        ("Shell", "curl"),
        ("Python", "httpx"),
        ("Python", "treq"),
    ]
    assert samples[0]["source"] == f"{curl} DELETE 'http://127.0.0.1:8080/post/1'"
    for sample, argument in zip(samples[1:], (httpx, treq), strict=True):
        assert argument in sample["source"]
        compile(sample["source"], sample["label"], "exec")


def test_scheme_without_code_has_a_sample_for_curl_alone() -> None:
    scheme = SchemeDescription(title="API key", security={}, curl='-H "X-Api-Key: $KEY"')
    assert list(make_samples(SampleRequest("GET", "/post"), {"apikey": scheme})) == [
        {
            "lang": "Shell",
            "label": "curl",
            "source": "curl -i -H \"X-Api-Key: $KEY\" 'http://127.0.0.1:8080/post'",
        }
    ]


def test_operation_with_several_schemes_has_a_sample_for_each(complete_api: InMemoryApi) -> None:
    samples = read(complete_api)["paths"]["/post"]["post"]["x-codeSamples"]
    assert [sample["label"] for sample in samples] == [
        f"{client}, {title}" for client in ("curl", "httpx", "treq") for title in ("Digest", "Bearer token", "Session")
    ]


def test_page_shows_the_origin_of_the_client(make: Callable[[str], InMemoryApi]) -> None:
    api = make('public_url = ""\nhosts = ["*"]\n')
    pages = [ask(api, "GET", "/docs", headers={"Host": host}) for host in ("posts.example", "[::1]:81", "x'y\"")]
    bodies = [page.body.decode() for page in pages]
    assert escape("curl -i 'http://posts.example/docs'") in bodies[0]
    assert escape("curl -i 'http://[::1]:81/docs'") in bodies[1]
    assert "x&#x27;y" not in bodies[2]
    assert "x'y" not in bodies[2]
    assert [page.header("Cache-Control") for page in pages] == ["no-store"] * 3
    assert len({page.header("ETag") for page in pages}) == 3
    fixed = ask(make('public_url = "https://posts.example"\n'), "GET", "/docs", headers={"Host": "other.localhost"})
    assert b"https://posts.example/post" in fixed.body
    assert b"127.0.0.1" not in fixed.body
    assert fixed.header("Cache-Control") == "no-cache"


def test_page_does_not_grow_with_the_host(make: Callable[[str], InMemoryApi]) -> None:
    api = make('public_url = ""\nhosts = ["*"]\n')
    for host in ("x" * 15_000, f"[{':' * 15_000}]"):
        assert host.encode() not in ask(api, "GET", "/docs", headers={"Host": host}).body
    longest = "x" * 255
    assert f"http://{longest}/post".encode() in ask(api, "GET", "/docs", headers={"Host": longest}).body


def test_document_is_made_once_when_it_is_first_requested(
    make: Callable[[str], InMemoryApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, original = [], documents.make_document

    def make_document(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        made.append(arguments)
        return original(*arguments, **keywords)

    monkeypatch.setattr("postd.web.openapi.docs.make_document", make_document)
    monkeypatch.setattr("postd.web.openapi.docs.ORIGINS_MAX", 1)
    api = make('hosts = ["*"]\n')
    assert made == []
    for path in ("/docs", "/openapi.json", "/docs"):
        for host in ("one.example", "two.example"):
            answer = ask(api, "GET", path, headers={"Host": host})
            assert answer.status == 200
            assert (f"http://{host}/post" in answer.body.decode()) == (path == "/docs")
    assert len(made) == 1


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
