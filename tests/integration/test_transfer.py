"""`postd export`, `import`, `copy` and `backup`, beside a real server and interrupted."""

import json
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.helpers import PATIENCE_S, run_sql
from tests.integration import forking
from tests.integration.daemon import Daemon
from tests.integration.forking import Piped
from tests.integration.logins import POSTD
from tests.redis_server import RedisServer

POSTS = 30_000
WAIT_MAX_S = PATIENCE_S


def lines_of(first: int, count: int) -> bytes:
    return b"".join(
        b'{"id":%d,"post":"post number %d, with some words to it"}\n' % (n, n) for n in range(first, first + count)
    )


def postd(folder: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return forking.run([POSTD, *arguments], folder, given=given, timeout_s=WAIT_MAX_S)


def count_in(path: Path) -> int:
    count: int = run_sql(path, "SELECT count(*) FROM post")[0][0]
    return count


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def wait_until(is_so: Callable[[], object], running: Piped) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not is_so():
        assert running.process.poll() is None, running.end()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def running(folder: Path, *arguments: str) -> Piped:
    return Piped([POSTD, *arguments], folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with many posts."""
    folder = tmp_path_factory.mktemp("made")
    run = postd(folder, "import", given=lines_of(1, POSTS))
    assert run.returncode == 0
    assert run.stdout.endswith(b"created, as there was none\n%d posts imported\n" % POSTS)
    return folder / "postd.db"


@pytest.fixture
def store(tmp_path: Path, made: Path) -> Path:
    """A copy of that store for one test."""
    return Path(shutil.copyfile(made, tmp_path / "postd.db"))


class Writer(threading.Thread):
    """Adds one post after another until it is stopped."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._enough = threading.Event()
        self.added: list[int] = []
        self.refused: list[httpx.Response] = []

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=WAIT_MAX_S) as client:
            while not self._enough.is_set():
                answer = client.post("/post", json={"post": "meanwhile"})
                if answer.status_code == 201:
                    self.added.append(int(answer.headers["Location"].removeprefix("/post/")))
                else:
                    self.refused.append(answer)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join()


def test_export_and_import_work_while_a_server_writes(store: Path) -> None:
    folder = store.parent
    with Daemon(folder) as daemon, Writer(daemon.url) as writer:
        exported = postd(folder, "export")
        saved = postd(folder, "backup", "backup.db")
        imported = postd(folder, "import", given=lines_of(1_000_001, POSTS))
        assert [run.returncode for run in (exported, saved, imported)] == [0, 0, 0]
        answer = httpx.get(f"{daemon.url}/post/{1_000_000 + POSTS}")
        assert answer.json()["post"].startswith("post number")
    assert writer.refused == []
    assert len(set(writer.added)) == len(writer.added) > 10
    assert count_in(store) == 2 * POSTS + len(writer.added)

    posts = [json.loads(line) for line in exported.stdout.splitlines()]
    assert exported.stdout.startswith(lines_of(1, POSTS))
    assert [post["id"] for post in posts] == list(range(1, len(posts) + 1))

    in_backup = count_in(folder / "backup.db")
    assert POSTS <= in_backup < POSTS + len(writer.added)
    assert run_sql(folder / "backup.db", "SELECT max(id) FROM post") == [(in_backup,)]


def test_backup_is_a_usable_store(store: Path) -> None:
    folder = store.parent
    with Daemon(folder) as daemon:
        assert httpx.post(f"{daemon.url}/post", json={"post": "deleted"}).headers["Location"] == f"/post/{POSTS + 1}"
        assert httpx.delete(f"{daemon.url}/post/{POSTS + 1}").status_code == 200
        assert postd(folder, "backup", "backup.db").stdout == b"%d posts saved in backup.db\n" % POSTS
    assert {file.name for file in folder.iterdir()} == {"postd.db", "backup.db", "log"}
    with Daemon(folder, "--store", "sqlite:backup.db") as daemon:
        assert httpx.get(f"{daemon.url}/post/{POSTS}").status_code == 200
        assert httpx.post(f"{daemon.url}/post", json={"post": "next"}).headers["Location"] == f"/post/{POSTS + 2}"


def test_copy_refuses_a_store_that_is_written_to(store: Path) -> None:
    with Daemon(store.parent) as daemon, Writer(daemon.url):
        run = postd(store.parent, "copy", "--to", "sqlite:copy.db")
    assert (run.returncode, run.stdout.count(b"\n")) == (1, 1)  # the store is created
    # On a busy machine the first write may come as late as in the commit of the copy.
    nothing = (
        b"has changed during the copy; nothing was copied; stop the source's servers and copy again\n" in run.stderr
    )
    assert nothing or b"has changed during the copy; the copy is incomplete; stop the source" in run.stderr
    assert (count_in(store.parent / "copy.db") == 0) is nothing


def test_posts_are_copied_to_redis_and_back(store: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = store.parent
    run_sql(store, "INSERT INTO post (post) VALUES ('gone')", f"DELETE FROM post WHERE id = {POSTS + 1}")
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        empty = postd(folder, "export", "-s", server.url)
        assert (empty.returncode, empty.stderr.count(b"\n")) == (1, 1)
        assert postd(folder, "copy", "--to", server.url).returncode == 0
        again = postd(folder, "copy", "--to", server.url)
        assert (again.returncode, b"the store has posts" in again.stderr) == (1, True)
        assert postd(folder, "export", "-s", server.url).stdout == lines_of(1, POSTS)
        no_backup = postd(folder, "backup", "new", "-s", server.url)
        assert (no_backup.returncode, b"needs an SQLite store" in no_backup.stderr) == (1, True)
        with Daemon(folder, "--store", server.url) as daemon:
            added = httpx.post(f"{daemon.url}/post", json={"post": "next"})
            assert added.headers["Location"] == f"/post/{POSTS + 2}"
        assert postd(folder, "import", "-s", server.url, given=lines_of(POSTS + 1, 1)).returncode == 0
        assert postd(folder, "copy", "-s", server.url, "--to", "sqlite:back.db").returncode == 0
    assert run_sql(folder / "back.db", f"SELECT id, post FROM post WHERE id > {POSTS}") == [
        (POSTS + 1, f"post number {POSTS + 1}, with some words to it"),
        (POSTS + 2, "next"),
    ]


def test_import_killed_while_reading_leaves_nothing(store: Path) -> None:
    with running(store.parent, "import") as importing:
        importing.write(lines_of(POSTS + 1, POSTS // 2))  # far more than a pipe holds: most has been read
        importing.process.kill()
        importing.process.wait()
    assert count_in(store) == POSTS
    assert {file.name for file in store.parent.iterdir()} == {"postd.db"}


@pytest.mark.slow
def test_import_killed_while_storing_leaves_all_or_nothing(store: Path) -> None:
    (store.parent / "lines").write_bytes(lines_of(POSTS + 1, POSTS))
    log = store.with_name("postd.db-wal")
    left = set()
    for size in (1, 256 * 1024, 1024 * 1024):
        with running(store.parent, "import", "lines") as importing:
            wait_until(lambda size=size: size_of(log) > size, importing)  # type: ignore[misc]
            importing.process.kill()
            importing.process.wait()
        with Daemon(store.parent) as daemon:
            added = httpx.post(f"{daemon.url}/post", json={"post": "next"}).headers["Location"]
            assert httpx.delete(f"{daemon.url}{added}").status_code == 200
        left.add(count_in(store))
        run_sql(store, f"DELETE FROM post WHERE id > {POSTS}")
    assert POSTS in left
    assert left <= {POSTS, 2 * POSTS}


@pytest.mark.parametrize("command", ["export", "import"])
def test_ctrl_c_ends_a_command_that_waits_for_a_pipe(store: Path, command: str) -> None:
    with running(store.parent, command) as one:
        if command == "import":
            one.write(lines_of(POSTS + 1, 5000))
        else:
            os.read(one.stdout.fileno(), 1)
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(WAIT_MAX_S) == 130
        assert one.stderr.read().strip() == b"postd: interrupted"  # click adds an empty line at times
    assert count_in(store) == POSTS


def test_second_ctrl_c_is_quiet(store: Path) -> None:
    with running(store.parent, "import") as importing:
        importing.write(lines_of(POSTS + 1, 5000))
        # At once: the second is there before the first has been seen to.
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            importing.process.send_signal(number)
        assert importing.process.wait(WAIT_MAX_S) == 130
        assert importing.stderr.read().strip() == b"postd: interrupted"
    assert count_in(store) == POSTS


@pytest.mark.slow
@pytest.mark.parametrize("command", ["export", "backup"])
def test_interrupted_output_file_is_removed(store: Path, command: str) -> None:
    def begun() -> bool:
        return any(file.name.startswith(".postd-") and file.stat().st_size > 0 for file in store.parent.glob(".*"))

    with running(store.parent, command, "new") as writing:
        wait_until(begun, writing)
        writing.process.send_signal(signal.SIGINT)
        assert writing.process.wait(WAIT_MAX_S) == 130
        assert writing.stderr.read().strip() == b"postd: interrupted"  # click adds an empty line at times
    assert {file.name for file in store.parent.iterdir()} == {"postd.db"}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["export", "backup"])
def test_output_file_is_removed_when_the_disk_is_full(store: Path, command: str) -> None:
    def leave_no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, 1024 * 1024))

    run = subprocess.run(
        [POSTD, command, "new"],
        cwd=store.parent,
        capture_output=True,
        preexec_fn=leave_no_room,
        timeout=WAIT_MAX_S,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr.count(b"\n")) == (1, b"", 1)
    assert run.stderr.startswith(b"postd: new: ")
    assert {file.name for file in store.parent.iterdir()} == {"postd.db"}
    assert count_in(store) == POSTS
