"""Remove the texts of deleted and replaced posts from an SQLite file and its write-ahead log, soon after the commits.

The ID tokens of sessions that have ended are such texts, too.

A commit overwrites them in the file (`secure_delete`). But the log has the pages as they were before until it is
emptied: other checkpoints leave its content there, to be overwritten by later commits. And a copy may stay in unused
space of the file (`postd.store.sqlite.unused_space`), which only VACUUM removes.
"""

import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.errors import StoreUnavailableError
from postd.store.sqlite.unused_space import find_texts

REMOVE_AFTER_S = 30
"""How long after a commit the texts are removed that it and later ones have deleted."""

RETRY_AFTER_S = 5
"""How long after an attempt that a reader has prevented."""

SEARCHED_MAX_BYTES = 256 * 1024 * 1024
"""Unused space of a larger file is not searched."""

VACUUM_RETRY_AFTER_S = 600
"""How long after VACUUM has failed, on a full disk perhaps, it is tried again."""

VACUUM_SHARE = 0.001
"""Limit on the share of the time in which VACUUM runs, while other writes wait."""

_PAGES_AT_A_TIME = 256

_SELECT_ROOTS = "SELECT rootpage FROM sqlite_master WHERE name IN ('post', 'id_token')"

T = TypeVar("T")


class RunOnFile(Protocol):
    """Runs a function with the connection that writes and a descriptor of the file, while no process writes to it."""

    def __call__(self, work: Callable[[sqlite3.Connection, int], T], /) -> Awaitable[T]:
        """Return the result of the function.

        Raises:
            StoreUnavailableError: the file is not open, or cannot be used.
        """


class DeletedTexts:
    """The texts of an open file that are to be removed."""

    _log = Logger()

    def __init__(self, run_on_file: RunOnFile, *, clock: IReactorTime) -> None:
        self._run_on_file = run_on_file
        self._clock = clock
        self._planned: IDelayedCall | None = None
        self._removing: Deferred[None] | None = None
        self._next_vacuum_s = 0.0
        self._stopped = False

    def remove_later(self, after_s: float = REMOVE_AFTER_S) -> None:
        """Remove all texts that are deleted by then; without effect if that is planned already, or after `stop`."""
        if self._planned is None and not self._stopped:
            self._planned = self._clock.callLater(after_s, self._begin)

    def stop(self) -> None:
        """Remove nothing any more: SQLite empties the log when the last process closes the file."""
        self._stopped = True
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
        if self._removing is not None:
            self._removing.cancel()

    def _begin(self) -> None:
        self._planned = None
        self._removing = Deferred.fromCoroutine(self._remove())
        self._removing.addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("store: deleted texts could not be removed", failure=failure)

    async def _remove(self) -> None:
        try:
            if not await self._run_on_file(empty_log):
                self.remove_later(RETRY_AFTER_S)
            elif await self._is_found():
                await self._vacuum()
        except StoreUnavailableError:  # not open, or locked by another program
            self.remove_later()

    async def _is_found(self) -> bool:
        """Search unused space; other writes run in between."""
        found = await self._run_on_file(_begin_search)
        while True:
            some = await self._run_on_file(lambda *_: list(islice(found, _PAGES_AT_A_TIME)))
            if any(some) or len(some) < _PAGES_AT_A_TIME:
                return any(some)

    async def _vacuum(self) -> None:
        began_s = time.monotonic()
        if began_s < self._next_vacuum_s:
            self.remove_later(self._next_vacuum_s - began_s)
            return
        try:
            await self._run_on_file(lambda connection, _: vacuum(connection))
        except StoreUnavailableError as error:
            self._log.error("store: {why}: unused space of the file still has texts of deleted posts", why=error.why)
            self._next_vacuum_s = time.monotonic() + VACUUM_RETRY_AFTER_S
            self.remove_later(VACUUM_RETRY_AFTER_S)
        else:
            ended_s = time.monotonic()
            self._next_vacuum_s = ended_s + (ended_s - began_s) / VACUUM_SHARE


def _begin_search(connection: sqlite3.Connection, descriptor: int) -> Iterator[bool]:
    if os.fstat(descriptor).st_size > SEARCHED_MAX_BYTES:
        return iter(())
    return find_texts(descriptor, roots_of_texts(connection))


def roots_of_texts(connection: sqlite3.Connection) -> list[int]:
    """Return the number of the first page of each table with texts that may be deleted."""
    return [root for (root,) in connection.execute(_SELECT_ROOTS)]


def empty_log(connection: sqlite3.Connection, _descriptor: int = -1) -> bool:
    """Copy the write-ahead log into the file and empty it; return False if a reader prevents that."""
    busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    return not busy


def vacuum(connection: sqlite3.Connection) -> None:
    """Write the file anew, without unused space.

    Raises:
        sqlite3.Error: there is no space for a second file, or another program has locked the file.
    """
    connection.execute("VACUUM")
    empty_log(connection)
