"""The access log: a line a request, in the combined form of Apache with more behind it, or as JSON.

| field | text | JSON |
|---|---|---|
| the client's address, or that which a trusted proxy tells | first | `client` |
| who it was found to come from | third, `-` for nobody | `user` |
| when the request was answered | in brackets | `time` |
| its first line | in quotes | `method`, `target`, `protocol` |
| the status, and the bytes of the body | after that | `status`, `bytes` |
| `Referer` and `User-Agent` | in quotes | `referer`, `agent` |
| the rule that its path fits, as README has it | `route=` | `route` |
| the scheme of its credentials | `scheme=` | `scheme` |
| from its head to its answer's end, in milliseconds | `ms=` | `ms` |
| what the client, a proxy or we call it, here and elsewhere in the log | `id=` | `id` |

A password or a token has no place in a target, but programs have put them there; the log is not to keep them.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import orjson
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from postd.errors import without_tokens

DELAY_S = 0.1
"""How long lines wait for others, to be one event of the log: one for each would take a third of a request's time."""

SHOWN_MAX_BYTES = 2048
"""How much of a target, a referrer or an agent is told."""

_PARAMETER = re.compile(r"(?<=[?&;#])([^=&;#]+)=([^&;#\s\"]+)")
_SECRET = re.compile(r"password|\w*token|client_secret|code|session|assertion", re.IGNORECASE)
_ODD = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")
_PLAIN = re.compile(rb"[\x20\x21\x23-<>?A-\x5b\x5d-\x7e]*")  # nor has it a parameter or an @
_USERINFO = re.compile(r"//[^/\s\"]*@")
_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")  # what JSON leaves as it is, and terminals and some readers do not

_log = Logger("postd.access")


class AccessLog:
    """Writes the lines, a bundle an event of `postd.access`, whose `lines` are ended by newlines but for the last.

    Args:
        as_json: whether they are JSON.
        address_of: tells a request's client.
        reactor: its clock, by which bundles are made.
    """

    def __init__(self, *, as_json: bool, address_of: Callable[[Any], str], reactor: IReactorTime) -> None:
        self._format = self._json_line if as_json else self._text_line
        self._address_of = address_of
        self._reactor = reactor
        self._lines: list[str] = []
        self._second = 0
        self._date = ""
        self._closed = False

    def note(self, request: Any, now: float) -> None:
        """Note a request that was answered, at a time of the reactor's clock and of the epoch's."""
        if not self._lines:
            self._reactor.callLater(DELAY_S, self.flush)
        self._lines.append(self._format(request, (self._reactor.seconds() - request.started_s) * 1000, now))
        if self._closed:  # nobody would come for it later
            self.flush()

    def close(self) -> None:
        """Write what there is now, and what comes from now on at once."""
        self._closed = True
        self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            _log.info("{lines}", lines="\n".join(lines))

    def _text_line(self, request: Any, took_ms: float, now: float) -> str:
        second = int(now)
        if second != self._second:
            self._second = second
            self._date = datetime.fromtimestamp(second, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        fields = request.fields
        referers = fields.get(b"Referer")
        agents = fields.get(b"User-Agent")
        first = f"{_show(request.method)} {_show(request.uri)} {_show(request.clientproto)}" if request.uri else "-"
        return (
            f"{self._address_of(request)} - {'-' if request.username is None else _quoted(request.username)} "
            f'[{self._date}] "{first}" {request.code} {request.sentLength or "-"} '
            f'"{_show(referers[0]) if referers else "-"}" "{_show(agents[0]) if agents else "-"}" '
            f"route={request.route or '-'} scheme={request.auth_scheme or '-'} ms={took_ms:.1f} id={request.id}"
        )

    def _json_line(self, request: Any, took_ms: float, now: float) -> str:
        fields = request.fields
        referers = fields.get(b"Referer")
        agents = fields.get(b"User-Agent")
        members = {
            "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
            "client": self._address_of(request),
            "user": request.username,
            "method": _clean(request.method) or None,
            "target": _clean(request.uri) or None,
            "protocol": _clean(request.clientproto) if request.uri else None,
            "status": request.code,
            "bytes": request.sentLength,
            "referer": _clean(referers[0]) if referers else None,
            "agent": _clean(agents[0]) if agents else None,
            "route": request.route,
            "scheme": request.auth_scheme,
            "ms": round(took_ms, 1),
            "id": request.id,
        }
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", orjson.dumps(members).decode())


def _clean(sent: bytes, encoding: str = "utf-8") -> str:
    """Return what a client has sent, without secrets."""
    more = "..." if len(sent) > SHOWN_MAX_BYTES else ""
    text = without_tokens(sent[:SHOWN_MAX_BYTES].decode(encoding, "backslashreplace"))
    if "@" in text:
        text = _USERINFO.sub("//[redacted]@", text)
    return (_PARAMETER.sub(_redact, text) if "=" in text else text) + more


def _redact(parameter: re.Match[str]) -> str:
    secret = _SECRET.fullmatch(unquote(parameter[1]))
    return f"{parameter[1]}=[redacted]" if secret else parameter[0]


def _show(sent: bytes) -> str:
    """Return it so that it can stand between quotes in one line."""
    if len(sent) <= SHOWN_MAX_BYTES and _PLAIN.fullmatch(sent) and b"eyJ" not in sent:
        return sent.decode("ascii")
    return _ODD.sub(_escape, _clean(sent, "latin-1"))


def _escape(odd: re.Match[str]) -> str:
    return f"\\{odd[0]}" if odd[0] in '"\\' else f"\\x{ord(odd[0]):02x}"


@lru_cache(maxsize=1024)
def _quoted(username: str) -> str:
    return quote(username, safe="@+:/#")
