"""Start time and idle memory of a server."""

import time
from http import HTTPStatus
from pathlib import Path
from statistics import median

from bench.loads import pss_mib
from bench.servers import BenchError, Server, ask, running
from bench.workloads import Duration

LOOK_S = 0.001
"""The interval at which a starting server is checked."""
REQUESTS, REST_S = 100, 2.0


def measure_start(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Start a server repeatedly for the duration; return the median time from before the fork to the first 200."""
    took: list[float] = []
    end = time.monotonic() + duration.measured_s
    while not took or time.monotonic() < end:
        start = time.perf_counter()
        with running(server, folder, LOOK_S):
            took.append(time.perf_counter() - start)
    return {"ms": median(took) * 1000}


def measure_idle(server: Server, folder: Path, _duration: Duration) -> dict[str, float]:
    with running(server, folder) as address:
        for _ in range(REQUESTS):
            answer = ask(address.port, "GET", "/post/1")
            if answer.status != HTTPStatus.OK:
                raise BenchError(f"{server.name}: GET /post/1 answered {answer.status}")
        time.sleep(REST_S)
        return {"MiB": pss_mib(address.pid)}
