"""The results of a soak test, as text and as a drawing."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from xml.sax.saxutils import escape

from msgspec import Struct

from bench.soaking.findings import Findings, middle, percentile_99
from bench.soaking.server import Sample

MAX_SLOPE_MIB_PER_H = 16.0
"""Of each worker."""
SLOPE_MIN_S = 200.0
"""A shorter half is reported, but not checked: it takes some minutes until all caches are filled."""

SPARE_DESCRIPTORS = 4
"""The allowed difference between end and start: connections to the store and the issuer are opened and closed."""

GOOD_MEDIAN_MAX_MS = 250.0

PLOT_COLUMNS, PLOT_ROWS = 72, 10
SVG_WIDTH, SVG_HEIGHT = 860, 240


class Series(Struct, frozen=True):
    """A figure over time: its title, times in seconds, and a value for each."""

    title: str
    seconds: Sequence[float]
    values: Sequence[float]


def slope_per_h(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return how memory grows over the second half in MiB an hour, and the seconds of that half.

    It is the median slope of all pairs of samples (Theil and Sen), on which short peaks have no effect.
    """
    half = samples[len(samples) // 2 :]
    if len(half) < 2:
        return 0.0, 0.0
    slope_per_s = median(
        (later.rss_mib - sample.rss_mib) / (later.at_s - sample.at_s) for sample, later in combinations(half, 2)
    )
    return slope_per_s * 3600, half[-1].at_s - half[0].at_s


def check_figures(
    samples: Sequence[Sample], before: Sample, after: Sample, findings: Findings, *, workers: int
) -> None:
    """Check the figures against their limits."""
    slope, half_s = slope_per_h(samples)
    most = MAX_SLOPE_MIB_PER_H * workers
    if slope > most and half_s >= SLOPE_MIN_S:
        findings.broke("memory is flat", f"{slope:+.1f} MiB/h over the last {half_s:.0f} s, at most {most:+.1f}")
    if after.descriptors > before.descriptors + SPARE_DESCRIPTORS:
        example = f"{before.descriptors} before the load, {after.descriptors} after it"
        findings.broke("no descriptor is leaked", example)
    waited = middle([ms for kind in findings.good_ms.values() for ms in kind])
    if waited > GOOD_MEDIAN_MAX_MS:
        findings.broke(
            "good clients are not slowed down", f"median latency {waited:.0f} ms, at most {GOOD_MEDIAN_MAX_MS:g}"
        )


def series_of(samples: Sequence[Sample], p99_ms: Sequence[float], *, workers: int) -> list[Series]:
    at = [sample.at_s for sample in samples]
    used = [(later.cpu_s - sample.cpu_s) / (later.at_s - sample.at_s) for sample, later in pairwise(samples)]
    kept = [
        Series("memory, RSS, MiB", at, [sample.rss_mib for sample in samples]),
        Series("descriptors", at, [float(sample.descriptors) for sample in samples]),
        Series("processor, cores", at[1:], used),
        Series("p99 of good clients, ms", at, p99_ms),
    ]
    if workers > 1:
        kept.insert(1, Series("memory, PSS, MiB", at, [sample.pss_mib for sample in samples]))
    return kept


def plot(series: Series) -> str:
    """Draw a series in plain text; a column has the largest of its values."""
    if not series.values:
        return f"{series.title}: no measurements"
    end = max(series.seconds[-1], 1.0)
    columns: list[float | None] = [None] * PLOT_COLUMNS
    for second, value in zip(series.seconds, series.values, strict=True):
        column = min(int(second / end * PLOT_COLUMNS), PLOT_COLUMNS - 1)
        columns[column] = max(value, columns[column] or 0.0)
    top = max(series.values) or 1.0
    lines = [series.title]
    for row in range(PLOT_ROWS, 0, -1):
        drawn = "".join("*" if value is not None and _row_of(value, top) == row else " " for value in columns)
        lines.append(f"{top * row / PLOT_ROWS:8.1f} |{drawn}".rstrip())
    lines.append(f"{0:8.1f} +{'-' * PLOT_COLUMNS}")
    lines.append(f"{'':9}0{f'{end / 60:.1f} min':>{PLOT_COLUMNS}}")
    return "\n".join(lines)


def _row_of(value: float, top: float) -> int:
    return max(1, round(value / top * PLOT_ROWS))


def write_svg(file: Path, all_series: Sequence[Series], heading: str) -> None:
    """Draw all series as SVG, one below the other."""
    height = SVG_HEIGHT * len(all_series) + 30
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SVG_WIDTH}" height="{height}">',
        "<style>text { font: 12px sans-serif }</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-weight="bold">{escape(heading)}</text>',
        *(line for number, series in enumerate(all_series) for line in _panel(series, 30 + number * SVG_HEIGHT)),
        "</svg>\n",
    ]
    file.write_text("\n".join(drawn))


def _panel(series: Series, y: int) -> list[str]:
    left, right, top, bottom = 60, SVG_WIDTH - 20, y + 25, y + SVG_HEIGHT - 30
    end, most = max([1.0, *series.seconds]), max([*series.values, 0.0]) * 1.1 or 1.0
    points = " ".join(
        f"{left + (right - left) * second / end:.1f},{bottom - (bottom - top) * value / most:.1f}"
        for second, value in zip(series.seconds, series.values, strict=True)
    )
    lines = [f'<text x="{left}" y="{y + 15}">{escape(series.title)}</text>']
    for part in range(5):
        height = bottom - (bottom - top) * part / 4
        lines.append(f'<line x1="{left}" x2="{right}" y1="{height}" y2="{height}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{height + 4}" text-anchor="end">{most * part / 4:.1f}</text>')
    lines += [
        f'<text x="{left}" y="{bottom + 18}">0</text>',
        f'<text x="{right}" y="{bottom + 18}" text-anchor="end">{end / 60:.1f} min</text>',
        f'<polyline fill="none" stroke="#0057b7" stroke-width="1.5" points="{points}"/>',
    ]
    return lines


def tell(findings: Findings, samples: Sequence[Sample], before: Sample, after: Sample, *, workers: int) -> str:
    """Return the figures as text."""
    lasted_s = max(samples[-1].at_s if samples else 0.0, 0.001)
    requests = sum(findings.statuses.values())
    statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(findings.statuses.items()))
    lines = [f"{requests:,} responses in {lasted_s / 60:.1f} min ({requests / lasted_s:.0f} a second): {statuses}", ""]
    lines.append(f"{'good clients, ms':<24}{'responses':>10}{'p50':>10}{'p99':>10}{'most':>10}")
    rows = {**findings.good_ms, "all of them": [ms for kind in findings.good_ms.values() for ms in kind]}
    for what, ms in rows.items():
        if len(ms):
            row = f"{len(ms):>10,}{middle(ms):>10.1f}{percentile_99(ms):>10.1f}{max(ms):>10.1f}"
            lines.append(f"{what:<24}{row}")
    lines.append(
        f"{'(delay of the client)':<34}{middle(findings.lag_ms):>10.1f}{percentile_99(findings.lag_ms):>10.1f}"
    )
    lines += ["", "bad clients: " + ", ".join(f"{count:,} {kind}" for kind, count in findings.bad.items())]
    lines.append("listeners: " + (", ".join(f"{count:,} {what}" for what, count in findings.heard.items()) or "none"))
    lines.append("changes: " + (", ".join(f"{count} {what}" for what, count in findings.changes.items()) or "none"))
    slope, half_s = slope_per_h(samples)
    shared = f" (PSS {before.pss_mib:.1f}, {after.pss_mib:.1f})" if workers > 1 else ""
    most = max((sample.rss_mib for sample in samples), default=0.0)
    used_s = samples[-1].cpu_s - samples[0].cpu_s if len(samples) > 1 else 0.0
    descriptors, threads = (
        max((getattr(sample, name) for sample in samples), default=0) for name in ("descriptors", "threads")
    )
    too_short = "" if half_s >= SLOPE_MIN_S else ", too short to check"
    grows = f"{slope:+.1f} MiB/h over the last {half_s:.0f} s{too_short}"
    lines += [
        f"memory, MiB: {before.rss_mib:.1f} before, {most:.1f} at most, {after.rss_mib:.1f} after{shared}; {grows}",
        f"descriptors: {before.descriptors} before, {descriptors} at most, {after.descriptors} after",
        f"threads: {before.threads} before, {threads} at most, {after.threads} after",
        f"processor: {used_s / lasted_s:.2f} of a core",
    ]
    return "\n".join(lines)
