"""What comes back to a request, in our words: problems, fields, and why there is nothing."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NoReturn

import orjson
from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectError, DNSLookupError

from postd.client.errors import NoAnswerError, ProblemError
from postd.net.fetching import describe_failure, is_tls_failure, root_cause


def no_answer(error: Exception, origin: str) -> Exception:
    """Return in our words why there was no answer; what was cancelled stays that, which Twisted's client wraps, too."""
    if isinstance(root_cause(error), CancelledError):
        return CancelledError()
    never_sent = isinstance(error, ConnectError | DNSLookupError) or is_tls_failure(error)
    return NoAnswerError(f"{origin}: {describe_failure(error)}", sent=not never_sent)


def fields_of(response: Any) -> dict[str, str]:
    """Return the fields of treq's answer as `Answer` has them."""
    raw = response.headers.getAllRawHeaders()
    joined = {name.decode("latin-1").lower(): b", ".join(values) for name, values in raw}
    return {name: value.decode("latin-1") for name, value in joined.items()}


def say_late(_: object, seconds: float) -> NoReturn:
    """Say that it took too long: for `Deferred.addTimeout`."""
    raise NoAnswerError(f"there was no answer within {seconds:.0f} s")


def read_problem(status: int, fields: Mapping[str, str], content: bytes) -> ProblemError:
    """Return what an answer says that is not one of success, problem details or not."""
    told: Any = None
    if fields.get("content-type", "").partition(";")[0].strip().lower() == "application/problem+json":
        try:
            told = orjson.loads(content)
        except orjson.JSONDecodeError:
            told = None
    words = {name: value for name, value in told.items() if isinstance(value, str)} if isinstance(told, dict) else {}
    location = fields.get("location", "")
    return ProblemError(
        status,
        words.get("title") or _PHRASES.get(status, "Unknown Status"),
        words.get("detail") or (f"it leads to {location}" if location and 300 <= status < 400 else ""),
        pointer=words.get("pointer", ""),
        retry_after_s=_read_retry_after(fields.get("retry-after", "")),
    )


_PHRASES = {status.value: status.phrase for status in HTTPStatus}


def _read_retry_after(value: str) -> float | None:
    """Return what `Retry-After` says, in seconds (RFC 9110 §10.2.3)."""
    if value.isascii() and value.isdecimal():
        return float(value[:9])
    try:
        return max((parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None
