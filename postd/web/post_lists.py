"""The lists of posts, whole and by page, which are kept with the version at which they were read (reference: Lists)."""

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

from msgspec import Struct

from postd.caching import SingleFlight
from postd.http.interface import Request
from postd.http.responses import JSON, Response, StreamedResponse
from postd.model import Version
from postd.store.interface import PostStore
from postd.web.compression import VARY, NegotiatedText, not_modified_if_current
from postd.web.streamed_list import StreamedList, encode_posts

SNAPSHOT_MAX = 10_000
"""Limit on a list that is read as one snapshot: some 6 ms of the reactor's time, once for each version. A longer one is
streamed page by page."""

KEPT_MAX_BYTES = 16 * 1024 * 1024
"""Limit on the kept lists but the whole one, uncompressed, in each process: some 4,000 pages of 20 posts of 60
characters. Compressed ones take at most as much again."""

KEPT_OVERHEAD_BYTES = 2048
"""What a kept list takes beside its body: responses, fields, entity tags."""

Span = tuple[int, int | None]
"""The posts with ids larger than the first number, at most as many as the second one; None: all."""

WHOLE: Span = (0, None)


class _Snapshot(Struct, frozen=True):
    """A list at a version; `text` is None if it has no limit and is longer than `SNAPSHOT_MAX`."""

    version: Version
    text: NegotiatedText | None
    size: int


class PostLists:
    """Responses with lists of posts, by span.

    The first request for a span at a version reads it, and later ones are answered with the responses made then. The
    whole list is kept until it is read anew; of the others the least recently requested are dropped first
    (`KEPT_MAX_BYTES`). A list that is too long for a snapshot is streamed (`StreamedList`). `caching` are the fields
    for caches of all responses.
    """

    def __init__(self, store: PostStore, caching: Mapping[bytes, bytes]) -> None:
        self._store = store
        self._headers = {**caching, **VARY}
        self._kept: OrderedDict[Span, _Snapshot] = OrderedDict()
        self._kept_bytes = 0
        self._reading: SingleFlight[tuple[Version, Span], _Snapshot] = SingleFlight()
        self._streamed = StreamedList(store)

    async def respond(self, request: Request, span: Span) -> Response | StreamedResponse:
        """Return the response to GET or HEAD.

        Raises:
            Problem: 412, by `If-Match`.
        """
        version = await self._store.version()
        snapshot = self._kept.get(span)
        if snapshot is None or snapshot.version != version:
            not_modified = not_modified_if_current(request, self._headers_at(version, span))
            if not_modified is not None:
                return not_modified
            if span[1] is None:  # a long one: what another request began to read at this version is recent enough
                snapshot = await self._reading.run((version, span), partial(self._read, span))
            else:
                snapshot = await self._read(span)
        else:
            self._kept.move_to_end(span)
        if snapshot.text is not None:
            return await snapshot.text.respond(request)
        headers = self._headers_at(version, span)
        not_modified = not_modified_if_current(request, headers)
        return not_modified or self._streamed.respond(request, version, headers, after=span[0])

    async def _read(self, span: Span) -> _Snapshot:
        after, limit = span
        page = await self._store.list_posts(after=after, limit=SNAPSHOT_MAX if limit is None else limit)
        # It may be newer than the version read before it.
        if limit is None and page.more:
            snapshot = _Snapshot(page.version, None, KEPT_OVERHEAD_BYTES)
        else:
            link = {}
            if limit is not None and page.more:
                link[b"Link"] = b'</post?limit=%d&after=%d>; rel="next"' % (limit, page.posts[-1][0])
            body = b"[\n%b\n]\n" % encode_posts(page.posts) if page.posts else b"[]\n"
            text = NegotiatedText(JSON, body, self._headers_at(page.version, span), link)
            snapshot = _Snapshot(page.version, text, KEPT_OVERHEAD_BYTES + len(body))
        self._keep(span, snapshot)
        return snapshot

    def _keep(self, span: Span, snapshot: _Snapshot) -> None:
        replaced = self._kept.pop(span, None)
        self._kept[span] = snapshot
        if span == WHOLE:
            return
        self._kept_bytes += snapshot.size - (replaced.size if replaced is not None else 0)
        while self._kept_bytes > KEPT_MAX_BYTES:
            oldest = next(kept for kept in self._kept if kept != WHOLE)
            self._kept_bytes -= self._kept.pop(oldest).size

    def _headers_at(self, version: Version, span: Span) -> dict[bytes, bytes]:
        page = b"" if span == WHOLE else b"-%d-%d" % (span[0], span[1] or 0)
        return {b"ETag": b'"%d-%b%b"' % (version.revision, version.tag.encode(), page), **self._headers}
