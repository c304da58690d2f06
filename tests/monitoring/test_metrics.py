"""Counters of a process, and their exposition, read with the parser of prometheus-client."""

import json
import math
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from postd.monitoring import exposition
from postd.monitoring.tally import Metrics, Tally, decode, encode


def read(
    metrics: Metrics, form: exposition.Format = exposition.FORMATS[0], parse: Any = text_string_to_metric_families
) -> dict[tuple[str, ...], float]:
    """Return the samples as Prometheus reads them, by name and the values of their labels, sorted by label name."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(exposition.encode(metrics, form).decode())
        for sample in family.samples
    }


def test_requests_are_counted_by_route_method_status_and_scheme() -> None:
    tally = Tally()
    for took_s in (0.001, 0.0011, 60):
        tally.record_request(("/post", b"GET", 200, None, None), took_s)
    tally.record_request(("/post", b"GET", 200, "basic", "accepted"), 0.3)
    tally.record_request((None, b"BREW", 404, None, None), 0.01)
    samples = read(tally.metrics())
    count = "postd_http_requests_total"
    assert samples[count, "GET", "/post", "none", "200"] == 3
    assert samples[count, "GET", "/post", "basic", "200"] == 1
    assert samples[count, "other", "none", "none", "404"] == 1
    took = "postd_http_request_duration_seconds"
    # Labels by name: le, method, route.
    assert [
        samples[f"{took}_bucket", bound, "GET", "/post"] for bound in ("0.001", "0.0025", "0.5", "10.0", "+Inf")
    ] == [*(1, 2, 3, 3, 4)]
    assert samples[f"{took}_count", "GET", "/post"] == 4
    assert math.isclose(samples[f"{took}_sum", "GET", "/post"], 60.3021)


def test_unknown_methods_share_one_label() -> None:
    tally = Tally()
    for n in range(1000):
        tally.record_request(("/post", b"ZZZ%d" % n, 401, None, None), 0.001)
    assert read(tally.metrics())["postd_http_requests_total", "other", "/post", "none", "401"] == 1000
    assert len(pickle.dumps(tally)) < 10_000  # one entry, not a thousand


def test_authentications_are_counted_by_outcome() -> None:
    tally = Tally()
    for route, outcome in (("/post", "accepted"), ("/basic", "accepted"), ("/basic", "refused")):
        tally.record_request((route, b"GET", 200, "basic", outcome), 0.1)
    samples = read(tally.metrics())
    assert samples["postd_auth_total", "accepted", "basic"] == 2
    assert samples["postd_auth_total", "refused", "basic"] == 1


def test_store_operations_are_counted_by_reads_and_writes() -> None:
    tally = Tally()
    tally.record_store("read", 0.00002, failed=False)
    tally.record_store("write", 3, failed=True)
    samples = read(tally.metrics())
    assert samples["postd_store_duration_seconds_bucket", "0.0001", "read"] == 1
    assert samples["postd_store_duration_seconds_bucket", "2.5", "write"] == 0
    assert samples["postd_store_duration_seconds_count", "write"] == 1
    assert samples["postd_store_errors_total", "write"] == 1
    assert samples["postd_store_errors_total", "read"] == 0


def test_process_metrics_are_present() -> None:
    samples = read(Tally().metrics())
    assert samples["process_cpu_seconds_total",] > 0
    assert samples["process_resident_memory_bytes",] > 1024**2
    assert samples["process_open_fds",] > 2


labels = st.tuples(st.sampled_from(["requests", "auth", "keys"]), st.text(max_size=3))
metrics = st.builds(
    Metrics,
    counters=st.dictionaries(labels, st.integers(0, 9)),
    histograms=st.dictionaries(labels, st.lists(st.integers(0, 9), min_size=3, max_size=3)),
    gauges=st.dictionaries(labels, st.integers(0, 9)),
    maxima=st.dictionaries(labels, st.integers(0, 9)),
)


@given(metrics)
def test_encoded_metrics_survive_json(sent: Metrics) -> None:
    assert decode(json.loads(json.dumps(encode(sent)))) == sent


@given(st.lists(metrics, max_size=4))
def test_metrics_of_several_processes_are_combined(several: list[Metrics]) -> None:
    total = Metrics()
    for one in several:
        total.add(one)
    for kind, together in (("counters", sum), ("gauges", sum), ("maxima", max)):
        for key, value in getattr(total, kind).items():
            assert value == together(getattr(one, kind)[key] for one in several if key in getattr(one, kind))
    for key, spread in total.histograms.items():
        assert spread == [
            sum(column)
            for column in zip(*(one.histograms[key] for one in several if key in one.histograms), strict=True)
        ]


def test_ended_process_leaves_only_counters_and_histograms() -> None:
    total = Metrics()
    total.add_cumulative(Metrics({("requests",): 1}, {("request_duration",): [1, 2]}, {("fds",): 3}, {("keys",): 4}))
    assert total == Metrics({("requests",): 1}, {("request_duration",): [1, 2]}, {}, {})


def test_label_values_are_escaped() -> None:
    issuer = 'https://idp.example/"\\\n'
    assert read(Metrics(maxima={("keys", issuer): 2}))["postd_bearer_keys", issuer] == 2


def test_formats_have_the_same_samples() -> None:
    tally = Tally()
    tally.record_request(("/post", b"GET", 200, "basic", "accepted"), 0.001)
    metrics = tally.metrics()
    metrics.gauges["info", "1.0", 'sqlite:a"b\\c\nd'] = 1
    for form in exposition.FORMATS:
        parse = read_openmetrics if b"openmetrics" in form.media_type else text_string_to_metric_families
        found = read(metrics, form, parse)
        assert found == read(metrics)
    assert found["postd_http_requests_total", "GET", "/post", "basic", "200"] == 1
