"""Convert errors of SQLite into errors of a store."""

import sqlite3

from postd.errors import StoreFullError, StoreRefusedError, StoreUnavailableError

DAMAGED = "it is damaged; restore a backup, or try sqlite3's .recover"

_LOCKED = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"}
_FULL = {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}
_REFUSED = {
    "SQLITE_NOTADB": "it is not an SQLite database",
    "SQLITE_CORRUPT": DAMAGED,
    "SQLITE_READONLY": "it is not writable",
    "SQLITE_PERM": "it is not writable",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_ERROR": "its tables are not those of postd",
}


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another connection holds the lock."""
    return _names(error)[0] in _LOCKED


def store_error(error: sqlite3.Error, path: str) -> StoreRefusedError | StoreUnavailableError:
    """Return the error of a store for an error of SQLite: refused, full, or unavailable."""
    primary, name = _names(error)
    if primary in _FULL or name in _FULL:
        return StoreFullError(f"{path}: no space left ({name})")
    if name == "SQLITE_READONLY_DIRECTORY":
        return StoreRefusedError(f"{path}: its folder is not writable")
    if primary in _REFUSED:
        return StoreRefusedError(f"{path}: {_REFUSED[primary]} ({error})")
    return StoreUnavailableError(f"{path}: {error} ({name})")


def unavailable(error: sqlite3.Error, path: str) -> StoreUnavailableError:
    """Return the error of a store that has started for an error of SQLite: even a refusal counts as temporary."""
    ours = store_error(error, path)
    return StoreUnavailableError(ours.why) if isinstance(ours, StoreRefusedError) else ours


def _names(error: sqlite3.Error) -> tuple[str, str]:
    """Return the primary and the extended name of an error: SQLITE_IOERR, SQLITE_IOERR_WRITE."""
    name = getattr(error, "sqlite_errorname", None) or "SQLITE_ERROR"
    return "_".join(name.split("_")[:2]), name
