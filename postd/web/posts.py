"""The post API (spec: Post API; contract 2)."""

import re
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import orjson
from klein import Klein
from msgspec import Struct
from twisted.web.iweb import IRequest
from werkzeug.routing import BaseConverter

from postd.auth.once import UnderWay
from postd.model import POST_ID_MAX, Post, Version
from postd.store.interface import PostStore
from postd.web.answers import JSON, TEXT, encode_answer, encode_not_modified, set_headers
from postd.web.body import decode_text
from postd.web.conditional import has_preconditions, is_current, require_current
from postd.web.errors import Problem
from postd.web.streaming import Flow, write_in_pieces

LIMIT_MAX = 1000
"""The largest `?limit` of a page."""

SNAPSHOT_MAX = 10_000
"""Posts of a list that is read at one moment: some 6 ms of the reactor's time, which the whole list takes once for each
version. A longer one is read page by page while it is sent."""

STREAMED_PAGE = 512
"""Posts that a streamed list holds in memory at a time: about what a socket's buffer takes."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")

_REVALIDATE = {b"Cache-Control": b"no-cache"}  # kept by caches, but asked for anew each time; the ETag answers
_KEEP_NOTHING = {b"Cache-Control": b"private, no-store"}


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


class _EncodedList(Struct, frozen=True):
    """A list at a version; without a body it was longer than `SNAPSHOT_MAX`."""

    version: Version
    body: bytes | None


class PostApi:
    """The resources `/post` and `/post/<id>`.

    The spec gives paths, methods and bodies. What it does not show was settled so: 201 with `Location` for a new post
    and 200 for the rest; ascending ids; `text/plain` for the confirmations; PUT replaces and never creates, because
    ids are assigned by the service; 404, 400, 415 and 422 for bad input (`postd.web.errors`, `postd.web.body`).

    Args:
        store: keeps the posts.
        private: whether not everybody may read them, so that no cache may keep what it sees.
    """

    app = Klein()
    app.url_map.converters["post_id"] = PostIdConverter

    def __init__(self, store: PostStore, *, private: bool = False) -> None:
        self._store = store
        self._caching = _KEEP_NOTHING if private else _REVALIDATE
        self._whole_list: _EncodedList | None = None
        self._listing: UnderWay[Version, _EncodedList] = UnderWay()

    @app.route("/post", methods=["GET"])
    async def list_posts(self, request: IRequest) -> bytes:
        after, limit = _decode_page_query(request)
        version = await self._store.version()
        headers = {b"ETag": _list_etag(version, after, limit), **self._caching}
        if is_current(request, headers[b"ETag"]):
            return encode_not_modified(request, headers)
        if after == 0 and limit is None:
            listed = self._whole_list
            if listed is None or listed.version != version:
                # What others have asked for since the posts are at this version is new enough for us.
                listed = await self._listing.join(version, self._list_all)
        else:
            page = await self._store.list_posts(after=after, limit=SNAPSHOT_MAX if limit is None else limit)
            listed = _EncodedList(page.version, None if page.more and limit is None else _encode_list(page.posts))
            if page.more and limit is not None:
                headers[b"Link"] = b'</post?limit=%d&after=%d>; rel="next"' % (limit, page.posts[-1][0])
        if listed.body is None:
            return await self._stream_list(request, after)
        # The posts may be newer than the version that was asked for first.
        headers[b"ETag"] = _list_etag(listed.version, after, limit)
        return await write_in_pieces(request, encode_answer(request, HTTPStatus.OK, JSON, listed.body, headers))

    async def _list_all(self) -> _EncodedList:
        page = await self._store.list_posts(limit=SNAPSHOT_MAX)
        self._whole_list = _EncodedList(page.version, None if page.more else _encode_list(page.posts))
        return self._whole_list

    @app.route("/post", methods=["POST"])
    async def add_post(self, request: IRequest) -> bytes:
        post_id = await self._store.add_post(decode_text(request))
        location = {b"Location": b"/post/%d" % post_id}
        return encode_answer(request, HTTPStatus.CREATED, TEXT, b"Success a Post!\n", {**_KEEP_NOTHING, **location})

    @app.route("/post/<post_id:post_id>", methods=["GET"])
    async def get_post(self, request: IRequest, post_id: int) -> bytes:
        post = await self._store.get_post(post_id)
        headers = {b"ETag": _post_etag(post), **self._caching}
        if is_current(request, headers[b"ETag"]):
            return encode_not_modified(request, headers)
        body = b'{\n  "id": %d,\n  "post": %b\n}\n' % (post.id, orjson.dumps(post.post))
        return encode_answer(request, HTTPStatus.OK, JSON, body, headers)

    @app.route("/post/<post_id:post_id>", methods=["PUT"])
    async def replace_post(self, request: IRequest, post_id: int) -> bytes:
        text = decode_text(request)
        await self._store.replace_post(post_id, text, expected=await self._expected_text(request, post_id))
        return encode_answer(request, HTTPStatus.OK, TEXT, b"Update a Post!\n", _KEEP_NOTHING)

    @app.route("/post/<post_id:post_id>", methods=["DELETE"])
    async def delete_post(self, request: IRequest, post_id: int) -> bytes:
        await self._store.delete_post(post_id, expected=await self._expected_text(request, post_id))
        return encode_answer(request, HTTPStatus.OK, TEXT, b"Delete a Post!\n", _KEEP_NOTHING)

    async def _expected_text(self, request: IRequest, post_id: int) -> str | None:
        """Return the text that a post must still have for the request's preconditions to hold, None for any."""
        if not has_preconditions(request):
            return None
        post = await self._store.get_post(post_id)
        require_current(request, _post_etag(post))
        return post.post

    async def _stream_list(self, request: Any, after: int) -> bytes:
        """Send a long list page by page, as fast as the client reads.

        Each page is a snapshot of its own (none is held for a slow client), so that the whole has no ETag. An id is
        in it at most once, and the order holds.
        """
        set_headers(request, HTTPStatus.OK, JSON, self._caching)
        if request.method == b"HEAD":
            return b""
        opening, more = b"[\n", True
        async with Flow(request) as flow:
            while more:
                page = await self._store.list_posts(after=after, limit=STREAMED_PAGE)
                if page.posts:
                    await flow.write(opening + _encode_posts(page.posts))
                    opening, after = b",\n", page.posts[-1][0]
                more = page.more
        return b"\n]\n" if opening == b",\n" else b"[]\n"


def _encode_list(posts: Collection[tuple[int, str]]) -> bytes:
    """Encode a list (spec: "JSON array (indented by two spaces)")."""
    return b"[\n%b\n]\n" % _encode_posts(posts) if posts else b"[]\n"


def _encode_posts(posts: Iterable[tuple[int, str]]) -> bytes:
    """Encode posts as they stand between the brackets of a list."""
    dumps = orjson.dumps
    return b",\n".join([b'  {\n    "id": %d,\n    "post": %b\n  }' % (post_id, dumps(text)) for post_id, text in posts])


def _list_etag(version: Version, after: int, limit: int | None) -> bytes:
    page = b"" if after == 0 and limit is None else b"-%d-%d" % (after, limit or 0)
    return b'"%d-%b%b"' % (version.revision, version.tag.encode(), page)


def _post_etag(post: Post) -> bytes:
    """Return a tag of what the post says: nothing else is in its representation."""
    return b'"%b"' % blake2b(b"%d:%b" % (post.id, post.post.encode()), digest_size=12).hexdigest().encode()


def _decode_page_query(request: IRequest) -> tuple[int, int | None]:
    """Return `after`, 0 for the start, and `limit`, None for no limit. Other parameters are ignored.

    Raises:
        Problem: 400, one of them is not a number in its range, or is there twice.
    """
    query = request.uri.partition(b"?")[2]
    if not query:
        return 0, None
    # Twisted's request.args leaves out a parameter without an equals sign.
    parameters = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    after = _decode_number(parameters, "after", 0, POST_ID_MAX)
    limit = _decode_number(parameters, "limit", 1, LIMIT_MAX)
    return after or 0, limit


def _decode_number(parameters: Mapping[str, list[str]], name: str, least: int, most: int) -> int | None:
    values = parameters.get(name)
    if values is None:
        return None
    if len(values) == 1 and _NUMBER.fullmatch(values[0]) and least <= int(values[0]) <= most:
        return int(values[0])
    raise Problem(400, f"?{name} must be given once, as a number from {least} to {most}.")
