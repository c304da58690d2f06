"""The board: posts for people, in a browser, behind the form login.

It reads and writes the posts past the API, with the same checks, and needs no script: `pages/board.js` adds what others
do meanwhile. A write is answered with 303, so that loading a page anew repeats nothing.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256
from http import HTTPStatus
from typing import Any

from postd.errors import InvalidTextError, NoSuchPostError, PostChangedError
from postd.model import POST_ID_MAX, Post, check_text, strip_issuer
from postd.store.interface import Once, PostStore
from postd.web.errors import Problem
from postd.web.form import decode_form
from postd.web.idempotency import KEPT_S
from postd.web.pages.board import BOARD_POLICY, BoardPages, Draft, Listed
from postd.web.posts import PostIdConverter
from postd.web.protected import show_name
from postd.web.query import decode_number, decode_query
from postd.web.responses import PAGE_HEADERS, TEXT, Answer, make_answer
from postd.web.reverse_paging import list_before
from postd.web.server.routing import Application

PAGE_POSTS = 100
"""How many posts a page has at the most."""

_HEADERS = {**PAGE_HEADERS, b"Content-Security-Policy": BOARD_POLICY, b"Vary": b"Cookie"}
_HTML = b"text/html; charset=utf-8"
_BEFORE_MAX = POST_ID_MAX + 1
_NOTHING = Draft()


async def show_name_and_board(request: Any) -> Answer:
    """Answer as `show_name` does, and tell programs where the board is (RFC 8288)."""
    return (await show_name(request)).beside(b"Link", b'</board>; rel="related"')


class Board:
    """The pages `/board`, with the list, and `/board/<id>`, to change or delete one post.

    They are only for who is signed in, and keep out what other sites send: that is the business of the guard.

    Args:
        store: keeps the posts.
        site_name: what stands above each page.
        writable: whether who is signed in may write.
    """

    app = Application()
    app.url_map.converters["post_id"] = PostIdConverter

    def __init__(self, store: PostStore, *, site_name: str, writable: bool) -> None:
        self._store = store
        self._writable = writable
        self._pages = BoardPages(site_name, writable=writable)

    @app.route("/board", methods=["GET"])
    async def show_posts(self, request: Any) -> Answer:
        after, before, done = _decode_query(request)
        return await self._answer_list(request, after=after, before=before, done=done)

    @app.route("/board", methods=["POST"])
    async def add_post(self, request: Any) -> Answer:
        self._require_writable()
        fields = decode_form(request)
        text = _decode_text(fields)
        try:
            check_text(text)
        except InvalidTextError as error:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            return await self._answer_list(request, status=status, draft=Draft(text, error.why))
        await self._store.add_post(text, once=_decode_once(request.username, fields, text))
        return _lead_to("/board?done=added#post")

    @app.route("/board/<post_id:post_id>", methods=["GET"])
    async def show_post(self, _request: Any, post_id: int) -> Answer:
        self._require_writable()
        revision = (await self._store.version()).revision
        try:
            post = await self._store.get_post(post_id)
        except NoSuchPostError:
            return self._answer_gone(post_id, None)
        return await self._answer_post(post, revision, Draft(post.post))

    @app.route("/board/<post_id:post_id>", methods=["POST"])
    async def save_post(self, request: Any, post_id: int) -> Answer:
        self._require_writable()
        fields = decode_form(request)
        text, was = _decode_text(fields), _decode_field(fields, "was")
        revision = (await self._store.version()).revision
        try:
            post = await self._store.get_post(post_id)
            # A browser sends other line ends than a post may have: who changes nothing else changes nothing.
            if _with_lf(post.post) != text:
                check_text(text)
                _require_unchanged(post, was)
                await self._store.replace_post(post_id, text, expected=post.post)
        except InvalidTextError as error:
            return await self._answer_post(post, revision, Draft(text, error.why), was=was)
        except PostChangedError:
            return await self._answer_conflict(post_id, Draft(text))
        except NoSuchPostError:
            return self._answer_gone(post_id, Draft(text))
        return _lead_to(await self._find_list(post_id, f"done=saved#post-{post_id}"))

    @app.route("/board/<post_id:post_id>/delete", methods=["POST"])
    async def delete_post(self, request: Any, post_id: int) -> Answer:
        self._require_writable()
        was = _decode_field(decode_form(request), "was")
        done = "deleted"
        try:
            post = await self._store.get_post(post_id)
            _require_unchanged(post, was)
            await self._store.delete_post(post_id, expected=post.post)
        except PostChangedError:
            return await self._answer_conflict(post_id, None)
        except NoSuchPostError:
            done = "gone"
        return _lead_to(await self._find_list(post_id, f"done={done}#done"))

    def _require_writable(self) -> None:
        if not self._writable:
            raise Problem(403, "A session does not let anybody write here.")

    async def _answer_list(  # noqa: PLR0913 - a page has as many parts
        self,
        request: Any,
        *,
        after: int | None = None,
        before: int | None = None,
        status: HTTPStatus = HTTPStatus.OK,
        draft: Draft = _NOTHING,
        done: str = "",
    ) -> Answer:
        listed = await self._list(after, before)
        user = strip_issuer(request.username)
        return _make_html(status, self._pages.make_list(listed, user=user, draft=draft, key=_new_key(), done=done))

    async def _list(self, after: int | None, before: int | None) -> Listed:
        """Return the first posts after an id, the last ones before one, or the last ones of all."""
        # Before the posts are read: a change made meanwhile is then told once more, not left out.
        revision = (await self._store.version()).revision
        posts: Sequence[tuple[int, str]] = ()
        if after is not None:
            page = await self._store.list_posts(after=after, limit=PAGE_POSTS)
            if page.more:
                posts, before = page.posts, page.posts[-1][0] + 1
        if not posts:
            end = await self._store.last_id() + 1
            before = before if before is not None and before < end else None
            posts = await list_before(self._store, end if before is None else before, limit=PAGE_POSTS)
        first = (await self._store.list_posts(limit=1)).posts
        older = bool(posts and first and first[0][0] < posts[0][0])
        return Listed(revision, posts, posts[0][0] - 1 if older else 0, before, older)

    async def _answer_post(self, post: Post, revision: int, draft: Draft, *, was: str = "") -> Answer:
        page = self._pages.make_post(
            post, revision, draft=draft, was=was or _tag(post), back=await self._find_list(post.id, f"#post-{post.id}")
        )
        return _make_html(HTTPStatus.UNPROCESSABLE_ENTITY if draft.why else HTTPStatus.OK, page)

    async def _answer_conflict(self, post_id: int, draft: Draft | None) -> Answer:
        revision = (await self._store.version()).revision
        try:
            post = await self._store.get_post(post_id)
        except NoSuchPostError:
            return self._answer_gone(post_id, draft)
        back = await self._find_list(post_id, f"#post-{post_id}")
        page = self._pages.make_conflict(post, revision, draft=draft, was=_tag(post), back=back)
        return _make_html(HTTPStatus.CONFLICT, page)

    def _answer_gone(self, post_id: int, draft: Draft | None) -> Answer:
        return _make_html(HTTPStatus.NOT_FOUND, self._pages.make_gone(post_id, draft=draft, key=_new_key()))

    async def _find_list(self, post_id: int, rest: str) -> str:
        """Return the address of the page that a post is on, or was; `rest` follows."""
        newer = await self._store.list_posts(after=post_id, limit=PAGE_POSTS)
        path = f"/board?before={post_id + 1}" if len(newer.posts) == PAGE_POSTS else "/board"
        if rest.startswith("#"):
            return path + rest
        return f"{path}{'&' if '?' in path else '?'}{rest}"


def _make_html(status: HTTPStatus, page: bytes) -> Answer:
    return make_answer(status, _HTML, page, _HEADERS)


def _lead_to(location: str) -> Answer:
    """Return the 303 after a write, to a page of ours."""
    there = location.encode("ascii")
    return make_answer(HTTPStatus.SEE_OTHER, TEXT, b"%b\n" % there, {**PAGE_HEADERS, b"Location": there})


def _tag(post: Post) -> str:
    """Name the text of a post: a form cannot carry the text itself, for a browser changes line ends."""
    return blake2b(post.post.encode(), digest_size=12).hexdigest()


def _require_unchanged(post: Post, was: str) -> None:
    """Let pass who has seen a post's text as it stands.

    Raises:
        PostChangedError: it has become another one since.
    """
    if _tag(post) != was:
        raise PostChangedError(post.id)


def _with_lf(text: str) -> str:
    """Return a text with the line ends that one typed (HTML Living Standard §4.10.11.1)."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decode_text(fields: Mapping[str, list[str]]) -> str:
    return _with_lf(_decode_field(fields, "post"))


def _decode_field(fields: Mapping[str, list[str]], name: str) -> str:
    """Return what a form has in a field.

    Raises:
        Problem: 400, it does not have it once.
    """
    values = fields.get(name, [])
    if len(values) != 1:
        raise Problem(400, f"The form must have {name!r} once.")
    return values[0]


def _new_key() -> str:
    """Return what a form is known by, so that one which is sent twice by a double click stores one post."""
    return secrets.token_urlsafe(16)


def _decode_once(user: str, fields: Mapping[str, list[str]], text: str) -> Once | None:
    """Return what a form's request is known by; None if somebody has made it without a key.

    The text is a part of it: whoever goes back to a form and sends another text with it means another post.
    """
    keys = fields.get("key", [])
    if not keys:
        return None
    hashed = sha256("\0".join(["board", user, *keys, text]).encode()).digest()
    now = time.time()
    return Once(hashed, hashed, now, now + KEPT_S)


def _decode_query(request: Any) -> tuple[int | None, int | None, str]:
    """Return `after`, `before` and `done` of the address; other parameters are ignored.

    Raises:
        Problem: 400, one of them is not what it should be, or there are both of the first two.
    """
    parameters = decode_query(request)
    after = decode_number(parameters, "after", 0, _BEFORE_MAX)
    before = decode_number(parameters, "before", 1, _BEFORE_MAX)
    if after is not None and before is not None:
        raise Problem(400, "?after and ?before do not go together.")
    return after, before, parameters.get("done", [""])[0]
