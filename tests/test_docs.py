"""The reference, the citations of it in code and settings, and the links between Markdown files."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.cases import each

ROOT = Path(__file__).parent.parent
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
CITING = ("postd", "tests", "bench", "etc")

_CITATION = "reference" + ": "
_WRAPPED = re.compile(r"\s*\n\s*(?:#+|--|//)?\s*")
"""The end of a line in a citation, with the comment sign of the next one."""


def without_blocks(text: str) -> str:
    """Return a Markdown text without its blocks of code."""
    return re.sub(r"(?ms)^```.*?^```", "", text)


def headings() -> list[str]:
    """Return the titles and sections of the reference."""
    text = "\n".join(page.read_text("utf-8") for page in REFERENCE)
    return re.findall(r"^##? (.+)$", without_blocks(text), re.MULTILINE)


def citations() -> Iterator[tuple[str, str]]:
    """Yield the file of each citation, and the words that follow `reference:`."""
    for path in (path for folder in CITING for path in sorted((ROOT / folder).rglob("*")) if path.is_file()):
        if {"node_modules", "__pycache__"} & set(path.parts):
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for cited in _WRAPPED.sub(" ", text).split(_CITATION)[1:]:
            yield str(path.relative_to(ROOT)), cited[:40]


def is_cited_heading(cited: str) -> bool:
    return any(re.match(rf"{re.escape(heading)}(?!\w)", cited) for heading in headings())


def test_every_citation_of_the_reference_names_a_heading() -> None:
    assert [found for found in citations() if not is_cited_heading(found[1])] == []


def test_a_citation_of_an_absent_heading_is_found() -> None:
    assert not is_cited_heading("Postage, and more")
    assert is_cited_heading("Post API; RFC 9110")


def test_headings_and_row_numbers_of_the_reference_are_unique() -> None:
    text = "\n".join(page.read_text("utf-8") for page in REFERENCE)
    first_cells = re.findall(r"^\| ((?:[ABDFG][0-9]+b?(?:, )?)+) \|", text, re.MULTILINE)
    names = headings() + ", ".join(first_cells).split(", ")
    assert len(names) > 100
    assert sorted(set(names)) == sorted(names)


def slugs(text: str) -> set[str]:
    """Return the anchors of a Markdown text: its headings in lower case, without punctuation, hyphens for spaces."""
    text = without_blocks(text)
    titles = re.findall(r"^#+ (.+)$", re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: Path) -> Iterator[str]:
    """Yield the links of a Markdown file to files, or to headings of Markdown files, that do not exist."""
    text = re.sub(r"`[^`\n]+`", "", without_blocks(page.read_text("utf-8")))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        anchors = slugs(target.read_text("utf-8")) if target.suffix == ".md" and target.exists() else {anchor}
        if not target.exists() or (anchor and anchor not in anchors):
            yield link


@each(
    "page",
    [page for folder in (".", "bench", "etc", "changelog.d") for page in (ROOT / folder).glob("*.md")],
)
def test_links_of_markdown_files_lead_to_files_and_headings(page: Path) -> None:
    """Links of pages of docs/ are checked by Sphinx."""
    assert list(dead_links(page)) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title, `coded`\n[a](#a-title-coded) [b](#b) [c](page.md#a-title-coded) [d](d.md) `[e](e.md)`\n"
    )
    assert list(dead_links(page)) == ["#b", "d.md"]


def test_changelog_fragments_have_a_kind() -> None:
    kinds = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["fragment"]
    names = [page.name for page in (ROOT / "changelog.d").iterdir() if page.name != "README.md"]
    assert [name for name in names if not re.fullmatch(rf"\+[a-z0-9-]+\.({'|'.join(kinds)})\.md", name)] == []


@each("page", ["explanation/architecture.md", "development/schemes.md", "development/structure.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    named = set(re.findall(r"`(?:postd/)?(\w+(?:/\w+)+\.py)`", (ROOT / "docs" / page).read_text("utf-8")))
    assert len(named) > 5
    assert [name for name in sorted(named) if not any((root / name).exists() for root in (ROOT / "postd", ROOT))] == []


@each("cited", ["contract" + " ", "auth" + ".md"])
def test_no_code_cites_papers_outside_the_repository(cited: str) -> None:
    number = re.compile(re.escape(cited) + (r"[0-9]" if cited.endswith(" ") else ""))
    found = [
        str(path.relative_to(ROOT))
        for folder in CITING
        for path in sorted((ROOT / folder).rglob("*.*"))
        if path.suffix in {".py", ".lua", ".sql", ".md", ".toml", ".js"} and "node_modules" not in path.parts
        if number.search(path.read_text("utf-8"))
    ]
    assert found == []
