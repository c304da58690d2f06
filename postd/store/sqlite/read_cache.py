"""A cache of query results, invalidated by commits.

A commit of any process is detected in the WAL-index header (`postd.store.sqlite.commit_detector`). It empties the
cache, because the header does not show which tables have changed. A commit of this process invalidates only the tables
that it has changed: SQLite counts commits in that header, so a difference of one between the states before and after
the commit proves that no other process has committed in between.
"""

import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

CACHED_RESULTS_MAX = 4096
"""How many results of each table are cached; more, and they are removed."""

TABLES = ("post", "session", "failure")
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

    Attributes:
        state: the WAL-index header of that state, empty if there is none.
    """

    def __init__(self) -> None:
        self.state = b""
        self._results: dict[str, dict[object, Any]] = {table: {} for table in TABLES}
        self._commits: deque[_Commit] = deque(maxlen=_COMMITS_MAX)

    def results(self, table: str, state: bytes | None) -> dict[object, Any]:
        """Return the cached results of a table by their keys, at a state of the database; None if it is not known."""
        if state is None or state != self.state:
            self._advance(state or b"")
        results = self._results[table]
        if len(results) > CACHED_RESULTS_MAX:
            results.clear()
        return results

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
        self._advance(b"")

    def _advance(self, state: bytes) -> None:
        while self._commits:
            commit = self._commits.popleft()
            if commit.before == self.state:
                self.state = commit.after
                for table in commit.changes:
                    self._results[table].clear()
        if self.state != state or not state:
            self.state = state
            for results in self._results.values():
                results.clear()
