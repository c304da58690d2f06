"""The limits of `[limits]` on the real process, against clients that take their time and clients that take too much."""

import re
import socket
import sqlite3
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from msgspec import Struct
from OpenSSL import SSL

from postd.errors import ConfigError
from postd.settings.loading import load_settings
from tests.cases import each
from tests.helpers import make_socket_folder
from tests.integration.daemon import Daemon
from tests.integration.slow_clients import (
    GET,
    GIVE_UP_S,
    PROXY,
    Addresses,
    Crowd,
    Ending,
    Latencies,
    addresses_of,
    closing_all,
    cpu_s,
    endpoints,
    flood,
    get,
    is_let_in,
    is_turned_away,
    measure,
    memory_kib,
    read_response,
    read_to_end,
    room_for_descriptors,
    trickle,
    wait_for_cut,
)
from tests.web.wire import decode_response

BODY_S, HEADER_S, IDLE_S = 1.0, 2.0, 3.0
"""All different, so that each is recognized."""

OVER_S = 6.0
"""How much later than at its limit a connection may end: the sweep, and a machine that has other things to do. By the
defaults of the limits (10, 30 and 60 s) it would end later than that."""

TRICKLE_S = 0.1
LINGER_S = 2.0
POSTS = 10_500  # more than what is sent as one piece, and with such texts more than a connection holds
TEXT = "🚀" * 140
TRICKLERS = 200
STALLED = 8
FLOOD = 100_000
IDLE = 1000
CONNECTIONS = 50
EACH_WORKERS = 20

LIMITS = f"""
[limits]
header_time = "{HEADER_S:g}s"
body_time = "{BODY_S:g}s"
idle_time = "{IDLE_S:g}s"
"""

TRUSTED = 'trusted_proxies = ["127.0.0.0/8", "192.0.2.0/24"]\n'
"""A trusted proxy, so that the tests' own addresses may have all connections."""

POST_HEAD = b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LENGTH_HEAD = POST_HEAD + b"Content-Length: 140\r\n\r\n"
CHUNKED_HEAD = POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GET_LAST = GET.replace(b"/1 ", b"/%d " % POSTS)
SMALL_POST = POST_HEAD + b'Content-Length: 12\r\n\r\n{"post":"x"}'


def now() -> float:
    return time.monotonic()


# Each of these is a client, for itself; all run at once.


def trickled_head(to: Addresses, kind: str = "tcp") -> Ending:
    with to.connect(kind) as client:
        began = now()
        trickle(client, GET[:-2] + b"X-Long: " + b"x" * 1000, TRICKLE_S)
        return read_to_end(client, began)


def head_that_stops(to: Addresses) -> Ending:
    with to.connect() as client:
        began = now()
        client.sendall(GET[:-2])
        return read_to_end(client, began)


def first_byte_after_a_while(to: Addresses) -> Ending:
    with to.connect() as client:
        time.sleep(0.7 * IDLE_S)
        began = now()
        trickle(client, b"G" * 1000, TRICKLE_S)
        return read_to_end(client, began)


def head_behind_another_request(to: Addresses) -> Ending:
    with to.connect() as client:
        began = now()
        client.sendall(GET + GET[:-2])
        return read_to_end(client, began)


def heads_one_after_the_other(to: Addresses) -> Ending:
    with to.connect() as client:
        began = now()
        for _ in range(3):
            trickle(client, GET, 0.6 * HEADER_S / len(GET))
            assert read_response(client).startswith(b"HTTP/1.1 200 ")
        return Ending(b"", now() - began)


def body_in_pieces(to: Addresses, head: bytes, body: bytes, kind: str = "tcp") -> Ending:
    with to.connect(kind) as client:
        began = now()
        client.sendall(head)
        trickle(client, body, TRICKLE_S)
        return read_to_end(client, began)


def body_that_was_asked_for(to: Addresses) -> Ending:
    with to.connect() as client:
        began = now()
        client.sendall(LENGTH_HEAD[:-2] + b"Expect: 100-continue\r\n\r\n")
        return read_to_end(client, began)


def body_after_a_slow_head(to: Addresses) -> Ending:
    with to.connect() as client:
        head, body = SMALL_POST[:-12], SMALL_POST[-12:]
        began = now()
        trickle(client, head, 0.6 * HEADER_S / len(head))
        trickle(client, body, 0.5 * BODY_S / len(body))
        return Ending(read_response(client), now() - began)


def no_byte(to: Addresses, kind: str = "tcp") -> Ending:
    began = now()
    with to.connect(kind) as client:
        return read_to_end(client, began)


def after_an_answer(to: Addresses, kind: str = "tcp") -> Ending:
    with to.connect(kind) as client:
        began = now()
        assert get(client)
        return read_to_end(client, began)


def request_just_in_time(to: Addresses) -> Ending:
    with to.connect() as client:
        assert get(client)
        time.sleep(0.7 * IDLE_S)
        began = now()
        assert get(client)
        return read_to_end(client, began)


def handshake_in_pieces(to: Addresses, first: int) -> Ending:
    """Send the beginning of a TLS ClientHello, then a byte at a time."""
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    said = hello.read()
    with to.connect("raw ssl") as client:
        began = now()
        client.sendall(said[:first])
        trickle(client, said[first:], TRICKLE_S)
        return read_to_end(client, began)


def proxy_line_in_pieces(to: Addresses) -> Ending:
    with to.connect("raw haproxy") as client:
        began = now()
        trickle(client, PROXY[:-1], TRICKLE_S)
        return read_to_end(client, began)


def steady_reader(to: Addresses, kind: str = "tcp") -> Ending:
    """Read a list a little at a time, for much longer than `idle_time`, then the rest at once."""
    with to.connect(kind, receive_bytes=16 * 1024) as client:
        began = now()
        client.sendall(GET.replace(b"/1 ", b" ").replace(b"1.1", b"1.0"))
        received = bytearray()
        while data := client.recv(16 * 1024, socket.MSG_WAITALL):
            received += data
            if now() < began + 2.5 * IDLE_S:
                time.sleep(max(0, began + len(received) / 40_000 - now()))
        return Ending(bytes(received), now() - began)


def stalled_reader(to: Addresses, kind: str = "tcp") -> Ending:
    with to.connect(kind, receive_bytes=16 * 1024) as client:
        began = now()
        client.sendall(GET.replace(b"/1 ", b" "))
        client.recv(1000)
        return wait_for_cut(client, began)


def pipelining_flood(to: Addresses) -> Ending:
    with to.connect(receive_bytes=16 * 1024) as client:
        began = now()
        flood(client, GET_LAST * FLOOD)
        return wait_for_cut(client, began)


def refused_while_it_sends(to: Addresses, head: bytes, more: bytes, kind: str = "tcp") -> Ending:
    """Send all at once, and read the response only then."""
    with to.connect(kind) as client:
        began = now()
        client.sendall(head)
        flood(client, more)
        return read_to_end(client, began)


HEADS: Mapping[str, Callable[[Addresses], Ending]] = {
    "trickled": trickled_head,
    "trickled over TLS": lambda to: trickled_head(to, "ssl"),
    "trickled behind a proxy": lambda to: trickled_head(to, "haproxy"),
    "trickled through a UNIX socket": lambda to: trickled_head(to, "unix"),
    "stopped": head_that_stops,
    "begun late": first_byte_after_a_while,
    "behind another request": head_behind_another_request,
}
CHUNKS = b"5\r\nxxxxx\r\n" * 100
BODIES: Mapping[str, Callable[[Addresses], Ending]] = {
    "trickled": lambda to: body_in_pieces(to, LENGTH_HEAD, b"x" * 139),
    "trickled over TLS": lambda to: body_in_pieces(to, LENGTH_HEAD, b"x" * 139, "ssl"),
    "in chunks": lambda to: body_in_pieces(to, CHUNKED_HEAD, CHUNKS),
    "in chunks, with a trickled trailer": lambda to: body_in_pieces(
        to, CHUNKED_HEAD + b'C\r\n{"post":"x"}\r\n0\r\n', b"X-Long: " + b"x" * 100
    ),
    "never begun": lambda to: body_in_pieces(to, LENGTH_HEAD, b""),
    "asked for": body_that_was_asked_for,
}
SILENT: Mapping[str, Callable[[Addresses], Ending]] = {
    "no byte": no_byte,
    "no byte over TLS": lambda to: no_byte(to, "ssl"),
    "no byte behind a proxy": lambda to: no_byte(to, "haproxy"),
    "no byte through a UNIX socket": lambda to: no_byte(to, "unix"),
    "after an answer": after_an_answer,
    "after an answer over TLS": lambda to: after_an_answer(to, "ssl"),
    "after the last of several": request_just_in_time,
}
UNFINISHED: Mapping[str, Callable[[Addresses], Ending]] = {
    "no TLS": lambda to: no_byte(to, "raw ssl"),
    "TLS begun": lambda to: handshake_in_pieces(to, 100),
    "TLS trickled": lambda to: handshake_in_pieces(to, 0),
    "no PROXY line": lambda to: no_byte(to, "raw haproxy"),
    "PROXY line trickled": proxy_line_in_pieces,
}
STALLS: Mapping[str, Callable[[Addresses], Ending]] = {
    **{f"list {n}": stalled_reader for n in range(STALLED)},
    "list over TLS": lambda to: stalled_reader(to, "ssl"),
    "list through a UNIX socket": lambda to: stalled_reader(to, "unix"),
    "flood": pipelining_flood,
}
LONG_HEAD = POST_HEAD + b"Content-Length: 8000000\r\n\r\n"
TOO_LARGE: Mapping[str, tuple[int, Callable[[Addresses], Ending]]] = {
    "length": (413, lambda to: refused_while_it_sends(to, LONG_HEAD, b"x" * 8_000_000)),
    "length, over TLS": (413, lambda to: refused_while_it_sends(to, LONG_HEAD, b"x" * 8_000_000, "ssl")),
    "chunks": (413, lambda to: refused_while_it_sends(to, CHUNKED_HEAD, (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 100)),
    "target": (414, lambda to: refused_while_it_sends(to, b"GET /", b"x" * 4_000_000)),
    "field": (431, lambda to: refused_while_it_sends(to, GET[:-2] + b"Cookie: ", b"x" * 4_000_000)),
    "fields": (431, lambda to: refused_while_it_sends(to, GET[:-2], b"X: y\r\n" * 100_000)),
}
OTHERS: Mapping[str, Callable[[Addresses], Ending]] = {
    "heads one after the other": heads_one_after_the_other,
    "body after a slow head": body_after_a_slow_head,
    "steady reader": steady_reader,
    "steady reader of a UNIX socket": lambda to: steady_reader(to, "unix"),
}


class Crowded(Struct):
    """Observations while attacking clients of all kinds were connected at once."""

    endings: Mapping[tuple[str, str], "Future[Ending]"]
    trickled: "Future[list[Ending]]"
    latencies: "Future[Latencies]"
    grown_kib: int
    log: str


@contextmanager
def make_folder(settings: str) -> Iterator[Path]:
    with make_socket_folder() as folder:
        (folder / "postd.toml").write_text(settings)
        yield folder


@pytest.fixture(scope="module")
def crowded(certificate: tuple[Path, Path]) -> Iterator[Crowded]:
    """Run all attacking clients against one server; the tests check how each ended."""
    groups = {
        "head": HEADS,
        "body": BODIES,
        "silent": SILENT,
        "unfinished": UNFINISHED,
        "stall": STALLS,
        "large": {name: client for name, (_, client) in TOO_LARGE.items()},
        "other": OTHERS,
    }
    clients = {(group, name): client for group, some in groups.items() for name, client in some.items()}
    with (
        make_folder(endpoints(certificate) + LIMITS) as folder,
        Daemon(folder, "-c", "postd.toml", listen=None) as daemon,
        ThreadPoolExecutor(len(clients) + 2) as threads,
    ):
        with closing(sqlite3.connect(folder / "postd.db")) as connection, connection:
            connection.executemany("INSERT INTO post (post) VALUES (?)", [(TEXT,)] * POSTS)
        to = addresses_of(daemon, certificate[1])
        with to.connect() as client:
            assert get(client)
        before = memory_kib(daemon.process.pid, "VmHWM")
        crowd = [to.connect() for _ in range(TRICKLERS)]
        trickled = threads.submit(Crowd(crowd, b"GET /post HTTP/1.1\r\n", 1).run)
        latencies = threads.submit(measure, to, for_s=HEADER_S + 1)
        endings = {name: threads.submit(client, to) for name, client in clients.items()}
        threads.shutdown()
        grown = memory_kib(daemon.process.pid, "VmHWM") - before
        with to.connect() as client:
            assert get(client)  # it is none the worse for it
        daemon.stop()
        yield Crowded(endings, trickled, latencies, grown, daemon.log)


def check_408(ending: Ending, limit_s: float, *, lingers_s: float = 0) -> None:
    last = b"HTTP/1.1 408 " + ending.received.rpartition(b"HTTP/1.1 408 ")[2]
    answer = decode_response(last)
    assert answer.header("Connection") == "close"
    assert not ending.reset
    assert limit_s <= ending.after_s < limit_s + lingers_s + OVER_S, ending.after_s


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_slow_head_is_408(crowded: Crowded, name: str) -> None:
    ending = crowded.endings["head", name].result()
    assert ending.statuses == ([200, 408] if name == "behind another request" else [408])
    check_408(ending, HEADER_S, lingers_s=LINGER_S if "TLS" in name else 0)


@pytest.mark.parametrize("name", BODIES)
def test_slow_body_is_408(crowded: Crowded, name: str) -> None:
    ending = crowded.endings["body", name].result()
    assert ending.statuses == ([100, 408] if name == "asked for" else [408])
    check_408(ending, BODY_S, lingers_s=LINGER_S if "TLS" in name else 0)


@pytest.mark.parametrize("name", SILENT)
def test_idle_connection_is_closed_without_a_response(crowded: Crowded, name: str) -> None:
    ending = crowded.endings["silent", name].result()
    assert ending.received == b""
    assert not ending.reset
    assert IDLE_S <= ending.after_s < IDLE_S + OVER_S, ending.after_s


@pytest.mark.parametrize("name", UNFINISHED)
def test_unfinished_handshake_is_closed(crowded: Crowded, name: str) -> None:
    ending = crowded.endings["unfinished", name].result()
    assert b"HTTP" not in ending.received
    assert ending.after_s < IDLE_S + OVER_S, ending.after_s


@pytest.mark.parametrize("name", STALLS)
def test_client_that_does_not_read_is_aborted(crowded: Crowded, name: str) -> None:
    ending = crowded.endings["stall", name].result()
    assert ending.reset or "UNIX" in name  # which knows but one way to end
    assert b"\r\n0\r\n\r\n" not in ending.received  # the response is recognizably incomplete
    # It takes a while until all that is between the two is full.
    assert IDLE_S <= ending.after_s < IDLE_S + OVER_S + 3, ending.after_s


@pytest.mark.parametrize("name", TOO_LARGE)
def test_client_that_sends_too_much_gets_the_refusal_while_sending(crowded: Crowded, name: str) -> None:
    ending = crowded.endings["large", name].result()
    status, _ = TOO_LARGE[name]
    answer = decode_response(ending.received)
    assert (answer.status, answer.header("Connection")) == (status, "close")
    assert ending.after_s < LINGER_S + OVER_S


def test_each_request_has_its_own_timeout(crowded: Crowded) -> None:
    assert crowded.endings["other", "heads one after the other"].result().after_s > 1.5 * HEADER_S


def test_body_timeout_starts_after_the_head(crowded: Crowded) -> None:
    ending = crowded.endings["other", "body after a slow head"].result()
    assert ending.statuses == [201]
    assert ending.after_s > 1.5 * BODY_S


@pytest.mark.parametrize("reader", ["steady reader", "steady reader of a UNIX socket"])
def test_slow_steady_reader_gets_the_whole_response(crowded: Crowded, reader: str) -> None:
    ending = crowded.endings["other", reader].result()
    assert ending.after_s > 2 * IDLE_S
    assert ending.received.count(TEXT.encode()) >= POSTS
    assert ending.received.endswith(b"\n]\n")


def test_trickling_crowd_is_cut_off_without_effect_on_others(crowded: Crowded) -> None:
    endings = crowded.trickled.result()
    assert len(endings) == TRICKLERS
    for ending in endings:
        assert ending.statuses == [408]
        check_408(ending, HEADER_S)
    latencies = crowded.latencies.result()
    assert latencies.median_s < 1, f"median {latencies.median_s} s, p99 {latencies.p99_s} s"


def test_attacks_cost_bounded_memory(crowded: Crowded) -> None:
    """The lists alone would be some 60 MiB, the answers to the flood some 70."""
    assert crowded.grown_kib < 32 * 1024


def test_log_counts_timeouts_and_has_no_traceback(crowded: Crowded) -> None:
    assert crowded.log.count(f'"GET /post/{POSTS} ') < FLOOD / 2  # of the flood only so many were answered
    assert crowded.log.count('" 408 ') >= TRICKLERS + len(HEADS) + len(BODIES)
    assert "Traceback" not in crowded.log


# Connections in all.


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server with the default limits, started with a low soft limit of descriptors."""
    folder = tmp_path_factory.mktemp("roomy")
    shell = ("/bin/sh", "-c", 'ulimit -Sn 64 && exec "$@"', "sh")
    with room_for_descriptors(2 * IDLE), Daemon(folder, through=shell) as daemon:
        yield daemon
    assert "Traceback" not in daemon.log


def test_idle_connections_are_cheap_and_exceed_the_soft_descriptor_limit(
    roomy: Daemon,
) -> None:
    to = addresses_of(roomy)
    with closing(sqlite3.connect(roomy.folder / "postd.db")) as connection, connection:
        connection.execute("INSERT INTO post (post) VALUES ('x')")
    with to.connect() as client:
        assert get(client)
    before = memory_kib(roomy.process.pid, "VmRSS")
    clients: list[socket.socket] = []
    with closing_all(clients):
        for _ in range(IDLE):
            clients.append(to.connect())
            assert get(clients[-1])
        grown = memory_kib(roomy.process.pid, "VmRSS") - before
        assert grown < 40 * 1024
        assert all(map(get, clients[::100]))
        assert get(clients[0])
        with to.connect() as client:
            assert get(client)


def wait_to_be_let_in(to: Addresses, kind: str = "tcp") -> socket.socket:
    """Retry until a connection is accepted."""
    deadline = now() + GIVE_UP_S
    while True:
        client = is_let_in(to, kind)
        if client is not None:
            return client
        assert now() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def bounded(certificate: tuple[Path, Path]) -> Iterator[tuple[Daemon, Addresses]]:
    settings = endpoints(certificate) + TRUSTED + f"[limits]\nconnections = {CONNECTIONS}\n"
    with make_folder(settings) as folder, Daemon(folder, "-c", "postd.toml", listen=None) as daemon:
        with closing(sqlite3.connect(folder / "postd.db")) as connection, connection:
            connection.execute("INSERT INTO post (post) VALUES ('x')")
        yield daemon, addresses_of(daemon, certificate[1])
        daemon.stop()
        assert "Traceback" not in daemon.log


@pytest.mark.parametrize("kind", ["tcp", "ssl", "haproxy", "unix"])
def test_connection_over_the_limit_is_closed_at_once(bounded: tuple[Daemon, Addresses], kind: str) -> None:
    _, to = bounded
    clients: list[socket.socket] = []
    with closing_all(clients):
        while len(clients) < CONNECTIONS:
            clients.append(wait_to_be_let_in(to, kind))  # those of the test before may not have gone yet
        began = now()
        for other in ("tcp", "ssl", "haproxy", "unix"):  # they are counted together
            assert is_turned_away(to, other)
        assert now() - began < 10  # which a connection has for its first head
        assert all(map(get, clients))
        clients.pop(17).close()
        clients.append(wait_to_be_let_in(to, kind))
        assert is_turned_away(to, kind)
        assert all(map(get, clients))


@pytest.mark.parametrize("kind", ["tcp", "haproxy", "unix"])
def test_half_closed_client_gets_its_responses(bounded: tuple[Daemon, Addresses], kind: str) -> None:
    _, to = bounded
    with wait_to_be_let_in(to, kind) as client:
        client.sendall(GET * 5)
        client.shutdown(socket.SHUT_WR)
        ending = read_to_end(client, now())
    assert (ending.received.count(b"HTTP/1.1 200 "), ending.reset) == (5, False)


def test_client_that_half_closes_tls_gets_its_responses(bounded: tuple[Daemon, Addresses]) -> None:
    _, to = bounded
    with to.connect("raw ssl") as plain:
        plain.settimeout(None)  # pyOpenSSL cannot wait; the kernel ends each call
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            plain.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", int(GIVE_UP_S), 0))
        # Python's ssl cannot read after its close_notify.
        client = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), plain)
        client.set_connect_state()
        client.do_handshake()
        client.sendall(GET * 200)  # more than what is answered in a turn
        client.shutdown()
        received = b""
        with pytest.raises(SSL.ZeroReturnError):  # the server's close_notify
            while True:
                received += client.recv(65536)
    assert received.count(b"HTTP/1.1 200 ") == 200


def test_connection_limit_is_logged_once_a_minute(bounded: tuple[Daemon, Addresses]) -> None:
    daemon, to = bounded
    with ExitStack() as open_ones:
        for _ in range(CONNECTIONS):
            open_ones.enter_context(wait_to_be_let_in(to))
        for _ in range(20):
            assert is_turned_away(to, "tcp")
    lines = [line for line in daemon.log.splitlines() if "connections" in line and "postd ready" not in line]
    assert len(lines) == 1, lines
    assert f"{CONNECTIONS}" in lines[0]


EVENTS = b"GET /post/events HTTP/1.1\r\nHost: localhost\r\n\r\n"


def open_streams(port: int, count: int, source: str, before: bytes = b"") -> list[socket.socket]:
    """Return the event streams that open, of a number of attempts from an address."""
    streams = []
    for _ in range(count):
        client = socket.socket()
        client.settimeout(GIVE_UP_S)
        client.bind((source, 0))
        try:
            client.connect(("127.0.0.1", port))
            client.sendall(before + EVENTS)
            is_open = client.recv(1000).startswith(b"HTTP/1.1 200 ")
        except ConnectionError:
            is_open = False
        if is_open:
            streams.append(client)
        else:
            client.close()
    return streams


@pytest.mark.parametrize("workers", ["1", "2"])
def test_streams_of_one_address_leave_connections_for_others(tmp_path: Path, workers: str) -> None:
    most = EACH_WORKERS // 2 * int(workers)
    (tmp_path / "postd.toml").write_text(f"[limits]\nconnections = {EACH_WORKERS}\n")
    with Daemon(tmp_path, "-c", "postd.toml", "-w", workers) as daemon, ExitStack() as closed:
        streams: list[socket.socket] = []
        deadline = now() + GIVE_UP_S
        while len(streams) < most:  # on a busy machine one worker may accept, and refuse, most connections
            assert now() < deadline
            streams += map(closed.enter_context, open_streams(daemon.port, 80, "127.0.0.1"))
        assert len(streams) == most
        assert not open_streams(daemon.port, 20, "127.0.0.1")
        others = open_streams(daemon.port, 8, "127.0.0.2")
        for stream in others:
            closed.enter_context(stream)
        assert len(others) == 8
        streams[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        streams[0].close()  # by a reset: an end alone would show with the next thing that is sent
        while not (again := open_streams(daemon.port, 1, "127.0.0.1")):
            assert now() < deadline
        closed.enter_context(again[0])
    refused = [line for line in daemon.log.splitlines() if "127.0.0.1 has 10 connections" in line]
    assert len(refused) == int(workers)


def test_connections_through_haproxy_are_counted_by_client_address(tmp_path: Path) -> None:
    (tmp_path / "postd.toml").write_text(f"[limits]\nconnections = {EACH_WORKERS}\n")
    listen = "haproxy:tcp:0:interface=127.0.0.1"
    with Daemon(tmp_path, "-c", "postd.toml", listen=listen) as daemon, ExitStack() as closed:
        counts = []
        for client in (7, 8, 9):
            header = b"PROXY TCP4 192.0.2.%d 192.0.2.1 5000 80\r\n" % client
            streams = open_streams(daemon.port, 12 if client == 7 else 4, "127.0.0.1", header)
            for stream in streams:
                closed.enter_context(stream)
            counts.append(len(streams))
        assert counts == [10, 4, 4]
    assert "192.0.2.7 has 10 connections" in daemon.log
    assert "Traceback" not in daemon.log


def test_connection_limit_applies_to_each_worker(tmp_path: Path) -> None:
    (tmp_path / "postd.toml").write_text(f"{TRUSTED}[limits]\nconnections = {EACH_WORKERS}\n")
    clients: list[socket.socket] = []
    with Daemon(tmp_path, "-c", "postd.toml", "--workers", "2") as daemon, closing_all(clients):
        with closing(sqlite3.connect(tmp_path / "postd.db")) as connection, connection:
            connection.execute("INSERT INTO post (post) VALUES ('x')")
        to = addresses_of(daemon)
        while len(clients) < 2 * EACH_WORKERS:
            clients.append(wait_to_be_let_in(to))
        assert all(is_turned_away(to, "tcp") for _ in range(10))
        assert all(map(get, clients))
        clients.pop().close()
        clients.append(wait_to_be_let_in(to))
        assert all(map(get, clients))
    assert "Traceback" not in daemon.log


def test_too_few_descriptors_are_logged_and_lower_the_limit(tmp_path: Path) -> None:
    shell = ("/bin/sh", "-c", 'ulimit -n 256 && exec "$@"', "sh")
    clients: list[socket.socket] = []
    (tmp_path / "postd.toml").write_text(TRUSTED)
    with Daemon(tmp_path, "-c", "postd.toml", through=shell) as daemon, closing_all(clients):
        to = addresses_of(daemon)
        assert re.search(r"descriptors?\b.*\b256\b|\b256\b.*\bdescriptors?\b", daemon.log), daemon.log
        with to.connect() as client:
            client.sendall(SMALL_POST)
            assert read_response(client).startswith(b"HTTP/1.1 201 ")
        arrivals = [is_let_in(to) for _ in range(300)]
        clients += [client for client in arrivals if client is not None]
        assert 64 < len(clients) < 256
        cpu_before, began = cpu_s(daemon.process.pid), now()
        time.sleep(0.5)
        assert cpu_s(daemon.process.pid) - cpu_before < 0.5 * (now() - began)
        for client in clients:
            assert get(client)
        clients[0].sendall(SMALL_POST)
        assert read_response(clients[0]).startswith(b"HTTP/1.1 201 ")
        for client in clients:
            client.close()
        clients.append(wait_to_be_let_in(to))
    assert "Traceback" not in daemon.log
    assert daemon.log.count("too many") + daemon.log.count("Too many") < 10


WRONG = (
    *(
        f"{key}_time = {value}"
        for key in ("header", "body", "idle")
        for value in ("'0s'", "10", "'10'", "'1 s'", "'-1s'")
    ),
    *(f"connections = {value}" for value in ("0", "-1", "'50'", "1.5", "true")),
    *(f"body = {value}" for value in ("'0KiB'", "'16KB'", "16384")),
    "head_time = '1s'",
)


@each("setting", WRONG)
def test_unusable_limits_fail_the_start(tmp_path: Path, setting: str) -> None:
    (tmp_path / "postd.toml").write_text(f"[limits]\n{setting}\n")
    key = setting.partition(" ")[0]
    with pytest.raises(ConfigError, match=rf"^postd\.toml: limits\.{key}: [^\n]+$"):
        load_settings("postd.toml", {}, tmp_path)
