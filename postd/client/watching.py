"""`Watch`: the changes of posts, from an event stream that reconnects by itself."""

import random
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Self, TypedDict, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.protocols.policies import TimeoutMixin
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from postd.client.arguments import check_kind
from postd.client.errors import ClientError, NoAnswerError, ProblemError, SignInError, UnusableAnswerError
from postd.client.responses import connection_error, decode_problem, header_fields, raise_timeout, read_body
from postd.model import ChangeKind
from postd.protocol.event_stream import Event, EventDecoder, EventStreamError
from postd.reactor import IReactor, Work

T = TypeVar("T")

RESPONSE_MAX_S = 30.0
"""How long the head of the response may take."""

SILENT_MAX_S = 45.0
"""How long a stream may be silent: the server sends a comment each 15 s (reference: Event stream)."""

QUEUE_MAX = 1000
"""How many events are queued before reading is paused (back-pressure)."""

_WAIT_MIN_S, _WAIT_S, _WAIT_MAX_S = 0.1, 1.0, 30.0
_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})


Timestamp = Annotated[datetime, Meta(tz=True)]
"""A time in a response."""


class Reset(Struct, frozen=True):
    """Changes were missed that the server no longer keeps: read the list again.

    The list includes all changes up to `revision`.
    """

    revision: int


class Change(Struct, frozen=True):
    """A change to a post, with the text after it.

    Args:
        revision: the number of the change.
        kind: what was done.
        id: the id of the post.
        post: the text, None if the post was deleted.
        created, updated, author: as for `Post`.
    """

    revision: int
    kind: ChangeKind
    id: int
    post: str | None
    created: datetime | None = None
    updated: datetime | None = None
    author: str | None = None


class _EventPost(Struct):
    id: int
    post: str | None = None
    created: Timestamp | None = None
    updated: Timestamp | None = None
    author: str | None = None


class WatchOptions(TypedDict, total=False):
    """The arguments of `Watch` by name, apart from the revision."""

    on_wait: Callable[[str, float], None]
    on_open: Callable[[], None]
    silent_max_s: float
    meta: bool


class Watch:
    """The changes of posts: `async for change in watch` yields a `Change`, or `Reset` where some were missed.

    The first request is sent when the first change is awaited; its failure is raised. Later a connection that breaks,
    ends or is silent is replaced, without limit, and resumes after the last change: none is missed or repeated.
    A permanent refusal, for instance after a change of the password, is raised.

    A program that reads too slowly pauses the stream. The server may then disconnect it, and the watch resumes.

    Example::

        async with PostClient(reactor, "http://127.0.0.1:8080", Digest("alice", "wonderland")) as posts:
            await posts.add("Hello")
            async for change in posts.watch(after=0):
                print(change.kind, change.post)  # added Hello
                break

    Args:
        after: the revision after which to begin; None for now.
        on_wait: called with the reason of a disconnection and the seconds until the next attempt.
        on_open: called when a stream begins.
        silent_max_s: how long a stream may be silent.
        meta: whether changes have times and authors.
    """

    def __init__(  # noqa: PLR0913 - all but three by name
        self,
        reactor: IReactor,
        agent: IAgent,
        url: str,
        *,
        after: int | None,
        on_wait: Callable[[str, float], None] = lambda *_: None,
        on_open: Callable[[], None] = lambda: None,
        silent_max_s: float = SILENT_MAX_S,
        meta: bool = False,
    ) -> None:
        if after is not None:
            check_kind("after", after, int, "a whole number")
        check_kind("silent_max_s", silent_max_s, (int, float), "seconds")
        self._reactor = reactor
        self._agent = agent
        self._url = f"{url}?include=meta" if meta else url
        self._on_wait = on_wait
        self._on_open = on_open
        self._silent_max_s = silent_max_s
        self._last_id = "" if after is None else str(after)
        self._last_revision = -1 if after is None else after
        self._retry_s = _WAIT_S
        self._failures = 0
        self._stream: _EventStream | None = None
        self._was_open = False
        self._closed = False
        self._waiting: Deferred[Any] | None = None
        self.on_close: Callable[[Watch], object] = lambda _: None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change | Reset:
        while not self._closed:
            try:
                stream = self._stream
                if stream is None:
                    stream = self._stream = await self._wait_for(self._open())
                    self._on_open()
                event = await self._wait_for(stream.next_event())
                self._failures = 0
                change = self._decode_new(event, stream)
                if change is not None:
                    return change
            except ClientError as error:
                if not self._closed:
                    await self._back_off(error)
        raise StopAsyncIteration

    def close(self) -> None:
        """End the iteration, also for a caller that awaits a change."""
        if not self._closed:
            self._closed = True
            if self._stream is not None:
                self._stream.abort()
            if self._waiting is not None:
                self._waiting.cancel()
            self.on_close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _wait_for(self, waiting: Deferred[T] | Work[T]) -> T:
        """Await something that `close` cancels."""
        self._waiting = waiting if isinstance(waiting, Deferred) else Deferred.fromCoroutine(waiting)
        try:
            return await self._waiting
        except CancelledError:
            if self._closed:
                raise StopAsyncIteration from None
            raise
        finally:
            self._waiting = None

    async def _back_off(self, error: ClientError) -> None:
        """Wait for the next attempt after an error; raise the error if it is permanent."""
        if self._stream is not None:
            self._stream.abort()
            self._stream = None
        if not self._was_open or not _is_retryable(error):
            self.close()
            raise error
        wait_s = min(self._retry_s * 2**self._failures, _WAIT_MAX_S) * random.uniform(0.75, 1.25)  # noqa: S311
        if isinstance(error, ProblemError) and error.retry_after_s is not None:
            wait_s = max(wait_s, min(error.retry_after_s, _WAIT_MAX_S))
        self._failures = min(self._failures + 1, 10)
        self._on_wait(str(error), wait_s)
        await self._wait_for(deferLater(self._reactor, wait_s))

    def _decode_new(self, event: Event | None, stream: "_EventStream") -> Change | Reset | None:
        """Return the change of an event; None for an event that has none, or that was returned before."""
        if stream.retry_s is not None:
            self._retry_s = min(max(stream.retry_s, _WAIT_MIN_S), _WAIT_MAX_S)
        if event is None:
            self._last_id = stream.last_id
            return None
        change = _decode(event)
        self._last_id = event.last_id
        if change is None or (isinstance(change, Change) and change.revision <= self._last_revision):
            return None  # sent again after a reconnection
        self._last_revision = change.revision
        return change

    async def _open(self) -> "_EventStream":
        headers = Headers({"Accept": ["text/event-stream"], "Cache-Control": ["no-store"], "User-Agent": ["postd"]})
        if self._last_id:
            headers.setRawHeaders("Last-Event-ID", [self._last_id])
        try:
            asking = self._agent.request(b"GET", self._url.encode("ascii"), headers, None)
            response = await asking.addTimeout(RESPONSE_MAX_S, self._reactor, raise_timeout)
        except (ClientError, CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - errors of connections have no common base
            raise connection_error(error, self._url) from None
        fields = header_fields(response)
        if response.code != 200:
            body = await read_body(response, max_s=RESPONSE_MAX_S, clock=self._reactor)
            raise decode_problem(response.code, fields, body)
        stream = _EventStream(self._reactor, self._last_id, self._silent_max_s)
        response.deliverBody(stream)
        if fields.get("content-type", "").partition(";")[0].strip().lower() != "text/event-stream":
            stream.abort()
            raise UnusableAnswerError("the response is not an event stream; check the URL")
        self._was_open = True
        return stream


def _is_retryable(error: ClientError) -> bool:
    match error:
        case NoAnswerError():
            return True
        case ProblemError():
            return error.status in _RETRYABLE
        case SignInError():
            return error.temporary
    return False


def _decode(event: Event) -> Change | Reset | None:
    known = event.kind in {*ChangeKind, "reset"}
    if not known:
        return None  # an event of a newer server
    try:
        revision = int(event.last_id) if event.last_id.isascii() and event.last_id.isdecimal() else -1
        data = None if event.kind == "reset" else msgspec.json.decode(event.data, type=_EventPost)
    except (msgspec.DecodeError, ValueError, RecursionError):
        revision = -1
    if revision < 0 or (data is not None and (data.post is None) != (event.kind == ChangeKind.DELETED)):
        raise UnusableAnswerError(f"the server sends a malformed event {event.kind!r}")
    if data is None:
        return Reset(revision)
    return Change(revision, ChangeKind(event.kind), *astuple(data))


class _EventStream(Protocol, TimeoutMixin):
    """Decodes a response into a queue of events; pauses reading while the queue is full."""

    transport: Any

    def __init__(self, reactor: IReactor, last_id: str, silent_max_s: float) -> None:
        self._reactor = reactor
        self._decoder = EventDecoder(last_id)
        self._silent_max_s = silent_max_s
        self._events: deque[Event] = deque()
        self._has_data = False
        self._error: ClientError | None = None
        self._waiter: Deferred[None] | None = None
        self._paused = False
        self.last_id = last_id

    @property
    def retry_s(self) -> float | None:
        """The delay before a reconnection that the server has asked for, in seconds."""
        return None if self._decoder.retry_ms is None else self._decoder.retry_ms / 1000

    async def next_event(self) -> Event | None:
        """Return the next event, None for other data, such as a comment.

        Raises:
            NoAnswerError: the stream has ended.
            UnusableAnswerError: the response is not an event stream.
        """
        if not self._events and not self._has_data and self._error is None:
            self._waiter = Deferred()
            await self._waiter
        if self._events:
            event = self._events.popleft()
            if self._paused and len(self._events) <= QUEUE_MAX // 2:
                self._paused = False
                self.transport.resumeProducing()
                if self._error is None:
                    self.setTimeout(self._silent_max_s)
            return event
        if self._has_data:
            self._has_data = False
            return None
        assert self._error is not None
        raise self._error

    def connectionMade(self) -> None:
        self.setTimeout(self._silent_max_s)

    def dataReceived(self, data: bytes) -> None:
        if self._error is not None:
            return
        self.resetTimeout()
        try:
            self._events += self._decoder.decode(data)
        except EventStreamError as error:
            self._fail(UnusableAnswerError(f"the response is not an event stream: {error}"))
            self.transport.loseConnection()
            return
        self._has_data = True
        self.last_id = self._decoder.last_id
        if len(self._events) >= QUEUE_MAX:
            # No timeout while paused: nothing is read.
            self._paused = True
            self.setTimeout(None)
            self.transport.pauseProducing()
        self._wake()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        ended = reason.check(ResponseDone)
        self._fail(NoAnswerError("the server has ended the stream" if ended else "the connection was lost"))

    def abort(self) -> None:
        """Close the connection, and fail `next_event`."""
        self._fail(NoAnswerError("the stream was aborted"))
        if self.transport is not None:
            self.transport.loseConnection()

    def _fail(self, error: ClientError) -> None:
        self.setTimeout(None)
        if self._error is None:
            self._error = error
            self._wake()

    def callLater(self, period: float, func: Callable[[], object]) -> IDelayedCall:  # for `TimeoutMixin`
        return self._reactor.callLater(period, func)

    def timeoutConnection(self) -> None:
        self._fail(NoAnswerError(f"nothing was received for {self._silent_max_s:.0f} s"))
        self.transport.loseConnection()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)
