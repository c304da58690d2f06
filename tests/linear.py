"""The CPU time for input of a peer, as a ratio: n bytes may cost little more than twice what n/2 bytes cost.

Times below `NOTICEABLE_S` pass: they are too short to compare.
"""

import gc
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec import Struct

NOTICEABLE_S = 0.002
RATIO_MAX = 3.0
"""The time of n bytes divided by that of n/2: 2 if it is linear, 4 if it is quadratic."""

HARMLESS_S = 0.0001
HARMLESS_MAX = 40
"""The time of a request divided by that of a harmless one of the same length, which counts as at least `HARMLESS_S`."""

TRIES = 3
"""The number of measurements that all have to fail: a busy machine disturbs some."""


class Input(Struct, frozen=True):
    """A text of any length: a prefix, a unit repeated, and, over its second half, a suffix repeated."""

    begin: bytes
    unit: bytes
    tail: bytes = b""

    def make(self, size: int) -> bytes:
        repeated = size // 2 if self.tail else size
        text = self.begin + self.unit * (repeated // len(self.unit) + 1)
        return (text[:repeated] + self.tail * size)[:size]


def measure(work: Callable[[bytes], object], text: bytes, times: int = 1) -> float:
    """Return the least CPU time of `times` runs, in seconds."""
    least = float("inf")
    for _ in range(times):
        began = time.thread_time()
        work(text)
        least = min(least, time.thread_time() - began)
    return least


def check_linear(
    work: Callable[[bytes], object], inputs: Iterable[Input], size: int, *, harmless_max: float = 0
) -> None:
    """Check that the CPU time is linear, and at most `harmless_max` times that of harmless text, unless that is 0."""
    harmless_s = max(measure(work, b"a" * size, TRIES), HARMLESS_S)
    gc.disable()
    try:
        for one in inputs:
            if measure(work, one.make(size)) > NOTICEABLE_S:
                assert any(is_linear(work, one, size) for _ in range(TRIES)), one
                cost = measure(work, one.make(size), TRIES) / harmless_s
                assert not harmless_max or cost < harmless_max, (one, cost)
    finally:
        gc.enable()


def is_linear(work: Callable[[bytes], object], one: Input, size: int) -> bool:
    whole_s = measure(work, one.make(size), 3)
    # Where the text ends decides whether it is valid: the maximum of several lengths counts.
    half_s = max(measure(work, one.make(size // 2 - less), 3) for less in range(4))
    return whole_s < max(RATIO_MAX * half_s, NOTICEABLE_S)


def quietly(work: Callable[[bytes], object], *errors: type[Exception]) -> Callable[[bytes], None]:
    """Return work that ignores these errors."""

    def run(text: bytes) -> None:
        with suppress(*errors):
            work(text)

    return run
