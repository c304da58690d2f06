"""Preconditions (RFC 9110 §13): the entity tags of a request held against the current one."""

import re
from collections.abc import Sequence
from typing import Any

from postd.web.errors import precondition_failed

_ENTITY_TAG = re.compile(rb'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_LIST = re.compile(rb"[ \t,]*(?:%b[ \t]*(?:,[ \t,]*|$))*" % _ENTITY_TAG.pattern)


def has_preconditions(request: Any) -> bool:
    """Tell whether the request is to be done only if the state is, or is not, a certain one."""
    return b"If-Match" in request.fields or b"If-None-Match" in request.fields


def is_current(request: Any, etag: bytes) -> bool:
    """Tell whether a client that reads has this state already, so that 304 is the answer.

    Raises:
        Problem: 412, it asked for another state with `If-Match`.
    """
    if has_preconditions(request):
        _check_if_match(request, etag)
        return _none_match_fails(request, etag)
    return False


def current_tag(request: Any, etags: Sequence[bytes]) -> bytes | None:
    """Return which form of a state a client has already that reads: the first that it names, the last for `*`.

    Args:
        request: GET or HEAD.
        etags: the tags of the forms that are good for it, the best first; the last is that of a form there always is.

    Raises:
        Problem: 412, it asked for another state with `If-Match`.
    """
    fields = request.fields
    if b"If-Match" in fields and not any(_matches(fields[b"If-Match"], etag, weakly=False) for etag in etags):
        raise precondition_failed()
    field_lines = fields.get(b"If-None-Match")
    if field_lines is None:
        return None
    if len(field_lines) == 1 and field_lines[0] in etags:  # as most send it
        return bytes(field_lines[0])
    if field_lines == [b"*"]:
        return etags[-1]
    return next((etag for etag in etags if _matches(field_lines, etag, weakly=True)), None)


def require_current(request: Any, etag: bytes) -> None:
    """Let a write pass whose preconditions hold.

    Raises:
        Problem: 412, one of them does not.
    """
    _check_if_match(request, etag)
    if _none_match_fails(request, etag):
        raise precondition_failed()


def _check_if_match(request: Any, etag: bytes) -> None:
    field_lines = request.fields.get(b"If-Match")
    if field_lines is not None and not _matches(field_lines, etag, weakly=False):
        raise precondition_failed()


def _none_match_fails(request: Any, etag: bytes) -> bool:
    field_lines = request.fields.get(b"If-None-Match")
    return field_lines is not None and _matches(field_lines, etag, weakly=True)


def _matches(field_lines: list[bytes], etag: bytes, *, weakly: bool) -> bool:
    """Tell whether a list of entity tags, or `*`, has this one in it (RFC 9110 §8.8.3.2).

    Nothing is in a value that is no such list: to take the part of it that can be read would be to guess.
    """
    value = b",".join(field_lines).strip(b" \t")
    if value in {b"*", etag}:
        return True
    if not _LIST.fullmatch(value):
        return False
    return any(tag == etag and (weakly or not weak) for weak, tag in _ENTITY_TAG.findall(value))
