"""A list that is far longer than one write should hold."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon

POSTS = 1_000_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("long")
    with Daemon(folder):
        pass
    connection = sqlite3.connect(folder / "postd.db")
    with connection:
        # Without the triggers, which add a row to the change log for each post: these tests read the list only.
        (trigger,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'post_added'").fetchone()
        connection.execute("DROP TRIGGER post_added")
        rows = ((f"post number {n}, with some words to it",) for n in range(POSTS))
        connection.executemany("INSERT INTO post (post) VALUES (?)", rows)
        connection.execute(trigger)
    connection.close()
    with Daemon(folder) as daemon:
        yield daemon
    assert "Traceback" not in daemon.log


def peak_memory_kib(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.slow
def test_long_list_is_complete_with_bounded_memory(daemon: Daemon) -> None:
    httpx.get(f"{daemon.url}/post?limit=1")
    before = peak_memory_kib(daemon)
    slow = [daemon.connect() for _ in range(3)]
    for client, coding in zip(slow, ("identity", "gzip", "gzip"), strict=True):
        client.sendall(f"GET /post HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: {coding}\r\n\r\n".encode())
    posts = httpx.get(f"{daemon.url}/post", timeout=PATIENCE_S).json()
    assert [posts[0]["id"], posts[-1]["id"], len(posts)] == [1, POSTS, POSTS]
    for client in slow:
        client.close()
    assert peak_memory_kib(daemon) - before < 32 * 1024


@pytest.mark.slow
def test_long_list_does_not_block_other_requests(daemon: Daemon) -> None:
    done = threading.Event()

    def read_all() -> None:
        httpx.get(f"{daemon.url}/post", timeout=PATIENCE_S)
        done.set()

    reader = threading.Thread(target=read_all)
    reader.start()
    served = 0
    with httpx.Client() as client:
        while not done.is_set():
            assert client.get(f"{daemon.url}/post/1").status_code == 200
            served += 1
            time.sleep(0.005)
    reader.join()
    assert served > 20, served
