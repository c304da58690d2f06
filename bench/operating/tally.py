"""What has become of each request, and how long those took that were answered."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from bench.soaking.findings import middle, percentile_99


class Outcome(Enum):
    """What a request came to. The client sends each one once."""

    ANSWERED = "answered as it should be"
    UNAVAILABLE = "503"
    WRONG = "another answer"
    REFUSED = "no connection"
    """Nothing was sent."""
    CROSSED = "crossed"
    """Sent on a connection that was not new, when the server had closed it already: what HTTP/1.1 cannot rule out
    (RFC 9112 §9.5). The end of the connection was there directly after the request was sent."""
    LOST_FIRST = "lost, the first on its connection"
    LOST_LATER = "lost, a later one"
    """Accepted, and neither of the above: the connection was closed or cut before the first byte of an answer."""
    DOOMED = "with the killed worker"
    """Lost, on a connection of a worker that was killed."""
    BROKEN = "half an answer, or none in time"


LOST = (Outcome.LOST_FIRST, Outcome.LOST_LATER, Outcome.BROKEN)
"""What must not be, whatever happens."""


class Waited(Struct, frozen=True):
    """Milliseconds from when a request was due to the end of its answer, of those that were due within some time."""

    answers: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, ms: Iterable[float]) -> "Waited":
        values = array("d", ms)
        return cls(len(values), middle(values), percentile_99(values), max(values, default=0.0))


class Tally:
    """What was counted so far; times are those of the event loop."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()
        """By method and status: what the server must have counted, too."""
        self.closed_idle = 0
        """Kept connections that were found closed before anything was sent on them."""
        self.examples: dict[Outcome, list[str]] = defaultdict(list)
        self.late_ms = array("d")
        """How late the client itself was."""
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
        """Tell of the requests that were due in a span of time."""
        return Waited.of(ms for due_s, ms in self._answered if from_s <= due_s < until_s)
