"""The responses of the admin listeners."""

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from postd.monitoring.health import Health
from postd.monitoring.tally import Metrics
from postd.web.admin import Admin, choose_format
from postd.web.routing import Router
from tests.cases import each
from tests.helpers import Response, make_site
from tests.web.clients import ask_raw


def ask(path: str, states: dict[str, str] | None = None, method: str = "GET", fields: str = "") -> Response:
    clock = Clock()

    def check_health() -> Deferred[Health]:
        return succeed(Health(states or {}, Metrics(gauges={("connections",): 3})))

    site = make_site(Router(Admin(check_health)), clock=clock)
    return ask_raw(site, clock, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode())


def test_healthz_is_200_while_the_store_is_unavailable() -> None:
    answer = ask("/healthz", {"store": "away"})
    assert (answer.status, answer.body) == (200, b"ok\n")


def test_readyz_is_200_if_all_states_are_ok() -> None:
    answer = ask("/readyz", {"store": "ok", "bearer https://idp.example": "ok"})
    assert (answer.status, answer.body) == (200, b"store: ok\nbearer https://idp.example: ok\n")
    assert answer.header("Content-Type") == "text/plain; charset=utf-8"
    assert answer.header("Cache-Control") == "no-store"


def test_readyz_is_503_and_names_the_problem() -> None:
    answer = ask("/readyz", {"store": "ok", "bearer https://idp.example": "no keys yet"})
    assert (answer.status, answer.body) == (503, b"store: ok\nbearer https://idp.example: no keys yet\n")


def test_metrics_are_in_prometheus_format() -> None:
    answer = ask("/metrics")
    assert answer.status == 200
    assert answer.header("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.header("Vary") == "Accept"
    assert b"\npostd_connections 3.0\n" in answer.body


def test_metrics_are_in_the_format_that_all_lines_of_accept_prefer() -> None:
    fields = "Accept: text/plain;q=0.5\r\nAccept: application/openmetrics-text;version=1.0.0\r\n"
    answer = ask("/metrics", fields=fields)
    expected = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
    assert answer.header("Content-Type") == expected
    assert answer.body.endswith(b"# EOF\n")


PLAIN, PLAIN_1 = "text/plain; version=0.0.4; charset=utf-8", "text/plain; version=1.0.0; charset=utf-8; escaping="
OPEN, OPEN_1 = (f"application/openmetrics-text; version={version}; charset=utf-8" for version in ("0.0.1", "1.0.0"))
OPEN_1 += "; escaping="
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,/;q=0.1"
)
PROTOBUF = (
    f"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,{PROMETHEUS_3}"
)


@each(
    "accept, content_type",
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/*", PLAIN),
        ("text/plain", PLAIN),
        ("text/html, */*;q=0.1", PLAIN),
        ("application/json", PLAIN),
        ("text/plain;q=0", PLAIN),
        ("text/plain;version=0.0.4", PLAIN),
        ('text/plain;version="1.0.0"', f"{PLAIN_1}underscores"),
        ("TEXT/PLAIN; Version=1.0.0; Escaping=Values", f"{PLAIN_1}values"),
        ("text/plain;version=1.0.0;escaping=dots", f"{PLAIN_1}underscores"),
        ("text/plain;version=1.0.0;escaping=allow-utf8", f"{PLAIN_1}allow-utf-8"),
        ("text/plain;version=1.0.0;escaping=x%0d", f"{PLAIN_1}underscores"),
        ("text/plain;version=2.0.0", PLAIN),
        ("application/openmetrics-text", f"{OPEN_1}underscores"),
        ("application/*;q=0.2, text/plain;q=0.1", f"{OPEN_1}underscores"),
        ("application/openmetrics-text;version=0.0.1", OPEN),
        ("application/openmetrics-text;version=2.0.0, text/plain;version=1.0.0;q=0.1", f"{PLAIN_1}underscores"),
        ("application/openmetrics-text;version=1.0.0;q=0.1, text/plain;q=0.2", PLAIN),
        ("application/openmetrics-text;q=0, */*", PLAIN),
        ("text/plain;q=0, */*", f"{OPEN_1}underscores"),
        ("text/plain;version=0.0.4;q=0, */*", f"{PLAIN_1}underscores"),
        ("text/plain;version=0.0.4, application/openmetrics-text", PLAIN),
        ("application/openmetrics-text, text/plain;version=0.0.4", f"{OPEN_1}underscores"),
        ("application/openmetrics-text;q=1.5, text/plain", PLAIN),
        (PROMETHEUS_2, f"{OPEN_1}underscores"),
        (PROMETHEUS_3, f"{OPEN_1}allow-utf-8"),
        (PROTOBUF, f"{OPEN_1}allow-utf-8"),
        (" " * 2000 + PROMETHEUS_3, f"{OPEN_1}allow-utf-8"),
    ],
)
def test_format_is_that_of_the_highest_weight(accept: str, content_type: str) -> None:
    form, escaping = choose_format(accept.encode())
    assert form.content_type(escaping).decode() == content_type


@each("path", ["/healthz", "/readyz", "/metrics"])
def test_head_has_no_body_and_other_methods_are_405(path: str) -> None:
    answer = ask(path, {"store": "ok"}, method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.header("Content-Length") or 0) > 0
    answer = ask(path, method="POST")
    assert (answer.status, answer.header("Allow")) == (405, "GET, HEAD, OPTIONS")


@each("path", ["/", "/post", "/login", "/metrics/", "/readyz/x", "//healthz"])
def test_other_paths_are_404(path: str) -> None:
    assert ask(path).status == 404
