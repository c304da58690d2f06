"""Times on HTML pages."""

from datetime import UTC, datetime

from postd.protocol.timestamp import format_timestamp

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def make_time(milliseconds: int, now: int) -> str:
    """Render a time, relative to now; both are milliseconds since the epoch."""
    then = _to_datetime(milliseconds)
    return _render(milliseconds, _say_when(then, (now - milliseconds) // 1000))


def make_date(milliseconds: int) -> str:
    """Render the date of a time, in UTC."""
    return _render(milliseconds, _say_date(_to_datetime(milliseconds)))


def _render(milliseconds: int, words: str) -> str:
    title = _to_datetime(milliseconds).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f'<time datetime="{format_timestamp(milliseconds)}" title="{title}">{words}</time>'


def _to_datetime(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _say_when(then: datetime, ago_s: int) -> str:
    """Return a time in words; `board.js` has the same words."""
    minutes, hours, days = ago_s // 60, ago_s // 3600, ago_s // 86400
    if days >= 7:
        return _say_date(then)
    for number, unit in ((days, "d"), (hours, "h"), (minutes, "min")):
        if number > 0:
            return f"{number} {unit} ago"
    return "just now"


def _say_date(then: datetime) -> str:
    return f"{then.day} {_MONTHS[then.month - 1]} {then.year}"
