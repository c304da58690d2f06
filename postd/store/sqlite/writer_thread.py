"""The thread for writes to an SQLite file that may wait for the disk or for a lock."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from postd.reactor import IReactor

T = TypeVar("T")


class WriterThread:
    """A thread that runs functions one after the other. Cheaper for each batch than a thread pool of one.

    Attributes:
        pending: how many functions are queued or running.
    """

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.pending = 0
        self._thread: Thread | None = None

    def start(self) -> None:
        # Not in the constructor: twistd forks in between, and since Python 3.13 a thread object starts only in the
        # process that created it.
        self._thread = Thread(target=self._work, name="postd-writer")
        self._thread.start()

    def run(self, function: Callable[..., T], *args: object) -> Deferred[T]:
        """Run a function in the thread; the Deferred fires with its result, on the reactor's thread."""
        result: Deferred[T] = Deferred()
        self.pending += 1

        def job() -> None:
            try:
                outcome: T | Failure = function(*args)
            except BaseException:  # noqa: BLE001 - the Deferred fails with it
                outcome = Failure()
            self._reactor.callFromThread(self._end, result, outcome)

        self._jobs.put(job)
        return result

    def _end(self, result: Deferred[T], outcome: T | Failure) -> None:
        self.pending -= 1
        result.callback(outcome)

    def stop(self) -> None:
        """End the thread after the functions that are queued; blocks until then."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
