"""Starting and ending what is measured: each server in a folder and on a core of its own."""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVER_CORE, LOAD_CORE = 0, 1
ALL_CORES = f"{SERVER_CORE},{LOAD_CORE}"

READY_S = 30
STOP_S = 5
PAUSE_S = 0.05
REQUEST_S = 60
"""No single request, not even one for the long list, takes this long unless something is broken."""


class BenchError(Exception):
    """What ends the run without a result. `str()` of it is one line."""


@dataclass(frozen=True)
class Server:
    """How to start a server on a port of loopback, and what it then keeps in its folder."""

    name: str
    command: Callable[[int], list[str]]
    file: str = ""
    """The SQLite file."""
    settings: str = ""
    """What stands in `settings_file` in its folder; `PORT` in it becomes the port."""
    settings_file: str = "postd.toml"
    static: bool = False
    """Whether it only sends files: the answers, which are written for it."""
    tree: Path = ROOT
    """The checkout whose code it runs."""
    cores: str = str(SERVER_CORE)
    """Where it runs; on all of them it shares them with wrk."""
    find_missing: Callable[[], str] = str
    """Returns what is not installed of what it needs, and how to get it; "" if nothing is. (`str()` is "".)"""


@dataclass(frozen=True)
class Address:
    """A running server."""

    pid: int
    port: int


@dataclass(frozen=True)
class Response:
    """What a server answered to one request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@contextmanager
def running(server: Server, folder: Path, pause_s: float = PAUSE_S) -> Iterator[Address]:
    """Start a server and wait until it answers; end it and what it has started, whatever happens.

    `pause_s` is how long to wait before it is asked again.
    """
    port = free_port()
    (folder / server.settings_file).write_text(server.settings.replace("PORT", str(port)))
    log = folder / f"{server.name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["taskset", "-c", server.cores, *server.command(port)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(server.tree)},  # where `postd` and `bench.peers` are
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for us; we end the server
        )
    try:
        wait_until_ready(server, process, port, log, pause_s)
        yield Address(process.pid, port)
    finally:
        stop(process)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], port: int, log: Path, pause_s: float) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"{server.name} ended at start: {last_line(log)}")
        with suppress(OSError, http.client.HTTPException):
            # Not the list: the first of those is measured. A store that is not open yet is a 503.
            if ask(port, "GET", "/post/1").status in {HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED}:
                return
        time.sleep(pause_s)
    raise BenchError(f"{server.name} did not answer within {READY_S} s: {last_line(log)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that has a session of its own, and all others in it."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        try:
            process.wait(STOP_S)
        finally:  # too slow, or a second Ctrl-C; or a parent that has left its workers
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_line(log: Path) -> str:
    return (log.read_text(errors="replace").splitlines() or ["(it said nothing)"])[-1]


def ask(port: int, method: str, path: str, body: str | None = None, *fields: str) -> Response:
    """Return the answer to one request with these header fields ("Name: value")."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)) as connection:
        connection.request(method, path, body, dict(field.split(": ", 1) for field in fields if field))
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read())


def command_of_this_python(name: str) -> str:
    """Return the command that is installed beside the running Python."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise BenchError(f"{name} is not installed beside {sys.executable}; README.md says how")
    return path
