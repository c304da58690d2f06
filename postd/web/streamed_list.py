"""Responses with a long list: pieces of encoded posts, sent one after the other at the pace of the client."""

from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from hashlib import blake2b

from twisted.internet.threads import deferToThread

from postd.caching import SingleFlight
from postd.http.interface import Request
from postd.http.responses import JSON, Response, StreamedResponse, make_streamed_response
from postd.protocol.gzip import HEADER, TRAILER_BYTES, Part, Stream, make_part
from postd.web.compression import GZIP, INLINE_MAX_BYTES, gzip_etag, not_modified_if_current, wants_gzip
from postd.web.encoded_piece import COMMA, Piece, compress_text
from postd.web.encoded_posts import RETAINED_MAX_BYTES, SNAPSHOT_POSTS, EncodedPosts

OPENING, CLOSING, EMPTY = b"[", b"\n]\n", b"[]\n"

_GZIPPED = {text: make_part(text) for text in (OPENING, COMMA, CLOSING, EMPTY)}


def stream_list(request: Request, pieces: AsyncGenerator[Piece], headers: Mapping[bytes, bytes]) -> StreamedResponse:
    """Return the response with a list whose end is not known yet, without `ETag` and length.

    `headers` are those of the list as a snapshot.
    """
    gzipped = wants_gzip(request)
    sent = {**headers, **GZIP} if gzipped else dict(headers)
    del sent[b"ETag"]
    return make_streamed_response(JSON, _generate_gzip(pieces) if gzipped else _generate(pieces), sent)


class StreamedSnapshot:
    """The responses with a long list at one version: plain, gzip and 304.

    While slow clients retain too much of earlier versions, a list of more than `SNAPSHOT_POSTS` is streamed instead,
    without a snapshot.

    Args:
        pieces: the posts.
        headers: those of all responses, `Vary` and a strong `ETag` included; the compressed representation gets another
            tag.
        posts: all posts.
        after: the ids of the list are larger.
    """

    def __init__(
        self, pieces: Sequence[Piece], headers: Mapping[bytes, bytes], posts: EncodedPosts, *, after: int
    ) -> None:
        self._pieces = pieces
        self._headers = headers
        self._posts, self._after = posts, after
        self._may_be_streamed = sum(piece.count for piece in pieces) > SNAPSHOT_POSTS
        self._length = sum(piece.length for piece in pieces) + len(CLOSING)  # OPENING takes the place of a comma
        self._compressing: SingleFlight[None, None] = SingleFlight()

    async def respond(self, request: Request) -> Response | StreamedResponse:
        """Return the response to GET or HEAD.

        Raises:
            Problem: 412, by `If-Match`.
        """
        not_modified = not_modified_if_current(request, self._headers)
        if not_modified is not None:
            return not_modified
        if self._may_be_streamed and self._posts.retained_bytes > RETAINED_MAX_BYTES:
            return stream_list(request, self._posts.stream(self._after), self._headers)
        if not wants_gzip(request):
            return make_streamed_response(JSON, _generate(_each(self._pieces)), self._headers, length=self._length)
        if any(piece.part is None for piece in self._pieces):
            await self._compressing.run(None, self._compress)
        parts = [piece.part for piece in self._pieces if piece.part is not None]
        between = (len(parts) - 1) * len(_GZIPPED[COMMA].deflated)
        ends = len(HEADER) + len(_GZIPPED[OPENING].deflated) + len(_GZIPPED[CLOSING].deflated) + TRAILER_BYTES
        # Another process may have other pieces of the same list.
        lengths = b",".join([b"%d:%d" % (part.length, len(part.deflated)) for part in parts])
        etag = gzip_etag(self._headers[b"ETag"], blake2b(lengths, digest_size=6).hexdigest().encode())
        headers = {**self._headers, **GZIP, b"ETag": etag}
        length = ends + between + sum(len(part.deflated) for part in parts)
        return make_streamed_response(JSON, _generate_gzip(_each(self._pieces)), headers, length=length)

    async def _compress(self) -> None:
        missing = [piece for piece in self._pieces if piece.part is None]
        texts = [piece.text for piece in missing]
        short = sum(map(len, texts)) <= INLINE_MAX_BYTES
        parts = _make_parts(texts) if short else await deferToThread(_make_parts, texts)
        for piece, part in zip(missing, parts, strict=True):
            piece.keep_part(part)


def _make_parts(texts: Sequence[bytes]) -> list[Part]:
    return [compress_text(text) for text in texts]


async def _each(pieces: Sequence[Piece]) -> AsyncGenerator[Piece]:
    for piece in pieces:
        yield piece


async def _generate(pieces: AsyncIterable[Piece]) -> AsyncGenerator[bytes]:
    is_first = True
    async for piece in pieces:
        if piece.count:
            # The others are not copied.
            yield OPENING + piece.text.removeprefix(COMMA) if is_first else piece.text
            is_first = False
    yield EMPTY if is_first else CLOSING


async def _generate_gzip(pieces: AsyncIterable[Piece]) -> AsyncGenerator[bytes]:
    stream, before = Stream(), OPENING
    begun = HEADER
    async for piece in pieces:
        if piece.count:
            if piece.part is None:
                piece.keep_part(compress_text(piece.text))
            assert piece.part is not None
            yield begun + stream.add(_GZIPPED[before]) + stream.add(piece.part)
            begun, before = b"", COMMA
    yield begun + stream.add(_GZIPPED[CLOSING if before == COMMA else EMPTY]) + stream.end()
