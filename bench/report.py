"""The tables of results, with the machine and the versions that they are from."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from bench.contenders import FASTIFY_FOLDER, POSTD, PYTHON_PEERS, find_nginx
from bench.servers import ROOT

LIBRARIES = (
    "Twisted",
    "klein",
    "falcon",
    "granian",
    "blacksheep",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "flask",
    "flask-httpauth",
    "gunicorn",
    "orjson",
    "argon2-cffi",
    "joserfc",
    "PyJWT",
)
NODE_PACKAGES = ("fastify", "better-sqlite3", "@fastify/etag")

TOLD_ONLY = ("at requests/s", "ms, client's own", "PUT/s", "of 0 due/s")
"""Endings of the names of figures without ratios: they describe a measurement, or are ratios themselves."""


@dataclass
class Line:
    """A line of the tables: one figure of a row, with a value for each contender and round."""

    row: str
    figure: str
    pairs: Sequence[tuple[str, str]]
    """Pairs of contenders to divide, the first by the second; none to divide postd by each of its peers."""
    rounds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.row} {self.figure}"

    @property
    def medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self.rounds.items()}

    @property
    def is_less_better(self) -> bool:
        return re.search(r"\b(?:ms|µs|MiB)\b", self.figure) is not None


def make_report(lines: Sequence[Line], left_out: Mapping[str, str], how: str) -> str:
    """Return the tables as Markdown.

    Args:
        lines: the measured figures.
        left_out: contenders that could not be started → the missing program or package.
        how: the command line of the run.
    """
    beside_peers = [line for line in lines if not line.pairs]
    parts = ["\n".join([f"`{how}`, {datetime.now(UTC):%Y-%m-%d}", "", *(f"- {fact}" for fact in surroundings())])]
    parts += [f"Left out: **{name}**, {missing}." for name, missing in left_out.items()]
    if beside_peers:
        parts.append(figures_table(beside_peers))
    if names_of(beside_peers)[:1] == [POSTD.name] != names_of(beside_peers):
        parts.append(ratios_table(beside_peers))
    tables: dict[Sequence[tuple[str, str]], list[Line]] = {}
    for line in lines:
        if line.pairs:
            tables.setdefault(tuple(line.pairs), []).append(line)
    parts += [figures_table(of_same_pairs, pairs) for pairs, of_same_pairs in tables.items()]
    return "\n\n".join(parts) + "\n"


def figures_table(lines: Sequence[Line], pairs: Sequence[tuple[str, str]] = ()) -> str:
    """Return the medians, and the ratios of some pairs of contenders."""
    names = names_of(lines)
    cells = [["", *names, *(f"{over} / {under}" for over, under in pairs)]]
    for line in lines:
        found = line.medians
        shown = [f"{found[name]:,.{decimals(found[name])}f}" if name in found else "-" for name in names]
        cells.append([line.title, *shown, *(ratio(found.get(over), found.get(under)) for over, under in pairs)])
    return table(cells)


def decimals(figure: float) -> int:
    return 0 if figure >= 1000 else 1 if figure >= 10 else 2


def ratios_table(lines: Sequence[Line]) -> str:
    """Return the ratios of postd's figures to those of the best Python peer, and to those of each peer."""
    first, *peers = names_of(lines)
    cells = [[f"{first} /", "best Python peer", *peers]]
    for line in lines:
        if line.figure.endswith(TOLD_ONLY):
            continue
        found = line.medians
        python = [name for name in PYTHON_PEERS if name in found]
        choose = min if line.is_less_better else max
        best = choose(python, key=found.__getitem__) if python else None
        against_best = f"{ratio(found.get(first), found[best])} {best}" if best else "-"
        title = f"{line.title} (less is better)" if line.is_less_better else line.title
        cells.append([title, against_best, *(ratio(found.get(first), found.get(peer)) for peer in peers)])
    return table(cells)


def names_of(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line.rounds))


def ratio(over: float | None, under: float | None) -> str:
    return f"{over / under:.2f}" if over is not None and under else "-"


def table(cells: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns; the first row is its heading."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        " | ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))])
        for first, *rest in cells
    ]
    rule = " | ".join(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


# --- Machine and versions


def surroundings() -> Iterator[str]:
    """Yield the machine, its system, and the versions of the measured programs."""
    yield f"{processor()}, {os.cpu_count()} cores; {platform.system()} {platform.release()}"
    yield f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    yield ", ".join([f"postd {commit()}", *(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)])
    yield ", ".join([*versions_of_tools(), *versions_of_node_packages()])


def commit() -> str:
    """Return the commit of this checkout: an editable installation keeps the version that it was installed with."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--tags"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return run.stdout.strip() or "of no commit"


def processor() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def versions_of_tools() -> Iterator[str]:
    for tool, command in (("wrk", "wrk"), ("nginx", find_nginx()), ("node", "node")):
        if command and shutil.which(command):
            run = subprocess.run([command, "-v"], capture_output=True, text=True, timeout=10, check=False)
            found = re.search(r"\d+(?:\.\d+)+", run.stdout + run.stderr)
            yield f"{tool} {found[0] if found else '?'}"


def versions_of_node_packages() -> Iterator[str]:
    for package in NODE_PACKAGES:
        file = FASTIFY_FOLDER / "node_modules" / package / "package.json"
        if file.is_file():
            about = json.loads(file.read_text())
            # The name in the package itself: npm can install a package under another name.
            yield f"{about['name']} {about['version']}"
