"""Find texts of deleted posts, and deleted ID tokens, in the unused space of an SQLite file.

With `secure_delete` SQLite overwrites what it deletes. But where it moves rows from a page to other pages, copies may
stay behind in the page, and are not overwritten when the rows are deleted: with posts of all lengths, one or two of a
thousand texts stay. Other programs may also delete without `secure_delete`. Only VACUUM writes the file anew.

The file is read as it is, without a lock and without the write-ahead log. A page that is read while it is written may
give a wrong result, until the next time.
"""

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

_INTERIOR, _LEAF = 5, 13
"""Types of the pages of a table (https://sqlite.org/fileformat2.html, "B-tree Pages")."""

_search_text = re.compile(rb"[^\0]{5}").search
"""Shorter are the links between freed blocks, which stay, too."""


def find_texts(descriptor: int, roots: Iterable[int]) -> Iterator[bool]:
    """Yield for each free page, and each page of some tables, whether there is a text in its unused space.

    Args:
        descriptor: of the file.
        roots: the first page of each table.
    """
    header = os.pread(descriptor, 100, 0)
    if len(header) < 100:
        return
    (page_bytes,), (first_free,) = struct.unpack_from(">H", header, 16), struct.unpack_from(">I", header, 32)
    page_bytes = 65536 if page_bytes == 1 else page_bytes  # it has 16 bits

    def read(number: int) -> bytes:
        return os.pread(descriptor, page_bytes, (number - 1) * page_bytes)

    spaces = chain(_free_pages(read, first_free), _table_pages(read, roots, page_bytes))
    try:
        # Not more: a page that is read while it is written could lead in a circle.
        for space in islice(spaces, os.fstat(descriptor).st_size // page_bytes):
            yield _search_text(space) is not None
    except struct.error:
        pass


def _free_pages(read: Callable[[int], bytes], first: int) -> Iterator[bytes]:
    """Yield the unused space of the free pages: lists of their numbers, and the other free pages."""
    while first:
        page = read(first)
        first, count = struct.unpack_from(">II", page)
        yield page[8 + 4 * count :]
        yield from map(read, struct.unpack_from(f">{count}I", page, 8))


def _table_pages(read: Callable[[int], bytes], roots: Iterable[int], page_bytes: int) -> Iterator[bytes]:
    """Yield the unused space of the pages of some tables that have rows."""
    # The places of rows that the page had are no text. The first byte of a place is at most this.
    match_places = re.compile(rb"(?:[\0-\x%02x].)*" % (page_bytes - 1 >> 8), re.DOTALL).match
    numbers = [*roots]
    while numbers:
        page = read(numbers.pop())
        kind, free_block, cells, content = struct.unpack_from(">BHHH", page)
        if kind == _INTERIOR:
            numbers += struct.unpack_from(">I", page, 8)
            for cell in struct.unpack_from(f">{cells}H", page, 12):
                numbers += struct.unpack_from(">I", page, cell)
        elif kind == _LEAF:
            content = content or page_bytes
            places = match_places(page, 8 + 2 * cells, content)
            spaces = [page[places.end() if places else content : content]]
            while free_block:
                following, length = struct.unpack_from(">HH", page, free_block)
                spaces.append(page[free_block + 4 : free_block + length])
                free_block = following if following > free_block else 0
            yield b"\0".join(spaces)
