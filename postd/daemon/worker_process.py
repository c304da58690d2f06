"""A worker process in its parent: messages to and from it (`worker_messages`), health checks, exit."""

import json
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, cast

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from postd.daemon.log import ACCESS_LOG
from postd.daemon.worker_messages import LINE_MAX_BYTES, LineBuffer
from postd.monitoring.tally import Metrics, decode

HEALTH_TIMEOUT_S = 2.0
"""How long a worker may take to answer a health check; longer than its store may take to answer."""

UNRESPONSIVE_MAX_S = 30.0
"""How long a worker may leave health checks unanswered before it is killed as hanging."""


class Pool(Protocol):
    """The receiver of the events of worker processes, implemented by `postd.daemon.worker_pool.WorkerPool`.

    Attributes:
        access_log: receives the lines of requests.
    """

    access_log: Logger

    def on_accepting(self) -> None:
        """Called when a worker accepts connections."""

    def on_ready(self, worker: "WorkerProcess") -> None:
        """Called when the store of a worker answers."""

    def on_failed(self, worker: "WorkerProcess", why: str) -> None:
        """Called when a worker cannot start."""

    def on_end(self, worker: "WorkerProcess", why: str) -> None:
        """Called when a worker has ended."""


class WorkerProcess(ProcessProtocol):
    """A worker process.

    Args:
        number: the number of the worker; a replacement has the same.
        start_message: its first message.
        pool: receives its events.

    Attributes:
        started_at_s: when it was started, by the reactor's clock.
        is_accepting, is_ready: whether it accepts connections, and its store answers.
        metrics: as of its last answer to a health check.
    """

    _log = Logger()

    def __init__(self, number: int, start_message: Mapping[str, object], pool: Pool) -> None:
        self.number = number
        self.started_at_s = 0.0
        self.is_accepting = self.is_ready = False
        self.metrics = Metrics()
        self._checks: dict[int, Deferred[dict[str, str] | None]] = {}
        self._last_check = 0
        self._unresponsive_since: float | None = None
        self._start_message = start_message
        self._pool = pool
        self._pid: int | None = None
        self._output, self._errors = LineBuffer(LINE_MAX_BYTES), LineBuffer(LINE_MAX_BYTES)

    def __str__(self) -> str:
        return f"worker {self.number} (process {self._pid})"

    def connectionMade(self) -> None:
        self._process = cast("Any", self.transport)
        self._pid = self._process.pid  # the process itself has none once it has ended
        self.send(self._start_message)

    def send(self, message: Mapping[str, object]) -> None:
        # Not msgspec: file names may contain bytes that are not UTF-8, and numbers in TOML may be inf and nan.
        self._process.write(json.dumps(message).encode() + b"\n")

    def check_health(self, clock: IReactorTime, *, full: bool) -> Deferred[dict[str, str] | None]:
        """Return its states (`postd.monitoring.health.Health`), None if it does not answer in time.

        `metrics` are up to date then.
        """
        now = clock.seconds()
        if self._unresponsive_since is None:
            self._unresponsive_since = now
        elif now - self._unresponsive_since > UNRESPONSIVE_MAX_S:
            self._log.error(
                "{worker} did not answer health checks for {s:.0f} s: killing it", worker=self, s=UNRESPONSIVE_MAX_S
            )
            self.kill()
        self._last_check += 1
        number = self._last_check
        check = self._checks[number] = Deferred()
        self.send({"health": number, "full": full})
        return check.addTimeout(HEALTH_TIMEOUT_S, clock).addErrback(self._give_up, number)

    def _give_up(self, failure: Failure, number: int) -> None:
        failure.trap(DeferredTimeoutError)
        del self._checks[number]

    def stop(self) -> None:
        """Let it finish running requests, then end."""
        self._process.closeStdin()

    def kill(self) -> None:
        with suppress(ProcessExitedAlready):
            self._process.signalProcess("KILL")

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        if childFD == 1:
            for line in self._output.feed(data):
                self._receive(line)
        else:
            self._log_output(self._errors.feed(data))

    def processEnded(self, reason: Failure) -> None:
        self._log_output(self._errors.flush())
        checks, self._checks = self._checks, {}
        for check in checks.values():
            check.callback({})
        self._pool.on_end(self, _why_ended(reason.value))

    def _receive(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:  # printed before the worker redirects its standard output
            self._log_output([line])
            return
        match message:
            case {"log": [level, namespace, text]}:
                self._relay(level, namespace, text)
            case {"health": [number, states, encoded]}:
                self._unresponsive_since = None
                metrics = decode(encoded)
                # An answer without `full` may arrive between one with it and the use of its gauges.
                metrics.gauges = self.metrics.gauges | metrics.gauges
                self.metrics = metrics
                check = self._checks.pop(number, None)
                if check is not None:
                    check.callback(states)
            case {"accepting": _}:
                self.is_accepting = True
                self._pool.on_accepting()
            case {"ready": _}:
                self.is_ready = True
                self._pool.on_ready(self)
            case {"failed": why}:
                self._pool.on_failed(self, why)

    def _relay(self, level: str, namespace: str, text: str) -> None:
        known = LogLevel.levelWithName(level)
        if namespace == ACCESS_LOG.namespace:  # its lines do not name the worker
            self._pool.access_log.emit(known, "{lines}", lines=text)
        else:
            Logger(namespace).emit(known, "worker {worker}: {relayed}", worker=self.number, relayed=text)

    def _log_output(self, lines: Iterable[bytes]) -> None:
        text = b"\n".join(lines).decode(errors="backslashreplace")
        if text:
            self._log.warn("{worker}: {text}", worker=self, text=text)


def _why_ended(error: BaseException | None) -> str:
    number = getattr(error, "signal", None)
    if number is None:
        return f"exit status {getattr(error, 'exitCode', None)}"
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"
