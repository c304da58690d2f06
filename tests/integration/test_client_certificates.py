"""A server that asks for client certificates: in one process and in workers, before and after a reload."""

import re
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from OpenSSL import SSL

from tests.helpers import PATIENCE_S, make_certificate
from tests.integration.daemon import Daemon
from tests.integration.test_operations import Operated, connect

ASK = '[tls]\nclient_certificates = "ask"\n'


def is_asked(port: int) -> bool:
    """Return whether a TLS client on a new connection is asked for its certificate."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    states = []
    context.set_info_callback(lambda connection, *_: states.append(connection.get_state_string()))
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain:
        plain.settimeout(None)  # as pyOpenSSL needs it
        connection = SSL.Connection(context, plain)
        connection.set_connect_state()
        connection.do_handshake()
    assert any(b"server certificate" in state for state in states)
    return any(b"certificate request" in state for state in states)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_reload_applies_the_setting_to_new_connections(tmp_path: Path, workers: str) -> None:
    with Operated(tmp_path, workers) as daemon:
        port = port_of(daemon.tls_url)
        asked = []
        with connect(daemon.tls_url) as kept:
            for more in ("", ASK, ASK, ""):
                make_certificate(tmp_path)
                daemon.reload(daemon.settings(more=more))
                asked.append({is_asked(port) for _ in range(8)})
                assert kept.get("/post").text == "[]\n"
        assert asked == [{False}, {True}, {True}, {False}]
        assert daemon.log.count("settings reloaded: tls") == 2


@pytest.mark.parametrize("workers", ["1", "2"])
def test_clients_with_and_without_a_certificate_are_served(tmp_path: Path, workers: str) -> None:
    key, cert = make_certificate(tmp_path / "client", subject="client")
    daemon = Operated(tmp_path, workers)
    daemon.settings_file.write_text(daemon.settings(more=ASK))
    with daemon:
        assert is_asked(port_of(daemon.tls_url))
        with_certificate, without = (ssl.create_default_context(cafile=str(tmp_path / "cert.pem")) for _ in range(2))
        with_certificate.load_cert_chain(cert, key)
        for context in (with_certificate, without) * 4:
            assert httpx.get(f"{daemon.tls_url}/post", verify=context).text == "[]\n"
    assert "Traceback" not in daemon.log


def test_admin_listener_does_not_ask(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    listen = "ssl:0:interface=127.0.0.1:privateKey=key.pem:certKey=cert.pem"
    (tmp_path / "postd.toml").write_text(f'listen = ["{listen}"]\n[admin]\nlisten = ["{listen}"]\n{ASK}')
    with Daemon(tmp_path, "-c", "postd.toml", listen=None) as daemon:
        (admin,) = re.findall(r"admin https://127\.0\.0\.1:(\d+)", daemon.log)
        assert (is_asked(daemon.port), is_asked(int(admin))) == (True, False)


def test_client_with_a_long_chain_is_disconnected(tmp_path: Path) -> None:
    key, cert = make_certificate(tmp_path / "client", subject="client")
    cert.write_text(cert.read_text() * 100)
    with Operated(tmp_path, "1") as daemon:
        daemon.reload(daemon.settings(more=ASK))
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        context.load_cert_chain(cert, key)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{daemon.tls_url}/post", verify=context)
        with connect(daemon.tls_url) as client:
            assert client.get("/post").text == "[]\n"
        assert "Traceback" not in daemon.log
        assert "Unhandled" not in daemon.log
