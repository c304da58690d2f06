"""Times as text: RFC 3339 in UTC, with milliseconds."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII)


def format_timestamp(milliseconds: int) -> str:
    """Return the time so many milliseconds after the epoch, such as `2026-11-28T02:11:55.000Z`."""
    day, rest = divmod(milliseconds, 86_400_000)
    seconds, fraction = divmod(rest, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{_format_day(day)}T{hour:02}:{minute:02}:{second:02}.{fraction:03}Z"


@lru_cache(256)
def _format_day(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).date().isoformat()


def parse_timestamp(text: str) -> int:
    """Return the milliseconds from the epoch to a time, in any time zone; smaller fractions are cut off.

    Raises:
        ValueError: the text is not a time by RFC 3339, or is outside the years 1 to 9999 in UTC.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError("not a time such as 2026-11-28T02:11:55.000Z")
    date, clock, fraction, zone = found.groups()
    microseconds = (fraction or ".0")[1:7].ljust(6, "0")
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}.{microseconds}{zone.upper().replace('Z', '+00:00')}")
        return (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise ValueError("not a time of the calendar") from None
