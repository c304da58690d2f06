"""Notice the changes of posts that other processes commit to the same file.

After a commit that may have changed posts, each process of postd sets the times of the shared memory of SQLite's
write-ahead log, the "-shm" file beside the database. A process with listeners watches that file by inotify, which costs
nothing while nothing is committed. Other programs do not set the times, and there may be no inotify instance left
(`fs.inotify.max_user_instances`): so `look`, which is called each second, compares the header in the memory.
"""

import ctypes
import os
from collections.abc import Callable

from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from postd.reactor import IReactor
from postd.store.sqlite.commit_detector import CommitDetector

_IN_ATTRIB = 0x4
"""Permissions, owner, times or links of the file were changed (inotify(7))."""

_EVENTS_MAX_BYTES = 4096


@implementer(IReadDescriptor)
class ChangeWatch:
    """Watches one file until `stop`, while it has a function to call.

    The inotify instance is kept without one: the kernel may take milliseconds to close it.

    Args:
        detector: of the file.
        reactor: polls.

    Attributes:
        fault: why there is no inotify, empty if there is.
    """

    def __init__(self, detector: CommitDetector, reactor: IReactor) -> None:
        self._detector = detector
        self._changed: Callable[[], None] | None = None
        self._reactor = reactor
        self._state = b""
        self._descriptor = -1
        self.fault = ""

    def call(self, changed: Callable[[], None] | None) -> None:
        """Call a function after later commits that may have changed posts, of this process, too; None: call none."""
        self._changed = changed
        if changed is None:
            self._reactor.removeReader(self)
            return
        self._state = self._detector.read()
        self._begin()

    def _begin(self) -> None:
        try:
            if self._descriptor < 0:
                self._descriptor = _watch(self._detector.descriptor)
        except OSError as error:
            self.fault = str(error.strerror)
        else:
            self.fault = ""
            self._reactor.addReader(self)

    def look(self) -> None:
        """Notice a commit since the last one that was noticed."""
        if self.fault and self._changed is not None:
            self._begin()
        state = self._detector.read()
        if state != self._state and self._changed is not None:
            self._state = state
            self._changed()

    def stop(self) -> None:
        if self._descriptor >= 0:
            self._reactor.removeReader(self)
            os.close(self._descriptor)
            self._descriptor = -1

    # Called by the reactor

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return "inotify"

    def doRead(self) -> None:
        os.read(self._descriptor, _EVENTS_MAX_BYTES)
        self.look()

    def connectionLost(self, _reason: Failure) -> None:
        """Called when the reactor has stopped."""


def _watch(descriptor: int) -> int:
    """Return an inotify instance that watches the times of an open file.

    Raises:
        OSError: there can be none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    watching: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if watching < 0:
        raise _last_error()
    # By its descriptor: another file may be at its path by now.
    if libc.inotify_add_watch(watching, b"/proc/self/fd/%d" % descriptor, _IN_ATTRIB) < 0:
        error = _last_error()
        os.close(watching)
        raise error
    return watching


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
