"""Storms: the file of a store is renamed, replaced or removed again and again, under workers and load.

Afterwards each write that was acknowledged is in one of the files that the server has held, and no file is damaged.
`python -m tests.integration.storms` runs 30 storms of 20 s; `test_moved_file.py` runs short ones.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from twisted.internet import reactor

from postd.store.sqlite.store import SqliteStore
from tests.helpers import PATIENCE_S, run_sql
from tests.integration.daemon import Daemon
from tests.integration.logins import DigestUser, decode_parameters, run_postd_user

WORKERS = 4
WRITERS = 6
PAUSE_S = 0.003


class Storm:
    """A folder with a store, all files that were ever its store, and what a server has acknowledged.

    Args:
        folder: for everything.
        seed: of the pauses.
        pause_s: between two requests of a client, so that the load is bounded.
        has_one_file: whether the store is always the same file: then each acknowledged post can be read at any time.
    """

    def __init__(self, folder: Path, seed: int, pause_s: float, *, has_one_file: bool) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self.path = self.data / "posts.db"
        self.kept = folder / "kept"
        self.kept.mkdir()
        self.random = random.Random(seed)
        self.pause_s = pause_s
        self.has_one_file = has_one_file
        self.numbers = itertools.count()
        self.template = folder / "template.db"
        SqliteStore(str(self.template), reactor=reactor).prepare()  # type: ignore[arg-type]
        self.bring().rename(self.path)
        self.acknowledged: dict[str, int] = {}
        self.used_counts: list[tuple[str, int]] = []
        self.problems: list[str] = []
        self.statuses: dict[int, int] = {}
        self.rounds = 0

    def bring(self) -> Path:
        """Copy a new store to the disk of the store; return its name."""
        return Path(shutil.copyfile(self.template, self.kept / f"new-{next(self.numbers)}"))

    def keep(self) -> None:
        """Give the store a second name, by which it is found afterwards."""
        self.kept.joinpath(f"old-{next(self.numbers)}").hardlink_to(self.path)

    def pause(self) -> None:
        """Wait as long as a file may be away: not at all, for milliseconds, or so long that every worker sees it."""
        longest_s = self.random.choices((0, 0.002, 0.05, 3), (2, 4, 12, 1))[0]
        time.sleep(self.random.uniform(0.5 if longest_s > 1 else 0, longest_s))

    def wait(self) -> None:
        """Wait while the file is in its place, now and then until every worker writes."""
        time.sleep(self.random.uniform(0.02, 2 if self.random.random() < 0.2 else 0.3))

    def note(self, status: int) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def find_losses(self) -> list[str]:
        """Return what is wrong with the files, after the server has stopped."""
        problems = list(self.problems)
        found: dict[str, int] = {}
        inodes = set()
        for file in (self.path, *sorted(self.kept.iterdir())):
            if file.name.endswith(("-wal", "-shm")) or file.stat().st_ino in inodes:  # SQLite may remove the former
                continue
            inodes.add(file.stat().st_ino)
            try:
                if (state := run_sql(file, "PRAGMA integrity_check")) != [("ok",)]:
                    problems.append(f"{file.name}: {state[:3]}")
                rows = run_sql(file, "SELECT id, post FROM post")
            except sqlite3.DatabaseError as error:
                problems.append(f"{file.name}: {error}")
                continue
            problems += [f"{file.name}: {text} is in two files" for _, text in rows if text in found]
            found |= {text: post_id for post_id, text in rows}
        lost = [f"{text} as {number}" for text, number in self.acknowledged.items() if found.get(text) != number]
        if lost:
            problems.append(f"{len(lost)} of {len(self.acknowledged)} acknowledged posts are lost: {lost[:5]}")
        if left := [file.name for file in self.data.iterdir() if file != self.path]:
            problems.append(f"left behind: {left}")
        return problems


class Client(threading.Thread):
    """Sends one request after another, on a connection that it opens again if that fails."""

    def __init__(self, storm: Storm, port: int, work: "Callable[[Client], None]") -> None:
        super().__init__()
        self.storm = storm
        self._port = port
        self._work = work
        self._connection: HTTPConnection | None = None
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            try:
                self._work(self)
            except (OSError, HTTPException):  # a worker was killed
                self.disconnect()
            except Exception as error:  # noqa: BLE001 - reported at the end
                self.storm.problems.append(repr(error))
                break
            self.enough.wait(self.storm.pause_s)
        self.disconnect()

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, method: str, path: str, body: Any = None, **fields: str) -> tuple[HTTPResponse, bytes]:
        if self._connection is None:
            self._connection = HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        sent = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if sent else {}
        self._connection.request(method, path, sent, headers | fields)
        answer = self._connection.getresponse()
        content = answer.read()
        self.storm.note(answer.status)
        if self.storm.random.random() < 0.02:  # the next request reaches another worker
            self.disconnect()
        return answer, content


def write(client: Client) -> None:
    text = f"post {next(client.storm.numbers)}"
    answer, _ = client.ask("POST", "/post", {"post": text})
    if answer.status == 201:
        client.storm.acknowledged[text] = int(answer.headers["Location"].rpartition("/")[2])
    elif answer.status != 503:
        raise AssertionError(answer.status)


def read(client: Client) -> None:
    storm = client.storm
    if not storm.acknowledged:
        return
    text, number = storm.random.choice(list(storm.acknowledged.copy().items()))
    answer, content = client.ask("GET", f"/post/{number}")
    if answer.status == 503:
        return
    if storm.has_one_file and (answer.status != 200 or json.loads(content)["post"] != text):
        raise AssertionError(f"{number}: {answer.status} {content!r} instead of {text}")
    answer, _ = client.ask("GET", "/post?limit=50")
    if answer.status not in {200, 503}:
        raise AssertionError(answer.status)


def log_in(client: Client) -> None:
    """Use a nonce some times: each count is a commit that does not wait for the disk."""
    user = DigestUser("alice", "secret")
    answer, _ = client.ask("GET", user.path)
    if answer.status != 401:
        return
    nonce = decode_parameters(answer.headers["WWW-Authenticate"])["nonce"]
    for count in range(1, 50):
        answer, _ = client.ask("GET", user.path, Authorization=user.credentials(nonce, count))
        if answer.status != 200:
            return
        client.storm.used_counts.append((nonce, count))
        client.enough.wait(client.storm.pause_s)


def replay(storm: Storm, port: int) -> None:
    """Send the last Digest responses again: none is accepted a second time."""
    user = DigestUser("alice", "secret")
    client = Client(storm, port, log_in)
    for nonce, count in storm.used_counts[-200:]:
        answer, _ = client.ask("GET", user.path, Authorization=user.credentials(nonce, count))
        if answer.status == 200:
            storm.problems.append(f"count {count} of a nonce was accepted twice")
    client.disconnect()


def rename(storm: Storm, _: Daemon) -> None:
    """Rename the file away and back."""
    away = storm.path.with_name("away")
    storm.path.rename(away)
    storm.pause()
    away.rename(storm.path)


def rename_and_kill(storm: Storm, daemon: Daemon) -> None:
    """Rename the file away and back, and kill or reload workers meanwhile."""

    def disturb() -> None:
        workers = list(daemon.workers.values())
        if workers and storm.random.random() < 0.3:
            with suppress(ProcessLookupError):
                os.kill(storm.random.choice(workers), signal.SIGKILL)
        elif storm.random.random() < 0.1:
            daemon.process.send_signal(signal.SIGHUP)

    away = storm.path.with_name("away")
    disturb()
    storm.path.rename(away)
    disturb()
    storm.pause()
    disturb()
    away.rename(storm.path)


def rename_folder(storm: Storm, _: Daemon) -> None:
    """Rename the folder away and back."""
    away = storm.data.with_name("away")
    storm.data.rename(away)
    storm.pause()
    away.rename(storm.data)


def restore(storm: Storm, _: Daemon) -> None:
    """Rename a backup over the file."""
    storm.keep()
    storm.bring().rename(storm.path)
    storm.pause()


def swap(storm: Storm, _: Daemon) -> None:
    """Put another file in its place, and back."""
    storm.keep()
    away, other = storm.kept / "away", storm.bring()
    storm.path.rename(away)
    other.rename(storm.path)
    storm.pause()
    storm.path.rename(other)
    away.rename(storm.path)


def remove(storm: Storm, _: Daemon) -> None:
    """Remove the file; a new one comes later."""
    storm.keep()
    storm.path.unlink()
    storm.pause()
    storm.bring().rename(storm.path)


def remove_with_log(storm: Storm, _: Daemon) -> None:
    """Remove the file and the two beside it; a new one comes later."""
    storm.keep()
    for name in ("", "-wal", "-shm"):
        Path(f"{storm.path}{name}").unlink(missing_ok=True)
    storm.pause()
    storm.bring().rename(storm.path)


def switch_link(storm: Storm, _: Daemon) -> None:
    """Make the path a symlink, and point it to another file, or to the one before."""
    if not storm.path.is_symlink():
        storm.path.rename(storm.kept / "target-0")
        shutil.copyfile(storm.template, storm.kept / "target-1")
        target = 0
    else:
        target = 1 - int(storm.path.readlink().name.rpartition("-")[2])
    link = storm.data / "link"
    link.symlink_to(storm.kept / f"target-{target}")
    link.rename(storm.path)
    storm.pause()


KINDS: dict[str, Callable[[Storm, Daemon], None]] = {
    act.__name__: act
    for act in (rename, rename_and_kill, rename_folder, restore, swap, remove, remove_with_log, switch_link)
}
OF_ONE_FILE = {"rename", "rename_and_kill", "rename_folder"}


@contextmanager
def load(storm: Storm, port: int) -> Iterator[None]:
    clients = [Client(storm, port, work) for work in (*[write] * WRITERS, read, read, log_in, log_in)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.enough.set()
        for client in clients:
            client.join()


def run_storm(folder: Path, kind: str, *, seconds: float, seed: int, pause_s: float = PAUSE_S) -> Storm:
    """Run a storm; its `problems` are all that went wrong."""
    storm = Storm(folder, seed, pause_s, has_one_file=kind in OF_ONE_FILE)
    run_postd_user(folder / "users", "add", "alice", "secret")
    options = ("--users", "users", "--store", f"sqlite:{storm.path}", "--workers", str(WORKERS))
    with Daemon(folder, *options) as daemon:
        with load(storm, daemon.port):
            storm.wait()
            end = time.monotonic() + seconds
            while time.monotonic() < end and not storm.problems:
                KINDS[kind](storm, daemon)
                storm.wait()
                storm.rounds += 1
            wait_until_written(storm)
        replay(storm, daemon.port)
    storm.problems = storm.find_losses()
    if "Traceback" in daemon.log or "damaged" in daemon.log:
        storm.problems.append(daemon.log)
    return storm


def wait_until_written(storm: Storm) -> None:
    """Wait until the workers write again, after the last rename."""
    deadline, written = time.monotonic() + PATIENCE_S, len(storm.acknowledged)
    while len(storm.acknowledged) < written + 50:
        if time.monotonic() > deadline or storm.problems:
            storm.problems.append("the store does not answer")
            return
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storms", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=sorted(KINDS), help="default: half of the storms rename, the others the rest")
    options = parser.parse_args()
    others = itertools.cycle(kind for kind in KINDS if kind != "rename")
    failed = 0
    for number in range(options.storms):
        kind = options.kind or ("rename" if number % 2 else next(others))
        with tempfile.TemporaryDirectory(prefix="postd-storm-") as folder:
            storm = run_storm(Path(folder), kind, seconds=options.seconds, seed=options.seed + number)
        failed += bool(storm.problems)
        sys.stdout.write(
            f"{number + 1} {kind}: {storm.rounds} rounds, {len(storm.acknowledged)} posts, "
            f"{len(storm.used_counts)} counts, statuses {storm.statuses}: {'; '.join(storm.problems) or 'ok'}\n"
        )
        sys.stdout.flush()
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
