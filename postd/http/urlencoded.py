"""Queries of request targets and bodies of forms (URL Standard §5.1, `application/x-www-form-urlencoded`)."""

import re
from collections.abc import Mapping

from postd.http.errors import Problem
from postd.http.interface import Request
from postd.protocol.percent import parse_urlencoded

FORM_MAX_BYTES = 8 * 1024
"""Size limit of a form body (reference: Form login)."""

FIELDS_MAX = 100
"""Limit on the number of fields or parameters: each takes some microseconds to decode."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")


def is_form(request: Request) -> bool:
    """Return whether the body of a request is a form."""
    kinds = request.fields.get(b"Content-Type", [b""])
    return len(kinds) == 1 and kinds[0].partition(b";")[0].strip().lower() == b"application/x-www-form-urlencoded"


def decode_form(request: Request, max_bytes: int = FORM_MAX_BYTES) -> Mapping[str, list[str]]:
    """Decode a form body: for each field name its values, in order.

    Raises:
        Problem: 415, the body is not a form; 413, it exceeds `max_bytes`; 400, it has more than `FIELDS_MAX` fields or
            is not UTF-8.
    """
    if not is_form(request):
        raise Problem(415, "The form must be sent as Content-Type: application/x-www-form-urlencoded.")
    body = request.body
    if len(body) > max_bytes:
        raise Problem(413, f"The form has more than {max_bytes} bytes.")
    if body.count(b"&") >= FIELDS_MAX:
        raise Problem(400, f"The form has more than {FIELDS_MAX} fields.")
    try:
        return _decode(body, errors="strict")
    except UnicodeDecodeError:
        raise Problem(400, "The form is not UTF-8 text, percent-encoded.") from None


def decode_fields(body: bytes) -> Mapping[str, list[str]]:
    """Decode the body of a form that a field of another form has; none of its fields if it is not valid."""
    try:
        return _decode(body, errors="strict") if body.count(b"&") < FIELDS_MAX else {}
    except UnicodeDecodeError:
        return {}


def decode_query(request: Request) -> Mapping[str, list[str]]:
    """Decode the query of a request target: for each parameter its values, in order.

    Raises:
        Problem: 400, it has more than `FIELDS_MAX` parameters.
    """
    query = request.uri.partition(b"?")[2]
    if not query:
        return {}
    if query.count(b"&") >= FIELDS_MAX:
        raise Problem(400, f"The query has more than {FIELDS_MAX} parameters.")
    return _decode(query, errors="replace")


def _decode(text: bytes, *, errors: str) -> Mapping[str, list[str]]:
    # Twisted's request.args drops parameters without an equals sign.
    fields: dict[str, list[str]] = {}
    for name, value in parse_urlencoded(text):
        fields.setdefault(name.decode("utf-8", errors), []).append(value.decode("utf-8", errors))
    return fields


def parse_number(text: str) -> int | None:
    """Parse a non-negative decimal number without leading zeros; return None for anything else."""
    return int(text) if _NUMBER.fullmatch(text) else None


def decode_number(parameters: Mapping[str, list[str]], name: str, least: int, most: int) -> int | None:
    """Return a numeric parameter, None if it is absent.

    Raises:
        Problem: 400, it is repeated or not a number from `least` to `most`.
    """
    values = parameters.get(name)
    if values is None:
        return None
    number = parse_number(values[0]) if len(values) == 1 else None
    if number is None or not least <= number <= most:
        raise Problem(400, f"?{name} must be given once, as a number from {least} to {most}.")
    return number
