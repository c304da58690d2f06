"""The state that the kernel reports for a connection, on real sockets."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from postd.front.socket_state import bytes_acknowledged, has_unread, unacknowledged_bytes
from tests.helpers import PATIENCE_S, MemoryTransport

DEADLINE_S = PATIENCE_S


class Pair:
    """The two ends of a connection; the server's is wrapped as by the transports of TLS and the PROXY protocol."""

    def __init__(self, kind: str) -> None:
        if kind == "unix":
            self.ours, self.client = socket.socketpair()
        else:
            with closing(socket.create_server(("127.0.0.1", 0))) as server:
                self.client = socket.create_connection(server.getsockname())
                self.ours = server.accept()[0]
        self.connection: Any = SimpleNamespace(socket=self.ours, dataBuffer=b"", offset=0, _tempDataLen=0)
        self.transport: Any = SimpleNamespace(transport=SimpleNamespace(transport=self.connection))


@pytest.fixture(params=["tcp", "unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(request.param)
    with closing(made.ours), closing(made.client):
        yield made


def test_unread_bytes_are_seen(pair: Pair) -> None:
    assert not has_unread(pair.transport)
    pair.client.sendall(b"x")
    deadline = time.monotonic() + DEADLINE_S
    while not has_unread(pair.transport):
        assert time.monotonic() < deadline
    pair.ours.recv(10)
    assert not has_unread(pair.transport)


def test_acknowledged_bytes_are_counted() -> None:
    pair = Pair("tcp")
    with closing(pair.ours), closing(pair.client):
        before = bytes_acknowledged(pair.transport)
        pair.ours.sendall(b"x" * 1000)
        deadline = time.monotonic() + DEADLINE_S
        while bytes_acknowledged(pair.transport) != before + 1000:
            assert time.monotonic() < deadline


def test_bytes_are_unacknowledged_until_the_client_has_them() -> None:
    pair = Pair("tcp")
    with closing(pair.ours), closing(pair.client):
        assert unacknowledged_bytes(pair.transport) == 0
        pair.connection.dataBuffer = b"x" * 10  # in the transport's own buffer
        assert unacknowledged_bytes(pair.transport) == 10
        sent = 0
        with suppress(BlockingIOError):
            while True:
                sent += pair.ours.send(b"x" * 100_000, socket.MSG_DONTWAIT)
        assert 10 < unacknowledged_bytes(pair.transport) <= sent + 10
        deadline = time.monotonic() + DEADLINE_S
        while unacknowledged_bytes(pair.transport) > 10:
            assert time.monotonic() < deadline
            with suppress(BlockingIOError):
                pair.client.recv(1_000_000, socket.MSG_DONTWAIT)


def test_acknowledged_bytes_of_a_unix_socket_grow_as_they_are_read() -> None:
    pair = Pair("unix")
    with closing(pair.ours), closing(pair.client):
        assert bytes_acknowledged(pair.transport) == 0
        pair.ours.sendall(b"x" * 100)
        pair.ours.sendall(b"x" * 100)
        sent = bytes_acknowledged(pair.transport)
        assert sent <= -200
        pair.client.recv(100)
        assert sent < bytes_acknowledged(pair.transport) < 0
        pair.connection.dataBuffer = b"x" * 100_000  # in the transport's own buffer
        assert bytes_acknowledged(pair.transport) < sent


def test_transport_without_a_socket_has_no_state() -> None:
    transport = MemoryTransport()
    assert bytes_acknowledged(transport) == 0
    assert not has_unread(transport)
