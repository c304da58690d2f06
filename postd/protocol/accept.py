"""What a client takes of content codings (RFC 9110 §12.5.3)."""

import re
from functools import lru_cache

_KNOWN_MAX, _KNOWN_MAX_BYTES = 256, 128
"""How many values are remembered, and up to which length: clients use few of them."""

VALUE_MAX_BYTES = 1024
"""The longest value that is looked at; browsers send some twenty bytes."""

_WEIGHT = rb";[ \t]*[qQ]=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)"  # RFC 9110 §12.4.2
# White space before a semicolon and that at the end are one run of it: in two places, all pairs of them would be tried.
_CODING = re.compile(rb"[ \t]*(?:([!#$%%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*(?:%b[ \t]*)?)?" % _WEIGHT)

_UNMENTIONED = 0.0001
"""The weight of no coding at all where nothing is said of it: acceptable, and less wanted than all that is."""


def prefers_gzip(value: bytes) -> bool:
    """Tell whether a value of `Accept-Encoding` would rather have gzip, or as much as no coding at all.

    Several field lines are one value, joined by commas. `x-gzip` is gzip (RFC 9110 §8.4.1.3), and what is said twice
    counts as the worse of the two. A value that is no such list says nothing, nor does a longer one than
    `VALUE_MAX_BYTES`: part of it would be a guess.
    """
    if len(value) > VALUE_MAX_BYTES:
        return False
    return _known(value) if len(value) <= _KNOWN_MAX_BYTES else _decode(value)


def _decode(value: bytes) -> bool:
    weights: dict[bytes, float] = {}
    for element in value.split(b","):
        match = _CODING.fullmatch(element)
        if match is None:
            return False
        if match[1] is not None:  # an empty element is none (RFC 9110 §5.6.1.2)
            coding = match[1].lower()
            coding = b"gzip" if coding == b"x-gzip" else coding
            weights[coding] = min(float(match[2] or 1), weights.get(coding, 1.0))
    gzip = weights.get(b"gzip", weights.get(b"*", 0.0))
    return gzip > 0 and gzip >= weights.get(b"identity", weights.get(b"*", _UNMENTIONED))


_known = lru_cache(_KNOWN_MAX)(_decode)
