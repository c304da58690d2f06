"""Negotiation of content codings by `Accept-Encoding` and of media types by `Accept` (RFC 9110 §12.5)."""

import re
from functools import lru_cache

_CACHE_MAX, _CACHED_MAX_BYTES = 256, 128
"""How many values are cached, and the longest cached value: clients use few different ones."""

VALUE_MAX_BYTES = 1024
"""The longest value that is decoded; browsers send about twenty bytes."""

_QUALITY = rb"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?"  # RFC 9110 §12.4.2
_WEIGHT = rb";[ \t]*[qQ]=(%b)" % _QUALITY
# White space before a semicolon and that at the end are one run of it: in two places, all pairs of them would be tried.
_CODING = re.compile(rb"[ \t]*(?:([!#$%%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*(?:%b[ \t]*)?)?" % _WEIGHT)
_IS_QUALITY = re.compile(_QUALITY)

_UNLISTED = 0.0001
"""The weight of an unlisted `identity`: acceptable, but below every listed coding."""


def prefers_gzip(value: bytes) -> bool:
    """Return whether a value of `Accept-Encoding` prefers gzip to `identity`, or accepts both equally.

    Several field lines are one value, joined by commas. `x-gzip` is gzip (RFC 9110 §8.4.1.3); of duplicates the lower
    weight counts. A malformed value, or one longer than `VALUE_MAX_BYTES`, is ignored.
    """
    if len(value) > VALUE_MAX_BYTES:
        return False
    return _decode_cached(value) if len(value) <= _CACHED_MAX_BYTES else _decode(value)


def _decode(value: bytes) -> bool:
    weights: dict[bytes, float] = {}
    for element in value.split(b","):
        match = _CODING.fullmatch(element)
        if match is None:
            return False
        if match[1] is not None:  # empty elements are ignored (RFC 9110 §5.6.1.2)
            coding = match[1].lower()
            coding = b"gzip" if coding == b"x-gzip" else coding
            weights[coding] = min(float(match[2] or 1), weights.get(coding, 1.0))
    gzip = weights.get(b"gzip", weights.get(b"*", 0.0))
    return gzip > 0 and gzip >= weights.get(b"identity", weights.get(b"*", _UNLISTED))


_decode_cached = lru_cache(_CACHE_MAX)(_decode)


def prefers_html(value: bytes) -> bool:
    """Return whether a value of `Accept` prefers `text/html` to `text/plain`, as browsers do for pages.

    Several field lines are one value, joined by commas. Parameters other than weights are ignored; of duplicates the
    higher weight counts. A value with a malformed weight, or longer than `VALUE_MAX_BYTES`, is ignored.
    """
    if len(value) > VALUE_MAX_BYTES:
        return False
    return _compare_cached(value) if len(value) <= _CACHED_MAX_BYTES else _compare(value)


def _compare(value: bytes) -> bool:
    weights: dict[bytes, float] = {}
    for element in value.lower().split(b","):
        media_range, *parameters = (part.strip(b" \t") for part in element.split(b";"))
        qualities = [parameter[2:] for parameter in parameters if parameter.startswith(b"q=")]
        if not all(map(_IS_QUALITY.fullmatch, qualities)):
            return False
        weights[media_range] = max(float(min(qualities, default=1)), weights.get(media_range, 0.0))
    unlisted = weights.get(b"text/*", weights.get(b"*/*", 0.0))
    return weights.get(b"text/html", unlisted) > weights.get(b"text/plain", unlisted)


_compare_cached = lru_cache(_CACHE_MAX)(_compare)


def opens_page(value: bytes) -> bool:
    """Return whether a value of `Accept` is that of a browser which opens a page.

    It begins with `text/html`, without a parameter, and has XHTML beside it, or nothing else. Programs that also take
    HTML, such as Java's URLConnection (`text/html, image/gif, image/jpeg, */*; q=0.2`) and feed readers, send others.
    """
    first, *others = value[:VALUE_MAX_BYTES].lower().split(b",")
    is_xhtml = (other.partition(b";")[0].strip(b" \t") == b"application/xhtml+xml" for other in others)
    return first.strip(b" \t") == b"text/html" and (not others or any(is_xhtml))
