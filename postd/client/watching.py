"""Changes of posts as they are made: an event stream that is read on and on."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Self, cast

import msgspec
from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - Twisted's name
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from postd.client.answers import fields_of, no_answer, read_problem, say_late
from postd.client.errors import ClientError, NoAnswerError, ProblemError, SignInError, UnusableAnswerError
from postd.model import Change, ChangeKind
from postd.protocol.event_stream import Event, EventDecoder, EventStreamError

ANSWER_MAX_S = 30.0
"""How long the head of the answer may take."""

SILENT_MAX_S = 45.0
"""How long a stream may be silent: a server sends a comment each 15 s."""

WAITING_MAX = 1000
"""How many changes are read ahead of whoever takes them."""

_WAIT_MIN_S, _WAIT_S, _WAIT_MAX_S = 0.1, 1.0, 30.0
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_PROBLEM_MAX_BYTES = 64 * 1024


class Reset(Struct, frozen=True):
    """Changes were missed that the server does not have any more: read the list again.

    `revision` is the number of the last change that the list has to have in it.
    """

    revision: int


class _ToldPost(Struct):
    id: int
    post: str | None = None


class Watch:
    """The changes of posts: `async for change in watch`, each a `Change`, or `Reset` where some were missed.

    The first request is made when the first change is waited for. If it fails, that is raised; later on, a connection
    that breaks, ends or falls silent is made anew, as often as it takes, and goes on where the last one ended: nothing
    is missed and nothing comes twice. What the server refuses for good, for instance since a password was changed, is
    raised then, too.

    A program that does not keep up makes the server wait, and is dropped by it in the end, and then goes on.

    Args:
        reactor: the clock.
        agent: asks.
        url: of the stream.
        after: begin behind the change with this number; None for now.
        on_wait: called with why the last connection ended, and in how many seconds the next one is tried.
        on_open: called when a stream is there.
        silent_max_s: how long it may be silent.
    """

    def __init__(  # noqa: PLR0913 - all but three by name
        self,
        reactor: Any,
        agent: IAgent,
        url: str,
        *,
        after: int | None,
        on_wait: Callable[[str, float], None] = lambda *_: None,
        on_open: Callable[[], None] = lambda: None,
        silent_max_s: float = SILENT_MAX_S,
    ) -> None:
        self._reactor = reactor
        self._agent = agent
        self._url = url
        self._on_wait = on_wait
        self._on_open = on_open
        self._silent_max_s = silent_max_s
        self._last_id = "" if after is None else str(after)
        self._told = -1 if after is None else after
        self._retry_s = _WAIT_S
        self._failures = 0
        self._stream: _Stream | None = None
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
                change = self._take(event, stream)
                if change is not None:
                    return change
            except ClientError as error:
                if not self._closed:
                    await self._wait_after(error)
        raise StopAsyncIteration

    def close(self) -> None:
        """End it: whoever waits for a change gets none any more."""
        if not self._closed:
            self._closed = True
            if self._stream is not None:
                self._stream.give_up()
            if self._waiting is not None:
                self._waiting.cancel()
            self.on_close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _wait_for(self, waiting: Any) -> Any:
        """Wait for something that ends when the watch is closed."""
        self._waiting = waiting if isinstance(waiting, Deferred) else Deferred.fromCoroutine(waiting)
        try:
            return await self._waiting
        except CancelledError:
            if self._closed:
                raise StopAsyncIteration from None
            raise
        finally:
            self._waiting = None

    async def _wait_after(self, error: ClientError) -> None:
        """Wait until it is time to try again after an error; raise it if there is no use in that."""
        if self._stream is not None:
            self._stream.give_up()
            self._stream = None
        if not self._was_open or not _is_passing(error):
            self.close()
            raise error
        wait_s = min(self._retry_s * 2**self._failures, _WAIT_MAX_S) * random.uniform(0.75, 1.25)  # noqa: S311
        if isinstance(error, ProblemError) and error.retry_after_s is not None:
            wait_s = max(wait_s, min(error.retry_after_s, _WAIT_MAX_S))
        self._failures = min(self._failures + 1, 10)
        self._on_wait(str(error), wait_s)
        await self._wait_for(deferLater(self._reactor, wait_s))

    def _take(self, event: Event | None, stream: "_Stream") -> Change | Reset | None:
        """Return what an event says; None for what says nothing to us."""
        if stream.retry_s is not None:
            self._retry_s = min(max(stream.retry_s, _WAIT_MIN_S), _WAIT_MAX_S)
        if event is None:
            self._last_id = stream.last_id
            return None
        change = _decode(event)
        self._last_id = event.last_id
        if change is None or (isinstance(change, Change) and change.revision <= self._told):
            return None  # it was told before
        self._told = change.revision
        return change

    async def _open(self) -> "_Stream":
        headers = Headers({"Accept": ["text/event-stream"], "Cache-Control": ["no-store"], "User-Agent": ["postd"]})
        if self._last_id:
            headers.setRawHeaders("Last-Event-ID", [self._last_id])
        try:
            asking = self._agent.request(b"GET", self._url.encode("ascii"), headers, None)
            answer = await asking.addTimeout(ANSWER_MAX_S, self._reactor, say_late)
        except (ClientError, CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - what a connection can fail with is not told in one place
            raise no_answer(error, self._url) from None
        fields = fields_of(answer)
        if answer.code != 200:
            raise read_problem(answer.code, fields, await self._read_body(answer))
        stream = _Stream(self._reactor, self._last_id, self._silent_max_s)
        answer.deliverBody(stream)
        if fields.get("content-type", "").partition(";")[0].strip().lower() != "text/event-stream":
            stream.give_up()
            raise UnusableAnswerError("the answer is no event stream: is the URL right?")
        self._was_open = True
        return stream

    async def _read_body(self, answer: Any) -> bytes:
        body = _Body()
        answer.deliverBody(body)
        try:
            await body.done.addTimeout(ANSWER_MAX_S, self._reactor)
        except TimeoutError:
            body.give_up()
        return bytes(body.content)


def _is_passing(error: ClientError) -> bool:
    match error:
        case NoAnswerError():
            return True
        case ProblemError():
            return error.status in _PASSING
        case SignInError():
            return error.passing
    return False


def _decode(event: Event) -> Change | Reset | None:
    known = event.kind in {*ChangeKind, "reset"}
    if not known:
        return None  # of a newer server
    try:
        revision = int(event.last_id) if event.last_id.isascii() and event.last_id.isdecimal() else -1
        told = None if event.kind == "reset" else msgspec.json.decode(event.data, type=_ToldPost)
    except (msgspec.DecodeError, ValueError, RecursionError):
        revision = -1
    if revision < 0 or (told is not None and (told.post is None) != (event.kind == ChangeKind.DELETED)):
        raise UnusableAnswerError(f"the server sends an event {event.kind!r} that cannot be understood")
    if told is None:
        return Reset(revision)
    return Change(revision, ChangeKind(event.kind), told.id, told.post)


class _Body(Protocol):
    """Takes the body of an answer, as far as it is of a reasonable size."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.done: Deferred[None] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self.content += data
        if len(self.content) > _PROBLEM_MAX_BYTES:
            self.give_up()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: ARG002
        if not self.done.called:
            self.done.callback(None)

    def give_up(self) -> None:
        cast("Any", self.transport).loseConnection()


class _Stream(Protocol):
    """An event stream that comes in. It is held up when nobody takes what is in it.

    Args:
        reactor: the clock.
        last_id: of the last event before.
        silent_max_s: how long it may be silent.
    """

    transport: Any

    def __init__(self, reactor: Any, last_id: str, silent_max_s: float) -> None:
        self._reactor = reactor
        self._decoder = EventDecoder(last_id)
        self._silent_max_s = silent_max_s
        self._events: deque[Event] = deque()
        self._news = False
        self._error: ClientError | None = None
        self._waiter: Deferred[None] | None = None
        self._held_up = False
        self._silence: Any = None
        self.last_id = last_id

    @property
    def retry_s(self) -> float | None:
        """How long the server wants us to wait before we come again, in seconds."""
        return None if self._decoder.retry_ms is None else self._decoder.retry_ms / 1000

    async def next_event(self) -> Event | None:
        """Return the next event; None when something came that is none, such as a comment.

        Raises:
            NoAnswerError: the stream has ended.
            UnusableAnswerError: it is none.
        """
        if not self._events and not self._news and self._error is None:
            self._waiter = Deferred()
            await self._waiter
        if self._events:
            event = self._events.popleft()
            if self._held_up and len(self._events) <= WAITING_MAX // 2:
                self._held_up = False
                self.transport.resumeProducing()
                self._watch_silence()
            return event
        if self._news:
            self._news = False
            return None
        assert self._error is not None
        raise self._error

    def connectionMade(self) -> None:
        self._watch_silence()

    def dataReceived(self, data: bytes) -> None:
        if self._error is not None:
            return
        self._watch_silence()
        try:
            self._events += self._decoder.decode(data)
        except EventStreamError as error:
            self._end(UnusableAnswerError(f"this is no event stream: {error}"))
            self.transport.loseConnection()
            return
        self._news = True
        self.last_id = self._decoder.last_id
        if len(self._events) >= WAITING_MAX:
            # Nothing comes, and so nothing can be missed, until we let it.
            self._held_up = True
            self._silence.cancel()
            self.transport.pauseProducing()
        self._tell()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        ended = reason.check(ResponseDone)
        self._end(NoAnswerError("the server has ended the stream" if ended else "the connection was lost"))

    def give_up(self) -> None:
        """End it, and take nothing of it any more."""
        self._end(NoAnswerError("it was given up"))
        if self.transport is not None:
            self.transport.loseConnection()

    def _end(self, error: ClientError) -> None:
        if self._silence is not None and self._silence.active():
            self._silence.cancel()
        if self._error is None:
            self._error = error
            self._tell()

    def _watch_silence(self) -> None:
        if self._silence is not None and self._silence.active():
            self._silence.reset(self._silent_max_s)
        elif self._error is None:
            self._silence = self._reactor.callLater(self._silent_max_s, self._fall_silent)

    def _fall_silent(self) -> None:
        self._end(NoAnswerError(f"nothing was heard for {self._silent_max_s:.0f} s"))
        self.transport.loseConnection()

    def _tell(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)
