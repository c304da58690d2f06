"""What a server imports: only what its settings ask for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_ISSUER = '[[bearer]]\nissuer = "https://idp.example"\naudience = "https://posts.example"\n'
_PROGRAM = """
import json, sys
from pathlib import Path
from twisted.internet import reactor
from postd.daemon.service import make_service
from postd.settings.loading import load_settings

make_service(load_settings(sys.argv[1] or None, {"listen": ["tcp:0:interface=127.0.0.1"]}, Path()), reactor=reactor)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def imported(folder: Path, settings: str) -> set[str]:
    """Return the top-level modules that are loaded once a service is made."""
    (folder / "postd.toml").write_text(settings)
    arguments = [sys.executable, "-c", _PROGRAM, "postd.toml"]
    result = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


@pytest.mark.parametrize("settings", ["", 'users = "users"\napi = {write = ["basic", "digest", "session"]}\n'])
def test_server_without_issuers_imports_no_http_client(tmp_path: Path, settings: str) -> None:
    assert not imported(tmp_path, settings) & {"treq", "joserfc", "txredisapi", "prometheus_client", "click"}


def test_server_with_an_issuer_imports_what_it_needs(tmp_path: Path) -> None:
    assert imported(tmp_path, _ISSUER) >= {"treq", "joserfc"}
