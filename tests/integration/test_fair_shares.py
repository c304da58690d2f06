"""Clients that ask for too much, have gone, or do not read: what others get meanwhile."""

import os
import re
import select
import signal
import socket
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.helpers import wait_until
from tests.integration.daemon import Daemon
from tests.integration.slow_clients import GIVE_UP_S, memory_kib, read_response

POSTS = 3000
HEAVY = "GET /post?limit=1000&after=%d HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
GZIP = "Accept-Encoding: gzip\r\n"
LIGHT = b"GET /post?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /post/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
BUSY, OTHER, PROXY = "127.0.0.1", "127.0.0.9", "127.0.0.77"
"""Addresses of clients."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with posts that take the most room when they are encoded: each page of 1,000 has nearly a megabyte."""
    folder = tmp_path_factory.mktemp("fair")
    settings = f'trusted_proxies = ["{PROXY}"]\n[limits]\nconnections = 400\nidle_time = "4s"\n'
    (folder / "postd.toml").write_text(settings)
    with Daemon(folder, "-c", "postd.toml") as daemon:
        with closing(sqlite3.connect(folder / "postd.db")) as connection, connection:
            connection.executemany("INSERT INTO post (post) VALUES (?)", [("\x01" * 140,)] * POSTS)
        before = descriptors(daemon)
        with connect(daemon) as stream:
            stream.sendall(STREAM)
            assert status_of(stream) == 200
        wait_for_descriptors(daemon, before + 1)  # the inotify instance of the first stream stays open
        yield daemon
        assert "Traceback" not in daemon.log


def connect(daemon: Daemon, source: str = BUSY, *, receive_bytes: int = 0) -> socket.socket:
    client = socket.socket()
    client.settimeout(GIVE_UP_S)
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.bind((source, 0))
    client.connect(("127.0.0.1", daemon.port))
    return client


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def ask_heavy(client: socket.socket, number: int, fields: str = "") -> None:
    client.sendall((HEAVY % (number, fields)).encode())


def status_of(client: socket.socket) -> int:
    return int(client.recv(13)[9:12])


@contextmanager
def suspended(daemon: Daemon) -> Iterator[None]:
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


def descriptors(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def wait_for_descriptors(daemon: Daemon, most: int, within_s: float = GIVE_UP_S) -> None:
    wait_until(lambda: descriptors(daemon) <= most, within_s=within_s)


@pytest.fixture(autouse=True)
def quiet(daemon: Daemon) -> Iterator[int]:
    """Wait at the end until the connections of the test are closed; the value is the number of descriptors before."""
    before = descriptors(daemon)
    yield before
    wait_for_descriptors(daemon, before)


def test_compression_for_one_client_does_not_delay_another(daemon: Daemon) -> None:
    with ExitStack() as closed, connect(daemon, OTHER) as other:
        other.sendall(LIGHT)
        assert read_response(other)
        heavy = [closed.enter_context(connect(daemon, receive_bytes=4096)) for _ in range(100)]
        with suspended(daemon):  # all requests are there when it goes on, on a busy machine, too
            for number, client in enumerate(heavy, 1):
                ask_heavy(client, number, GZIP)
            ask_heavy(other, 1001, GZIP)
        assert read_response(other).startswith(b"HTTP/1.1 200 ")
        daemon.wait_for("after=1001 ")
        answered_before = re.findall(r"after=(\d{1,2}|100) ", daemon.log.partition("after=1001 ")[0])
        assert len(answered_before) < len(heavy) // 2


def test_client_that_reads_nothing_uses_its_share_of_the_memory(daemon: Daemon) -> None:
    with ExitStack() as closed:
        silent = [closed.enter_context(connect(daemon, receive_bytes=4096)) for _ in range(150)]
        for number, client in enumerate(silent, 500):
            ask_heavy(client, number)
        statuses = [status_of(client) for client in silent]
        assert set(statuses) == {200, 503}
        assert memory_kib(daemon.process.pid, "VmRSS") < 300 * 1024
        with connect(daemon, OTHER) as other:
            ask_heavy(other, 400)
            assert read_response(other).startswith(b"HTTP/1.1 200 ")


def test_responses_that_are_written_whole_take_little_memory_until_they_are_read(daemon: Daemon) -> None:
    """All but the last portion is read, of the last response of each connection."""
    with ExitStack() as closed:
        statuses = []
        for number in range(150):
            client = closed.enter_context(connect(daemon, receive_bytes=4096))
            head = (
                f"GET /post?limit=1000&after={1200 + number} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            client.sendall(head.encode())
            received = client.recv(65536)
            statuses.append(int(received[9:12]))
            while statuses[-1] == 200 and len(received) < 600_000:
                received += client.recv(65536)
        assert set(statuses) <= {200, 503}
        assert memory_kib(daemon.process.pid, "VmRSS") < 300 * 1024


def test_many_readers_of_one_address_are_served(daemon: Daemon) -> None:
    with ExitStack() as closed:
        readers = [closed.enter_context(connect(daemon, receive_bytes=4096)) for _ in range(190)]
        for number, client in enumerate(readers, 1500):
            client.sendall(f"GET /post?limit=100&after={number} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        for client in readers:
            response = read_response(client)
            assert response.startswith(b"HTTP/1.1 200 ")
            assert len(response) > 80_000


def test_requests_of_clients_that_have_gone_leave_nothing_behind(daemon: Daemon, quiet: int) -> None:
    for number in range(300):
        client = connect(daemon)
        ask_heavy(client, number, GZIP if number % 2 else "")
        if number % 3:
            client.close()
        else:
            reset(client)
    wait_for_descriptors(daemon, quiet)
    assert memory_kib(daemon.process.pid, "VmRSS") < 300 * 1024


@pytest.mark.parametrize("end", ["close", "half-close", "reset"])
def test_event_stream_frees_its_connection_when_its_client_ends_it(daemon: Daemon, quiet: int, end: str) -> None:
    with ExitStack() as closed:
        streams = [closed.enter_context(connect(daemon)) for _ in range(50)]
        for stream in streams:
            stream.sendall(STREAM)
            assert status_of(stream) == 200
            while select.select([stream], [], [], 0.02)[0]:
                stream.recv(65536)
        for stream in streams:
            match end:
                case "close":
                    stream.close()
                case "half-close":
                    stream.shutdown(socket.SHUT_WR)
                case _:
                    reset(stream)
        wait_for_descriptors(daemon, quiet, 5)  # a heartbeat comes after 15 seconds


def test_streams_through_a_proxy_are_limited_by_client(daemon: Daemon) -> None:
    def open_stream(client: int) -> tuple[socket.socket, int]:
        stream = connect(daemon, PROXY)
        stream.sendall(STREAM[:-2] + b"X-Forwarded-For: 192.0.2.%d\r\n\r\n" % client)
        return stream, status_of(stream)

    with ExitStack() as closed:
        statuses: dict[int, list[int]] = {1: [], 2: []}
        for client, count in ((1, 205), (2, 165)):
            for _ in range(count):
                stream, status = open_stream(client)
                closed.enter_context(stream)
                statuses[client].append(status)
        assert statuses == {1: [200] * 200 + [503] * 5, 2: [200] * 160 + [503] * 5}


@pytest.mark.slow
def test_client_that_reads_less_than_a_kibibyte_a_second_is_cut_off(daemon: Daemon) -> None:
    with connect(daemon, receive_bytes=4096) as slow, connect(daemon, receive_bytes=4096) as steady:
        for number, client in enumerate((slow, steady)):
            ask_heavy(client, 700 + number)
        cut = False
        deadline = time.monotonic() + GIVE_UP_S
        while not cut:
            assert time.monotonic() < deadline
            time.sleep(1)
            assert steady.recv(3000)
            try:
                cut = not slow.recv(500)
            except ConnectionResetError:
                cut = True


def test_half_closed_client_gets_a_page_that_waited_for_its_turn(daemon: Daemon) -> None:
    with ExitStack() as closed, connect(daemon, OTHER) as half:
        for number in range(50):
            client = closed.enter_context(connect(daemon, receive_bytes=4096))
            ask_heavy(client, 900 + number)
        ask_heavy(half, 950)
        half.shutdown(socket.SHUT_WR)
        assert read_response(half).startswith(b"HTTP/1.1 200 ")
