"""The dashboard and the alerts of etc/ ask for what /metrics tells, for all of it, and lead into the operator's guide.

That Prometheus understands them is shown by tests/system/test_alerts.py.
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
from postd.web.server.routing import VARIABLE

ETC = Path(__file__).parent.parent.parent / "etc"
DASHBOARD = json.loads((ETC / "grafana-dashboard.json").read_text())
ALERTS = (ETC / "prometheus-alerts.yml").read_text()
GUIDE = (ETC / "operating.md").read_text()

OF_PROMETHEUS: Mapping[str, Collection[str]] = {"up": (), "ALERTS": ("alertname", "alertstate")}
"""What Prometheus tells itself, and with which labels."""

OF_ALL = {"job", "instance"}
"""Labels that Prometheus gives to all that it is told."""

GRID_WIDTH = 24


class Asked(NamedTuple):
    """A question in PromQL, by whom, and the labels of its answer that are shown."""

    who: str
    expression: str
    shown: frozenset[str]

    def __str__(self) -> str:
        return self.who


def ask_dashboard() -> Iterator[Asked]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            shown = re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))
            yield Asked(f"{panel['title']} {target['refId']}", target["expr"], frozenset(shown))
    for note in DASHBOARD["annotations"]["list"]:
        yield Asked(note["name"], note["expr"], frozenset(re.findall(r"{{(\w+)}}", note["titleFormat"])))


def ask_alerts() -> Iterator[Asked]:
    for name, alert in read_alerts().items():
        (expression,) = re.findall(r"^ {8}expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", alert, re.MULTILINE)
        yield Asked(name, "".join(expression), frozenset(re.findall(r"\$labels\.(\w+)", alert)))


def read_alerts() -> dict[str, str]:
    """Return each alert's lines by its name; YAML is more than the tests of this folder have."""
    _, *alerts = re.split(r"^ {6}- alert: ", ALERTS, flags=re.MULTILINE)
    return {alert.partition("\n")[0]: alert for alert in alerts}


def headings_in(page: str) -> list[str]:
    without_code = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)


def anchors_in(page: str) -> set[str]:
    """Return what a link may have behind `#`, as GitHub makes it of headings."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings_in(page)}


QUESTIONS = [*ask_dashboard(), *ask_alerts()]


@pytest.fixture(scope="module")
def told() -> dict[str, set[str]]:
    """The names of all series at /metrics, and their labels."""
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


def named_in(expression: str) -> set[str]:
    """Return the names of series that are asked for."""
    without_labels = re.sub(r"{[^}]*}|\[[^]]*\]", "", expression)
    return set(re.findall(rf"\b(?:postd_\w+|process_\w+|{'|'.join(OF_PROMETHEUS)})\b", without_labels))


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_it_asks_for_names_and_labels_that_there_are(question: Asked, told: dict[str, set[str]]) -> None:
    known = {**told, **{name: set(labels) for name, labels in OF_PROMETHEUS.items()}}
    names = named_in(question.expression)
    assert names
    assert names <= set(known)
    for name, matchers in re.findall(r"(\w+){([^}]*)}", question.expression):
        assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers)) <= known[name] | OF_ALL, name
    labels = set.union(OF_ALL, *(known[name] for name in names))
    kept = [set(re.findall(r"\w+", kept)) for kept in re.findall(r"\bby \(([^)]*)\)", question.expression)]
    assert set().union(*kept) <= labels
    assert question.shown <= (set.intersection(*kept, kept[0] - {"le"}) | {"le"} if kept else labels)


def test_each_metric_is_on_the_dashboard(told: dict[str, set[str]]) -> None:
    asked = set().union(*(named_in(question.expression) for question in ask_dashboard()))
    for family in FAMILIES.values():
        assert asked & ({f"{family.name}_bucket"} if family.bounds else {family.name}), family.name


def test_it_asks_for_values_that_there_are() -> None:
    rules = {VARIABLE.sub(r"<\1>", rule.rule) for rule in PostApi.app.url_map.iter_rules()}
    everything = "\n".join(question.expression for question in QUESTIONS)
    routes = {route for found in re.findall(r'route(?:=~|!~|!=|=)"([^"]*)"', everything) for route in found.split("|")}
    assert {"/post/events"} <= routes <= rules
    outcomes = set(re.findall(r'outcome!?="([^"]*)"', everything))
    assert outcomes <= set(re.findall(r"\w+", FAMILIES["auth"].help))
    assert set(re.findall(r'operation="([^"]*)"', everything)) <= {"read", "write"}


@pytest.mark.parametrize("name", read_alerts())
def test_an_alert_says_how_bad_it_is_and_leads_into_the_guide(name: str) -> None:
    alert = read_alerts()[name]
    assert re.search(r"^ {8}for: \d+[mh]$", alert, re.MULTILINE)
    assert re.search(r"^ {8}labels: {severity: (?:critical|warning)}$", alert, re.MULTILINE)
    for annotation in ("summary", "description"):
        assert re.search(rf'^ {{10}}{annotation}: ".+"$', alert, re.MULTILINE)
    (guide,) = re.findall(r"^ {10}guide: operating\.md#(.*)$", alert, re.MULTILINE)
    assert guide in anchors_in(GUIDE)


def test_a_panel_names_a_heading_of_the_guide() -> None:
    described = "\n".join(panel.get("description", "") for panel in DASHBOARD["panels"])
    named = set(re.findall(r"Guide: (.*)\.$", described, re.MULTILINE))
    assert named
    assert named <= set(headings_in(GUIDE))


def test_the_links_of_the_guide_lead_somewhere() -> None:
    for place, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", GUIDE):
        target = (ETC / place) if place else ETC / "operating.md"
        assert target.exists(), place
        assert not anchor or anchor in anchors_in(target.read_text()), anchor


def test_the_guide_tells_of_all_that_is_told() -> None:
    table = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", GUIDE.partition("\n## The metrics\n")[2], re.MULTILINE)
    assert set(re.findall(r"\w+", "".join(table))) == {family.name for family in FAMILIES.values()}


def test_the_panels_of_the_dashboard_are_one_beside_the_other() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= GRID_WIDTH
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert panels[0]["title"] == "Is it well?"


def test_the_dashboard_works_with_any_source_of_data() -> None:
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}", DASHBOARD["uid"]}
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "job", "instance"}
    assert set(re.findall(r"\$(?!__)\{?(\w+)", text)) == names
