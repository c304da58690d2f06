"""What a soak keeps of what it sees: what was answered how often, how long it took, and which promises were broken."""

import math
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median, quantiles

from bench.soaking.wire import Response

REFUSALS_OF_A_VERSION = frozenset({501, 505})
"""The two of the 5xx that speak of the request, not of the server: only clients that ask for them may get them."""

CROWD_OVER_S = 3.0
"""For how long after a flood of connections a new one may still be refused."""


class BrokenPromiseError(Exception):
    """The server has not done what it has to; `str()` of it says what it has done.

    Args:
        what: for `str()`.
        about: which of several things that the bad client does it is about.
        crowded: whether this may be because there were too many others.
    """

    def __init__(self, what: str, about: str = "", *, crowded: bool = False) -> None:
        super().__init__(what)
        self.about = about
        self.crowded = crowded


class Findings:
    """What was found so far."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.good_ms: dict[str, array[float]] = defaultdict(lambda: array("f"))
        """What good clients waited for an answer, by what they did."""
        self.bad: Counter[str] = Counter()
        """How often each kind of bad client has come to its end."""
        self.changes: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        """What listeners have heard of changes."""
        self.lag_ms = array("f")
        """How late our own loop was: what good clients waited for may be ours."""
        self._broken: dict[str, list[str]] = defaultdict(list)
        self._recent_ms: array[float] = array("f")
        self._crowded_until = 0.0

    @property
    def good_requests(self) -> int:
        return sum(map(len, self.good_ms.values()))

    def forget_figures(self) -> None:
        """Count from here on; what was broken stays."""
        self.statuses.clear()
        self.good_ms.clear()
        self.lag_ms = array("f")

    def broke(self, promise: str, example: str) -> None:
        """Note that a promise was broken."""
        self._broken[promise].append(example)

    def lines(self) -> list[str]:
        """Return a line for each promise that was broken."""
        return [
            f"{promise}: {examples[0]}" + (f" (and {len(examples) - 1} more)" if len(examples) > 1 else "")
            for promise, examples in self._broken.items()
        ]

    def note_good(self, what: str, answer: Response) -> None:
        """Count an answer to a good client."""
        self._count(answer.status, f"{what} was answered with", answer.body)
        self.good_ms[what].append(answer.took_s * 1000)
        self._recent_ms.append(answer.took_s * 1000)

    def note_bad(self, what: str, status: int) -> None:
        """Count an answer to a bad client."""
        if status in REFUSALS_OF_A_VERSION:
            self.statuses[status] += 1
        else:
            self._count(status, f"{what} was answered with", b"")

    def _count(self, status: int, what: str, body: bytes) -> None:
        self.statuses[status] += 1
        if status >= 500:
            self.broke("no answer is a 5xx", f"{what} {status} {body[:120]!r}")

    def expect(self, what: str, answer: Response, *statuses: int) -> bool:
        """Tell whether an answer has one of the statuses that are right; note it if not."""
        if answer.status in statuses:
            return True
        wanted = " or ".join(map(str, statuses))
        self.broke("each answer is the right one", f"{what} got {answer.status} for {wanted}: {answer.body[:120]!r}")
        return False

    def take_recent_ms(self) -> Sequence[float]:
        """Return what good clients waited since the last call."""
        recent, self._recent_ms = self._recent_ms, array("f")
        return recent

    def begin_crowd(self) -> None:
        """Say that from now on new connections may be refused."""
        self._crowded_until = math.inf

    def end_crowd(self) -> None:
        self._crowded_until = time.monotonic() + CROWD_OVER_S

    @property
    def crowded(self) -> bool:
        return time.monotonic() < self._crowded_until


def middle(values: Sequence[float]) -> float:
    """Return the median, 0 of nothing."""
    return median(values) if values else 0.0


def percentile_99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[-1] if len(values) > 1 else middle(values)
