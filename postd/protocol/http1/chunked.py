"""The chunked transfer coding (RFC 9112 §7.1)."""

import re
from collections.abc import Callable

from postd.protocol.http1.syntax import (
    FIELDS_MAX,
    HEAD_MAX_BYTES,
    CanonicalName,
    HttpSyntaxError,
    check_partial_text,
    check_text,
    decode_fields,
)

EXTENSIONS_MAX_BYTES = 4 * 1024
"""The most bytes of chunk extensions in one body; they are ignored."""

SMALL_CHUNKS_MAX, SMALL_CHUNK_BYTES = 1024, 16
"""How many chunks a body may have: some, and one more for each 16 bytes. Each costs as much time as a kilobyte."""

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;.*)?", re.DOTALL)
_CHUNK_LINE_MAX_BYTES = 16 + EXTENSIONS_MAX_BYTES
_NOT_IN_TRAILERS = frozenset({b"Content-Length", b"Transfer-Encoding", b"Host"})


class ChunkedDecoder:
    """Decodes a chunked body as it arrives. Trailers are checked and dropped.

    Attributes:
        finished: whether the end of the body has arrived.
    """

    def __init__(self, max_bytes: int, canonical_name: CanonicalName) -> None:
        self._max_bytes = max_bytes
        self._canonical_name = canonical_name
        self._received = self._chunks = 0
        self._extensions_room = EXTENSIONS_MAX_BYTES
        self._trailers = self._trailers_bytes = 0
        self._buffer = b""
        self._checked = 0  # bytes of an incomplete line
        self._chunk_left = 0
        self._next: Callable[[int, list[bytes]], int] = self._take_size
        self.finished = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces of the body that the bytes complete.

        Raises:
            HttpSyntaxError: 400 if they are malformed, 413 if the body is over the limit, 431 if its trailers are.
        """
        self._buffer += data
        pieces: list[bytes] = []
        position = 0
        while not self.finished:
            after = self._next(position, pieces)
            if after == position:
                break
            position = after
        self._buffer = self._buffer[position:]
        return pieces

    @property
    def unused_data(self) -> bytes:
        """The bytes after the body, once it is finished."""
        return self._buffer

    # Each method below consumes bytes from a position on and returns the position after them: the same if more bytes
    # must arrive first.

    def _take_size(self, position: int, _pieces: list[bytes]) -> int:
        line, after = self._line(position)
        if len(line) > _CHUNK_LINE_MAX_BYTES:
            raise HttpSyntaxError(400, "The extension of a chunk is too long.")
        if after == position:
            return position
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise HttpSyntaxError(400, "A chunk must begin with its size, in hexadecimal digits.")
        self._extensions_room -= len(line) - len(match[1])
        if self._extensions_room < 0:
            raise HttpSyntaxError(400, "The extensions of the chunks are too long.")
        self._chunk_left = int(match[1], 16)
        self._chunks += 1
        self._received += self._chunk_left
        if self._received > self._max_bytes:
            raise body_too_large(self._max_bytes)
        if self._chunks > SMALL_CHUNKS_MAX + self._received // SMALL_CHUNK_BYTES:
            raise HttpSyntaxError(400, "The body has too many small chunks.")
        self._next = self._take_data if self._chunk_left else self._take_trailer
        return after

    def _take_data(self, position: int, pieces: list[bytes]) -> int:
        piece = self._buffer[position : position + self._chunk_left]
        if piece:
            pieces.append(piece)
            self._chunk_left -= len(piece)
        if not self._chunk_left:
            self._next = self._take_data_end
        return position + len(piece)

    def _take_data_end(self, position: int, _pieces: list[bytes]) -> int:
        end = self._buffer[position : position + 2]
        if not b"\r\n".startswith(end):
            raise HttpSyntaxError(400, "A chunk does not have the size that it declares.")
        if len(end) < len(b"\r\n"):
            return position
        self._next = self._take_size
        return position + 2

    def _take_trailer(self, position: int, _pieces: list[bytes]) -> int:
        line, after = self._line(position)
        if self._trailers_bytes + len(line) > HEAD_MAX_BYTES or self._trailers > FIELDS_MAX:
            raise HttpSyntaxError(431, "The trailers of the request are too large.")
        if after == position:
            return position
        if not line:
            self.finished = True
            return after
        if not _NOT_IN_TRAILERS.isdisjoint(decode_fields([line], self._canonical_name)):
            raise HttpSyntaxError(400, "Content-Length, Transfer-Encoding and Host are not allowed as trailers.")
        self._trailers += 1
        self._trailers_bytes += len(line)
        return after

    def _line(self, position: int) -> tuple[bytes, int]:
        """Return the line at a position and where the next one begins: the same position if the line is incomplete."""
        begin = position + self._checked
        end = self._buffer.find(b"\r\n", begin)
        if end >= 0:
            check_text(self._buffer[begin:end], 0)
            self._checked = 0
            return self._buffer[position:end], end + 2
        check_partial_text(self._buffer[begin:])
        line = self._buffer[position:]
        self._checked = len(line) - line.endswith(b"\r")
        return line, position


def body_too_large(max_bytes: int) -> HttpSyntaxError:
    """Return the error for a body over the limit: 413."""
    return HttpSyntaxError(413, f"The body has more than {max_bytes} bytes.")
