"""HTTP/1.1 requests as bytes: their heads, how long their bodies are, and chunks (RFC 9112).

There is one reading of each request or none: what the grammar does not allow is refused, whatever others make of it.
A server that is lenient in one way behind a proxy that is lenient in another executes what nobody has let through
(RFC 9112 §11.2). In particular a line ends with CR LF and nothing else, a field is on one line, and a body has one
length.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address
from typing import NoReturn

from msgspec import Struct

HEAD_MAX_BYTES = 16 * 1024
"""The longest head, its first line included."""

TARGET_MAX_BYTES = 8 * 1024
"""The longest request target; RFC 9112 §3 asks for at least 8,000 octets."""

METHOD_MAX_BYTES = 32
"""The longest name of a method; the registry's longest has 17 letters."""

FIELDS_MAX = 100
"""The most field lines of a head, and of trailers."""

EXTENSIONS_MAX_BYTES = 4 * 1024
"""How much chunk extensions, which nobody reads, may come to in one body."""

NAMES_KNOWN_MAX, NAME_KNOWN_MAX_BYTES = 1024, 64
"""How many spellings of names are remembered, and up to which length: clients use few of them."""

END = b"\r\n\r\n"
"""What ends a head."""

Fields = Mapping[bytes, list[bytes]]
"""The values of each field, in their order, by the field's name in its canonical spelling."""

CanonicalName = Callable[[bytes], bytes]
"""Returns the one spelling of a field's name; raises `ValueError` for what is no token (RFC 9110 §5.6.2)."""

_known_names: dict[bytes, bytes] = {}

# What may stand in a line, be it as a part of a comment or of a value (RFC 9110 §5.5): no control characters.
_TEXT = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS"})  # to look no further
_VERSION = re.compile(rb"HTTP/([0-9])\.([0-9])")

_REG_NAME = rb"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_HOST = re.compile(rb"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|%b)(?::(?P<port>[0-9]{0,5}))?" % _REG_NAME)  # RFC 3986 §3.2.2
_ABSOLUTE_FORM = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)
_PORT_MAX = 65535

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;.*)?", re.DOTALL)  # nobody reads what is in an extension
_CHUNK_LINE_MAX_BYTES = 16 + EXTENSIONS_MAX_BYTES
_NOT_IN_TRAILERS = frozenset({b"Content-Length", b"Transfer-Encoding", b"Host"})


class HttpSyntaxError(Exception):
    """A request that is not taken, and after which nothing on its connection is.

    Args:
        status: what is answered.
        why: a sentence for whoever wrote the client.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why


class Head(Struct):
    """A head that was understood.

    Args:
        method: its name.
        target: the request target as it was sent.
        path: the target's path, percent-encoded as it was sent; `*` of a request for all the server.
        minor: 1 of an HTTP/1.1 request; 0 of HTTP/1.0, whose client knows no chunks.
        fields: the field lines. `Host` is that of a target in absolute form, if it has one (RFC 9112 §3.2.2).
        length: how many bytes the body has, None if that is told in chunks.
        persistent: whether the client may want to send another request.
        expects_continue: whether it waits to be told that the body is wanted (RFC 9110 §10.1.1).
    """

    method: bytes
    target: bytes
    path: bytes
    minor: int
    fields: dict[bytes, list[bytes]]
    length: int | None = 0
    persistent: bool = True
    expects_continue: bool = False


def decode_head(head: bytes, canonical_name: CanonicalName) -> Head:
    """Decode a head.

    Args:
        head: all before its end (`END`).
        canonical_name: for the names of its fields.

    Raises:
        HttpSyntaxError: 400, 414, 417, 431, 501 or 505.
    """
    if len(head) > HEAD_MAX_BYTES:
        refuse_length(head)
    decoded = decode_lines(head, canonical_name)
    fields, minor = decoded.fields, decoded.minor
    _check_host(fields.get(b"Host"), minor)
    if not decoded.target.startswith(b"/"):
        decoded.path = _decode_other_form(decoded)
    if b"Content-Length" in fields or b"Transfer-Encoding" in fields:
        decoded.length = _decode_length(fields, minor)
    if b"Connection" in fields or not minor:
        decoded.persistent = minor == 1 and b"close" not in _tokens(fields[b"Connection"])
    if b"Expect" in fields and minor:
        if [value.lower() for value in fields[b"Expect"]] != [b"100-continue"]:
            raise HttpSyntaxError(417, "Nothing but 100-continue can be expected here.")
        decoded.expects_continue = True
    return decoded


def decode_lines(lines: bytes, canonical_name: CanonicalName) -> Head:
    """Decode the lines of a head, each for itself; there may be more to come.

    Raises:
        HttpSyntaxError: 400, 414, 431, 501 or 505.
    """
    first, *rest = lines.split(b"\r\n")
    _check_text(lines, len(rest))
    if len(rest) > FIELDS_MAX:
        refuse_fields()
    method, target, minor = _decode_first_line(first)
    return Head(method, target, target.partition(b"?")[0], minor, _decode_fields(rest, canonical_name))


def _decode_fields(lines: list[bytes], canonical_name: CanonicalName) -> dict[bytes, list[bytes]]:
    fields: dict[bytes, list[bytes]] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = _known_names.get(name) or _learn_name(name, canonical_name)
        if not colon:
            refuse_field()
        if name in fields:
            fields[name].append(value.strip(b" \t"))
        else:
            fields[name] = [value.strip(b" \t")]
    return fields


class BegunHead:
    """Checks a head while it comes in, so that what is wrong is refused as soon as it is there.

    Each byte is looked at once, in however many pieces it comes: else the work would grow with the square of them.

    Args:
        canonical_name: for the names of its fields.
    """

    def __init__(self, canonical_name: CanonicalName) -> None:
        self._canonical_name = canonical_name
        self._checked = 0  # bytes
        self._lines_end = 0  # where the first line begins that is not there whole
        self._lines = 0

    def check(self, head: bytes) -> None:
        """Let pass what may be the beginning of a head.

        Args:
            head: all that is there of it.

        Raises:
            HttpSyntaxError: 400, 414, 431, 501 or 505, whatever may follow.
        """
        # The first bytes of its end may be there already.
        if len(head) >= HEAD_MAX_BYTES + len(END):
            refuse_length(head)
        if not self._lines and len(head) > TARGET_MAX_BYTES and len(_target_of(head)) > TARGET_MAX_BYTES:
            refuse_length(head)
        _check_text_begun(head[self._checked :])
        end = head.rfind(b"\r\n", self._checked)
        self._checked = len(head) - head.endswith(b"\r")
        if end < 0:
            return
        lines = head[self._lines_end : end].split(b"\r\n")
        first = [] if self._lines else [lines.pop(0)]
        self._lines += len(first) + len(lines)
        self._lines_end = end + 2
        if self._lines > 1 + FIELDS_MAX:
            refuse_fields()
        for line in first:
            _decode_first_line(line)
        _decode_fields(lines, self._canonical_name)


def decode_start(head: bytes) -> tuple[bytes, bytes]:
    """Return method and target of what was refused, both empty if they cannot be told."""
    match head.partition(b"\r\n")[0].split(b" "):
        case [method, target, _] if _TOKEN.fullmatch(method) and target.startswith(b"/"):
            return method[:METHOD_MAX_BYTES], target[:TARGET_MAX_BYTES]
    return b"", b""


def refuse_length(head: bytes) -> NoReturn:
    """Say what of a head is too long."""
    if len(_target_of(head)) > TARGET_MAX_BYTES:
        raise HttpSyntaxError(414, f"The request target has more than {TARGET_MAX_BYTES} bytes.")
    raise HttpSyntaxError(431, f"The head of the request has more than {HEAD_MAX_BYTES} bytes.")


def _target_of(head: bytes) -> bytes:
    """Return what is there of the target."""
    return head.partition(b"\r\n")[0].partition(b" ")[2].partition(b" ")[0]


def refuse_line_end() -> NoReturn:
    raise HttpSyntaxError(400, "Lines end with CR LF, and have no other control characters than tabs in them.")


def _check_text(lines: bytes, line_ends: int) -> None:
    # All that is not text must be the line ends that splitting has found, of two bytes each.
    if len(lines.translate(None, _TEXT)) != 2 * line_ends:
        refuse_line_end()


def _check_text_begun(lines: bytes) -> None:
    # The last byte may be the first half of a line's end.
    whole = lines[:-1] if lines.endswith(b"\r") else lines
    _check_text(whole, whole.count(b"\r\n"))


def refuse_fields() -> NoReturn:
    raise HttpSyntaxError(431, f"The request has more than {FIELDS_MAX} fields.")


def refuse_field() -> NoReturn:
    raise HttpSyntaxError(400, "A field is a name, a colon and a value, on one line.")


def _learn_name(sent: bytes, canonical_name: CanonicalName) -> bytes:
    if len(sent) > NAME_KNOWN_MAX_BYTES:  # of nobody's vocabulary; Twisted would remember it for good, too
        if not _TOKEN.fullmatch(sent):
            refuse_field()
        return b"-".join([word.capitalize() for word in sent.split(b"-")])
    try:
        name = canonical_name(sent)
    except ValueError:  # also of what follows a line that was folded (RFC 9112 §5.2), and of a space before the colon
        refuse_field()
    if len(_known_names) < NAMES_KNOWN_MAX:
        _known_names[sent] = name
    return name


def _decode_first_line(line: bytes) -> tuple[bytes, bytes, int]:
    """Return method, target and minor version (RFC 9112 §3)."""
    words = line.split(b" ")
    if len(words) != len(("method", "target", "version")):
        raise HttpSyntaxError(400, "The first line is a method, a target and a version, with one space in between.")
    method, target, version = words
    if version == b"HTTP/1.1":
        minor = 1
    else:
        match = _VERSION.fullmatch(version)
        if match is None:
            raise HttpSyntaxError(400, "The version of a request is written HTTP/1.1.")
        if match[1] != b"1":
            raise HttpSyntaxError(505, "This server speaks HTTP/1.1.")
        minor = int(match[2] != b"0")
    if method not in _METHODS and not _TOKEN.fullmatch(method):
        raise HttpSyntaxError(400, "The method is no token.")
    if len(method) > METHOD_MAX_BYTES or method == b"CONNECT":
        raise HttpSyntaxError(501, "This server knows no such method.")
    if len(target) > TARGET_MAX_BYTES:
        refuse_length(line)
    if b"#" in target or b"\t" in target or not target.isascii():
        raise HttpSyntaxError(400, "A request target is ASCII, percent-encoded, without a fragment.")
    if not target.startswith((b"/", b"*")) and not _ABSOLUTE_FORM.fullmatch(target):
        refuse_target()
    return method, target, minor


def _decode_other_form(head: Head) -> bytes:
    """Return the path of a target that does not begin with one; put its authority in the place of `Host`."""
    if head.target == b"*" and head.method == b"OPTIONS":
        return head.target
    match = _ABSOLUTE_FORM.fullmatch(head.target)
    # Without userinfo, which is not to be taken (RFC 9110 §4.2.4), and with a host (§4.2.1).
    if match is None or match[1].startswith(b":") or not match[1] or not _is_host(match[1]):
        refuse_target()
    head.fields[b"Host"] = [match[1]]
    return match[2].partition(b"?")[0] or b"/"


def refuse_target() -> NoReturn:
    raise HttpSyntaxError(400, "A request target is a path, or the whole of an http or https URL.")


def _check_host(values: list[bytes] | None, minor: int) -> None:
    """Hosts are as RFC 9112 §3.2 has them."""
    if values is None:
        if minor:
            raise HttpSyntaxError(400, "The request must have one Host field.")
    elif len(values) != 1:
        raise HttpSyntaxError(400, "The request must have one Host field.")
    elif not _is_host(values[0]):
        raise HttpSyntaxError(400, "The Host field must have a host, and may have a port.")


@lru_cache(maxsize=64)
def _is_host(value: bytes) -> bool:
    match = _HOST.fullmatch(value)
    if match is None or (match["port"] and int(match["port"]) > _PORT_MAX):
        return False
    if match["ipv6"] is None:
        return True
    try:
        IPv6Address(match["ipv6"].decode("ascii"))
    except ValueError:
        return False
    return True


def _decode_length(fields: Fields, minor: int) -> int | None:
    """Return the length of the body, None for chunks (RFC 9112 §6)."""
    lengths, codings = fields.get(b"Content-Length"), fields.get(b"Transfer-Encoding")
    if codings is None:
        assert lengths is not None
        # Not even the same one twice, which §6.3 would let pass.
        if len(lengths) != 1 or not lengths[0].isdigit():
            raise HttpSyntaxError(400, "Content-Length must be there once, as a number.")
        # No limit is anywhere near as long; and int() takes no more than some thousands of digits.
        return int(lengths[0].lstrip(b"0")[:20] or b"0")
    if lengths is not None:
        raise HttpSyntaxError(400, "A request has Content-Length or Transfer-Encoding, not both.")
    if not minor:
        raise HttpSyntaxError(400, "HTTP/1.0 has no Transfer-Encoding.")
    if len(codings) == 1 and codings[0].lower() == b"chunked":
        return None
    names = _tokens(codings)
    if names[-1] != b"chunked" or names.count(b"chunked") > 1 or not all(map(_TOKEN.fullmatch, names)):
        raise HttpSyntaxError(400, "The last Transfer-Encoding must be chunked, and only the last.")
    raise HttpSyntaxError(501, "This server knows no Transfer-Encoding but chunked.")


def _tokens(values: list[bytes]) -> list[bytes]:
    """Return the members of a list, in lower case."""
    return [member.strip(b" \t").lower() for value in values for member in value.split(b",")]


class ChunkedBody:
    """Takes a chunked body apart while it comes in (RFC 9112 §7.1). Trailers are checked and dropped.

    Args:
        max_bytes: the limit of the body.
        canonical_name: for the names of trailers.
    """

    def __init__(self, max_bytes: int, canonical_name: CanonicalName) -> None:
        self._max_bytes = max_bytes
        self._canonical_name = canonical_name
        self._received = 0
        self._extensions_room = EXTENSIONS_MAX_BYTES
        self._trailers = self._trailers_bytes = 0
        self._rest = b""
        self._checked = 0  # bytes of a line that is not there whole
        self._wanted = 0
        self._next: Callable[[int, list[bytes]], int] = self._take_size
        self.finished = False

    def take(self, data: bytes) -> list[bytes]:
        """Return what of the body has come with these bytes.

        Raises:
            HttpSyntaxError: 400, they are no such body; 413, it is over the limit; 431, its trailers are.
        """
        self._rest += data
        pieces: list[bytes] = []
        position = 0
        while not self.finished:
            after = self._next(position, pieces)
            if after == position:
                break
            position = after
        self._rest = self._rest[position:]
        return pieces

    def rest(self) -> bytes:
        """Return what came behind the body, once it is finished."""
        return self._rest

    # Each of these takes what is there from a position on, and returns up to where; the same if more must come first.

    def _take_size(self, position: int, _pieces: list[bytes]) -> int:
        line, after = self._line(position)
        if len(line) > _CHUNK_LINE_MAX_BYTES:
            raise HttpSyntaxError(400, "A chunk has too long an extension.")
        if after == position:
            return position
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise HttpSyntaxError(400, "A chunk begins with its size, in hexadecimal digits.")
        self._extensions_room -= len(line) - len(match[1])
        if self._extensions_room < 0:
            raise HttpSyntaxError(400, "The chunks have too many extensions.")
        self._wanted = int(match[1], 16)
        self._received += self._wanted
        if self._received > self._max_bytes:
            refuse_body(self._max_bytes)
        self._next = self._take_data if self._wanted else self._take_trailer
        return after

    def _take_data(self, position: int, pieces: list[bytes]) -> int:
        piece = self._rest[position : position + self._wanted]
        if piece:
            pieces.append(piece)
            self._wanted -= len(piece)
        if not self._wanted:
            self._next = self._take_data_end
        return position + len(piece)

    def _take_data_end(self, position: int, _pieces: list[bytes]) -> int:
        end = self._rest[position : position + 2]
        if not b"\r\n".startswith(end):
            raise HttpSyntaxError(400, "A chunk is not as long as it says.")
        if len(end) < len(b"\r\n"):
            return position
        self._next = self._take_size
        return position + 2

    def _take_trailer(self, position: int, _pieces: list[bytes]) -> int:
        line, after = self._line(position)
        if self._trailers_bytes + len(line) > HEAD_MAX_BYTES or self._trailers > FIELDS_MAX:
            raise HttpSyntaxError(431, "The trailers of the request are too large.")
        if after == position:
            return position
        if not line:
            self.finished = True
            return after
        name, colon, _ = line.partition(b":")
        if not colon:
            refuse_field()
        if _learn_name(name, self._canonical_name) in _NOT_IN_TRAILERS:
            raise HttpSyntaxError(400, "A trailer must not tell where the request goes or ends.")
        self._trailers += 1
        self._trailers_bytes += len(line)
        return after

    def _line(self, position: int) -> tuple[bytes, int]:
        """Return the line at a position and where the next begins: nowhere else if this one is not there whole."""
        begin = position + self._checked
        end = self._rest.find(b"\r\n", begin)
        if end >= 0:
            _check_text(self._rest[begin:end], 0)
            self._checked = 0
            return self._rest[position:end], end + 2
        _check_text_begun(self._rest[begin:])
        line = self._rest[position:]
        self._checked = len(line) - line.endswith(b"\r")
        return line, position


def refuse_body(max_bytes: int) -> NoReturn:
    raise HttpSyntaxError(413, f"The body has more than {max_bytes} bytes.")
