"""The pictures and figures of the documentation are as recent as what they show."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs.drawings import DRAWINGS
from docs.made_from import MADE_FROM, PICTURES, ROOT, list_hashes
from docs.terminal import draw_terminal, record

MAKE_ANEW = "docs/pictures are out of date: run `python -m docs.pictures`"
PICTURE_MAX_BYTES = 60 * 1024


def test_pictures_of_pages_are_not_older_than_the_pages() -> None:
    assert MADE_FROM.read_text() == list_hashes(), MAKE_ANEW


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings_are_up_to_date(name: str) -> None:
    assert (PICTURES / f"{name}.svg").read_text() == DRAWINGS[name], MAKE_ANEW


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_svg_is_well_formed_and_needs_no_other_file(path: Path) -> None:
    root = ET.fromstring(path.read_text("utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    values = [value for element in root.iter() for value in element.attrib.values()]
    assert not any("//" in value or "url(" in value for value in values)


@pytest.mark.parametrize("path", sorted(PICTURES.iterdir()), ids=lambda path: path.name)
def test_picture_is_small(path: Path) -> None:
    assert path.stat().st_size <= PICTURE_MAX_BYTES


def test_terminal_shows_commands_with_their_output(tmp_path: Path) -> None:
    lines = record(["# A <comment>", "echo '1 < 2'", "echo first; exec sleep 9"], tmp_path)
    assert lines == ["# A <comment>", "$ echo '1 < 2'", "1 < 2", "$ echo first; exec sleep 9", "first", "^C"]
    drawn = ET.fromstring(draw_terminal(lines, "A title"))
    assert ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")] == lines


def test_figures_of_performance_are_those_of_the_results() -> None:
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text("utf-8")
    figures = set(re.findall(r"\d+(?:,\d{3})*\.\d+|\d+,\d{3}", page)) - {"100,000"}  # posts of a list
    known = set(re.findall(r"[\d.,]+", (ROOT / "bench" / "RESULTS.md").read_text("utf-8")))
    assert len(figures) > 20
    assert figures - known == set()
