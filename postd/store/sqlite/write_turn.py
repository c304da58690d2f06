"""A fair queue of the processes that write to one file.

A process that finds SQLite's lock taken sleeps, longer each time, up to a tenth of a second. Against a process that
takes the lock again at once it never gets it: of four busy processes one did all writes. So a process first queues:
the places of the queue are bytes of the file, each locked by one process at a time. A process takes the last place,
moves up as the places before it become free, and writes when it has the first. The order is kept, and without other
processes the first place is free at once.

The queue is for fairness only; SQLite's lock still protects the file. A process that does not move up for some seconds,
because one before it is suspended for example, proceeds without its turn.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from postd.store.sqlite.file_locks import LockBytes, SharedFile

TURN_MAX_S = 2.5
"""Timeout of a turn: half of what a write may wait, so that time is left for SQLite's lock."""

_AFTER_TIMEOUT_MAX_S = 0.1
"""Timeout after one that has expired: long enough normally, and short while a process is stuck."""

_POLL_EVERY_S = 0.0001
"""The kernel can wait for a lock, but not with a timeout, so the lock is polled."""

_PLACES = 8
"""Length of the queue; with more processes, chance decides which one gets the last place."""

_ALL = LockBytes(0, _PLACES)
_ALL_BUT_FIRST = LockBytes(1, _PLACES - 1)
_PLACE = [LockBytes(place) for place in range(_PLACES)]


class WriteTurn:
    """The queue of one file, which is open for writing.

    Attributes:
        descriptor: of the file.
    """

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        self.descriptor = file.descriptor
        self._timeout_s = TURN_MAX_S

    @contextmanager
    def turn(self, *, may_wait: bool = True) -> Iterator[float | None]:
        """Wait for a turn, and hold it within; the value is how long it waited, in seconds.

        After a timeout the block runs without a turn: SQLite's lock protects it anyway. Without `may_wait`, the value
        is None if another process has a turn or waits for one.
        """
        try:
            yield self._enter(may_wait=may_wait)
        finally:
            self._file.lock(_ALL.free)

    def _enter(self, *, may_wait: bool) -> float | None:
        if self._file.lock(_ALL.exclusive):
            self._file.lock(_ALL_BUT_FIRST.free)
            self._timeout_s = TURN_MAX_S
            return 0
        if not may_wait:
            return None
        began = time.monotonic()
        got_turn = self._move_up(began + self._timeout_s)
        self._timeout_s = TURN_MAX_S if got_turn else _AFTER_TIMEOUT_MAX_S
        return time.monotonic() - began

    def _move_up(self, deadline: float) -> bool:
        behind = None
        for place in reversed(_PLACE):
            if not self._wait(place, deadline):
                self._file.lock(_ALL.free)
                return False
            if behind is not None:
                self._file.lock(behind.free)
            behind = place
        return True

    def _wait(self, place: LockBytes, deadline: float) -> bool:
        while not self._file.lock(place.exclusive):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_EVERY_S)
        return True
