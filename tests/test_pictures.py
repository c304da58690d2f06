"""The pictures and figures of the documentation are as recent as what they show.

Not compared: `terminal.svg`, and the Python modules that make the pages. Only templates, style sheets and scripts are.
"""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs import terminal
from docs.drawings import DRAWINGS
from docs.made_from import MADE_FROM, PICTURES, ROOT, list_hashes
from tests.cases import each
from tests.helpers import PATIENCE_S

MAKE_ANEW = "docs/pictures are out of date: run `python -m docs.pictures`"
PICTURE_MAX_BYTES = 60 * 1024
PERFORMANCE = ROOT / "docs" / "explanation" / "performance.md"

RESULT_OF_ROW = {
    "`GET /post`, 20 posts": "get20",
    "the same without an access log": "get20-nolog",
    "the same, not modified (304)": "not-modified",
    "the same over TLS": "tls",
    "`GET /post?limit=20` of 1,000 posts": "page",
    "`GET /post/<id>`": "get-one",
    "`POST /post`, synced before the response": "post",
    "the same `POST` without an access log": "post-nolog",
    "nine reads, one write": "mixed",
    "`GET` with Digest": "digest",
    "the same Digest without an access log": "digest-nolog",
    "Digest with the nonces of 32 clients, without an access log": "digest-clients",
    "`GET` with a session": "session",
    "`GET` with a token (RS256)": "bearer",
}
"""The rows of the table in performance.md, and those of RESULTS.md."""


def test_pictures_of_pages_are_not_older_than_the_pages() -> None:
    assert MADE_FROM.read_text() == list_hashes(), MAKE_ANEW


@each("name", DRAWINGS)
def test_drawings_are_up_to_date(name: str) -> None:
    assert (PICTURES / f"{name}.svg").read_text() == DRAWINGS[name], MAKE_ANEW


@each("path", sorted(PICTURES.glob("*.svg")))
def test_svg_is_well_formed_and_needs_no_other_file(path: Path) -> None:
    root = ET.fromstring(path.read_text("utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    values = [value for element in root.iter() for value in element.attrib.values()]
    assert not any("//" in value or "url(" in value for value in values)


@each("path", sorted(PICTURES.iterdir()))
def test_picture_is_small(path: Path) -> None:
    assert path.stat().st_size <= PICTURE_MAX_BYTES


def test_terminal_shows_commands_with_their_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ["# A <comment>", "$ echo '1 < 2'", "1 < 2", "$ echo first; exec sleep 600", "first", "^C"]
    followed_s, lines = 0.5, list[str]()
    while lines != shown and followed_s < PATIENCE_S:  # a command may take long on a busy machine
        followed_s *= 2
        monkeypatch.setattr(terminal, "FOLLOWED_S", followed_s)
        lines = terminal.record(["# A <comment>", "echo '1 < 2'", "echo first; exec sleep 600"], tmp_path)
    assert lines == shown
    drawn = ET.fromstring(terminal.draw_terminal(lines, "A title"))
    assert ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")] == lines


def read_tables(text: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the cells of Markdown tables: heading of the first column → row → heading of the column → cell."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    headings: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            headings = []
        elif not headings:
            headings = cells
        else:
            tables.setdefault(headings[0], {})[cells[0]] = dict(zip(headings[1:], cells[1:], strict=True))
    return tables


def test_table_of_performance_is_that_of_the_results() -> None:
    results = read_tables((ROOT / "bench" / "RESULTS.md").read_text("utf-8"))
    expected = {}
    for row, result in RESULT_OF_ROW.items():
        figures = results[""][f"{result} requests/s"]
        ratio, best = results["postd /"][f"{result} requests/s"]["best Python peer"].split()
        expected[row] = {
            "postd": figures["postd"],
            "best Python server": figures[best],
            "Fastify": figures.get("fastify", "-").strip("-"),
            "postd / best Python": ratio,
        }
    shown = read_tables(PERFORMANCE.read_text("utf-8"))["requests a second"]
    assert {row: cells for row, cells in shown.items() if row.strip("-")} == expected


def test_figures_of_performance_are_those_of_the_results() -> None:
    page = PERFORMANCE.read_text("utf-8")
    figures = set(re.findall(r"\d+(?:,\d{3})*\.\d+|\d+,\d{3}", page)) - {
        "1,000",
        "4,000",
        "10,000",
        "100,000",
    }  # posts of a list, listeners
    known = set(re.findall(r"[\d.,]+", (ROOT / "bench" / "RESULTS.md").read_text("utf-8")))
    assert len(figures) > 20
    assert figures - known == set()
