"""Helpers for tests of an SQLite file and its connections."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

from twisted.internet import reactor as global_reactor

from postd.reactor import IReactor
from postd.store.sqlite.file_locks import SharedFile
from postd.store.sqlite.store import SqliteStore
from postd.store.sqlite.write_turn import WriteTurn
from tests.helpers import run_sql
from tests.store.contract import store as store  # noqa: PLC0414 - a fixture

reactor = cast(IReactor, global_reactor)


def make_store_file(path: Path, posts: int = 0) -> None:
    SqliteStore(str(path), reactor=reactor).prepare()
    run_sql(path, "BEGIN", *["INSERT INTO post (post) VALUES ('" + "x" * 140 + "')"] * posts, "COMMIT")


def busy() -> sqlite3.OperationalError:
    """Return a rare error of reads in WAL mode: another process is recovering the log after a crash."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY_RECOVERY"
    return error


def locks_of(path: Path) -> set[tuple[str, int]]:
    """Return the POSIX locks that this process holds on a file: `READ` or `WRITE`, and the first byte.

    A line of the kernel's table can be missing, doubled or cut if other processes change the table while it is read. So
    it is read more than once.
    """
    inode = f":{path.stat().st_ino}"
    lines = [line.split() for _ in range(3) for line in Path("/proc/locks").read_text().splitlines()]
    # Number, POSIX, ADVISORY, READ, process, device and inode, first byte, last byte. A waiting one has one word more.
    whole = [line for line in lines if len(line) == 8]
    held = [line for line in whole if line[1] == "POSIX" and line[4] == str(os.getpid()) and line[5].endswith(inode)]
    return {(line[3], int(line[6])) for line in held}


@contextmanager
def turns_of(path: Path) -> Iterator[WriteTurn]:
    """The queue of writers of a file, as of another process."""
    with closing(SharedFile(str(path), os.O_RDWR)) as file:
        yield WriteTurn(file)


_PROGRAM = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    connection.execute(statement).fetchone()
print("done", flush=True)
sys.stdin.read()
connection.close()
"""


@contextmanager
def other_program(path: Path, *statements: str) -> Iterator[None]:
    """Run statements in another process, which has the database open until the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(path), *statements], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"done\n"
        yield
        program.communicate()


def writer_of(store: SqliteStore) -> sqlite3.Connection:
    writer = store.database.writer
    assert writer is not None
    return writer


def reader_of(store: SqliteStore) -> sqlite3.Connection:
    reader = store.database.reader
    assert reader is not None
    return reader


@contextmanager
def statements_of(connection: sqlite3.Connection) -> Iterator[list[str]]:
    """Record the statements of a connection."""
    done: list[str] = []
    connection.set_trace_callback(done.append)
    yield done
    connection.set_trace_callback(None)
