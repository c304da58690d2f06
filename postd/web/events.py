"""Event stream of changes: `GET /post/events`, Server-Sent Events (HTML Living Standard §9.2; reference: Event stream).

The store reports that there are changes, of whatever process (`PostStore.watch_changes`). They are read once from the
change log, encoded once, and sent to all subscribers that follow: those have all earlier changes, and have read what
was sent to them. Each other subscriber catches up by itself, from recent changes or from the log, and then follows. So
a slow subscriber delays no other, and takes no memory: it is sent nothing until it has read. The connection times out
if it reads nothing (`postd.front.connection`).
"""

import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from postd.auth.identity import Revalidate, always_valid
from postd.errors import ChangesGoneError, ServerBusyError, StoreUnavailableError
from postd.fair_queue import FairTurns
from postd.http.interface import Request
from postd.http.responses import SharedPiece, StreamedResponse, make_shared_piece, make_streamed_response
from postd.http.urlencoded import decode_query, parse_number
from postd.http.views import Responding, respond
from postd.model import Change
from postd.store.interface import Store
from postd.web.authorship import Form
from postd.web.forms import NO_STORE, encode_change

RETRY_AFTER_S = 0.5
"""The delay before the log is read again after an error of the store."""

HEARTBEAT_EVERY_S = 15
"""How often a subscriber is sent a comment (reference: Event stream)."""

LOOK_EVERY_S = 6
"""How often a subscriber's credentials are checked without a change: a page says within ten seconds that its session
has ended."""

RECENT_MAX = 1000
"""Limit on cached encoded changes: some 300 KiB."""

BATCH_MAX = 200
"""Limit on the changes in one write."""

BATCH_MAX_BYTES = 32 * 1024
"""Limit on one write, but for its last event: so much is kept for a subscriber that does not read."""

SENT_PER_TURN = 200
"""How many subscribers are sent something in one turn of the reactor: a millisecond or two."""

RETRY_MIN_MS, RETRY_MAX_MS = 1000, 5000
"""Bounds of the delay after which a client reconnects. It is random: a reload ends all streams at the same time."""

_HEARTBEAT = make_shared_piece(b":\n\n")
_HEADERS = {
    b"Cache-Control": b"no-store",
    b"X-Accel-Buffering": b"no",  # disables the response buffering of nginx
}
_HEADERS_WITH_CREDENTIALS = {**_HEADERS, **NO_STORE}

_log = Logger()


class Events:
    """The subscribers of a process.

    A generation is the set of subscribers that were admitted under the same settings: a reload begins the next one and
    ends the streams of earlier ones.

    Attributes:
        clock: the reactor's.
        subscribers: the number of open streams.
    """

    def __init__(self, store: Store, *, reactor: IReactorTime) -> None:
        self._store = store
        self.clock = reactor
        self.subscribers = 0
        self._with_credentials = 0  # the number of those whose credentials may end
        self._following: dict[_Subscriber, None] = {}  # in their order
        self._latest = 0  # the revision that those have, or are being sent
        self._batch = _Batch(0)  # which led to it
        self._recent: dict[int, _RecentChange] = {}  # by revision, ascending
        self._is_reading = self._is_changed = False
        self._closed = False
        self._generation = self._ended_generation = 0
        self._loops: list[LoopingCall] = []

    async def respond(
        self, request: Request, revalidate: Revalidate, form: Form, *, generation: int, work: FairTurns
    ) -> StreamedResponse:
        """Return the response that streams changes from now on, or after the last event the client has, in a form.

        `revalidate` is called before each event, and `generation` has admitted the request. `work` gives the turns in
        which the change log is read for one subscriber.

        Raises:
            StoreUnavailableError: the current revision cannot be read.
        """
        latest = (await self._store.version()).revision
        after = _decode_start(request, latest)
        begin = partial(self._begin, after, latest, revalidate, form, generation, work)
        headers = _HEADERS if revalidate is always_valid else _HEADERS_WITH_CREDENTIALS
        return make_streamed_response(b"text/event-stream", None, headers, live=begin)

    def begin_generation(self) -> int:
        """Begin the next generation and return its number."""
        self._generation += 1
        return self._generation

    def end_earlier_generations(self) -> None:
        """End the streams of all generations but the latest; clients reconnect with the id of their last event."""
        self._ended_generation = self._generation - 1
        self._run(self._for_each(self._end_if_over))

    def close(self) -> None:
        """End all streams, and later ones at once; clients reconnect elsewhere."""
        self._closed = True
        self._run(self._for_each(self._end_if_over))

    # One subscriber

    def _begin(  # noqa: PLR0913, PLR0917 - bound by `respond`
        self,
        after: int | None,
        latest: int,
        revalidate: Revalidate,
        form: Form,
        generation: int,
        work: FairTurns,
        request: Request,
    ) -> None:
        """Begin the stream of a subscriber; `after` is the revision that it has, None if that is unknown."""
        if not self.subscribers:
            self._start(latest)
        self.subscribers += 1
        self._with_credentials += revalidate is not always_valid
        data = b"retry: %d\n" % (RETRY_MIN_MS + secrets.randbelow(RETRY_MAX_MS - RETRY_MIN_MS + 1))
        if after is None:
            data += _encode_reset(latest)
            after = latest
        else:
            # A client that is cut off before the first change can still resume. Firefox and the npm package
            # eventsource forget an id that comes without data.
            data += b"event: position\nid: %d\ndata: {}\n\n" % after
        subscriber = _Subscriber(self, request, revalidate, form, generation, work)
        subscriber.after = after
        if after < latest:
            # Up to `latest`: a text that was replaced or deleted before the request is not sent any more.
            subscriber.resumed = after, latest
        request.registerProducer(subscriber, True)  # noqa: FBT003 - Twisted's signature
        if not self._is_over(subscriber):
            subscriber.write(make_shared_piece(data))
        self.catch_up(subscriber)

    def _is_over(self, subscriber: "_Subscriber") -> bool:
        return self._closed or subscriber.generation <= self._ended_generation

    def _end_if_over(self, subscriber: "_Subscriber") -> None:
        if self._is_over(subscriber):
            self._end(subscriber)

    def _end(self, subscriber: "_Subscriber") -> None:
        self.leave(subscriber)
        request = subscriber.request
        request.responder = None
        if request.channel is not None:  # else the connection is lost
            request.unregisterProducer()
            request.finish()

    def leave(self, subscriber: "_Subscriber") -> None:
        """Forget a subscriber whose stream has ended, or whose client is gone."""
        self._following.pop(subscriber, None)
        subscriber.request.count_output(subscriber.sent_bytes)
        self.subscribers -= 1
        self._with_credentials -= subscriber.revalidate is not always_valid
        if not self.subscribers:
            self._stop()

    def unfollow(self, subscriber: "_Subscriber") -> None:
        """Send a subscriber nothing until it catches up."""
        self._following.pop(subscriber, None)

    def catch_up(self, subscriber: "_Subscriber") -> None:
        """Let a subscriber that waits catch up, after a check of its credentials."""
        self._following.pop(subscriber, None)
        subscriber.is_waiting = False
        subscriber.request.responder = None  # `_catch_up` itself notices a connection that is lost in a write
        respond(subscriber.request, self._catch_up(subscriber))

    async def _catch_up(self, subscriber: "_Subscriber") -> None:
        """Send a subscriber what it has missed, until it follows, or has to read first; or end its stream."""
        request = subscriber.request
        try:
            while not subscriber.is_paused:
                if self._is_over(subscriber):
                    self._end(subscriber)
                    return
                before, latest = subscriber.after, self._latest
                try:
                    piece, after = await self._read(subscriber)
                except (ServerBusyError, StoreUnavailableError):
                    await deferLater(self.clock, RETRY_AFTER_S)
                    continue
                if subscriber.revalidate is not always_valid and not await subscriber.revalidate():
                    self._end(subscriber)
                    return
                subscriber.after = after
                if piece is not None:
                    subscriber.write(piece)
                has_all = after >= self._latest and (subscriber.resumed is None or after >= subscriber.resumed[1])
                # A store that was replaced may have less than that: its followers are sent a reset.
                has_rest = after == before and latest == self._latest
                if (has_all or has_rest) and not subscriber.is_paused:
                    subscriber.resumed = None
                    self._following[subscriber] = None
                    break
        except BaseException:  # its client is gone
            self.leave(subscriber)
            raise
        if request.channel is None:  # its connection was lost in a write
            self.leave(subscriber)
            return
        subscriber.is_waiting = True
        request.responder = subscriber

    async def _read(self, subscriber: "_Subscriber") -> tuple[SharedPiece | None, int]:
        """Return the changes that a subscriber has missed, at most one batch, and the revision that they lead to.

        If it resumes, they are what is left of them. The log is read when it is the client's turn.
        """
        after, form = subscriber.after, subscriber.form
        if subscriber.resumed is not None and after >= subscriber.resumed[1]:
            subscriber.resumed = None
        if subscriber.resumed is None:
            if after == self._latest:
                return None, after
            if after == self._batch.first:
                return self._batch.encode(form), self._batch.last
            if after + 1 in self._recent:
                return _join(after, self._recall(after, form))
        since = None if subscriber.resumed is None else subscriber.resumed[0]
        try:
            async with subscriber.work.turn(subscriber.request.client_network):
                changes = await self._store.list_changes(after=after, limit=BATCH_MAX, since=since)
        except ChangesGoneError:
            subscriber.resumed = None
            latest = (await self._store.version()).revision
            return make_shared_piece(_encode_reset(latest)), latest
        return _join(after, (_encode(change, form) for change in changes))

    def _recall(self, after: int, form: Form) -> Iterator[bytes]:
        """Yield the recent changes after a revision."""
        while (change := self._recent.get(after := after + 1)) is not None:
            yield change.encode(form)

    # All subscribers

    def _start(self, latest: int) -> None:
        """Begin to follow the log; there were no subscribers."""
        self._latest, self._batch = latest, _Batch(latest)
        self._recent.clear()
        self._store.watch_changes(self._note_changes)
        self._note_changes()  # those between the request and now
        # New loops: a LoopingCall stopped while its call waits cannot be restarted cleanly.
        for work, every_s in ((self._beat, HEARTBEAT_EVERY_S), (self._look, LOOK_EVERY_S)):
            loop = LoopingCall(work)
            loop.clock = self.clock
            loop.start(every_s, now=False).addErrback(self._failed)
            self._loops.append(loop)

    def _stop(self) -> None:
        self._store.watch_changes(None)
        self._store.clear_cached_logins()
        loops, self._loops = self._loops, []
        for loop in loops:
            if loop.running:
                loop.stop()

    def _failed(self, failure: Failure) -> None:
        _log.failure("event stream: sending changes failed", failure=failure)

    def _run(self, work: Responding) -> None:
        Deferred.fromCoroutine(work).addErrback(self._failed)

    async def _turns(self) -> AsyncIterator[list["_Subscriber"]]:
        """Yield the subscribers that follow now, a few in each turn of the reactor: other requests go on."""
        subscribers = list(self._following)
        for start in range(0, len(subscribers), SENT_PER_TURN):
            if start:
                await deferLater(self.clock, 0)
            yield subscribers[start : start + SENT_PER_TURN]

    async def _for_each(self, act: Callable[["_Subscriber"], None]) -> None:
        """Call a function for each subscriber that follows now."""
        async for subscribers in self._turns():
            for subscriber in subscribers:
                if subscriber in self._following:
                    try:
                        act(subscriber)
                    except Exception as error:  # noqa: BLE001 - it ends this stream only
                        subscriber.request.fail(error)

    async def _beat(self) -> None:
        await self._for_each(_send_heartbeat)

    async def _look(self) -> None:
        """Let the streams of clients whose credentials have ended end."""
        if not self._with_credentials:
            return
        self._store.clear_cached_logins()
        async for subscribers in self._turns():
            rest = iter(subscribers)
            for subscriber in rest:  # the first, and each that follows one whose check has to wait
                self._run(self._end_invalid(chain((subscriber,), rest)))

    async def _end_invalid(self, subscribers: Iterable["_Subscriber"]) -> None:
        """End the streams of those subscribers whose credentials have ended.

        One coroutine for all takes half the time of one for each.
        """
        for subscriber in subscribers:
            if subscriber.revalidate is always_valid:
                continue
            try:
                if not await subscriber.revalidate() and subscriber in self._following:
                    self._end(subscriber)
            except Exception as error:  # noqa: BLE001 - it ends this stream only
                if subscriber in self._following:
                    subscriber.request.fail(error)

    def _note_changes(self) -> None:
        """Called when there may be changes."""
        self._is_changed = True
        if not self._is_reading:
            self._is_reading = True
            self.clock.callLater(0, self._begin_reading)

    def _begin_reading(self) -> None:
        self._run(self._read_changes())

    async def _read_changes(self) -> None:
        """Read changes, and send them to those that follow."""
        try:
            while self._is_changed and self.subscribers:
                self._is_changed = False
                await self._send_changes((await self._store.version()).revision)
        except StoreUnavailableError:  # the store logs it
            self.clock.callLater(RETRY_AFTER_S, self._note_changes)
        finally:
            self._is_reading = False

    async def _send_changes(self, revision: int) -> None:
        """Send the changes up to a revision, the latest, to all that follow."""
        while self._latest != revision and self.subscribers:
            first = self._latest
            try:
                changes = await self._store.list_changes(after=first, limit=BATCH_MAX)
            except ChangesGoneError:  # more changes than the log holds, or the store was replaced
                self._latest, self._batch = revision, _Batch(revision)
                self._recent.clear()
                await self._for_each(self.catch_up)
                return
            if not changes:
                return
            self._batch = batch = self._add(first, changes)
            self._latest = batch.last
            await self._for_each(partial(self._send, batch))

    def _add(self, first: int, changes: Iterable[Change | None]) -> "_Batch":
        """Make a batch of changes after a revision, as many as one write may have."""
        batch, size = _Batch(first), 0
        for revision, change in enumerate(changes, first + 1):
            self._recent[revision] = recent = _RecentChange(change)
            batch.add(recent)
            size += len(recent.encode(Form.PLAIN))
            if size >= BATCH_MAX_BYTES:
                break
        for revision in list(self._recent)[:-RECENT_MAX]:
            del self._recent[revision]
        return batch

    def _send(self, batch: "_Batch", subscriber: "_Subscriber") -> None:
        """Send a batch to a subscriber that follows."""
        if subscriber.after == batch.first and subscriber.revalidate is always_valid:
            subscriber.after = batch.last
            piece = batch.encode(subscriber.form)
            if piece is not None:
                subscriber.write(piece)
        elif subscriber.after < batch.last:
            self.catch_up(subscriber)


@implementer(IPushProducer)
class _Subscriber:
    """A client of the event stream.

    Attributes:
        after: the revision up to which it was sent all changes.
        resumed: the revision from which it resumes, and the latest one at its request; None if it does not resume.
        is_paused: whether it has to read before it is sent more.
        is_waiting: whether there is no coroutine that makes it catch up.
        sent_bytes: how many bytes of the body it was sent.
    """

    __slots__ = (
        "_events",
        "_is_chunked",
        "_output",
        "after",
        "form",
        "generation",
        "is_paused",
        "is_waiting",
        "request",
        "resumed",
        "revalidate",
        "sent_bytes",
        "work",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - its attributes
        self, events: Events, request: Request, revalidate: Revalidate, form: Form, generation: int, work: FairTurns
    ) -> None:
        self._events = events
        self.request = request
        self.revalidate = revalidate
        self.form = form
        self.generation = generation
        self.work = work
        self._output, self._is_chunked = request.open_output()
        self.sent_bytes = self.after = 0
        self.resumed: tuple[int, int] | None = None
        self.is_paused = self.is_waiting = False

    def write(self, piece: SharedPiece) -> None:
        self.sent_bytes += len(piece.plain)
        self._output.write(piece.chunk if self._is_chunked else piece.plain)

    def cancel(self) -> None:
        """Called when the client has disconnected, as the request's `responder`."""
        self._events.leave(self)

    def pauseProducing(self) -> None:
        self.is_paused = True
        self._events.unfollow(self)

    def resumeProducing(self) -> None:
        self.is_paused = False
        if self.is_waiting:
            self._events.catch_up(self)

    def stopProducing(self) -> None:
        """Called when the connection is lost; the request then calls `cancel`."""


class _Batch:
    """Changes that follow each other, encoded once in each form that subscribers need.

    Attributes:
        first, last: the revision before the changes, and that of the last one.
    """

    __slots__ = ("_changes", "_encoded", "first", "last")

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self._changes: list[_RecentChange] = []
        self._encoded: dict[Form, SharedPiece | None] = {}

    def add(self, change: "_RecentChange") -> None:
        self._changes.append(change)
        self.last += 1

    def encode(self, form: Form) -> SharedPiece | None:
        """Return the events, None if nothing is left of the changes."""
        if form not in self._encoded:
            data = b"".join([change.encode(form) for change in self._changes])
            self._encoded[form] = make_shared_piece(data) if data else None
        return self._encoded[form]


def _send_heartbeat(subscriber: _Subscriber) -> None:
    subscriber.write(_HEARTBEAT)


def _join(after: int, events: Iterable[bytes]) -> tuple[SharedPiece | None, int]:
    """Return as many encoded changes after a revision as one write may have, and the revision that they lead to."""
    data, last = bytearray(), after
    for event in events:
        data += event
        last += 1
        if len(data) >= BATCH_MAX_BYTES or last == after + BATCH_MAX:
            break
    return make_shared_piece(bytes(data)) if data else None, last


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
