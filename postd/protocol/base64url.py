"""Base64 of the URL alphabet, without padding (RFC 4648 §5, RFC 7515 §2)."""

from base64 import urlsafe_b64encode
from binascii import a2b_base64

TO_STANDARD = bytes.maketrans(b"-_", b"+/")
"""From the URL alphabet to the standard one, for `bytes.translate`."""


def decode_base64url(text: bytes) -> bytes:
    """Decode the one spelling that each value has.

    `base64.urlsafe_b64decode` takes `+` and `/` as well, with a warning since Python 3.15, and skips what is in neither
    alphabet: a peer's text would write into the log.

    Raises:
        ValueError: another alphabet, padding, or bits to spare that are not zero.
    """
    decoded = a2b_base64(text.translate(TO_STANDARD) + b"=" * (-len(text) % 4), strict_mode=True)
    if urlsafe_b64encode(decoded).rstrip(b"=") != text:
        raise ValueError("not canonical Base64")
    return decoded
