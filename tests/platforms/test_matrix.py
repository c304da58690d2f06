"""How `matrix` reads the output of a run, and its table; cells are run by the scripts only."""

from pathlib import Path

from tests.platforms.matrix import (
    SYSTEMS,
    Cell,
    Counts,
    Result,
    certificates,
    commands,
    make_page,
    read_counts,
)

RED = """\
....F                                                                    [100%]
=========================== short test summary info ============================
FAILED tests/store/redis/test_store.py::test_a - assert 1 == 2
ERROR tests/store/redis/test_store.py::test_b - OSError
1 failed, 7289 passed, 17 skipped, 1 error in 263.21s (0:04:23)
17 tests were skipped
"""


def test_counts_and_failures_are_read_from_the_last_lines() -> None:
    counts = read_counts(RED, 270.0)
    assert counts.numbers == {"failed": 1, "passed": 7289, "skipped": 17, "error": 1}
    assert [line.partition(" - ")[0] for line in counts.failed] == [
        "FAILED tests/store/redis/test_store.py::test_a",
        "ERROR tests/store/redis/test_store.py::test_b",
    ]
    assert not counts.is_green


def test_run_without_a_last_line_is_not_green() -> None:
    counts = read_counts("pip: no matching distribution\n", 3.0)
    assert not counts.is_green
    assert counts.end == "pip: no matching distribution"


def test_page_has_all_cells_and_failures() -> None:
    green = Counts({"passed": 7000, "skipped": 17}, 240.0, [], "")
    results = {
        "trixie-3.13-bare": Result("0123456789abcdef", "2026-11-22", "Python 3.13.5", green, 13.2),
        "trixie-3.13-redis-server": Result("0123456789abcdef", "2026-11-22", "Redis 8.0.2", read_counts(RED, 90.0)),
        "trixie-3.13-valkey-server": Result(
            "0123456789abcdef", "2026-11-22", "", Counts({}, 0.0, [], "apt-get: no such package")
        ),
    }
    cells = [Cell(system, part) for system in SYSTEMS for part in ("bare", *system.servers)]
    page = make_page(cells, results)
    (row,) = (line for line in page.splitlines() if line.startswith("| Debian 13 "))
    assert "3.13.5" in row
    assert "13 s" in row
    assert "7,000 passed, 17 skipped in 4.0 min" in row
    assert "Redis 8.0.2: 1 failed, 7,289 passed" in row
    (row,) = (line for line in page.splitlines() if line.startswith("| Debian 13, unusual user"))
    assert row.count("not in it") == 2
    (row,) = (line for line in page.splitlines() if line.startswith("| Debian 12"))
    assert "not run" in row
    assert "not in it" in row
    assert "- trixie-3.13-redis-server: FAILED tests/store/redis/test_store.py::test_a" in page
    assert "- trixie-3.13-valkey-server: apt-get: no such package" in page


def test_commands_are_read_from_readme() -> None:
    serve, test = commands()
    assert serve.endswith("postd serve")
    assert "-m pytest" in test


def test_certificates_are_read_from_the_settings_of_pip(tmp_path: Path) -> None:
    present = tmp_path / "ca.crt"
    present.touch()
    settings = f"""\
:env:.cert='{present}'
:env:.timeout='180'
global.cert='{present}'
global.client-cert='{tmp_path}/absent.pem'
global.find-links='{tmp_path}'
"""
    assert certificates(settings) == [present]
