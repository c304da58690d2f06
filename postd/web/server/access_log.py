"""The access log: one line per request, in Apache's combined format with additional fields, or as JSON.

| field | text | JSON |
|---|---|---|
| the client's address, behind trusted proxies too | first | `client` |
| the account, if the credentials were accepted | third, else `-` | `user` |
| when the request was answered | in brackets | `time` |
| the request line, redacted | in quotes | `method`, `target`, `protocol` |
| the status, and the bytes of the body | after that | `status`, `bytes` |
| `Referer` and `User-Agent`, redacted | in quotes | `referer`, `agent` |
| the route, such as `/post/<id>` | `route=` | `route` |
| the scheme of its credentials | `scheme=` | `scheme` |
| from the end of its head to the end of the response, in milliseconds | `ms=` | `ms` |
| its id, from the client, a proxy or postd, as in other lines of the log | `id=` | `id` |
| method and target of the request that a page with `forward` has judged; absent elsewhere | `judged=` | `judged` |

`postd.http.redaction` decides which parts of a request are shown.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime

import orjson
from msgspec import Struct
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from postd.http.interface import Request
from postd.http.redaction import (
    USER_MAX_CHARS,
    escape,
    shorten,
    show_agent,
    show_method,
    show_referer,
    show_target,
    show_user,
)
from postd.web.server.interface import AnsweredRequest

DELAY_S = 0.1
"""How long lines are collected into one log event: an event for each would take a third of a request's time."""

FIRST_LINES_MAX, FIRST_LINE_MAX_BYTES = 1024, 256
"""Limits on the cached redacted request lines, and on the length of their targets."""

_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")  # not escaped by JSON, but special to terminals and some readers

_log = Logger("postd.access")

_Asked = tuple[bytes, bytes, bytes, str | None, bytes | None]
"""The values that determine a redacted request line: method, target, version, route and file."""


class _FirstLine(Struct, frozen=True):
    """A redacted request line, as text and in its parts, which are absent if it could not be decoded."""

    text: str = "-"
    method: str | None = None
    target: str | None = None
    protocol: str | None = None


class AccessLog:
    """Writes batches of lines as events of `postd.access`; `lines` of an event are joined by line feeds."""

    def __init__(self, *, as_json: bool, address_of: Callable[[Request], str], reactor: IReactorTime) -> None:
        self._format = self._json_line if as_json else self._text_line
        self._date_format = "%Y-%m-%dT%H:%M:%S" if as_json else "%d/%b/%Y:%H:%M:%S +0000"
        self._address_of = address_of
        self._reactor = reactor
        self._lines: list[str] = []
        self._first_lines: dict[_Asked, _FirstLine] = {}
        self._second = 0
        self._date = ""
        self._flushing: IDelayedCall | None = None
        self._closed = False

    def note(self, request: AnsweredRequest, took_s: float, now: float) -> None:
        """Add a line for an answered request: its duration in seconds, and the time in seconds since the epoch."""
        if not self._lines and not self._closed:
            self._flushing = self._reactor.callLater(DELAY_S, self.flush)
        self._lines.append(self._format(request, took_s * 1000, now))
        if self._closed:  # no later flush would write it
            self.flush()

    def close(self) -> None:
        """Write the pending lines, and each later one without buffering."""
        self._closed = True
        if self._flushing is not None and self._flushing.active():
            self._flushing.cancel()
        self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            _log.info("{lines}", lines="\n".join(lines))

    def _text_line(self, request: AnsweredRequest, took_ms: float, now: float) -> str:
        fields = request.fields
        referers = fields.get(b"Referer")
        agents = fields.get(b"User-Agent")
        user = scheme = "-"
        if request.authentication is not None:
            scheme, account = request.authentication.scheme, request.authentication.account
            user = "-" if account is None else show_user(account)
        return (
            f"{self._address_of(request)} - {user} "
            f'[{self._date_at(int(now))}] "{self._first_line(request).text}" '
            f"{request.code} {request.sentLength or '-'} "
            f'"{show_referer(referers[0]) if referers else "-"}" "{show_agent(agents[0]) if agents else "-"}" '
            f"route={request.route or '-'} scheme={scheme} ms={took_ms:.1f} id={request.id}"
            + (f' judged="{escape(_show_judged(request.described))}"' if request.described is not None else "")
        )

    def _json_line(self, request: AnsweredRequest, took_ms: float, now: float) -> str:
        fields = request.fields
        referers = fields.get(b"Referer")
        agents = fields.get(b"User-Agent")
        authentication = request.authentication
        username = None if authentication is None else authentication.account
        second = int(now)
        first = self._first_line(request)
        members = {
            "time": f"{self._date_at(second)}.{int((now - second) * 1000):03d}+00:00",
            "client": self._address_of(request),
            "user": None if username is None else shorten(username, USER_MAX_CHARS),
            "method": first.method,
            "target": first.target,
            "protocol": first.protocol,
            "status": request.code,
            "bytes": request.sentLength,
            "referer": show_referer(referers[0]) if referers else None,
            "agent": show_agent(agents[0]) if agents else None,
            "route": request.route,
            "scheme": None if authentication is None else authentication.scheme,
            "ms": round(took_ms, 1),
            "id": request.id,
        }
        if request.described is not None:
            members["judged"] = _show_judged(request.described)
        line = orjson.dumps(members).decode()
        return line if line.isascii() else _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)

    def _date_at(self, second: int) -> str:
        if second != self._second:
            self._second = second
            self._date = datetime.fromtimestamp(second, UTC).strftime(self._date_format)
        return self._date

    def _first_line(self, request: AnsweredRequest) -> _FirstLine:
        asked = request.method, request.uri, request.clientproto, request.route, request.file
        return self._first_lines.get(asked) or self._show_first_line(request, asked)

    def _show_first_line(self, request: AnsweredRequest, asked: _Asked) -> _FirstLine:
        if not request.uri:
            return _FirstLine()
        method, target = show_method(request.method), show_target(request)
        protocol = request.clientproto.decode("ascii")
        shown = _FirstLine(f"{method} {escape(target)} {protocol}", method, target, protocol)
        if len(request.uri) <= FIRST_LINE_MAX_BYTES:
            if len(self._first_lines) >= FIRST_LINES_MAX:
                self._first_lines.clear()
            self._first_lines[asked] = shown
        return shown


def _show_judged(described: Request) -> str:
    return f"{show_method(described.method)} {show_target(described)}"
