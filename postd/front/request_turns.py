"""The requests that are processed in one turn of the reactor, by client."""

import sys
from typing import Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from postd.fair_queue import FairQueue

TURN_COST = 100_000
"""The cost of the requests that are processed in one turn of the reactor, some five milliseconds."""

REQUEST_COST = 400
"""The cost of a request in addition to its length in bytes. The work for an input grows in proportion to its length;
measuring its time would cost more than counting."""

LOW_COST = TURN_COST // 2
"""With less left, the next turn is scheduled, so that the requests of several short turns do not wait."""

_log = Logger()


class Waiting(Protocol):
    """A connection with a request to process."""

    def process_next(self) -> None:
        """Process its next request."""


class RequestTurns:
    """Limits the requests that are processed in one turn of the reactor; further requests wait for a later turn.

    They wait by client, each connection for one request in each turn: a client that sends many requests, or expensive
    requests, delays another client by a single request.

    Attributes:
        left: the cost that is left in this turn. A connection processes a request at once as long as it is positive,
            subtracts the length of its input and `REQUEST_COST` for each request, and calls `schedule` at `LOW_COST`.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self.left = TURN_COST
        self._clock = clock
        self._is_scheduled = False
        self._waiting: FairQueue[Waiting] = FairQueue(sys.maxsize)  # the number of connections is limited

    def add(self, client: str, connection: Waiting) -> None:
        """Let a connection process its next request in a later turn, once."""
        self._waiting.add(client, connection)
        self.schedule()

    def discard(self, client: str, connection: Waiting) -> None:
        """Let a connection wait no longer; it is lost, perhaps."""
        self._waiting.discard(client, connection)

    def schedule(self) -> None:
        """Begin another turn in the next turn of the reactor."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.callLater(0, self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled = False
        self.left = TURN_COST
        for _ in range(len(self._waiting)):
            if self.left <= 0 or not self._waiting:
                break
            try:
                self._waiting.take().process_next()
            except Exception:  # noqa: BLE001 - the other requests must still be processed
                _log.failure("a request could not be processed")
        if self._waiting:
            self.schedule()
