"""CPU time of requests to one worker and to two, all on the servers' core: wrk has a core of its own."""

from collections.abc import Sequence
from pathlib import Path

from bench.contenders import redis_beside
from bench.loads import CONNECTIONS, cpu_s, load, processes_of, script
from bench.servers import Address, Server
from bench.workloads import SHORT_LIST, Duration, check_list, serving_short_list

WORKLOADS = {"GET": [], "GET one": script("one"), "POST": script("post")}


def measure_cpu(workers: int, server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure the CPU time of the server for a request, as many connections for each worker as other rows have."""
    with serving_short_list(server, folder) as address:
        check_list(server, address.port, SHORT_LIST)
        connections = f"-c{workers * CONNECTIONS}"
        return {
            f"{name} µs": cpu_of(server, address, duration, [*options, connections])
            for name, options in WORKLOADS.items()
        }


def measure_cpu_on_redis(workers: int, server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Do the same with Redis on the core of wrk; its CPU time is not counted."""
    with redis_beside(folder):
        return measure_cpu(workers, server, folder, duration)


def cpu_of(server: Server, address: Address, duration: Duration, options: Sequence[str]) -> float:
    """Return the microseconds for a request."""
    load(server, address.port, duration.warm_up_s, options)
    before = total_cpu_s(address.pid)
    requests = load(server, address.port, duration.measured_s, options).requests
    return (total_cpu_s(address.pid) - before) / requests * 1e6


def total_cpu_s(pid: int) -> float:
    """Return the processor time of a process and of its descendants until now."""
    return sum(map(cpu_s, processes_of(pid)))
