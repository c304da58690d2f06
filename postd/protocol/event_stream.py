"""Decodes a stream of server-sent events (HTML Living Standard, 9.2 Server-sent events)."""

import codecs
import re

from msgspec import Struct

LINE_MAX_CHARS = 64 * 1024
"""The longest line, and the most text in one event."""


class Event(Struct, frozen=True):
    """An event: its type, its data, and the last event ID at that point, empty for none."""

    kind: str
    data: str
    last_id: str


class EventStreamError(ValueError):
    """The stream exceeds a limit; `str()` gives the reason."""


_LINE_END = re.compile(r"\r\n|\r|\n")
_DIGITS = re.compile(r"[0-9]{1,9}")


class EventDecoder:
    """Decodes events from the pieces of a stream, however it is cut.

    Args:
        last_id: the last event ID of the stream before this one, empty for none.

    Attributes:
        last_id: the `Last-Event-ID` for reconnecting.
        retry_ms: the reconnection time that the server has set, None if it has not.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self.retry_ms: int | None = None
        self._characters = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._rest: list[str] = []
        self._rest_chars = 0
        self._ends_with_cr = False
        self._next_id = last_id
        self._kind = ""
        self._data: list[str] = []
        self._data_chars = 0

    def decode(self, piece: bytes) -> list[Event]:
        """Return the events that are complete with this piece.

        Raises:
            EventStreamError: a line or an event is too long.
        """
        text = self._characters.decode(piece)
        self._rest.append(text)
        self._rest_chars += len(text)
        events = []
        if self._ends_with_cr or _LINE_END.search(text):
            text = "".join(self._rest)
            # A final CR may be the first half of a CR LF.
            self._ends_with_cr = text.endswith("\r")
            *lines, rest = _LINE_END.split(text.removesuffix("\r"))
            self._rest = [rest, "\r"] if self._ends_with_cr else [rest]
            self._rest_chars = len(rest)
            events = [event for line in lines if (event := self._take(line)) is not None]
        if max(self._rest_chars, self._data_chars) > LINE_MAX_CHARS:
            raise EventStreamError("a line or an event of it is too long")
        return events

    def _take(self, line: str) -> Event | None:
        """Process a line; return the event that it completes, None if it completes none."""
        if not line:
            return self._end_event()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
                self._data_chars += len(value) + 1
            case "id" if "\0" not in value:
                self._next_id = value
            case "retry" if _DIGITS.fullmatch(value):
                self.retry_ms = int(value)
        return None  # comments have no name, and other names are ignored

    def _end_event(self) -> Event | None:
        self.last_id = self._next_id
        kind, data = self._kind or "message", "\n".join(self._data)
        is_event = bool(self._data)
        self._kind, self._data, self._data_chars = "", [], 0
        return Event(kind, data, self.last_id) if is_event else None
