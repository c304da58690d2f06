"""The load test of operations runs, and one scenario passes; its figures are not checked."""

import subprocess
import sys
from pathlib import Path

OPERATIONS = Path(__file__).parent.parent.parent / "bench" / "operations.py"


def test_short_run_finds_no_violation() -> None:
    result = subprocess.run(
        [sys.executable, str(OPERATIONS), "--scenarios", "kill", "--rate", "60", "--seconds", "0.5"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "All checks passed." in result.stdout
    for words in ("kill -9 of a worker", "two workers again after", "SQLite"):
        assert words in result.stdout
