"""Bodies of HTML forms: bytes in, fields out (URL Standard §5.1, `application/x-www-form-urlencoded`)."""

from collections.abc import Mapping
from typing import Any

from postd.protocol.percent import parse_urlencoded
from postd.web.errors import Problem

FORM_MAX_BYTES = 8 * 1024
"""The largest form of ours (contract 3)."""

FIELDS_MAX = 100
"""The most fields of a form: each costs some microseconds."""


def decode_form(request: Any) -> Mapping[str, list[str]]:
    """Return the fields of a form: for each name the values that came with it, in their order.

    Raises:
        Problem: 415, 413 or 400, it is not a form in UTF-8 of at most `FORM_MAX_BYTES` and `FIELDS_MAX` fields.
    """
    kinds = request.fields.get(b"Content-Type", [b""])
    if len(kinds) != 1 or kinds[0].partition(b";")[0].strip().lower() != b"application/x-www-form-urlencoded":
        raise Problem(415, "The form must be sent as Content-Type: application/x-www-form-urlencoded.")
    body = request.content.read()
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
