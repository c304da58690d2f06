"""Percent-decoding of URLs and forms (RFC 3986 §2.1; URL Standard §5.1).

urllib.parse takes a microsecond for each malformed percent escape, so that a few kilobytes of them block a server for
milliseconds. Here they take no longer than other text.
"""

import re

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_DIGITS = "0123456789ABCDEFabcdef"
_OCTETS = {(high + low).encode(): bytes.fromhex(high + low) for high in _DIGITS for low in _DIGITS}


def percent_decode(data: bytes) -> bytes:
    """Return octets with each `%XX` decoded (RFC 3986 §2.1); a percent sign without two hex digits stays as it is."""
    if b"%" not in data:
        return data
    parts = _ESCAPE.split(data)
    parts[1::2] = [_OCTETS[digits] for digits in parts[1::2]]
    return b"".join(parts)


def decode_segments(path: bytes) -> list[bytes]:
    """Return the decoded segments of a path, which begins with a slash; a segment may have slashes of its own."""
    segments = path[1:].split(b"/")
    if b"%" not in path:
        return segments
    decoded = percent_decode(path[1:]).split(b"/")  # in one call, which is cheaper
    return decoded if len(decoded) == len(segments) else [percent_decode(segment) for segment in segments]


def parse_urlencoded(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the names and values of `application/x-www-form-urlencoded` octets, decoded (URL Standard §5.1)."""
    pairs = (field.replace(b"+", b" ").partition(b"=") for field in data.split(b"&") if field)
    return [(percent_decode(name), percent_decode(value)) for name, _, value in pairs]
