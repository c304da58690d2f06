"""Negotiation of content codings by `Accept-Encoding` and of media types by `Accept` (RFC 9110 §12.5)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

_CACHE_MAX, _CACHED_MAX_BYTES = 256, 128
"""How many values are cached, and the longest cached value: clients use few different ones."""

CODINGS_MAX_BYTES = 1024
"""The longest value of `Accept-Encoding` that is decoded; browsers send about twenty bytes."""

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
    weight counts. A malformed value, or one longer than `CODINGS_MAX_BYTES`, is ignored.
    """
    if len(value) > CODINGS_MAX_BYTES:
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
    higher weight counts. A value with a malformed weight of one of these types is ignored.
    """
    return _compare_cached(value) if len(value) <= _CACHED_MAX_BYTES else _compare(value)


def _compare(value: bytes) -> bool:
    value = value.lower()
    if b'"' in value:
        value = _QUOTED.sub(b"", value)
    weights: dict[bytes, float] = {}
    # Others are passed over, and equal ones are taken once: a value may be as long as a head.
    for media_range, parameters in set(_TEXT_RANGE.findall(value)):
        weight = _weight(parameter.strip(b" \t") for parameter in parameters.split(b";"))
        if weight is None:
            return False
        weights[media_range] = max(weight, weights.get(media_range, 0.0))
    unlisted = weights.get(b"text/*", weights.get(b"*/*", 0.0))
    return weights.get(b"text/html", unlisted) > weights.get(b"text/plain", unlisted)


_compare_cached = lru_cache(_CACHE_MAX)(_compare)

_QUOTED_TEXT = rb'"[^"\\]*(?:\\.[^"\\]*)*"?'  # or one that is not closed, up to the end
_QUOTED = re.compile(_QUOTED_TEXT, re.DOTALL)
_TEXT_RANGE = re.compile(rb"(?:\A|,)[ \t]*(text/html|text/plain|text/\*|\*/\*)[ \t]*((?:;[^,]*)?)(?=,|\Z)")


def _weight(parameters: Iterable[bytes]) -> float | None:
    """Return the weight among parameters in lower case, the lowest of several; None if it is malformed."""
    qualities = [parameter[2:] for parameter in parameters if parameter.startswith(b"q=")]
    return float(min(qualities, default=1)) if all(map(_IS_QUALITY.fullmatch, qualities)) else None


def opens_page(value: bytes) -> bool:
    """Return whether a value of `Accept` is that of a browser which opens a page.

    It begins with `text/html`, without a parameter, and has XHTML beside it, or nothing else. Programs that also take
    HTML, such as Java's URLConnection (`text/html, image/gif, image/jpeg, */*; q=0.2`) and feed readers, send others.
    """
    first, comma, _ = value.lower().partition(b",")
    return first.strip(b" \t") == b"text/html" and (not comma or _XHTML.search(value) is not None)


_XHTML = re.compile(rb",[ \t]*application/xhtml\+xml[ \t]*(?:[;,]|\Z)", re.IGNORECASE)


class MediaRange(Struct, frozen=True):
    """A range of media types in a value of `Accept`, in lower case, and its parameters, without quotes."""

    name: bytes
    parameters: Mapping[bytes, bytes]
    weight: float


def decode_media_ranges(value: bytes) -> Iterator[MediaRange]:
    """Yield the media ranges of a value of `Accept`; a range with a malformed weight is left out."""
    for element in _ELEMENT.findall(value.lower()):
        parts = [part.strip(b" \t") for part in _PART.findall(element)]
        weight = _weight(parts)
        if weight is not None and b"/" in b"".join(parts[:1]):
            pairs = (part.partition(b"=") for part in parts[1:])
            yield MediaRange(parts[0], {name: text.strip(b'"') for name, _, text in pairs if name != b"q"}, weight)


_ELEMENT = re.compile(rb'(?:[^,"]|%b)+' % _QUOTED_TEXT, re.DOTALL)
_PART = re.compile(rb'(?:[^;"]|%b)+' % _QUOTED_TEXT, re.DOTALL)
