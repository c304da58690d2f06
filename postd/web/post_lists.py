"""Lists of posts, complete or by page, made from encoded posts and cached by version (reference: Lists)."""

from collections.abc import Mapping, Sequence

from postd.caching import SingleFlight
from postd.http.interface import Request
from postd.http.responses import JSON, Response, StreamedResponse
from postd.model import Version
from postd.store.interface import PostStore
from postd.web.compression import INLINE_MAX_BYTES, VARY, NegotiatedText, not_modified_if_current
from postd.web.encoded_piece import COMMA, Piece, encode_posts, join_posts, last_id_in
from postd.web.encoded_posts import EncodedPosts
from postd.web.fair_work import FairWork
from postd.web.streamed_list import CLOSING, EMPTY, OPENING, StreamedSnapshot, stream_list

KEPT_MAX_BYTES = 8 * 1024 * 1024
"""Limit on the kept responses beside the encoded posts, uncompressed, in each process: some 2,000 pages of 20 posts of
60 characters. Compressed ones take at most as much again."""

KEPT_OVERHEAD_BYTES = 2048
"""The memory of a cached response beside its body, in bytes: fields, entity tags."""

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
    the change, once for all concurrent requests, when it is the turn of one of their clients. A list that is too long
    for that is streamed. `caching` are the caching fields of all responses.
    """

    def __init__(self, store: PostStore, caching: Mapping[bytes, bytes], *, work: FairWork) -> None:
        self._store = store
        self._headers = {**caching, **VARY}
        self._work = work
        self._posts = EncodedPosts(store, clock=work.clock)
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
        if limit is None:
            snapshot = await self._posts.snapshot(version, after=after, limit=None)
            return None if snapshot is None else self._make_rest(after, *snapshot)
        snapshot = None
        if limit >= SHORT_PAGE_POSTS or self._posts.is_at(version):
            # One more than the page, to see whether there are any.
            snapshot = await self._posts.snapshot(version, after=after, limit=limit + 1)
        texts = list[memoryview]()
        if snapshot is None:
            page = await self._store.list_posts(after=after, limit=limit)
            version, count, more = page.version, len(page.posts), page.more
            texts.append(memoryview(join_posts(encode_posts(page.posts))))
        else:
            version, pieces = snapshot
            count, more = 0, False
            for piece in pieces:
                text, added, follows = piece.cut(after, limit - count)
                texts.append(text)
                count, more = count + added, more or follows
        body = _body(texts)
        link = {b"Link": b'</post?limit=%d&after=%d>; rel="next"' % (count, last_id_in(body))} if more else {}
        made = NegotiatedText(JSON, body, self._headers_at(version, span), link, work=self._work)
        self._keep(version, span, made, len(body))
        return made

    def _make_rest(self, after: int, version: Version, pieces: Sequence[Piece]) -> _Kept:
        """Return the responses with all posts after an id."""
        span = after, None
        first = [self._posts.starting_after(piece, after) for piece in pieces[:1]]
        sent = [piece for piece in (*first, *pieces[1:]) if piece.count]
        headers = self._headers_at(version, span)
        if sum(piece.length for piece in sent) > INLINE_MAX_BYTES:
            own = [] if sent[0] is pieces[0] else sent[:1]  # the others are those of the encoded posts
            kept = StreamedSnapshot(sent, headers, self._posts, after=after, own=own, work=self._work)
            own_bytes = sum(piece.length for piece in own)
            self._keep(version, span, kept, own_bytes + _REFERENCE_BYTES * len(sent))
            return kept
        body = _body([memoryview(piece.text) for piece in sent])
        text = NegotiatedText(JSON, body, headers, work=self._work)
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
        return {b"ETag": b'"%d-%b%b"' % (version.revision, version.tag.encode(), page), **self._headers}


def _body(texts: Sequence[memoryview]) -> bytes:
    """Return the list with the posts of some texts, each with a comma before it."""
    sent = [text for text in texts if text]
    return b"".join([OPENING, sent[0][len(COMMA) :], *sent[1:], CLOSING]) if sent else EMPTY
