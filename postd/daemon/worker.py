"""The main program of a worker, `python -m postd.daemon.worker NUMBER`, which `postd.daemon.worker_pool` starts."""

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.internet.process import ProcessReader
from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel, eventAsText, globalLogBeginner

from postd.daemon.startup import startup_imports
from postd.daemon.worker_messages import LINE_MAX_BYTES, LineBuffer
from postd.errors import ConfigError
from postd.monitoring.tally import encode
from postd.reactor import IReactor, use_monotonic_clock
from postd.settings.loading import settings_from

TEXT_MAX_CHARS = LINE_MAX_BYTES // 16
"""The longest text in one message; a character can be twelve bytes of JSON."""

_log = Logger()


def main() -> int:
    """Serve until the parent asks to stop, or has exited; return the exit status."""
    parent = ParentConnection(os.dup(1))
    os.dup2(2, 1)  # prints must not mix with messages
    first_line = io.FileIO(0, closefd=False).readline()  # nothing beyond it, which the reactor will read
    if not first_line.endswith(b"\n"):
        return 1  # the parent has exited already
    start_message = json.loads(first_line)

    settings = settings_from(start_message["values"], start_message["where"], start_message["options"])
    with startup_imports(settings.settings):
        # All of them install the reactor.
        from twisted.internet import reactor as installed  # noqa: PLC0415

        from postd.daemon.server import RELOAD_FAILED, StartCallbacks  # noqa: PLC0415
        from postd.daemon.service import make_worker  # noqa: PLC0415
        from postd.net.ports import InheritedSocket  # noqa: PLC0415

    reactor = cast("IReactor", installed)
    use_monotonic_clock(reactor)
    # The buffered events are Twisted's about sockets, which the parent has logged already.
    globalLogBeginner.beginLoggingTo([cast("ILogObserver", parent.log)], discardBuffer=True, redirectStandardIO=False)

    def stop() -> None:
        with suppress(ReactorNotRunning):  # the parent, systemd and an administrator may all ask to stop
            reactor.stop()

    def fail(why: str) -> None:
        parent.send("failed", why)
        reactor.callWhenRunning(stop)

    try:
        service = make_worker(
            settings,
            [InheritedSocket(**fields) for fields in start_message["sockets"]],
            start_message["memory"],
            callbacks=StartCallbacks(partial(parent.send, "accepting"), partial(parent.send, "ready"), fail),
            clock_offset_s=start_message["clock"],
            reactor=reactor,
        )
    except ConfigError as error:
        parent.send("failed", str(error))
        return 1
    service.set_ticket_key(bytes.fromhex(start_message["ticket_key"]))

    def obey(command: Any) -> None:
        match command:
            case {"reload": {"values": values, "where": where, "options": options}}:
                try:
                    service.reload(settings_from(values, where, options))
                except ConfigError as error:  # a file has changed since the parent checked it
                    _log.error(RELOAD_FAILED, error=error)
            case {"ticket_key": key}:
                service.set_ticket_key(bytes.fromhex(key))
            case {"health": number, "full": full}:
                check = Deferred.fromCoroutine(service.health(full=full))
                check.addCallback(lambda health: parent.send("health", [number, health.states, encode(health.metrics)]))
                check.addErrback(lambda failure: _log.failure("health check failed", failure=failure))

    ProcessReader(reactor, ParentCommands(obey, stop), 0, 0)
    reactor.callWhenRunning(signal.signal, signal.SIGTERM, lambda *_: reactor.callFromThread(stop))
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    service.startService()
    reactor.run()
    return 0


class ParentConnection:
    """Sends messages to the parent, by a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Other threads log, too. Reentrant: a garbage collection in the middle of a message may log the failure of an
        # abandoned Deferred from the same thread.
        self._lock = threading.RLock()

    def send(self, kind: str, value: object = True) -> None:  # noqa: FBT002 - JSON
        left = memoryview(json.dumps({kind: value}).encode() + b"\n")
        with self._lock:
            try:
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError:  # the parent has exited: standard input ends, which stops the worker
                pass

    def log(self, event: LogEvent) -> None:
        """Send an event of the log (`twisted.logger.ILogObserver`)."""
        namespace, level = event.get("log_namespace", ""), event.get("log_level", LogLevel.info)
        # Twisted's events about ports: the parent has logged them for the same ports.
        if namespace == "log_legacy" and level is LogLevel.info:
            return
        for piece in _in_pieces(eventAsText(event, includeTimestamp=False, includeSystem=False)):
            self.send("log", [level.name, namespace, piece])


def _in_pieces(text: str) -> Iterator[str]:
    """Split a text that is too long for one message, between lines where possible."""
    while len(text) > TEXT_MAX_CHARS:
        cut = text.rfind("\n", 1, TEXT_MAX_CHARS)
        cut = cut if cut > 0 else TEXT_MAX_CHARS
        yield text[:cut]
        text = text[cut:].removeprefix("\n")
    if text:
        yield text


class ParentCommands:
    """Receives the commands of the parent, as the protocol of a `ProcessReader`.

    Args:
        obey: called with each command (`postd.daemon.worker_messages`).
        stop: called at the end of the parent, or of the reactor.
    """

    def __init__(self, obey: Callable[[object], None], stop: Callable[[], None]) -> None:
        self._obey = obey
        self._stop = stop
        self._lines = LineBuffer(LINE_MAX_BYTES)

    def childDataReceived(self, _fd: int, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._obey(json.loads(line))

    def childConnectionLost(self, _fd: int, _reason: object) -> None:
        self._stop()


if __name__ == "__main__":
    sys.exit(main())
