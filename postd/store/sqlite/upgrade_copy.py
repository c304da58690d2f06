"""A copy of an SQLite database, kept beside it before something is done that cannot be undone.

All of it blocks.
"""

import errno
import filecmp
import glob
import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

_UNFINISHED = ".unfinished-"


def keep_upgrade_copy(source: sqlite3.Connection, database: str, suffix: str) -> str:
    """Copy a database, page by page; return the name of the copy once it cannot be lost.

    It has the owner of the database and mode 0600. No other file loses its name to it: if there is another copy with
    that suffix, this one gets a number more (`.2`, `.3`). Only where the two are the same, as after a start that got no
    further than this, there is one in the end: a service that is started again and again does not fill the disk.

    Args:
        source: reads the database; nobody writes to it meanwhile, and nobody else copies it.
        database: its path.
        suffix: for the name of the copy, after that of the database.

    Raises:
        OSError: it cannot be made; nothing is left of it.
        sqlite3.Error: likewise.
    """
    database = os.path.realpath(database)  # beside the file itself, as SQLite has its log
    folder = Path(database).parent
    for left in folder.glob(f"{glob.escape(Path(database).name)}{_UNFINISHED}*"):  # by a process that was killed
        left.unlink(missing_ok=True)
    check_room(source, database)
    made = f"{database}{_UNFINISHED}{secrets.token_hex(8)}"
    try:
        _copy(source, made, os.stat(database))  # noqa: PTH116 - as the paths here
        name = _put_in_place(made, f"{database}{suffix}")
    finally:
        Path(made).unlink(missing_ok=True)
    sync(folder)
    return name


def size_of(source: sqlite3.Connection) -> int:
    """Return how many bytes a copy of a database takes, what is only in its log included."""
    pages, page_bytes = (source.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
    return int(pages * page_bytes)


def check_room(source: sqlite3.Connection, database: str) -> None:
    """Look whether a copy can be made, as far as that can be known before it is tried.

    A disk that was filled up would be a trouble for others, and a server would try that again and again.

    Raises:
        OSError: it cannot.
    """
    folder = Path(os.path.realpath(database)).parent
    space = os.statvfs(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    if space.f_bavail * space.f_frsize < size_of(source):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _copy(source: sqlite3.Connection, made: str, original: os.stat_result) -> None:
    descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        if os.geteuid() == 0:  # twistd gives that up later, and what was copied is to be of use in its place
            os.fchown(descriptor, original.st_uid, original.st_gid)
        with closing(sqlite3.connect(made, isolation_level=None)) as copy:
            # Nobody knows this file: it needs no way back, and one sync at the end.
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            source.backup(copy)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(made: str, wanted: str) -> str:
    """Give a copy its name, or the next one that is free; return that."""
    name, number = wanted, 1
    while True:
        try:
            os.link(made, name)  # a rename would take the place of what is there
        except FileExistsError:
            if filecmp.cmp(made, name, shallow=False):
                Path(made).replace(name)  # the same bytes, and these are on the disk
                return name
            number += 1
            name = f"{wanted}.{number}"
        else:
            return name


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
