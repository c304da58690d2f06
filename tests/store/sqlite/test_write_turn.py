"""One SQLite file and several processes: fair writes, bounded waits, replacement of the file."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_twisted
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import gatherResults
from twisted.internet.task import deferLater

from postd.errors import StoreUnavailableError
from postd.reactor import IReactor
from postd.store.sqlite.database_file import BUSY_TIMEOUT_MS
from postd.store.sqlite.file_locks import SharedFile
from postd.store.sqlite.held_file import locked_folder
from postd.store.sqlite.store import SqliteStore
from postd.store.sqlite.write_turn import TURN_MAX_S
from tests.helpers import PATIENCE_S, locked, run_sql
from tests.store.contract import error_of, started, until_available
from tests.store.sqlite.files import locks_of, turns_of
from tests.store.sqlite.test_held_file import leave

reactor = cast(IReactor, global_reactor)

WAIT_MAX_S = 2 * BUSY_TIMEOUT_MS / 1000
"""The longest wait of a write on a busy machine: not as long as two timeouts of the lock."""


@pytest_twisted.async_yield_fixture
async def stores(path: Path) -> AsyncIterator[list[SqliteStore]]:
    """Two stores on the file; their locks conflict like those of two processes."""
    opened = [SqliteStore(str(path), reactor=reactor) for _ in range(2)]
    for store in opened:
        store.prepare()
        await store.start()
    yield opened
    for store in opened:
        await store.stop()


class Process:
    """A process of `tests.store.sqlite.writing`."""

    def __init__(self, path: Path, name: str, many: str, pause_s: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.sqlite.writing", str(path), name, many, str(pause_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    def wait_for(self, words: str) -> None:
        assert self._read() == words

    def proceed(self) -> None:
        """Send a line of input: the first one begins the writes, the second one ends them."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self._read())
        assert self._process.wait(PATIENCE_S) == 0
        return result

    def has_open(self, path: Path) -> bool:
        opened = []
        for descriptor in Path(f"/proc/{self._process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                opened.append(descriptor.stat())
        return any(os.path.samestat(path.stat(), one) for one in opened)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def processes(path: Path, number: int, many: str, *, pause_s: float = 0.001) -> Iterator[list[Process]]:
    made = [Process(path, f"p{n}", many, pause_s) for n in range(number)]
    try:
        for process in made:
            process.wait_for("open")
        yield made
    finally:
        for process in made:
            process.kill()


def stop(writers: Sequence[Process]) -> list[dict[str, Any]]:
    """End the writes; return the results."""
    for writer in writers:
        writer.proceed()
    return [writer.result() for writer in writers]


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.mark.slow
def test_busy_processes_share_the_file_evenly(path: Path) -> None:
    with processes(path, 4, "32") as writers:
        for writer in writers:
            writer.proceed()
        time.sleep(2)
        results = stop(writers)
    shares = [len(result["acknowledged"]) for result in results]
    assert min(shares) >= sum(shares) / len(shares) / 2, shares
    assert max(result["longest_s"] for result in results) < BUSY_TIMEOUT_MS / 1000
    assert [result["errors"] for result in results] == [[]] * 4
    assert run_sql(path, "SELECT count(*) FROM post") == [(sum(shares),)]


@pytest.mark.slow
@ensureDeferred
async def test_store_opens_at_once_beside_busy_processes(path: Path) -> None:
    with processes(path, 2, "32") as writers:
        for writer in writers:
            writer.proceed()
        await deferLater(reactor, 0.5)
        store = SqliteStore(str(path), reactor=reactor)
        with at_most(BUSY_TIMEOUT_MS / 1000):
            store.prepare()
            await store.start()
            await store.add_post("among theirs")
        await store.stop()
        assert [result["errors"] for result in stop(writers)] == [[], []]


@pytest.mark.slow
@ensureDeferred
async def test_suspended_writer_delays_others_no_longer_than_the_lock_timeout(
    path: Path, stores: list[SqliteStore]
) -> None:
    with processes(path, 1, "hold") as (holder,):
        holder.wait_for("holds")
        holder.signal(signal.SIGSTOP)
        for _ in range(2):
            with at_most(WAIT_MAX_S):
                errors = await gatherResults([started(error_of(store.add_post("x"))) for store in stores])
            assert [type(error) for error in errors] == [StoreUnavailableError] * 2
        holder.kill()  # the kernel releases its locks
        with at_most(BUSY_TIMEOUT_MS / 1000):
            assert {await store.add_post("works again") for store in stores} == {1, 2}


@pytest.mark.slow
@ensureDeferred
async def test_foreign_lock_delays_queued_processes_and_stop_no_longer_than_its_timeout(
    path: Path, stores: list[SqliteStore]
) -> None:
    with locked(path, "IMMEDIATE"), at_most(WAIT_MAX_S):
        writing = gatherResults([started(error_of(store.add_post("x"))) for store in stores])
        await deferLater(reactor, 0.1)
        await stores.pop().stop()
        assert [type(error) for error in await writing] == [StoreUnavailableError] * 2
    with at_most(BUSY_TIMEOUT_MS / 1000):
        await stores[0].add_post("works again")


@pytest.mark.slow
@ensureDeferred
async def test_process_stuck_in_the_queue_is_passed(path: Path, stores: list[SqliteStore]) -> None:
    with turns_of(path) as write_turn, write_turn.turn():
        with at_most(2 * TURN_MAX_S):
            await gatherResults([started(store.add_post("past it")) for store in stores])
        with at_most(3 * TURN_MAX_S):
            for _ in range(3):
                await gatherResults([started(store.add_post("past it")) for store in stores])
    assert run_sql(path, "SELECT count(*) FROM post") == [(8,)]
    # Once the process has left the queue, the stores wait for their turn again.
    await gatherResults([started(store.add_post("in turn")) for store in stores])
    for store in stores:
        with turns_of(path) as write_turn, write_turn.turn():
            waiting = started(store.add_post("waits"))
            await deferLater(reactor, 0.3)
            assert not waiting.called
        await waiting


@ensureDeferred
async def test_time_in_the_queue_reduces_the_timeout_of_the_lock(path: Path, stores: list[SqliteStore]) -> None:
    store, _ = stores

    async def check_timeout_after(held_s: float) -> None:
        def query(writer: sqlite3.Connection) -> int:
            return int(writer.execute("PRAGMA busy_timeout").fetchone()[0])

        began = time.monotonic()
        with turns_of(path) as write_turn, write_turn.turn():
            writing = started(store.database.write(query))
            await deferLater(reactor, held_s)
        timeout_ms = await writing
        waited_ms = (time.monotonic() - began) * 1000
        assert BUSY_TIMEOUT_MS - waited_ms <= timeout_ms <= BUSY_TIMEOUT_MS - held_s * 1000 + 100

    for held_s in (0, 0.5, 0):
        await check_timeout_after(held_s)


@ensureDeferred
async def test_sqlite_keeps_its_locks_while_any_store_of_the_process_is_open(
    path: Path, stores: list[SqliteStore]
) -> None:
    """Another process that finds no locks would remove the log."""
    files = [path, Path(f"{path}-shm")]
    held = [locks_of(file) for file in files]
    assert all(held)
    SharedFile(str(path), os.O_RDONLY).close()
    SqliteStore(str(path), reactor=reactor).prepare()
    await stores.pop().stop()
    assert [locks_of(file) for file in files] == held
    assert await stores[0].add_post("x") == 1


@ensureDeferred
async def test_stop_leaves_no_file_and_no_descriptor(path: Path) -> None:
    def descriptors() -> int:
        return sum(os.path.realpath(link).startswith(str(path)) for link in Path("/proc/self/fd").iterdir())

    for _ in range(3):
        store = SqliteStore(str(path), reactor=reactor)
        store.prepare()
        await store.start()
        await store.add_post("x")
        assert sorted(file.name for file in path.parent.iterdir()) == ["posts.db", "posts.db-shm", "posts.db-wal"]
        assert descriptors()
        await store.stop()
        assert [file.name for file in path.parent.iterdir()] == ["posts.db"]
        assert descriptors() == 0


@ensureDeferred
async def test_stores_that_close_together_leave_no_log_behind(path: Path) -> None:
    for _ in range(20):
        opened = [SqliteStore(str(path), reactor=reactor) for _ in range(4)]
        for store in opened:
            store.prepare()
            await store.start()
        await opened[0].add_post("x")
        await gatherResults([started(store.stop()) for store in opened])
        assert [file.name for file in path.parent.iterdir()] == ["posts.db"]


@ensureDeferred
async def test_store_waits_to_close_while_another_process_opens_the_file(path: Path, stores: list[SqliteStore]) -> None:
    await stores[0].add_post("x")
    with locked_folder(str(path)) as locked:
        assert locked
        stopping = started(stores.pop().stop())
        await deferLater(reactor, 0.3)
        assert not stopping.called
    await stopping


def make_backup(path: Path, name: str) -> Path:
    backup = path.with_name(name)
    SqliteStore(str(backup), reactor=reactor).prepare()
    run_sql(backup, f"INSERT INTO post (post) VALUES ('{name}')")
    return backup


def wait_until_written(path: Path, writers: Sequence[Process]) -> None:
    """Wait until all writers have written to the file that is now at a path."""
    deadline = time.monotonic() + PATIENCE_S
    # Until then the log may be that of the old file, which SQLite without postd would apply to the new one.
    while not all(writer.has_open(path) for writer in writers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while len({text.partition(" ")[0] for (text,) in run_sql(path, "SELECT post FROM post")}) < 1 + len(writers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def texts_in(path: Path) -> set[str]:
    assert run_sql(path, "PRAGMA integrity_check") == [("ok",)]
    return {text for (text,) in run_sql(path, "SELECT post FROM post")}


@pytest.mark.slow
def test_replaced_file_loses_no_post_of_several_processes(path: Path) -> None:
    """Backups are moved into its place while all processes write; hard links keep the old files."""
    make_backup(path, "first").rename(path)
    files = [path]
    with processes(path, 3, "8", pause_s=0.02) as writers:
        for number, writer in enumerate(writers):
            writer.proceed()
            time.sleep(0.3 * (number % 2))  # the processes check their file at different times
        for name in ("second", "third"):
            time.sleep(1)
            files.append(path.with_name(f"old-{name}"))
            os.link(path, files[-1])
            make_backup(path, name).rename(path)
            replaced = time.time()
            wait_until_written(path, writers)
        results = stop(writers)
    found = [texts_in(file) for file in files]
    assert [names & {"first", "second", "third"} for names in found] == [{"third"}, {"first"}, {"second"}]
    for result in results:
        acknowledged = dict(result["acknowledged"])
        assert acknowledged.keys() <= set().union(*found)
        # Writes that began after the last replacement and were acknowledged are in the new file.
        later = {text for text, asked in acknowledged.items() if asked > replaced}
        assert later
        assert later <= found[0]
        assert all("replaced" in why or "not open" in why or "in use" in why for why in result["errors"]), result
    assert sum(map(len, found)) == len(set().union(*found))


@ensureDeferred
async def test_stop_of_several_processes_after_a_replacement_loses_no_post(
    path: Path, stores: list[SqliteStore]
) -> None:
    texts = {f"{name} {n}" for name in "ab" for n in range(50)}
    await gatherResults([started(stores[text < "b"].add_post(text)) for text in texts])
    old = path.with_name("old")
    os.link(path, old)
    make_backup(path, "new").rename(path)
    await gatherResults([started(stores.pop().stop()) for _ in range(2)])
    assert sorted(file.name for file in path.parent.iterdir()) == ["old", "posts.db"]
    assert texts_in(path) == {"new"}
    assert texts_in(old) == texts


@ensureDeferred
async def test_new_process_waits_while_others_have_the_replaced_file_open(
    path: Path, stores: list[SqliteStore]
) -> None:
    for store in stores:
        await store.add_post("only in the old one")
    new = make_backup(path, "new")
    before = new.read_bytes()
    new.rename(path)
    newcomer = SqliteStore(str(path), reactor=reactor)
    with pytest.raises(StoreUnavailableError, match="in use"):
        newcomer.prepare()
    starting = started(newcomer.start())
    assert path.read_bytes() == before
    await starting
    for store in stores:
        await until_available(store)
    assert await newcomer.add_post("x") == 2
    assert {await store.add_post("x") for store in stores} == {3, 4}
    await newcomer.stop()


@ensureDeferred
async def test_redirected_symlink_leaves_the_old_file_to_others(tmp_path: Path) -> None:
    target, other, link = (make_backup(tmp_path / "x", name) for name in ("target", "other", "link"))
    link.unlink()
    link.symlink_to(target)
    store, stays = SqliteStore(str(link), reactor=reactor), SqliteStore(str(target), reactor=reactor)
    for one in (store, stays):
        one.prepare()
        await one.start()
    await store.add_post("old")
    link.unlink()
    link.symlink_to(other)
    await leave(store)
    await until_available(store)
    await stays.add_post("still")
    assert texts_in(target) == {"target", "old", "still"}
    await store.add_post("new")
    assert texts_in(other) == {"other", "new"}
    for one in (store, stays):
        await one.stop()
