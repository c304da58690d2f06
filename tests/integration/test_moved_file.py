"""The file of a store is moved, replaced or removed under a running server with workers."""

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.storms import KINDS, run_storm


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_storm_loses_no_acknowledged_write_and_damages_no_file(tmp_path: Path, kind: str) -> None:
    storm = run_storm(tmp_path, kind, seconds=2, seed=len(kind), pause_s=0.015)
    assert storm.problems == []
    assert storm.statuses.keys() <= {200, 201, 401, 404, 503}
    assert len(storm.acknowledged) > 50


def test_restarted_workers_wait_for_a_file_that_is_away(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--workers", "2") as daemon:
        url = f"{daemon.url}/post"
        assert httpx.post(url, json={"post": "one"}).status_code == 201
        (tmp_path / "postd.db").rename(tmp_path / "away")
        before = daemon.workers
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        daemon.wait_for("there is no such file; trying again", times=2)
        restarted = daemon.workers
        assert restarted.keys() == before.keys()
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("SIGHUP: reloading")
        deadline = time.monotonic() + PATIENCE_S
        answers: list[int] = []
        while len(answers) < 10:
            answers.append(httpx.get(url, timeout=PATIENCE_S).status_code)
            assert time.monotonic() < deadline
        assert set(answers) == {503}
        assert not (tmp_path / "postd.db").exists()
        (tmp_path / "away").rename(tmp_path / "postd.db")
        while not all(httpx.get(url, timeout=PATIENCE_S).status_code == 200 for _ in range(10)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert daemon.workers == restarted
        assert [post["post"] for post in httpx.get(url).json()] == ["one"]
