"""CPU time of requests to one worker and to two, each on a core of its own with a wrk that only it answers."""

import os
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGSTOP

from bench.contenders import redis_beside
from bench.loads import CONNECTIONS, cpu_s, load, processes_of, script
from bench.servers import Address, BenchError, Server
from bench.workloads import SHORT_LIST, Duration, check_list, serving_short_list

WORKLOADS = {"GET": [], "GET one": script("one"), "POST": script("post")}

CONNECTING_S = 5
"""Timeout of connecting."""


def measure_cpu(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure the CPU time of the server for a request, with as many connections for each worker as other rows have."""
    with serving_short_list(server, folder) as address:
        check_list(server, address.port, SHORT_LIST)
        daemon, *workers = processes_of(address.pid)
        workers = workers or [daemon]  # a single worker runs in the process of the daemon
        for core, worker in enumerate(workers):
            command = ["taskset", "--all-tasks", "--cpu-list", "--pid", str(core), str(worker)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {
            f"{name} µs": cpu_of(server, address, workers, duration, options) for name, options in WORKLOADS.items()
        }


def measure_cpu_on_redis(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Do the same with Redis, on the second core; its CPU time is not counted."""
    with redis_beside(folder):
        return measure_cpu(server, folder, duration)


def cpu_of(
    server: Server, address: Address, workers: Sequence[int], duration: Duration, options: Sequence[str]
) -> float:
    """Return the microseconds for a request."""
    load_each(server, address, workers, duration.warm_up_s, options)
    before = total_cpu_s(address.pid)
    requests = load_each(server, address, workers, duration.measured_s, options)
    return (total_cpu_s(address.pid) - before) / requests * 1e6


def load_each(server: Server, address: Address, workers: Sequence[int], seconds: int, options: Sequence[str]) -> int:
    """Load each worker with a wrk on its core; return how many requests were answered.

    All connections of a wrk are to one worker: between two cores each request would cost a wake-up of the other core.
    """
    with ThreadPoolExecutor(len(workers)) as threads:
        loads = []
        for core, worker in enumerate(workers):
            with stopped([other for other in workers if other != worker]):
                beside = replace(server, load_cores=str(core))
                loads.append(threads.submit(load, beside, address.port, seconds, options))
                deadline = time.monotonic() + CONNECTING_S
                while count_sockets(worker) <= CONNECTIONS:  # one listens
                    if time.monotonic() > deadline:
                        raise BenchError(f"{server.name}: wrk did not connect within {CONNECTING_S} s")
                    time.sleep(0.01)
        return sum(one.result().requests for one in loads)


def count_sockets(pid: int) -> int:
    """Return how many sockets a process has open."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            count += link.readlink().name.startswith("socket:")
    return count


@contextmanager
def stopped(processes: Collection[int]) -> Iterator[None]:
    """Stop processes within."""
    try:
        for process in processes:
            os.kill(process, SIGSTOP)
        yield
    finally:
        for process in processes:
            os.kill(process, SIGCONT)


def total_cpu_s(pid: int) -> float:
    """Return the processor time of a process and of its descendants until now."""
    return sum(map(cpu_s, processes_of(pid)))
