"""A worker process, `python -m postd.daemon.worker NUMBER`; only the parent starts it (`postd.daemon.worker_pool`)."""

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
from twisted.logger import ILogObserver, Logger, LogLevel, eventAsText, globalLogBeginner

from postd.daemon.worker_pool import LINE_MAX_BYTES, Lines, StartCallbacks
from postd.errors import ConfigError
from postd.monitoring.tally import encode
from postd.net.ports import InheritedSocket
from postd.reactor import IReactor
from postd.settings.loading import settings_from

TEXT_MAX_CHARS = LINE_MAX_BYTES // 16
"""How much text goes into one message; a character can be twelve bytes of JSON."""

_log = Logger()


def main() -> int:
    """Serve until the parent says that it is enough, or is gone; return the exit status."""
    parent = Parent(os.dup(1))
    os.dup2(2, 1)  # what anything here prints is no message
    brief = json.loads(_read_first_line())

    # Importing the one installs the reactor, and so would the other.
    from twisted.internet import reactor as installed  # noqa: PLC0415

    from postd.daemon.service import make_worker  # noqa: PLC0415

    reactor = cast("IReactor", installed)
    # What Twisted has noted of sockets until now, the parent has noted of the same ones.
    globalLogBeginner.beginLoggingTo([cast("ILogObserver", parent.log)], discardBuffer=True, redirectStandardIO=False)

    def stop() -> None:
        with suppress(ReactorNotRunning):  # the parent, systemd and an administrator may all tell us
            reactor.stop()

    def refuse(why: str) -> None:
        parent.tell("refused", why)
        reactor.callWhenRunning(stop)

    try:
        service = make_worker(
            settings_from(brief["values"], brief["where"]),
            [InheritedSocket(**one) for one in brief["sockets"]],
            started=StartCallbacks(partial(parent.tell, "serving"), partial(parent.tell, "ready"), refuse),
            reactor=reactor,
        )
    except ConfigError as error:
        parent.tell("refused", str(error))
        return 1

    def reload(values: Any, where: Any) -> None:
        try:
            service.reload(settings_from(values, where))
        except ConfigError as error:  # what the parent has found good a moment ago
            _log.error("nothing is reloaded, the old stays in force: {error}", error=error)

    def report(number: int, *, whole: bool) -> None:
        asking = Deferred.fromCoroutine(service.report(whole=whole))
        asking.addCallback(lambda told: parent.tell("report", [number, told.states, encode(told.numbers)]))
        asking.addErrback(lambda failure: _log.failure("could not tell how it is", failure=failure))

    ProcessReader(reactor, Orders(reload=reload, report=report, stop=stop), 0, 0)
    reactor.callWhenRunning(signal.signal, signal.SIGTERM, lambda *_: reactor.callFromThread(stop))
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    service.startService()
    reactor.run()
    return 0


def _read_first_line() -> bytes:
    """Return the first line of standard input, and take no more of it."""
    line = io.FileIO(0, closefd=False).readline()
    if not line.endswith(b"\n"):
        raise SystemExit(1)  # the parent has gone already
    return line


class Parent:
    """The parent as a worker can talk to it.

    Args:
        fd: where its messages go.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Other threads have something to log, too; so has this one in the middle of it, by what a garbage collection
        # may end just then (Twisted logs failures of Deferreds that nobody has looked at).
        self._turn = threading.RLock()

    def tell(self, kind: str, value: object = True) -> None:  # noqa: FBT002 - JSON
        left = memoryview(json.dumps({kind: value}).encode() + b"\n")
        with self._turn:
            try:
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError:  # it is gone, which the end of our input tells
                pass

    def log(self, event: Any) -> None:
        """Observe events of the log."""
        namespace, level = event.get("log_namespace", ""), event.get("log_level", LogLevel.info)
        # What Twisted notes of ports the parent notes, whose ports they are.
        if namespace == "log_legacy" and level is LogLevel.info:
            return
        for piece in _in_pieces(eventAsText(event, includeTimestamp=False, includeSystem=False)):
            self.tell("log", [level.name, namespace, piece])


def _in_pieces(text: str) -> Iterator[str]:
    """Cut a text that is too long for one message, at ends of lines if it can be."""
    while len(text) > TEXT_MAX_CHARS:
        cut = text.rfind("\n", 1, TEXT_MAX_CHARS)
        cut = cut if cut > 0 else TEXT_MAX_CHARS
        yield text[:cut]
        text = text[cut:].removeprefix("\n")
    if text:
        yield text


class Orders:
    """Hears what the parent says; its methods are what a `ProcessReader` calls."""

    def __init__(
        self, *, reload: Callable[[Any, Any], None], report: Callable[..., None], stop: Callable[[], None]
    ) -> None:
        self._reload = reload
        self._report = report
        self._stop = stop
        self._lines = Lines(LINE_MAX_BYTES)

    def childDataReceived(self, _fd: int, data: bytes) -> None:
        for line in self._lines.take(data):
            match json.loads(line):
                case {"reload": {"values": values, "where": where}}:
                    self._reload(values, where)
                case {"report": number, "whole": whole}:
                    self._report(number, whole=whole)

    def childConnectionLost(self, _fd: int, _reason: object) -> None:
        """Called at the end of the parent, or of the reactor."""
        self._stop()


if __name__ == "__main__":
    sys.exit(main())
