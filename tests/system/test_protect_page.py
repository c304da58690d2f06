"""The commands of docs/protect.md, with their output, against the programs there."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.test_protect_page import PROGRAMS, running


@pytest.mark.parametrize("heading", PROGRAMS)
def test_commands_print_what_the_page_shows(heading: str, tmp_path: Path) -> None:
    with running(heading, tmp_path) as served:
        steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", served.console, re.MULTILINE)
        assert steps
        for command, shown in steps:
            run = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
            )
            assert run.stdout.replace("\r", "") == shown, (command, run.stderr)
