"""The unit, and sockets that systemd passes on."""

import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx

from tests.integration.daemon import TWISTD

UNIT = Path(__file__).parent.parent.parent / "etc" / "postd.service"


def test_the_unit_is_accepted() -> None:
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(UNIT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "postd.service" not in result.stderr


def test_the_unit_starts_a_server_that_serves(tmp_path: Path) -> None:
    """Its command and its PATH, word for word but for the places."""
    unit = UNIT.read_text()
    for there, here in (
        ("/opt/postd/bin", str(Path(TWISTD).parent)),
        ("/etc/postd/postd.toml", str(UNIT.parent / "postd.toml")),
        ("/var/lib/postd", str(tmp_path)),
    ):
        assert there in unit
        unit = unit.replace(there, here)
    command, path = (re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)[0] for key in ("ExecStart", "Environment=PATH"))
    process = subprocess.Popen(
        [*command.split(), "--listen=tcp:18080:interface=127.0.0.1"], cwd=tmp_path, env={"PATH": path}
    )
    try:
        assert wait_for_answer("http://127.0.0.1:18080/post") == "[]\n"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == -signal.SIGTERM
    assert (tmp_path / "postd.db").exists()


def test_a_socket_passed_on_by_systemd(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    systemd = ["systemd-socket-activate", f"--listen=127.0.0.1:{port}", "--fdname=web"]
    daemon = [TWISTD, "-n", "--pidfile=", "postd", "--listen=systemd:domain=INET:index=0", "--store=memory:"]
    process = subprocess.Popen([*systemd, *daemon], cwd=tmp_path)
    try:
        assert wait_for_answer(f"http://127.0.0.1:{port}/post") == "[]\n"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)


def wait_for_answer(url: str) -> str:
    deadline = time.monotonic() + 30
    while True:
        try:
            return httpx.get(url, timeout=30).text
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
