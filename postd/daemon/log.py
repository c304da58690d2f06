"""The format and the file of the daemon's log, as `[log]` sets them (reference: Log).

Departures from stock twistd:

- Lines of the access log are written unchanged. Formatted as events, each would begin with twistd's time and namespace,
  and further lines of a batch would be indented as a continuation of the first.
- Control characters are escaped, so that text from clients can neither forge a log line nor control a terminal. A line
  feed in such text is followed by a tab, as in tracebacks.
- `format = "json"` writes each event as one JSON object per line.
- No line is longer than `LINE_MAX_BYTES`: a longer line is cut, and ends with ` ...`. A JSON line stays an object; its
  longest text is cut.
- Failures of twistd to write its plugin cache are not logged: a daemon's user should not have write access to the
  directory that it is installed in.
- The file of `[log]` is only appended to. Twistd rotates its own file at each megabyte, and keeps all earlier files.
"""

import errno
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel, eventAsText, formatEventAsClassicLogText
from twisted.python.logfile import LogFile
from twisted.python.reflect import safe_str
from zope.interface import implementer

ACCESS_LOG = Logger("postd.access")
"""The access log where it has no file of its own; `lines` of its events are complete lines, the last without its line
feed."""

NO_FOLDER = "its folder does not exist"
"""Why a log file cannot be created, in place of "No such file or directory"."""

LINE_MAX_BYTES = 4096
"""The longest line, with its line feed, in UTF-8."""

MODE = 0o640
"""The permissions of a new file, before the umask: the administrators' group may read logs."""

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line ends of some programs, and surrogates, which UTF-8 cannot encode."""

_SHORT_CHARS = LINE_MAX_BYTES // 4
"""A text with fewer characters has no more than `LINE_MAX_BYTES` in UTF-8."""

_CUT = " ..."
_CUT_ESCAPE = re.compile(r"(?:\\(?:x[0-9a-f]?|u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?|%[0-9A-F]?)\Z")
"""An escape sequence that was cut, at the end of a line."""

_GAP = "{lost} log lines were lost or cut here: {why}"
_GAP_IN_FILE = "{path}: {lost} log lines were lost or cut: {why}"
_NOT_REOPENED = "log file {path} could not be reopened: {why}; logging continues in the old one"

Format = Callable[[LogEvent], str | None]
"""Returns the lines of an event, with their line feeds; None if there is nothing to log."""

_log = Logger()


def format_text(event: LogEvent) -> str | None:
    """Format an event as twistd does; further lines are indented."""
    if _is_access(event):
        return _access_lines(event)
    text = None if _is_about_plugins(event) else formatEventAsClassicLogText(event)
    if not text:
        return None
    return _bound(_UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text), _cut)


def format_json(event: LogEvent) -> str | None:
    """Format an event as a JSON object on a line: time (RFC 3339), level, logger, the worker that logged it, text.

    A traceback is the end of the text.
    """
    if _is_access(event):
        return _access_lines(event)
    text = None if _is_about_plugins(event) else eventAsText(event, includeTimestamp=False, includeSystem=False)
    if not text:
        return None
    at = datetime.fromtimestamp(event.get("log_time", time.time()), UTC)
    system = event.get("log_system", "-")
    members = {
        "time": at.isoformat(timespec="milliseconds"),
        "level": getattr(event.get("log_level"), "name", "info"),
        "logger": safe_str(event.get("log_namespace", "-") if system == "-" else system),
    }
    if "relayed" in event:
        members["worker"], text = event["worker"], event["relayed"]
    # A lone surrogate is escaped twice: some JSON parsers refuse it.
    members["text"] = text.encode(errors="backslashreplace").decode()
    return _bound(_dump(members) + "\n", _cut_object)


def _dump(members: Mapping[str, object]) -> str:
    """Return an object in the form of the JSON access log."""
    line = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def format_access(event: LogEvent) -> str | None:
    """Return the lines of the access log, and nothing of other events."""
    return _access_lines(event) if _is_access(event) else None


FORMATS: Mapping[Literal["text", "json"], Format] = {"text": format_text, "json": format_json}


def _is_access(event: LogEvent) -> bool:
    return event.get("log_namespace") == ACCESS_LOG.namespace and "lines" in event


def _is_about_plugins(event: LogEvent) -> bool:
    return str(event.get("format")).startswith("Unable to write to plugin cache")


def _access_lines(event: LogEvent) -> str:
    lines = f"{event['lines']}\n"
    return _bound(lines, _cut_object if lines.startswith("{") else _cut)


def _bound(lines: str, cut: Callable[[str], str]) -> str:
    """Cut each line that is longer than `LINE_MAX_BYTES`."""
    if len(lines) <= _SHORT_CHARS:
        return lines
    cut_lines = [
        line if len(line) < _SHORT_CHARS or _size(line) < LINE_MAX_BYTES else cut(line) for line in lines.split("\n")
    ]
    return "\n".join(cut_lines)


def _size(line: str) -> int:
    return len(line.encode(errors="backslashreplace"))


def _cut(line: str) -> str:
    kept = line.encode(errors="backslashreplace")[: LINE_MAX_BYTES - len(_CUT) - 1].decode(errors="ignore")
    return _CUT_ESCAPE.sub("", kept) + _CUT


def _cut_object(line: str) -> str:
    """Cut the middle out of the longest text of an object: its end may have the cause of a failure."""
    members = json.loads(line)
    while _size(line) >= LINE_MAX_BYTES:
        name = max(members, key=lambda name: len(str(members[name])))
        quarter = len(members[name]) // 4
        members[name] = f"{members[name][:quarter]}{_CUT} {members[name][-quarter:]}"
        line = _dump(members)
    return line


def file_problem(path: str) -> str:
    """Return why a file cannot be appended to, empty if it can; the file is not touched."""
    file = Path(path)
    if file.is_dir():
        return os.strerror(errno.EISDIR)
    if file.exists():
        return "" if os.access(file, os.W_OK) else os.strerror(errno.EACCES)
    if not file.parent.is_dir():
        return NO_FOLDER
    return "" if os.access(file.parent, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)


def reopen_rotated(file: LogFile) -> None:
    """Reopen the path of twistd's own file, as `AppendedFile.reopen`.

    twistd's `reopen` closes the file first: lines from other threads in between are lost, and all later lines if the
    path cannot be opened.
    """
    from postd.twisted_private import log_file_descriptor  # noqa: PLC0415 - imports twisted.web

    before = log_file_descriptor(file)
    mode = None if Path(file.path).exists() else stat.S_IMODE(os.fstat(before).st_mode)
    try:
        made: LogFile = LogFile.fromFullPath(file.path, defaultMode=mode)
    except OSError as error:
        _log.error(_NOT_REOPENED, path=file.path, why=error.strerror)
        return
    os.dup2(log_file_descriptor(made), before, inheritable=False)
    file.size = made.size
    made.close()


@implementer(ILogObserver)
class AppendedFile:
    """Appends events to a file, which is created if it does not exist, each with one write.

    Events that cannot be written are lost: a full disk must not stop the service. A line on standard error reports the
    first loss; once the file can be written again, a line in it has the number of lost lines, or, if the file has no
    other lines than those of the access log, a line in the log.

    Args:
        path: its path.
        format_event: returns the lines of an event.
        ignore_umask: whether a new file has mode 0640 whatever the umask is.
        at_first_event: whether it is opened for the first event that has lines.

    Raises:
        OSError: it cannot be opened.
        ValueError: no file can have such a name.
    """

    def __init__(
        self, path: str, format_event: Format, *, ignore_umask: bool = False, at_first_event: bool = False
    ) -> None:
        self._path = path
        self._format = format_event
        self._ignore_umask = ignore_umask
        self._fd = -1 if at_first_event else self._open(MODE, ignore_umask=ignore_umask)
        self._in_line = False
        self._lost, self._why = 0, ""

    def __call__(self, event: LogEvent) -> None:
        lines = self._format(event)
        if not lines:
            return
        lost = self._lost
        gap = self._format_gap() if lost else None
        left = ((gap or "") + lines).encode(errors="backslashreplace")
        if self._in_line:
            left = b"\n" + left
        try:
            if self._fd < 0:
                self._fd = self._open(MODE, ignore_umask=self._ignore_umask)
            while left:
                count = os.write(self._fd, left)
                self._in_line = left[count - 1 : count] != b"\n"
                left = left[count:]
        except (OSError, ValueError) as error:  # no file can have such a name
            self._why = getattr(error, "strerror", None) or str(error)
            self._lost = lost + lines.count("\n")
            if not lost:  # not in the log, which this file observes
                text = f"postd: log file {self._path} cannot be written: {self._why}; log lines are lost"
                with suppress(OSError, ValueError):  # standard error may be on the same disk, or closed
                    print(text, file=sys.__stderr__, flush=True)
        else:
            self._lost = 0
            if lost and not gap:
                _log.error(_GAP_IN_FILE, path=self._path, lost=lost, why=self._why)

    def _format_gap(self) -> str | None:
        level, now = LogLevel.error, time.time()
        event = {"log_namespace": __name__, "log_level": level, "log_time": now, "log_format": _GAP}
        return self._format({**event, "lost": self._lost, "why": self._why})

    def reopen(self) -> None:
        """Continue in the file that has the path now. A new one gets the permissions of the one before it."""
        if self._fd < 0:
            return
        try:
            fd = self._open(stat.S_IMODE(os.fstat(self._fd).st_mode), ignore_umask=True)
        except OSError as error:
            _log.error(_NOT_REOPENED, path=self._path, why=error.strerror)
            return
        # Atomically: other threads may be writing.
        os.dup2(fd, self._fd, inheritable=False)
        os.close(fd)
        self._in_line = False

    def _open(self, mode: int, *, ignore_umask: bool = False) -> int:
        # O_NONBLOCK: a pipe without a reader is an error; the open would wait for one.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        try:
            fd = os.open(self._path, flags | os.O_EXCL, mode)
        except FileExistsError:
            fd = os.open(self._path, flags, mode)
        else:
            if ignore_umask:  # twistd sets a stricter one when it forks to the background
                os.fchmod(fd, mode)
        os.set_blocking(fd, True)
        return fd
