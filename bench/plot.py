"""Draws the requests per second of postd and its peers on one core, from the tables of RESULTS.md.

    python bench/plot.py

writes docs/pictures/speed.svg, as `run.py --write` does.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.contenders import GROUP, POSTD, PYTHON_PEERS
from bench.servers import ROOT, BenchError

RESULTS = ROOT / "bench" / "RESULTS.md"
PICTURE = ROOT / "docs" / "pictures" / "speed.svg"

ROWS = {
    "get20": "GET /post, 20 posts",
    "tls": "GET /post, 20 posts, over TLS",
    "page": "GET /post?limit=20 of 1,000 posts",
    "post": "POST, answered after the sync",
    "mixed": "9 GET of 20 posts, 1 PUT",
    "digest": "GET with Digest",
    "bearer": "GET with an access token (JWT)",
}
"""The rows in the picture: the name of a row → its title. Rows that are not in RESULTS.md are left out."""
UNIT = "requests/s"
FASTIFY = "fastify"
NAMES = {"falcon": "Falcon", "blacksheep": "BlackSheep", "fastapi": "FastAPI", "flask": "Flask", FASTIFY: "Fastify"}

WIDTH, MARGIN, LABELS, VALUES = 860, 24, 250, 130
"""Widths, in pixels: of the picture, of its margins, and of the texts to the left and right of the bars."""
BAR, GAP, HEAD, FOOT = 17, 16, 92, 74
STYLE = """\
svg { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif }
.ground { fill: #ffffff } text { fill: #1f2328; stroke: #ffffff; stroke-width: 3px; paint-order: stroke }
.quiet { fill: #59636e } .line { stroke: #d1d9e0 }
.title { font-size: 18px; font-weight: 600 } .quiet { font-size: 12px }
.postd { fill: #0a5fd1 } .python { fill: #b7791f } .fastify { fill: #8a94a0 }
.value { font-size: 12px; font-weight: 600 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } text { fill: #f0f6fc; stroke: #0d1117 } .quiet { fill: #9198a1 } .line { stroke: #3d444d }
.postd { fill: #4c9bff } .python { fill: #d9a441 } .fastify { fill: #7d8691 }
}"""


@dataclass(frozen=True)
class Bar:
    """A bar: its name, its style class, and requests per second."""

    name: str
    style: str
    per_second: float


@dataclass(frozen=True)
class Results:
    """The content of RESULTS.md."""

    rows: dict[str, dict[str, float]]
    """Row → contender → requests per second."""
    dates: Sequence[str]
    machine: str


def read_results(text: str) -> Results:
    """Read the tables of one or several runs; the last table with a row counts.

    Raises:
        BenchError: there is none of the rows.
    """
    rows: dict[str, dict[str, float]] = {}
    runs: dict[str, tuple[str, str]] = {}  # date and machine of the table with a row
    names: list[str] = []
    date = machine = ""
    for line in text.splitlines():
        if found := re.fullmatch(r"`.*`, (\d{4}-\d\d-\d\d)", line):
            date = found[1]
        elif found := re.fullmatch(r"- (.+, \d+ cores; .+)", line):
            machine = found[1]
        if not line.startswith("| "):
            continue
        title, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if not title:  # the heading of a table of figures
            names = cells
        elif title.endswith(" /"):  # of ratios
            names = []
        elif names and title.removesuffix(f" {UNIT}") in ROWS:
            row = title.removesuffix(f" {UNIT}")
            runs[row] = date, machine
            rows[row] = {
                name: float(cell.replace(",", "")) for name, cell in zip(names, cells, strict=True) if cell != "-"
            }
    if not any(POSTD.name in figures for figures in rows.values()):
        raise BenchError(f"no row of {', '.join(ROWS)} with postd is in the results")
    dates, machines = (dict.fromkeys(values) for values in zip(*runs.values(), strict=True))
    return Results(rows, sorted(dates), "; ".join(machines))


def bars_of(figures: dict[str, float]) -> Iterator[Bar]:
    """Yield the bars of postd, the best Python peer, the peer with a group commit, and Fastify."""
    yield Bar("postd", "postd", figures[POSTD.name])
    python = [name for name in PYTHON_PEERS if name in figures]
    if python:
        best = max(python, key=figures.__getitem__)
        yield Bar(NAMES[best], "python", figures[best])
    if GROUP.name in figures:
        yield Bar("BlackSheep with a group commit of its own", "python", figures[GROUP.name])
    if FASTIFY in figures:
        yield Bar(NAMES[FASTIFY], "fastify", figures[FASTIFY])


def draw(results: Results) -> str:
    """Return the picture as SVG."""
    groups = {
        title: list(bars_of(results.rows[row]))
        for row, title in ROWS.items()
        if POSTD.name in results.rows.get(row, {})
    }
    bars_total = sum(map(len, groups.values()))
    bottom = HEAD + bars_total * BAR + len(groups) * GAP
    height = bottom + FOOT
    most = max(bar.per_second for bars in groups.values() for bar in bars)
    left, right = MARGIN + LABELS, WIDTH - MARGIN - VALUES
    said = "; ".join(
        f"{title}: {', '.join(f'{bar.name} {bar.per_second:,.0f}' for bar in bars)}" for title, bars in groups.items()
    )
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title figures">',
        '<title id="title">Requests per second on one core</title>',
        f'<desc id="figures">{escape(said)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
        text_at(MARGIN, 34, "Requests per second on one core", "title"),
        text_at(MARGIN, 56, "More is better. All servers write an access log; a write is synced to disk.", "quiet"),
    ]
    lines += legend(MARGIN, 78)
    for value in ticks(most):
        x = left + (right - left) * value / most
        lines.append(f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD}" y2="{bottom}"/>')
        lines.append(text_at(x, bottom + 16, f"{value:,}", "quiet", "middle"))
    y = HEAD + GAP / 2
    for title, bars in groups.items():
        lines.append(text_at(left - 12, y + len(bars) * BAR / 2 + 4, title, "", "end"))
        for bar in bars:
            width = (right - left) * bar.per_second / most
            lines.append(
                f'<rect class="{bar.style}" x="{left}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 3}" rx="2"/>'
            )
            style = "value" if bar.style == "postd" else "quiet"
            lines.append(text_at(left + width + 6, y + BAR - 6, f"{bar.per_second:,.0f} {bar.name}", style))
            y += BAR
        y += GAP
    lines.append(text_at(right, bottom + 34, UNIT, "quiet", "end"))
    lines.append(text_at(MARGIN, height - 14, f"{', '.join(results.dates)}; {results.machine}", "quiet"))
    return "\n".join([*lines, "</svg>\n"])


def legend(x: float, y: float) -> Iterator[str]:
    for color, what in (("postd", "postd"), ("python", "best Python peer"), ("fastify", "Fastify (Node)")):
        yield f'<rect class="{color}" x="{x}" y="{y - 10}" width="12" height="12" rx="2"/>'
        yield text_at(x + 18, y, what, "")
        x += 40 + 7.5 * len(what)


def ticks(most: float) -> Iterator[int]:
    """Return the round numbers of an axis, three to seven of them."""
    steps = (step * 10**power for power in range(9) for step in (1, 2, 5))
    step = next(step for step in steps if most / step < 7)
    return iter(range(0, int(most) + 1, step))


def text_at(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    fields = f' class="{style}"' if style else ""
    fields += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:g}" y="{y:g}"{fields}>{escape(text)}</text>'


def write_picture() -> None:
    """Draw the picture from RESULTS.md.

    Raises:
        BenchError: it has none of the rows in the picture.
    """
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(draw(read_results(RESULTS.read_text())))


if __name__ == "__main__":
    try:
        write_picture()
    except BenchError as error:
        sys.exit(f"plot: {error}")
