"""A TCP server whose responses and disconnections a test chooses."""

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


class Request(Struct):
    """A received request; the names of its fields are in lower case."""

    method: str
    target: str
    fields: dict[str, str]
    body: bytes
    connection: Any

    @property
    def authorization(self) -> str:
        return self.fields.get("authorization", "")

    def send(self, data: bytes) -> None:
        """Send further bytes, after the returned response."""
        self.connection.transport.write(data)


class Disconnect(Struct):
    """Bytes after which the connection is closed (`in_order`) or reset."""

    data: bytes = b""
    in_order: bool = False


Handler = Callable[[Request], bytes | Disconnect]


def make_response(status: int = 200, body: bytes | str = b"", **fields: str) -> bytes:
    """Return a response with Content-Length; underscores in the names of fields stand for hyphens."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} -", f"Content-Length: {len(content)}", *lines, "", ""])
    return head.encode() + content


def problem(status: int, detail: str = "", **fields: str) -> bytes:
    body = json.dumps({"type": "about:blank", "title": "Some Title", "status": status, "detail": detail})
    return make_response(status, body, Content_Type="application/problem+json", **fields)


EVENT_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
"""The head of a stream that ends with its connection."""


class Server(Factory):
    """Records requests; `handler`, which a test may replace, returns the responses."""

    noisy = False

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[Request] = []
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
    def last(self) -> Request:
        return self.requests[-1]


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
        request = Request(method, target, fields, rest[:length], self)
        self._server.requests.append(request)
        match self._server.handler(request):
            case bytes() as sent:
                self.transport.write(sent)
            case Disconnect(data, in_order):
                self.transport.write(data)
                self._end(in_order=in_order)

    def _end(self, *, in_order: bool) -> None:
        """End the connection when the written bytes have been sent."""
        if in_order:
            self.transport.loseConnection()
        elif self.transport.dataBuffer or self.transport._tempDataBuffer:  # noqa: SLF001 - there is no public way
            REACTOR.callLater(0, self._end, in_order=False)
        else:
            self.transport.abortConnection()


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
        assert REACTOR.seconds() < deadline, "timeout"
        await deferLater(cast(IReactor, REACTOR), 0.01)


async def error_of(call: Any, kind: type[Exception] = Exception) -> Any:
    """Return the error that a call raises."""
    try:
        result = await call
    except kind as error:
        return error
    raise AssertionError(f"returned {result!r}")


def in_background(call: Any) -> Deferred[Any]:
    return Deferred.fromCoroutine(call)


def open_resources() -> list[Any]:
    """Return the open connections of clients and the pending timers."""
    connections = [one for one in REACTOR.getReaders() if isinstance(one, tcp.Client)]
    return [*connections, *REACTOR.getDelayedCalls()]


async def get(client: AuthClient, path: str = "/page?a=1&b=%20", **options: Any) -> int:
    """Request a page; return the status of the complete response."""
    response = await client.get(f"{client.origin}{path}", **options)
    await response.content()
    code: int = response.code
    return code
