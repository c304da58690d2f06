"""The post API (spec: Post API; reference: Post API)."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from http import HTTPStatus

import orjson
from msgspec import Struct
from werkzeug.routing import BaseConverter

from postd.auth.identity import always_valid
from postd.errors import NotAuthorError
from postd.fair_queue import FairTurns
from postd.http.interface import Request
from postd.http.responses import JSON, TEXT, Response, StreamedResponse, make_not_modified, make_response
from postd.http.urlencoded import decode_number, decode_query
from postd.model import POST_ID_MAX, Post, PostDetails
from postd.store.interface import PostStore
from postd.web.authorship import UNRESTRICTED, Authorship, Form, author_of
from postd.web.body import decode_text
from postd.web.events import Events
from postd.web.forms import NO_STORE, caching_of, decode_include, encode_single
from postd.web.idempotency import IdempotencyKeys
from postd.web.lists.list_forms import ANONYMOUS_LIST, DETAILED_LIST
from postd.web.lists.post_lists import WHOLE, PostLists, Span
from postd.web.preconditions import check_preconditions, has_preconditions, hash_etag, is_not_modified
from postd.web.routing import Application

LIMIT_MAX = 1000
"""The largest `?limit` of a page."""

ENCODED_MAX = 2048
"""Limit on cached single posts: at most some 3 MiB."""

_ADDED = make_response(HTTPStatus.CREATED, TEXT, b"Success a Post!\n", NO_STORE)
_UPDATED = make_response(HTTPStatus.OK, TEXT, b"Update a Post!\n", NO_STORE)
_DELETED = make_response(HTTPStatus.OK, TEXT, b"Delete a Post!\n", NO_STORE)


def _numbers_up_to(most: int) -> str:
    """Return a regular expression for 1 to `most` in ASCII digits without leading zeros."""
    digits = str(most)
    shorter = f"[1-9][0-9]{{0,{len(digits) - 2}}}"
    smaller = [
        f"{digits[:place]}[{int(place == 0)}-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if int(digit) > int(place == 0)
    ]
    return "(?:" + "|".join([shorter, *smaller, digits]) + ")"


class PostIdConverter(BaseConverter):
    """The id in a path. Anything else is 404 (reference: Post API).

    The bound is in the pattern, because a number refused by `to_python` would be 405 for other methods.
    """

    regex = _numbers_up_to(POST_ID_MAX)

    def to_python(self, value: str) -> int:
        return int(value)


class _EncodedPost(Struct, frozen=True):
    """The responses to GET of a post, 200 and 304, with their entity tag."""

    etag: bytes
    ok: Response
    not_modified: Response


class PostApi:
    """The resources `/post`, `/post/<id>` and `/post/events`.

    The spec gives paths, methods and bodies. Choices where it is silent (reference: Post API): 201 with `Location` for
    a new post and 200 otherwise; ascending ids; `text/plain` confirmations; PUT never creates, because the server
    assigns ids; 404, 400, 415 and 422 for bad input (`postd.http.errors`, `postd.web.body`). Where reading needs
    credentials (`private`), no cache may store responses. `now` is the clock of the dates in the store. With
    `?include=meta` posts have their details (`postd.web.forms`).
    """

    app = Application()
    app.url_map.converters["post_id"] = PostIdConverter

    def __init__(  # noqa: PLR0913 - two of them optional
        self,
        store: PostStore,
        events: Events,
        work: FairTurns,
        *,
        now: Callable[[], float],
        authorship: Authorship = UNRESTRICTED,
        private: bool = False,
    ) -> None:
        self._store = store
        self._events = events
        self._now = now
        self._work = work
        self._generation = events.begin_generation()
        self._authorship = authorship
        self._caching_of = partial(caching_of, authorship=authorship, private=private)
        self._caching = self._caching_of(Form.PLAIN)
        self._lists = PostLists(store, self._caching, work=work)
        self._lists_with_details: dict[Form, PostLists] = {}
        self._idempotency = IdempotencyKeys(now)
        # Depends only on the post, so that an entry is never stale.
        self._encode_post = lru_cache(ENCODED_MAX)(self._encode_post_uncached)

    @app.route("/post", methods=["GET"])
    async def list_posts(self, request: Request) -> Response | StreamedResponse:
        parameters = decode_query(request)
        if not parameters:
            return await self._lists.respond(request, WHOLE)
        span = _decode_span(parameters)
        lists = self._lists if "include" not in parameters else self._find_lists(self._form(request, parameters))
        return await lists.respond(request, span)

    def _form(self, request: Request, parameters: Mapping[str, list[str]]) -> Form:
        """Return the form of posts that a request asks for.

        Raises:
            Problem: 400, for another value of `include`.
        """
        return self._authorship.form(request) if decode_include(parameters) else Form.PLAIN

    def _find_lists(self, form: Form) -> PostLists:
        if form is Form.PLAIN:
            return self._lists
        lists = self._lists_with_details.get(form)
        if lists is None:
            listed = ANONYMOUS_LIST if form is Form.ANONYMOUS else DETAILED_LIST
            lists = PostLists(self._store, self._caching_of(form), listed, work=self._work)
            self._lists_with_details[form] = lists
        return lists

    @app.route("/post", methods=["POST"])
    async def add_post(self, request: Request) -> Response:
        text = decode_text(request)
        with self._idempotency.hold(request) as key:
            author, now = author_of(request), self._now()
            post_id = await self._store.add_post(text, author=author, now=now, idempotency_key=key)
        return _ADDED.with_header(b"Location", b"/post/%d" % post_id)

    @app.route("/post/events", methods=["GET"])
    async def stream_changes(self, request: Request) -> StreamedResponse:
        identity = request.identity
        revalidate = always_valid if identity is None else identity.revalidate
        form = self._form(request, decode_query(request))
        return await self._events.respond(request, revalidate, form, generation=self._generation, work=self._work)

    @app.route("/post/<post_id:post_id>", methods=["GET"])
    async def get_post(self, request: Request, post_id: int) -> Response:
        if b"?" in request.uri and decode_include(decode_query(request)):
            form = self._authorship.form(request)
            encoded = self._encode_details(await self._store.get_details(post_id), form)
        else:
            encoded = self._encode_post(await self._store.get_post(post_id))
        return encoded.not_modified if is_not_modified(request, encoded.etag) else encoded.ok

    def _encode_post_uncached(self, post: Post) -> _EncodedPost:
        body = b'{\n  "id": %d,\n  "post": %b\n}\n' % (post.id, orjson.dumps(post.post))
        return _make_encoded(_post_etag(post), body, self._caching)

    def _encode_details(self, post: PostDetails, form: Form) -> _EncodedPost:
        return _make_encoded(_details_etag(post, form), encode_single(post, form), self._caching_of(form))

    @app.route("/post/<post_id:post_id>", methods=["PUT"])
    async def replace_post(self, request: Request, post_id: int) -> Response:
        text = decode_text(request)
        author = self._authorship.expected_author(request)
        expected = await self._expected_text(request, post_id, author)
        await self._store.replace_post(post_id, text, now=self._now(), expected=expected, expected_author=author)
        return _UPDATED

    @app.route("/post/<post_id:post_id>", methods=["DELETE"])
    async def delete_post(self, request: Request, post_id: int) -> Response:
        author = self._authorship.expected_author(request)
        expected = await self._expected_text(request, post_id, author)
        await self._store.delete_post(post_id, expected=expected, expected_author=author)
        return _DELETED

    async def _expected_text(self, request: Request, post_id: int, author: str | None) -> str | None:
        """Return the text that the store must still find for the request's preconditions to hold, None for any."""
        if not has_preconditions(request):
            return None
        post = await self._store.get_details(post_id)
        if author not in {None, post.author}:  # what others may not change, they may not test either
            raise NotAuthorError(post_id)
        details = [_details_etag(post, form) for form in (Form.DETAILED, Form.ANONYMOUS)]
        check_preconditions(request, [_post_etag(Post(post.id, post.post)), *details])
        return post.post


def _post_etag(post: Post) -> bytes:
    """Return the entity tag of a post, a hash of all that its representation contains."""
    return hash_etag(b"%d:%b" % (post.id, post.post.encode()))


def _details_etag(post: PostDetails, form: Form) -> bytes:
    """Return the entity tag of a post with its details."""
    return hash_etag(encode_single(post, form))


def _make_encoded(etag: bytes, body: bytes, caching: Mapping[bytes, bytes]) -> _EncodedPost:
    headers = {b"ETag": etag, **caching}
    return _EncodedPost(etag, make_response(HTTPStatus.OK, JSON, body, headers), make_not_modified(headers))


def _decode_span(parameters: Mapping[str, list[str]]) -> Span:
    """Return the span of posts by `after` and `limit`; other parameters are ignored.

    Raises:
        Problem: 400, a parameter is repeated or out of range.
    """
    after = decode_number(parameters, "after", 0, POST_ID_MAX)
    return after or 0, decode_number(parameters, "limit", 1, LIMIT_MAX)
