"""RFC 9112 as regular expressions: a strict parser of complete requests.

It is an oracle for tests: it sees all bytes at once, and where the RFC leaves a choice it refuses. Each pattern is the
grammar of its section; the limits are those of postd's server.
"""

import re
from collections.abc import Sequence
from ipaddress import AddressValueError, IPv6Address

from msgspec import Struct

from tests.front.connections import Seen
from tests.front.corpus import MAX_BODY_BYTES

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"

_REQUEST_LINE = re.compile(rb"(?:\r\n)?(%b) ([\x21-\x7e]+) HTTP/1\.([0-9])\r\n" % _TOKEN)  # §2.2, §3
_FIELD = re.compile(rb"(%b):([\t\x20-\x7e\x80-\xff]*)\r\n" % _TOKEN)  # §5; with the space around a value
_END = re.compile(rb"\r\n")
_ORIGIN_FORM = re.compile(rb"/[\x21\x22\x24-\x7e]*")  # §3.2.1
_ABSOLUTE_FORM = re.compile(rb"https?://([^/?#]+)(?:[/?][\x21\x22\x24-\x7e]*)?", re.IGNORECASE)  # §3.2.2
_AUTHORITY = re.compile(  # RFC 3986 §3.2, without user information
    rb"(?:\[([0-9A-Fa-f:.]+)\]|\[v[0-9A-Fa-f]+\.[0-9A-Za-z._~!$&'()*+,;=:-]+\]|((?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*))(?::([0-9]*))?"
)
_LENGTH = re.compile(rb"[0-9]+")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[\t ]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")  # §7.1
_FRAMING = {b"host", b"content-length", b"transfer-encoding"}


class _NotTakenError(Exception):
    """The request is incomplete or invalid."""


class _Cursor(Struct):
    sent: bytes
    place: int = 0

    def take(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        match = self.take_if(pattern)
        if match is None:
            raise _NotTakenError
        return match

    def take_if(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        match = pattern.match(self.sent, self.place)
        if match is not None:
            self.place = match.end()
        return match

    def take_bytes(self, count: int) -> bytes:
        if len(self.sent) - self.place < count:
            raise _NotTakenError
        self.place += count
        return self.sent[self.place - count : self.place]

    def take_fields(self) -> list[tuple[bytes, bytes]]:
        fields = []
        while match := self.take_if(_FIELD):
            fields.append((match[1], match[2].strip(b"\t ")))
        self.take(_END)
        return fields


def read(sent: bytes) -> Sequence[Seen]:
    """Return the requests that a strict parser accepts from the beginning of a connection."""
    cursor = _Cursor(sent)
    taken: list[Seen] = []
    try:
        while not (taken and _is_last(taken[-1])):
            taken.append(_read_request(cursor))
    except _NotTakenError:
        pass
    return taken


def _read_request(cursor: _Cursor) -> Seen:
    begin = cursor.place
    line = cursor.take(_REQUEST_LINE)
    method, target, old = line[1], line[2], line[3] == b"0"
    fields = cursor.take_fields()
    _require(len(method) <= 32 and len(target) <= 8192 and len(fields) <= 100 and cursor.place - begin <= 16384)
    hosts = _values(fields, b"host")
    coding = [value.lower() for value in _values(fields, b"transfer-encoding")]
    lengths = _values(fields, b"content-length")
    expectation = [value.lower() for value in _values(fields, b"expect")]
    _require(_is_target(method, target))
    _require(len(hosts) == 1 or (old and not hosts))
    _require(all(not host or _is_authority(host) for host in hosts))
    _require(old or expectation in ([], [b"100-continue"]))
    if coding:  # §6.1
        _require(coding == [b"chunked"] and not old and not lengths)
        body = _read_chunks(cursor)
    elif lengths:  # §6.2
        _require(len(lengths) == 1 and _LENGTH.fullmatch(lengths[0]) is not None and len(lengths[0]) < 100)
        _require(int(lengths[0]) <= MAX_BODY_BYTES)
        body = cursor.take_bytes(int(lengths[0]))
    else:
        body = b""
    return Seen.of(method, target, old=old, fields=fields, body=body)


def _read_chunks(cursor: _Cursor) -> bytes:
    body = b""
    extensions = 0
    while size := int((line := cursor.take(_CHUNK))[1], 16):
        extensions += len(line[0]) - len(line[1])
        _require(len(body) + size <= MAX_BODY_BYTES and extensions <= 16384)
        body += cursor.take_bytes(size)
        cursor.take(_END)
    begin = cursor.place
    trailers = cursor.take_fields()
    _require(len(trailers) <= 100 and cursor.place - begin <= 16384)
    _require(not any(name.lower() in _FRAMING for name, _ in trailers))  # RFC 9110 §6.5.1
    return body


def _is_target(method: bytes, target: bytes) -> bool:
    absolute = _ABSOLUTE_FORM.fullmatch(target)
    if absolute is not None:
        return method != b"CONNECT" and _is_authority(absolute[1]) and not absolute[1].startswith(b":")
    if target == b"*":
        return method == b"OPTIONS"
    return method != b"CONNECT" and _ORIGIN_FORM.fullmatch(target) is not None


def _is_authority(text: bytes) -> bool:
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return False
    if match[1] is not None:
        try:
            IPv6Address(match[1].decode())
        except AddressValueError:
            return False
    return not match[3] or (len(match[3]) <= 5 and int(match[3]) <= 65535)


def _is_last(request: Seen) -> bool:
    """Return whether the request is the last of its connection (§9.6)."""
    options = b",".join(request.fields.get(b"connection", ())).lower().split(b",")
    return request.old or b"close" in [option.strip(b"\t ") for option in options]


def _values(fields: Sequence[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for other, value in fields if other.lower() == name]


def _require(condition: bool) -> None:  # noqa: FBT001 - what it says
    if not condition:
        raise _NotTakenError
