"""The list of all posts when they are more than are read at one moment: sent page by page, kept if nothing changes."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

import orjson
from msgspec import Struct

from postd.model import Version
from postd.protocol.gzip import HEADER, Parts, inflate
from postd.store.interface import PostStore
from postd.web.compression import GZIP, gzip_tag, not_modified_if_current, takes_gzip
from postd.web.responses import JSON, Response, StreamedResponse, make_streamed_response

STREAMED_PAGE = 512
"""Posts that a streamed list holds in memory at a time: about what a socket's buffer takes."""

KEPT_MAX_BYTES = 16 * 1024 * 1024
"""How much is kept: compressed, a list of some 300,000 posts of 60 characters."""

KEEP_WITHIN_S = 10
"""How long whoever keeps a list may be at it before another who is sent it does so."""


class _Kept(Struct, frozen=True):
    """A list that was sent while the posts were at one version: the parts of its gzip stream, and the text's length."""

    version: Version
    parts: list[bytes]
    end: bytes
    length: int

    @property
    def compressed_length(self) -> int:
        return len(HEADER) + sum(map(len, self.parts)) + len(self.end)


class LongList:
    """Answers with all posts.

    Each page is a snapshot of its own (none is held for a slow client), so that the whole has neither `ETag` nor
    length. An id is in it at most once, and the order holds. If nothing has changed meanwhile, it was one snapshot all
    the same. It is kept when it is asked for again; from then on it has both, and costs little: a client that takes
    gzip is sent what is kept, another one what its parts are inflated to.

    Args:
        store: keeps the posts.
        headers_at: returns the headers of the list at a version, `ETag` among them.
    """

    def __init__(self, store: PostStore, headers_at: Callable[[Version], Mapping[bytes, bytes]]) -> None:
        self._store = store
        self._headers_at = headers_at
        self._asked_at: Version | None = None
        self._kept: _Kept | None = None
        self._keeper: list[bytes] | None = None
        self._keeping_since_s = 0.0

    def answer(self, request: Any, version: Version) -> Response | StreamedResponse:
        """Answer with all of it, at a version that it may have moved on from."""
        headers = self._headers_at(version)
        not_modified = not_modified_if_current(request, headers)
        if not_modified is not None:
            return not_modified
        gzipped = takes_gzip(request)
        kept = self._kept
        if kept is not None and kept.version == version:
            return _answer_kept(kept, headers, gzipped=gzipped)
        # Of those who are sent it at the same time one keeps it: what is kept for slow readers is bounded. Who takes
        # long has to leave it to another.
        taken = self._keeper is not None and time.monotonic() - self._keeping_since_s < KEEP_WITHIN_S
        keeps = version == self._asked_at and not taken
        self._asked_at = version
        untagged = {name: value for name, value in headers.items() if name != b"ETag"}
        pieces = self._keep(version, gzipped=gzipped) if keeps else self._read(0, gzipped=gzipped)
        return _stream(pieces, untagged, gzipped=gzipped)

    def answer_rest(self, request: Any, after: int, headers: Mapping[bytes, bytes]) -> StreamedResponse:
        """Answer with the posts that have ids larger than `after`."""
        gzipped = takes_gzip(request)
        return _stream(self._read(after, gzipped=gzipped), headers, gzipped=gzipped)

    async def _read(self, after: int, *, gzipped: bool) -> AsyncGenerator[bytes]:
        parts = Parts()
        if gzipped:
            yield HEADER
        async for _, piece in self._read_pages(after):
            yield parts.add(piece) if gzipped else piece
        if gzipped:
            yield parts.end()

    async def _read_pages(self, after: int = 0) -> AsyncGenerator[tuple[Version, bytes]]:
        opening, more = b"[\n", True
        while more:
            page = await self._store.list_posts(after=after, limit=STREAMED_PAGE)
            if page.posts:
                yield page.version, opening + encode_posts(page.posts)
                opening, after = b",\n", page.posts[-1][0]
            more = page.more
        yield page.version, b"\n]\n" if opening == b",\n" else b"[]\n"

    async def _keep(self, version: Version, *, gzipped: bool) -> AsyncGenerator[bytes]:
        parts, kept, size = Parts(), list[bytes](), 0
        if self._keeper is not None:
            self._keeper.clear()  # whoever was at it has taken too long, and may not come back for the next page
        self._keeper = kept
        self._keeping_since_s = time.monotonic()
        try:
            if gzipped:
                yield HEADER
            async for page_version, piece in self._read_pages():
                keeps = kept is self._keeper
                part = parts.add(piece) if keeps or gzipped else b""
                if keeps:
                    kept.append(part)
                    size += len(part)
                    if page_version != version or size > KEPT_MAX_BYTES:
                        self._keeper = None
                else:
                    kept.clear()
                yield part if gzipped else piece
            if kept is self._keeper:
                self._kept = _Kept(version, kept, parts.end(), parts.length)
            if gzipped:
                yield parts.end()
        finally:
            if kept is self._keeper:
                self._keeper = None


def _answer_kept(kept: _Kept, headers: Mapping[bytes, bytes], *, gzipped: bool) -> StreamedResponse:
    if not gzipped:
        return make_streamed_response(JSON, _inflate(kept.parts), headers, length=kept.length)
    tagged = {**headers, **GZIP, b"ETag": gzip_tag(headers[b"ETag"])}
    return make_streamed_response(
        JSON, _yield_all([HEADER, *kept.parts, kept.end]), tagged, length=kept.compressed_length
    )


def _stream(pieces: AsyncGenerator[bytes], headers: Mapping[bytes, bytes], *, gzipped: bool) -> StreamedResponse:
    return make_streamed_response(JSON, pieces, {**headers, **GZIP} if gzipped else headers)


async def _inflate(parts: Iterable[bytes]) -> AsyncGenerator[bytes]:
    for part in parts:
        yield inflate(part)


async def _yield_all(pieces: Iterable[bytes]) -> AsyncGenerator[bytes]:
    for piece in pieces:
        yield piece


def encode_posts(posts: Iterable[tuple[int, str]]) -> bytes:
    """Encode posts as they stand between the brackets of a list (spec: "JSON array (indented by two spaces)")."""
    dumps = orjson.dumps
    return b",\n".join([b'  {\n    "id": %d,\n    "post": %b\n  }' % (post_id, dumps(text)) for post_id, text in posts])
