"""Event streams and idempotency keys of real processes: workers, nodes, restarts."""

import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.helpers import PATIENCE_S, locked, wait_until
from tests.integration.daemon import Daemon
from tests.integration.logins import run_postd_user, sign_in
from tests.integration.test_bearer import bearer_table
from tests.integration.test_redis import USERS, serve
from tests.integration.test_transfer import postd
from tests.integration.test_workers import TWO, clients_of_each
from tests.issuer import Issuer, Key
from tests.redis_server import RedisServer

WAIT_MAX_S = PATIENCE_S
WITHIN_S = 1.0
"""How soon an event must arrive, on an idle machine."""


class Listener:
    """A client of the event stream, with the events that it has received."""

    def __init__(self, url: str, last_id: int | None = None, **fields: str) -> None:
        address = urlsplit(url)
        self._connection = HTTPConnection(str(address.hostname), address.port, timeout=WAIT_MAX_S)
        self._connection.connect()
        self._socket: socket.socket = self._connection.sock
        self._fields = fields if last_id is None else {**fields, "Last-Event-ID": str(last_id)}
        self._received = b""
        self._is_whole = False
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        with suppress(OSError, HTTPException):
            self._connection.request("GET", "/post/events", headers=self._fields)
            with self._connection.getresponse() as response:
                while data := response.read1(65536):
                    self._received += data
                self._is_whole = True

    @property
    def events(self) -> list[tuple[str, int, Any]]:
        """The complete events, without the first, `position`: their names, numbers and data."""
        blocks = [dict(line.partition(": ")[::2] for line in block.split("\n")) for block in self._blocks()]
        events = [(one["event"], int(one["id"]), json.loads(one["data"])) for one in blocks if "data" in one]
        return [event for event in events if event[0] != "position"]

    def _blocks(self) -> list[str]:
        return self._received.decode(errors="ignore").split("\n\n")[:-1]

    def wait_for(self, count: int) -> float:
        """Wait for events; return the time that took, in seconds."""
        start = time.monotonic()
        while len(self.events) < count:
            assert time.monotonic() < start + WAIT_MAX_S, self._received
            time.sleep(0.01)
        return time.monotonic() - start

    def is_there(self) -> None:
        """Wait until the first event id has been received."""
        start = time.monotonic()
        while not re.search(rb"^id:", self._received, re.MULTILINE):
            assert time.monotonic() < start + WAIT_MAX_S
            time.sleep(0.01)

    def ends_whole(self) -> bool:
        """Wait for the end; return whether the response was complete when the connection ended."""
        self._reading.join(WAIT_MAX_S)
        self.close()
        return self._is_whole

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reading.join()
        self._connection.close()


@contextmanager
def listening(url: str, last_id: int | None = None, **fields: str) -> Iterator[Listener]:
    listener = Listener(url, last_id, **fields)
    try:
        listener.is_there()
        yield listener
    finally:
        listener.close()


def add(client: httpx.Client, text: str, key: str = "") -> httpx.Response:
    return client.post("/post", json={"post": text}, headers={"Idempotency-Key": key} if key else {})


def listen_and_write(urls: list[str], writers: list[httpx.Client]) -> None:
    """Check that listeners at all addresses receive the changes made at all others, soon and in the same order."""
    with ExitStack() as closing:
        listeners = [closing.enter_context(listening(url)) for url in urls]
        took = []
        for n in range(12):
            assert add(writers[n % len(writers)], f"post {n}").status_code == 201
            took += [listener.wait_for(n + 1) for listener in listeners]
        first = listeners[0].events[0][2]["id"]
        assert writers[0].delete(f"/post/{first}").status_code == 200
        for listener in listeners:
            listener.wait_for(13)
            assert listener.events == listeners[0].events
        received = listeners[0].events
    assert [event for event, _, _ in received] == ["added"] * 12 + ["deleted"]
    assert [data["post"] for _, _, data in received[:12]] == [f"post {n}" for n in range(12)]
    assert sorted(took)[len(took) // 2] < WITHIN_S


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with two workers, which the tests share."""
    with Daemon(tmp_path_factory.mktemp("daemon"), *TWO) as daemon:
        yield daemon


def test_change_on_any_worker_reaches_every_stream(daemon: Daemon) -> None:
    with clients_of_each(daemon) as clients:
        # With 8 connections some go to each of the workers.
        listen_and_write([daemon.url] * 8, clients)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    """Two nodes on one Redis, which the tests share."""
    folder = tmp_path_factory.mktemp("nodes")
    with RedisServer(folder / "redis") as redis, ExitStack() as closing:
        nodes = [closing.enter_context(serve(folder / name, redis.url)) for name in ("one", "two")]
        for node in nodes:
            node.wait_for("postd ready")
        yield nodes


def test_change_on_any_node_reaches_every_stream(nodes: list[Daemon]) -> None:
    with ExitStack() as closing:
        writers = [closing.enter_context(httpx.Client(base_url=node.url)) for node in nodes]
        listen_and_write([node.url for node in nodes], writers)
        same_post_through([closing.enter_context(httpx.Client(base_url=node.url)) for node in nodes * 4])


def test_stream_of_a_session_that_ended_on_any_node_has_no_further_event(nodes: list[Daemon]) -> None:
    with ExitStack() as closing:
        one, other = [closing.enter_context(httpx.Client(base_url=node.url)) for node in nodes]
        cookies = [f"session={sign_in(nodes[0], 'alice', USERS['alice']).cookies['session']}" for _ in range(4)]
        listeners = [closing.enter_context(listening(node.url, Cookie=cookie)) for node in nodes for cookie in cookies]
        assert add(one, "before").status_code == 201
        for listener in listeners:
            listener.wait_for(1)
        for client, cookie in zip((one, other), cookies[:2], strict=True):
            assert client.post("/logout", headers={"Cookie": cookie}).status_code == 302
        assert add(other, "after").status_code == 201
        for listener in (listeners[0], listeners[1], listeners[4], listeners[5]):
            assert listener.ends_whole()
            assert len(listener.events) == 1
        for listener in (listeners[2], listeners[3], listeners[6], listeners[7]):
            listener.wait_for(2)


def test_changes_by_a_command_reach_every_stream(daemon: Daemon) -> None:
    with ExitStack() as closing:
        listeners = [closing.enter_context(listening(daemon.url)) for _ in range(4)]
        lines = "".join(json.dumps({"id": n, "post": f"post {n}"}) + "\n" for n in range(1001, 1004))
        assert postd(daemon.folder, "import", given=lines.encode()).returncode == 0
        for listener in listeners:
            listener.wait_for(3)
            assert [data for _, _, data in listener.events] == [json.loads(line) for line in lines.splitlines()]


def test_stream_of_a_session_that_ended_on_any_worker_has_no_further_event(tmp_path: Path) -> None:
    run_postd_user(tmp_path / "users", "add", "alice", "x")
    (tmp_path / "postd.toml").write_text('[api]\nread = ["session"]\nwrite = ["open"]\n')
    with (
        Daemon(tmp_path, *TWO, "-c", "postd.toml", "-u", "users") as daemon,
        clients_of_each(daemon) as (client, _),
        ExitStack() as closing,
    ):
        cookie = f"session={sign_in(daemon, 'alice', 'x').cookies['session']}"
        listeners = [closing.enter_context(listening(daemon.url, Cookie=cookie)) for _ in range(8)]
        assert add(client, "before").status_code == 201
        for listener in listeners:
            listener.wait_for(1)
        client.post("/logout", headers={"Cookie": cookie})
        assert add(client, "after").status_code == 201
        for listener in listeners:
            assert listener.ends_whole()
            assert len(listener.events) == 1


def test_resumed_stream_has_each_event_once_over_restart_and_kill_9(tmp_path: Path) -> None:
    seen: list[tuple[str, int, Any]] = []
    last = None
    for round_ in range(3):
        with Daemon(tmp_path) as daemon, httpx.Client(base_url=daemon.url) as client:
            add(client, f"while disconnected, {round_}")
            with listening(daemon.url, last if last is not None else 0) as listener:
                add(client, f"while connected, {round_}")
                listener.wait_for(2)
                seen += listener.events
                last = seen[-1][1]
                if round_ == 1:
                    daemon.kill()
                else:
                    daemon.stop()
                    assert listener.ends_whole()
    assert [number for _, number, _ in seen] == list(range(1, 7))
    assert "Traceback" not in daemon.log


def test_streams_do_not_delay_a_stop(tmp_path: Path) -> None:
    with Daemon(tmp_path, *TWO) as daemon, ExitStack() as closing:
        listeners = [closing.enter_context(listening(daemon.url)) for _ in range(6)]
        daemon.stop()
        assert "connections aborted" not in daemon.log  # at the end of the grace
        assert all(listener.ends_whole() for listener in listeners)


@pytest.mark.slow
def test_expired_token_ends_its_stream(tmp_path: Path) -> None:
    with Issuer("https://posts.example", Key.make("ES256", "the-key")) as issuer:
        settings = '[api]\nread = ["bearer"]\nwrite = ["open"]\n' + bearer_table(issuer, leeway="0s")
        (tmp_path / "postd.toml").write_text(settings)
        with Daemon(tmp_path, "-c", "postd.toml") as daemon, httpx.Client(base_url=daemon.url) as client:
            ends = time.time() + 6
            token = issuer.token(exp=ends)
            headers = {"Authorization": f"Bearer {token}"}
            with client.stream("GET", "/post/events", headers=headers, timeout=WAIT_MAX_S) as stream:
                assert stream.status_code == 200
                assert httpx.post(f"{daemon.url}/post", json={"post": "in time"}).status_code == 201
                lines = stream.iter_lines()
                assert any("in time" in line for line in lines)
                time.sleep(max(0.0, ends - time.time()) + 1)
                assert httpx.post(f"{daemon.url}/post", json={"post": "too late"}).status_code == 201
                assert not any("too late" in line for line in lines)  # the stream has ended


def same_post_through(clients: list[httpx.Client]) -> None:
    """Send the same POST many times at once; one post is stored. Each client is used by one thread at a time."""
    before = len(clients[0].get("/post").json())

    def send(client: httpx.Client) -> list[httpx.Response]:
        return [add(client, "the same", "key-1") for _ in range(40 // len(clients))]

    with ThreadPoolExecutor(len(clients)) as threads:
        answers = [answer for some in threads.map(send, clients) for answer in some]
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) <= {201, 409}
    assert statuses[201] >= 1
    assert len({answer.headers["Location"] for answer in answers if answer.status_code == 201}) == 1
    assert len(clients[0].get("/post").json()) == before + 1
    for client in clients:
        assert add(client, "another", "key-1").status_code == 422


def test_the_same_post_is_stored_once_by_all_workers(daemon: Daemon) -> None:
    with ExitStack() as closing:
        same_post_through([client for _ in range(4) for client in closing.enter_context(clients_of_each(daemon))])


def is_refused_while_another_runs(client: httpx.Client, n: int) -> bool:
    """Repeat a request whose write waits for a lock; on a busy machine neither may have arrived in time."""
    try:
        return add(client, f"post {n}", f"key-{n}").status_code == 409
    except httpx.TimeoutException:
        return False


def test_idempotency_key_outlives_kill_9_during_a_write(tmp_path: Path) -> None:
    """A repeated request returns the result of the one that got no response."""
    for n in range(3):
        with Daemon(tmp_path) as daemon:
            with locked(tmp_path / "postd.db", "IMMEDIATE"), httpx.Client(base_url=daemon.url, timeout=0.3) as client:
                with pytest.raises(httpx.TimeoutException):
                    add(client, f"post {n}", f"key-{n}")
                wait_until(lambda: is_refused_while_another_runs(client, n))  # noqa: B023 - waited for here
            time.sleep(0.02 * n)
            daemon.kill()
        with Daemon(tmp_path) as daemon, httpx.Client(base_url=daemon.url) as client:
            for _ in range(2):
                assert add(client, f"post {n}", f"key-{n}").status_code == 201
            assert [post["post"] for post in client.get("/post").json()] == [f"post {m}" for m in range(n + 1)]
