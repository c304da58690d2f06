"""Descriptor limit and memory, each in a child process with its own limits."""

import subprocess
import sys

from tests.cases import each
from tests.helpers import PATIENCE_S

COUNT = """
import resource, sys
from twisted.logger import capturedLogs
from postd.daemon.resources import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
with capturedLogs() as events:
    count = raise_descriptor_limit(int(sys.argv[3]))
print(count, resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(events))
"""


@each(
    "limits, wanted, fitting, soft_after, warnings",
    [
        ((64, 2000), 1000, 1000, 1128, 0),
        ((1500, 2000), 1000, 1000, 1500, 0),
        ((64, 1000), 1000, 872, 1000, 1),
        ((64, 200), 1000, 100, 200, 1),
        ((64, 200), 50, 50, 178, 0),
    ],
)
def test_soft_limit_is_raised_up_to_the_hard_limit(
    limits: tuple[int, int], wanted: int, fitting: int, soft_after: int, warnings: int
) -> None:
    command = [sys.executable, "-c", COUNT, *map(str, limits), str(wanted)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    assert output.split() == [str(fitting), str(soft_after), str(warnings)]


TRIM = """
from pathlib import Path
from postd.daemon.resources import trim_memory

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024

blocks = [bytes(2000) for _ in range(20_000)]
del blocks[::2], blocks[:-1]  # all free but what is at the end of the heap
before = resident_mib()
trim_memory()
print(before - resident_mib())
"""


def test_free_memory_is_returned_to_the_system() -> None:
    output = subprocess.run(
        [sys.executable, "-c", TRIM], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout
    assert float(output) > 20
