"""A check of Atom feeds by the requirements of RFC 4287, and the warnings of the W3C's feed validator."""

import re
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

NAMESPACE = "{http://www.w3.org/2005/Atom}"
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_UUID = re.compile(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

_ONE, _AT_MOST_ONE, _ANY = (1, 1), (0, 1), (0, None)
_FEED = {"id": _ONE, "title": _ONE, "updated": _ONE, "author": _ANY, "link": _ANY, "entry": _ANY}
_ENTRY = {
    "id": _ONE,
    "title": _ONE,
    "updated": _ONE,
    "published": _AT_MOST_ONE,
    "author": _ANY,
    "link": _ANY,
    "content": _AT_MOST_ONE,
}
"""The elements of postd's feeds, and how often they may be there (RFC 4287 §4.1.1, §4.1.2)."""


def check_feed(document: bytes, *, url: str = "") -> ET.Element:
    """Check a feed, and that its own URL is the given one; return its root."""
    root = ET.fromstring(document)
    assert document.startswith(b'<?xml version="1.0" encoding="utf-8"?>')
    assert root.tag == f"{NAMESPACE}feed"
    assert not root.attrib
    _check_children(root, _FEED)
    entries = root.findall(f"{NAMESPACE}entry")
    has_author = root.find(f"{NAMESPACE}author") is not None
    for element in (root, *entries):
        assert _UUID.fullmatch(text_of(element, "id")), "§4.2.6: an IRI; RFC 4122 for this kind"
        assert text_of(element, "title").strip(), "the validator warns of blank titles"
        for date in (element.find(f"{NAMESPACE}{name}") for name in ("updated", "published")):
            assert date is None or _DATE.fullmatch(date.text or ""), "§3.3: RFC 3339, with T and Z in upper case"
        for author in element.findall(f"{NAMESPACE}author"):
            _check_children(author, {"name": _ONE})  # §3.2.1
            assert text_of(author, "name")
        _check_links(element)
    for entry in entries:
        _check_children(entry, _ENTRY)
        assert has_author or entry.find(f"{NAMESPACE}author") is not None, "§4.1.1"
        content = entry.find(f"{NAMESPACE}content")
        assert content is not None or links_of(entry, "alternate"), "§4.1.2"
        if content is not None:
            assert content.attrib == {"type": "text"}, "§4.1.3"
            assert not len(content), "§3.1.1.1: a text has no child elements"
        assert text_of(entry, "published") <= text_of(entry, "updated")
    ids = [text_of(element, "id") for element in (root, *entries)]
    assert len({*ids}) == len(ids)
    if entries:
        assert max(text_of(entry, "updated") for entry in entries) == text_of(root, "updated")
    if url:
        assert links_of(root, "self") == [url], "§4.1.1: the preferred URL of this document"
    return root


def text_of(element: ET.Element, name: str) -> str:
    found = element.find(f"{NAMESPACE}{name}")
    assert found is not None
    return found.text or ""


def links_of(element: ET.Element, relation: str) -> list[str]:
    return [link.attrib["href"] for link in element.findall(f"{NAMESPACE}link") if link.attrib["rel"] == relation]


def entries_of(root: ET.Element) -> list[dict[str, Any]]:
    """Return text, times and author of each entry."""
    return [
        {
            "content": text_of(entry, "content"),
            "published": text_of(entry, "published"),
            "updated": text_of(entry, "updated"),
            "author": next((text_of(author, "name") for author in entry.findall(f"{NAMESPACE}author")), None),
        }
        for entry in root.findall(f"{NAMESPACE}entry")
    ]


def _check_children(element: ET.Element, allowed: dict[str, tuple[int, int | None]]) -> None:
    names = [child.tag.removeprefix(NAMESPACE) for child in element]
    assert {*names} <= allowed.keys()
    for name, (least, most) in allowed.items():
        assert least <= names.count(name) <= (len(names) if most is None else most), name


def _check_links(element: ET.Element) -> None:
    links = [child.attrib for child in element if child.tag == f"{NAMESPACE}link"]
    assert all({*link} == {"rel", "type", "href"} for link in links), "§4.2.7"
    alternates = [link["type"] for link in links if link["rel"] == "alternate"]
    assert len({*alternates}) == len(alternates), "§4.1.1: one alternate of each type"
    for link in links:
        assert urlsplit(link["href"]).path.startswith("/")
