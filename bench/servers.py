"""Starts and stops the measured servers, each in its own folder and on its own core."""

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT = Path(__file__).resolve().parent.parent
SERVER_CORE, LOAD_CORE = 0, 1
ALL_CORES = f"{SERVER_CORE},{LOAD_CORE}"

READY_S = 30
STOP_S = 5
PAUSE_S = 0.05
REQUEST_S = 60
"""Timeout of a request; no working server takes as long, even for the long list."""


class BenchError(Exception):
    """The run cannot continue; `str()` is the reason, in one line."""


@dataclass(frozen=True)
class Server:
    """A server to start on a port of loopback, with the files in its folder."""

    name: str
    command: Callable[[int], list[str]]
    file: str = ""
    """The name of its SQLite file."""
    settings: str = ""
    """The content of `settings_file`; `PORT` in it is replaced with the port."""
    settings_file: str = "postd.toml"
    static: bool = False
    """Whether it sends files only: the responses, which are written to its folder."""
    tls: bool = False
    """Whether it has TLS, with `key.pem` and `cert.pem` of its folder."""
    tree: Path = ROOT
    """The checkout with the code to run."""
    cores: str = str(SERVER_CORE)
    """The cores that it may use."""
    load_cores: str = str(LOAD_CORE)
    """The cores that wrk may use."""
    find_missing: Callable[[], str] = str
    """Returns the missing program or package with the way to install it, "" if there is none. (`str()` is "".)"""


@dataclass(frozen=True)
class Address:
    """A running server."""

    pid: int
    port: int


@dataclass(frozen=True)
class Response:
    """A response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@contextmanager
def running(server: Server, folder: Path, pause_s: float = PAUSE_S) -> Iterator[Address]:
    """Start a server and wait until it is ready; at the end, stop it and the processes that it has started.

    `pause_s` is the pause between the requests that check whether it is ready.
    """
    port = free_port()
    (folder / server.settings_file).write_text(server.settings.replace("PORT", str(port)))
    if server.tls:
        write_certificate(folder)
    # pip compiles the packages that it installs; without this, each start would compile those of a checkout.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    log = folder / f"{server.name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["taskset", "-c", server.cores, *server.command(port)],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(server.tree)},  # has `postd` and `bench.peers`
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C interrupts this process only, which stops the server
        )
    try:
        wait_until_ready(server, process, port, log, pause_s)
        yield Address(process.pid, port)
    finally:
        stop(process)


def free_port() -> int:
    """Return a port that is free on each address: some servers have a second one on another address of loopback."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], port: int, log: Path, pause_s: float) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"{server.name} exited at start: {last_line(log)}")
        with suppress(OSError, http.client.HTTPException):
            # Not the list, whose first request is measured. The response is 503 until the store is open.
            if ask(port, "GET", "/post/1", tls=server.tls).status in {
                HTTPStatus.OK,
                HTTPStatus.NOT_FOUND,
                HTTPStatus.UNAUTHORIZED,
            }:
                return
        time.sleep(pause_s)
    raise BenchError(f"{server.name} did not answer within {READY_S} s: {last_line(log)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that is the leader of a session, and all others of the session."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        try:
            process.wait(STOP_S)
        finally:  # too slow, a second Ctrl-C, or workers that outlive their parent
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_line(log: Path) -> str:
    return (log.read_text(errors="replace").splitlines() or ["(no output)"])[-1]


def ask(port: int, method: str, path: str, body: str | None = None, *fields: str, tls: bool = False) -> Response:
    """Make a request with header fields ("Name: value"), and return the response."""
    kind = partial(http.client.HTTPSConnection, context=unverified()) if tls else http.client.HTTPConnection
    with closing(kind("127.0.0.1", port, timeout=REQUEST_S)) as connection:
        connection.request(method, path, body, dict(field.split(": ", 1) for field in fields if field))
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read())


@cache
def unverified() -> ssl.SSLContext:
    """Return the settings of a TLS client that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def write_certificate(folder: Path) -> None:
    """Write an ECDSA key (P-256), and a certificate for localhost that it has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=30))
    encoding = serialization.Encoding.PEM
    sealed = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, *sealed))
    (folder / "cert.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(encoding))


def command_of_this_python(name: str) -> str:
    """Return the path of a command that is installed with the running Python."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise BenchError(f"{name} is not installed beside {sys.executable}; see README.md")
    return path
