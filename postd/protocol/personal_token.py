"""Personal access tokens: their text, and what a store has of them.

A token is `postd_`, 40 random characters and 6 of a checksum: scanners for secrets find it, and a typing error is
noticed without a look-up.
"""

import hashlib
import re
import secrets
import string
import zlib
from typing import Literal

from msgspec import Struct

PREFIX = "postd_"
"""The beginning of each token."""

Access = Literal["read", "write"]
"""What a token permits: only to read, or to write, too."""

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM_CHARS = 40
_CHECKSUM_CHARS = 6
_CHECKED_CHARS = len(PREFIX) + _RANDOM_CHARS
_ID_CHARS = 12
_ID_ALPHABET = string.digits + string.ascii_lowercase
_is_shaped = re.compile(f"{PREFIX}[0-9A-Za-z]{{{_RANDOM_CHARS + _CHECKSUM_CHARS}}}").fullmatch


class PersonalToken(Struct, frozen=True):
    """A personal access token, without its text. Times are seconds since the epoch.

    Args:
        id: names it in lists; it gives no access.
        account: its owner, as an identity names it.
        entry: its owner's entry in the user file, or at the provider; after another one the token is worthless.
        label: by its owner.
        access: what it permits.
        created: when it was made.
        expires: when it expires; infinity: never.
        used: about when it was last used, at most once an hour; 0: never.
    """

    id: str
    account: str
    entry: bytes
    label: str
    access: Access
    created: float
    expires: float
    used: float = 0.0


def make_token() -> str:
    """Return a new unguessable token: 238 bits from the operating system."""
    checked = PREFIX + "".join(secrets.choice(_BASE62) for _ in range(_RANDOM_CHARS))
    return checked + _checksum(checked)


def has_prefix(text: str) -> bool:
    """Return whether a text begins as tokens do, and so is meant as one."""
    return text.startswith(PREFIX)


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token, and its checksum is right."""
    return _is_shaped(text) is not None and text[_CHECKED_CHARS:] == _checksum(text[:_CHECKED_CHARS])


def hash_token(text: str) -> bytes:
    """Return the hash of a token, as kept in the store.

    A plain hash suffices: 238 random bits cannot be guessed.
    """
    return hashlib.sha256(text.encode()).digest()


def make_record_id() -> str:
    """Return a new id of a token or a passkey: 62 random bits that are easy to read and to type."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARS))


def _checksum(checked: str) -> str:
    """Return the CRC-32 of the characters before it in base 62, the most significant digit first."""
    rest = zlib.crc32(checked.encode("ascii"))
    digits = ""
    for _ in range(_CHECKSUM_CHARS):
        rest, digit = divmod(rest, len(_BASE62))
        digits = _BASE62[digit] + digits
    return digits
