"""The systemd units: start, socket activation and notifications (reference: Operations).

The tests take the part of systemd where its tools need to be process 1.
"""

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import httpx
import pytest

from postd.settings.loading import load_settings
from tests.helpers import PATIENCE_S
from tests.integration.daemon import START_MAX_S, TWISTD, Daemon, wait_for_end
from tests.redis_server import free_port

ETC = Path(__file__).parent.parent.parent / "etc"
UNIT = ETC / "postd.service"
SECURITY_MAX = 2.0
"""The highest exposure of the service by `systemd-analyze security`, of 10."""

NAME = "http"
BY_NAME = {"INET": f"systemd:domain=INET:name={NAME}", "UNIX": f"systemd:domain=UNIX:name={NAME}"}
REQUEST = b"GET /post HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def analyze(*command: str) -> str:
    result = subprocess.run(
        ["systemd-analyze", *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=os.environ | {"LC_ALL": "C"},
    )
    assert result.returncode == 0, result.stderr
    assert "postd." not in result.stderr
    return result.stdout


def test_units_are_valid() -> None:
    analyze("verify", "--man=no", str(UNIT), str(ETC / "postd.socket"))


def test_user_and_folders_are_made_as_in_the_guide(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for tool, name in (("systemd-sysusers", "postd.sysusers"), ("systemd-tmpfiles --create", "postd.tmpfiles")):
        lines = (ETC / name).read_bytes()
        subprocess.run([*tool.split(), f"--root={tmp_path}", "-"], input=lines, timeout=PATIENCE_S, check=True)
    made = (tmp_path / "var/lib/postd").stat()
    assert stat.S_IMODE(made.st_mode) == 0o700
    assert re.search(
        rf"^postd:[^:]*:{made.st_uid}:.*:/var/lib/postd:", (tmp_path / "etc/passwd").read_text(), re.MULTILINE
    )


def test_sandbox_exposure_is_low() -> None:
    output = analyze("security", "--offline=true", "--no-pager", str(UNIT))
    exposure = re.findall(r"Overall exposure level for postd\.service: ([0-9.]+)", output)
    assert float(exposure[0]) <= SECURITY_MAX, output


def test_service_settings_fit_the_units() -> None:
    loaded = load_settings(str(ETC / "service.toml.example"), {}, Path("/"))
    socket_unit = (ETC / "postd.socket").read_text()
    assert f"\nFileDescriptorName={NAME}\n" in socket_unit
    assert loaded.settings.listen == (BY_NAME["UNIX"],)
    assert re.search(r"^ListenStream=/", socket_unit, re.MULTILINE)
    unit = UNIT.read_text()
    assert "\nStateDirectory=postd\n" in unit
    assert loaded.settings.store == "sqlite:/var/lib/postd/postd.db"
    assert loaded.settings.users == "/var/lib/postd/users"
    assert "\nLogsDirectory=postd\n" in unit
    assert '\n#[log]\n#access_file = "/var/log/postd/access.log"\n' in (ETC / "service.toml.example").read_text()
    # Its requests have the time that it gives them.
    stop = re.findall(r"^TimeoutStopSec=(\d+)s$", unit, re.MULTILINE)
    assert int(stop[0]) > loaded.settings.shutdown_grace_s


def test_unit_starts_a_working_server(tmp_path: Path) -> None:
    """With the command and the PATH of the unit, except for the locations."""
    unit = UNIT.read_text()
    for there, here in (
        ("/opt/postd/bin", str(Path(TWISTD).parent)),
        ("/etc/postd/postd.toml", str(shutil.copy(ETC / "postd.toml", tmp_path))),
        ("/var/lib/postd", str(tmp_path)),
    ):
        assert there in unit
        unit = unit.replace(there, here)
    keys = ("ExecStart", "Environment=PATH", "WorkingDirectory")
    command, path, folder = (re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)[0] for key in keys)
    port = free_port()
    listen = f"--listen=tcp:{port}:interface=127.0.0.1"
    process = subprocess.Popen([*command.split(), listen], cwd=folder, env={"PATH": path})
    try:
        assert wait_for_answer(f"http://127.0.0.1:{port}/post") == "[]\n"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert (tmp_path / "postd.db").exists()


def test_socket_of_systemd_is_served(tmp_path: Path) -> None:
    port = free_port()
    systemd = ["systemd-socket-activate", f"--listen=127.0.0.1:{port}", f"--fdname={NAME}"]
    daemon = [TWISTD, "-n", "--pidfile=", "postd", f"--listen={BY_NAME['INET']}", "--store=memory:"]
    process = subprocess.Popen([*systemd, *daemon], cwd=tmp_path)
    try:
        assert wait_for_answer(f"http://127.0.0.1:{port}/post") == "[]\n"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def wait_for_answer(url: str) -> str:
    deadline = time.monotonic() + START_MAX_S
    while True:
        try:
            return httpx.get(url, timeout=PATIENCE_S).text
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


class Systemd:
    """Starts servers as systemd does: passes a listening socket, and receives their notifications.

    Args:
        folder: the working directory, also of UNIX sockets.
        family: `INET` or `UNIX`.
        watchdog_s: the watchdog interval.
    """

    def __init__(self, folder: Path, family: str, *, watchdog_s: float = 0) -> None:
        self._folder = folder
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind(str(folder / "notify"))
        self._watchdog_s = watchdog_s
        self.unix = folder / "http.sock"
        if family == "UNIX":
            self.held = socket.socket(socket.AF_UNIX)
            self.held.bind(str(self.unix))
            self.unix.chmod(0o660)
            self.held.listen(100)
        else:
            self.held = socket.create_server(("127.0.0.1", 0))
        self._listen = ("--listen", BY_NAME[family])
        self.heard: list[tuple[float, str]] = []
        self._hearing = threading.Thread(target=self._hear)

    def __enter__(self) -> Self:
        self._hearing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._notified.shutdown(socket.SHUT_RD)
        self._hearing.join()
        self._notified.close()
        self.held.close()

    def _hear(self) -> None:
        while message := self._notified.recv(4096):
            self.heard.append((time.monotonic(), message.decode()))

    def daemon(self, *options: str) -> Daemon:
        """Return a server that is not started yet; the caller need not wait for `READY=1`."""
        environment = f"LISTEN_FDS=1 LISTEN_FDNAMES={NAME} NOTIFY_SOCKET={self._folder}/notify"
        if self._watchdog_s:
            environment += f" WATCHDOG_USEC={self._watchdog_s * 1_000_000:.0f} WATCHDOG_PID=$$"
        # The first socket is number 3, and the process that they are for is named.
        script = f'exec 3<&{self.held.fileno()}; {environment} LISTEN_PID=$$ exec "$@"'
        return Daemon(
            self._folder,
            *self._listen,
            *options,
            listen=None,
            wait=False,
            through=("bash", "-c", script, "bash"),
            pass_fds=[self.held.fileno()],
        )

    @contextmanager
    def start(self, *options: str) -> Iterator[Daemon]:
        """Start a server; it has sent `READY=1` when the block begins."""
        since = len(self.heard)
        with self.daemon(*options) as daemon:
            self.wait_for("READY=1", since=since)
            yield daemon

    def wait_for(self, pattern: str, *, since: int = 0, times: int = 1) -> int:
        """Wait for a notification line; return how many came before it."""
        deadline = time.monotonic() + START_MAX_S
        while True:
            found = [
                place
                for place, (_, message) in enumerate(self.heard[since:], start=since + 1)
                if re.search(f"^(?:{pattern})$", message, re.MULTILINE)
            ]
            if len(found) >= times:
                return found[times - 1]
            assert time.monotonic() < deadline, self.heard
            time.sleep(0.02)

    def connect(self) -> socket.socket:
        client = socket.socket(self.held.family)
        client.settimeout(START_MAX_S)
        client.connect(self.held.getsockname())
        return client


def ask(client: socket.socket) -> bytes:
    """Request the list; return all received bytes."""
    client.sendall(REQUEST)
    return receive(client)


def receive(client: socket.socket) -> bytes:
    received = b""
    while data := client.recv(65536):
        received += data
    return received


@pytest.mark.parametrize(("family", "workers"), [("INET", 1), ("UNIX", 2)])
def test_notifications_and_socket_over_restarts(tmp_path: Path, family: str, workers: int) -> None:
    watchdog_s = 1.0
    with Systemd(tmp_path, family, watchdog_s=watchdog_s) as systemd:
        with systemd.start("--workers", str(workers)) as daemon:
            # Connections from now on are served.
            with systemd.connect() as client:
                assert ask(client).startswith(b"HTTP/1.1 200 OK")
            systemd.wait_for(r"STATUS=.*ready.*")
            # The word is the main process's, which systemd has started.
            for pid in daemon.workers.values():
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                assert b"NOTIFY_SOCKET" not in environment
                assert b"WATCHDOG" not in environment

            systemd.wait_for("WATCHDOG=1", times=4)
            beats = [when for when, message in systemd.heard if "WATCHDOG=1" in message]
            assert beats[3] - beats[0] > watchdog_s  # at half of the time; the machine may be busy, but not early

            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            reloading = len(systemd.heard)
            daemon.process.send_signal(signal.SIGHUP)
            reloading = systemd.wait_for("RELOADING=1", since=reloading)
            when = re.search(r"^MONOTONIC_USEC=(\d+)$", systemd.heard[reloading - 1][1], re.MULTILINE)
            assert when is not None
            assert int(when[1]) >= before
            stopping = systemd.wait_for("READY=1", since=reloading)

            pids = daemon.workers.values()
            assert daemon.stop() == -signal.SIGTERM
            systemd.wait_for("STOPPING=1", since=stopping)
            wait_for_end(*pids)
            assert "READY=1" not in "\n".join(message for _, message in systemd.heard[stopping:])

        # What it was given is as it was, with its name, its mode, and those who connect meanwhile.
        if family == "UNIX":
            assert stat.S_IMODE(systemd.unix.stat().st_mode) == 0o660
        with systemd.connect() as client:
            client.sendall(REQUEST)
            systemd.held.settimeout(START_MAX_S)
            accepted, _ = systemd.held.accept()
            with accepted:
                assert accepted.recv(1000) == REQUEST


def test_client_that_connects_during_restart_is_served(tmp_path: Path) -> None:
    with Systemd(tmp_path, "UNIX") as systemd, ExitStack() as closing:
        with systemd.start():
            pass
        clients = [closing.enter_context(systemd.connect()) for _ in range(3)]
        for client in clients:
            client.sendall(REQUEST)
        # One that is refused leaves them waiting.
        with systemd.daemon("--store", f"sqlite:{tmp_path}") as daemon:
            assert daemon.process.wait(START_MAX_S) == 1
            assert "postd: --store: " in daemon.log
        clients.append(closing.enter_context(systemd.connect()))
        clients[-1].sendall(REQUEST)
        with systemd.start():
            for client in clients:
                assert receive(client).startswith(b"HTTP/1.1 200 OK")


def test_unavailable_store_is_reported_and_start_completes(tmp_path: Path) -> None:
    with Systemd(tmp_path, "INET") as systemd, systemd.start("--store", f"redis://127.0.0.1:{free_port()}"):
        systemd.wait_for(r"STATUS=.*store.*")
        with systemd.connect() as client:
            assert ask(client).startswith(b"HTTP/1.1 503 ")
