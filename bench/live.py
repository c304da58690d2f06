"""Live changes: the time until an event is with the listeners, and the CPU time and memory that it takes."""

import json
import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from bench.contenders import POSTD
from bench.cpu import total_cpu_s
from bench.loads import pss_mib
from bench.servers import REQUEST_S, BenchError, Server, running
from bench.workloads import JSON, Duration

LISTENERS = 4000
IDLE_LISTENERS = 10_000
IDLE_S = 30
"""The time of which CPU time is counted: each listener is sent two heartbeats."""

FIRST_BYTES_S = 1.0
"""The time for the beginnings of the streams, after the heads of the responses."""

REQUEST = b"GET /post/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"

POSTD_LIVE = replace(POSTD, settings="[log]\naccess = false")
POSTD_LIVE_IDLE = replace(POSTD, settings="[log]\naccess = false\n[limits]\nconnections = 12000")


class Listeners:
    """Connections with an event stream each."""

    def __init__(self, server: Server, port: int) -> None:
        self._server = server
        self._port = port
        self._connections: dict[int, socket.socket] = {}
        self._poll = select.epoll()

    def connect(self, closing: ExitStack, count: int = LISTENERS) -> None:
        """Open streams from several addresses: postd allows each of them half of its connections."""
        for number in range(count):
            source = f"127.0.0.{2 + number % 4}", 0
            connection = closing.enter_context(
                socket.create_connection(("127.0.0.1", self._port), REQUEST_S, source_address=source)
            )
            connection.sendall(REQUEST)
            self._connections[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)
        self.wait_for(b"200 OK")
        self.read_for(FIRST_BYTES_S)

    def read_for(self, seconds: float) -> None:
        """Read what arrives for a time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in self._read(end - time.monotonic()):
                pass

    def wait_for(self, text: bytes) -> tuple[float, float]:
        """Wait until each has received a text; return when the first and the last had it."""
        waiting = set(self._connections)
        times: list[float] = []
        deadline = time.monotonic() + REQUEST_S
        while waiting:
            if time.monotonic() > deadline:
                raise BenchError(f"{self._server.name}: {len(waiting)} listeners have not received {text!r}")
            for descriptor, data in self._read(1):
                if text in data:
                    times.append(time.perf_counter())
                    waiting.discard(descriptor)
        return times[0], times[-1]

    def _read(self, within_s: float) -> Iterator[tuple[int, bytes]]:
        for descriptor, _ in self._poll.poll(max(0.0, within_s), len(self._connections)):
            data = self._connections[descriptor].recv(65536)
            if not data:
                raise BenchError(f"{self._server.name}: a stream has ended")
            yield descriptor, data


def measure_live(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Add posts one after the other, each when all listeners have received the one before."""
    with many_descriptors(LISTENERS), running(server, folder) as address, ExitStack() as closing:
        listeners = Listeners(server, address.port)
        listeners.connect(closing)
        memory = pss_mib(address.pid)
        writer = HTTPConnection("127.0.0.1", address.port, timeout=REQUEST_S)
        publish(server, writer, listeners, 0)
        first: list[float] = []
        last: list[float] = []
        before, end = total_cpu_s(address.pid), time.monotonic() + duration.measured_s
        while not first or time.monotonic() < end:
            began = time.perf_counter()
            times = publish(server, writer, listeners, len(first) + 1)
            first.append((times[0] - began) * 1000)
            last.append((times[1] - began) * 1000)
        took = total_cpu_s(address.pid) - before
        writer.close()
    cpu = took / len(first) / LISTENERS * 1e6
    return {"first ms": median(first), "last ms": median(last), "CPU µs": cpu, "MiB": memory}


def measure_live_idle(server: Server, folder: Path, _duration: Duration) -> dict[str, float]:
    """Do nothing with many listeners."""
    with many_descriptors(IDLE_LISTENERS), running(server, folder) as address, ExitStack() as closing:
        listeners = Listeners(server, address.port)
        listeners.connect(closing, IDLE_LISTENERS)
        before = total_cpu_s(address.pid)
        listeners.read_for(IDLE_S)
        took = total_cpu_s(address.pid) - before
        memory = pss_mib(address.pid)
    return {"CPU µs/s": took / IDLE_S / IDLE_LISTENERS * 1e6, "MiB": memory}


def publish(server: Server, writer: HTTPConnection, listeners: Listeners, number: int) -> tuple[float, float]:
    """Add a post; return when the first and the last listener had it."""
    text = f"Post {number:06} says little, but it is as long as most posts are."
    name, value = JSON.split(": ")
    writer.request("POST", "/post", json.dumps({"post": text}), {name: value})
    times = listeners.wait_for(text.encode())
    with writer.getresponse() as answer:
        answer.read()
        if answer.status not in {201, 202}:
            raise BenchError(f"{server.name}: POST /post answered {answer.status}")
    return times


@contextmanager
def many_descriptors(listeners: int) -> Iterator[None]:
    """Raise the soft limit of descriptors, for the clients and the server that is started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = listeners * 3 // 2
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise BenchError(f"{listeners} listeners need {wanted} descriptors (ulimit -Hn: {hard})")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
