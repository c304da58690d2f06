"""Where the daemon logs to, and how: what `[log]` asks for (contract 1 and 6).

Departs from stock twistd:

- Lines of the access log stand as they are, one a line: as events they would have twistd's time and name before them,
  and the second of a bundle would be indented as if it belonged to the first.
- Control characters are escaped. Some of what is logged has come from strangers: what a client says must neither look
  like a line of ours nor reach the terminal of who reads it. A line feed in it is followed by a tab, as in tracebacks.
- `format = "json"` is an object a line, whatever is logged.
- No line is longer than `LINE_MAX_BYTES`: what is longer is cut, and ends with ` ...`. A JSON line stays an object, of
  which the longest text is cut.
- That twistd could not keep its cache of plugins is not told: who runs a daemon should not be able to write to where it
  is installed.
- A file of our own is only ever appended to. Twistd's is renamed for each megabyte, as are all before it, without end.
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
from typing import Any, Literal

from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel, eventAsText, formatEventAsClassicLogText
from twisted.python.logfile import LogFile
from twisted.python.reflect import safe_str
from zope.interface import implementer

ACCESS_NAMESPACE = "postd.access"
"""The namespace of the access log; `lines` of its events are whole lines, without the last one's end."""

LINE_MAX_BYTES = 4096
"""The longest line, with its line feed, in UTF-8."""

MODE = 0o640
"""The permissions of a file that is made, less what the umask takes: logs are for the administrators' group to read."""

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What no terminal should get, what some programs take for the end of a line, and what UTF-8 cannot say."""

_SHORT_CHARS = LINE_MAX_BYTES // 4
"""What has fewer characters has no more than `LINE_MAX_BYTES`, in UTF-8."""

_CUT = " ..."
_CUT_ESCAPE = re.compile(r"(?:\\(?:x[0-9a-f]?|u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?|%[0-9A-F]?)\Z")
"""The beginning of an escape, at the end of what is left of a line."""

_NOT_REOPENED = "{path}: {why}; the log goes on where it was"

Format = Callable[[LogEvent], str | None]
"""Returns the lines of an event, with their ends; None if there is nothing to tell."""

_log = Logger()


def format_text(event: LogEvent) -> str | None:
    """Write an event as twistd does; what goes on in further lines is indented there."""
    if _is_access(event):
        return _access_lines(event)
    text = None if _is_about_plugins(event) else formatEventAsClassicLogText(event)
    if not text:
        return None
    return _bound(_UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text), _cut)


def format_json(event: LogEvent) -> str | None:
    """Write an event as an object on a line: time (RFC 3339), level, logger, worker if it comes from one, text.

    A traceback is the end of the text.
    """
    if _is_access(event):
        return _access_lines(event)
    text = None if _is_about_plugins(event) else eventAsText(event, includeTimestamp=False, includeSystem=False)
    if not text:
        return None
    at = datetime.fromtimestamp(event.get("log_time", time.time()), UTC)
    system = event.get("log_system", "-")
    told = {
        "time": at.isoformat(timespec="milliseconds"),
        "level": getattr(event.get("log_level"), "name", "info"),
        "logger": safe_str(event.get("log_namespace", "-") if system == "-" else system),
    }
    if "relayed" in event:
        told["worker"], text = event["worker"], event["relayed"]
    # Half a surrogate pair is escaped twice: not every reader of JSON takes it.
    told["text"] = text.encode(errors="backslashreplace").decode()
    return _bound(_dump(told) + "\n", _cut_object)


def _dump(members: dict[str, Any]) -> str:
    """Return an object as the access log has its."""
    line = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


FORMATS: Mapping[Literal["text", "json"], Format] = {"text": format_text, "json": format_json}


def _is_access(event: LogEvent) -> bool:
    return event.get("log_namespace") == ACCESS_NAMESPACE and "lines" in event


def _is_about_plugins(event: LogEvent) -> bool:
    return str(event.get("format")).startswith("Unable to write to plugin cache")


def _access_lines(event: LogEvent) -> str:
    lines = f"{event['lines']}\n"
    return _bound(lines, _cut_object if lines.startswith("{") else _cut)


def _bound(lines: str, cut: Callable[[str], str]) -> str:
    """Return lines with those cut that are longer than `LINE_MAX_BYTES`."""
    if len(lines) <= _SHORT_CHARS:
        return lines
    cut_lines = [
        one if len(one) < _SHORT_CHARS or _size(one) < LINE_MAX_BYTES else cut(one) for one in lines.split("\n")
    ]
    return "\n".join(cut_lines)


def _size(line: str) -> int:
    return len(line.encode(errors="backslashreplace"))


def _cut(line: str) -> str:
    kept = line.encode(errors="backslashreplace")[: LINE_MAX_BYTES - len(_CUT) - 1].decode(errors="ignore")
    return _CUT_ESCAPE.sub("", kept) + _CUT


def _cut_object(line: str) -> str:
    """Cut the middle out of the longest text of an object: its end may be the cause of a failure."""
    members = json.loads(line)
    while _size(line) >= LINE_MAX_BYTES:
        name = max(members, key=lambda one: len(str(members[one])))
        quarter = len(members[name]) // 4
        members[name] = f"{members[name][:quarter]}{_CUT} {members[name][-quarter:]}"
        line = _dump(members)
    return line


def file_problem(path: str) -> str:
    """Return why nothing could be appended to a file now, without touching it; nothing, if it could."""
    place = Path(path)
    if place.is_dir():
        return os.strerror(errno.EISDIR)
    if place.exists():
        return "" if os.access(place, os.W_OK) else os.strerror(errno.EACCES)
    if not place.parent.is_dir():
        return os.strerror(errno.ENOENT)
    return "" if os.access(place.parent, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)


def reopen_rotated(file: LogFile) -> None:
    """Let twistd's own file go on in the file that has its path now, as `AppendedFile.reopen`.

    Its own `reopen` closes it first: what other threads log meanwhile is lost, and all else if it cannot be opened.
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
    """Writes events to the end of a file, each with one write.

    What cannot be written is lost: a full disk is not to keep anybody from being served. Standard error is told when
    that begins, and the file how much it was as soon as it takes lines again.

    Args:
        path: the file; it is made if it is not there.
        format_event: how events are written.

    Raises:
        OSError: it cannot be opened.
        ValueError: no file can have such a name.
    """

    def __init__(self, path: str, format_event: Format) -> None:
        self._path = path
        self._format = format_event
        self._fd = self._open(MODE)
        self._in_line = False
        self._lost, self._why = 0, ""

    def __call__(self, event: LogEvent) -> None:
        lines = self._format(event)
        if not lines:
            return
        lost = self._lost
        left = ((self._gap() or "") + lines if lost else lines).encode(errors="backslashreplace")
        if self._in_line:
            left = b"\n" + left
        try:
            while left:
                count = os.write(self._fd, left)
                self._in_line = left[count - 1 : count] != b"\n"
                left = left[count:]
        except OSError as error:
            self._why = error.strerror or str(error)
            self._lost = lost + lines.count("\n")
            if not lost:
                self._complain()
        else:
            self._lost = 0

    def _gap(self) -> str | None:
        told = {"log_namespace": __name__, "log_level": LogLevel.error, "log_time": time.time()}
        text = "{lost} lines are missing here, or parts of them: {why}"
        return self._format({**told, "log_format": text, "lost": self._lost, "why": self._why})

    def _complain(self) -> None:
        """Tell whoever started us; what was told to the log would come here again."""
        with suppress(OSError, ValueError):  # that may be the same disk, or closed
            print(f"postd: {self._path}: {self._why}; the log has a gap from now on", file=sys.__stderr__, flush=True)

    def reopen(self) -> None:
        """Go on in the file that has the path now. One that is made has the permissions of the one before it."""
        try:
            fd = self._open(stat.S_IMODE(os.fstat(self._fd).st_mode), whatever_the_umask=True)
        except OSError as error:
            _log.error(_NOT_REOPENED, path=self._path, why=error.strerror)
            return
        # In one step: other threads may be writing.
        os.dup2(fd, self._fd, inheritable=False)
        os.close(fd)
        self._in_line = False

    def _open(self, mode: int, *, whatever_the_umask: bool = False) -> int:
        # A pipe that nobody reads is an error, instead of a wait for somebody who does.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        try:
            fd = os.open(self._path, flags | os.O_EXCL, mode)
        except FileExistsError:
            fd = os.open(self._path, flags, mode)
        else:
            if whatever_the_umask:  # twistd in the background has set a stricter one since the start
                os.fchmod(fd, mode)
        os.set_blocking(fd, True)
        return fd
