"""The server under test, in a folder of its own, with samples of its processes from /proc."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from bench.loads import cpu_s
from bench.servers import write_certificate
from bench.soaking.wire import Connection
from postd.auth.user_file import make_account, set_account
from tests.issuer import INTROSPECTION

TWISTD = str(Path(sys.executable).parent / "twistd")
POSTD = str(Path(sys.executable).parent / "postd")
START_MAX_S, STOP_MAX_S = 30.0, 20.0

REALM, PASSWORD = "postd", "correct horse battery staple"
USERS = tuple(f"user{number}" for number in range(4))
"""Users with a fixed password; that of `GUEST` changes each time the user file is replaced."""
TARGETS = tuple(f"target{number}" for number in range(8))
"""Accounts whose passwords are guessed: failed logins of one count for no other account."""
VISITORS = tuple(f"visitor{number}" for number in range(4))
"""Users who sign in often, and so end each other's sessions (`[session] max_per_account`)."""
GUEST = "guest"
AUDIENCE = "https://posts.example"

HEADER_S, BODY_S, IDLE_S = 3.0, 4.0, 6.0
CONNECTIONS = 300
"""Of each worker."""
BODY_MAX_BYTES = 16 * 1024

PLAIN = "tcp:0:interface=127.0.0.1"
TLS = "ssl:0:interface=127.0.0.1:privateKey=key.pem:certKey=cert.pem"
SETTINGS = """\
listen = {listen}
store = "{store}"
users = "users"
realm = "{realm}"
workers = {workers}
trusted_proxies = ["127.0.0.1"]

[api]
read = ["open"]
write = ["basic", "digest", "session", "bearer"]

[[page]]
path = "/basic"
schemes = ["basic"]
[[page]]
path = "/digest"
schemes = ["digest"]
[[page]]
path = "/bearer"
schemes = ["bearer"]
[[page]]
path = "/any"
schemes = ["digest", "bearer", "basic", "session"]

[digest]
nonce_lifetime = "30s"

[[bearer]]
issuer = "{issuer}"
audience = "{audience}"
introspection_endpoint = "{issuer}{introspection}"
dpop = "accept"
mtls = "accept"
"""

LIMITS = f"""
[limits]
body = "{BODY_MAX_BYTES // 1024}KiB"
header_time = "{HEADER_S}s"
body_time = "{BODY_S}s"
idle_time = "{IDLE_S}s"
connections = {CONNECTIONS}
"""


class SoakError(Exception):
    """The run cannot continue; `str()` is the reason, in one line."""


class Sample(Struct, frozen=True):
    """The resources of all processes of the server at a moment.

    Args:
        at_s: the time from the start of the load, in seconds.
        rss_mib: memory, with shared pages counted for each process.
        pss_mib: memory, with shared pages counted once.
        descriptors: the number of open files and sockets.
        threads: the number of threads.
        cpu_s: processor time since the start, in seconds.
    """

    at_s: float
    rss_mib: float
    pss_mib: float
    descriptors: int
    threads: int
    cpu_s: float


class Server:
    """`twistd -n postd` with the settings of the test.

    Args:
        folder: the folder for its files.
        store: the URL of its store.
        issuer: the URL of the token issuer.
        workers: the number of processes.
        cores: the cores that it may use.

    Attributes:
        limits: the `[limits]` of its settings.
        port: the port of the clients, with TLS if the connections of this process have it (`wire.use_tls`).
        plain_port: the port without TLS.
    """

    limits = LIMITS

    def __init__(self, folder: Path, *, store: str, issuer: str, workers: int, cores: set[int]) -> None:
        self.folder = folder
        self.log_file = folder / "postd.log"
        self.users = folder / "users"
        self.workers = workers
        self.port = self.plain_port = 0
        self._cores = cores
        write_certificate(folder)
        settings = SETTINGS.format(
            listen=[PLAIN, TLS] if Connection.tls else [PLAIN],
            store=store,
            realm=REALM,
            workers=workers,
            issuer=issuer,
            audience=AUDIENCE,
            introspection=INTROSPECTION,
        )
        (folder / "postd.toml").write_text(settings + self.limits)
        self.replace_users(PASSWORD)

    def replace_users(self, guests_password: str) -> None:
        """Replace the user file, as `postd user` does."""
        old = self.users.read_bytes() if self.users.exists() else b""
        for name in () if old else (*USERS, *TARGETS, *VISITORS):
            old = set_account(old, make_account(name, PASSWORD, REALM))
        new = self.folder / "users.new"
        new.touch(0o600)
        new.write_bytes(set_account(old, make_account(GUEST, guests_password, REALM)))
        new.replace(self.users)

    def fill(self, lines: str) -> None:
        """Import posts into the store, before the start.

        Raises:
            SoakError: the import failed; a store that is not empty may have these ids already.
        """
        command = [POSTD, "import", "-c", "postd.toml"]
        run = subprocess.run(command, cwd=self.folder, input=lines, capture_output=True, text=True, check=False)
        if run.returncode:
            raise SoakError(f"posts could not be imported: {_last_line(run.stderr)}")

    def start(self) -> None:
        """Start it; return when it is ready. Blocks for a second.

        Raises:
            SoakError: it does not start.
        """
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [TWISTD, "-n", "--pidfile=", "postd", "-c", "postd.toml"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C interrupts this process only, which stops the server
            )
        os.sched_setaffinity(self.process.pid, self._cores)
        deadline = time.monotonic() + START_MAX_S
        while True:
            ready = re.search(r"postd ready: (.*?);", self.log_file.read_text())
            if ready:
                ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", ready[1])]
                self.plain_port, self.port = ports[0], ports[-1]
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SoakError(f"postd did not start: {_last_line(self.log_file.read_text())}")
            time.sleep(0.05)

    def hang_up(self) -> None:
        """Send SIGHUP, which reloads its files."""
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> int | None:
        """Stop it with SIGTERM; return its exit status, None if it had to be killed. Blocks until it has exited."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def pids(self) -> list[int]:
        """Return the ids of its processes, the parent's first."""
        parent = self.process.pid
        with suppress(OSError):
            return [parent, *map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())]
        return []

    def sample(self, at_s: float) -> Sample:
        """Return the current resources of its processes; those that have just exited count as zero."""
        memory_kib = shared_kib = descriptors = threads = 0
        used_s = 0.0
        for pid in self.pids():
            with suppress(OSError):
                place = Path(f"/proc/{pid}")
                status = (place / "status").read_text()
                memory_kib += _number(r"VmRSS:\s+(\d+)", status)
                threads += _number(r"Threads:\s+(\d+)", status)
                shared_kib += _number(r"Pss:\s+(\d+)", (place / "smaps_rollup").read_text())
                descriptors += len(os.listdir(place / "fd"))  # noqa: PTH208 - no paths are needed
                used_s += cpu_s(pid)
        return Sample(at_s, memory_kib / 1024, shared_kib / 1024, descriptors, threads, used_s)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["(no output)"])[-1]
