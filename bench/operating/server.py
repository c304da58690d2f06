"""The server under test, which is reloaded, stopped and restarted; optionally with socket activation."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.servers import free_port
from bench.soaking.server import (
    AUDIENCE,
    POSTD,
    REALM,
    START_MAX_S,
    STOP_MAX_S,
    TWISTD,
    Server,
    SoakError,
)
from tests.helpers import make_certificate

SETTINGS = """\
listen = {listen}
store = "{store}"
users = "users"
realm = "{realm}"
workers = {workers}

[api]
read = ["open"]
write = ["basic", "digest", "session", "bearer"]

[[page]]
path = "/any"
schemes = ["digest", "bearer", "basic", "session"]

[[bearer]]
issuer = "{issuer}"
audience = "{audience}"

[throttle]
failures = 100000
address_failures = 100000
account_failures = 100000

[admin]
listen = ["tcp:{admin}:interface=127.0.0.1"]
"""

SOCKET_NAME = "web"
FIRST_FD = 3
"""The first file descriptor that systemd passes to a service (sd_listen_fds(3))."""

_ACTIVATE = f"""\
import os, sys
os.dup2(int(sys.argv[1]), {FIRST_FD})
os.environ |= {{"LISTEN_FDS": "1", "LISTEN_FDNAMES": "{SOCKET_NAME}", "LISTEN_PID": str(os.getpid())}}
os.execv(sys.argv[2], sys.argv[2:])
"""


class OperatedServer(Server):
    """`twistd -n postd`, with the same ports after a restart.

    Args:
        folder: the folder for its files.
        store: the URL of its store.
        issuer: the URL of the token issuer.
        workers: the number of processes.
        cores: the cores that it may use.
        activated: whether this object holds the socket, and passes it on as systemd does; there is no TLS then.
    """

    def __init__(  # noqa: PLR0913 - the arguments of the soak's server, and one more
        self, folder: Path, *, store: str, issuer: str, workers: int, cores: set[int], activated: bool
    ) -> None:
        super().__init__(folder, store=store, issuer=issuer, workers=workers, cores=cores)
        self.store_name = "Redis" if store.startswith("redis") else "SQLite"
        self.port, self.admin_port = free_port(), free_port()
        self.tls_port = 0 if activated else free_port()
        self.socket: socket.socket | None = None
        if activated:
            self.socket = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
            self.port = self.socket.getsockname()[1]
            listen = [f"systemd:domain=INET:name={SOCKET_NAME}"]
        else:
            make_certificate(folder)
            tls = f"ssl:{self.tls_port}:interface=127.0.0.1:privateKey=key.pem:certKey=cert.pem"
            listen = [f"tcp:{self.port}:interface=127.0.0.1", tls]
        self.settings_file = folder / "postd.toml"
        self.settings = SETTINGS.format(
            listen=json.dumps(listen),
            store=store,
            realm=REALM,
            workers=workers,
            issuer=issuer,
            audience=AUDIENCE,
            admin=self.admin_port,
        )
        self.settings_file.write_text(self.settings)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def start(self) -> None:
        """Start or restart it; return when it is ready. Blocks for a second.

        Raises:
            SoakError: it does not start.
        """
        before = self.log.count("postd ready") if self.log_file.exists() else 0
        command = [TWISTD, "-n", "--pidfile=", "postd", "-c", "postd.toml"]
        passed: tuple[int, ...] = ()
        if self.socket is not None:
            passed = (self.socket.fileno(),)
            command = [sys.executable, "-c", _ACTIVATE, str(self.socket.fileno()), *command]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C interrupts this process only, which stops the server
            )
        with suppress(ProcessLookupError):
            os.sched_setaffinity(self.process.pid, self._cores)
        deadline = time.monotonic() + START_MAX_S
        while self.log.count("postd ready") == before:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SoakError(f"postd did not start: {(self.log.splitlines() or ['(no output)'])[-1]}")
            time.sleep(0.01)

    def worker_pids(self) -> list[int]:
        return self.pids()[1:]

    def kill_worker(self, pid: int) -> set[int]:
        """Kill a worker; return the client ports of its connections.

        It is suspended while they are listed, so that it accepts no connection meanwhile.
        """
        os.kill(pid, signal.SIGSTOP)
        sockets = set()
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found = re.fullmatch(r"socket:\[(\d+)\]", str(fd.readlink()))
                if found:
                    sockets.add(found[1])
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ports = {int(row[2].partition(":")[2], 16) for row in rows if row[9] in sockets}
        os.kill(pid, signal.SIGKILL)
        return ports

    def read_posts(self) -> list[tuple[int, str]]:
        """Return all posts in the store, without the server.

        Raises:
            SoakError: it cannot be read.
        """
        command = [POSTD, "export", "-c", "postd.toml"]
        run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=STOP_MAX_S)
        if run.returncode:
            raise SoakError(f"the posts could not be read: {run.stderr.strip()}")
        posts = [json.loads(line) for line in run.stdout.splitlines()]
        return [(post["id"], post["post"]) for post in posts]

    def read_metrics(self) -> str:
        """Return the text of `/metrics`.

        Raises:
            SoakError: there is no response.
        """
        try:
            with urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=START_MAX_S) as answer:
                text: str = answer.read().decode()
                return text
        except URLError as error:
            raise SoakError(f"/metrics: {error.reason}") from None

    def close(self) -> None:
        """Kill it if it runs, and close the passed socket."""
        if hasattr(self, "process"):
            self.kill()
        if self.socket is not None:
            self.socket.close()
