"""Clients that send or read byte by byte, in crowds, or not at all, and record how their connections end."""

import os
import re
import resource
import select
import selectors
import socket
import ssl
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon

GIVE_UP_S = PATIENCE_S
"""How long a client waits for the server to do something; far longer than any limit in these tests."""

GET = b"GET /post/1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
PROXY = b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\n"
"""The PROXY header of a connection."""


class Addresses(Struct):
    """Where a daemon listens: the port of `tcp:`, of `ssl:` and of `haproxy:`, and the path of `unix:`, in this order.

    Args:
        folder: the daemon's, where its settings name `p.sock`.
        ports: the others.
        trusted: the certificate that it has.
    """

    folder: Path
    ports: dict[str, int]
    trusted: Path | None = None

    def connect(self, kind: str = "tcp", *, receive_bytes: int = 0) -> socket.socket:
        """Connect, and do on top of it what makes it a connection of its kind.

        Args:
            kind: tcp, ssl, haproxy or unix; "raw ssl" and "raw haproxy" leave it to the caller to make them so.
            receive_bytes: the receive buffer of the client; 0 for the default.
        """
        last = kind.rpartition(" ")[2]
        client = socket.socket(socket.AF_UNIX if last == "unix" else socket.AF_INET)
        try:
            client.settimeout(GIVE_UP_S)
            if receive_bytes:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            if kind == "ssl":
                context = ssl.create_default_context(cafile=self.trusted)
                # Before it is connected: of a connection that is reset at once, `wrap_socket` leaves the socket open.
                # And an end without a close notification of TLS is to be an error.
                client = context.wrap_socket(client, server_hostname="localhost", suppress_ragged_eofs=False)
            client.connect(str(self.folder / "p.sock") if last == "unix" else ("127.0.0.1", self.ports[last]))
            if kind == "haproxy":
                client.sendall(PROXY)
        except BaseException:
            client.close()
            raise
        return client


def endpoints(certificate: tuple[Path, Path]) -> str:
    """Return the setting `listen` with an endpoint of each kind."""
    key, cert = certificate
    free = ":interface=127.0.0.1"
    listen = [f"tcp:0{free}", f"ssl:0:privateKey={key}:certKey={cert}{free}", f"haproxy:tcp:0{free}", "unix:p.sock"]
    return f"listen = {listen}\n"


def addresses_of(daemon: Daemon, trusted: Path | None = None) -> Addresses:
    """Return the addresses of a daemon that has some of `endpoints`, or only the first one."""
    (ready,) = re.findall(r"postd ready: (.*?);", daemon.log)
    ports = [int(port) for port in re.findall(r"https?://127\.0\.0\.1:([0-9]+)/", ready)]
    return Addresses(daemon.folder, dict(zip(("tcp", "ssl", "haproxy"), ports, strict=False)), trusted)


class Ending(Struct):
    """The end of a connection.

    Args:
        received: all that came.
        after_s: seconds from `began` to the end.
        reset: whether it was cut off, in place of being closed.
    """

    received: bytes
    after_s: float
    reset: bool = False

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", self.received)]


def has_more(client: socket.socket, within_s: float) -> bool:
    """Return whether there is input to read within a time, the end included."""
    if isinstance(client, ssl.SSLSocket) and client.pending():
        return True
    poll = select.poll()  # select() has no use for the thousandth descriptor
    poll.register(client, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def read_to_end(client: socket.socket, began: float) -> Ending:
    """Read until the server closes the connection; the time counts from `began`."""
    received, reset = b"", False
    try:
        while data := client.recv(65536):
            received += data
    except (ConnectionError, ssl.SSLError):
        reset = True
    return Ending(received, time.monotonic() - began, reset)


def trickle(client: socket.socket, data: bytes, every_s: float) -> None:
    """Send one byte each `every_s` seconds until all is sent or a response arrives."""
    began = time.monotonic()
    for place in range(min(len(data), int(GIVE_UP_S / every_s))):
        with suppress(OSError):  # reading shows how it ended
            client.sendall(data[place : place + 1])
        if has_more(client, max(0, began + (place + 1) * every_s - time.monotonic())):
            return


def read_response(client: socket.socket) -> bytes:
    """Read one response with a Content-Length, as far as the server sends it."""
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"\r\nContent-Length: ([0-9]+)", head)
        if end and length and len(body) >= int(length[1]):
            return received
        data = client.recv(65536)
        if not data:
            return received
        received += data


def get(client: socket.socket) -> bool:
    """Request a post over a connection; return whether it was received, false if the connection has ended."""
    try:
        client.sendall(GET)
        return read_response(client).startswith(b"HTTP/1.1 200 ")
    except (ConnectionError, ssl.SSLError):
        return False


def is_let_in(addresses: Addresses, kind: str = "tcp") -> socket.socket | None:
    """Connect; return the connection if a request is answered on it, None if it is closed without a response."""
    try:
        client = addresses.connect(kind)
    except (ConnectionError, ssl.SSLError):
        return None
    try:
        if get(client):
            return client
    except BaseException:
        client.close()
        raise
    client.close()
    return None


def is_turned_away(addresses: Addresses, kind: str) -> bool:
    """Connect, send nothing, and return whether the connection is closed without a response."""
    try:
        with addresses.connect(f"raw {kind}") as client:
            return read_to_end(client, 0).received == b""
    except ConnectionResetError:
        return True


def wait_for_cut(client: socket.socket, began: float) -> Ending:
    """Wait without reading until the connection is aborted; then read what is left."""
    poll = select.poll()
    poll.register(client, 0)  # errors and hang-ups are always reported
    if not poll.poll(GIVE_UP_S * 1000):
        raise TimeoutError("it is still there")
    after_s = time.monotonic() - began
    ending = read_to_end(client, began)
    ending.after_s = after_s
    return ending


def flood(client: socket.socket, data: bytes, *, enough_s: float = 0.5) -> None:
    """Send without reading until the server has taken all, or nothing for `enough_s` seconds."""
    poll = select.poll()
    poll.register(client, select.POLLOUT)
    client.settimeout(0)
    left = memoryview(data)
    with suppress(ConnectionError, ssl.SSLEOFError):  # reading shows how it ended
        while left and poll.poll(enough_s * 1000):
            with suppress(BlockingIOError, ssl.SSLWantWriteError):
                left = left[client.send(left) :]
    client.settimeout(GIVE_UP_S)


class Crowd:
    """Many connections, each of which sends a byte at intervals.

    Args:
        clients: the connections; they are closed at the end.
        data: what each sends, for as long as it lasts.
        every_s: the seconds between two bytes.
    """

    def __init__(self, clients: Sequence[socket.socket], data: bytes, every_s: float) -> None:
        self._clients = clients
        self._data = data
        self._every_s = every_s

    def run(self) -> list[Ending]:
        """Return the ends of the connections, in their order; those that did not end are missing."""
        began = time.monotonic()
        received = dict.fromkeys(self._clients, b"")
        endings: list[Ending] = []
        sent = 0
        with selectors.DefaultSelector() as selector, closing_all(self._clients):
            for client in self._clients:
                client.settimeout(0)
                selector.register(client, selectors.EVENT_READ, client)
            while selector.get_map() and time.monotonic() < began + GIVE_UP_S:
                if sent < len(self._data) and time.monotonic() >= began + sent * self._every_s:
                    for key in selector.get_map().values():
                        with suppress(OSError):  # reading shows how it ended
                            key.data.send(self._data[sent : sent + 1])
                    sent += 1
                for key, _ in selector.select(0.05):
                    reset = False
                    try:
                        data = key.data.recv(65536)
                    except ConnectionError:
                        data, reset = b"", True
                    received[key.data] += data
                    if not data:
                        selector.unregister(key.data)
                        endings.append(Ending(received[key.data], time.monotonic() - began, reset))
        return endings


class Latencies(Struct):
    """Durations of the requests of another client, in seconds."""

    all_s: list[float]

    @property
    def median_s(self) -> float:
        return statistics.median(self.all_s)

    @property
    def p99_s(self) -> float:
        return statistics.quantiles(self.all_s, n=100)[98]


def measure(addresses: Addresses, *, for_s: float, every_s: float = 0.005) -> Latencies:
    """Make one request after another, as an ordinary client, and measure each."""
    taken: list[float] = []
    end = time.monotonic() + for_s
    with addresses.connect() as client:
        while (began := time.monotonic()) < end:
            assert get(client)
            taken.append(time.monotonic() - began)
            time.sleep(every_s)
    return Latencies(taken)


@contextmanager
def room_for_descriptors(count: int) -> Iterator[None]:
    """Raise the descriptor limit of this process for a crowd; its soft limit may be 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def closing_all(clients: Collection[socket.socket]) -> Iterator[None]:
    """Close all connections that are in a collection at the end."""
    try:
        yield
    finally:
        for client in clients:
            client.close()


def memory_kib(pid: int, what: str) -> int:
    """Return the memory of a process: `VmRSS`, the current one, or `VmHWM`, the peak."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{what}:")[2].split()[0])


def cpu_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
