"""What a process counts. The numbers of several processes are added up by who has them all.

A request costs one look into a dictionary and one step of a count: prometheus-client's own counters, each with a lock
and a look for its labels, would take a tenth of a request's time.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, field

REQUEST_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Up to how many seconds a request of each bucket has taken; what took longer is in one more."""

STORE_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""The same for what is asked of the store."""

METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"})
"""Those that have a name of their own; a client may make up any other."""

OTHER = b"other"
"""What all others are called: clients could fill the memory with names."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Labels = tuple[str, ...]
"""What a number is of: the name of the family, then the values of its labels."""


class Numbers(Struct):
    """Numbers as they stood at one moment, of one process or of several.

    Attributes:
        counts: what only grows. It stays when its process has ended.
        spreads: how many took how long, likewise: a count for each bucket, and all their seconds added up.
        amounts: what there is of something now; of several processes, all together.
        extremes: what of several processes is told of the one that has most.
    """

    counts: dict[Labels, float] = field(default_factory=dict)
    spreads: dict[Labels, list[float]] = field(default_factory=dict)
    amounts: dict[Labels, float] = field(default_factory=dict)
    extremes: dict[Labels, float] = field(default_factory=dict)

    def add(self, other: Self) -> None:
        """Add what another process has counted."""
        self.add_lasting(other)
        for labels, amount in other.amounts.items():
            self.amounts[labels] = self.amounts.get(labels, 0) + amount
        for labels, most in other.extremes.items():
            self.extremes[labels] = max(self.extremes.get(labels, most), most)

    def add_lasting(self, other: Self) -> None:
        """Add of it what stays when that process has ended."""
        for labels, count in other.counts.items():
            self.counts[labels] = self.counts.get(labels, 0) + count
        for labels, spread in other.spreads.items():
            mine = self.spreads.get(labels)
            self.spreads[labels] = list(spread) if mine is None else [a + b for a, b in zip(mine, spread, strict=True)]


_Asked = tuple[Any, ...]
"""A request's route, method, status, scheme, and what became of its credentials."""


class Tally:
    """Counts in this process."""

    def __init__(self) -> None:
        self._requests: dict[_Asked, list[float]] = {}
        self._store = {operation: [0.0] * (len(STORE_BOUNDS_S) + 2) for operation in ("read", "write")}
        self._store_errors = dict.fromkeys(self._store, 0)
        self.connections_refused = 0

    def note_request(self, asked: _Asked, took_s: float) -> None:
        """Count a request that was answered, or given up."""
        spread = self._requests.get(asked)
        if spread is None:
            route, method, *rest = asked
            known = route, method if method in METHODS else OTHER, *rest
            spread = self._requests.setdefault(known, [0.0] * (len(REQUEST_BOUNDS_S) + 2))
        spread[bisect_left(REQUEST_BOUNDS_S, took_s)] += 1
        spread[-1] += took_s

    def note_store(self, operation: str, took_s: float, *, failed: bool) -> None:
        """Count what was asked of the store: `"read"` or `"write"`."""
        spread = self._store[operation]
        spread[bisect_left(STORE_BOUNDS_S, took_s)] += 1
        spread[-1] += took_s
        if failed:
            self._store_errors[operation] += 1

    def numbers(self, *, whole: bool = True) -> Numbers:
        """Return what was counted until now; for the `whole`, what the kernel knows of this process, too."""
        numbers = Numbers()
        for (route, method, status, scheme, outcome), spread in self._requests.items():
            took = ("took", route or "none", method.decode("ascii"))
            asked = ("asked", *took[1:], str(status), scheme or "none")
            many = sum(spread[:-1])
            told: list[tuple[Labels, float]] = [(asked, many)]
            if scheme is not None and outcome is not None:
                told.append((("auth", scheme, outcome), many))
            for labels, count in told:
                numbers.counts[labels] = numbers.counts.get(labels, 0) + count
            numbers.add_lasting(Numbers(spreads={took: spread}))
        for operation, spread in self._store.items():
            numbers.spreads["store", operation] = list(spread)
            numbers.counts["store_errors", operation] = self._store_errors[operation]
        numbers.counts["connections_refused",] = self.connections_refused
        numbers.counts["cpu",] = time.process_time()
        if whole:
            numbers.amounts.update(_of_this_process())
        return numbers


def _of_this_process() -> dict[Labels, float]:
    amounts: dict[Labels, float] = {}
    with suppress(OSError, ValueError):  # no Linux
        amounts["memory",] = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
        amounts["fds",] = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many
    return amounts


def encode(numbers: Numbers) -> dict[str, Sequence[tuple[Labels, object]]]:
    """Return what JSON can have in it."""
    return {name: list(getattr(numbers, name).items()) for name in Numbers.__struct_fields__}


def decode(encoded: dict[str, Sequence[tuple[Sequence[str], object]]]) -> Numbers:
    """Return what was encoded."""
    made: dict[str, Any] = {name: {tuple(labels): value for labels, value in encoded[name]} for name in encoded}
    return Numbers(**made)
