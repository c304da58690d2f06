"""Paths of the same host, as redirects back to a page have them (reference: Form login, F12)."""

import re
from urllib.parse import quote

LOCAL_PATH_MAX_BYTES = 2048
"""The longest path with its query: with a name and a password it fits into the form."""

_PRINTABLE = bytes(range(0x21, 0x7F)).decode("ascii")
_UNSAFE = re.compile(r"//|[\\\x00-\x1f\x7f-\x9f]")


def encode_local_path(text: str) -> bytes | None:
    """Return a path, with its query, as the value of `Location`; None if it may lead to another host, or is too long.

    A safe path begins with a slash, and contains neither two slashes in a row, nor a backslash (which browsers read as
    a slash), nor a control character (some of which browsers remove). Other characters than printable ASCII are
    percent-encoded.
    """
    if not text.startswith("/") or _UNSAFE.search(text):
        return None
    encoded = quote(text, safe=_PRINTABLE).encode("ascii")
    return encoded if len(encoded) <= LOCAL_PATH_MAX_BYTES else None
