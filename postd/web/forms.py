"""The forms of posts in responses: as in the spec, or with their details (`?include=meta`; reference: Post API)."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import orjson

from postd.http.errors import Problem
from postd.model import Change, PostDetails
from postd.protocol.timestamp import format_timestamp
from postd.web.authorship import Authorship, Form

REVALIDATE = {b"Cache-Control": b"no-cache"}
"""Caches may store the response, and revalidate it by its `ETag` each time."""

NO_STORE = {b"Cache-Control": b"private, no-store"}


def caching_of(form: Form, authorship: Authorship, *, private: bool) -> Mapping[bytes, bytes]:
    """Return the header fields for caches of responses with posts in a form; `private` if reading needs credentials."""
    if private or (form is Form.DETAILED and not authorship.shown_to_all):
        return NO_STORE
    return {**REVALIDATE, b"Vary": b"Authorization, Cookie"} if form is Form.ANONYMOUS else REVALIDATE


def decode_include(parameters: Mapping[str, list[str]]) -> bool:
    """Return whether a query asks for details.

    Raises:
        Problem: 400, for anything but `include=meta`.
    """
    values = parameters.get("include")
    if values is None:
        return False
    if values != ["meta"]:
        raise Problem(400, '?include must be given once, as "meta".')
    return True


def encode_listed(posts: Iterable[PostDetails], form: Form) -> list[bytes]:
    """Encode posts with their details for `postd.web.lists.encoded_piece.join_posts`."""
    return [_LISTED % _members(post, form) for post in posts]


def encode_single(post: PostDetails, form: Form) -> bytes:
    """Encode a post with its details as the body of a response."""
    return _SINGLE % _members(post, form)


def encode_change(change: Change, form: Form) -> bytes:
    """Encode the post of a change in one line; of a deleted post only the id."""
    members: dict[str, object] = {"id": change.id}
    if change.post is not None:
        members["post"] = change.post
        if form is not Form.PLAIN:
            members["created"] = _format(change.created)
            members["updated"] = _format(change.updated)
            members["author"] = None if form is Form.ANONYMOUS else change.author
    return orjson.dumps(members)


_LISTED = b'%d,\n    "post": %b,\n    "created": %b,\n    "updated": %b,\n    "author": %b\n  }'
_SINGLE = b'{\n  "id": %d,\n  "post": %b,\n  "created": %b,\n  "updated": %b,\n  "author": %b\n}\n'


def _members(post: PostDetails, form: Form) -> tuple[int, bytes, bytes, bytes, bytes]:
    author = orjson.dumps(None if form is Form.ANONYMOUS else post.author)
    return post.id, orjson.dumps(post.post), _encode_time(post.created), _encode_time(post.updated), author


@lru_cache(64)  # most posts have one time, twice
def _encode_time(milliseconds: int | None) -> bytes:
    return b"null" if milliseconds is None else b'"%b"' % format_timestamp(milliseconds).encode("ascii")


def _format(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else format_timestamp(milliseconds)
