"""Workloads over TLS, beside those of `workloads`."""

import os
import selectors
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from bench.contenders import TLS_BESIDE
from bench.cpu import total_cpu_s
from bench.loads import load, percentile
from bench.open_loop import OpenLoop, random_moments
from bench.servers import LOAD_CORE, REQUEST_S, Address, BenchError, Server, unverified, write_certificate
from bench.workloads import SHORT_LIST, Duration, check_list, serving_short_list

CLOSING = "Connection: close"
REQUEST = f"GET /post HTTP/1.1\r\nHost: 127.0.0.1\r\n{CLOSING}\r\n\r\n".encode()
READS_PER_SECOND = 1000


def measure_connections(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Load the server with requests that have a connection of their own each; wrk resumes its session if it can."""
    with serving_short_list(server, folder) as address:
        check_list(server, address.port, SHORT_LIST)
        load(server, address.port, duration.warm_up_s, ["-H", CLOSING])
        return {"connections/s": load(server, address.port, duration.measured_s, ["-H", CLOSING]).per_second}


def measure_handshakes(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure the CPU time of the server for a connection with one request, with the whole handshake, and resumed.

    The connections are made one after the other: the client needs more time for each than the server.
    """
    with serving_short_list(server, folder) as address:
        check_list(server, address.port, SHORT_LIST)
        figures = {"full µs": cpu_of(server, address, duration.measured_s, resumes=False)}
        if connect(server, address, connect(server, address, None)) is not None:
            figures["resumed µs"] = cpu_of(server, address, duration.measured_s, resumes=True)
    return figures


def cpu_of(server: Server, address: Address, seconds: int, *, resumes: bool) -> float:
    """Return the microseconds of a connection."""
    session = connect(server, address, None)
    before, count = total_cpu_s(address.pid), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        session = connect(server, address, session if resumes else None)  # the next one: some are accepted once only
        if session is None:
            raise BenchError(f"{server.name}: a session was not resumed")
        count += 1
    return (total_cpu_s(address.pid) - before) / count * 1e6


def connect(server: Server, address: Address, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
    """Make a connection and a request, and close it; return its session, None if it has not resumed that one."""
    plain = socket.create_connection(("127.0.0.1", address.port), timeout=REQUEST_S)
    with unverified().wrap_socket(plain, session=session) as connection:
        connection.sendall(REQUEST)
        received = b""
        with suppress(ssl.SSLEOFError):  # an end without close_notify
            while piece := connection.recv(65536):
                received += piece
        if not received.startswith(b"HTTP/1.1 200 "):
            raise BenchError(f"{server.name}: GET /post was answered with {received[:200]!r}")
        return connection.session if session is None or connection.session_reused else None


def measure_reads_beside(per_second: int, server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure reads on the port without TLS, while so many handshakes a second are made on the other port."""
    write_certificate(folder)
    with serving_short_list(server, folder) as address, get_context("spawn").Pool(1, leave_core) as clients:
        body = check_list(server, address.port, SHORT_LIST)
        reading = OpenLoop(server.name, address.port, "/post", body)
        clients.apply(os.getpid)  # starts the process
        reading.ask(READS_PER_SECOND, duration.warm_up_s, waits=True)
        shaking_hands = clients.apply_async(shake_hands, (address.port, per_second, duration.measured_s))
        before = total_cpu_s(address.pid)
        measured = reading.ask(READS_PER_SECOND, duration.measured_s, waits=True)
        cpu_s = total_cpu_s(address.pid) - before
        made = shaking_hands.get(REQUEST_S)
    return {
        "p99 ms": percentile(measured.latency_s, 99) * 1000,
        "p50 ms": median(measured.latency_s) * 1000,
        "ms, client's own": percentile(measured.own_s, 99) * 1000,
        "handshakes/s": made / duration.measured_s,
        "cores": cpu_s / duration.measured_s,
    }


def leave_core() -> None:
    """Let this process run on the load's core only where the reading client waits, which preempts it."""
    os.sched_setaffinity(0, {LOAD_CORE})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def shake_hands(port: int, per_second: int, seconds: float) -> int:
    """Make whole handshakes at random moments, each on a connection of its own; return how many were made in time."""
    due = deque(random_moments(per_second, seconds) if per_second else ())
    made, start = 0, time.monotonic()
    with selectors.DefaultSelector() as ready:
        while (now := time.monotonic() - start) < seconds:
            while due and due[0] <= now:
                due.popleft()
                plain = socket.create_connection((TLS_BESIDE, port), timeout=REQUEST_S)
                plain.settimeout(0)
                connection = unverified().wrap_socket(plain, do_handshake_on_connect=False)
                ready.register(connection, selectors.EVENT_READ, connection)
                _go_on(ready, connection)
            for key, _ in ready.select((due[0] if due else seconds) - now):
                made += _go_on(ready, key.data)
    return made


def _go_on(ready: selectors.BaseSelector, connection: ssl.SSLSocket) -> bool:
    """Go on with a handshake; return whether it is done. The connection is closed then."""
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
        ready.unregister(connection)
        connection.close()
        return True
    return False
