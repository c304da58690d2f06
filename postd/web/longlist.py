"""The list of all posts when they are more than are read at one moment: sent page by page, kept if nothing changes."""

import time
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

import orjson
from msgspec import Struct

from postd.model import Version
from postd.store.interface import PostStore
from postd.web.answers import JSON, Answer, Stream, make_not_modified, make_stream
from postd.web.conditional import is_current

STREAMED_PAGE = 512
"""Posts that a streamed list holds in memory at a time: about what a socket's buffer takes."""

KEPT_MAX_BYTES = 16 * 1024 * 1024
"""How much is kept: compressed, a list of some 300,000 posts of 60 characters."""

KEEP_WITHIN_S = 10
"""How long whoever keeps a list may be at it before another who is sent it does so."""

_COMPRESSION = 1  # the quickest; pieces take a third of the time to get back that they took to make


class _Kept(Struct, frozen=True):
    """A list that was sent while the posts were at one version: its pieces, compressed, and their length before."""

    version: Version
    pieces: list[bytes]
    length: int


class LongList:
    """Answers with all posts.

    Each page is a snapshot of its own (none is held for a slow client), so that the whole has neither `ETag` nor
    length. An id is in it at most once, and the order holds. If nothing has changed meanwhile, it was one snapshot all
    the same. It is kept when it is asked for again; from then on it has both, and costs little.

    Args:
        store: keeps the posts.
        headers_at: returns the headers of the list at a version, `ETag` among them.
    """

    def __init__(self, store: PostStore, headers_at: Callable[[Version], Mapping[bytes, bytes]]) -> None:
        self._store = store
        self._headers_at = headers_at
        self._asked_at: Version | None = None
        self._kept: _Kept | None = None
        self._keeper: object | None = None
        self._keeping_since_s = 0.0

    def answer(self, request: Any, version: Version) -> Answer | Stream:
        """Answer with all of it, at a version that it may have moved on from."""
        headers = self._headers_at(version)
        if is_current(request, headers[b"ETag"]):
            return make_not_modified(headers)
        kept = self._kept
        if kept is not None and kept.version == version:
            return make_stream(JSON, _unpack(kept.pieces), headers, length=kept.length)
        # Of those who are sent it at the same time one keeps it: what is kept for slow readers is bounded. Who takes
        # long has to leave it to another.
        taken = self._keeper is not None and time.monotonic() - self._keeping_since_s < KEEP_WITHIN_S
        keeps = version == self._asked_at and not taken
        self._asked_at = version
        untagged = {name: value for name, value in headers.items() if name != b"ETag"}
        return make_stream(JSON, self._keep(version) if keeps else self.read(), untagged)

    async def read(self, after: int = 0) -> AsyncGenerator[bytes]:
        """Yield the pieces of a list of the posts with ids larger than `after`."""
        async for _, piece in self._read_pages(after):
            yield piece

    async def _read_pages(self, after: int = 0) -> AsyncGenerator[tuple[Version, bytes]]:
        opening, more = b"[\n", True
        while more:
            page = await self._store.list_posts(after=after, limit=STREAMED_PAGE)
            if page.posts:
                yield page.version, opening + encode_posts(page.posts)
                opening, after = b",\n", page.posts[-1][0]
            more = page.more
        yield page.version, b"\n]\n" if opening == b",\n" else b"[]\n"

    async def _keep(self, version: Version) -> AsyncGenerator[bytes]:
        self._keeper = keeper = object()
        self._keeping_since_s = time.monotonic()
        pieces: list[bytes] = []
        length = size = 0
        try:
            async for page_version, piece in self._read_pages():
                if keeper is self._keeper:
                    pieces.append(zlib.compress(piece, _COMPRESSION))
                    length += len(piece)
                    size += len(pieces[-1])
                    if page_version != version or size > KEPT_MAX_BYTES:
                        self._keeper = None
                else:
                    pieces.clear()
                yield piece
            if keeper is self._keeper:
                self._kept = _Kept(version, pieces, length)
        finally:
            if keeper is self._keeper:
                self._keeper = None


async def _unpack(pieces: Iterable[bytes]) -> AsyncGenerator[bytes]:
    for piece in pieces:
        yield zlib.decompress(piece)


def encode_posts(posts: Iterable[tuple[int, str]]) -> bytes:
    """Encode posts as they stand between the brackets of a list (spec: "JSON array (indented by two spaces)")."""
    dumps = orjson.dumps
    return b",\n".join([b'  {\n    "id": %d,\n    "post": %b\n  }' % (post_id, dumps(text)) for post_id, text in posts])
