"""Alerts, dashboard and scrape settings of etc/, as Prometheus understands them."""

import json
import re
import subprocess
from pathlib import Path

from tests.helpers import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
ETC = ROOT / "etc"
ALERTS = ETC / "prometheus-alerts.yml"
FIRES = Path(__file__).parent / "alerts.yml"


def promtool(*command: str) -> str:
    run = subprocess.run(
        ["promtool", *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def names_in(path: Path) -> set[str]:
    return set(re.findall(r"\bPostd\w+", path.read_text()))


def test_alerts_fire_on_their_conditions_only() -> None:
    promtool("test", "rules", str(FIRES))
    assert names_in(FIRES) == names_in(ALERTS)


def test_commands_of_the_guide_find_valid_settings() -> None:
    commands = re.findall(r"^promtool (.*)$", (ROOT / "docs" / "how-to" / "monitoring.md").read_text(), re.MULTILINE)
    outputs = [promtool(*command.split()) for command in commands]
    assert len(outputs) == 2
    assert all(f"SUCCESS: {len(names_in(ALERTS))} rules found" in output for output in outputs)


def test_dashboard_queries_are_valid_promql(tmp_path: Path) -> None:
    panels = json.loads((ETC / "grafana-dashboard.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = [
        # What Grafana puts in the place of its own.
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(expressions)
    ]
    assert rules
    # JSON is YAML, too.
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "rules.yml"))
