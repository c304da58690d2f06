"""Base64 of the URL alphabet, without padding (RFC 4648 §5, RFC 7515 §2)."""

import re
from base64 import urlsafe_b64encode
from binascii import a2b_base64

TO_STANDARD = bytes.maketrans(b"-_", b"+/")
"""From the URL alphabet to the standard one, for `bytes.translate`."""


_ANY_ALPHABET = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


def encode_base64url(data: bytes) -> str:
    """Encode without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_base64url(text: bytes) -> bytes:
    """Decode canonical Base64url only, so that each value has one spelling.

    `base64.urlsafe_b64decode` also accepts `+` and `/`, since Python 3.15 with a warning that a peer could flood the
    log with, and skips characters of neither alphabet.

    Raises:
        ValueError: another alphabet, padding, or unused bits that are not zero.
    """
    decoded = a2b_base64(text.translate(TO_STANDARD) + b"=" * (-len(text) % 4), strict_mode=True)
    if urlsafe_b64encode(decoded).rstrip(b"=") != text:
        raise ValueError("not canonical Base64")
    return decoded


def decode_any_base64(text: object) -> bytes:
    """Decode a text in Base64 of either alphabet, with or without padding.

    Raises:
        ValueError: it is no text, or has other characters, or one too many.
    """
    if not isinstance(text, str) or not _ANY_ALPHABET.fullmatch(text):
        raise ValueError("not Base64")
    return a2b_base64(text.rstrip("=").encode().translate(TO_STANDARD) + b"==")
