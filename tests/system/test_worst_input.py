"""The measurement of the worst input runs; its figures are not checked, for no test is timed."""

import subprocess
import sys
from pathlib import Path

from bench.hostile import FIELDS, harmless, patterns

WORST_INPUT = Path(__file__).parent.parent.parent / "bench" / "worst_input.py"
SIZE = 6000


def run_worst_input(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(WORST_INPUT), *options], capture_output=True, text=True, timeout=120, check=False
    )


def test_measurement_prints_latency_and_processor_time() -> None:
    result = run_worst_input("--fields", "Referer", "--kinds", "1", "--seconds", "1")
    assert result.returncode in {0, 1}, result.stderr
    for words in ("| letters ", "| Referer: ", "others' p99 ms", "Processor time of a request"):
        assert words in result.stdout


def test_unknown_field_is_named() -> None:
    result = run_worst_input("--fields", "Referer,Refererr")
    assert result.returncode == 2
    assert "Refererr: not one of path," in result.stderr


def test_patterns_have_the_requested_size() -> None:
    texts = dict(patterns(SIZE))
    assert {len(text) for text in (*texts.values(), harmless(SIZE))} == {SIZE}
    assert texts["'=' before '?' repeated"] == "=" + "?" * (SIZE - 1)
    assert len(set(texts.values())) == len(texts)


def test_hostile_request_has_about_the_size_of_its_text() -> None:
    for field, make in FIELDS.items():
        assert SIZE * 0.6 < len(make(harmless(SIZE))) < SIZE + 600, field
