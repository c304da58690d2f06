"""Event stream of changes: `GET /post/events`, Server-Sent Events (HTML Living Standard §9.2; reference: Event stream).

All subscribers of a process share one poll of the store's change log, ten times a second while there are any. That
also finds the changes of other workers and nodes, without messages between them. Each change is encoded once. A slow
subscriber delays no other: it is sent nothing until it has read, then catches up from the change log. The connection
times out if it reads nothing (`postd.front.connection`).
"""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.auth.identity import Revalidate, always_valid
from postd.errors import ChangesGoneError, ServerBusyError, StoreUnavailableError
from postd.fair_queue import FairTurns
from postd.http.interface import Request
from postd.http.responses import StreamedResponse, make_streamed_response
from postd.http.urlencoded import decode_query, parse_number
from postd.model import Change
from postd.store.interface import PostStore
from postd.web.authorship import Form
from postd.web.forms import encode_change

POLL_EVERY_S = 0.1
"""The longest time until a change is noticed."""

HEARTBEAT_EVERY_S = 15
"""How often an idle subscriber is sent a comment (reference: Event stream)."""

LOOK_EVERY_S = 6
"""How often an idle subscriber's credentials are checked: a page says within ten seconds that its session has ended."""

RECENT_MAX = 1000
"""Limit on cached encoded changes: some 300 KiB."""

BATCH_MAX = 200
"""Limit on the changes in one write."""

BATCH_MAX_BYTES = 32 * 1024
"""Limit on one write, but for its last event: so much is kept for a subscriber that does not read."""

WAKE_BATCH = 50
"""How many subscribers are woken in one turn of the reactor: a millisecond or two."""

RETRY_MIN_MS, RETRY_MAX_MS = 1000, 5000
"""Bounds of the delay after which a client reconnects. It is random: a reload ends all streams at the same time."""

_HEARTBEAT = b":\n\n"
_HEADERS = {
    b"Cache-Control": b"no-store",
    b"X-Accel-Buffering": b"no",  # disables the response buffering of nginx
}

_Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Returns a context manager that waits for the turn of the client of a stream (`FairTurns.turn`)."""

_Read = Callable[[int, int | None], Awaitable[tuple[bytes, int]]]
"""Reads the changes after a revision for a subscriber (`Events._read`)."""

_log = Logger()


class Events:
    """The subscribers of a process.

    A generation is the set of subscribers that were admitted under the same settings: a reload begins the next one and
    ends the streams of earlier ones.

    Attributes:
        clock: the reactor's.
    """

    def __init__(self, store: PostStore, *, reactor: IReactorTime) -> None:
        self._store = store
        self.clock = reactor
        self._latest = 0  # revision found by the last poll
        self._recent: dict[int, _RecentChange] = {}  # by revision, ascending
        self.subscribers = 0  # open streams
        self._waiting: set[Deferred[None]] = set()
        self._waiting_with_credentials: set[Deferred[None]] = set()  # with such as may end
        self._closed = False
        self._generation = self._ended_generation = 0
        self._loops: list[LoopingCall] = []
        self._heartbeats = 0
        self._catching_up = False

    async def respond(
        self, request: Request, revalidate: Revalidate, form: Form, *, generation: int, work: FairTurns
    ) -> StreamedResponse:
        """Return the response that streams changes from now on, or after the last event the client has, in a form.

        `revalidate` is called before each write, and `generation` has admitted the request. `work` gives the turns in
        which the change log is read.

        Raises:
            StoreUnavailableError: the current revision cannot be read.
        """
        latest = (await self._store.version()).revision
        read = partial(self._read, form=form, turn=partial(work.turn, request.client_network))
        pieces = self._stream(_decode_start(request, latest), latest, revalidate, generation, read)
        return make_streamed_response(b"text/event-stream", pieces, _HEADERS, live=True)

    def begin_generation(self) -> int:
        """Begin the next generation and return its number."""
        self._generation += 1
        return self._generation

    def end_earlier_generations(self) -> None:
        """End the streams of all generations but the latest; clients reconnect with the id of their last event."""
        self._ended_generation = self._generation - 1
        self._wake()

    def close(self) -> None:
        """End all streams, and later ones at once; clients reconnect elsewhere."""
        self._closed = True
        self._wake()

    async def _stream(
        self, after: int | None, latest: int, revalidate: Revalidate, generation: int, read: _Read
    ) -> AsyncGenerator[list[bytes]]:
        """Yield the event stream of a subscriber; `after` is the revision that it has, None if that is unknown."""
        self._join(latest)
        try:
            heartbeats = self._heartbeats
            # Up to `latest`: a text that was replaced or deleted before the request is not sent any more.
            resumed_at = after if after is not None and after < latest else None
            data = b"retry: %d\n" % (RETRY_MIN_MS + secrets.randbelow(RETRY_MAX_MS - RETRY_MIN_MS + 1))
            if after is None:
                data += _encode_reset(latest)
                after = latest
            else:
                # A client that is cut off before the first change can still resume. Firefox and the npm package
                # eventsource forget an id that comes without data.
                data += b"event: position\nid: %d\ndata: {}\n\n" % after
            while not self._closed and generation > self._ended_generation and await revalidate():
                if data:
                    yield [data]
                try:
                    data, after = await read(after, resumed_at)
                except (ServerBusyError, StoreUnavailableError):
                    data, self._catching_up = b"", True  # the stream resumes when the log can be read again
                if after >= latest:
                    resumed_at = None
                if not data:
                    await self._wait(with_credentials=revalidate is not always_valid)
                    data, heartbeats = (_HEARTBEAT if heartbeats != self._heartbeats else b""), self._heartbeats
        finally:
            self._leave()

    async def _read(self, after: int, resumed_at: int | None, *, form: Form, turn: _Turn) -> tuple[bytes, int]:
        """Return the encoded changes after a revision, at most one batch, and the revision that they lead to.

        With `resumed_at`, the revision from which a client resumes, they are what is left of them. The log is read when
        it is the client's turn.
        """
        while resumed_at is not None or after != self._latest:
            data = bytearray()
            first = after
            while resumed_at is None and _is_short(data, after - first) and after + 1 in self._recent:
                after += 1
                data += self._recent[after].encode(form)
            if after == first:
                try:
                    async with turn():
                        changes = await self._store.list_changes(after=after, limit=BATCH_MAX, since=resumed_at)
                except ChangesGoneError:
                    latest = (await self._store.version()).revision
                    return _encode_reset(latest), latest
                if not changes:
                    break
                for change in changes:
                    after += 1
                    data += _encode(change, form)
                    if not _is_short(data):
                        break
            if data:
                return bytes(data), after
            await deferLater(self.clock, 0)
        return b"", after

    def _join(self, latest: int) -> None:
        self.subscribers += 1
        if self.subscribers > 1:
            return
        # There were no polls since the last subscriber left.
        self._latest = latest
        self._recent.clear()
        # New loops: a LoopingCall stopped while its call waits for the store cannot be restarted cleanly.
        for work, every_s in ((self._poll, POLL_EVERY_S), (self._beat, HEARTBEAT_EVERY_S), (self._look, LOOK_EVERY_S)):
            loop = LoopingCall(work)
            loop.clock = self.clock
            loop.start(every_s, now=False).addErrback(self._failed)
            self._loops.append(loop)

    def _leave(self) -> None:
        self.subscribers -= 1
        if not self.subscribers:
            loops, self._loops = self._loops, []
            for loop in loops:
                if loop.running:
                    loop.stop()

    def _failed(self, failure: Failure) -> None:
        _log.failure("event stream: polling for changes failed", failure=failure)

    async def _wait(self, *, with_credentials: bool) -> None:
        """Wait until there may be something to send, or the credentials are to be checked."""
        waiting: Deferred[None] = Deferred()
        (self._waiting_with_credentials if with_credentials else self._waiting).add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
            self._waiting_with_credentials.discard(waiting)

    async def _poll(self) -> None:
        """Find changes and wake the subscribers for them."""
        try:
            revision, before = (await self._store.version()).revision, self._latest
            catching_up, self._catching_up = self._catching_up, False
            if revision != before:
                self._add(before, await self._store.list_changes(after=before, limit=RECENT_MAX))
            if catching_up or revision != before:
                self._wake()
        except ChangesGoneError:  # more changes than the log holds, or the store was replaced
            self._latest = revision
            self._recent.clear()
            self._wake()
        except StoreUnavailableError:
            pass  # the store logs it

    def _add(self, before: int, changes: Iterable[Change | None]) -> None:
        for revision, change in enumerate(changes, before + 1):
            self._recent[revision] = _RecentChange(change)
            self._latest = max(self._latest, revision)  # a poll may complete after a later one
        for revision in list(self._recent)[:-RECENT_MAX]:
            del self._recent[revision]

    def _beat(self) -> None:
        self._heartbeats += 1
        self._wake()

    def _look(self) -> None:
        """Let the streams of clients whose credentials have ended end."""
        waiting, self._waiting_with_credentials = self._waiting_with_credentials, set()
        self._wake_some(list(waiting))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting | self._waiting_with_credentials, set()
        self._waiting_with_credentials = set()
        self._wake_some(list(waiting))

    def _wake_some(self, waiting: list[Deferred[None]]) -> None:
        """Wake subscribers, a few in each turn: waking thousands at once would delay other requests."""
        for waiter in waiting[:WAKE_BATCH]:
            if not waiter.called:  # else its client has disconnected
                waiter.callback(None)
        if len(waiting) > WAKE_BATCH:
            self.clock.callLater(0, self._wake_some, waiting[WAKE_BATCH:])


def _is_short(data: bytearray, changes: int = 0) -> bool:
    """Return whether one more change may be sent with some others."""
    return changes < BATCH_MAX and len(data) < BATCH_MAX_BYTES


def _decode_start(request: Request, latest: int) -> int | None:
    """Return the revision that a subscriber has, `latest` if it names none, None if it names an invalid revision.

    `?after=` is for a browser's first request, which cannot have the field. Polyfills of `EventSource` send
    `?lastEventId=` in place of the field. An empty value, of a client that has received no event, names none.
    """
    lines = request.fields.get(b"Last-Event-Id", ())  # in the spelling of decoded heads
    query = decode_query(request)
    places = [line.decode("latin-1") for line in lines], query.get("lastEventId", []), query.get("after", [])
    values = next(([value.strip(" \t") for value in place] for place in places if any(map(str.strip, place))), None)
    if values is None:
        return latest
    revision = parse_number(values[0]) if len(values) == 1 else None
    return None if revision is None or revision > latest else revision


class _RecentChange:
    """A change, which is encoded once in each form that subscribers need."""

    __slots__ = ("_change", "_encoded")

    def __init__(self, change: Change | None) -> None:
        self._change = change
        self._encoded: dict[Form, bytes] = {}

    def encode(self, form: Form) -> bytes:
        encoded = self._encoded.get(form)
        if encoded is None:
            encoded = self._encoded[form] = _encode(self._change, form)
        return encoded


def _encode(change: Change | None, form: Form) -> bytes:
    """Encode a change; a change of which nothing is left is no event."""
    if change is None:
        return b""
    data = encode_change(change, form)
    return b"event: %b\nid: %d\ndata: %b\n\n" % (change.kind.encode(), change.revision, data)


def _encode_reset(latest: int) -> bytes:
    """Encode the event after which a client must read the list again; later events follow on that list."""
    return b"event: reset\nid: %d\ndata: {}\n\n" % latest
