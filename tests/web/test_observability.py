"""The dashboard and the alerts of etc/ query exported metrics, cover all of them, and link to the operator's guide.

tests/system/test_alerts.py loads the alerts into Prometheus.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from postd.monitoring.exposition import FAMILIES, encode
from postd.monitoring.tally import Metrics
from postd.web.posts import PostApi
from postd.web.routing import VARIABLE
from tests.cases import each
from tests.web.clients import ask_raw, make_api, recorded_log

ETC = Path(__file__).parent.parent.parent / "etc"
DASHBOARD = json.loads((ETC / "grafana-dashboard.json").read_text())
ALERTS = (ETC / "prometheus-alerts.yml").read_text()
GUIDES = ETC.parent / "docs" / "how-to"
GUIDE = (GUIDES / "troubleshooting.md").read_text()

BUILT_IN_SERIES: Mapping[str, Collection[str]] = {"up": (), "ALERTS": ("alertname", "alertstate")}
"""Series that Prometheus itself provides, with their labels."""

TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus adds to every scraped series."""

GRID_WIDTH = 24


class Query(NamedTuple):
    """A PromQL expression, the panel or alert that it belongs to, and the labels that are shown."""

    source: str
    expression: str
    shown: frozenset[str]

    def __str__(self) -> str:
        return self.source


def dashboard_queries() -> Iterator[Query]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            shown = re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))
            yield Query(f"{panel['title']} {target['refId']}", target["expr"], frozenset(shown))
    for note in DASHBOARD["annotations"]["list"]:
        yield Query(note["name"], note["expr"], frozenset(re.findall(r"{{(\w+)}}", note["titleFormat"])))


def alert_queries() -> Iterator[Query]:
    for name, alert in read_alerts().items():
        (expression,) = re.findall(r"^ {8}expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", alert, re.MULTILINE)
        yield Query(name, "".join(expression), frozenset(re.findall(r"\$labels\.(\w+)", alert)))


def read_alerts() -> dict[str, str]:
    """Return the lines of each alert by its name, without a YAML parser."""
    _, *alerts = re.split(r"^ {6}- alert: ", ALERTS, flags=re.MULTILINE)
    return {alert.partition("\n")[0]: alert for alert in alerts}


def headings_in(page: str) -> list[str]:
    without_code = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)


def anchors_in(page: str) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings_in(page)}


QUERIES = [*dashboard_queries(), *alert_queries()]


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """The names of all exported series, with their labels."""
    metrics = Metrics()
    for key, family in FAMILIES.items():
        labels = (key, *("x" for _ in family.labels))
        if family.bounds:
            metrics.histograms[labels] = [1.0] * (len(family.bounds) + 2)
        else:
            metrics.gauges[labels] = 1.0
    families = list(text_string_to_metric_families(encode(metrics).decode()))
    assert len(families) == len(FAMILIES)
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def series_in(expression: str) -> set[str]:
    """Return the names of the series in an expression."""
    without_labels = re.sub(r"{[^}]*}|\[[^]]*\]", "", expression)
    return set(re.findall(rf"\b(?:postd_\w+|process_\w+|{'|'.join(BUILT_IN_SERIES)})\b", without_labels))


@each("query", QUERIES)
def test_query_uses_exported_series_and_labels(query: Query, series: dict[str, set[str]]) -> None:
    known = {**series, **{name: set(labels) for name, labels in BUILT_IN_SERIES.items()}}
    names = series_in(query.expression)
    assert names
    assert names <= set(known)
    for name, matchers in re.findall(r"(\w+){([^}]*)}", query.expression):
        assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers)) <= known[name] | TARGET_LABELS, name
    labels = set.union(TARGET_LABELS, *(known[name] for name in names))
    kept = [set(re.findall(r"\w+", kept)) for kept in re.findall(r"\bby \(([^)]*)\)", query.expression)]
    assert set().union(*kept) <= labels
    assert query.shown <= (set.intersection(*kept, kept[0] - {"le"}) | {"le"} if kept else labels)


def test_dashboard_shows_every_metric(series: dict[str, set[str]]) -> None:
    queried = set().union(*(series_in(query.expression) for query in dashboard_queries()))
    for family in FAMILIES.values():
        assert queried & ({f"{family.name}_bucket"} if family.bounds else {family.name}), family.name


def test_queries_use_existing_label_values() -> None:
    rules = {VARIABLE.sub(r"<\1>", rule.rule) for rule in PostApi.app.url_map.iter_rules()}
    everything = "\n".join(query.expression for query in QUERIES)
    routes = {route for found in re.findall(r'route(?:=~|!~|!=|=)"([^"]*)"', everything) for route in found.split("|")}
    assert {"/post/events"} <= routes <= rules
    outcomes = set(re.findall(r'outcome!?="([^"]*)"', everything))
    assert outcomes <= set(re.findall(r"\w+", FAMILIES["auth"].help))
    assert set(re.findall(r'operation="([^"]*)"', everything)) <= {"read", "write"}


@each("name", read_alerts())
def test_alert_has_severity_annotations_and_a_link_to_the_guide(name: str) -> None:
    alert = read_alerts()[name]
    assert re.search(r"^ {8}for: \d+[mh]$", alert, re.MULTILINE)
    assert re.search(r"^ {8}labels: {severity: (?:critical|warning)}$", alert, re.MULTILINE)
    for annotation in ("summary", "description"):
        assert re.search(rf'^ {{10}}{annotation}: ".+"$', alert, re.MULTILINE)
    (guide,) = re.findall(r"^ {10}guide: troubleshooting\.md#(.*)$", alert, re.MULTILINE)
    assert guide in anchors_in(GUIDE)


def test_panel_descriptions_name_headings_of_the_guide() -> None:
    described = "\n".join(panel.get("description", "") for panel in DASHBOARD["panels"])
    named = set(re.findall(r"Guide: (.*)\.$", described, re.MULTILINE))
    assert named
    assert named <= set(headings_in(GUIDE))


def test_guide_lists_every_metric() -> None:
    text = (GUIDES / "monitoring.md").read_text().partition("\n## Metrics to watch\n")[2]
    table = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    assert set(re.findall(r"\w+", "".join(table))) == {family.name for family in FAMILIES.values()}


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= GRID_WIDTH
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert panels[0]["title"] == "State"


def test_dashboard_works_with_any_data_source() -> None:
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}", DASHBOARD["uid"]}
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "job", "instance"}
    assert set(re.findall(r"\$(?!__)\{?(\w+)", text)) == names


@each(
    "request_line, fields, expected",
    [
        ("GET /post/7", "", "404 /post/<id>"),
        ("GET /post/x", "", "404 -"),
        ("GET /post/", "", "404 -"),
        ("GET /docs/x", "", "404 -"),
        ("GET //x", "", "404 -"),
        ("GET /.well-known/x", "", "404 -"),
        ("PATCH /docs", "", "405 /docs"),
        ("POST /post", "Content-Type: application/json", "401 /post"),
        ("PUT /post/7", "Content-Type: application/json", "401 /post/<id>"),
        ("POST /post", "Content-Length: 1000000", "413 /post"),
        ("PUT /post/7", "Content-Length: 1000000", "413 /post/<id>"),
        ("POST /x", "Content-Length: 1000000", "413 -"),
        ("POST /all/x", "Content-Length: 1000000", "413 /all"),
    ],
)
def test_route_in_the_log_is_the_one_that_matches(
    tmp_path_factory: pytest.TempPathFactory, request_line: str, fields: str, expected: str
) -> None:
    """Also of requests that are refused before their view."""
    settings = '[api]\nwrite = ["basic"]\n[[page]]\npath = "/all"\nschemes = ["basic"]\n'
    api = make_api(tmp_path_factory.mktemp("served"), settings)
    request = f"{request_line} HTTP/1.1\r\nHost: localhost\r\n{fields}{chr(13) + chr(10) if fields else ''}\r\n"
    try:
        with recorded_log(api) as events:
            ask_raw(api.site, api.clock, request.encode())
    finally:
        api.close()
    (line,) = [event["lines"] for event in events if "lines" in event]
    assert re.findall(r'" (\d{3}) .* route=(\S+)', line) == [tuple(expected.split())]
