"""The parent of worker processes: it binds the listening sockets and starts the workers that accept on them.

A worker is `python -m postd.daemon.worker NUMBER` (`postd.daemon.worker`) and not a fork: a reactor cannot be forked
once twistd has made it run, nor can the threads of a store. Parent and worker exchange lines of JSON.

- To a worker's standard input: one line that says all that it has to know; later `{"reload": SETTINGS}`, and each
  second `{"report": NUMBER, "whole": BOOL}`. Its end is the word to stop: so workers do not outlive a parent that was
  killed. A worker takes SIGTERM for the same.
- From its standard output: `{"log": [LEVEL, NAMESPACE, TEXT]}`, `{"serving": true}` once it accepts, `{"ready": true}`
  once its store answers, `{"report": [NUMBER, STATES, NUMBERS]}` when it was asked for one, and `{"refused": WHY}`
  before it ends because it cannot ever serve as things are. The log is written here alone.
- From its standard error: whatever else it, or Python, has to say.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from postd.daemon.log import ACCESS_NAMESPACE
from postd.monitoring.health import OK, Report
from postd.monitoring.tally import Numbers, Tally, decode
from postd.net.listening import Listener, close, hand_over_to_workers
from postd.net.ports import InheritedSocket
from postd.reactor import IReactor
from postd.settings.loading import LoadedSettings

RESTART_FIRST_S, RESTART_MAX_S = 0.1, 10.0
"""How long after its end a worker is replaced: the first time, and at the most; it doubles in between."""

SETTLED_S = 10.0
"""How long a worker must have lived for its end to be the first again."""

KILL_AFTER_S = 5.0
"""When a worker that was told to end is killed, after what its requests have for their ends. That of its store takes
some time, too."""

ANSWER_MAX_S = 2.0
"""How long a worker may take to report: longer than a store may, which it asks how it is."""

SILENT_MAX_S = 30.0
"""When a worker that serves and does not report is killed: it hangs, and its clients with it."""

LINE_MAX_BYTES = 1024 * 1024
"""The longest line of a worker; what is longer is taken for several."""

FIRST_FD = 3
"""The file descriptor of the first socket in a worker."""


class StartCallbacks(Struct, frozen=True):
    """Who is told how a start turns out: `serving` when clients are accepted, `ready` once the store answers as well,
    `refused` why it never will.
    """

    serving: Callable[[], None]
    ready: Callable[[], None]
    refused: Callable[[str], None]


class WorkerPool(Service):
    """Worker processes that share the listeners of this one, which does not accept on them.

    Args:
        loaded: the settings; workers get these, whatever the settings file says by the time that one is replaced.
        listeners: the bound ports.
        count: how many workers.
        started: told once, when all of them serve and are ready, or one of them cannot ever be.
        renew: looks whether other settings can be used; may raise ConfigError.
        reactor: starts processes; its clock.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - the parent's side of all there is
        self,
        loaded: LoadedSettings,
        listeners: Sequence[Listener],
        count: int,
        *,
        started: StartCallbacks,
        renew: Callable[[LoadedSettings], Callable[[], None]],
        reactor: IReactor,
    ) -> None:
        self._loaded = loaded
        self._renew = renew
        self._tally = Tally()
        self._ended = Numbers()
        self._ends = 0
        self._listeners = listeners
        self._sockets = hand_over_to_workers(listeners)
        self._started = started
        self._reactor = reactor
        self._numbers = range(1, count + 1)
        self._workers: dict[int, _Worker] = {}
        self._restarts: dict[int, IDelayedCall] = {}
        self._delays_s = dict.fromkeys(self._numbers, RESTART_FIRST_S)
        self._was_serving = self._was_ready = self._was_refused = False
        self._all_gone: Deferred[None] | None = None

    def startService(self) -> None:
        super().startService()
        # Who sees a worker may ask us to end: by then the reactor takes the signals.
        self._reactor.callWhenRunning(self._start_all)

    def _start_all(self) -> None:
        for number in self._numbers:
            self._start(number)

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        for restart in self._restarts.values():
            restart.cancel()
        self._restarts.clear()
        if self._workers:
            self._all_gone = Deferred()
        # First: as long as a socket is open, clients are let in by the kernel, and wait for nobody.
        await close(self._listeners)
        if self._all_gone is not None:
            for worker in self._workers.values():
                worker.stop()
            killing = self._reactor.callLater(self._loaded.settings.shutdown_grace_s + KILL_AFTER_S, self._kill)
            await self._all_gone
            if killing.active():
                killing.cancel()

    def _kill(self) -> None:
        for worker in self._workers.values():
            self._log.error("{worker} does not end: it is killed", worker=worker)
            worker.kill()

    def reload(self, loaded: LoadedSettings) -> None:
        """Let all workers serve from now on as other settings say (`postd.daemon.operations.ReloadableServer`)."""
        self._renew(loaded)()
        self._loaded = loaded
        settings = {"values": dict(loaded.values), "where": dict(loaded.where)}
        for worker in self._workers.values():
            worker.say({"reload": settings})

    async def report(self, *, whole: bool) -> Report:
        """Return how all of them are together (`postd.daemon.operations.ReloadableServer`).

        What one that has ended had counted stays, but for the last second.
        """
        # All at the same time: two seconds for all of them together. Who was told to end hears nothing more.
        asking = [worker for worker in self._workers.values() if worker.is_serving and self.running]
        asked = [(worker, worker.ask(self._reactor, whole=whole)) for worker in asking]
        states = {} if self.running else {"service": "stopping"}
        numbers = Numbers(amounts={("workers",): 0})
        for worker, answer in asked:
            told = await answer
            if told is None:
                states[f"worker {worker.number}"] = "does not answer"
            else:
                states |= {what: state for what, state in told.items() if states.get(what, OK) == OK}
        serving = [worker for worker in self._workers.values() if worker.is_serving]  # one may have ended meanwhile
        for worker in serving:
            numbers.add(worker.numbers)
        numbers.add_lasting(self._ended)
        numbers.add(self._tally.numbers(whole=whole))
        numbers.counts["worker_ends",] = self._ends
        return Report(states or {"workers": "none serves yet"}, numbers)

    def _start(self, number: int) -> None:
        self._restarts.pop(number, None)
        # In the worker the sockets have the first numbers after the standard ones, in their order.
        handed = [replace(one, fd=FIRST_FD + place) for place, one in enumerate(self._sockets)]
        fds: dict[int, str | int] = {0: "w", 1: "r", 2: "r"}
        fds |= {there.fd: here.fd for there, here in zip(handed, self._sockets, strict=True)}
        worker = _Worker(number, self._brief(number, handed), self)
        command = [sys.executable, "-P", "-m", "postd.daemon.worker", str(number)]
        # Both reach all processes of a terminal at once; what they mean for workers we tell them. A process inherits
        # what is blocked: not even as long as Python starts do they reach it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            self._reactor.spawnProcess(worker, command[0], command, env=os.environ, childFDs=fds)
        except OSError as error:
            self._replace(number, f"worker {number} could not be started: {error.strerror}", lived_s=0)
        else:
            worker.since = self._reactor.seconds()
            self._workers[number] = worker
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _brief(self, number: int, sockets: Sequence[InheritedSocket]) -> dict[str, Any]:
        return {
            "number": number,
            "values": dict(self._loaded.values),
            "where": dict(self._loaded.where),
            "sockets": [asdict(one) for one in sockets],
        }

    def _replace(self, number: int, what: str, *, lived_s: float) -> None:
        if lived_s >= SETTLED_S:
            self._delays_s[number] = RESTART_FIRST_S
        delay_s = self._delays_s[number]
        self._delays_s[number] = min(delay_s * 2, RESTART_MAX_S)
        self._log.error("{what}; another follows in {delay_s:.1f} s", what=what, delay_s=delay_s)
        self._restarts[number] = self._reactor.callLater(delay_s, self._start, number)

    def on_serving(self) -> None:
        """Called when a worker accepts clients."""
        if self.running and not self._was_serving and self._all(attrgetter("is_serving")):
            self._was_serving = True
            self._started.serving()

    def _all(self, have: Callable[["_Worker"], bool]) -> bool:
        return len(self._workers) == len(self._numbers) and all(map(have, self._workers.values()))

    def on_ready(self, worker: "_Worker") -> None:
        """Called when the store of a worker answers."""
        if not self.running:  # the listeners, whose addresses would be told, are closed
            return
        if self._was_ready:
            self._log.info("{worker} is ready, in the place of the one that ended", worker=worker)
        elif self._all(attrgetter("is_ready")):
            self._was_ready = True
            self._started.ready()

    def on_refused(self, worker: "_Worker", why: str) -> None:
        """Called when a worker cannot serve as things are. Once all could, things may become as they were."""
        if self._was_ready:
            self._log.error("{worker}: {why}", worker=worker, why=why)
        elif self.running and not self._was_refused:
            self._was_refused = True
            self._started.refused(why)

    def on_end(self, worker: "_Worker", why: str) -> None:
        """Called when the process of a worker has ended."""
        self._workers.pop(worker.number, None)
        self._ended.add_lasting(worker.numbers)
        if self.running and not self._was_refused:
            self._ends += 1
            lived_s = self._reactor.seconds() - worker.since
            self._replace(worker.number, f"{worker} ended: {why}", lived_s=lived_s)
        elif self._all_gone is not None and not self._workers:
            self._all_gone.callback(None)


class _Worker(ProcessProtocol):
    """A worker process.

    Args:
        number: which one of them; the one that replaces it has the same.
        brief: its first line.
        pool: whose it is.
    """

    _log = Logger("postd.daemon.worker_pool")

    def __init__(self, number: int, brief: dict[str, Any], pool: WorkerPool) -> None:
        self.number = number
        self.since = 0.0
        self.is_serving = self.is_ready = False
        self.numbers = Numbers()
        self._asked: dict[int, Deferred[dict[str, str] | None]] = {}
        self._asked_last = 0
        self._silent_since: float | None = None
        self._brief = brief
        self._pool = pool
        self._pid: int | None = None
        self._messages, self._errors = Lines(LINE_MAX_BYTES), Lines(LINE_MAX_BYTES)

    def __str__(self) -> str:
        return f"worker {self.number} (process {self._pid})"

    def connectionMade(self) -> None:
        transport: Any = self.transport
        self._pid = transport.pid
        self.say(self._brief)

    def say(self, message: object) -> None:
        """Send it a line."""
        transport: Any = self.transport
        # Not msgspec: names of files may have what is not UTF-8 in them, and numbers in TOML may be inf and nan.
        transport.write(json.dumps(message).encode() + b"\n")

    def ask(self, clock: IReactorTime, *, whole: bool) -> Deferred[dict[str, str] | None]:
        """Ask for its health: its states (`postd.monitoring.health.Report`), None if it does not answer in time.

        `numbers` are then what it has counted.
        """
        now = clock.seconds()
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > SILENT_MAX_S:
            self._log.error("{worker} has not said anything for {s:.0f} s: it is killed", worker=self, s=SILENT_MAX_S)
            self.kill()
        self._asked_last += 1
        number = self._asked_last
        asking = self._asked[number] = Deferred()
        self.say({"report": number, "whole": whole})
        return asking.addTimeout(ANSWER_MAX_S, clock).addErrback(self._give_up_on, number)

    def _give_up_on(self, failure: Failure, number: int) -> None:
        failure.trap(DeferredTimeoutError)
        del self._asked[number]

    def stop(self) -> None:
        """Have it end, once it has finished what is under way."""
        transport: Any = self.transport
        transport.closeStdin()

    def kill(self) -> None:
        transport: Any = self.transport
        with suppress(ProcessExitedAlready):
            transport.signalProcess("KILL")

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        if childFD == 1:
            for line in self._messages.take(data):
                self._hear(line)
        else:
            self._hear_errors(self._errors.take(data))

    def processEnded(self, reason: Failure) -> None:
        self._hear_errors(self._errors.rest())
        asked, self._asked = self._asked, {}
        for asking in asked.values():
            asking.callback({})
        self._pool.on_end(self, _why_ended(reason.value))

    def _hear(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:  # printed before the worker had a say
            self._hear_errors([line])
            return
        match message:
            case {"log": [level, namespace, text]}:
                self._relay(level, namespace, text)
            case {"report": [number, states, numbers]}:
                self._silent_since = None
                told = decode(numbers)
                # One answer without the whole may come between that with it and who has asked for it.
                told.amounts = self.numbers.amounts | told.amounts
                self.numbers = told
                asking = self._asked.pop(number, None)
                if asking is not None:
                    asking.callback(states)
            case {"serving": _}:
                self.is_serving = True
                self._pool.on_serving()
            case {"ready": _}:
                self.is_ready = True
                self._pool.on_ready(self)
            case {"refused": why}:
                self._pool.on_refused(self, why)

    def _relay(self, level: str, namespace: str, text: str) -> None:
        log, known = Logger(namespace), LogLevel.levelWithName(level)
        if namespace == ACCESS_NAMESPACE:  # whose lines do not say who wrote them
            log.emit(known, "{lines}", lines=text)
        else:
            log.emit(known, "worker {worker}: {relayed}", worker=self.number, relayed=text)

    def _hear_errors(self, lines: Iterable[bytes]) -> None:
        text = b"\n".join(lines).decode(errors="backslashreplace")
        if text:
            self._log.warn("{worker}: {text}", worker=self, text=text)


def _why_ended(error: Any) -> str:
    number = getattr(error, "signal", None)
    if number is None:
        return f"exit status {getattr(error, 'exitCode', None)}"
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"


class Lines:
    """Cuts what comes in pieces into lines.

    Args:
        max_bytes: what is longer than that is cut where it is; more is never kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()

    def take(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that are whole now, without their ends."""
        *whole, begun = data.split(b"\n")
        for line in whole:
            yield bytes(self._begun) + line
            self._begun.clear()
        self._begun += begun
        while len(self._begun) > self._max_bytes:
            yield bytes(self._begun[: self._max_bytes])
            del self._begun[: self._max_bytes]

    def rest(self) -> Iterator[bytes]:
        """Yield what has come after the last end of a line, if anything has."""
        if self._begun:
            yield bytes(self._begun)
            self._begun.clear()
