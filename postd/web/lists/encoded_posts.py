"""A cache of encoded posts for lists: pieces at one version, updated from the change log (reference: Lists).

A piece is read when a list needs it, with the changes since the version of the other pieces, so that all pieces are
always at one version. A change replaces one piece. Responses in progress keep the pieces of their version.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from sys import maxsize
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from postd.fair_queue import TURN_MAX_S, FairTurns, Semaphore
from postd.model import POST_ID_MAX, Version
from postd.store.interface import Page, PostStore
from postd.web.lists.encoded_piece import Held, Piece, join_posts, last_id, posts_up_to
from postd.web.lists.list_forms import PLAIN_LIST, ListForm

PIECE_POSTS = 256
"""Posts that are read, compressed and streamed at a time: compressing them takes 0.4 to 2 ms. A piece with more than
twice as many is split; two adjacent ones with together no more are merged."""

SNAPSHOT_POSTS = 10_000
"""A list of up to this many posts is read before it is sent, and is always one snapshot."""

PLAIN_MAX_BYTES = 16 * 1024 * 1024
"""Limit on the pieces that are kept uncompressed: some 150,000 posts of 60 characters. Their compressed forms, made for
clients that accept gzip, take at most as much again."""

COMPRESSED_MAX_BYTES = 32 * 1024 * 1024
"""Limit on the further pieces, which are kept compressed: some 850,000 posts more."""

RETAINED_MAX_BYTES = 16 * 1024 * 1024
"""Limit on the earlier pieces that slow clients still read. Beyond it, lists are streamed without a snapshot. Responses
begun before retain no more than all pieces of one further version."""

MARGIN_BYTES = 1024 * 1024
"""More memory than any piece takes: no piece is added if less is left."""

SPLICED_MAX = 8
"""With more changes, a piece is split into its posts, which takes some 0.1 ms."""

Snapshot = tuple[Version, Sequence[Piece]]
"""Pieces as of one moment, with their version."""


class EncodedPosts:
    """The pieces of a process, at `version`, in a form; there may be gaps between them."""

    def __init__(self, store: PostStore, form: ListForm = PLAIN_LIST, *, clock: IReactorTime) -> None:
        self._read_page = partial(form.read, store)
        self._encode = form.encode
        self.unkept_piece_max_bytes = PIECE_POSTS * form.post_max_bytes  # the largest piece that is not kept
        self._clock = clock
        self._version: Version | None = None
        self._pieces: list[Piece] = []
        self._highs: list[int] = []  # of the pieces, to search in
        self._has_all = False  # there are no gaps
        self._plain_bytes = self._compressed_bytes = 0
        self._held = Held()
        self._retained_at = -1, 0  # the bytes in `_held` at the last count, and how many of them were retained
        self._lock = Semaphore(1)  # for changes of the pieces
        self._reads_begun = self._last_read = 0
        self._turn_began_s = 0.0

    @property
    def retained_bytes(self) -> int:
        """The memory of pieces of earlier versions that responses still refer to, in bytes."""
        held_bytes, retained_bytes = self._held.bytes, self._retained_at[1]
        if held_bytes != self._retained_at[0]:  # with many pieces, counting takes longer than most requests
            retained_bytes = held_bytes - sum(piece.held_bytes for piece in self._pieces)
            self._retained_at = held_bytes, retained_bytes
        return retained_bytes

    def is_at(self, version: Version) -> bool:
        """Return whether the pieces have a version."""
        return self._version == version

    async def snapshot(self, version: Version, *, after: int, limit: int | None) -> Snapshot | None:
        """Return the pieces with the first posts whose ids are larger than `after`, as of one moment.

        Args:
            version: the current version at the time of the call; the pieces may have a later one.
            after: the first piece may have earlier posts, too.
            limit: how many posts they have at least, if there are as many; None for all.

        Returns:
            The version and the pieces; None if there are too many posts, or too many to wait for them.

        Raises:
            StoreUnavailableError: it cannot be read.
        """
        reads_begun = self._reads_begun
        async with self._lock:
            self._turn_began_s = time.perf_counter()
            read = None
            while True:
                # A version that was read since this was called is recent enough.
                current = self._version == version or self._last_read > reads_begun
                pieces, gap = self._find(after, SNAPSHOT_POSTS if limit is None else limit)
                if current and gap is None:
                    break
                if current and (gap == read or not self._has_room):  # it was not kept
                    return None
                read = gap if self._has_room else None
                await self._read(read)
                await self._pause_if_long()
            if limit is None:
                pieces, gap = self._find(after, maxsize)
            assert self._version is not None
            return (self._version, pieces) if gap is None else None

    async def stream(self, after: int, *, work: FairTurns, client: str) -> AsyncGenerator[Piece]:
        """Yield pieces with all posts whose ids are larger than `after`.

        Each is as of the last read that renewed the pieces, or as of a read of its own if it is not kept; it is read
        when it is the client's turn.

        Raises:
            StoreUnavailableError: it cannot be read.
            ServerBusyError: too many clients wait for a turn.
        """
        while after < POST_ID_MAX:
            piece = self._at(after)
            if piece is None:
                async with work.turn(client):
                    piece = self._at(after) or await self._fill(after)
            yield piece.cut(after, piece.count)[0]
            after = piece.high

    async def _fill(self, after: int) -> Piece:
        """Read the piece with the posts after an id; it is kept if there is room."""
        if self._has_room:
            async with self._lock:
                if self._at(after) is None:
                    await self._read(after)
                piece = self._at(after)
            if piece is not None:
                return piece
        page = await self._read_page(after=after, limit=PIECE_POSTS)
        posts = self._encode(page.posts)
        high = last_id(posts) if page.more else POST_ID_MAX
        return Piece(after, high, join_posts(posts), len(posts), Held())

    @property
    def _has_room(self) -> bool:
        return (
            self._plain_bytes < PLAIN_MAX_BYTES - MARGIN_BYTES
            or self._compressed_bytes < COMPRESSED_MAX_BYTES - MARGIN_BYTES
        )

    def _at(self, after: int) -> Piece | None:
        """Return the cached piece with the ids after a given one, None if there is none."""
        index = bisect_right(self._highs, after)
        return self._pieces[index] if index < len(self._pieces) and self._pieces[index].low <= after else None

    def _find(self, after: int, many: int) -> tuple[list[Piece], int | None]:
        """Return the pieces with the next posts after an id, and the id after which one is absent, else None."""
        index = bisect_right(self._highs, after)
        if self._has_all and many >= SNAPSHOT_POSTS:
            return self._pieces[index:], None
        found = list[Piece]()
        while many > 0 and after < POST_ID_MAX:
            if index == len(self._pieces) or self._pieces[index].low > after:
                return found, after
            piece = self._pieces[index]
            found.append(piece)
            if piece.low == after:  # else some of its posts are not among the next ones
                many -= piece.count
            after = piece.high
            index += 1
        return found, None

    async def _read(self, gap: int | None) -> None:
        """Renew the pieces, and read the one after an id if that is given."""
        self._reads_begun = number = self._reads_begun + 1
        since = self._version if self._pieces else None
        page = await self._read_page(after=gap or 0, limit=0 if gap is None else PIECE_POSTS, since=since)
        await self._renew(page)
        if gap is not None:
            self._insert(gap, page)
        self._last_read = number

    async def _renew(self, page: Page[Any]) -> None:
        """Apply the changes that came with a page; without them all pieces are out of date."""
        if page.version != self._version or page.changes is None:
            pieces = await self._apply(page.changes) if page.changes is not None else []
            self._publish(pieces)
            self._version = page.version

    async def _apply(self, changes: Mapping[int, Any]) -> list[Piece]:
        """Return the pieces after some changes. The old pieces stay in use until the new ones are complete."""
        affected: dict[int, dict[int, bytes | None]] = {}
        for post_id, post in changes.items():
            index = bisect_left(self._highs, post_id)
            if index < len(self._pieces) and self._pieces[index].low < post_id:
                affected.setdefault(index, {})[post_id] = None if post is None else self._encode([post])[0]
        pieces = self._pieces.copy()
        try:
            for index in sorted(affected, reverse=True):  # so that a piece more or less moves none that follow
                pieces[index : index + 1] = self._change(pieces[index], affected[index])
                self._join(pieces, index)
                await self._pause_if_long()
        except BaseException:  # the client disconnected, perhaps
            self._publish(self._pieces)  # counts their bytes anew
            raise
        return pieces

    def _change(self, piece: Piece, changes: dict[int, bytes | None]) -> list[Piece]:
        """Return the replacement of a changed piece: one or more pieces."""
        self._plain_bytes -= piece.plain_bytes
        spliced = piece.spliced(changes) if len(changes) <= SPLICED_MAX else None
        if spliced is not None and spliced[1] <= 2 * PIECE_POSTS:
            return [self._keep(piece.low, piece.high, *spliced)]
        posts = piece.changed(changes)
        many = len(posts) // PIECE_POSTS if len(posts) > 2 * PIECE_POSTS else 1
        portions = [posts[len(posts) * n // many : len(posts) * (n + 1) // many] for n in range(many)]
        ends = [piece.low, *(last_id(portion) for portion in portions[:-1]), piece.high]
        return [
            self._keep(low, high, join_posts(portion), len(portion))
            for (low, high), portion in zip(pairwise(ends), portions, strict=True)
        ]

    def _join(self, pieces: list[Piece], index: int) -> None:
        """Merge the pieces at an index and after it if they are adjacent and short."""
        pair = pieces[index : index + 2]
        count = sum(piece.count for piece in pair)
        if len(pair) == 2 and pair[0].high == pair[1].low and count <= PIECE_POSTS:
            self._plain_bytes -= pair[0].plain_bytes + pair[1].plain_bytes
            text = join_posts(pair[0].posts() + pair[1].posts())
            pieces[index : index + 2] = [self._keep(pair[0].low, pair[1].high, text, count)]

    def _insert(self, after: int, page: Page[Any]) -> None:
        """Add the piece with the posts of a page."""
        index = bisect_right(self._highs, after)
        # It ends with its last post, or where the next piece begins.
        posts: Sequence[bytes] = self._encode(page.posts)
        high = last_id(posts) if page.more else POST_ID_MAX
        if index < len(self._pieces):
            high = min(high, self._pieces[index].low)
            posts = posts_up_to(posts, high)
        piece = self._keep(after, high, join_posts(posts), len(posts))
        pieces = [*self._pieces[:index], piece, *self._pieces[index:]]
        self._join(pieces, index)
        if index:
            self._join(pieces, index - 1)
        self._publish(pieces)

    def _keep(self, low: int, high: int, text: bytes, count: int) -> Piece:
        """Return a new piece, which is counted; compressed if the limit on uncompressed pieces is reached."""
        piece = Piece(low, high, text, count, self._held)
        if self._plain_bytes + piece.plain_bytes > PLAIN_MAX_BYTES:
            piece.compress()
        self._plain_bytes += piece.plain_bytes
        return piece

    def _publish(self, pieces: list[Piece]) -> None:
        """Use the given pieces from now on, without the last pieces if there are too many."""
        compressed_bytes = sum(piece.held_bytes for piece in pieces if not piece.plain_bytes)
        while compressed_bytes > COMPRESSED_MAX_BYTES:
            dropped = pieces.pop()
            compressed_bytes -= 0 if dropped.plain_bytes else dropped.held_bytes
        self._plain_bytes = sum(piece.plain_bytes for piece in pieces)
        self._compressed_bytes = compressed_bytes
        self._retained_at = -1, 0
        self._pieces, self._highs = pieces, [piece.high for piece in pieces]
        self._has_all = [0, *self._highs] == [*(piece.low for piece in pieces), POST_ID_MAX]

    async def _pause_if_long(self) -> None:
        """Let the reactor do other work if this has taken long."""
        if time.perf_counter() - self._turn_began_s > TURN_MAX_S:
            await deferLater(self._clock, 0)
            self._turn_began_s = time.perf_counter()
