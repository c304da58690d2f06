"""The measurement of the worst input runs; its figures are not checked, for no test is timed."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.heavy import LOADS, PAGE, PAGES, POSTS
from bench.hostile import FIELDS, harmless, patterns

WORST_INPUT = Path(__file__).parent.parent.parent / "bench" / "worst_input.py"
SIZE = 6000


def run_worst_input(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(WORST_INPUT), *options], capture_output=True, text=True, timeout=180, check=False
    )


def test_measurement_beside_hostile_text_prints_latency_and_processor_time() -> None:
    result = run_worst_input("--fields", "Referer", "--kinds", "1", "--loads", "", "--seconds", "0.3")
    assert result.returncode in {0, 1}, result.stderr
    for words in ("| letters ", "| Referer: ", "others' p99 ms", "Processor time of a request"):
        assert words in result.stdout
    assert "Beside heavy loads" not in result.stdout


@pytest.mark.slow
def test_measurement_beside_heavy_loads_prints_latency_memory_and_descriptors() -> None:
    loads = [[*LOADS][1], [*LOADS][-1]]  # all of them take over a minute
    result = run_worst_input("--fields", "", "--loads", ",".join(loads), "--seconds", "0.3")
    assert result.returncode in {0, 1}, result.stderr
    rows = {row[0].strip(): row for line in result.stdout.splitlines() if (row := line.split("|")[1:])}
    assert {"peak MiB", "descriptors", "others' p99 ms"} <= {name.strip() for name in rows["load"]}
    for name in loads:
        sent, answered = int(rows[name][1]), int(rows[name][2])
        assert sent > 10, name
        assert (answered > 0) == ("client" not in name), name
    assert "Beside hostile text" not in result.stdout


@pytest.mark.slow
def test_measurement_beside_handshakes_prints_latency_of_new_connections() -> None:
    loads = ["only a ClientHello", "resumed sessions", "close_notify after the request", "KeyUpdate again and again"]
    result = run_worst_input("--tls", "--fields", "", "--loads", ",".join(loads), "--seconds", "0.5")
    assert result.returncode in {0, 1}, result.stderr
    rows = {row[0].strip(): row for line in result.stdout.splitlines() if (row := line.split("|")[1:])}
    assert "new connections' p99 ms" in {name.strip() for name in rows["load"]}
    for name in loads:
        assert (int(rows[name][2]) > 10) == (name != "only a ClientHello"), name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fields", "Referer,Refererr"), "Refererr: not one of path,"),
        (("--loads", "gzip,brotli"), "brotli: not one of the client has gone,"),
    ],
    ids=["field", "load"],
)
def test_unknown_name_is_refused(options: tuple[str, str], words: str) -> None:
    result = run_worst_input(*options)
    assert result.returncode == 2
    assert words in result.stderr


def test_heavy_requests_are_for_different_complete_pages() -> None:
    pages = {LOADS["gzip"].request(number).split(b" ")[1] for number in range(PAGES)}
    assert len(pages) == PAGES
    assert max(int(page.rpartition(b"=")[2]) for page in pages) == POSTS - PAGE


def test_patterns_have_the_requested_size() -> None:
    texts = dict(patterns(SIZE))
    assert {len(text) for text in (*texts.values(), harmless(SIZE))} == {SIZE}
    assert texts["'=' before '?' repeated"] == "=" + "?" * (SIZE - 1)
    assert len(set(texts.values())) == len(texts)


def test_hostile_request_has_about_the_size_of_its_text() -> None:
    for field, make in FIELDS.items():
        assert SIZE * 0.6 < len(make(harmless(SIZE))) < SIZE + 600, field
