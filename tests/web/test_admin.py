"""The responses of the admin listeners."""

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from postd.monitoring.health import Health
from postd.monitoring.tally import Metrics
from postd.web.admin import Admin
from postd.web.routing import Router
from tests.cases import each
from tests.helpers import Response, make_site
from tests.web.clients import ask_raw


def ask(path: str, states: dict[str, str] | None = None, method: str = "GET") -> Response:
    clock = Clock()

    def check_health() -> Deferred[Health]:
        return succeed(Health(states or {}, Metrics(gauges={("connections",): 3})))

    site = make_site(Router(Admin(check_health)), clock=clock)
    return ask_raw(site, clock, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


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
    assert (answer.header("Content-Type") or "").startswith("text/plain; version=")
    assert b"\npostd_connections 3.0\n" in answer.body


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
