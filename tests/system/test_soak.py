"""The soak still works, and holds for as long as a test may take. The longer it is, the more it tells."""

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parent.parent.parent / "bench" / "soak.py"


def test_a_short_soak_breaks_no_promise_and_draws_what_it_saw(tmp_path: Path) -> None:
    drawing = tmp_path / "soak.svg"
    result = subprocess.run(
        [sys.executable, str(SOAK), "--minutes", "0.12", "--rate", "60", "--plot", str(drawing)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every promise was kept" in result.stdout
    for words in ("trickled head", "smuggling", "SIGHUP", "MiB/h", "descriptors:", "p99"):
        assert words in result.stdout
    assert drawing.read_text().startswith("<svg ")
