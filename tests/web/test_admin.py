"""What the admin listeners answer."""

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from postd.monitoring.health import Report
from postd.monitoring.tally import Numbers
from postd.web.admin import make_admin_root
from tests.helpers import Response, make_site
from tests.web.clients import ask_raw


def ask(path: str, states: dict[str, str] | None = None, method: str = "GET") -> Response:
    clock = Clock()

    def report() -> Deferred[Report]:
        return succeed(Report(states or {}, Numbers(amounts={("connections",): 3})))

    site = make_site(make_admin_root(report), clock=clock)
    return ask_raw(site, clock, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def test_healthz_is_200_even_if_not_ready() -> None:
    answer = ask("/healthz", {"store": "away"})
    assert (answer.status, answer.body) == (200, b"ok\n")


def test_readyz_is_200_when_ready() -> None:
    answer = ask("/readyz", {"store": "ok", "bearer https://idp.example": "ok"})
    assert (answer.status, answer.body) == (200, b"store: ok\nbearer https://idp.example: ok\n")
    assert answer.header("Content-Type") == "text/plain; charset=utf-8"
    assert answer.header("Cache-Control") == "no-store"


def test_readyz_names_what_is_missing() -> None:
    answer = ask("/readyz", {"store": "ok", "bearer https://idp.example": "no keys yet"})
    assert (answer.status, answer.body) == (503, b"store: ok\nbearer https://idp.example: no keys yet\n")


def test_metrics_are_in_prometheus_format() -> None:
    answer = ask("/metrics")
    assert answer.status == 200
    assert (answer.header("Content-Type") or "").startswith("text/plain; version=")
    assert b"\npostd_connections 3.0\n" in answer.body


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_head_and_other_methods(path: str) -> None:
    answer = ask(path, {"store": "ok"}, method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.header("Content-Length") or 0) > 0
    answer = ask(path, method="POST")
    assert (answer.status, answer.header("Allow")) == (405, "GET, HEAD, OPTIONS")


@pytest.mark.parametrize("path", ["/", "/post", "/login", "/metrics/", "/readyz/x", "//healthz"])
def test_other_path_is_404(path: str) -> None:
    assert ask(path).status == 404
