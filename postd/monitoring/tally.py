"""Counters of one server process, and their sum over several processes.

A request costs one dictionary lookup and one increment: prometheus-client's own counters, each with a lock and a lookup
of its labels, would take a tenth of a request's time.
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
"""Upper bounds of the buckets of request durations, in seconds; one more bucket counts longer ones."""

STORE_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the buckets of store operations, in seconds."""

METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"})
"""Methods that are counted under their own name."""

OTHER = b"other"
"""The label of all other methods: clients could fill the memory with made-up names."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Labels = tuple[str, ...]
"""The key of a family (`postd.monitoring.exposition.FAMILIES`), then the values of its labels."""


class Metrics(Struct):
    """Metrics at one moment, of one process or of several.

    Attributes:
        counters: totals that only grow; they remain when their process has ended.
        histograms: the count of each bucket, then the sum in seconds; they remain, too.
        gauges: current values; the values of several processes are added up.
        maxima: current values; the largest of several processes counts.
    """

    counters: dict[Labels, float] = field(default_factory=dict)
    histograms: dict[Labels, list[float]] = field(default_factory=dict)
    gauges: dict[Labels, float] = field(default_factory=dict)
    maxima: dict[Labels, float] = field(default_factory=dict)

    def add(self, other: Self) -> None:
        """Add the metrics of another process."""
        self.add_cumulative(other)
        for labels, value in other.gauges.items():
            self.gauges[labels] = self.gauges.get(labels, 0) + value
        for labels, value in other.maxima.items():
            self.maxima[labels] = max(self.maxima.get(labels, value), value)

    def add_cumulative(self, other: Self) -> None:
        """Add the metrics of another process that remain when it has ended: counters and histograms."""
        for labels, count in other.counters.items():
            self.counters[labels] = self.counters.get(labels, 0) + count
        for labels, theirs in other.histograms.items():
            ours = self.histograms.get(labels)
            self.histograms[labels] = (
                list(theirs) if ours is None else [a + b for a, b in zip(ours, theirs, strict=True)]
            )


RequestLabels = tuple[str | None, bytes, int, str | None, str | None]
"""Route, method, status, authentication scheme and authentication outcome of a request."""


class Tally:
    """Counters of this process."""

    def __init__(self) -> None:
        self._requests: dict[RequestLabels, list[float]] = {}
        self._store = {operation: [0.0] * (len(STORE_BOUNDS_S) + 2) for operation in ("read", "write")}
        self._store_errors = dict.fromkeys(self._store, 0)
        self.connections_refused = 0

    def record_request(self, labels: RequestLabels, took_s: float) -> None:
        """Count a request that was answered, or abandoned by its client."""
        histogram = self._requests.get(labels)
        if histogram is None:
            if labels[1] not in METHODS:
                labels = (labels[0], OTHER, *labels[2:])
            histogram = self._requests.setdefault(labels, [0.0] * (len(REQUEST_BOUNDS_S) + 2))
        histogram[bisect_left(REQUEST_BOUNDS_S, took_s)] += 1
        histogram[-1] += took_s

    def record_store(self, operation: str, took_s: float, *, failed: bool) -> None:
        """Count an operation of the store, `"read"` or `"write"`."""
        histogram = self._store[operation]
        histogram[bisect_left(STORE_BOUNDS_S, took_s)] += 1
        histogram[-1] += took_s
        if failed:
            self._store_errors[operation] += 1

    def metrics(self, *, full: bool = True) -> Metrics:
        """Return the metrics of this process; with `full` also its memory and descriptors, from the kernel."""
        metrics = Metrics()
        for (route, method, status, scheme, outcome), histogram in self._requests.items():
            where = (route or "none", method.decode("ascii"))
            count = sum(histogram[:-1])
            counted: list[Labels] = [("requests", *where, str(status), scheme or "none")]
            if scheme is not None and outcome is not None:
                counted.append(("auth", scheme, outcome))
            for labels in counted:
                metrics.counters[labels] = metrics.counters.get(labels, 0) + count
            metrics.add_cumulative(Metrics(histograms={("request_duration", *where): histogram}))
        for operation, histogram in self._store.items():
            metrics.histograms["store", operation] = list(histogram)
            metrics.counters["store_errors", operation] = self._store_errors[operation]
        metrics.counters["connections_refused",] = self.connections_refused
        metrics.counters["cpu",] = time.process_time()
        if full:
            with suppress(OSError, ValueError):  # /proc is not mounted
                metrics.gauges["memory",] = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
                metrics.gauges["fds",] = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only the count
        return metrics


def encode(metrics: Metrics) -> dict[str, Sequence[tuple[Labels, object]]]:
    """Return metrics as JSON can represent them: lists instead of objects with tuples as keys."""
    return {name: list(getattr(metrics, name).items()) for name in Metrics.__struct_fields__}


def decode(encoded: dict[str, Sequence[tuple[Sequence[str], object]]]) -> Metrics:
    """Return the metrics that `encode` was given."""
    made: dict[str, Any] = {name: {tuple(labels): value for labels, value in encoded[name]} for name in encoded}
    return Metrics(**made)
