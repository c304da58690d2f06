"""Keep a copy of an SQLite database beside it, before an upgrade of its schema. All functions block."""

import errno
import filecmp
import glob
import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

_UNFINISHED = ".unfinished-"
_LEFT_OUT = {"id_token", "passkey", "password_reset", "personal_token"}


def keep_upgrade_copy(source: sqlite3.Connection, database: str, suffix: str) -> str:
    """Copy a database page by page; return the name of the copy when it is durable.

    It has the owner of the database and mode 0600, and nothing that must end with its deletion in the database: no ID
    tokens, and no credentials, which would be valid again if the copy took the place of the database.

    If there is another file with that name, the copy gets a number (`.2`, `.3`), unless the two are equal, as after a
    start that failed later: restarts do not fill the disk.

    Args:
        source: a connection to the database; no other process writes to it or copies it at the same time.
        database: its path.
        suffix: of the copy, after the name of the database.

    Raises:
        OSError, sqlite3.Error: the copy cannot be made; nothing is left of it.
    """
    database = os.path.realpath(database)  # symlinks resolved, as for the -wal file
    folder = Path(database).parent
    for left in folder.glob(f"{glob.escape(Path(database).name)}{_UNFINISHED}*"):  # by a process that was killed
        left.unlink(missing_ok=True)
    check_room(source, database)
    made = f"{database}{_UNFINISHED}{secrets.token_hex(8)}"
    try:
        _copy(source, made, os.stat(database))  # noqa: PTH116 - the paths here are text
        name = _move_into_place(made, f"{database}{suffix}")
    finally:
        Path(made).unlink(missing_ok=True)
    sync(folder)
    return name


def size_of(source: sqlite3.Connection) -> int:
    """Return the size of a copy of a database in bytes, commits in the write-ahead log included."""
    pages, page_bytes = (source.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
    return int(pages * page_bytes)


def check_room(source: sqlite3.Connection, database: str) -> None:
    """Check that there are the space and the permission for a copy.

    Without the check a server that restarts would fill the disk again and again.

    Raises:
        OSError: there are not.
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
        if os.geteuid() == 0:  # twistd drops root later, and the copy may have to replace the database
            os.fchown(descriptor, original.st_uid, original.st_gid)
        with closing(sqlite3.connect(made, isolation_level=None)) as copy:
            # No other process uses the file: no journal, and one sync at the end.
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            source.backup(copy)
            copy.execute("PRAGMA secure_delete = ON")
            tables = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in _LEFT_OUT & tables:
                copy.execute(f"DELETE FROM {table}")  # noqa: S608 - only constants
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move_into_place(made: str, wanted: str) -> str:
    """Give a copy its name, or the next free one; return that."""
    name, number = wanted, 1
    while True:
        try:
            os.link(made, name)  # a rename would overwrite the file there
        except FileExistsError:
            if filecmp.cmp(made, name, shallow=False):
                Path(made).replace(name)  # equal, and the new one is synced
                return name
            number += 1
            name = f"{wanted}.{number}"
        else:
            return name


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
