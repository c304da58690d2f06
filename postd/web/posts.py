"""The post API (spec: Post API; contract 2)."""

import time
from collections.abc import Callable, Collection
from functools import lru_cache
from hashlib import blake2b
from http import HTTPStatus
from typing import Any

import orjson
from msgspec import Struct
from werkzeug.routing import BaseConverter

from postd.auth.checker import Lasting
from postd.caching import UnderWay
from postd.model import POST_ID_MAX, Post, Version
from postd.store.interface import PostStore
from postd.web.body import decode_text
from postd.web.compression import VARY, Text, answer_current
from postd.web.events import Events
from postd.web.idempotency import IdempotencyKeys
from postd.web.long_list import LongList, encode_posts
from postd.web.preconditions import has_preconditions, is_current, require_current
from postd.web.query import decode_number, decode_query
from postd.web.responses import JSON, TEXT, Answer, Stream, make_answer, make_not_modified
from postd.web.server.routing import Application

LIMIT_MAX = 1000
"""The largest `?limit` of a page."""

SNAPSHOT_MAX = 10_000
"""Posts of a list that is read at one moment: some 6 ms of the reactor's time, which the whole list takes once for each
version. A longer one is read page by page while it is sent."""

ENCODED_MAX = 2048
"""How many single posts are kept as they were last sent: at most some 3 MiB."""

_REVALIDATE = {b"Cache-Control": b"no-cache"}  # kept by caches, but asked for anew each time; the ETag answers
_KEEP_NOTHING = {b"Cache-Control": b"private, no-store"}

_ADDED = make_answer(HTTPStatus.CREATED, TEXT, b"Success a Post!\n", _KEEP_NOTHING)
_UPDATED = make_answer(HTTPStatus.OK, TEXT, b"Update a Post!\n", _KEEP_NOTHING)
_DELETED = make_answer(HTTPStatus.OK, TEXT, b"Delete a Post!\n", _KEEP_NOTHING)


def _numbers_up_to(most: int) -> str:
    """Return a pattern for 1 to `most` in plain ASCII digits without a leading zero."""
    digits = str(most)
    shorter = f"[1-9][0-9]{{0,{len(digits) - 2}}}"
    smaller = [
        f"{digits[:place]}[{int(place == 0)}-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if int(digit) > int(place == 0)
    ]
    return "(?:" + "|".join([shorter, *smaller, digits]) + ")"


class PostIdConverter(BaseConverter):
    """An id in a path (spec leaves open what else may stand there: it is no address of a post, 404).

    The pattern knows the bound: a number refused by `to_python` would be 405 to other methods.
    """

    regex = _numbers_up_to(POST_ID_MAX)

    def to_python(self, value: str) -> int:
        return int(value)


class _Encoded(Struct, frozen=True):
    """A representation: the tag it has, and the answers to who has not got it yet and to who has."""

    etag: bytes
    whole: Answer
    not_modified: Answer


class _List(Struct, frozen=True):
    """All posts at a version; None if there were more than `SNAPSHOT_MAX`."""

    version: Version
    text: Text | None


class PostApi:
    """The resources `/post`, `/post/<id>` and `/post/events`.

    The spec gives paths, methods and bodies. What it does not show was settled so: 201 with `Location` for a new post
    and 200 for the rest; ascending ids; `text/plain` for the confirmations; PUT replaces and never creates, because
    ids are assigned by the service; 404, 400, 415 and 422 for bad input (`postd.web.errors`, `postd.web.body`).

    Args:
        store: keeps the posts.
        events: tells of changes.
        private: whether not everybody may read them, so that no cache may keep what it sees.
        lasting: returns what tells later whether who has sent a request may still read them.
    """

    app = Application()
    app.url_map.converters["post_id"] = PostIdConverter

    def __init__(
        self, store: PostStore, events: Events, *, private: bool = False, lasting: Callable[[Any], Lasting]
    ) -> None:
        self._store = store
        self._events = events
        self._era = events.begin_era()
        self._lasting = lasting
        self._caching = _KEEP_NOTHING if private else _REVALIDATE
        self._list_caching = {**self._caching, **VARY}
        self._list: _List | None = None
        self._listing: UnderWay[Version, _List] = UnderWay()
        self._idempotency = IdempotencyKeys(time.time)
        self._long_list = LongList(store, self._headers_at)
        # What a post looks like hangs on nothing but what it says: no change can make this wrong.
        self._encode_post = lru_cache(ENCODED_MAX)(self._encode_post_anew)

    @app.route("/post", methods=["GET"])
    async def list_posts(self, request: Any) -> Answer | Stream:
        after, limit = _decode_page_query(request)
        version = await self._store.version()
        if after == 0 and limit is None:
            return await self._answer_all(request, version)
        headers = {b"ETag": _list_etag(version, after, limit), **self._list_caching}
        not_modified = answer_current(request, headers)
        if not_modified is not None:
            return not_modified
        page = await self._store.list_posts(after=after, limit=SNAPSHOT_MAX if limit is None else limit)
        if page.more and limit is None:
            return self._long_list.answer_rest(request, after, self._list_caching)
        # The posts may be newer than the version that was asked for first.
        headers[b"ETag"] = _list_etag(page.version, after, limit)
        if page.more and limit is not None:
            headers[b"Link"] = b'</post?limit=%d&after=%d>; rel="next"' % (limit, page.posts[-1][0])
        return await Text(JSON, _encode_list(page.posts), headers).answer(request)

    async def _answer_all(self, request: Any, version: Version) -> Answer | Stream:
        listed = self._list
        if listed is None or listed.version != version:
            not_modified = answer_current(request, self._headers_at(version))
            if not_modified is not None:
                return not_modified
            # What others have asked for since the posts are at this version is new enough for us.
            listed = await self._listing.join(version, self._list_all)
        if listed.text is None:
            return self._long_list.answer(request, version)
        return await listed.text.answer(request)

    def _headers_at(self, version: Version) -> dict[bytes, bytes]:
        return {b"ETag": _list_etag(version, 0, None), **self._list_caching}

    async def _list_all(self) -> _List:
        page = await self._store.list_posts(limit=SNAPSHOT_MAX)
        text = None if page.more else Text(JSON, _encode_list(page.posts), self._headers_at(page.version))
        self._list = _List(page.version, text)
        return self._list

    def _encode(self, etag: bytes, body: bytes) -> _Encoded:
        headers = {b"ETag": etag, **self._caching}
        return _Encoded(etag, make_answer(HTTPStatus.OK, JSON, body, headers), make_not_modified(headers))

    @app.route("/post", methods=["POST"])
    async def add_post(self, request: Any) -> Answer:
        text = decode_text(request)
        post_id = await self._idempotency.run(request, lambda key: self._store.add_post(text, idempotency_key=key))
        return _ADDED.beside(b"Location", b"/post/%d" % post_id)

    @app.route("/post/events", methods=["GET"])
    async def listen(self, request: Any) -> Stream:
        return await self._events.answer(request, self._lasting(request), era=self._era)

    @app.route("/post/<post_id:post_id>", methods=["GET"])
    async def get_post(self, request: Any, post_id: int) -> Answer:
        return _choose(request, self._encode_post(await self._store.get_post(post_id)))

    def _encode_post_anew(self, post: Post) -> _Encoded:
        body = b'{\n  "id": %d,\n  "post": %b\n}\n' % (post.id, orjson.dumps(post.post))
        return self._encode(_post_etag(post), body)

    @app.route("/post/<post_id:post_id>", methods=["PUT"])
    async def replace_post(self, request: Any, post_id: int) -> Answer:
        text = decode_text(request)
        await self._store.replace_post(post_id, text, expected=await self._expected_text(request, post_id))
        return _UPDATED

    @app.route("/post/<post_id:post_id>", methods=["DELETE"])
    async def delete_post(self, request: Any, post_id: int) -> Answer:
        await self._store.delete_post(post_id, expected=await self._expected_text(request, post_id))
        return _DELETED

    async def _expected_text(self, request: Any, post_id: int) -> str | None:
        """Return the text that a post must still have for the request's preconditions to hold, None for any."""
        if not has_preconditions(request):
            return None
        post = await self._store.get_post(post_id)
        require_current(request, _post_etag(post))
        return post.post


def _choose(request: Any, encoded: _Encoded) -> Answer:
    return encoded.not_modified if is_current(request, encoded.etag) else encoded.whole


def _encode_list(posts: Collection[tuple[int, str]]) -> bytes:
    """Encode a list (spec: "JSON array (indented by two spaces)")."""
    return b"[\n%b\n]\n" % encode_posts(posts) if posts else b"[]\n"


def _list_etag(version: Version, after: int, limit: int | None) -> bytes:
    page = b"" if after == 0 and limit is None else b"-%d-%d" % (after, limit or 0)
    return b'"%d-%b%b"' % (version.revision, version.tag.encode(), page)


def _post_etag(post: Post) -> bytes:
    """Return a tag of what the post says: nothing else is in its representation."""
    return b'"%b"' % blake2b(b"%d:%b" % (post.id, post.post.encode()), digest_size=12).hexdigest().encode()


def _decode_page_query(request: Any) -> tuple[int, int | None]:
    """Return `after`, 0 for the start, and `limit`, None for no limit. Other parameters are ignored.

    Raises:
        Problem: 400, one of them is not a number in its range, or is there twice.
    """
    parameters = decode_query(request)
    if not parameters:
        return 0, None
    after = decode_number(parameters, "after", 0, POST_ID_MAX)
    limit = decode_number(parameters, "limit", 1, LIMIT_MAX)
    return after or 0, limit
