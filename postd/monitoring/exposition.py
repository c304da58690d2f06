"""Numbers as Prometheus reads them: names, units and words (Prometheus: "Metric and label naming")."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal

from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from postd.monitoring.tally import REQUEST_BOUNDS_S, STORE_BOUNDS_S, Labels, Numbers

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode("ascii")


class Family(Struct, frozen=True):
    """A family of numbers: its name as Prometheus has it, what it is, and the names of its labels."""

    name: str
    words: str
    labels: tuple[str, ...] = ()
    kind: Literal["counter", "gauge", "histogram"] = "gauge"
    bounds: Sequence[float] = ()


FAMILIES = {
    "asked": Family(
        "postd_http_requests_total",
        "Requests that were answered, or given up by their clients (status 499).",
        ("route", "method", "status", "scheme"),
        "counter",
    ),
    "took": Family(
        "postd_http_request_duration_seconds",
        "From the end of a request's head to the end of its answer.",
        ("route", "method"),
        "histogram",
        REQUEST_BOUNDS_S,
    ),
    "auth": Family(
        "postd_auth_total",
        "What became of credentials: accepted, refused, stale, forbidden, throttled, unavailable.",
        ("scheme", "outcome"),
        "counter",
    ),
    "store": Family(
        "postd_store_duration_seconds",
        "How long the store took, waiting for its turn and for the disk included.",
        ("operation",),
        "histogram",
        STORE_BOUNDS_S,
    ),
    "store_errors": Family(
        "postd_store_errors_total", "What the store did not do: it was away, locked or full.", ("operation",), "counter"
    ),
    "connections": Family("postd_connections", "Connections of clients that are open."),
    "connections_refused": Family(
        "postd_connections_refused_total",
        "Connections refused: over [limits] connections, or half of it from an address.",
        (),
        "counter",
    ),
    "listeners": Family("postd_event_listeners", "Clients that listen to /post/events."),
    "keys": Family("postd_bearer_keys", "Keys held of an issuer of tokens.", ("issuer",)),
    "keys_age": Family("postd_bearer_keys_age_seconds", "Since when the oldest keys in use are held.", ("issuer",)),
    "ready": Family("postd_ready", "1 if /readyz says so."),
    "workers": Family("postd_workers", "Processes that serve."),
    "worker_ends": Family("postd_worker_ends_total", "Workers that ended without being told to.", (), "counter"),
    "reloads": Family("postd_reloads_total", "SIGHUPs, by whether what was new was taken.", ("outcome",), "counter"),
    "reload_good": Family("postd_last_reload_good", "0 if what the last SIGHUP found was refused."),
    "not_after": Family(
        "postd_tls_certificate_not_after_seconds",
        "When the certificate of a listener ends, in seconds since the epoch.",
        ("listener",),
    ),
    "info": Family("postd_info", "What runs.", ("version", "store")),
    "cpu": Family("process_cpu_seconds_total", "Processor time of all processes.", (), "counter"),
    "memory": Family("process_resident_memory_bytes", "Resident memory of all processes, added up."),
    "fds": Family("process_open_fds", "Open file descriptors of all processes."),
    "started": Family("process_start_time_seconds", "When the first process started, in seconds since the epoch."),
}
"""By the first of the labels that the numbers have."""


def encode(numbers: Numbers) -> bytes:
    """Return numbers in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Told(numbers))
    return generate_latest(registry)


class _Told(Collector):
    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def collect(self) -> Iterator[Metric]:
        single = {**self._numbers.counts, **self._numbers.amounts, **self._numbers.extremes}
        for key, family in FAMILIES.items():
            if family.kind == "histogram":
                yield _histogram(family, {k[1:]: v for k, v in self._numbers.spreads.items() if k[0] == key})
                continue
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name, family.words, labels=family.labels)
            for labels, value in single.items():
                if labels[0] == key:
                    metric.add_metric(labels[1:], value)
            yield metric


def _histogram(family: Family, spreads: dict[Labels, list[float]]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.words, labels=family.labels)
    bounds = [*map(str, family.bounds), "+Inf"]
    for labels, spread in spreads.items():
        metric.add_metric(labels, list(zip(bounds, accumulate(spread[:-1]), strict=True)), sum_value=spread[-1])
    return metric
