"""The list of all posts when it is too long for one snapshot: streamed page by page, cached while unchanged."""

import time
from collections.abc import AsyncGenerator, Iterable, Mapping

import orjson
from msgspec import Struct

from postd.http.interface import Request
from postd.http.responses import JSON, StreamedResponse, make_streamed_response
from postd.model import Version
from postd.protocol.gzip import HEADER, Parts, inflate
from postd.store.interface import PostStore
from postd.web.compression import GZIP, gzip_etag, wants_gzip

PAGE_POSTS = 512
"""Posts of a streamed list that are in memory at a time: about the size of a socket buffer."""

CACHED_MAX_BYTES = 16 * 1024 * 1024
"""Limit on the compressed size of the cached list: some 300,000 posts of 60 characters."""

RECORDING_MAX_S = 10
"""How long one response may take to fill the cache before another one replaces it."""


class _CachedList(Struct, frozen=True):
    """A whole list that was streamed while the posts stayed at one version.

    Args:
        version: of the posts.
        parts: the gzip stream between `HEADER` and `trailer`, each part inflatable for itself.
        trailer: the end of the gzip stream.
        length: the uncompressed length in bytes.
    """

    version: Version
    parts: list[bytes]
    trailer: bytes
    length: int

    def respond(self, headers: Mapping[bytes, bytes], *, gzipped: bool) -> StreamedResponse:
        if not gzipped:
            return make_streamed_response(JSON, _generate(map(inflate, self.parts)), headers, length=self.length)
        headers = {**headers, **GZIP, b"ETag": gzip_etag(headers[b"ETag"])}
        pieces = [HEADER, *self.parts, self.trailer]
        return make_streamed_response(JSON, _generate(pieces), headers, length=sum(map(len, pieces)))


class StreamedList:
    """Responses with all posts, page by page.

    Each page is a snapshot of its own, because a slow client must not hold one open. So a streamed list has neither
    `ETag` nor length; ids are unique and ascending in it. If the posts did not change meanwhile, the list is a snapshot
    all the same: requested twice, it is recorded, compressed, and later responses come from this cache, with both.
    """

    def __init__(self, store: PostStore) -> None:
        self._store = store
        self._requested_at: Version | None = None
        self._cached: _CachedList | None = None
        self._recording: list[bytes] | None = None
        self._recording_since_s = 0.0

    def respond(
        self, request: Request, version: Version, headers: Mapping[bytes, bytes], *, after: int
    ) -> StreamedResponse:
        """Return the response with the posts whose ids are larger than `after`.

        Args:
            request: whether it accepts gzip matters.
            version: the current one, as far as known.
            headers: of the list at this version, `ETag` included.
            after: 0 for the whole list, which alone is cached.
        """
        gzipped = wants_gzip(request)
        cached = self._cached
        if after == 0 and cached is not None and cached.version == version:
            return cached.respond(headers, gzipped=gzipped)
        records = after == 0 and self._may_record(version)
        pieces = self._record(version, gzipped=gzipped) if records else self._read(after, gzipped=gzipped)
        sent = {**headers, **GZIP} if gzipped else dict(headers)
        del sent[b"ETag"]
        return make_streamed_response(JSON, pieces, sent)

    def _may_record(self, version: Version) -> bool:
        """Return whether the list was requested before at this version, and no other response is being recorded.

        One recording at a time bounds the memory that slow clients cost.
        """
        requested_at, self._requested_at = self._requested_at, version
        busy = self._recording is not None and time.monotonic() - self._recording_since_s < RECORDING_MAX_S
        return version == requested_at and not busy

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
            page = await self._store.list_posts(after=after, limit=PAGE_POSTS)
            if page.posts:
                yield page.version, opening + encode_posts(page.posts)
                opening, after = b",\n", page.posts[-1][0]
            more = page.more
        yield page.version, b"\n]\n" if opening == b",\n" else b"[]\n"

    async def _record(self, version: Version, *, gzipped: bool) -> AsyncGenerator[bytes]:
        parts, recorded, size = Parts(), list[bytes](), 0
        if self._recording is not None:
            self._recording.clear()  # too slow, and may never ask for its next page
        self._recording = recorded
        self._recording_since_s = time.monotonic()
        try:
            if gzipped:
                yield HEADER
            async for page_version, piece in self._read_pages():
                records = recorded is self._recording
                part = parts.add(piece) if records or gzipped else b""
                if records:
                    recorded.append(part)
                    size += len(part)
                    if page_version != version or size > CACHED_MAX_BYTES:
                        self._recording = None
                else:
                    recorded.clear()
                yield part if gzipped else piece
            if recorded is self._recording:
                self._cached = _CachedList(version, recorded, parts.end(), parts.length)
            if gzipped:
                yield parts.end()
        finally:
            if recorded is self._recording:
                self._recording = None


async def _generate(pieces: Iterable[bytes]) -> AsyncGenerator[bytes]:
    for piece in pieces:
        yield piece


def encode_posts(posts: Iterable[tuple[int, str]]) -> bytes:
    """Encode posts as the elements of a list, without its brackets (spec: "JSON array (indented by two spaces)")."""
    dumps = orjson.dumps
    return b",\n".join([b'  {\n    "id": %d,\n    "post": %b\n  }' % (post_id, dumps(text)) for post_id, text in posts])
