"""An open-loop load generator: requests are sent when they are due, which avoids coordinated omission.

Requests of many independent users come at random moments (a Poisson process, the same one in each run). A latency
counts from the moment at which the request was due: if the server stalls, the requests that become due meanwhile wait,
and that time counts. wrk is a closed loop: it sends the next request of a connection after the last response, and so
leaves out just these waits.

The client has a core of its own and polls in a loop, or waits where the core has work besides. Its own delay is
measured, too: the time between the moment when a request was due and a connection was free, and the moment when it was
sent.
"""

import gc
import random
import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.servers import REQUEST_S, BenchError

CONNECTIONS = 32
RECEIVED_MAX_BYTES = 256 * 1024
SEED = 1

_clock = time.perf_counter


@dataclass(frozen=True)
class Latencies:
    """The latency of each request, in seconds, in the order of the responses, and the client's share of it."""

    latency_s: list[float] = field(default_factory=list)
    own_s: list[float] = field(default_factory=list)


class Connection:
    """A connection, and the moment at which its current request was due."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=REQUEST_S)
        self.socket.settimeout(0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due = self.free_since = 0.0
        self.received = b""


class OpenLoop:
    """Sends the same request to a server repeatedly.

    Args:
        name: the name of the server, for errors.
        port: its port on loopback.
        path: the path of the request.
        body: the expected body of the response.
        new: the JSON body of a POST, whose response must be 201; None for a GET, whose response must be 200.
    """

    def __init__(self, name: str, port: int, path: str, body: bytes, new: bytes | None = None) -> None:
        self._name = name
        self._port = port
        fields = "Host: 127.0.0.1\r\n"
        if new is None:
            self._method, self._status = "GET", 200
        else:
            self._method, self._status = "POST", 201
            fields += f"Content-Type: application/json\r\nContent-Length: {len(new)}\r\n"
        self._request = f"{self._method} {path} HTTP/1.1\r\n{fields}\r\n".encode() + (new or b"")
        self._body = body

    def ask(self, per_second: float, seconds: float, *, waits: bool = False) -> Latencies:
        """Send requests at random moments, at this average rate; return their latencies.

        `waits`: leave the core to others until a request is due, or a response arrives.

        Raises:
            BenchError: a response has another status or body, or is absent.
        """
        due = list(random_moments(per_second, seconds))
        if waits:
            Path("/proc/self/timerslack_ns").write_text("1")  # else the kernel wakes it up to 50 µs late
        with ExitStack() as stack, select.epoll() as ready:
            connections = [Connection(self._port) for _ in range(CONNECTIONS)]
            for connection in connections:
                stack.enter_context(connection.socket)
                ready.register(connection.socket, select.EPOLLIN)
            gc.disable()
            try:
                return self._ask(due, connections, ready, waits=waits)
            finally:
                gc.enable()

    def _ask(self, due: list[float], connections: list[Connection], ready: select.epoll, *, waits: bool) -> Latencies:
        measured = Latencies()
        of_descriptor = {connection.socket.fileno(): connection for connection in connections}
        free = deque(connections)
        sent, start = 0, _clock()
        while len(measured.latency_s) < len(due):
            now = _clock() - start
            if now > due[-1] + REQUEST_S:
                raise BenchError(f"{self._name}: no response within {REQUEST_S} s")
            while sent < len(due) and free and due[sent] <= now:
                connection = free.popleft()
                connection.due = due[sent]
                connection.socket.send(self._request)
                measured.own_s.append(_clock() - start - max(connection.due, connection.free_since))
                sent += 1
            if waits:  # `poll` of an epoll waits for whole milliseconds
                more = due[sent] if free and sent < len(due) else now + REQUEST_S
                select.select([ready], [], [], max(0, start + more - _clock()))
            for descriptor, _ in ready.poll(0):
                connection = of_descriptor[descriptor]
                received = connection.socket.recv(RECEIVED_MAX_BYTES)
                if not received:
                    raise BenchError(f"{self._name} closed a connection")
                connection.received += received
                if self._is_whole(connection.received):
                    connection.received = b""
                    connection.free_since = _clock() - start
                    measured.latency_s.append(connection.free_since - connection.due)
                    free.append(connection)
        return measured

    def _is_whole(self, received: bytes) -> bool:
        """Return whether a response is complete.

        Raises:
            BenchError: it is not the expected one.
        """
        head, separator, body = received.partition(b"\r\n\r\n")
        if not separator or len(body) < len(self._body):
            return False
        if not head.startswith(b"HTTP/1.1 %d " % self._status) or body != self._body:
            raise BenchError(f"{self._name}: {self._method} was answered with {received[:200]!r}")
        return True


def random_moments(per_second: float, seconds: float) -> Iterator[float]:
    """Yield the moments of a Poisson process, in seconds from 0 on."""
    rng = random.Random(SEED)
    at = rng.expovariate(per_second)
    while at < seconds:
        yield at
        at += rng.expovariate(per_second)
