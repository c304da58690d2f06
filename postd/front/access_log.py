"""The access log: a line a request, in the combined format of Apache with more behind it, alone, or as JSON.

| field | text | JSON |
|---|---|---|
| address of the client, as a trusted proxy reports it | first | `client` |
| account, if the credentials were accepted | third, else `-` | `user` |
| time of the response (UTC) | in brackets | `time` |
| request line, redacted | first in quotes | `method`, `target`, `protocol` |
| status, and size of the body in bytes | after the request line | `status`, `bytes` |
| `Referer` and `User-Agent`, redacted | in quotes | `referer`, `agent` |
| route that matches the path | `route=` | `route` |
| scheme of the credentials | `scheme=` | `scheme` |
| time from the end of the request head to the end of the response, in milliseconds | `ms=` | `ms` |
| request id | `id=` | `id` |
| method and target that a page with `forward` has checked; absent for other requests | `judged=` | `judged` |

The reference is docs/reference/log.md. `postd.http.redaction` redacts.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

import orjson
from msgspec import Struct
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from postd.front.interface import AnsweredRequest
from postd.http.interface import Request
from postd.http.peer import UNIX
from postd.http.redaction import (
    USER_MAX_CHARS,
    shorten,
    show_agent,
    show_method,
    show_referer,
    show_target,
    show_user,
)

DELAY_S = 0.1
"""How long a line waits for further lines of the same event: an event a line would take a third of a request's time."""

LINES_MAX = 256
"""How many lines are one event at most: writing thousands at a time would delay one request in a hundred."""

LOOPBACK = "127.0.0.1"
"""In the combined format, the address of a client on a UNIX socket: programs drop lines without an IP address."""

CACHED_MAX = 128
"""How many redacted values of each kind are cached until the next flush; a value may have 16 KiB."""

_NOT_FOUND = 404  # a member of HTTPStatus would take longer to look up

_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")  # what JSON leaves as it is, and terminals and some readers do not


class _RequestLine(Struct, frozen=True):
    """A redacted request line (RFC 9112 §3), whole and in its parts, which are absent if it could not be decoded.

    The whole is always three words: programs that read the log split it at its spaces.
    """

    text: str = "- - -"
    method: str | None = None
    target: str | None = None
    protocol: str | None = None


class AccessLog:
    """Writes the log: several lines are one event, whose `lines` has newlines between them.

    Args:
        form: `"combined"` is the beginning of the `"text"`: what Apache's combined format has, and nothing else.
        address_of: returns the address of a client.
        log: receives the events.
    """

    def __init__(
        self,
        form: Literal["text", "combined", "json"],
        *,
        address_of: Callable[[Request], str],
        log: Logger,
        reactor: IReactorTime,
    ) -> None:
        self._format = {"text": self._text_line, "combined": self._combined_line, "json": self._json_line}[form]
        self._date_format = "%Y-%m-%dT%H:%M:%S" if form == "json" else "%d/%b/%Y:%H:%M:%S +0000"
        self._log = log
        self._address_of = address_of
        self._reactor = reactor
        self._lines: list[str] = []
        # Their keys are values as sent, which may have secrets: `flush` empties them.
        self._redact_request_line = lru_cache(CACHED_MAX)(_redact_request_line)
        self._show_referer = lru_cache(CACHED_MAX)(show_referer)
        self._show_agent = lru_cache(CACHED_MAX)(show_agent)
        self._second = 0
        self._date = ""
        self._flushing: IDelayedCall | None = None
        self._closed = False

    def add(self, request: AnsweredRequest, took_s: float, now: float) -> None:
        """Add the line of a request.

        Args:
            request: the request, which is answered.
            took_s: seconds from its head to the end of its response.
            now: seconds since the epoch.
        """
        if self._flushing is None and not self._closed:
            self._flushing = self._reactor.callLater(DELAY_S, self._flush_delayed)
        request_line = self._redact_request_line(
            request.method,
            request.uri,
            request.path,
            request.clientproto,
            request.route,
            request.file,
            request.code == _NOT_FOUND,
        )
        self._lines.append(self._format(request, request_line, took_s * 1000, now))
        if self._closed or len(self._lines) >= LINES_MAX:  # once closed, no later flush would write it
            self.flush()

    def close(self) -> None:
        """Write the pending lines, and each later one without buffering."""
        self._closed = True
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        self.flush()

    def _flush_delayed(self) -> None:
        self._flushing = None
        self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            for cached in (self._redact_request_line, self._show_referer, self._show_agent):
                cached.cache_clear()
            self._log.info("{lines}", lines="\n".join(lines))

    def _text_line(self, request: AnsweredRequest, request_line: _RequestLine, took_ms: float, now: float) -> str:
        fields = request.fields
        referers = fields.get(b"Referer")
        agents = fields.get(b"User-Agent")
        user = scheme = "-"
        if request.authentication is not None:
            scheme, account = request.authentication.scheme, request.authentication.account
            user = "-" if account is None else show_user(account)
        return (
            f"{self._address_of(request)} - {user} "
            f'[{self._date_at(int(now))}] "{request_line.text}" '
            f"{request.code} {request.sentLength or '-'} "
            f'"{self._show_referer(referers[0]) if referers else "-"}" '
            f'"{self._show_agent(agents[0]) if agents else "-"}" '
            f"route={request.route or '-'} scheme={scheme} ms={took_ms:.1f} id={request.id}"
            + (f' judged="{_show_described(request.described)}"' if request.described is not None else "")
        )

    def _combined_line(self, request: AnsweredRequest, request_line: _RequestLine, took_ms: float, now: float) -> str:
        line = self._text_line(request, request_line, took_ms, now).rpartition(" route=")[0]
        return f"{LOOPBACK}{line.removeprefix(UNIX)}" if line.startswith(f"{UNIX} ") else line

    def _json_line(self, request: AnsweredRequest, request_line: _RequestLine, took_ms: float, now: float) -> str:
        fields = request.fields
        referers = fields.get(b"Referer")
        agents = fields.get(b"User-Agent")
        authentication = request.authentication
        username = None if authentication is None else authentication.account
        second = int(now)
        members = {
            "time": f"{self._date_at(second)}.{int((now - second) * 1000):03d}+00:00",
            "client": self._address_of(request),
            "user": None if username is None else shorten(username, USER_MAX_CHARS),
            "method": request_line.method,
            "target": request_line.target,
            "protocol": request_line.protocol,
            "status": request.code,
            "bytes": request.sentLength,
            "referer": self._show_referer(referers[0]) if referers else None,
            "agent": self._show_agent(agents[0]) if agents else None,
            "route": request.route,
            "scheme": None if authentication is None else authentication.scheme,
            "ms": round(took_ms, 1),
            "id": request.id,
        }
        if request.described is not None:
            members["judged"] = _show_described(request.described)
        line = orjson.dumps(members).decode()
        return line if line.isascii() else _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)

    def _date_at(self, second: int) -> str:
        if second != self._second:
            self._second = second
            self._date = datetime.fromtimestamp(second, UTC).strftime(self._date_format)
        return self._date


def _redact_request_line(  # noqa: PLR0913, PLR0917 - a request line depends on as many values
    method: bytes,
    target: bytes,
    path: bytes,
    version: bytes,
    route: str | None,
    file: bytes | None,
    missing: bool,  # noqa: FBT001 - `lru_cache` keys
) -> _RequestLine:
    if not target:
        return _RequestLine()
    shown = show_target(target, path, route, file, missing=missing)
    parts = show_method(method), shown, version.decode("ascii")
    return _RequestLine(" ".join(parts), *parts)


def _show_described(described: Request) -> str:
    target = show_target(described.uri, described.path, described.route, described.file)
    return f"{show_method(described.method)} {target}"
