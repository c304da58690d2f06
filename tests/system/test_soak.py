"""The soak test runs, for a short time, and finds no violation."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.soaking.secrets_used import Secrets

SOAK = Path(__file__).parent.parent.parent / "bench" / "soak.py"


def test_short_soak_finds_no_violation_and_draws_charts(tmp_path: Path) -> None:
    drawing = tmp_path / "soak.svg"
    result = subprocess.run(
        [sys.executable, str(SOAK), "--minutes", "0.4", "--rate", "60", "--plot", str(drawing)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all checks passed" in result.stdout
    attacks = ("burst of wrong passwords", "burst of refused tokens", "idle event streams", "hostile text in the log")
    heavy = ("slow reader", "heavy pages, not waited for", "heavy page with gzip", "half-closed", "ended event streams")
    for words in (
        *attacks,
        *heavy,
        "many sign-ins",
        "trickled head",
        "smuggling",
        "SIGHUP",
        "MiB/h",
        "descriptors:",
        "p99",
    ):
        assert words in result.stdout
    assert drawing.read_text().startswith("<svg ")


@pytest.mark.slow
def test_short_soak_over_tls_finds_no_violation() -> None:
    command = [sys.executable, str(SOAK), "--minutes", "0.4", "--rate", "60", "--tls"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all checks passed" in result.stdout


def test_secret_is_found_in_longer_words_and_beside_escapes() -> None:
    used = Secrets()
    used.add("session=4fzyGhXnRVQWqUNi1YzTMk9d")
    for text in (
        b"GET /x?next=%2Fa%3Fp%3D4fzyGhXnRVQWqUNi1YzTMk9d",
        b'"x4fzyGhXnRVQWqUNi1Yz..."',
        b"\\x224fzyGhXnRVQW\\x22",
    ):
        assert used.found_in(text)
    for text in (b"session=", b"4fzyGhXnRVQ", b"id=754a116996-356"):
        assert not used.found_in(text)
