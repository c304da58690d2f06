"""kill -9 in the middle of many writes: nothing acknowledged is lost, and no id is used twice."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon

ROUNDS = 3
WRITERS = 8
WRITTEN_BEFORE_KILL = 300


class Writer(threading.Thread):
    """Adds one post after another until the connection fails."""

    def __init__(self, url: str, name: str, enough: threading.Event, acknowledged: dict[int, str]) -> None:
        super().__init__(name=name)
        self._url = url
        self._enough = enough
        self._acknowledged = acknowledged
        self.refused = 0

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=PATIENCE_S) as client:
            count = 0
            while True:
                text = f"{self.name}-{count}"
                try:
                    answer = client.post("/post", json={"post": text})
                except httpx.TransportError:
                    return
                if answer.status_code == 503:
                    self.refused += 1
                    continue
                assert answer.status_code == 201
                post_id = int(answer.headers["Location"].removeprefix("/post/"))
                assert post_id not in self._acknowledged
                self._acknowledged[post_id] = text
                count += 1
                if len(self._acknowledged) % WRITTEN_BEFORE_KILL == 0:
                    self._enough.set()


def check_refused(writers: Sequence[Writer], log: str) -> None:
    """A busy machine's disk may keep one process from writing for longer than another one waits for the lock."""
    assert not any(writer.refused for writer in writers) or "database is locked" in log, log


def test_no_acknowledged_post_is_lost_and_no_id_is_used_twice(tmp_path: Path) -> None:
    acknowledged: dict[int, str] = {}
    revision = 0
    for number in range(ROUNDS):
        with Daemon(tmp_path) as daemon:
            enough = threading.Event()
            writers = [Writer(daemon.url, f"{number}-{n}", enough, acknowledged) for n in range(WRITERS)]
            for writer in writers:
                writer.start()
            assert enough.wait(PATIENCE_S)
            daemon.kill()
            for writer in writers:
                writer.join()
            check_refused(writers, daemon.log)
        with Daemon(tmp_path) as daemon:
            answer = httpx.get(f"{daemon.url}/post")
            stored: dict[int, str] = {post["id"]: post["post"] for post in answer.json()}
            assert {post_id: stored.get(post_id) for post_id in acknowledged} == acknowledged
            revision = check_grown(answer.headers["ETag"], revision)
            top: Any = httpx.post(f"{daemon.url}/post", json={"post": "after"}).headers["Location"]
            assert int(top.removeprefix("/post/")) > max(stored)
            acknowledged[int(top.removeprefix("/post/"))] = "after"
    assert len(acknowledged) >= ROUNDS * WRITTEN_BEFORE_KILL


def check_grown(etag: str, before: int) -> int:
    """The entity tag of a list begins with the revision."""
    revision = int(etag.strip('"').partition("-")[0])
    assert revision > before
    return revision
