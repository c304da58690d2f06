"""Metrics for Prometheus: names, units and help texts (Prometheus: "Metric and label naming"), and text formats.

`postd.web.admin` chooses the format.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from postd.monitoring.tally import REQUEST_BOUNDS_S, STORE_BOUNDS_S, Metrics

ESCAPINGS: Mapping[bytes, bytes] = {
    b"allow-utf-8": b"allow-utf-8",
    b"allow-utf8": b"allow-utf-8",
    b"underscores": b"underscores",
    b"values": b"values",
}
"""The escaping schemes that leave the names of all metrics as they are, as a scraper and as a response names them."""


class Format(Struct, frozen=True):
    """A text format, by its media type and version (Prometheus: "Scrape protocol content negotiation")."""

    media_type: bytes
    version: bytes
    write: Callable[[Collector], bytes]

    def content_type(self, escaping: bytes) -> bytes:
        """Return the `Content-Type`; `escaping` is the scheme that the scraper asks for, empty without one."""
        content_type = b"%b; version=%b; charset=utf-8" % (self.media_type, self.version)
        if self.version != b"1.0.0":  # the earlier versions have no names to escape
            return content_type
        return b"%b; escaping=%b" % (content_type, ESCAPINGS.get(escaping, b"underscores"))


FORMATS = (
    Format(b"text/plain", b"0.0.4", generate_latest),
    Format(b"text/plain", b"1.0.0", generate_latest),
    Format(b"application/openmetrics-text", b"1.0.0", generate_openmetrics),
    Format(b"application/openmetrics-text", b"0.0.1", generate_openmetrics),
)
"""The formats; the first one is for scrapers that accept any, or none of them."""


class Family(Struct, frozen=True):
    """A metric family: its name and help text in Prometheus, the names of its labels, the bounds of a histogram.

    A family is a counter if its name ends in `_total`, a histogram if it has bounds, and a gauge otherwise.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: Sequence[float] = ()


FAMILIES = {
    "requests": Family(
        "postd_http_requests_total",
        "Requests that were answered, or abandoned by their clients (status 499).",
        ("route", "method", "status", "scheme"),
    ),
    "request_duration": Family(
        "postd_http_request_duration_seconds",
        "From the end of a request's head to the end of its response.",
        ("route", "method"),
        REQUEST_BOUNDS_S,
    ),
    "auth": Family(
        "postd_auth_total",
        "Outcomes of authentication: accepted, refused, stale, unproven, forbidden, throttled, unavailable.",
        ("scheme", "outcome"),
    ),
    "store": Family(
        "postd_store_duration_seconds",
        "Duration of store operations, including waiting for the writer lock and the disk.",
        ("operation",),
        STORE_BOUNDS_S,
    ),
    "store_errors": Family(
        "postd_store_errors_total",
        "Failed store operations: the store was unavailable, locked or full.",
        ("operation",),
    ),
    "connections": Family("postd_connections", "Open client connections."),
    "connections_refused": Family(
        "postd_connections_refused_total",
        "Connections refused: over [limits] connections, or over half of it from one address.",
    ),
    "event_listeners": Family("postd_event_listeners", "Open event streams of /post/events."),
    "keys": Family("postd_bearer_keys", "Keys held of a token issuer.", ("issuer",)),
    "keys_age": Family("postd_bearer_keys_age_seconds", "Age of the oldest key set in use of an issuer.", ("issuer",)),
    "ready": Family("postd_ready", "1 if /readyz answers 200."),
    "workers": Family("postd_workers", "Processes that accept connections."),
    "worker_ends": Family("postd_worker_ends_total", "Workers that ended unexpectedly."),
    "reloads": Family("postd_reloads_total", "Reloads (SIGHUP), by outcome.", ("outcome",)),
    "last_reload_good": Family("postd_last_reload_good", "0 if the last reload was refused."),
    "not_before": Family(
        "postd_tls_certificate_not_before_seconds",
        "Start of validity of the certificate of a listener, in seconds since the epoch.",
        ("listener",),
    ),
    "not_after": Family(
        "postd_tls_certificate_not_after_seconds",
        "Expiry time of the certificate of a listener, in seconds since the epoch.",
        ("listener",),
    ),
    "info": Family("postd_info", "Version and store of the server.", ("version", "store")),
    "cpu": Family("process_cpu_seconds_total", "Processor time of all processes."),
    "memory": Family("process_resident_memory_bytes", "Resident memory of all processes, added up."),
    "fds": Family("process_open_fds", "Open file descriptors of all processes."),
    "started": Family("process_start_time_seconds", "Start time of the first process, in seconds since the epoch."),
}
"""Metric families by the first element of `Labels`."""


def encode(metrics: Metrics, form: Format = FORMATS[0]) -> bytes:
    """Return metrics in a text format."""
    return form.write(_MetricsCollector(metrics))


class _MetricsCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        samples = {**self._metrics.counters, **self._metrics.gauges, **self._metrics.maxima}
        for key, family in FAMILIES.items():
            if family.bounds:
                histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
                bounds = [*map(str, family.bounds), "+Inf"]
                for labels, (*counts, total) in self._metrics.histograms.items():
                    if labels[0] == key:
                        buckets = list(zip(bounds, accumulate(counts), strict=True))
                        histogram.add_metric(labels[1:], buckets, sum_value=total)
                yield histogram
                continue
            make = CounterMetricFamily if family.name.endswith("_total") else GaugeMetricFamily
            metric = make(family.name, family.help, labels=family.labels)
            for labels, value in samples.items():
                if labels[0] == key:
                    metric.add_metric(labels[1:], value)
            yield metric
