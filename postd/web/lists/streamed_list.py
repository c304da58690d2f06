"""Responses with a long list: pieces of encoded posts, sent one after the other at the pace of the client."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

from postd.errors import ServerBusyError
from postd.fair_queue import FairTurns
from postd.http.interface import Request
from postd.http.responses import JSON, Memory, Parts, Response, StreamedResponse, make_streamed_response
from postd.http.views import WRITE_MAX_BYTES
from postd.protocol.gzip import HEADER, Part, Stream, make_part
from postd.web.lists.compression import GZIP, gzip_etag, not_modified_if_current, wants_gzip
from postd.web.lists.encoded_piece import COMMA, Piece, compress_text
from postd.web.lists.encoded_posts import RETAINED_MAX_BYTES, SNAPSHOT_POSTS, EncodedPosts

OPENING, CLOSING, EMPTY = b"[", b"\n]\n", b"[]\n"

PORTION_BYTES = 256 * 1024
"""Minimum size of a portion of a snapshot. With smaller ones, system calls and turns of the reactor take most of the
time; larger ones delay other requests. A slow client costs references to shared pieces, not a copy."""

_GZIPPED = {text: make_part(text) for text in (OPENING, COMMA, CLOSING, EMPTY)}


def stream_list(
    request: Request, posts: EncodedPosts, after: int, headers: Mapping[bytes, bytes], work: FairTurns
) -> StreamedResponse:
    """Return the response with the posts after an id, whose end is not known yet, without `ETag` and length.

    `headers` are the headers of the list as a snapshot.
    """
    client, gzipped = request.client_network, wants_gzip(request)
    sent = {**headers, **GZIP} if gzipped else dict(headers)
    del sent[b"ETag"]
    pieces = posts.stream(after, work=work, client=client)
    body = _generate_gzip(pieces, work, client) if gzipped else _generate(pieces)
    return make_streamed_response(JSON, body, sent, memory=(posts.unkept_piece_max_bytes, None, 0))


_Gzipped = tuple[Sequence[bytes], Mapping[bytes, bytes], int]
"""The parts of a compressed list, its header fields, and its length."""


class StreamedSnapshot:
    """The responses with a long list at one version: plain, gzip and 304.

    While slow clients retain too much of earlier versions, a list of more than `SNAPSHOT_POSTS` is streamed instead,
    without a snapshot, and the memory of a shorter one is counted in full.

    Args:
        pieces: the posts, none of them empty.
        headers: the headers of all responses, `Vary` and a strong `ETag` included; the compressed representation gets
            another tag.
        more: the headers of 200 responses alone.
        posts: all posts.
        after: the ids of the list are larger.
        own: the pieces that only this list has.
        work: compresses them.
    """

    def __init__(  # noqa: PLR0913 - three by name
        self,
        pieces: Sequence[Piece],
        headers: Mapping[bytes, bytes],
        more: Mapping[bytes, bytes],
        posts: EncodedPosts,
        *,
        after: int,
        own: Sequence[Piece],
        work: FairTurns,
    ) -> None:
        self._pieces = pieces
        self._headers, self._more = headers, more
        self._posts, self._after, self._work = posts, after, work
        self._may_be_streamed = sum(piece.count for piece in pieces) > SNAPSHOT_POSTS
        # It keeps its own pieces in memory, and after the next change one more piece.
        owned = {id(piece) for piece in own}
        largest_bytes = max((piece.length for piece in pieces if id(piece) not in owned), default=0)
        self._held_bytes = sum(piece.length for piece in own) + largest_bytes
        self._all_bytes = sum(piece.length for piece in pieces)  # it keeps after many changes
        # Pieces that are kept compressed are inflated for each client.
        self._inflated_bytes = max((piece.length for piece in pieces if not piece.plain_bytes), default=0)
        self._length = self._all_bytes + len(CLOSING)  # OPENING takes the place of a comma
        self._gzipped: _Gzipped | None = None  # until that is needed
        self._portions: dict[bool, Sequence[Parts]] = {}  # plain and compressed

    async def respond(self, request: Request) -> Response | StreamedResponse:
        """Return the response to GET or HEAD.

        Raises:
            Problem: 412, by `If-Match`.
        """
        not_modified = not_modified_if_current(request, self._headers)
        if not_modified is not None:
            return not_modified
        if self._may_be_streamed and self._retained_too_much():
            return stream_list(request, self._posts, self._after, self._headers, self._work)
        gzipped = self._gzipped or await self._compress(request.client_network) if wants_gzip(request) else None
        if gzipped is None:
            body = self._send(_plain(self._pieces), gzipped=False, copied=self._inflated_bytes > 0)
            memory = self._memory(self._inflated_bytes)
            return make_streamed_response(
                JSON, body, {**self._headers, **self._more}, length=self._length, memory=memory
            )
        parts, headers, length = gzipped
        body = self._send(parts, gzipped=True, copied=False)
        return make_streamed_response(JSON, body, headers, length=length, memory=self._memory(0))

    def _retained_too_much(self) -> bool:
        return self._posts.retained_bytes > RETAINED_MAX_BYTES

    def _memory(self, own_bytes: int) -> Memory:
        """Return the memory of a response; `own_bytes` are not shared with others."""
        if self._retained_too_much():
            # An object of its own: the two counts of this list must not be taken for the same memory.
            return own_bytes, self._pieces, self._all_bytes
        return own_bytes, self, self._held_bytes

    async def _send(self, parts: Iterable[bytes | memoryview], *, gzipped: bool, copied: bool) -> AsyncGenerator[Parts]:
        """Yield the parts in portions; small ones if `copied`: each client has a copy, because of inflating.

        Other portions are made once for all clients. As a method it keeps the pieces alive while they are sent, so that
        they are counted.
        """
        portions: Iterable[Parts] | None = self._portions.get(gzipped)
        if copied:
            portions = _divide(parts, WRITE_MAX_BYTES)
        elif portions is None:
            portions = self._portions[gzipped] = [*_divide(parts, PORTION_BYTES)]
        for portion in portions:
            yield portion

    async def _compress(self, client: str) -> _Gzipped | None:
        """Compress the pieces when it is the client's turn; return None if too much work waits for that."""
        try:
            parts = [await _compress_piece(piece, self._work, client) for piece in self._pieces]
        except ServerBusyError:
            return None
        self._gzipped = self._gzipped or self._join(parts)
        return self._gzipped

    def _join(self, parts: Sequence[Part]) -> _Gzipped:
        # Another process may have other pieces of the same list.
        lengths = b",".join([b"%d:%d" % (part.length, len(part.deflated)) for part in parts])
        etag = gzip_etag(self._headers[b"ETag"], blake2b(lengths, digest_size=6).hexdigest().encode())
        gzipped = _gzip(parts)
        return gzipped, {**self._headers, **self._more, **GZIP, b"ETag": etag}, sum(map(len, gzipped))


async def _compress_piece(piece: Piece, work: FairTurns, client: str) -> Part:
    """Return a piece compressed, once for all lists; when it is the client's turn, unless that was done before."""
    if piece.part is None:
        async with work.turn(client):
            if piece.part is None:
                piece.keep_part(compress_text(piece.text))
    assert piece.part is not None
    return piece.part


# Not by `_generate` and `_generate_gzip`: asynchronous generators take ten times as long for a piece.


def _divide(parts: Iterable[bytes | memoryview], least_bytes: int) -> Iterator[Parts]:
    """Yield portions of parts, each of at least so many bytes but the last one."""
    portion, length = list[bytes | memoryview](), 0
    for part in parts:
        portion.append(part)
        length += len(part)
        if length >= least_bytes:
            yield portion
            portion, length = [], 0
    yield portion


def _plain(pieces: Sequence[Piece]) -> Iterator[bytes | memoryview]:
    yield OPENING
    yield memoryview(pieces[0].text)[len(COMMA) :]  # not copied
    for piece in pieces[1:]:
        yield piece.text
    yield CLOSING


def _gzip(parts: Sequence[Part]) -> list[bytes]:
    stream = Stream()
    gzipped, before = [HEADER], OPENING
    for part in parts:
        gzipped += (stream.add(_GZIPPED[before]), stream.add(part))
        before = COMMA
    return [*gzipped, stream.add(_GZIPPED[CLOSING]), stream.end()]


async def _generate(pieces: AsyncIterable[Piece]) -> AsyncGenerator[Parts]:
    begun = False
    async for piece in pieces:
        if piece.count:
            yield [piece.text] if begun else [OPENING, memoryview(piece.text)[len(COMMA) :]]  # not copied
            begun = True
    yield [CLOSING if begun else EMPTY]


async def _generate_gzip(pieces: AsyncIterable[Piece], work: FairTurns, client: str) -> AsyncGenerator[list[bytes]]:
    stream, before = Stream(), OPENING
    begun = HEADER
    async for piece in pieces:
        if piece.count:
            part = await _compress_piece(piece, work, client)
            yield [begun, stream.add(_GZIPPED[before]), stream.add(part)]
            begun, before = b"", COMMA
    yield [begun, stream.add(_GZIPPED[CLOSING if before == COMMA else EMPTY]), stream.end()]
