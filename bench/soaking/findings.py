"""The findings of a soak test: counts of responses, latencies, and failed checks."""

import math
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median, quantiles

from bench.soaking.wire import Response

REFUSALS_OF_A_VERSION = frozenset({501, 505})
"""The 5xx statuses about a request, not the server: 501 and 505. Only requests that cause them may get them."""

BUSY = 503
"""The status for a client that has used up its share; only those that do so may get it."""

CROWD_OVER_S = 3.0
"""The time after a flood of connections in which new ones may still be refused."""


class BrokenPromiseError(Exception):
    """A check of the server's behavior failed; `str()` is the observed behavior.

    Args:
        what: the text for `str()`.
        about: the case, if a bad client has several.
        crowded: whether a flood of connections may be the cause.
    """

    def __init__(self, what: str, about: str = "", *, crowded: bool = False) -> None:
        super().__init__(what)
        self.about = about
        self.crowded = crowded


class Findings:
    """The findings so far."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.good_ms: dict[str, array[float]] = defaultdict(lambda: array("f"))
        """Latencies of good clients by operation."""
        self.bad: Counter[str] = Counter()
        """The number of completed runs of each kind of bad client."""
        self.changes: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        """Counts of event streams and of events."""
        self.lag_ms = array("f")
        """Delays of the client's own event loop, which are a part of the latencies."""
        self._broken: dict[str, list[str]] = defaultdict(list)
        self._recent_ms: array[float] = array("f")
        self._crowded_until = 0.0

    @property
    def good_requests(self) -> int:
        return sum(map(len, self.good_ms.values()))

    def forget_figures(self) -> None:
        """Reset all counts; failed checks are kept."""
        self.statuses.clear()
        self.good_ms.clear()
        self.lag_ms = array("f")

    def broke(self, promise: str, example: str) -> None:
        """Record a failed check."""
        self._broken[promise].append(example)

    def lines(self) -> list[str]:
        """Return a line for each failed check."""
        return [
            f"{promise}: {examples[0]}" + (f" (and {len(examples) - 1} more)" if len(examples) > 1 else "")
            for promise, examples in self._broken.items()
        ]

    def note_good(self, what: str, answer: Response) -> None:
        """Count a response to a good client."""
        self._count(answer.status, f"{what} was answered with", answer.body)
        self.good_ms[what].append(answer.took_s * 1000)
        self._recent_ms.append(answer.took_s * 1000)

    def note_bad(self, what: str, status: int, *, greedy: bool = False) -> None:
        """Count a response to a bad client; `greedy` is whether the client may have used up its share."""
        if status in REFUSALS_OF_A_VERSION or (greedy and status == BUSY):
            self.statuses[status] += 1
        else:
            self._count(status, f"{what} was answered with", b"")

    def _count(self, status: int, what: str, body: bytes) -> None:
        self.statuses[status] += 1
        if status >= 500:
            self.broke("no response is a 5xx", f"{what} {status} {body[:120]!r}")

    def expect(self, what: str, answer: Response, *statuses: int) -> bool:
        """Return whether a response has one of the expected statuses; record a failed check if not."""
        if answer.status in statuses:
            return True
        wanted = " or ".join(map(str, statuses))
        self.broke("each response is right", f"{what}: expected {wanted}, got {answer.status}: {answer.body[:120]!r}")
        return False

    def take_recent_ms(self) -> Sequence[float]:
        """Return the latencies of good clients since the last call."""
        recent, self._recent_ms = self._recent_ms, array("f")
        return recent

    def begin_crowd(self) -> None:
        """Allow refused connections until `end_crowd` and a while after it."""
        self._crowded_until = math.inf

    def end_crowd(self) -> None:
        self._crowded_until = time.monotonic() + CROWD_OVER_S

    @property
    def crowded(self) -> bool:
        return time.monotonic() < self._crowded_until


def middle(values: Sequence[float]) -> float:
    """Return the median, 0 without values."""
    return median(values) if values else 0.0


def percentile_99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[-1] if len(values) > 1 else middle(values)
