"""Posts as the elements of a JSON list, encoded once, in pieces of some hundred (spec: "JSON array (indented by two
spaces)").
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import orjson

from postd.protocol.gzip import Part, inflate, make_part

COMMA = b","
"""Before each post of a piece; the first post of a list has a bracket in its place."""

_ID = b'\n  {\n    "id": '  # occurs nowhere else in a list: JSON has no line breaks in strings
_START = COMMA + _ID

PIECE_OVERHEAD_BYTES = 512
"""The memory of a piece beside its posts, in bytes."""


def encode_posts(posts: Iterable[tuple[int, str]]) -> list[bytes]:
    """Encode posts, for `join_posts`."""
    dumps = orjson.dumps
    return [b'%d,\n    "post": %b\n  }' % (post_id, dumps(text)) for post_id, text in posts]


def join_posts(encoded: Sequence[bytes]) -> bytes:
    """Return encoded posts as the elements of a list, each with a comma before it."""
    return _START.join([b"", *encoded])


def last_id(encoded: Sequence[bytes]) -> int:
    """Return the id of the last of some encoded posts."""
    return _id_of(encoded[-1])


def posts_up_to(encoded: Sequence[bytes], high: int) -> Sequence[bytes]:
    """Return the first of some encoded posts, with ids of at most `high`."""
    return encoded[: bisect_right(encoded, high, key=_id_of)]


def last_id_in(text: bytes) -> int:
    """Return the id of the last post in a text with some."""
    return _id_of(text, text.rindex(_ID) + len(_ID))


def compress_text(text: bytes) -> Part:
    """Return the text of a piece compressed, without its first comma."""
    return make_part(text.removeprefix(COMMA))


class Held:
    """Counts the bytes of all pieces in memory, including pieces that only a response refers to."""

    def __init__(self) -> None:
        self.bytes = 0


class Piece:
    """All posts with ids larger than `low`, at most `high`, encoded as of one version. They never change.

    Args:
        low, high: the range of ids.
        text: the posts, as `join_posts` returns them.
        count: how many posts they are.
        held: counts the piece.

    Attributes:
        length: the length of the text.
        part: the text compressed, without its first comma; None if that was not needed yet.
        held_bytes: the memory of the piece in all its forms, in bytes.
        plain_bytes: the memory of the uncompressed form, in bytes; 0 if only the compressed one is kept.
    """

    __slots__ = ("_held", "_starts", "_text", "count", "held_bytes", "high", "length", "low", "part", "plain_bytes")

    def __init__(self, low: int, high: int, text: bytes, count: int, held: Held) -> None:
        self.low, self.high = low, high
        self.count = count
        self.length = len(text)
        self.part: Part | None = None
        self._text: bytes | None = text
        self._starts: array[int] | None = None  # of the posts in the text, and its end; when they are needed
        self._held, self.held_bytes = held, 0
        self.plain_bytes = PIECE_OVERHEAD_BYTES + self.length
        self._hold(self.plain_bytes)

    def __del__(self) -> None:
        self._hold(-self.held_bytes)

    def _hold(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self._held.bytes += more_bytes

    @property
    def text(self) -> bytes:
        """The posts as elements of a list, each with a comma before it."""
        if self._text is not None:
            return self._text
        assert self.part is not None
        return COMMA + inflate(self.part.deflated) if self.count else b""

    def keep_part(self, part: Part) -> None:
        """Keep the compressed form as well."""
        if self.part is None:
            self.part = part
            self._hold(len(part.deflated))

    def compress(self) -> None:
        """Keep the compressed form alone: a third of the other."""
        self.keep_part(compress_text(self.text))
        if self._text is not None:
            self._text, self.plain_bytes = None, 0
            self._hold(-self.length)

    def cut(self, after: int, limit: int) -> tuple["Piece", bool]:
        """Return a piece with at most `limit` posts whose ids are larger than `after`, and whether more follow here.

        It is this piece itself if that has no other posts.
        """
        if after <= self.low and limit >= self.count:
            return self, False
        text, starts = self.text, self._starts
        if starts is None:
            lengths = [len(post) + len(_START) for post in text.split(_START)[1:]]
            starts = array("I", accumulate(lengths, initial=0))
            if self._text is not None:
                self._starts = starts
                self._hold(starts.itemsize * len(starts))
        begin = bisect_right(starts, after, hi=self.count, key=lambda start: _id_of(text, start + len(_START)))
        end = min(begin + limit, self.count)
        cut = Piece(max(after, self.low), self.high, text[starts[begin] : starts[end]], end - begin, self._held)
        return cut, end < self.count

    def halves(self) -> list["Piece"]:
        """Return two pieces with the posts of this one, which has several."""
        first, _ = self.cut(self.low, self.count // 2)
        return [first, self.cut(last_id_in(first.text), self.count)[0]]

    def posts(self) -> list[bytes]:
        """Return the encoded posts."""
        return self.text.split(_START)[1:]

    def changed(self, changes: Mapping[int, bytes | None]) -> list[bytes]:
        """Return the encoded posts after changes: to the id of a post the new one, None for a deleted post."""
        posts = self.posts()
        for post_id in sorted(changes):
            post = changes[post_id]
            place = bisect_left(posts, post_id, key=_id_of)
            there = place < len(posts) and _id_of(posts[place]) == post_id
            posts[place : place + there] = [] if post is None else [post]
        return posts

    def spliced(self, changes: Mapping[int, bytes | None]) -> tuple[bytes, int] | None:
        """Return text and count after changes that only replace posts, or add posts at the end; else None.

        For a few changes that is cheaper than `changed`.
        """
        text, added = self.text, list[bytes]()
        last = last_id_in(text) if self.count else self.low
        for post_id, post in sorted(changes.items()):
            if post is None:
                return None
            if post_id > last:
                added.append(post)
                continue
            start = text.find(b"%b%d," % (_START, post_id))
            if start == -1:
                return None
            end = text.find(_START, start + len(_START))
            rest = text[end:] if end != -1 else b""
            text = b"".join([text[:start], join_posts([post]), rest])
        return text + join_posts(added), self.count + len(added)


def _id_of(encoded: bytes, start: int = 0) -> int:
    return int(encoded[start : encoded.index(b",", start)])
