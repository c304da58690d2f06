"""A real start, which imports only what the settings need (`postd.daemon.startup`), and what comes with a reload."""

import signal
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.test_bearer import AUDIENCE, bearer_table
from tests.integration.test_logins import serve
from tests.issuer import Issuer, Key

RULES = 'api = {read = ["bearer"], write = ["bearer"]}\n'
UNFORKED = ("env",)
"""Makes `Daemon` start a real `twistd` instead of a fork of one that has imported everything."""


def loaded_libraries(daemon: Daemon) -> str:
    """Return the memory maps of the daemon and its workers."""
    return "".join(Path(f"/proc/{pid}/maps").read_text() for pid in [daemon.process.pid, *daemon.workers.values()])


@pytest.mark.parametrize("workers", [1, 2])
def test_issuer_over_tls_can_come_with_a_reload(tmp_path: Path, certificate: tuple[Path, Path], workers: int) -> None:
    settings = f"workers = {workers}\n"
    with (
        Issuer(AUDIENCE, Key.make("ES256"), certificate=certificate) as issuer,
        serve(tmp_path, settings, through=UNFORKED) as daemon,
    ):
        assert "cryptography" not in loaded_libraries(daemon)
        (tmp_path / "postd.toml").write_text(settings + RULES + bearer_table(issuer, ca_file=str(certificate[1])))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("settings reloaded: api, bearer")
        headers = {"Authorization": f"Bearer {issuer.token()}"}
        assert httpx.get(f"{daemon.url}/post", headers=headers, timeout=PATIENCE_S).status_code == 200


def test_tls_endpoint_of_a_reload_is_checked(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    key, own = certificate
    with serve(tmp_path, 'listen = ["tcp:0:interface=127.0.0.1"]', listen=None, through=UNFORKED) as daemon:
        for file, outcome in ((key, "restart to apply it"), (own, "has no private key in PEM form")):
            endpoint = f"ssl:0:interface=127.0.0.1:privateKey={file}:certKey={own}"
            (tmp_path / "postd.toml").write_text(f"listen = ['{endpoint}']\n")
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_for(outcome)
