"""Durations and sizes as text: `"500ms"`, `"10s"`, `"16KiB"` (reference: Settings)."""

import re
from collections.abc import Mapping

DURATION_MAX_S = 3650 * 86400
"""The longest duration."""

DURATION_UNITS: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""The units of durations, in seconds."""


def decode_quantity(text: str, units: Mapping[str, float], *, least: float, most: float, wanted: str) -> float:
    """Return a quantity in the unit whose factor is 1.

    Raises:
        ValueError: it is not a number with a known unit, or out of range; `wanted` says what is allowed.
    """
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([A-Za-z]+)", text)
    unit = units.get(match[2]) if match else None
    amount = float(match[1]) * unit if match and unit else None
    if amount is None or not least <= amount <= most:
        raise ValueError(f"{text!r} is not {wanted}")
    return amount


def decode_duration(text: str) -> float:
    """Return a duration in seconds, which may be 0.

    Raises:
        ValueError: it is none, or longer than `DURATION_MAX_S`.
    """
    wanted = 'a duration of at most 3650d, such as "30s" or "0s"'
    return decode_quantity(text, DURATION_UNITS, least=0, most=DURATION_MAX_S, wanted=wanted)
