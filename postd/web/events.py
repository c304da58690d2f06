"""Changes as they come: `GET /post/events` (contract 2), Server-Sent Events (HTML Living Standard §9.2).

All listeners of a process share one look at the store, a few times a second and only while there are any: that finds
what other workers and nodes have done, and costs less than being told by each of them. What was found is encoded once.
A listener that reads slowly holds up nobody: it is sent nothing until it has read, then what it has missed, from the
change log. The front ends those that read nothing (`postd.web.server.connection`).
"""

from collections.abc import AsyncGenerator, Iterable
from typing import Any

import orjson
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from postd.auth.identity import Revalidate
from postd.errors import ChangesGoneError, StoreUnavailableError
from postd.model import Change
from postd.store.interface import PostStore
from postd.web.query import as_number, decode_query
from postd.web.responses import StreamedResponse, make_streamed_response

LOOK_EVERY_S = 0.1
"""How long a change takes at the most to be noticed."""

BEAT_EVERY_S = 15
"""How often a listener is sent a comment when there is nothing to tell (contract 2)."""

RECENT_MAX = 1000
"""How many of the last changes are kept encoded: some 300 KiB at the most."""

TOLD_AT_ONCE = 200
"""How many changes one write tells: some 40 KiB at the most, but for texts of other scripts."""

WOKEN_AT_ONCE = 50
"""How many listeners are told in one turn of the reactor: a millisecond or two."""

_RETRY_MS = 1000
_BEAT = b":\n\n"
_HEADERS = {
    b"Cache-Control": b"no-store",
    b"X-Accel-Buffering": b"no",  # nginx would collect what it is to pass on
}

_log = Logger()


class Events:
    """The listeners of a process.

    Args:
        store: has the change log.
        reactor: its clock.
    """

    def __init__(self, store: PostStore, *, reactor: IReactorTime) -> None:
        self._store = store
        self._clock = reactor
        self._latest = 0  # what was found by the last look
        self._recent: dict[int, bytes] = {}  # by revision, ascending
        self._listeners = 0
        self._waiting: set[Deferred[None]] = set()
        self._closed = False
        self._eras = self._ended_eras = 0
        self._loops: list[LoopingCall] = []
        self._beats = 0
        self._behind = False

    async def answer(self, request: Any, revalidate: Revalidate, *, era: int) -> StreamedResponse:
        """Answer with what changes from now on, or from where the listener has left off.

        Args:
            request: of the listener.
            revalidate: returns whether it may go on listening; called each time that there is something to send.
            era: the one by whose rules it was let in.

        Raises:
            StoreUnavailableError: nobody knows where that is.
        """
        latest = (await self._store.version()).revision
        pieces = self._listen(_start(request, latest), latest, revalidate, era)
        return make_streamed_response(b"text/event-stream", pieces, _HEADERS)

    @property
    def listeners(self) -> int:
        """How many there are."""
        return self._listeners

    def begin_era(self) -> int:
        """Return what stands for those whose requests come from now on, by rules that may be other ones."""
        self._eras += 1
        return self._eras

    def end_earlier(self) -> None:
        """End the streams of all eras but the last; their listeners come back, with the number of what they heard."""
        self._ended_eras = self._eras - 1
        self._wake()

    def close(self) -> None:
        """End all streams, and those that come; their listeners come back elsewhere."""
        self._closed = True
        self._wake()

    async def _listen(self, after: int | None, latest: int, revalidate: Revalidate, era: int) -> AsyncGenerator[bytes]:
        """Yield what a listener is sent; `after` is the last change it knows of, None if that cannot be told."""
        self._join(latest)
        try:
            beats = self._beats
            told = b"retry: %d\n" % _RETRY_MS
            if after is None:
                told += b"\n" + _reset(latest)
                after = latest
            else:
                # An id without an event: who is cut off before the first one knows where to go on all the same.
                told += b"id: %d\n\n" % after
            while not self._closed and era > self._ended_eras and await revalidate():
                if told:
                    yield told
                try:
                    told, after = await self._read(after)
                except StoreUnavailableError:
                    told, self._behind = b"", True  # the stream goes on when the store does
                if not told:
                    await self._wait()
                    told, beats = (_BEAT if beats != self._beats else b""), self._beats
        finally:
            self._leave()

    async def _read(self, after: int) -> tuple[bytes, int]:
        """Return what is to be told of the changes after a revision, and the revision that it goes up to."""
        if after == self._latest:
            return b"", after
        events: list[bytes] = []
        revision = after
        while len(events) < TOLD_AT_ONCE and revision + 1 in self._recent:
            revision += 1
            events.append(self._recent[revision])
        if events:
            return b"".join(events), revision
        try:
            changes = await self._store.list_changes(after=after, limit=TOLD_AT_ONCE)
        except ChangesGoneError:
            latest = (await self._store.version()).revision
            return _reset(latest), latest
        return b"".join(map(_encode, changes)), changes[-1].revision if changes else after

    def _join(self, latest: int) -> None:
        self._listeners += 1
        if self._listeners > 1:
            return
        # Nobody has looked since the last one left.
        self._latest = latest
        self._recent.clear()
        # New ones: one that was stopped while it waits for the store would go on if it were started again.
        for work, every_s in ((self._look, LOOK_EVERY_S), (self._beat, BEAT_EVERY_S)):
            loop = LoopingCall(work)
            loop.clock = self._clock
            loop.start(every_s, now=False).addErrback(self._failed)
            self._loops.append(loop)

    def _leave(self) -> None:
        self._listeners -= 1
        if not self._listeners:
            loops, self._loops = self._loops, []
            for loop in loops:
                if loop.running:
                    loop.stop()

    def _failed(self, failure: Any) -> None:
        _log.failure("listeners are not told of changes any more", failure=failure)

    async def _wait(self) -> None:
        """Return when there may be something to tell."""
        waiting: Deferred[None] = Deferred()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    def _look(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._find_changes())

    async def _find_changes(self) -> None:
        try:
            revision, before = (await self._store.version()).revision, self._latest
            behind, self._behind = self._behind, False
            if revision != before:
                self._keep(await self._store.list_changes(after=before, limit=RECENT_MAX))
            if behind or revision != before:
                self._wake()
        except ChangesGoneError:  # more than the log holds, or another store has come in its place
            self._latest = revision
            self._recent.clear()
            self._wake()
        except StoreUnavailableError:
            pass  # the store tells the log

    def _keep(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._recent[change.revision] = _encode(change)
            self._latest = max(self._latest, change.revision)  # a look that was overtaken may come late
        for revision in list(self._recent)[:-RECENT_MAX]:
            del self._recent[revision]

    def _beat(self) -> None:
        self._beats += 1
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        self._wake_some(list(waiting))

    def _wake_some(self, waiting: list[Deferred[None]]) -> None:
        """Wake listeners, a few in each turn: thousands of them are not to keep all others waiting."""
        for one in waiting[:WOKEN_AT_ONCE]:
            if not one.called:  # it has gone meanwhile
                one.callback(None)
        if len(waiting) > WOKEN_AT_ONCE:
            self._clock.callLater(0, self._wake_some, waiting[WOKEN_AT_ONCE:])


def _start(request: Any, latest: int) -> int | None:
    """Return the last change that a listener knows of, None if what it says is the number of none.

    A browser's first request cannot have the field: `?after=` does instead.
    """
    lines: list[bytes] | None = request.fields.get(b"Last-Event-Id")  # as the front spells it
    said = decode_query(request).get("after") if lines is None else [line.decode("latin-1") for line in lines]
    if said is None:
        return latest
    known = as_number(said[0].strip(" \t")) if len(said) == 1 else None
    return None if known is None or known > latest else known


def _encode(change: Change) -> bytes:
    data: dict[str, Any] = {"id": change.id} if change.post is None else {"id": change.id, "post": change.post}
    return b"event: %b\nid: %d\ndata: %b\n\n" % (change.kind.encode(), change.revision, orjson.dumps(data))


def _reset(latest: int) -> bytes:
    """Return the event that tells a listener to read the list again; what comes after it follows on that list."""
    return b"event: reset\nid: %d\ndata: {}\n\n" % latest
