"""The benchmark still runs. What it measures is not looked at: no test is timed."""

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parent.parent.parent / "bench" / "run.py"


def test_it_prints_its_tables() -> None:
    result = subprocess.run(
        [sys.executable, str(RUN), "--rounds", "1", "--seconds", "1"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    rows = ("get20", "post", "basic", "list100k", "logins", "bearer", "signin", "workers", "store")
    ratios = (
        "postd/fastapi",
        "postd/flask",
        "postd/baseline",
        "digest/open",
        "postd/open",
        "postd/argon2",
        "two/one",
        "redis/sqlite",
    )
    for word in (*rows, *ratios):
        assert word in result.stdout
