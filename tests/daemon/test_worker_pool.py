"""The pool of workers, with fake processes; tests/integration has real ones."""

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import Logger, LogLevel, capturedLogs, eventAsText
from twisted.python.failure import Failure

from postd.daemon.server import StartCallbacks
from postd.daemon.worker import TEXT_MAX_CHARS, ParentCommands, ParentConnection
from postd.daemon.worker_pool import KILL_AFTER_S, RESTART_FIRST_S, RESTART_MAX_S, STABLE_AFTER_S, WorkerPool
from postd.daemon.worker_process import HEALTH_TIMEOUT_S
from postd.monitoring.health import Health
from postd.monitoring.tally import Metrics, encode
from postd.reactor import IReactor, ServiceClock
from postd.settings.loading import LoadedSettings, load_settings


class Process:
    """A worker's process as the parent sees it."""

    def __init__(self, protocol: Any, arguments: list[str], pid: int) -> None:
        self.protocol = protocol
        self.arguments = arguments
        self.pid = pid
        self.received = b""
        self.stdin_closed = False
        self.signals: list[str] = []
        protocol.makeConnection(self)

    def write(self, data: bytes) -> None:
        self.received += data

    def closeStdin(self) -> None:
        self.stdin_closed = True

    def signalProcess(self, name: str) -> None:
        self.signals.append(name)

    def send(self, **message: Any) -> None:
        self.protocol.childDataReceived(1, json.dumps(message).encode() + b"\n")

    def end(self, *, by: int | None = None) -> None:
        reason = ProcessDone(0) if by is None else ProcessTerminated(signal=by)
        self.protocol.processEnded(Failure(reason))


class Reactor(MemoryReactorClock):
    """A reactor that records processes instead of starting them."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[Process] = []
        self.refuses = False

    def spawnProcess(self, protocol: Any, _executable: str, arguments: list[str], **_: Any) -> None:
        if self.refuses:
            raise OSError(11, "Resource temporarily unavailable")
        self.processes.append(Process(protocol, arguments, 1000 + len(self.processes)))


class Parts:
    """A pool of two workers, and the calls of its callbacks."""

    def __init__(self, folder: Path) -> None:
        self.reactor = Reactor()
        self.calls: list[str] = []
        reactor = cast(IReactor, self.reactor)
        self.clock = ServiceClock(reactor, offset_s=1000.0)
        self.pool = WorkerPool(
            load_settings(None, {}, folder),
            [],
            2,
            callbacks=StartCallbacks(
                lambda: self.calls.append("accepting"), lambda: self.calls.append("ready"), self.calls.append
            ),
            prepare_reload=self.prepare_reload,
            clock=self.clock,
            reactor=reactor,
        )
        self.pool.startService()
        for function, arguments, named in self.reactor.whenRunningHooks:
            function(*arguments, **named)

    def prepare_reload(self, loaded: LoadedSettings) -> Callable[[], None]:
        self.calls.append(f"prepare {loaded.settings.realm}")
        return lambda: self.calls.append("apply")

    @property
    def processes(self) -> list[Process]:
        return self.reactor.processes


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_start_message_has_number_clock_and_settings(parts: Parts, tmp_path: Path) -> None:
    for number, process in enumerate(parts.processes, 1):
        assert process.arguments[1:] == ["-P", "-m", "postd.daemon.worker", str(number)]
        message = json.loads(process.received)
        assert message["number"] == number
        assert message["clock"] == 1000
        assert message["values"]["store"] == f"sqlite:{tmp_path}/postd.db"


def test_ready_is_called_once_all_workers_are_ready(parts: Parts) -> None:
    first, second = parts.processes
    first.send(ready=True)
    assert parts.calls == []
    second.send(ready=True)
    assert parts.calls == ["ready"]
    second.end(by=signal.SIGKILL)
    parts.reactor.advance(1)
    parts.processes[-1].send(ready=True)
    assert parts.calls == ["ready"]


@pytest.mark.parametrize("message", [{"ready": True}, {"failed": "p.db: not a database"}])
def test_no_callback_is_called_during_a_stop(parts: Parts, message: dict[str, object]) -> None:
    parts.pool.stopService()
    for process in parts.processes:
        process.send(**message)
    assert parts.calls == []


def test_restart_delay_doubles_until_a_worker_is_stable(parts: Parts) -> None:
    for delay_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, RESTART_MAX_S, RESTART_MAX_S):
        count = len(parts.processes)
        parts.processes[-1].end(by=signal.SIGSEGV)
        parts.reactor.advance(delay_s * 0.99)
        assert len(parts.processes) == count
        parts.reactor.advance(delay_s * 0.02)
        assert len(parts.processes) == count + 1
        assert parts.processes[-1].arguments[-1] == "2"
    parts.reactor.advance(STABLE_AFTER_S)
    count = len(parts.processes)
    parts.processes[-1].end(by=signal.SIGSEGV)
    parts.reactor.advance(0.1)
    assert len(parts.processes) == count + 1


def test_worker_that_cannot_be_spawned_is_retried(parts: Parts) -> None:
    parts.reactor.refuses = True
    with capturedLogs() as events:
        parts.processes[0].end(by=signal.SIGKILL)
        parts.reactor.advance(0.1)
    assert "worker 1 could not be started: Resource temporarily unavailable; starting another" in eventAsText(
        events[-1]
    )
    parts.reactor.refuses = False
    parts.reactor.advance(0.2)
    assert len(parts.processes) == 3


def test_failed_worker_fails_the_start_once(parts: Parts) -> None:
    first, second = parts.processes
    first.send(failed="it is text")
    second.send(failed="it is text")
    first.end()
    assert parts.calls == ["it is text"]
    parts.reactor.advance(60)
    assert len(parts.processes) == 2


def test_failed_worker_is_restarted_once_all_were_ready(parts: Parts) -> None:
    for process in parts.processes:
        process.send(ready=True)
    parts.processes[0].end()
    parts.reactor.advance(0.1)
    with capturedLogs() as events:
        parts.processes[2].send(failed="it is text")
    assert "it is text" in eventAsText(events[0])
    parts.processes[2].end()
    parts.reactor.advance(1)
    assert parts.calls == ["ready"]
    assert len(parts.processes) == 4


def test_stop_waits_for_all_workers_and_kills_late_ones(parts: Parts) -> None:
    first, second = parts.processes
    stopping = parts.pool.stopService()
    assert first.stdin_closed
    assert second.stdin_closed
    first.end()
    parts.reactor.advance(10 + KILL_AFTER_S - 1)  # shutdown_grace is 10 s
    assert second.signals == []
    parts.reactor.advance(1)
    assert second.signals == ["KILL"]
    assert first.signals == []
    assert not stopping.called
    second.end(by=signal.SIGKILL)
    assert stopping.called
    assert parts.reactor.getDelayedCalls() == []


def test_stop_cancels_pending_restarts(parts: Parts) -> None:
    for process in parts.processes:
        process.end(by=signal.SIGKILL)
    assert parts.pool.stopService().called
    parts.reactor.advance(60)
    assert len(parts.processes) == 2


def test_reload_reaches_all_workers_and_later_replacements(parts: Parts, tmp_path: Path) -> None:
    (tmp_path / "postd.toml").write_text('realm = "another"\n')
    parts.pool.reload(load_settings("postd.toml", {}, tmp_path))
    assert parts.calls == ["prepare another", "apply"]
    for process in parts.processes:
        _, data = process.received.split(b"\n", 1)
        received: list[Any] = []
        commands = ParentCommands(received.append, partial(received.append, "stop"))
        commands.childDataReceived(0, data[:3])
        commands.childDataReceived(0, data[3:])
        commands.childDataReceived(0, b'{"health": 7, "full": true}\n')
        commands.childConnectionLost(0, None)
        reload = received.pop(0)["reload"]
        assert (reload["values"]["realm"], reload["where"]["realm"]) == ("another", "postd.toml: realm")
        assert received == [{"health": 7, "full": True}, "stop"]
    parts.processes[0].end(by=signal.SIGKILL)
    parts.reactor.advance(RESTART_FIRST_S)
    assert json.loads(parts.processes[2].received)["values"]["realm"] == "another"


class HealthTests:
    """The health of all workers together; their counters never decrease."""

    def check(self, parts: Parts) -> list[Health]:
        results: list[Health] = []
        Deferred.fromCoroutine(parts.pool.health(full=True)).addCallback(results.append)
        return results

    def test_pool_is_not_ready_before_a_worker_accepts(self, parts: Parts) -> None:
        (health,) = self.check(parts)
        assert not health.is_ready

    def test_metrics_of_all_workers_are_added_up(self, parts: Parts) -> None:
        for process in parts.processes:
            process.send(accepting=True)
        assert parts.calls == ["accepting"]
        results = self.check(parts)
        for count, process in enumerate(parts.processes, 3):
            process.send(
                health=[1, {"store": "ok"}, encode(Metrics(counters={("requests",): count}, gauges={("x",): 1}))]
            )
        assert results[0].is_ready
        assert results[0].metrics.counters["requests",] == 3 + 4
        assert results[0].metrics.gauges["x",] == 2

    def test_concurrent_check_keeps_gauges_of_a_full_one(self, parts: Parts) -> None:
        first, second = parts.processes
        for process in parts.processes:
            process.send(accepting=True)
        results = self.check(parts)
        first.send(health=[1, {"store": "ok"}, encode(Metrics(gauges={("x",): 1, ("y",): 5}))])
        first.send(health=[2, {"store": "ok"}, encode(Metrics(gauges={("x",): 2}))])
        second.send(health=[1, {"store": "ok"}, encode(Metrics(gauges={("x",): 1}))])
        assert results[0].metrics.gauges["x",] == 3
        assert results[0].metrics.gauges["y",] == 5

    def test_counters_of_an_ended_worker_remain(self, parts: Parts) -> None:
        for process in parts.processes:
            process.send(accepting=True)
        self.check(parts)
        encoded = encode(Metrics(counters={("requests",): 5}, gauges={("x",): 1}))
        parts.processes[0].send(health=[1, {"store": "ok"}, encoded])
        parts.processes[0].end(by=signal.SIGKILL)
        results = self.check(parts)
        parts.processes[1].send(health=[2, {"store": "ok"}, encoded])
        assert results[0].metrics.counters["requests",] == 10
        assert results[0].metrics.gauges["x",] == 1
        assert results[0].metrics.counters["worker_ends",] == 1

    def test_unresponsive_worker_is_named_then_killed(self, parts: Parts) -> None:
        for process in parts.processes:
            process.send(accepting=True)
        for number in range(1, 40):
            results = self.check(parts)
            parts.processes[0].send(health=[number, {"store": "ok"}, encode(Metrics())])
            parts.reactor.advance(HEALTH_TIMEOUT_S)
            assert results[0].problems == "worker 2: does not answer"
        assert parts.processes[1].signals[:1] == ["KILL"]
        assert not parts.processes[0].signals

    def test_problem_of_one_worker_is_reported(self, parts: Parts) -> None:
        for process in parts.processes:
            process.send(accepting=True)
        results = self.check(parts)
        for process, state in zip(parts.processes, ("away", "ok"), strict=True):
            process.send(health=[1, {"store": state}, encode(Metrics())])
        assert results[0].problems == "store: away"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def relayed(parts: Parts, pipe: tuple[int, int], event: dict[str, Any]) -> list[tuple[str, LogLevel, str]]:
    """Log an event in worker 1; return what its parent logs."""
    reading, writing = pipe
    ParentConnection(writing).log(event)
    with capturedLogs() as events:
        parts.processes[0].protocol.childDataReceived(1, os.read(reading, 100_000))
    return [(one["log_namespace"], one["log_level"], eventAsText(one).partition("] ")[2]) for one in events]


def test_access_log_lines_are_relayed_unchanged(parts: Parts, pipe: tuple[int, int]) -> None:
    with capturedLogs() as events:
        Logger("postd.access").info("{lines}", lines='"a" {x}\n"ü\udcff"')
    assert relayed(parts, pipe, events[0]) == [("postd.access", LogLevel.info, '"a" {x}\n"ü\udcff"')]


def test_other_events_are_relayed_with_worker_number_and_traceback(parts: Parts, pipe: tuple[int, int]) -> None:
    with capturedLogs() as events:
        Logger("postd.somewhere").failure("{what} failed", Failure(ValueError("why")), what="{it}")
    ((namespace, level, text),) = relayed(parts, pipe, events[0])
    assert (namespace, level) == ("postd.somewhere", LogLevel.critical)
    assert text.startswith("worker 1: {it} failed\nTraceback")
    assert "ValueError: why" in text


def test_long_text_is_relayed_in_pieces_split_between_lines(parts: Parts, pipe: tuple[int, int]) -> None:
    lines = [f"{n} " + "x" * 500 for n in range(TEXT_MAX_CHARS // 500)]
    with capturedLogs() as events:
        Logger("postd.access").info("{lines}", lines="\n".join(lines))
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 100_000)  # it is read only afterwards
    pieces = relayed(parts, pipe, events[0])
    assert len(pieces) == 2
    assert "\n".join(text for _, _, text in pieces) == "\n".join(lines)


def test_sending_during_a_send_does_not_deadlock(pipe: tuple[int, int]) -> None:
    """A signal stands for a garbage collection, which may log at any time."""
    reading, writing = pipe
    parent = ParentConnection(writing)
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"\n" * 4096)
    os.set_blocking(writing, True)

    def drain() -> None:
        while not alarms:
            time.sleep(0.01)
        while b"outer" not in b"".join(found):
            found.append(os.read(reading, 65536))

    def interrupt(*_: object) -> None:
        alarms.append(None)
        assert len(alarms) == 1, "deadlock"
        parent.send("ready", "inner")

    found: list[bytes] = []
    alarms: list[None] = []
    draining = threading.Thread(target=drain, daemon=True)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        draining.start()
        signal.setitimer(signal.ITIMER_REAL, 0.1, 10)
        parent.send("ready", "outer")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    draining.join()
    lines = b"".join(found).split()
    assert lines == [b'{"ready":', b'"inner"}', b'{"ready":', b'"outer"}']


def test_send_to_an_ended_parent_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ParentConnection(writing).send("failed", "why")
    os.close(writing)


def test_output_other_than_messages_is_logged(parts: Parts) -> None:
    process = parts.processes[1]
    with capturedLogs() as events:
        process.protocol.childDataReceived(1, b"printed by the interpreter\n")
        process.protocol.childDataReceived(2, b"Fatal\nerror\nand ")
        process.protocol.childDataReceived(2, b"\xffmore")
        process.end(by=signal.SIGABRT)
    texts = [eventAsText(event, includeTimestamp=False, includeSystem=False) for event in events]
    assert texts == [
        "worker 2 (process 1001): printed by the interpreter",
        "worker 2 (process 1001): Fatal\nerror",
        "worker 2 (process 1001): and \\xffmore",
        "worker 2 (process 1001) ended: killed by SIGABRT; starting another in 0.1 s",
    ]
