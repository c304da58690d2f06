"""In-memory connections to postd's server and to stock Twisted's: requests that reach the resource, and output."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from msgspec import Struct
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import Site

from tests.front.corpus import MAX_BODY_BYTES
from tests.helpers import MemoryTransport, make_site

_ABSOLUTE_FORM = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE)

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [\x20-\x7e]+")
_FIELD = re.compile(rb"([A-Za-z0-9-]+): ([\x20-\x7e]*)")


class Seen(Struct, frozen=True):
    """A request as a resource gets it.

    Args:
        method: as sent.
        target: in origin form, whatever form it was sent in: its path, and its query.
        old: whether it is HTTP/1.0; all later versions mean the same.
        fields: the values of each name, which is in lower case.
        body: without its coding.
    """

    method: bytes
    target: bytes
    old: bool
    fields: Mapping[bytes, Sequence[bytes]]
    body: bytes

    @classmethod
    def of(cls, method: bytes, target: bytes, *, old: bool, fields: Iterable[tuple[bytes, bytes]], body: bytes) -> Self:
        """Take a request from a parser that leaves targets as they are (RFC 9112 §3.2.2 for those in absolute form)."""
        by_name: dict[bytes, list[bytes]] = {}
        for name, value in fields:
            by_name.setdefault(name.lower(), []).append(value)
        absolute = _ABSOLUTE_FORM.fullmatch(target)
        if absolute is not None:
            by_name[b"host"] = [absolute[1]]
            target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
        return cls(method, target, old, by_name, body)


class Recorder(Resource):
    """Answers 200 to each request that reaches it, and keeps the request in `seen`."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []

    def reset(self) -> list[Seen]:
        """Start a new list of requests, and return it."""
        self.seen = []
        return self.seen

    def render(self, request: Any) -> bytes:
        fields = {name.lower(): values for name, values in request.requestHeaders.getAllRawHeaders()}
        old = request.clientproto == b"HTTP/1.0"
        _, mark, query = request.uri.partition(b"?")
        self.seen.append(Seen(request.method, request.path + mark + query, old, fields, request.content.read()))
        return b"seen\n"


class Transport(MemoryTransport):
    """A client's end of a TCP connection, which can be half closed."""

    write_closed = False

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: FBT001 - Twisted's signature
        """Called for each connection that provides TCP, as a real one does."""

    def loseConnection(self) -> None:
        self.disconnecting = True  # buffered input is no longer parsed
        super().loseConnection()

    def loseWriteConnection(self) -> None:
        self.write_closed = True

    @property
    def ended(self) -> bool:
        """Whether the server has closed its end."""
        return self.write_closed or not self.connected


class Answered(Struct):
    """A final response. Names of fields are in lower case."""

    status: int
    fields: Mapping[str, Sequence[str]]
    body: bytes


class Talk(Struct):
    """The outcome of a connection."""

    answers: Sequence[Answered]
    continue_count: int
    ended: bool
    seen: Sequence[Seen] = ()

    @property
    def statuses(self) -> Sequence[int]:
        return [answer.status for answer in self.answers]


def settle(clock: Clock) -> None:
    """Run all calls that are due, and those that they schedule without a delay."""
    for _ in range(10_000):
        calls = clock.getDelayedCalls()
        if not calls or min(call.getTime() for call in calls) > clock.seconds():
            return
        clock.advance(0)
    raise AssertionError("there is always another call that is due")


def converse(site: Any, clock: Clock, pieces: Iterable[bytes]) -> Transport:
    """Send pieces on a new connection, each after the one before has been processed."""
    transport = Transport()
    channel = site.buildProtocol(None)
    transport.protocol = channel
    channel.makeConnection(transport)
    for piece in pieces:
        if not transport.connected:
            break
        channel.dataReceived(piece)
        calls = clock.getDelayedCalls()
        if calls:
            settle(clock)
    return transport


def in_bytes(sent: bytes) -> list[bytes]:
    """Split into single bytes."""
    return [sent[place : place + 1] for place in range(len(sent))]


def hang_up(transport: Transport) -> None:
    if transport.connected:
        transport.loseConnection()


def decode_responses(received: bytes, taken: Sequence[Seen]) -> tuple[list[Answered], int]:
    """Decode the output of a connection, strictly; return the final responses and the number of interim ones.

    Args:
        received: the whole output.
        taken: the requests that reached the resource; a further response is to a refused request.
    """
    answers: list[Answered] = []
    interim = 0
    rest = received
    while rest:
        head, separator, rest = rest.partition(b"\r\n\r\n")
        assert separator, f"a response without the end of its head: {received!r}"
        line, *lines = head.split(b"\r\n")
        status = _STATUS_LINE.fullmatch(line)
        assert status, line
        fields: dict[str, list[str]] = {}
        for text in lines:
            field = _FIELD.fullmatch(text)
            assert field, text
            fields.setdefault(field[1].decode().lower(), []).append(field[2].decode())
        code = int(status[1])
        if code < 200:
            assert code == 100
            interim += 1
            continue
        length = 0
        if code not in {204, 304}:
            (text_length,) = fields["content-length"]
            # A refused request may have been a HEAD.
            has_body = taken[len(answers)].method != b"HEAD" if len(answers) < len(taken) else bool(rest)
            length = int(text_length) if has_body else 0
        assert len(rest) >= length, f"a truncated response: {received!r}"
        answers.append(Answered(code, fields, rest[:length]))
        rest = rest[length:]
    return answers, interim


class Ours:
    """postd's server, with a `Recorder`."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.recorder = Recorder()
        self.site = make_site(self.recorder, clock=self.clock, max_body_bytes=MAX_BODY_BYTES)

    def talk(self, *pieces: bytes) -> Talk:
        seen = self.recorder.reset()
        transport = converse(self.site, self.clock, pieces)
        ended = transport.ended
        received = transport.value()
        hang_up(transport)
        answers, continue_count = decode_responses(received, seen)
        return Talk(answers, continue_count, ended, seen)


class _SilentSite(Site):
    def log(self, request: Any) -> None:
        """Called for each request."""


class Stock:
    """Twisted's own `Site` and channel, with a `Recorder`."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.recorder = Recorder()
        self.site = _SilentSite(self.recorder, reactor=self.clock)

    def seen(self, sent: bytes) -> Sequence[Seen]:
        """Return the requests that reach the resource."""
        seen = self.recorder.reset()
        # A length of thousands of digits raises past the channel; a reactor would close the connection.
        with suppress(ValueError):
            hang_up(converse(self.site, self.clock, [sent]))
        return seen
