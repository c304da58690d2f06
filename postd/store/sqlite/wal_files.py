"""The "-wal" and "-shm" files of a database that is replaced while it is open.

SQLite finds them by their names alone. A process that opens the new database while they exist takes them for those of
the new one, and corrupts it. So they must be removed before that, and not after the new one has created its own.
"""

import os
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from postd.store.sqlite.file_locks import Identity, LockBytes, SharedFile, identity_of

_INODES = 2**61


class WalFiles:
    """The write-ahead log and the shared memory of a database that is open.

    A lock on the shared memory claims them for this file: other processes of postd look for such locks.

    Raises:
        OSError: the files do not exist.
    """

    def __init__(self, database: str, identity: Identity | None) -> None:
        self._database = os.path.realpath(database)  # SQLite resolves symlinks, too
        self._identity = identity
        self._memory = SharedFile(f"{self._database}-shm", os.O_RDONLY)
        # The shared memory is removed last: as long as it exists, its lock identifies the owner of the log beside it.
        self._names = {name: identity_of(name) for name in (f"{self._database}-wal", f"{self._database}-shm")}
        # Checked after the names were read: if the database was replaced since, they may be those of the new one.
        if identity is None or not self.are_in_use():
            self._names = {}
        else:
            self._memory.lock(_claim(identity).shared)

    def are_in_use(self) -> bool:
        """Return whether the database is still at its path, so that these are the files of the one there."""
        return identity_of(self._database) == self._identity

    def remove(self) -> None:
        """Unlink the files; only after the database, which was moved, was checkpointed and closed."""
        for name, identity in self._names.items():
            if identity is not None and identity_of(name) == identity:
                with suppress(FileNotFoundError):
                    Path(name).unlink()

    def close(self) -> None:
        """Release the claim; only after SQLite has closed the database."""
        self._memory.close()


def log_is_of_another(database: str) -> bool:
    """Return whether the files beside a database belong to a replaced one that another process of postd has open.

    Only to be called before SQLite opens the database in this process: SQLite would lose its locks.
    """
    return _is_claimed(database, _claims_of_others)


def is_in_use(database: str) -> bool:
    """Return whether another process of postd, of any version, has a database open.

    Only to be called when `log_is_of_another` may be.
    """
    return _is_claimed(database, lambda identity: [_claim(identity)])


def _is_claimed(database: str, claims: Callable[[Identity], list[LockBytes]]) -> bool:
    identity = identity_of(database)
    try:
        with closing(SharedFile(f"{os.path.realpath(database)}-shm", os.O_RDONLY)) as memory:
            return identity is not None and any(memory.is_locked(claim.exclusive) for claim in claims(identity))
    except OSError:
        return False


def _claim(identity: Identity) -> LockBytes:
    return LockBytes(identity.inode % _INODES)


def _claims_of_others(identity: Identity) -> list[LockBytes]:
    own = identity.inode % _INODES
    return [*([LockBytes(0, own)] if own else []), LockBytes(own + 1, _INODES - own)]
