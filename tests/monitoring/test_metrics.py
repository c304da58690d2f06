"""What is counted, and what Prometheus reads of it, with its own parser."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from postd.monitoring import exposition
from postd.monitoring.tally import Numbers, Tally, decode, encode


def read(numbers: Numbers) -> dict[tuple[str, ...], float]:
    """Return what Prometheus would: each sample's name with the values of its labels, sorted by their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition.encode(numbers).decode())
        for sample in family.samples
    }


def test_requests_are_told_by_all_that_they_differ_in() -> None:
    tally = Tally()
    for took_s in (0.001, 0.0011, 60):
        tally.note_request(("/post", b"GET", 200, None, None), took_s)
    tally.note_request(("/post", b"GET", 200, "basic", "accepted"), 0.3)
    tally.note_request((None, b"BREW", 404, None, None), 0.01)
    told = read(tally.numbers())
    count = "postd_http_requests_total"
    assert told[count, "GET", "/post", "none", "200"] == 3
    assert told[count, "GET", "/post", "basic", "200"] == 1
    assert told[count, "other", "none", "none", "404"] == 1
    took = "postd_http_request_duration_seconds"
    # Labels by name: le, method, route.
    assert [told[f"{took}_bucket", bound, "GET", "/post"] for bound in ("0.001", "0.0025", "0.5", "10.0", "+Inf")] == [
        *(1, 2, 3, 3, 4)
    ]
    assert told[f"{took}_count", "GET", "/post"] == 4
    assert math.isclose(told[f"{took}_sum", "GET", "/post"], 60.3021)


def test_methods_that_clients_make_up_take_no_room() -> None:
    tally = Tally()
    for n in range(1000):
        tally.note_request(("/post", b"ZZZ%d" % n, 401, None, None), 0.001)
    assert read(tally.numbers())["postd_http_requests_total", "other", "/post", "none", "401"] == 1000
    assert len(tally._requests) == 1  # noqa: SLF001 - which nobody sees from outside before it is too late


def test_credentials_are_told_by_what_became_of_them() -> None:
    tally = Tally()
    for route, outcome in (("/post", "accepted"), ("/basic", "accepted"), ("/basic", "refused")):
        tally.note_request((route, b"GET", 200, "basic", outcome), 0.1)
    told = read(tally.numbers())
    assert told["postd_auth_total", "accepted", "basic"] == 2
    assert told["postd_auth_total", "refused", "basic"] == 1


def test_the_store_is_told_by_reads_and_writes() -> None:
    tally = Tally()
    tally.note_store("read", 0.00002, failed=False)
    tally.note_store("write", 3, failed=True)
    told = read(tally.numbers())
    assert told["postd_store_duration_seconds_bucket", "0.0001", "read"] == 1
    assert told["postd_store_duration_seconds_bucket", "2.5", "write"] == 0
    assert told["postd_store_duration_seconds_count", "write"] == 1
    assert told["postd_store_errors_total", "write"] == 1
    assert told["postd_store_errors_total", "read"] == 0


def test_the_process_is_told_of() -> None:
    told = read(Tally().numbers())
    assert told["process_cpu_seconds_total",] > 0
    assert told["process_resident_memory_bytes",] > 1024**2
    assert told["process_open_fds",] > 2


labels = st.tuples(st.sampled_from(["asked", "auth", "keys"]), st.text(max_size=3))
numbers = st.builds(
    Numbers,
    counts=st.dictionaries(labels, st.integers(0, 9)),
    spreads=st.dictionaries(labels, st.lists(st.integers(0, 9), min_size=3, max_size=3)),
    amounts=st.dictionaries(labels, st.integers(0, 9)),
    extremes=st.dictionaries(labels, st.integers(0, 9)),
)


@given(numbers)
def test_what_goes_to_another_process_comes_there_as_it_was(sent: Numbers) -> None:
    assert decode(json.loads(json.dumps(encode(sent)))) == sent


@given(st.lists(numbers, max_size=4))
def test_the_numbers_of_several_are_those_of_all(several: list[Numbers]) -> None:
    total = Numbers()
    for one in several:
        total.add(one)
    for kind, together in (("counts", sum), ("amounts", sum), ("extremes", max)):
        for key, value in getattr(total, kind).items():
            assert value == together(getattr(one, kind)[key] for one in several if key in getattr(one, kind))
    for key, spread in total.spreads.items():
        assert spread == [
            sum(column) for column in zip(*(one.spreads[key] for one in several if key in one.spreads), strict=True)
        ]


def test_what_has_ended_leaves_only_what_it_counted() -> None:
    total = Numbers()
    total.add_lasting(Numbers({("asked",): 1}, {("took",): [1, 2]}, {("fds",): 3}, {("keys",): 4}))
    assert total == Numbers({("asked",): 1}, {("took",): [1, 2]}, {}, {})


def test_label_values_of_strangers_do_not_break_it() -> None:
    issuer = 'https://idp.example/"\\\n'
    assert read(Numbers(extremes={("keys", issuer): 2}))["postd_bearer_keys", issuer] == 2
