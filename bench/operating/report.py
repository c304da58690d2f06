"""The page of results."""

from collections.abc import Sequence

from msgspec import Struct

from bench.operating.tally import LOST, Outcome, Tally, Waited
from bench.report import table
from bench.soaking.findings import percentile_99

COLUMNS = (
    "scenario",
    "processes",
    "store",
    "requests",
    "answered",
    "503",
    "no connection",
    "crossed",
    "lost",
    "before",
    "during",
    "after",
    "seconds",
    "client late",
    "verdict",
)


class Row(Struct, frozen=True):
    """The result of a scenario; `took_s` is its duration under load, in seconds."""

    what: str
    workers: int
    store: str
    tally: Tally
    before: Waited
    during: Waited
    after: Waited
    took_s: float
    notes: Sequence[str]
    broken: Sequence[str]

    @property
    def title(self) -> str:
        return f"{self.what}, {self.workers} {'process' if self.workers == 1 else 'processes'}, {self.store}"

    @property
    def cells(self) -> list[str]:
        outcomes = self.tally.outcomes
        return [
            self.what,
            str(self.workers),
            self.store,
            f"{outcomes.total():,}",
            *(
                f"{outcomes[one]:,}"
                for one in (Outcome.ANSWERED, Outcome.UNAVAILABLE, Outcome.REFUSED, Outcome.CROSSED)
            ),
            f"{sum(outcomes[one] for one in LOST):,}",
            *map(_waited, (self.before, self.during, self.after)),
            f"{self.took_s:.1f}",
            f"{percentile_99(self.tally.late_ms):.1f}",
            "FAIL" if self.broken else "pass",
        ]


def make_page(rows: Sequence[Row], how: str, where: Sequence[str]) -> str:
    """Return the page in Markdown: the table, notes, and failed checks."""
    notes = [f"- {row.title}: {'; '.join(row.notes)}." for row in rows if row.notes]
    broken = [f"- **{row.title}**: {line}" for row in rows for line in row.broken]
    parts = [
        "# Operated under load",
        "[README.md](README.md#operations) explains the figures.",
        how,
        "\n".join(f"- {fact}" for fact in where),
        table([COLUMNS, *(row.cells for row in rows)]),
        "\n".join(notes),
        "\n".join(["Failed checks:", "", *broken]) if broken else "All checks passed.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _waited(waited: Waited) -> str:
    return f"{waited.p50_ms:.1f} / {waited.p99_ms:.1f} / {waited.max_ms:.1f}" if waited.answers else "-"
