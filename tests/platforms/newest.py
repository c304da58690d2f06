"""Run the tests that depend on the Python on the newest one, that of Debian testing, from a clone of the last commit.

`.ci/run` runs it. Systems are kept between runs. Needs the same as `matrix`, but no port.
"""

import subprocess
import sys

from tests.platforms.matrix import (
    FOLDER,
    ROOT,
    SYSTEMS,
    USER,
    Cell,
    Machine,
    MatrixError,
    System,
    commands,
    read_counts,
)
from tests.redis_server import NO_SERVER

NEWEST = [system for system in SYSTEMS if system.user is USER][-1:]
"""The last one of the table. `.ci/run` itself runs on the first suite, `matrix` on all of them."""

TESTS = """
tests/store/sqlite/test_store.py tests/store/sqlite/test_database.py tests/store/sqlite/test_cached_reads.py
tests/front/test_connection.py tests/web/lists tests/web/test_events.py tests/http tests/net/test_tls.py
tests/client/test_posts.py tests/daemon/test_log.py tests/test_twisted_private.py
"""
"""What depends on the Python: SQLite, front and views in the process of pytest, where a later Python warns, frees and
refuses otherwise, TLS, and each private name of Twisted. Other tests make the same calls, or take too long.
"""


def main() -> None:
    commit = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "HEAD"], text=True).strip()
    are_green = [run_tests(system, commit) for system in NEWEST]
    sys.exit(not all(are_green))


def run_tests(system: System, commit: str) -> bool:
    """Run the tests, and print the end of their output, or all of it if there is a failure or no Redis server."""
    machine = Machine(Cell(system, "newest"), FOLDER)
    _, test = commands()
    tests = " ".join(TESTS.split())
    try:
        machine.make(system, commit)
        output = machine.run(f"cd ~/postd && python3 --version && {test} -n 2 {tests}", check=False)
    except MatrixError as error:
        output = str(error)
    finally:
        machine.remove()
    is_green = read_counts(output, 0.0).is_green and NO_SERVER not in output
    lines = output.splitlines()
    print(f"{system.name}:", *(lines[:1] + lines[-1:] if is_green else lines), sep="\n", flush=True)
    return is_green


if __name__ == "__main__":
    main()
