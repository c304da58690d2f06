"""Decodes `Retry-After` (RFC 9110 §10.2.3)."""

from datetime import UTC
from email.utils import parsedate_to_datetime


def decode_retry_after(value: str, now: float) -> float | None:
    """Return the seconds to wait at `now`, in seconds since the epoch; None if the value is malformed."""
    if value.isascii() and value.isdecimal():
        return float(value[:9])
    try:
        date = parsedate_to_datetime(value)
        # The obsolete form of `asctime` has no zone.
        return max((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now, 0.0)
    except (ValueError, TypeError, OverflowError):
        return None
