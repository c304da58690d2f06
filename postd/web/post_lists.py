"""Lists of posts, complete or by page, made from encoded posts and cached by version (reference: Lists)."""

from collections.abc import Mapping, Sequence

from twisted.internet.interfaces import IReactorTime

from postd.caching import SingleFlight
from postd.http.interface import Request
from postd.http.responses import JSON, Response, StreamedResponse
from postd.model import Version
from postd.store.interface import PostStore
from postd.web.compression import INLINE_MAX_BYTES, VARY, NegotiatedText, not_modified_if_current
from postd.web.encoded_piece import COMMA, encode_posts, join_posts, last_id
from postd.web.encoded_posts import EncodedPosts, starting_after
from postd.web.streamed_list import CLOSING, EMPTY, OPENING, StreamedSnapshot, stream_list

KEPT_MAX_BYTES = 8 * 1024 * 1024
"""Limit on the kept responses beside the encoded posts, uncompressed, in each process: some 2,000 pages of 20 posts of
60 characters. Compressed ones take at most as much again."""

KEPT_OVERHEAD_BYTES = 2048
"""The memory of a cached response beside its body, in bytes: fields, entity tags."""

SHORT_PAGE_POSTS = 100
"""Reading a page of up to this many posts costs less than updating the encoded posts for it."""

Span = tuple[int, int | None]
"""The posts with ids larger than the first number, at most as many as the second one; None: all."""

WHOLE: Span = (0, None)

_REFERENCE_BYTES = 8


class PostLists:
    """Responses with lists of posts, by span.

    They are cached until the posts change; then they are made again from the encoded posts, at a cost in proportion to
    the change, once for all concurrent requests. A list that is too long for that is streamed. `caching` are the
    caching fields of all responses.
    """

    def __init__(self, store: PostStore, caching: Mapping[bytes, bytes], *, clock: IReactorTime) -> None:
        self._store = store
        self._headers = {**caching, **VARY}
        self._posts = EncodedPosts(store, clock=clock)
        self._version: Version | None = None  # of the kept responses
        self._kept: dict[Span, NegotiatedText | StreamedSnapshot] = {}
        self._kept_bytes = 0
        self._making = SingleFlight[tuple[Version, Span], NegotiatedText | StreamedSnapshot | None]()

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
            make = self._make_rest if span[1] is None else self._make_page
            kept = await self._making.run((version, span), lambda: make(version, span))
            if kept is None:
                return stream_list(request, self._posts.stream(span[0]), headers)
        return await kept.respond(request)

    async def _make_page(self, version: Version, span: Span) -> NegotiatedText:
        """Return the responses with a page at a version, or a later one."""
        after = span[0]
        many = (span[1] or 0) + 1  # one more than the page, to see whether there are any
        snapshot = None
        if many > SHORT_PAGE_POSTS or self._posts.is_at(version):
            snapshot = await self._posts.snapshot(version, after=after, limit=many)
        if snapshot is None:
            page = await self._store.list_posts(after=after, limit=many)
            version, posts = page.version, encode_posts(page.posts)
        else:
            version, pieces = snapshot
            posts = []
            for piece in pieces:
                posts += piece.posts(after=after, limit=many - len(posts))
        link = {}
        if len(posts) == many:
            posts.pop()
            link[b"Link"] = b'</post?limit=%d&after=%d>; rel="next"' % (len(posts), last_id(posts))
        body = _body([join_posts(posts)])
        text = NegotiatedText(JSON, body, self._headers_at(version, span), link)
        self._keep(version, span, text, len(body))
        return text

    async def _make_rest(self, version: Version, span: Span) -> NegotiatedText | StreamedSnapshot | None:
        """Return the responses with all posts after an id at a version, or a later one; None if they are too many."""
        snapshot = await self._posts.snapshot(version, after=span[0], limit=None)
        if snapshot is None:
            return None
        version, pieces = snapshot
        first = [starting_after(piece, span[0]) for piece in pieces[:1]]
        sent = [piece for piece in (*first, *pieces[1:]) if piece.count]
        headers = self._headers_at(version, span)
        if sum(piece.length for piece in sent) > INLINE_MAX_BYTES:
            own_bytes = 0 if sent[0] is pieces[0] else sent[0].length  # the others are those of the encoded posts
            kept = StreamedSnapshot(sent, headers, self._posts, after=span[0])
            self._keep(version, span, kept, own_bytes + _REFERENCE_BYTES * len(sent))
            return kept
        body = _body([piece.text for piece in sent])
        text = NegotiatedText(JSON, body, headers)
        self._keep(version, span, text, len(body))
        return text

    def _keep(self, version: Version, span: Span, kept: NegotiatedText | StreamedSnapshot, size_bytes: int) -> None:
        if version != self._version or self._kept_bytes > KEPT_MAX_BYTES:
            self._version, self._kept_bytes = version, 0
            self._kept.clear()
        self._kept[span] = kept
        self._kept_bytes += KEPT_OVERHEAD_BYTES + size_bytes

    def _headers_at(self, version: Version, span: Span) -> dict[bytes, bytes]:
        page = b"" if span == WHOLE else b"-%d-%d" % (span[0], span[1] or 0)
        return {b"ETag": b'"%d-%b%b"' % (version.revision, version.tag.encode(), page), **self._headers}


def _body(texts: Sequence[bytes]) -> bytes:
    text = b"".join(texts)
    return b"".join([OPENING, text.removeprefix(COMMA), CLOSING]) if text else EMPTY
