"""Expensive work for requests, done for clients in turn: encoding and compressing, reading many posts or changes."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from twisted.internet.interfaces import IReactorTime

from postd.auth.credentials import run_to_completion
from postd.fair_queue import FairSemaphore, FairTurns

WAITING_MAX = 1024
"""How many requests may wait for a turn; further ones are refused."""

WAITING_FOR_THREAD_MAX = 16
"""How many texts may wait to be compressed in the thread. Each may have a mebibyte."""

T = TypeVar("T")


class FairWork:
    """The expensive work of a process.

    Attributes:
        clock: the reactor's.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self.clock = clock
        self._turns = FairTurns(clock, max_waiting=WAITING_MAX)
        self._thread = FairSemaphore(1, max_waiting=WAITING_FOR_THREAD_MAX)

    def turn(self, client: str) -> AbstractAsyncContextManager[None]:
        """Return a context manager that waits for a turn of a client on the reactor's thread (`FairTurns.turn`)."""
        return self._turns.turn(client)

    async def run_alone(self, client: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work that uses a thread, when it is the client's turn; no other such work runs at the same time.

        Once begun, it runs to its end, even if the caller is cancelled.

        Raises:
            ServerBusyError: too much work waits.
        """

        async def run() -> T:
            try:
                return await work()
            finally:
                self._thread.release()

        await self._thread.acquire(client)
        return await run_to_completion(run())
