"""Equivalence of request targets (RFC 3986 §6.2.2), which clients and proxies spell in different ways."""

import re
import string

_UNRESERVED = f"{string.ascii_letters}{string.digits}-._~"
_DIGITS = "0123456789ABCDEFabcdef"
_NORMAL = {
    **{bytes([octet]): b"%%%02X" % octet for octet in range(256)},
    **{
        f"%{high}{low}".encode(): (
            bytes.fromhex(high + low) if chr(int(high + low, 16)) in _UNRESERVED else f"%{high}{low}".upper().encode()
        )
        for high in _DIGITS
        for low in _DIGITS
    },
}
"""The normal form of each escape, and of each octet that no URI has."""

_SPELLED = re.compile(rb"%[0-9A-Fa-f]{2}|[^\]!#$%&'()*+,/:;=?@\[A-Za-z0-9._~-]")


def normalize_target(target: bytes) -> bytes:
    """Return a request target in origin form so that equivalent targets are equal; an empty path is `/` (§6.2.3).

    Escapes get upper-case digits, those of unreserved characters are decoded, octets that no URI has are escaped, and
    dot segments are removed. Repeated slashes in the path become one, against RFC 3986, because many proxies pass the
    target on so. Reserved characters are not decoded: `%2F` differs from a slash.
    """
    path, question, query = _SPELLED.sub(lambda spelled: _NORMAL[spelled[0]], target).partition(b"?")
    return _normalize_path(path) + question + query if path[:1] in {b"", b"/"} else target


def _normalize_path(path: bytes) -> bytes:
    kept: list[bytes] = []
    segments = path[1:].split(b"/")
    for segment in segments:
        if segment == b"..":
            del kept[-1:]
        elif segment != b".":
            kept.append(segment)
    if segments[-1] in {b".", b".."}:
        kept.append(b"")
    is_folder = kept[-1:] == [b""]
    return b"/" + b"/".join([segment for segment in kept if segment] + [b""] * is_folder)
