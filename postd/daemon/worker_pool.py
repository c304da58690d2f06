"""The parent of worker processes: it binds the listening sockets and starts the workers that accept on them.

A worker is `python -m postd.daemon.worker NUMBER` (`postd.daemon.worker`) and not a fork: a reactor cannot be forked
once twistd has started it, nor can the threads of a store.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec.structs import asdict, replace
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from postd.daemon.log import ACCESS_LOG
from postd.daemon.resources import collect_replaced
from postd.daemon.server import StartCallbacks
from postd.daemon.worker_process import WorkerProcess
from postd.monitoring.health import OK, Health
from postd.monitoring.tally import Metrics, Tally
from postd.net.listening import Listener, close, hand_over_to_workers
from postd.reactor import IReactor, ServiceClock
from postd.settings.loading import LoadedSettings
from postd.store.replaced_texts import make_shared_memory

RESTART_FIRST_S, RESTART_MAX_S = 0.1, 10.0
"""The delay before an ended worker is replaced: the first, and the longest; it doubles in between."""

STABLE_AFTER_S = 10.0
"""How long a worker must have run for that delay to be the first again."""

KILL_AFTER_S = 5.0
"""How long after `shutdown_grace` a worker that has not stopped is killed: its store takes some time to stop, too."""

FIRST_FD = 3
"""The file descriptor of the first socket in a worker."""


class WorkerPool(Service):
    """Worker processes that share the listeners of this process, which does not accept on them.

    Args:
        loaded: the settings; replacements get the same ones, even if the settings file has changed since.
        callbacks: each is called once, when its event has happened in all workers.
        prepare_reload: checks other settings; may raise ConfigError.
        clock: the clock that the clocks of all workers are to agree with.
        access_log: receives the lines of the requests that the workers answer.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - the parent's side of all there is
        self,
        loaded: LoadedSettings,
        listeners: Sequence[Listener],
        count: int,
        *,
        callbacks: StartCallbacks,
        prepare_reload: Callable[[LoadedSettings], Callable[[], None]],
        clock: ServiceClock,
        access_log: Logger = ACCESS_LOG,
        reactor: IReactor,
    ) -> None:
        self._loaded = loaded
        self._prepare_reload = prepare_reload
        self._tally = Tally()
        self._ended_metrics = Metrics()
        self._unexpected_ends = 0
        self._listeners = listeners
        self._sockets = hand_over_to_workers(listeners)
        self._shared_memory = make_shared_memory()
        self._callbacks = callbacks
        self._reactor = reactor
        self._clock = clock
        self.access_log = access_log
        self._numbers = range(1, count + 1)
        self._workers: dict[int, WorkerProcess] = {}
        self._restarts: dict[int, IDelayedCall] = {}
        self._delays_s = dict.fromkeys(self._numbers, RESTART_FIRST_S)
        self._ticket_key = b""
        self._was_accepting = self._was_ready = self._has_failed = False
        self._all_ended: Deferred[None] | None = None

    def startService(self) -> None:
        super().startService()
        # Seeing a worker, an administrator may send SIGTERM here: the reactor must have its signal handlers by then.
        for number in self._numbers:
            self._reactor.callWhenRunning(self._start, number)

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        for restart in self._restarts.values():
            restart.cancel()
        self._restarts.clear()
        if self._workers:
            self._all_ended = Deferred()
        # First: as long as a socket is open here, the kernel completes connections that no process will accept.
        await close(self._listeners)
        if self._all_ended is not None:
            for worker in self._workers.values():
                worker.stop()
            killing = self._reactor.callLater(self._loaded.settings.shutdown_grace_s + KILL_AFTER_S, self._kill_all)
            await self._all_ended
            if killing.active():
                killing.cancel()
        os.close(self._shared_memory)

    def _kill_all(self) -> None:
        for worker in self._workers.values():
            self._log.error("{worker} did not stop in time: killing it", worker=worker)
            worker.kill()

    def reload(self, loaded: LoadedSettings) -> None:
        """Apply other settings in all workers, as `postd.daemon.server.Server.reload`."""
        self._prepare_reload(loaded)()
        self._loaded = loaded
        for worker in self._workers.values():
            worker.send({"reload": _encode_settings(loaded)})
        collect_replaced()  # the parent makes the parts, too, to check that they can be made

    def set_ticket_key(self, key: bytes) -> None:
        """Replace the key of TLS tickets in all workers, as `postd.daemon.server.Server.set_ticket_key`."""
        self._ticket_key = key
        for worker in self._workers.values():
            worker.send({"ticket_key": key.hex()})

    async def health(self, *, full: bool) -> Health:
        """Return the health of all workers together; without `full` the metrics may be incomplete.

        The counters of ended workers are included, except for their last second.
        """
        # Concurrently: together they take no longer than one timeout. A worker that is stopping reads no more requests.
        accepting = [worker for worker in self._workers.values() if worker.is_accepting and self.running]
        checks = [(worker, worker.check_health(self._reactor, full=full)) for worker in accepting]
        states = {} if self.running else {"service": "stopping"}
        metrics = Metrics(gauges={("workers",): 0})
        for worker, check in checks:
            answer = await check
            if answer is None:
                states[f"worker {worker.number}"] = "does not answer"
            else:
                states |= {name: state for name, state in answer.items() if states.get(name, OK) == OK}
        for worker in self._workers.values():
            if worker.is_accepting:  # one may have ended during the checks
                metrics.add(worker.metrics)
        metrics.add_cumulative(self._ended_metrics)
        metrics.add(self._tally.metrics(full=full))
        metrics.counters["worker_ends",] = self._unexpected_ends
        return Health(states or {"workers": "none accepts connections yet"}, metrics)

    def _start(self, number: int) -> None:
        self._restarts.pop(number, None)
        # In the worker the sockets have the first numbers after the standard ones, in their order; the memory the next.
        inherited = [replace(one, fd=FIRST_FD + place) for place, one in enumerate(self._sockets)]
        fds: dict[int, str | int] = {0: "w", 1: "r", 2: "r"}
        fds |= {there.fd: here.fd for there, here in zip(inherited, self._sockets, strict=True)}
        memory = FIRST_FD + len(inherited)
        fds[memory] = self._shared_memory
        message = {
            "number": number,
            **_encode_settings(self._loaded),
            "sockets": [asdict(socket) for socket in inherited],
            "memory": memory,
            "clock": self._clock.offset_s,
            "ticket_key": self._ticket_key.hex(),
        }
        worker = WorkerProcess(number, message, self)
        command = [sys.executable, "-P", "-m", "postd.daemon.worker", str(number)]
        # A terminal sends both to all processes of its group; workers react to the parent's messages instead. The mask
        # is inherited, so that they do not even arrive while Python starts.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            self._reactor.spawnProcess(worker, command[0], command, env=os.environ, childFDs=fds)
        except OSError as error:
            self._replace(number, f"worker {number} could not be started: {error.strerror}", lived_s=0)
        else:
            worker.started_at_s = self._reactor.seconds()
            self._workers[number] = worker
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _replace(self, number: int, what: str, *, lived_s: float) -> None:
        if lived_s >= STABLE_AFTER_S:
            self._delays_s[number] = RESTART_FIRST_S
        delay_s = self._delays_s[number]
        self._delays_s[number] = min(delay_s * 2, RESTART_MAX_S)
        self._log.error("{what}; starting another in {delay_s:.1f} s", what=what, delay_s=delay_s)
        self._restarts[number] = self._reactor.callLater(delay_s, self._start, number)

    def on_accepting(self) -> None:
        if self.running and not self._was_accepting and self._all(attrgetter("is_accepting")):
            self._was_accepting = True
            self._callbacks.accepting()

    def _all(self, condition: Callable[[WorkerProcess], bool]) -> bool:
        return len(self._workers) == len(self._numbers) and all(map(condition, self._workers.values()))

    def on_ready(self, worker: WorkerProcess) -> None:
        if not self.running:  # the listeners, whose addresses would be logged, are closed
            return
        if self._was_ready:
            self._log.info("{worker} is ready, replacing the one that ended", worker=worker)
        elif self._all(attrgetter("is_ready")):
            self._was_ready = True
            self._callbacks.ready()

    def on_failed(self, worker: WorkerProcess, why: str) -> None:
        # Once all workers were ready, the cause may be temporary: it is started again.
        if self._was_ready:
            self._log.error("{worker}: {why}", worker=worker, why=why)
        elif self.running and not self._has_failed:
            self._has_failed = True
            self._callbacks.failed(why)

    def on_end(self, worker: WorkerProcess, why: str) -> None:
        self._workers.pop(worker.number, None)
        self._ended_metrics.add_cumulative(worker.metrics)
        if self.running and not self._has_failed:
            self._unexpected_ends += 1
            lived_s = self._reactor.seconds() - worker.started_at_s
            self._replace(worker.number, f"{worker} ended: {why}", lived_s=lived_s)
        elif self._all_ended is not None and not self._workers:
            self._all_ended.callback(None)


def _encode_settings(loaded: LoadedSettings) -> dict[str, object]:
    return {"values": dict(loaded.values), "where": dict(loaded.where), "options": [*loaded.options]}
