"""A cache of query results, invalidated by commits.

A commit of any process is detected in the WAL-index header (`postd.store.sqlite.commit_detector`). It empties the
cache, because the header does not show which tables have changed. A commit of this process invalidates only the tables
that it has changed: SQLite counts commits in that header, so a difference of one between the states before and after
the commit proves that no other process has committed in between.
"""

import sqlite3
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import Struct

from postd.reactor import Work
from postd.store.sqlite.commit_detector import CommitDetector

T = TypeVar("T")

RunQuery = Callable[[Callable[[sqlite3.Connection], Any]], Work[Any]]
"""Runs a query and returns its result."""

CACHED_RESULTS_MAX = 4096
"""How many results of each table are cached; more, and they are removed."""

TABLES = ("post", "session", "failure", "personal_token")
"""The tables with cached results, each with the rows that belong to it, such as the version of the posts."""

_COMMITS_MAX = 64
"""How many commits of this process are remembered until the next read."""

_COUNT = struct.Struct("=I")
_COUNT_AT = 8  # iChange, "Counter incremented each transaction"


class _Commit(Struct, frozen=True):
    """A commit of this process, and no other: the states before and after it, and the tables that it changed."""

    before: bytes
    after: bytes
    changes: frozenset[str]


class ReadCache:
    """Results by table and key, all of one state of the database.

    Args:
        run: returns the result of a query that is not cached.

    Attributes:
        detector: shows the state of the database; None while the file is not open, or if it has no shared memory. Then
            nothing is cached.
        state: the WAL-index header of the cached results, empty if there are none.
    """

    def __init__(self, run: RunQuery) -> None:
        self._run = run
        self.detector: CommitDetector | None = None
        self.state = b""
        self._results: dict[str, dict[object, Any]] = {table: {} for table in TABLES}
        self._commits: deque[_Commit] = deque(maxlen=_COMMITS_MAX)

    async def read(self, table: str, key: object, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of the query with this key if it is cached and its table has not changed, else run it.

        Raises:
            StoreUnavailableError: the query cannot be run.
        """
        # The state is read before the query runs: a cached result is never older than the state it is cached for.
        state = b"" if self.detector is None else self.detector.read()
        if state != self.state or not state:
            while self._commits:
                commit = self._commits.popleft()
                if commit.before == self.state:
                    self.state = commit.after
                    for changed in commit.changes:
                        self._results[changed].clear()
            if state != self.state or not state:
                self._forget(state)
        results = self._results[table]
        if key in results:
            cached: T = results[key]
            return cached
        result: T = await self._run(query)
        # While the query was retried another read may have emptied the cache for a newer state.
        if state and state == self.state:
            if len(results) >= CACHED_RESULTS_MAX:
                results.clear()
            results[key] = result
        return result

    def note_commit(self, before: bytes, after: bytes, changes: Iterable[str]) -> None:
        """Note a commit of this process, in the thread that made it.

        Args:
            before: the state while the transaction has the write lock.
            after: the state some time after the commit.
            changes: the tables that it has changed.
        """
        (first,), (second,) = (_COUNT.unpack_from(state, _COUNT_AT) for state in (before, after))
        if second == (first + 1) & 0xFFFFFFFF:
            self._commits.append(_Commit(before, after, frozenset(changes)))

    def clear(self) -> None:
        """Empty the cache, because another file is opened."""
        self._commits.clear()
        self._forget(b"")

    def _forget(self, state: bytes) -> None:
        self.state = state
        for results in self._results.values():
            results.clear()
