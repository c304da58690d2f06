"""Lists of posts, complete or by page, made from encoded posts and cached by version (reference: Lists)."""

from collections.abc import Mapping, Sequence
from sys import maxsize

from postd.caching import SingleFlight
from postd.fair_queue import FairTurns
from postd.http.interface import Request
from postd.http.responses import JSON, Response, StreamedResponse
from postd.model import POST_ID_MAX, Version
from postd.store.interface import PostStore
from postd.web.lists.compression import NegotiatedText, negotiated, not_modified_if_current
from postd.web.lists.encoded_piece import COMMA, Held, Piece, join_posts, last_id_in
from postd.web.lists.encoded_posts import EncodedPosts
from postd.web.lists.list_forms import PLAIN_LIST, ListForm
from postd.web.lists.streamed_list import CLOSING, EMPTY, OPENING, StreamedSnapshot, stream_list

KEPT_MAX_BYTES = 8 * 1024 * 1024
"""Limit on the kept responses beside the encoded posts, uncompressed, in each process: some 2,000 pages of 20 posts of
60 characters. Compressed ones take at most as much again."""

KEPT_OVERHEAD_BYTES = 2048
"""The memory of a cached response beside its body, in bytes: fields, entity tags."""

WHOLE_MAX_BYTES = 64 * 1024
"""A list of up to this many bytes is kept as one text; a longer one refers to the encoded posts."""

OWN_PIECE_MAX_BYTES = 32 * 1024
"""A longer piece at an end of a page is divided: one half is compressed in a turn, which takes up to 0.6 ms."""

SHORT_PAGE_POSTS = 100
"""Reading a page of fewer posts costs less than updating the encoded posts for it."""

Span = tuple[int, int | None]
"""The posts with ids larger than the first number, at most as many as the second one; None: all."""

WHOLE: Span = (0, None)

_REFERENCE_BYTES = 8

_Kept = NegotiatedText | StreamedSnapshot


class PostLists:
    """Responses with lists of posts, by span.

    They are cached until the posts change; then they are made again from the encoded posts, at a cost in proportion to
    the change, once for all concurrent requests, when it is the turn of any of their clients. A list that is too long
    for that is streamed. `caching` are the caching fields of all responses, and `form` is the form of the posts.
    """

    def __init__(
        self, store: PostStore, caching: Mapping[bytes, bytes], form: ListForm = PLAIN_LIST, *, work: FairTurns
    ) -> None:
        self._store = store
        self._form = form
        self._headers = negotiated(caching)
        self._work = work
        self._posts = EncodedPosts(store, form, clock=work.clock)
        self._version: Version | None = None  # of the kept responses
        self._kept: dict[Span, _Kept] = {}
        self._sizes: dict[Span, int] = {}
        self._kept_bytes = 0
        self._making = SingleFlight[tuple[Version, Span], _Kept | None]()

    async def respond(self, request: Request, span: Span) -> Response | StreamedResponse:
        """Return the response to GET or HEAD.

        Raises:
            Problem: 412, by `If-Match`.
        """
        version = await self._store.version()
        kept = self._kept.get(span) if version == self._version else None
        if kept is None:
            headers = self._headers_at(version, span)
            not_modified = not_modified_if_current(request, headers)
            if not_modified is not None:
                return not_modified
            kept = await self._make(request, span)
            if kept is None:
                return stream_list(request, self._posts, span[0], headers, self._work)
        return await kept.respond(request)

    async def _make(self, request: Request, span: Span) -> _Kept | None:
        """Return the responses with a span, when it is the client's turn; None if it is too long to be kept."""
        async with self._work.turn(request.client_network):
            request.require_room()
            version = await self._store.version()  # it may have changed during the wait
            kept = self._kept.get(span) if version == self._version else None
            return kept or await self._making.run((version, span), lambda: self._make_now(version, span))

    async def _make_now(self, version: Version, span: Span) -> _Kept | None:
        """Return the responses with a span at a version, or a later one; None if it is too long to be kept."""
        after, limit = span
        snapshot = None
        if limit is None or limit >= SHORT_PAGE_POSTS or self._posts.is_at(version):
            # One more than the page, to see whether there are any.
            snapshot = await self._posts.snapshot(version, after=after, limit=limit and limit + 1)
        if snapshot is None:
            if limit is None:
                return None
            page = await self._form.read(self._store, after=after, limit=limit)
            text = join_posts(self._form.encode(page.posts))
            piece = Piece(after, POST_ID_MAX, text, len(page.posts), Held())
            return self._make_kept(page.version, span, [piece], own=[piece], more=page.more)
        version, pieces = snapshot
        left, more = maxsize if limit is None else limit, False
        sent, own = list[Piece](), list[Piece]()
        for piece in pieces:
            cut, follows = piece.cut(after, left)
            left, more = left - cut.count, more or follows
            parts = cut.halves() if cut is not piece and cut.length > OWN_PIECE_MAX_BYTES else [cut]
            sent += parts
            own += [] if cut is piece else parts
        return self._make_kept(version, span, sent, own=own, more=more)

    def _make_kept(
        self, version: Version, span: Span, pieces: Sequence[Piece], *, own: Sequence[Piece], more: bool
    ) -> _Kept:
        """Return the responses with some pieces, of which all but `own` belong to the encoded posts.

        `more` is whether there are further posts.
        """
        sent = [piece for piece in pieces if piece.count]
        headers, link = self._headers_at(version, span), {}
        if more:
            count, last = sum(piece.count for piece in sent), last_id_in(sent[-1].text)
            link[b"Link"] = b'</post?%blimit=%d&after=%d>; rel="next"' % (self._form.query, count, last)
        if sum(piece.length for piece in sent) > WHOLE_MAX_BYTES:
            own_bytes = sum(piece.length for piece in own) + _REFERENCE_BYTES * len(sent)
            snapshot = StreamedSnapshot(sent, headers, link, self._posts, after=span[0], own=own, work=self._work)
            self._keep(version, span, snapshot, own_bytes)
            return snapshot
        body = _body([piece.text for piece in sent])
        text = NegotiatedText(JSON, body, headers, link, work=self._work)
        self._keep(version, span, text, len(body))
        return text

    def _keep(self, version: Version, span: Span, kept: _Kept, size_bytes: int) -> None:
        if version != self._version:
            self._version, self._kept_bytes = version, 0
            self._kept.clear()
            self._sizes.clear()
        self._kept_bytes -= self._sizes.pop(span, 0)
        self._kept.pop(span, None)
        self._kept[span], self._sizes[span] = kept, KEPT_OVERHEAD_BYTES + size_bytes
        self._kept_bytes += self._sizes[span]
        while self._kept_bytes > KEPT_MAX_BYTES:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._kept_bytes -= self._sizes.pop(oldest)

    def _headers_at(self, version: Version, span: Span) -> dict[bytes, bytes]:
        page = b"" if span == WHOLE else b"-%d-%d" % (span[0], span[1] or 0)
        tag = b'"%d-%b%b%b"' % (version.revision, version.tag.encode(), page, self._form.tag)
        return {b"ETag": tag, **self._headers}


def _body(texts: Sequence[bytes]) -> bytes:
    """Return the list with the posts of some texts, each with a comma before it."""
    return b"".join([OPENING, texts[0][len(COMMA) :], *texts[1:], CLOSING]) if texts else EMPTY
