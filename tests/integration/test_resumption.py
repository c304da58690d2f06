"""TLS sessions that are resumed on another worker, and after the key of tickets was replaced."""

import socket
import ssl
import sys
from pathlib import Path

from postd.net.endpoints import NO_RESUMPTION
from tests.helpers import PATIENCE_S, make_certificate, wait_until
from tests.integration.daemon import Daemon

LIFETIME_S = 1
LISTEN = "ssl:0:interface=127.0.0.1:privateKey=key.pem:certKey=cert.pem"
_RUN = """
import runpy, sys
{change}
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_SHORT_LIVED = _RUN.format(change=f"from postd.net import listening; listening.TICKET_KEY_LIFETIME_S = {LIFETIME_S}")
_NOT_FOUND = _RUN.format(change="from postd.net import openssl; openssl.find_function = lambda *_: None")


class Client:
    """A TLS client that resumes its last session."""

    def __init__(self, port: int, version: ssl.TLSVersion) -> None:
        self._port = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._context.maximum_version = version
        self._session: ssl.SSLSession | None = None

    def get(self) -> tuple[bool, bytes]:
        """Make a request on a new connection; return whether its session was resumed, and which process answered."""
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)
        with self._context.wrap_socket(plain, session=self._session) as connection:
            connection.sendall(b"GET /post HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = connection.recv(65536)
            self._session = connection.session
            # The ids of requests begin with that of their process.
            process = answer.partition(b"X-Request-Id: ")[2].partition(b"-")[0]
            return bool(connection.session_reused), process


def test_sessions_are_resumed_by_all_workers_with_each_key(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with Daemon(tmp_path, "--workers", "2", listen=LISTEN, through=[sys.executable, "-c", _SHORT_LIVED]) as daemon:
        clients = [Client(daemon.port, version) for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)]

        def are_resumed() -> bool:
            answers = [client.get() for _ in range(6) for client in clients]
            return all(resumed for resumed, _ in answers) and len({process for _, process in answers}) == len(clients)

        def have_new_sessions() -> bool:
            return not any(client.get()[0] for client in clients)

        assert have_new_sessions()
        wait_until(are_resumed)
        wait_until(have_new_sessions)
        wait_until(are_resumed)
        assert "Traceback" not in daemon.log
        assert NO_RESUMPTION not in daemon.log


def test_log_says_that_sessions_are_not_resumed(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with Daemon(tmp_path, listen=LISTEN, through=[sys.executable, "-c", _NOT_FOUND]) as daemon:
        client = Client(daemon.port, ssl.TLSVersion.TLSv1_3)
        assert not any(client.get()[0] for _ in range(2))
        assert daemon.log.count(NO_RESUMPTION) == 1
