"""A real `twistd postd` process, by default forked from one that has done its imports."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Self

import pytest

from postd.daemon.tap import Options, makeService
from tests.helpers import PATIENCE_S, wait_until
from tests.integration.forking import FORK_SERVER, ForkServer, Process, run

TWISTD = str(Path(sys.executable).parent / "twistd")
FREE_PORT = "tcp:0:interface=127.0.0.1"
START_MAX_S = STOP_MAX_S = PATIENCE_S


class Daemon:
    """`twistd -n postd`, by default on a free port; ends with the `with` block.

    `through` is what is to run its script: a fork server, or a program, such as a shell that sets limits, as words
    before the command. `pass_fds` are descriptors that it inherits, then without a fork server.
    """

    process: subprocess.Popen[bytes] | Process

    def __init__(
        self,
        folder: Path,
        *options: str,
        listen: str | None = FREE_PORT,
        wait: bool = True,
        through: Sequence[str] | ForkServer = FORK_SERVER,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.folder = folder
        self.log_file = folder / "log"
        self._options = [*(["--listen", listen] if listen else []), *options]
        self._wait = wait
        self._through = through
        self._pass_fds = pass_fds

    def __enter__(self) -> Self:
        command = [TWISTD, "--nodaemon", "--pidfile=", "postd", *self._options]
        through = self._through
        with self.log_file.open("wb") as log, Path(os.devnull).open("rb") as nothing:
            if isinstance(through, ForkServer) and not self._pass_fds:
                streams = [nothing.fileno(), log.fileno(), log.fileno()]
                self.process = through.start(command, self.folder, streams, has_group=True)
            else:
                self.process = subprocess.Popen(
                    command if isinstance(through, ForkServer) else [*through, *command],
                    cwd=self.folder,
                    stdin=nothing,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                    pass_fds=self._pass_fds,
                )
        if self._wait:
            self.wait_for("postd ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def url(self) -> str:
        """The first address of the last `postd ready` line, without its final slash."""
        ready = re.findall(r"postd ready: (\S+?)/?[,;]", self.log)
        url: str = ready[-1]
        return url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connect(self) -> socket.socket:
        """Return a connection to its first address."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    @property
    def workers(self) -> dict[int, int]:
        """The process ids of its workers, by number."""
        return find_workers(self.process.pid)

    def wait_for(self, words: str, times: int = 1) -> None:
        """Wait until the log contains a text the given number of times."""
        deadline = time.monotonic() + START_MAX_S
        while self.log.count(words) < times:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Press Ctrl-C in its terminal, which signals all its processes."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop it with SIGTERM; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not stop: {self.log}") from None


def find_workers(pid: int) -> dict[int, int]:
    """Return the process ids of the workers of a process, by number."""
    found = {}
    for child in _read_of_process(f"{pid}/task/{pid}/children").split():
        command = _read_of_process(f"{child}/cmdline").split("\0")
        name = _read_of_process(f"{child}/comm").split()
        if "postd.daemon.worker" in command:
            found[int(command[-2])] = int(child)
        elif name[:1] == ["worker"]:  # one that `fork_server` has made
            found[int(name[1])] = int(child)
    return found


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    status = _read_of_process(f"{pid}/status")
    return bool(status) and "\nState:\tZ" not in status


def _read_of_process(file: str) -> str:
    """Return a file below /proc, empty if its process has ended before or while it was read."""
    try:
        return Path("/proc", file).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for_end(*pids: int) -> None:
    """Wait for the end of processes, which need not be children."""
    wait_until(lambda: not any(map(is_running, pids)))


def refuse_here(folder: Path, *options: str) -> str:
    """Return the line that a failing start exits with; it runs in this process, in a tenth of the time."""
    parsed = Options()
    with chdir(folder), pytest.raises(SystemExit) as ended:
        parsed.parseOptions(options)
        makeService(parsed)
    line = str(ended.value.code)
    assert line.startswith("postd: ")
    assert "\n" not in line
    return line


def run_postd(
    folder: Path, *options: str, before: Sequence[str] = ("--nodaemon", "--pidfile=")
) -> subprocess.CompletedProcess[str]:
    """Run a `twistd postd` that is expected to end by itself."""
    ended = run([TWISTD, *before, "postd", *options], folder, timeout_s=START_MAX_S)
    return subprocess.CompletedProcess(ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode())
