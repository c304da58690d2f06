"""docs/reference.md, and the citations of it in code and settings."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
CITING = ("postd", "tests", "bench", "etc")

_CITATION = "reference" + ": "
_WRAPPED = re.compile(r"\s*\n\s*(?:#+|--|//)?\s*")
"""The end of a line in a citation, with the comment sign of the next one."""


def headings() -> set[str]:
    return set(re.findall(r"^## (.+)$", REFERENCE.read_text("utf-8"), re.MULTILINE))


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
    text = REFERENCE.read_text("utf-8")
    first_cells = re.findall(r"^\| ((?:[ABDFG][0-9]+b?(?:, )?)+) \|", text, re.MULTILINE)
    names = re.findall(r"^## (.+)$", text, re.MULTILINE) + ", ".join(first_cells).split(", ")
    assert len(names) > 100
    assert sorted(set(names)) == sorted(names)


def test_links_of_the_reference_lead_to_files() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", REFERENCE.read_text("utf-8"))
    assert targets
    assert [target for target in targets if not (REFERENCE.parent / target).exists()] == []


@pytest.mark.parametrize("page", ["docs/explanation/architecture.md", "CONTRIBUTING.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    named = set(re.findall(r"`(?:postd/)?(\w+(?:/\w+)+\.py)`", (ROOT / page).read_text("utf-8")))
    assert len(named) > 10
    assert [name for name in sorted(named) if not any((root / name).exists() for root in (ROOT / "postd", ROOT))] == []


@pytest.mark.parametrize("cited", ["contract" + " ", "auth" + ".md"])
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
