"""`twistd` and `postd` as processes that cost a tenth of a second each: forks of one that has their imports behind it.

Most of what a start takes is importing, the same for each of hundreds. Where the start itself is what a test is about,
or it needs a terminal of its own, it runs the script.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Self

from tests.helpers import PATIENCE_S
from tests.integration import fork_server


class ForkServer:
    """A fork server, from the first use until this process ends.

    Args:
        environment: what it and its processes have in their environment in addition to that of this process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment or {}
        self._lock = threading.Lock()
        self._control: socket.socket | None = None

    def start(
        self, command: Sequence[str], folder: Path, streams: Sequence[int], *, has_group: bool = False
    ) -> "Process":
        """Start a process.

        Args:
            command: the path of a script that `fork_server` knows, and its arguments.
            folder: where it is to be.
            streams: the descriptors that are to be its standard input, output and error.
            has_group: whether it is to lead a process group of its own.
        """
        wanted = {
            "command": list(command),
            "folder": str(folder),
            "environment": os.environ | self._environment,
            "has_group": has_group,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            socket.send_fds(self._connect(), [json.dumps(wanted).encode()], [*streams, theirs.fileno()])
        return Process(command, ours)

    def _connect(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # Not the folder of the program first: it has modules whose names may be libraries' as well.
            command = [sys.executable, "-P", fork_server.__file__]
            with theirs:
                process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=os.environ | self._environment,
                )
            atexit.register(_end, self._control, process)
        return self._control


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.wait()


class Process:
    """A forked process, with the interface of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], answers: socket.socket) -> None:
        self.args = command
        self.returncode: int | None = None
        self._answers = answers
        pid = self._read(PATIENCE_S)
        assert pid is not None
        self.pid = pid

    def _read(self, timeout_s: float | None) -> int | None:
        self._answers.settimeout(timeout_s)
        try:
            answer = self._answers.recv(100)
        except (BlockingIOError, TimeoutError):
            return None
        assert answer, "the fork server has ended"
        return int(answer)

    def _see(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            self.returncode = self._read(timeout_s)
            if self.returncode is not None:
                self._answers.close()
        return self.returncode

    def poll(self) -> int | None:
        return self._see(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._see(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


FORK_SERVER = ForkServer()


class Piped:
    """A process whose standard input, output and error are pipes; it is killed at the end of the `with` block."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = (os.pipe() for _ in range(3))
        theirs = [theirs_in, theirs_out, theirs_err]
        self.process = FORK_SERVER.start(command, folder, theirs)
        for descriptor in theirs:
            os.close(descriptor)
        self.stdin = os.fdopen(ours_in, "wb")
        self.stdout, self.stderr = os.fdopen(ours_out, "rb"), os.fdopen(ours_err, "rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                pipe.close()

    def write(self, given: bytes) -> None:
        self.stdin.write(given)
        self.stdin.flush()

    def end(self, given: bytes = b"") -> tuple[int, bytes, bytes]:
        """Write the end of its standard input, and wait for its own; return its status and what it has written."""
        with suppress(BrokenPipeError):  # it has ended without reading that
            self.write(given)
        with suppress(BrokenPipeError):
            self.stdin.close()
        printed, said = self.stdout.read(), self.stderr.read()
        return self.process.wait(PATIENCE_S), printed, said


def run(
    command: Sequence[str], folder: Path | None = None, *, given: bytes = b"", timeout_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[bytes]:
    """Run a command until it ends; return its status and what it has printed.

    Args:
        command: as for `ForkServer.start`.
        folder: where it is to be; here, unless given.
        given: what it reads on its standard input.
        timeout_s: after so many seconds it is killed.

    Raises:
        subprocess.TimeoutExpired: it was.
    """
    with ExitStack() as closing:
        stdin, stdout, stderr = (closing.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        stdin.write(given)
        stdin.seek(0)
        streams = [stream.fileno() for stream in (stdin, stdout, stderr)]
        process = FORK_SERVER.start(command, folder or Path.cwd(), streams)
        try:
            status = process.wait(timeout_s)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(list(command), status, _all_of(stdout), _all_of(stderr))


def _all_of(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()
