"""Conditional requests: `If-Match` and `If-None-Match` (RFC 9110 §13)."""

import re
from collections.abc import Sequence
from hashlib import blake2b

from postd.http.errors import precondition_failed
from postd.http.interface import Request

ETAG_BYTES = 12
"""The length of the hash in an entity tag."""

_ENTITY_TAG = re.compile(rb'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_SUFFIX = re.compile(rb'[-;+]{1,2}[a-z]{1,8}"')
_LIST = re.compile(rb"[ \t,]*(?:%b[ \t]*(?:,[ \t,]*|$))*" % _ENTITY_TAG.pattern)


def hash_etag(content: bytes) -> bytes:
    """Return the strong entity tag of a representation, a hash of all that it contains."""
    return b'"%b"' % blake2b(content, digest_size=ETAG_BYTES).hexdigest().encode("ascii")


def has_preconditions(request: Request) -> bool:
    """Return whether the request has `If-Match` or `If-None-Match`."""
    return b"If-Match" in request.fields or b"If-None-Match" in request.fields


def is_not_modified(request: Request, etag: bytes) -> bool:
    """Return whether a read gets 304, because the client has the current representation.

    Raises:
        Problem: 412, `If-Match` does not match.
    """
    return has_preconditions(request) and matching_etag(request, (etag,)) is not None


def matching_etag(request: Request, etags: Sequence[bytes]) -> bytes | None:
    """Return the entity tag for a 304: the first of `etags` that `If-None-Match` names, the last for `*`, else None.

    They are the tags of the representations that the client accepts, preferred first; the last always exists.

    Raises:
        Problem: 412, `If-Match` names none of them.
    """
    fields = request.fields
    if b"If-Match" in fields and _first_match(fields[b"If-Match"], etags, weak_comparison=False) is None:
        raise precondition_failed(was_altered=_is_altered(fields[b"If-Match"], etags))
    field_lines = fields.get(b"If-None-Match")
    if field_lines is None:
        return None
    if len(field_lines) == 1 and field_lines[0] in etags:  # the usual form
        return bytes(field_lines[0])
    if field_lines == [b"*"]:
        return etags[-1]
    return _first_match(field_lines, etags, weak_comparison=True)


def check_preconditions(request: Request, etags: Sequence[bytes]) -> None:
    """Check the preconditions of a write to a resource, whose representations have some entity tags.

    Raises:
        Problem: 412, a precondition does not hold.
    """
    if matching_etag(request, etags) is not None:
        raise precondition_failed()


def _is_altered(field_lines: Sequence[bytes], etags: Sequence[bytes]) -> bool:
    """Return whether a list of entity tags has one of `etags` as proxies alter it when they compress.

    nginx, HAProxy and Varnish send `W/"x"`, which never matches in `If-Match` (RFC 9110 §13.1.1); Apache, Caddy and
    lighttpd `"x-gzip"`, ATS `"x-df"`. These are not accepted either: they are tags of other representations.
    """
    value = b",".join(field_lines)
    if not any(etag[:-1] in value for etag in etags):
        return False
    return any(
        tag == etag or (tag.startswith(etag[:-1]) and _SUFFIX.fullmatch(tag, len(etag) - 1))
        for _, tag in _ENTITY_TAG.findall(value)
        for etag in etags
    )


def _first_match(field_lines: Sequence[bytes], etags: Sequence[bytes], *, weak_comparison: bool) -> bytes | None:
    """Return the first of `etags` that a list of entity tags, or `*`, contains (RFC 9110 §8.8.3.2); else None.

    A malformed list contains nothing, not even its well-formed part.
    """
    value = b",".join(field_lines).strip(b" \t")
    if value == b"*":
        return etags[0]
    if value in etags:
        return value
    # Decoding a long list takes a hundred times as long as searching it.
    if not any(etag in value for etag in etags) or not _LIST.fullmatch(value):
        return None
    named = {tag for is_weak, tag in _ENTITY_TAG.findall(value) if weak_comparison or not is_weak}
    return next((etag for etag in etags if etag in named), None)
