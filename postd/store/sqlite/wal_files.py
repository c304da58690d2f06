"""The files that SQLite keeps beside a database, "-wal" and "-shm", when another database is put in its place.

They are found by their names alone. Whoever opens the new database while they are there takes them for its own, and
mixes two databases up; so they must be gone before that, and must not be taken away once the new one has its own.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from postd.store.sqlite.file_locks import Identity, LockBytes, SharedFile, identity_of

_INODES = 2**61


class WalFiles:
    """The write-ahead log and the shared memory of a database that is open.

    Whoever else of us finds them learns from a lock on the shared memory that they belong to this very file.

    Args:
        database: the path of the database.
        identity: of the file that was opened.

    Raises:
        OSError: they are not there.
    """

    def __init__(self, database: str, identity: Identity | None) -> None:
        self._database = os.path.realpath(database)  # beside the file itself, as SQLite has it
        self._identity = identity
        self._memory = SharedFile(f"{self._database}-shm", os.O_RDONLY)
        # The memory's name goes last: whoever finds it knows whose log is beside it.
        self._names = {name: identity_of(name) for name in (f"{self._database}-wal", f"{self._database}-shm")}
        # Read before that look: a file put in its place meanwhile has, or will have, these names for its own.
        if identity is None or not self.are_in_use():
            self._names = {}
        else:
            self._memory.lock(_claim(identity).shared)

    def are_in_use(self) -> bool:
        """Tell whether the database is where it was: whoever opens it is to find these files."""
        return identity_of(self._database) == self._identity

    def remove(self) -> None:
        """Take their names away; once the database, which is elsewhere now, is closed and nothing is in them."""
        for name, identity in self._names.items():
            if identity is not None and identity_of(name) == identity:
                with suppress(FileNotFoundError):
                    Path(name).unlink()

    def close(self) -> None:
        """Let go of them; only once SQLite has closed the database."""
        self._memory.close()


def log_is_of_another(database: str) -> bool:
    """Tell whether the files beside a database belong to one that was there before, and that others of us have open.

    Only to be asked before SQLite opens the database: it would lose its locks.
    """
    return _is_claimed(database, _claims_of_others)


def is_in_use(database: str) -> bool:
    """Tell whether others of us, of whatever version, have a database open that serves them.

    Only to be asked when `log_is_of_another` may be.
    """
    return _is_claimed(database, lambda identity: [_claim(identity)])


def _is_claimed(database: str, claims: Callable[[Identity], list[LockBytes]]) -> bool:
    identity = identity_of(database)
    try:
        memory = SharedFile(f"{os.path.realpath(database)}-shm", os.O_RDONLY)
    except OSError:
        return False
    try:
        return identity is not None and any(memory.is_locked(claim.exclusive) for claim in claims(identity))
    except OSError:
        return False
    finally:
        memory.close()


def _claim(identity: Identity) -> LockBytes:
    return LockBytes(identity.inode % _INODES)


def _claims_of_others(identity: Identity) -> list[LockBytes]:
    own = identity.inode % _INODES
    return [*([LockBytes(0, own)] if own else []), LockBytes(own + 1, _INODES - own)]
