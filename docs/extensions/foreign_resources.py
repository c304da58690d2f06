"""Find what built pages load from other hosts: scripts, styles, fonts, pictures, frames."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_LINKS = {"a", "area"}
"""Elements whose URL is loaded only when a reader follows it."""

_INERT_RELATIONS = {"author", "canonical", "license", "next", "prev", "search"}
"""Relations of `link` that load nothing."""

_FOREIGN = re.compile(r"(?:https?:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


def find(folder: Path) -> Iterator[str]:
    """Yield `FILE: URL` for each URL of another host that a page or style sheet below a folder loads."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in {".html", ".css", ".svg"}:
            text = file.read_text("utf-8")
            for url in [*_in_elements(text), *_IN_STYLE.findall(text)]:
                yield f"{file.relative_to(folder)}: {url}"


def _in_elements(text: str) -> list[str]:
    parser = _Elements()
    parser.feed(text)
    return parser.found


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in _LINKS or (tag == "link" and set(values.get("rel", "").split()) <= _INERT_RELATIONS):
            return
        loaded = [values.get(name, "") for name in ("src", "href", "xlink:href", "data", "poster")]
        loaded += [candidate.strip() for candidate in values.get("srcset", "").split(",")]
        self.found += [url for url in loaded if _FOREIGN.match(url)]
