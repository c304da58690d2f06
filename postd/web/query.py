"""Query parameters (RFC 3986 §3.4)."""

import re
from collections.abc import Mapping

from postd.protocol.percent import parse_urlencoded
from postd.web.errors import Problem
from postd.web.interface import Request

PARAMETERS_MAX = 100
"""Limit on the number of parameters: each costs some microseconds, and a target has room for thousands."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")


def decode_query(request: Request) -> Mapping[str, list[str]]:
    """Decode the query of a request target: for each parameter its values, in order.

    Raises:
        Problem: 400, it has more than `PARAMETERS_MAX` parameters.
    """
    query = request.uri.partition(b"?")[2]
    if not query:
        return {}
    if query.count(b"&") >= PARAMETERS_MAX:
        raise Problem(400, f"The query has more than {PARAMETERS_MAX} parameters.")
    # Twisted's request.args drops parameters without an equals sign.
    parameters: dict[str, list[str]] = {}
    for name, value in parse_urlencoded(query):
        parameters.setdefault(name.decode("utf-8", "replace"), []).append(value.decode("utf-8", "replace"))
    return parameters


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
