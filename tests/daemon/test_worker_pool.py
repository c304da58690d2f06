"""The parent's side of workers, with processes that only a test has started; tests/integration has real ones."""

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import Logger, LogLevel, capturedLogs, eventAsText
from twisted.python.failure import Failure

from postd.daemon.worker import TEXT_MAX_CHARS, Orders, Parent
from postd.daemon.worker_pool import (
    ANSWER_MAX_S,
    KILL_AFTER_S,
    RESTART_FIRST_S,
    RESTART_MAX_S,
    SETTLED_S,
    Lines,
    StartCallbacks,
    WorkerPool,
)
from postd.monitoring.health import Report
from postd.monitoring.tally import Numbers, encode
from postd.reactor import IReactor
from postd.settings.loading import LoadedSettings, load_settings


class Process:
    """A worker's process as the parent sees it."""

    def __init__(self, protocol: Any, arguments: list[str], pid: int) -> None:
        self.protocol = protocol
        self.arguments = arguments
        self.pid = pid
        self.heard = b""
        self.stdin_closed = False
        self.signals: list[str] = []
        protocol.makeConnection(self)

    def write(self, data: bytes) -> None:
        self.heard += data

    def closeStdin(self) -> None:
        self.stdin_closed = True

    def signalProcess(self, name: str) -> None:
        self.signals.append(name)

    def tell(self, **message: Any) -> None:
        self.protocol.childDataReceived(1, json.dumps(message).encode() + b"\n")

    def end(self, *, by: int | None = None) -> None:
        reason = ProcessDone(0) if by is None else ProcessTerminated(signal=by)
        self.protocol.processEnded(Failure(reason))


class Reactor(MemoryReactorClock):
    """A reactor that starts no process, but notes that it was to."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[Process] = []
        self.refuses = False

    def spawnProcess(self, protocol: Any, _executable: str, arguments: list[str], **_: Any) -> None:
        if self.refuses:
            raise OSError(11, "Resource temporarily unavailable")
        self.processes.append(Process(protocol, arguments, 1000 + len(self.processes)))


class Parts:
    """A pool of two workers, and what it has told."""

    def __init__(self, folder: Path) -> None:
        self.reactor = Reactor()
        self.told: list[str] = []
        self.pool = WorkerPool(
            load_settings(None, {}, folder),
            [],
            2,
            started=StartCallbacks(
                lambda: self.told.append("serving"), lambda: self.told.append("ready"), self.told.append
            ),
            renew=self.renew,
            reactor=cast(IReactor, self.reactor),
        )
        self.pool.startService()
        for function, arguments, named in self.reactor.whenRunningHooks:
            function(*arguments, **named)

    def renew(self, loaded: LoadedSettings) -> Callable[[], None]:
        self.told.append(f"{loaded.settings.realm} is looked at")
        return lambda: self.told.append("and good")

    @property
    def processes(self) -> list[Process]:
        return self.reactor.processes


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_each_is_told_its_number_and_the_settings(parts: Parts, tmp_path: Path) -> None:
    for number, process in enumerate(parts.processes, 1):
        assert process.arguments[1:] == ["-P", "-m", "postd.daemon.worker", str(number)]
        brief = json.loads(process.heard)
        assert brief["number"] == number
        assert brief["values"]["store"] == f"sqlite:{tmp_path}/postd.db"


def test_ready_is_told_once_when_all_are(parts: Parts) -> None:
    first, second = parts.processes
    first.tell(ready=True)
    assert parts.told == []
    second.tell(ready=True)
    assert parts.told == ["ready"]
    second.end(by=signal.SIGKILL)
    parts.reactor.advance(1)
    parts.processes[-1].tell(ready=True)
    assert parts.told == ["ready"]


@pytest.mark.parametrize("message", [{"ready": True}, {"refused": "p.db: not a database"}])
def test_nothing_is_told_when_the_stop_has_begun(parts: Parts, message: dict[str, object]) -> None:
    parts.pool.stopService()
    for process in parts.processes:
        process.tell(**message)
    assert parts.told == []


def test_one_that_ends_is_replaced_later_each_time_until_one_has_lived_for_a_while(parts: Parts) -> None:
    for delay_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, RESTART_MAX_S, RESTART_MAX_S):
        count = len(parts.processes)
        parts.processes[-1].end(by=signal.SIGSEGV)
        parts.reactor.advance(delay_s * 0.99)
        assert len(parts.processes) == count
        parts.reactor.advance(delay_s * 0.02)
        assert len(parts.processes) == count + 1
        assert parts.processes[-1].arguments[-1] == "2"
    parts.reactor.advance(SETTLED_S)
    count = len(parts.processes)
    parts.processes[-1].end(by=signal.SIGSEGV)
    parts.reactor.advance(0.1)
    assert len(parts.processes) == count + 1


def test_one_that_cannot_be_started_is_tried_again(parts: Parts) -> None:
    parts.reactor.refuses = True
    with capturedLogs() as events:
        parts.processes[0].end(by=signal.SIGKILL)
        parts.reactor.advance(0.1)
    assert "worker 1 could not be started: Resource temporarily unavailable; another" in eventAsText(events[-1])
    parts.reactor.refuses = False
    parts.reactor.advance(0.2)
    assert len(parts.processes) == 3


def test_one_that_cannot_ever_serve_ends_the_start_once(parts: Parts) -> None:
    first, second = parts.processes
    first.tell(refused="it is text")
    second.tell(refused="it is text")
    first.end()
    assert parts.told == ["it is text"]
    parts.reactor.advance(60)
    assert len(parts.processes) == 2


def test_once_all_have_served_one_that_cannot_is_tried_again(parts: Parts) -> None:
    for process in parts.processes:
        process.tell(ready=True)
    parts.processes[0].end()
    parts.reactor.advance(0.1)
    with capturedLogs() as events:
        parts.processes[2].tell(refused="it is text")
    assert "it is text" in eventAsText(events[0])
    parts.processes[2].end()
    parts.reactor.advance(1)
    assert parts.told == ["ready"]
    assert len(parts.processes) == 4


def test_a_stop_waits_for_all_and_kills_who_does_not_end(parts: Parts) -> None:
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


def test_a_stop_while_one_waits_to_be_replaced(parts: Parts) -> None:
    for process in parts.processes:
        process.end(by=signal.SIGKILL)
    assert parts.pool.stopService().called
    parts.reactor.advance(60)
    assert len(parts.processes) == 2


def test_other_settings_reach_all_and_those_that_come_later(parts: Parts, tmp_path: Path) -> None:
    heard: list[object] = []
    (tmp_path / "postd.toml").write_text('realm = "another"\n')
    parts.pool.reload(load_settings("postd.toml", {}, tmp_path))
    assert parts.told == ["another is looked at", "and good"]
    for process in parts.processes:
        _, data = process.heard.split(b"\n", 1)
        orders = Orders(
            reload=lambda values, where: heard.append((values["realm"], where["realm"])),
            report=lambda number, *, whole: heard.append((number, whole)),
            stop=lambda: heard.append("stop"),
        )
        orders.childDataReceived(0, data[:3])
        orders.childDataReceived(0, data[3:])
        orders.childDataReceived(0, b'{"report": 7, "whole": true}\n')
        orders.childConnectionLost(0, None)
    assert heard == [("another", "postd.toml: realm"), (7, True), "stop"] * 2
    parts.processes[0].end(by=signal.SIGKILL)
    parts.reactor.advance(RESTART_FIRST_S)
    assert json.loads(parts.processes[2].heard)["values"]["realm"] == "another"


class ReportTests:
    """What workers tell is the service's: added up, and never less than before."""

    def ask(self, parts: Parts) -> list[Report]:
        reports: list[Report] = []
        Deferred.fromCoroutine(parts.pool.report(whole=True)).addCallback(reports.append)
        return reports

    def test_before_any_serves(self, parts: Parts) -> None:
        (report,) = self.ask(parts)
        assert not report.is_ready

    def test_the_numbers_of_all_are_added_up(self, parts: Parts) -> None:
        for process in parts.processes:
            process.tell(serving=True)
        assert parts.told == ["serving"]
        reports = self.ask(parts)
        for count, process in enumerate(parts.processes, 3):
            process.tell(report=[1, {"store": "ok"}, encode(Numbers(counts={("asked",): count}, amounts={("x",): 1}))])
        assert reports[0].is_ready
        assert reports[0].numbers.counts["asked",] == 3 + 4
        assert reports[0].numbers.amounts["x",] == 2

    def test_a_look_in_between_takes_nothing_from_who_asks_for_the_whole(self, parts: Parts) -> None:
        first, second = parts.processes
        for process in parts.processes:
            process.tell(serving=True)
        reports = self.ask(parts)
        first.tell(report=[1, {"store": "ok"}, encode(Numbers(amounts={("x",): 1, ("y",): 5}))])
        first.tell(report=[2, {"store": "ok"}, encode(Numbers(amounts={("x",): 2}))])
        second.tell(report=[1, {"store": "ok"}, encode(Numbers(amounts={("x",): 1}))])
        assert reports[0].numbers.amounts["x",] == 3
        assert reports[0].numbers.amounts["y",] == 5

    def test_what_one_had_counted_that_has_ended_stays(self, parts: Parts) -> None:
        for process in parts.processes:
            process.tell(serving=True)
        self.ask(parts)
        told = encode(Numbers(counts={("asked",): 5}, amounts={("x",): 1}))
        parts.processes[0].tell(report=[1, {"store": "ok"}, told])
        parts.processes[0].end(by=signal.SIGKILL)
        reports = self.ask(parts)
        parts.processes[1].tell(report=[2, {"store": "ok"}, told])
        assert reports[0].numbers.counts["asked",] == 10
        assert reports[0].numbers.amounts["x",] == 1
        assert reports[0].numbers.counts["worker_ends",] == 1

    def test_one_that_does_not_answer_is_named_and_killed_in_the_end(self, parts: Parts) -> None:
        for process in parts.processes:
            process.tell(serving=True)
        for number in range(1, 40):
            reports = self.ask(parts)
            parts.processes[0].tell(report=[number, {"store": "ok"}, encode(Numbers())])
            parts.reactor.advance(ANSWER_MAX_S)
            assert reports[0].troubles == "worker 2: does not answer"
        assert parts.processes[1].signals[:1] == ["KILL"]
        assert not parts.processes[0].signals

    def test_what_is_wrong_with_one_is_wrong(self, parts: Parts) -> None:
        for process in parts.processes:
            process.tell(serving=True)
        reports = self.ask(parts)
        for process, state in zip(parts.processes, ("away", "ok"), strict=True):
            process.tell(report=[1, {"store": state}, encode(Numbers())])
        assert reports[0].troubles == "store: away"


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
    Parent(writing).log(event)
    with capturedLogs() as events:
        parts.processes[0].protocol.childDataReceived(1, os.read(reading, 100_000))
    return [(one["log_namespace"], one["log_level"], eventAsText(one).partition("] ")[2]) for one in events]


def test_lines_of_the_access_log_are_relayed_as_they_are(parts: Parts, pipe: tuple[int, int]) -> None:
    with capturedLogs() as events:
        Logger("postd.access").info("{lines}", lines='"a" {x}\n"ü\udcff"')
    assert relayed(parts, pipe, events[0]) == [("postd.access", LogLevel.info, '"a" {x}\n"ü\udcff"')]


def test_what_else_a_worker_logs_is_relayed_with_its_number_and_tracebacks(parts: Parts, pipe: tuple[int, int]) -> None:
    with capturedLogs() as events:
        Logger("postd.somewhere").failure("{what} failed", Failure(ValueError("why")), what="{it}")
    ((namespace, level, text),) = relayed(parts, pipe, events[0])
    assert (namespace, level) == ("postd.somewhere", LogLevel.critical)
    assert text.startswith("worker 1: {it} failed\nTraceback")
    assert "ValueError: why" in text


def test_a_long_text_is_relayed_in_pieces_cut_at_ends_of_lines(parts: Parts, pipe: tuple[int, int]) -> None:
    lines = [f"{n} " + "x" * 500 for n in range(TEXT_MAX_CHARS // 500)]
    with capturedLogs() as events:
        Logger("postd.access").info("{lines}", lines="\n".join(lines))
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 100_000)  # nobody reads it meanwhile
    pieces = relayed(parts, pipe, events[0])
    assert len(pieces) == 2
    assert "\n".join(text for _, _, text in pieces) == "\n".join(lines)


def test_what_is_told_in_the_middle_of_telling_something_does_not_wait_for_itself(pipe: tuple[int, int]) -> None:
    """A signal takes the part of the garbage collector, which may have something to log at any time."""
    reading, writing = pipe
    parent = Parent(writing)
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"\n" * 4096)
    os.set_blocking(writing, True)

    def drain() -> None:
        time.sleep(0.5)
        while b"outer" not in b"".join(found):
            found.append(os.read(reading, 65536))

    def interrupt(*_: object) -> None:
        alarms.append(None)
        assert len(alarms) == 1, "it waits for itself"
        parent.tell("ready", "inner")

    found: list[bytes] = []
    alarms: list[None] = []
    draining = threading.Thread(target=drain, daemon=True)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        draining.start()
        signal.setitimer(signal.ITIMER_REAL, 0.1, 10)
        parent.tell("ready", "outer")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    draining.join()
    lines = b"".join(found).split()
    assert lines == [b'{"ready":', b'"inner"}', b'{"ready":', b'"outer"}']


def test_a_parent_that_is_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    Parent(writing).tell("refused", "why")
    os.close(writing)


def test_what_is_no_message_is_logged(parts: Parts) -> None:
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
        "worker 2 (process 1001) ended: killed by SIGABRT; another follows in 0.1 s",
    ]


def test_lines_are_cut_where_they_end() -> None:
    lines = Lines(10)
    assert list(lines.take(b"a\nb")) == [b"a"]
    assert list(lines.take(b"c")) == []
    assert list(lines.take(b"d\n\n")) == [b"bcd", b""]
    assert list(lines.rest()) == []
    assert list(lines.take(b"end")) == []
    assert list(lines.rest()) == [b"end"]


def test_a_line_without_end_does_not_grow() -> None:
    lines = Lines(10)
    taken = [line for _ in range(10) for line in lines.take(b"x" * 7)]
    assert taken == [b"x" * 10] * 6
    assert list(lines.rest()) == [b"x" * 10]
