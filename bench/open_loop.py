"""A client that asks when a request is due, not when the last answer has come: no coordinated omission.

The requests of many users who know nothing of each other come at random moments (a Poisson process, the same one in
each run). A latency counts from the moment at which its request was due: if the server holds all connections up, the
requests that become due meanwhile wait, and their waiting counts. wrk, which sends the next request of a connection
when it has the last answer, would leave out just those.

The client has a core of its own and spins on it. Its own delay is measured, too: how much later than possible, that is
than due and with a connection free, each request was sent.
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

from bench.servers import REQUEST_S, BenchError

CONNECTIONS = 32
RECEIVED_MAX_BYTES = 256 * 1024
SEED = 1

_clock = time.perf_counter


@dataclass(frozen=True)
class Latencies:
    """Seconds of each request, in the order of the answers, and of them the client's own."""

    latency_s: list[float] = field(default_factory=list)
    own_s: list[float] = field(default_factory=list)


class Connection:
    """One connection, and the moment at which its present request should have been sent."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=REQUEST_S)
        self.socket.settimeout(0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due = self.free_since = 0.0
        self.received = b""


class OpenLoop:
    """Sends one server the same request, over and over.

    Args:
        name: the server's, for errors.
        port: where it listens on loopback.
        path: what is asked for.
        body: what must come.
        new: for POST in place of GET: what is sent, in JSON. The answer must be a 201.
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

    def ask(self, per_second: float, seconds: float) -> Latencies:
        """Ask at random moments, so often on average; return how long the answers took.

        Raises:
            BenchError: an answer has another status or body than it must have, or does not come.
        """
        due = list(random_moments(per_second, seconds))
        with ExitStack() as stack, select.epoll() as ready:
            connections = [Connection(self._port) for _ in range(CONNECTIONS)]
            for connection in connections:
                stack.enter_context(connection.socket)
                ready.register(connection.socket, select.EPOLLIN)
            gc.disable()
            try:
                return self._ask(due, connections, ready)
            finally:
                gc.enable()

    def _ask(self, due: list[float], connections: list[Connection], ready: select.epoll) -> Latencies:
        measured = Latencies()
        of_descriptor = {connection.socket.fileno(): connection for connection in connections}
        free = deque(connections)
        sent, start = 0, _clock()
        while len(measured.latency_s) < len(due):
            now = _clock() - start
            if now > due[-1] + REQUEST_S:
                raise BenchError(f"{self._name}: an answer did not come within {REQUEST_S} s")
            while sent < len(due) and free and due[sent] <= now:
                connection = free.popleft()
                connection.due = due[sent]
                connection.socket.send(self._request)
                measured.own_s.append(_clock() - start - max(connection.due, connection.free_since))
                sent += 1
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
        """Tell whether an answer has come to its end.

        Raises:
            BenchError: it is not the one that was expected.
        """
        head, separator, body = received.partition(b"\r\n\r\n")
        if not separator or len(body) < len(self._body):
            return False
        if not head.startswith(b"HTTP/1.1 %d " % self._status) or body != self._body:
            raise BenchError(f"{self._name}: {self._method} was answered with {received[:200]!r}")
        return True


def random_moments(per_second: float, seconds: float) -> Iterator[float]:
    """Iterate over seconds from 0 on."""
    rng = random.Random(SEED)
    at = rng.expovariate(per_second)
    while at < seconds:
        yield at
        at += rng.expovariate(per_second)
