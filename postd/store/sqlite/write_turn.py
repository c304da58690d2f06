"""Turns at writing, among the processes that have one file open.

SQLite lets whoever finds its lock taken sleep, longer each time, up to a tenth of a second. Against a process that
takes the lock again at once nobody ever wins by that: of four processes that have always something to write one wrote
all. So a process first goes through a turnstile: places one behind the other, each a byte of the file that one process
at a time can lock. Whoever comes takes the last place, moves up as the places before it are left, and writes when it
has the first. Nobody is overtaken, and where nobody else is the first is had at once.

It is a courtesy and no protection, which stays SQLite's business: who does not get on here for some seconds, because a
process before it has been stopped, say, goes past.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from postd.store.sqlite.file_locks import LockBytes, SharedFile

TURN_MAX_S = 2.5
"""How long a turn is waited for: half of what a write may wait in all, so that SQLite's lock has its chance, too."""

_AFTER_THAT_MAX_S = 0.1
"""How long it is if the last one did not come: long enough where all goes well, and short where a process is stuck."""

_LEAVING_MAX_S = 0.25
"""How long others that leave the file are waited for; each takes some milliseconds."""

_LOOK_AGAIN_AFTER_S = 0.0001
"""There is a lock that is waited for in the kernel, but none that is waited for no longer than a given time."""

_PLACES = 8
"""One writes and the others stand in order; where there are more processes than that, chance decides who comes in."""

_ALL = LockBytes(0, _PLACES)
_ALL_BUT_FIRST = LockBytes(1, _PLACES - 1)
_PLACE = [LockBytes(place) for place in range(_PLACES)]
_EXIT = LockBytes(_PLACES)


class WriteTurn:
    """The turns at one file.

    Args:
        path: the database, which SQLite has opened already.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._file = SharedFile(path, os.O_RDWR)
        self._most_s = TURN_MAX_S

    @contextmanager
    def turn(self) -> Iterator[float]:
        """Wait for one's turn, and have it within; tells how long that was waited for, in seconds.

        It may not have come then: whoever writes still waits for SQLite's lock.
        """
        try:
            yield self._enter()
        finally:
            self._file.lock(_ALL.free)

    @contextmanager
    def leaving(self) -> Iterator[bool]:
        """Be alone in leaving the file for another one; tells whether one is, after waiting a moment for that."""
        deadline = time.monotonic() + _LEAVING_MAX_S
        try:
            yield self._wait(_EXIT, deadline)
        finally:
            self._file.lock(_EXIT.free)

    def close(self) -> None:
        """Let go of the file; only once SQLite has closed it."""
        self._file.close()

    def _enter(self) -> float:
        if self._file.lock(_ALL.exclusive):
            self._file.lock(_ALL_BUT_FIRST.free)
            self._most_s = TURN_MAX_S
            return 0
        began = time.monotonic()
        came = self._move_up(began + self._most_s)
        self._most_s = TURN_MAX_S if came else _AFTER_THAT_MAX_S
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
            time.sleep(_LOOK_AGAIN_AFTER_S)
        return True
