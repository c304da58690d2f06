"""The files of public hosts: the workflow runs `.ci/run`, and templates are complete."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_workflow_runs_all_checks_on_changes() -> None:
    assert re.search(r"^      - run: \.ci/run$", WORKFLOW, re.MULTILINE)
    assert "\n  pull_request:\n" in WORKFLOW


def test_workflow_may_only_read() -> None:
    assert re.findall(r"^ *permissions:\n((?:  +.+\n)+)", WORKFLOW, re.MULTILINE) == ["  contents: read\n"]
    assert "secrets." not in WORKFLOW
    assert "pull_request_target" not in WORKFLOW


def test_actions_are_pinned() -> None:
    used = re.findall(r"uses: (\S+)", WORKFLOW)
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@(v\d+|[0-9a-f]{40})", action)] == []


def test_tox_has_the_checks_of_ci() -> None:
    commands = (ROOT / ".ci" / "run").read_text()
    environments = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tox"]["env"]
    for name in ("lint", "types"):
        for command in environments[name]["commands"]:
            assert f".venv-all/bin/{' '.join(command)}\n" in commands
    assert "-W" in environments["docs"]["commands"][0]
