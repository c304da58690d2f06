"""A server that answers as a test wants it to, and breaks off where a test wants it to, over real connections."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from msgspec import Struct
from twisted.internet import reactor as global_reactor
from twisted.internet import tcp
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater

from postd.client import AuthClient
from postd.reactor import IReactor
from tests.helpers import PATIENCE_S

REACTOR = cast(Any, global_reactor)
WAIT_MAX_S = PATIENCE_S


class Asked(Struct):
    """A request; the names of its fields are in lower case."""

    method: str
    target: str
    fields: dict[str, str]
    body: bytes
    connection: Any

    @property
    def authorization(self) -> str:
        return self.fields.get("authorization", "")

    def send(self, data: bytes) -> None:
        """Send something later on, past what was returned."""
        self.connection.transport.write(data)


class Cut(Struct):
    """Some bytes, after which the connection ends: in order, or not."""

    data: bytes = b""
    in_order: bool = False


Handler = Callable[[Asked], bytes | Cut]


def answer(status: int = 200, body: bytes | str = b"", **fields: str) -> bytes:
    """Return an answer with a length; underscores in the names of fields stand for hyphens."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} -", f"Content-Length: {len(content)}", *lines, "", ""])
    return head.encode() + content


def problem(status: int, detail: str = "", **fields: str) -> bytes:
    body = json.dumps({"type": "about:blank", "title": "Some Title", "status": status, "detail": detail})
    return answer(status, body, Content_Type="application/problem+json", **fields)


EVENT_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
"""The head of a stream that ends with its connection."""


class Server(Factory):
    """Remembers what it was asked, and leaves the answer to `handler`, which a test may replace."""

    noisy = False

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.asked: list[Asked] = []
        self.open: set[Any] = set()
        self.connections = 0

    def start(self) -> None:
        self._port = REACTOR.listenTCP(0, self, interface="127.0.0.1")
        self.url = f"http://127.0.0.1:{self._port.getHost().port}"

    async def stop(self) -> None:
        await maybeDeferred(self._port.stopListening)
        for connection in list(self.open):
            connection.transport.abortConnection()
        await wait_until(lambda: not self.open)

    def buildProtocol(self, _: object) -> Protocol:
        self.connections += 1
        return _Connection(self)

    @property
    def last(self) -> Asked:
        return self.asked[-1]


class _Connection(Protocol):
    transport: Any

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = b""

    def connectionMade(self) -> None:
        self._server.open.add(self)

    def connectionLost(self, reason: object = None) -> None:
        self._server.open.discard(self)

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("utf-8").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(fields.get("content-length", 0))
        if len(rest) < length:
            return
        self._received = rest[length:]
        method, target, _ = first.split(" ")
        asked = Asked(method, target, fields, rest[:length], self)
        self._server.asked.append(asked)
        match self._server.handler(asked):
            case bytes() as sent:
                self.transport.write(sent)
            case Cut(data, in_order):
                self.transport.write(data)
                # What was written goes out first, either way.
                REACTOR.callLater(0.01, self.transport.loseConnection if in_order else self.transport.abortConnection)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    server = Server(handler)
    server.start()
    try:
        yield server
    finally:
        await server.stop()


async def wait_until(is_so: Callable[[], object]) -> None:
    deadline = REACTOR.seconds() + WAIT_MAX_S
    while not is_so():
        assert REACTOR.seconds() < deadline, "it did not come to that"
        await deferLater(cast(IReactor, REACTOR), 0.01)


async def error_of(call: Any, kind: type[Exception] = Exception) -> Any:
    """Return what a call raises."""
    try:
        result = await call
    except kind as error:
        return error
    raise AssertionError(f"it came to {result!r}")


def in_background(call: Any) -> Deferred[Any]:
    return Deferred.fromCoroutine(call)


def left_behind() -> list[Any]:
    """Return the connections of clients and the timers that there are."""
    connections = [one for one in REACTOR.getReaders() if isinstance(one, tcp.Client)]
    return [*connections, *REACTOR.getDelayedCalls()]


async def get(client: AuthClient, path: str = "/page?a=1&b=%20", **options: Any) -> int:
    """Ask for a page; return the status of the answer, once it is there whole."""
    response = await client.get(f"{client.origin}{path}", **options)
    await response.content()
    code: int = response.code
    return code
