"""The query of an address, and the numbers in it (RFC 3986 §3.4)."""

import re
from collections.abc import Mapping
from typing import Any

from postd.protocol.percent import parse_urlencoded
from postd.web.errors import Problem

PARAMETERS_MAX = 100
"""The most parameters of a query: each costs some microseconds, and a target has room for thousands."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")


def decode_query(request: Any) -> Mapping[str, list[str]]:
    """Return the parameters of a request's address, each with its values in their order.

    Raises:
        Problem: 400, there are more than `PARAMETERS_MAX`.
    """
    query = request.uri.partition(b"?")[2]
    if not query:
        return {}
    if query.count(b"&") >= PARAMETERS_MAX:
        raise Problem(400, f"The query has more than {PARAMETERS_MAX} parameters.")
    # Twisted's request.args leaves out a parameter without an equals sign.
    parameters: dict[str, list[str]] = {}
    for name, value in parse_urlencoded(query):
        parameters.setdefault(name.decode("utf-8", "replace"), []).append(value.decode("utf-8", "replace"))
    return parameters


def as_number(text: str) -> int | None:
    """Return a whole number as we write it, in plain digits without a leading zero; None for anything else."""
    return int(text) if _NUMBER.fullmatch(text) else None


def decode_number(parameters: Mapping[str, list[str]], name: str, least: int, most: int) -> int | None:
    """Return a parameter that is a number, None if it is not there.

    Raises:
        Problem: 400, it is none in that range, or there twice.
    """
    values = parameters.get(name)
    if values is None:
        return None
    number = as_number(values[0]) if len(values) == 1 else None
    if number is None or not least <= number <= most:
        raise Problem(400, f"?{name} must be given once, as a number from {least} to {most}.")
    return number
