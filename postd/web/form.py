"""HTML form bodies (URL Standard §5.1, `application/x-www-form-urlencoded`)."""

from collections.abc import Mapping

from postd.protocol.percent import parse_urlencoded
from postd.web.errors import Problem
from postd.web.interface import Request

FORM_MAX_BYTES = 8 * 1024
"""Size limit of a form body (reference: Form login)."""

FIELDS_MAX = 100
"""Limit on the number of fields, each of which costs some microseconds to decode."""


def decode_form(request: Request) -> Mapping[str, list[str]]:
    """Decode a form body: for each field name its values, in order.

    Raises:
        Problem: 415, the body is not a form; 413, it exceeds `FORM_MAX_BYTES`; 400, it has more than `FIELDS_MAX`
            fields or is not UTF-8.
    """
    kinds = request.fields.get(b"Content-Type", [b""])
    if len(kinds) != 1 or kinds[0].partition(b";")[0].strip().lower() != b"application/x-www-form-urlencoded":
        raise Problem(415, "The form must be sent as Content-Type: application/x-www-form-urlencoded.")
    body = request.body
    if len(body) > FORM_MAX_BYTES:
        raise Problem(413, f"The form has more than {FORM_MAX_BYTES} bytes.")
    if body.count(b"&") >= FIELDS_MAX:
        raise Problem(400, f"The form has more than {FIELDS_MAX} fields.")
    fields: dict[str, list[str]] = {}
    try:
        for name, value in parse_urlencoded(body):
            fields.setdefault(name.decode("utf-8"), []).append(value.decode("utf-8"))
    except UnicodeDecodeError:
        raise Problem(400, "The form is not UTF-8 text, percent-encoded.") from None
    return fields
