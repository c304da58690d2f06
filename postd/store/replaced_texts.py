"""The texts that posts had until they were replaced or deleted, with their details, in memory, for listeners.

An SQLite file loses a text with the commit that replaces or deletes it. A process that polls the change log a moment
later finds the text here: workers share the memory.
"""

import mmap
import os
import struct
from zlib import crc32

import msgspec

from postd.model import POST_MAX_CHARS, PostDetails

TEXTS_MAX = 1024
"""How many texts are remembered: the texts that the latest changes have replaced or deleted."""

_HEADER = struct.Struct("=Q8sIH")
"""Revision and tag of the change that replaced or deleted the text, and the checksum and the length of the post."""

AUTHOR_MAX_BYTES = 1024
"""A text whose author has a longer name is not remembered."""

_NUMBERS_MAX_BYTES = 48
_PLACE_BYTES = _HEADER.size + 4 * POST_MAX_CHARS + AUTHOR_MAX_BYTES + _NUMBERS_MAX_BYTES
_BYTES = TEXTS_MAX * _PLACE_BYTES


class ReplacedTexts:
    """Texts, by the changes that replaced or deleted them.

    Only the process that has the write lock of the database writes. A text that is read while it is written has a wrong
    checksum, and counts as unknown.

    Args:
        descriptor: of memory from `make_shared_memory`, for workers; without it, the process has memory of its own.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._memory = mmap.mmap(-1 if descriptor is None else descriptor, _BYTES)

    def add(self, revision: int, tag: bytes, post: PostDetails) -> None:
        """Remember a post as it was before a change replaced or deleted its text."""
        encoded = msgspec.msgpack.encode(post)
        place = revision % TEXTS_MAX * _PLACE_BYTES
        start = place + _HEADER.size
        if start + len(encoded) <= place + _PLACE_BYTES:
            self._memory[start : start + len(encoded)] = encoded
            _HEADER.pack_into(self._memory, place, revision, tag, crc32(encoded), len(encoded))

    def get(self, revision: int, tag: bytes) -> PostDetails | None:
        """Return the post as it was before a change replaced or deleted its text, None if that is not known."""
        place = revision % TEXTS_MAX * _PLACE_BYTES
        start = place + _HEADER.size
        *change, checksum, length = _HEADER.unpack_from(self._memory, place)
        encoded = self._memory[start : start + length]
        is_known = change == [revision, tag] and crc32(encoded) == checksum
        return msgspec.msgpack.decode(encoded, type=PostDetails) if is_known else None


def make_shared_memory() -> int:
    """Return the descriptor of memory for `ReplacedTexts`, which other processes may inherit."""
    descriptor = os.memfd_create("postd-replaced-texts")
    os.ftruncate(descriptor, _BYTES)
    return descriptor
