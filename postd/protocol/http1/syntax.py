"""The common syntax of heads and chunked bodies: lines, tokens, field names, limits (RFC 9110 §5, RFC 9112 §2)."""

import re
from collections.abc import Callable
from typing import NoReturn

HEAD_MAX_BYTES = 16 * 1024
"""The longest head, request line included; also the most bytes of trailers."""

FIELDS_MAX = 100
"""The most field lines of a head, and of trailers."""

NAME_CACHE_MAX, CACHED_NAME_MAX_BYTES = 1024, 64
"""How many spellings of field names are cached, and the longest: clients use few of them."""

CanonicalName = Callable[[bytes], bytes]
"""Returns the canonical spelling of a field name; raises `ValueError` if it is not a token (RFC 9110 §5.6.2)."""

TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# The characters allowed in a line, comments and field values included (RFC 9110 §5.5): no controls but tabs.
_TEXT = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])

_name_cache: dict[bytes, bytes] = {}


class HttpSyntaxError(Exception):
    """A request that is refused; the connection can carry no further request.

    Args:
        status: the status code of the answer.
        why: the reason, a sentence for the client's developer.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why


def is_text(line: bytes) -> bool:
    """Return whether a line has no control characters but tabs, so no line end either."""
    return not line.translate(None, _TEXT)


def check_text(lines: bytes, line_ends: int) -> None:
    """Check that lines have no control characters but tabs and `line_ends` times CR LF.

    Raises:
        HttpSyntaxError: 400.
    """
    # All bytes that are not text must be the line ends found by splitting, of two bytes each.
    if len(lines.translate(None, _TEXT)) != 2 * line_ends:
        raise HttpSyntaxError(400, "Lines must end with CR LF, and contain no control characters but tabs.")


def check_partial_text(lines: bytes) -> None:
    """Check lines as `check_text` does, whose last one may be incomplete.

    Raises:
        HttpSyntaxError: 400.
    """
    # The last byte may be the first half of a line's end.
    whole = lines[:-1] if lines.endswith(b"\r") else lines
    check_text(whole, whole.count(b"\r\n"))


def decode_fields(lines: list[bytes], canonical_name: CanonicalName) -> dict[bytes, list[bytes]]:
    """Return the values of field lines, in their order, by the canonical spelling of their names (RFC 9112 §5).

    Raises:
        HttpSyntaxError: 400.
    """
    fields: dict[bytes, list[bytes]] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = _name_cache.get(name) or _canonical(name, canonical_name)
        if not colon:
            _refuse_field()
        if name in fields:
            fields[name].append(value.strip(b" \t"))
        else:
            fields[name] = [value.strip(b" \t")]
    return fields


def _canonical(sent: bytes, canonical_name: CanonicalName) -> bytes:
    if len(sent) > CACHED_NAME_MAX_BYTES:  # Twisted would cache it without a bound
        if not TOKEN.fullmatch(sent):
            _refuse_field()
        return b"-".join([word.capitalize() for word in sent.split(b"-")])
    try:
        name = canonical_name(sent)
    except ValueError:  # also for folded lines (RFC 9112 §5.2) and for white space before the colon
        _refuse_field()
    if len(_name_cache) < NAME_CACHE_MAX:
        _name_cache[sent] = name
    return name


def _refuse_field() -> NoReturn:
    raise HttpSyntaxError(400, "A header field must be a name, a colon and a value, on one line.")
