"""The outcomes of requests, and the latencies of responses."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from bench.soaking.findings import middle, percentile_99


class Outcome(Enum):
    """The outcome of a request, which is sent only once."""

    ANSWERED = "answered as expected"
    UNAVAILABLE = "503"
    WRONG = "unexpected response"
    REFUSED = "no connection"
    """Nothing was sent."""
    CROSSED = "crossed"
    """Sent on a kept connection that the server had already closed, which HTTP/1.1 cannot rule out (RFC 9112 §9.5): the
    end of the connection was received directly after the request was sent."""
    LOST_FIRST = "lost, the first on its connection"
    LOST_LATER = "lost, a later one"
    """Accepted, and neither of the above: the connection was closed or reset before the first byte of a response."""
    DOOMED = "lost with the killed worker"
    """Lost, on a connection of a worker that was killed."""
    BROKEN = "incomplete response, or none in time"


LOST = (Outcome.LOST_FIRST, Outcome.LOST_LATER, Outcome.BROKEN)
"""The outcomes that no scenario allows."""


class Waited(Struct, frozen=True):
    """Latencies of the requests of a span of time: milliseconds from when one was due to the end of its response."""

    answers: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, ms: Iterable[float]) -> "Waited":
        values = array("d", ms)
        return cls(len(values), middle(values), percentile_99(values), max(values, default=0.0))


class Tally:
    """The counts so far; times are those of the event loop."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()
        """Responses by method and status, to compare with the server's metrics."""
        self.closed_idle = 0
        """The number of kept connections that were found closed before a request was sent."""
        self.examples: dict[Outcome, list[str]] = defaultdict(list)
        self.late_ms = array("d")
        """The delays of the client itself."""
        self._answered: list[tuple[float, float]] = []

    def note_answer(self, method: str, status: int) -> None:
        self.answers[method, str(status)] += 1

    def note_latency(self, due_s: float, ended_s: float) -> None:
        self._answered.append((due_s, (ended_s - due_s) * 1000))

    def note(self, outcome: Outcome, what: str) -> None:
        self.outcomes[outcome] += 1
        if outcome is not Outcome.ANSWERED:
            self.examples[outcome].append(what)

    def waited(self, from_s: float, until_s: float) -> Waited:
        """Return the latencies of the requests that were due in a span of time."""
        return Waited.of(ms for due_s, ms in self._answered if from_s <= due_s < until_s)
