"""Load generators, and the figures read meanwhile: wrk, a reader of the long list, memory."""

import http.client
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from statistics import quantiles

from bench.servers import REQUEST_S, BenchError, Server

HERE = Path(__file__).resolve().parent
CONNECTIONS = 32
SLOW_CLIENT_PAUSE_S = 0.002
PIECE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Load:
    """The counts of wrk."""

    requests: int
    per_second: float
    bytes_per_second: float
    """Bytes of responses, also of those that were incomplete at the end of the time."""


def load(
    server: Server, port: int, seconds: int, options: Sequence[str] = (), script_arguments: Sequence[str] = ()
) -> Load:
    """Load the server with wrk; do nothing for 0 seconds.

    Raises:
        BenchError: a response is an error, or is absent.
    """
    if seconds == 0:
        return Load(0, 0.0, 0.0)
    command = ["taskset", "-c", server.load_cores, "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s"]
    command += [
        "--timeout",
        "10s",
        *options,
        f"{'https' if server.tls else 'http'}://127.0.0.1:{port}/post",
        "--",
        *script_arguments,
    ]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=False,
    )
    errors = re.search(r"(?:Non-2xx or 3xx responses|Socket errors): .*", run.stdout)
    if errors:
        raise BenchError(f"{server.name}: {errors[0]}")
    requests = re.search(r"(\d+) requests in ", run.stdout)
    per_second = re.search(r"Requests/sec: +([\d.]+)", run.stdout)
    transfer = re.search(r"Transfer/sec: +([\d.]+)([KMG]?)B", run.stdout)
    if run.returncode or not requests or not per_second or not transfer:
        raise BenchError(f"wrk failed on {server.name}: {' '.join((run.stderr or run.stdout).split())}")
    unit = 1024 ** " KMG".index(transfer[2] or " ")
    return Load(int(requests[1]), float(per_second[1]), float(transfer[1]) * unit)


def script(name: str) -> list[str]:
    """Return wrk's options for one of the scripts beside this module."""
    return ["-s", str(HERE / f"{name}.lua")]


def time_long_list(server: Server, port: int, size: int) -> float:
    """Return the seconds from the start of the connection to the last byte of the response."""
    start = time.perf_counter()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)) as connection:
        connection.request("GET", "/post")
        response = connection.getresponse()
        received = 0
        while piece := response.read(PIECE_BYTES):
            received += len(piece)
    took = time.perf_counter() - start
    if (response.status, received) != (HTTPStatus.OK, size):
        raise BenchError(f"{server.name}: GET /post answered {response.status} with {received} bytes of {size}")
    return took


def time_slow_client(server: Server, port: int, size: int, *, until: Callable[[], bool]) -> list[float]:
    """Return the seconds of each GET of the list by a client that pauses between requests."""
    took: list[float] = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)) as connection:
        while not until():
            time.sleep(SLOW_CLIENT_PAUSE_S)
            start = time.perf_counter()
            connection.request("GET", "/post")
            response = connection.getresponse()
            received = len(response.read())
            took.append(time.perf_counter() - start)
            if (response.status, received) != (HTTPStatus.OK, size):
                raise BenchError(f"{server.name}: GET /post answered {response.status} with {received} bytes of {size}")
    return took


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile; `percent` has at most one decimal, such as 99.9."""
    return quantiles(values, n=1000, method="inclusive")[round(percent * 10) - 1]


def forget_peak(pid: int) -> None:
    """Reset the peak memory that the kernel has counted, so that it does not include the start of the server."""
    try:
        for process in processes_of(pid):
            Path(f"/proc/{process}/clear_refs").write_text("5")
    except OSError as error:
        raise BenchError(f"the peak memory of a process cannot be reset: {error}") from None


def peak_mib(pid: int) -> float:
    """Return the sum of the peak memory (VmHWM) of a server's processes."""
    total = 0
    for process in processes_of(pid):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        if found is None:
            raise BenchError(f"/proc/{process}/status: no VmHWM line")
        total += int(found[1])
    return total / 1024


def pss_mib(pid: int) -> float:
    """Return the memory of a server's processes; shared pages are counted once (PSS)."""
    total = 0
    for process in processes_of(pid):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        if found is None:
            raise BenchError(f"/proc/{process}/smaps_rollup: no Pss line")
        total += int(found[1])
    return total / 1024


def cpu_s(pid: int) -> float:
    """Return the processor time of all threads of a process (clock_getcpuclockid(3)).

    Raises:
        OSError: it has exited.
    """
    return time.clock_gettime(~pid << 3 | 2)


def processes_of(pid: int) -> Iterator[int]:
    """Yield the ids of a process and of its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from processes_of(int(child))
