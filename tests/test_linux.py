"""On other systems than Linux the daemon and the commands refuse to start, in one line."""

import subprocess
import sys

from tests.cases import each
from tests.helpers import PATIENCE_S

TWISTD = "from twisted.scripts.twistd import run; sys.argv = ['twistd', '-n', '--pidfile=', 'postd']"
POSTD = "sys.argv = ['postd', 'list']"
LIBRARIES = "import orjson, twisted.internet.defer, twisted.logger"
"""Imported before `sys.platform` changes: then the standard library looks for its parts for macOS, and orjson 3.10
crashes."""


@each(
    "before, after",
    [
        (TWISTD, "run()"),
        (POSTD, "from postd.cli.main import main; main()"),
        (LIBRARIES, "import postd.daemon.service"),
        (LIBRARIES, "import postd.store.opening"),
    ],
    ids=["twistd", "postd", "service", "store"],
)
def test_other_system_is_refused_in_one_line(before: str, after: str) -> None:
    program = f"import sys; {before}\nsys.platform = 'darwin'\n{after}"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == "postd: runs on Linux only (this is darwin; reasons: docs/reference/limits.md)\n"


def test_client_and_protocol_are_not_refused() -> None:
    program = """
import sys, socket, orjson, twisted.internet.reactor
sys.platform = "freebsd14"
import postd.client, postd.protocol.jwt, postd.protocol.digest
assert "postd.linux" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S, check=True)
