"""The board: HTML pages with the posts (reference: Board).

It uses the store directly, with the checks of the API, and works without a script; `board.js` shows changes live.
A write is answered with 303, so that reloading a page repeats nothing.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from http import HTTPStatus
from shlex import quote
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import CancelledError

from postd.errors import InvalidTextError, NoSuchPostError, PostChangedError
from postd.fair_queue import FairTurns
from postd.http.errors import Problem, retry_after_text, to_problem
from postd.http.interface import Request
from postd.http.pages.template import wants_html
from postd.http.peer import PeerResolver
from postd.http.responses import (
    HTML,
    PAGE_HEADERS,
    Response,
    StreamedResponse,
    make_redirect,
    make_response,
    phrase,
)
from postd.http.urlencoded import decode_form, decode_number, decode_query
from postd.http.views import View
from postd.model import POST_ID_MAX, PostDetails, check_text
from postd.protect.schemes.interface import SAMPLE_USER, SchemeDescription
from postd.store.interface import IdempotencyKey, PostStore
from postd.web.authorship import Authorship, Form, author_of
from postd.web.board.pages import BOARD_POLICY, BoardPages, Draft, PostPage, Reader, make_board_policy
from postd.web.feed import PATH as FEED_PATH
from postd.web.idempotency import KEPT_S
from postd.web.posts import PostIdConverter
from postd.web.routing import Application, Middleware
from postd.web.samples import ORIGIN, SampleRequest, make_curl

PAGE_POSTS = 100
"""Limit on the posts of a page."""

_HEADERS = {
    **PAGE_HEADERS,
    b"Content-Security-Policy": BOARD_POLICY,
    b"Link": b'<%b>; rel="alternate"; type="application/atom+xml"' % FEED_PATH.encode("ascii"),
    b"Vary": b"Authorization, Cookie",
}
_BEFORE_MAX = POST_ID_MAX + 1
_NOTHING = Draft()
_POST_PATH = re.compile(r"/board/([1-9][0-9]{0,15})(/delete)?")
_ENDED = "Your session had ended. This is what you sent; it is not stored yet."
_SAMPLE = SampleRequest("POST", "/post", body={"post": "Hello, world"})


class Board:
    """The pages `/board`, with the list, and `/board/<id>`, with one post.

    The guards in front of them have the rules of the API, and refuse cross-site writes; a request that may be without
    credentials has no identity then. `scheme` is one that the API takes for writing, None if it is open to everyone.
    `now` is the clock of the dates in the store. `writers` are the schemes of the rule for writing, or "open"; a client
    without one of these sees the posts only. With `sign_in` there are accounts that can sign in by form. With
    `open_to_read` a reader needs no credentials. `sign_out_origins` returns the other origins to which signing out may
    lead.
    """

    app = Application()
    app.url_map.converters["post_id"] = PostIdConverter

    def __init__(  # noqa: PLR0913 - all that its pages need
        self,
        store: PostStore,
        clients: PeerResolver,
        scheme: SchemeDescription | None,
        work: FairTurns,
        *,
        now: Callable[[], float],
        authorship: Authorship,
        site_name: str,
        writers: frozenset[str],
        sign_in: bool,
        open_to_read: bool,
        sign_out_origins: Callable[[], Sequence[str]],
    ) -> None:
        self._store = store
        self._now = now
        self._authorship = authorship
        self._clients = clients
        self._work = work
        self._credentials = "" if scheme is None else scheme.curl
        self._writers = writers
        self._sign_in = sign_in
        self._open_to_read = open_to_read
        self._sign_out_origins = sign_out_origins
        self._pages = BoardPages(site_name)

    @app.route("/board", methods=["GET"])
    async def show_posts(self, request: Request) -> Response:
        parameters = decode_query(request)
        after = decode_number(parameters, "after", 0, _BEFORE_MAX)
        before = decode_number(parameters, "before", 1, _BEFORE_MAX)
        if after is not None and before is not None:
            raise Problem(400, "?after and ?before cannot be combined.")
        done = parameters.get("done", [""])[0]
        return await self._make_list_page(request, after=after, before=before, done=done)

    @app.route("/board", methods=["POST"])
    async def add_post(self, request: Request) -> Response:
        fields = decode_form(request)
        text = _decode_text(fields)
        try:
            check_text(text)
        except InvalidTextError as error:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            return await self._make_list_page(request, status=status, draft=Draft(text, error.why))
        author, now = author_of(request), self._now()
        key = _decode_key(author or "", fields, text, now)
        await self._store.add_post(text, author=author, now=now, idempotency_key=key)
        return _see_other("/board?done=added#post")

    @app.route("/board/<post_id:post_id>", methods=["GET"])
    async def show_post(self, request: Request, post_id: int) -> Response:
        revision = (await self._store.version()).revision
        try:
            post = await self._store.get_details(post_id)
        except NoSuchPostError:
            return self._make_gone_page(request, post_id, None)
        return await self._make_post_page(request, post, revision, Draft(post.post))

    @app.route("/board/<post_id:post_id>", methods=["POST"])
    async def save_post(self, request: Request, post_id: int) -> Response:
        """Change a post whose text is `was`; without that field, whatever its text is."""
        fields = decode_form(request)
        text, was = _decode_text(fields), _decode_was(fields)
        revision = (await self._store.version()).revision
        try:
            post = await self._store.get_details(post_id)
            # Browsers change line ends: a text that differs only in line ends counts as unchanged.
            if _with_lf(post.post) != text:
                check_text(text)
                _require_unchanged(post, was)
                author = self._authorship.expected_author(request)
                await self._store.replace_post(
                    post_id, text, now=self._now(), expected=post.post, expected_author=author
                )
        except InvalidTextError as error:
            return await self._make_post_page(request, post, revision, Draft(text, error.why), was=was or "")
        except PostChangedError:
            return await self._make_conflict_page(request, post_id, Draft(text))
        except NoSuchPostError:
            return self._make_gone_page(request, post_id, Draft(text))
        return _see_other(await self._find_list(post_id, f"done=saved#post-{post_id}"))

    @app.route("/board/<post_id:post_id>/delete", methods=["GET"])
    async def ask_to_delete(self, request: Request, post_id: int) -> Response:
        reader = self._find_reader(request)
        try:
            post = await self._store.get_details(post_id)
        except NoSuchPostError:
            return self._make_gone_page(request, post_id, None)
        if not reader.may_change(post):
            raise Problem(403, "You are not authorized to change this post.")
        back = await self._find_list(post_id, f"#post-{post_id}")
        return self._make_html(HTTPStatus.OK, self._pages.make_question(post, reader, back=back))

    @app.route("/board/<post_id:post_id>/delete", methods=["POST"])
    async def delete_post(self, request: Request, post_id: int) -> Response:
        """Delete a post whose text is `was`; without that field, whatever its text is."""
        was = _decode_was(decode_form(request)) if request.body else None
        done = "deleted"
        try:
            post = await self._store.get_details(post_id)
            _require_unchanged(post, was)
            author = self._authorship.expected_author(request)
            await self._store.delete_post(post_id, expected=post.post, expected_author=author)
        except PostChangedError:
            return await self._make_conflict_page(request, post_id, None)
        except NoSuchPostError:
            done = "gone"
        return _see_other(await self._find_list(post_id, f"done={done}#done"))

    async def resume(self, request: Request, path: str, fields: Mapping[str, list[str]]) -> Response:
        """Show a form again that was sent after its session had ended (`ProtectedResource.resume`)."""
        is_own = fields.get("account") == [author_of(request)]  # a text is not shown to another account
        draft = Draft(_with_lf(fields.get("post", [""])[0]), note=_ENDED) if is_own else _NOTHING
        was = _with_lf(fields.get("was", [""])[0])
        found = _POST_PATH.fullmatch(path)
        if found is None:
            return await self._make_list_page(request, draft=draft)
        post_id = int(found[1])
        if found[2]:
            return _see_other(path)
        try:
            post = await self._store.get_details(post_id)
        except NoSuchPostError:
            return self._make_gone_page(request, post_id, draft)
        revision = (await self._store.version()).revision
        return await self._make_post_page(request, post, revision, draft, was=was)

    def make_failure(self, request: Request, problem: Problem) -> Response | None:
        """Return the page about a form that was not handled, with the text that it has; None if it has none."""
        try:
            fields = decode_form(request)
        except Problem:
            return None
        if "post" not in fields or not wants_html(request):
            return None
        name = "was" if "was" in fields else "key"
        reader = self._find_reader(request)
        if request.identity is None:  # it may not be known yet
            reader = replace(reader, account=fields.get("account", [""])[0])
        made = self._pages.make_failure(
            phrase(problem.status),
            reader,
            path=request.path.decode("ascii"),
            why=" ".join(filter(None, [problem.detail, "The text was not stored.", retry_after_text(problem)])),
            draft=Draft(_with_lf(fields["post"][0])),
            hidden=(name, fields.get(name, [""])[0]),
        )
        request.add_header(b"Vary", b"Accept")
        return self._make_html(problem.status, made, problem.headers)

    def _make_html(
        self, status: HTTPStatus, page: bytes, more: Mapping[bytes, bytes] = MappingProxyType({})
    ) -> Response:
        targets = self._sign_out_origins()
        policy = {b"Content-Security-Policy": make_board_policy(targets)} if targets else {}
        return make_response(status, HTML, page, {**_HEADERS, **policy, **more})

    def _find_reader(self, request: Request) -> Reader:
        identity = request.identity
        scheme = "" if identity is None else "bearer" if identity.scheme == "dpop" else identity.scheme
        return Reader(
            now=int(self._now() * 1000),
            account="" if identity is None else identity.account,
            name="" if identity is None else identity.shown_name or identity.name,
            may_write=not self._writers.isdisjoint({"open", scheme})
            and (identity is None or scheme != "token" or "write" in identity.scopes),
            signs_out=scheme == "session",
            signs_in=self._sign_in and identity is None,
            signs_in_to_write="session" in self._writers,
            open_to_read=self._open_to_read,
            only_author=self._authorship.expected_author(request),
            sees_authors=self._authorship.form(request) is Form.DETAILED,
        )

    async def _make_list_page(  # noqa: PLR0913 - a page has as many parts
        self,
        request: Request,
        *,
        after: int | None = None,
        before: int | None = None,
        status: HTTPStatus = HTTPStatus.OK,
        draft: Draft = _NOTHING,
        done: str = "",
    ) -> Response:
        """Return the page with the first posts after an id, the last ones before an id, or the latest ones.

        Raises:
            ServerBusyError: too much work of other clients waits.
        """
        async with self._work.turn(request.client_network):
            listed = await self._read_list(after, before)
        reader = self._find_reader(request)
        credentials = self._credentials.replace(SAMPLE_USER, quote(reader.name)) if reader.name else self._credentials
        curl = make_curl(_SAMPLE, credentials, origin=self._clients.origin(request) or ORIGIN)
        made = self._pages.make_list(listed, reader, curl=curl, draft=draft, key=_new_key(), done=done)
        return self._make_html(status, made)

    async def _read_list(self, after: int | None, before: int | None) -> PostPage:
        if after is not None:
            page = await self._store.list_details(after=after, limit=PAGE_POSTS)
            if page.more:
                first, end = page.posts[0].id, page.posts[-1].id + 1
                older = bool((await self._store.list_latest(before=first, limit=1)).posts)
                return PostPage(page.version.revision, page.posts, first - 1 if older else 0, end, older)
        if before is not None and before > await self._store.last_id():
            before = None
        page = await self._store.list_latest(before=_BEFORE_MAX if before is None else before, limit=PAGE_POSTS)
        return PostPage(page.version.revision, page.posts, page.posts[0].id - 1 if page.more else 0, before, page.more)

    async def _make_post_page(
        self, request: Request, post: PostDetails, revision: int, draft: Draft, *, was: str = ""
    ) -> Response:
        back = await self._find_list(post.id, f"#post-{post.id}")
        page = self._pages.make_post(
            post, self._find_reader(request), revision, draft=draft, was=was or post.post, back=back
        )
        return self._make_html(HTTPStatus.UNPROCESSABLE_ENTITY if draft.why else HTTPStatus.OK, page)

    async def _make_conflict_page(self, request: Request, post_id: int, draft: Draft | None) -> Response:
        revision = (await self._store.version()).revision
        try:
            post = await self._store.get_details(post_id)
        except NoSuchPostError:
            return self._make_gone_page(request, post_id, draft)
        back = await self._find_list(post_id, f"#post-{post_id}")
        page = self._pages.make_conflict(post, self._find_reader(request), revision, draft=draft, back=back)
        return self._make_html(HTTPStatus.CONFLICT, page)

    def _make_gone_page(self, request: Request, post_id: int, draft: Draft | None) -> Response:
        page = self._pages.make_gone(post_id, self._find_reader(request), draft=draft, key=_new_key())
        return self._make_html(HTTPStatus.NOT_FOUND, page)

    async def _find_list(self, post_id: int, rest: str) -> str:
        """Return the URL of the list page with a post, or where it was; `rest` is its query or fragment."""
        newer = await self._store.list_posts(after=post_id, limit=PAGE_POSTS)
        path = f"/board?before={post_id + 1}" if len(newer.posts) == PAGE_POSTS else "/board"
        if rest.startswith("#"):
            return path + rest
        return f"{path}{'&' if '?' in path else '?'}{rest}"


class KeptForms(Struct, frozen=True):
    """Answers errors of forms of a board with a page that has the text of the form."""

    board: Board
    then: Middleware | None

    async def enter(self, request: Request, view: View) -> Response | StreamedResponse | None:
        try:
            return await (view(request) if self.then is None else self.then.enter(request, view))
        except CancelledError:
            raise
        except Exception as error:
            problem = to_problem(error)
            page = None if problem is None else self.board.make_failure(request, problem)
            if page is None:
                raise
            return page


def _see_other(location: str) -> Response:
    return make_redirect(location.encode("ascii"), HTTPStatus.SEE_OTHER)


def _require_unchanged(post: PostDetails, was: str | None) -> None:
    """Check that a post still has the text that its form was made for, if the form has one.

    Raises:
        PostChangedError: the text has changed since.
    """
    if was is not None and _with_lf(post.post) != was:
        raise PostChangedError(post.id)


def _with_lf(text: str) -> str:
    """Normalize line ends, which a browser sends as CRLF (HTML Living Standard §4.10.11.1)."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decode_text(fields: Mapping[str, list[str]]) -> str:
    return _with_lf(_decode_field(fields, "post"))


def _decode_was(fields: Mapping[str, list[str]]) -> str | None:
    return _with_lf(_decode_field(fields, "was")) if "was" in fields else None


def _decode_field(fields: Mapping[str, list[str]], name: str) -> str:
    """Return the value of a form field.

    Raises:
        Problem: 400, the field is missing or repeated.
    """
    values = fields.get(name, [])
    if len(values) != 1:
        raise Problem(400, f"The form must have {name!r} once.")
    return values[0]


def _new_key() -> str:
    """Return a new idempotency key for a form: a double click stores one post."""
    return secrets.token_urlsafe(16)


def _decode_key(user: str, fields: Mapping[str, list[str]], text: str, now: float) -> IdempotencyKey | None:
    """Return the idempotency key of a submitted form, None if it has no key.

    The text is part of it: a user who goes back to a form and sends another text wants another post.
    """
    keys = fields.get("key", [])
    if not keys:
        return None
    hashed = sha256("\0".join(["board", user, *keys, text]).encode()).digest()
    return IdempotencyKey(hashed, hashed, now, now + KEPT_S)
