"""Connections of a client: kept for the next request, bounded in time, and all gone when it is closed."""

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool

from postd.net.fetching import EndpointFactory
from postd.reactor import IReactor

CONNECT_MAX_S = 10.0
KEPT_S = 20
"""How long a connection is kept without a request: less than servers do, which would end it under the next one."""

SILENT_MAX_S = 75.0
"""How long a connection may bring nothing. Longer than any answer takes, or an event stream is silent."""


class Connections:
    """The connections of a client.

    Args:
        reactor: connects.
        ca_file: PEM file of further roots to trust; none if it is empty.
        repeats: whether a request without a body that got no answer on a kept connection is sent again on another.

    Raises:
        ConfigError: `ca_file` cannot be used.
    """

    def __init__(self, reactor: IReactor, *, ca_file: str = "", repeats: bool = True) -> None:
        self._reactor = reactor
        self._open: set[_Connection] = set()
        self._waiting: list[Deferred[None]] = []
        self._closed = False
        self._pool = HTTPConnectionPool(reactor)
        self._pool.cachedConnectionTimeout = KEPT_S
        self._pool.retryAutomatically = repeats
        endpoints = EndpointFactory(reactor, self._wrap, CONNECT_MAX_S, ca_file=ca_file)
        self.agent = Agent.usingEndpointFactory(reactor, endpoints, self._pool)

    async def close(self) -> None:
        """End all connections. What was asked and not answered fails."""
        self._closed = True
        for connection in list(self._open):
            connection.abort()
        if self._open:
            await self._gone()
        await self._pool.closeCachedConnections()

    def _gone(self) -> Deferred[None]:
        """Return what fires when no connection is there any more, for each who waits for it."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        return waiting

    def note(self, connection: "_Connection", *, is_open: bool) -> None:
        """Take note of a connection that was made or lost. One that was made too late is ended."""
        if is_open and self._closed:
            connection.abort()
        (self._open.add if is_open else self._open.discard)(connection)
        if not self._open:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one.callback(None)

    def _wrap(self, factory: Any) -> WrappingFactory:
        return _Factory(factory, self, self._reactor)


class _Connection(ProtocolWrapper):
    """A connection below TLS, where it can be ended whatever the other side does."""

    transport: Any

    def connectionMade(self) -> None:
        self._silence = self.factory.reactor.callLater(SILENT_MAX_S, self.abort)
        self.factory.connections.note(self, is_open=True)
        super().connectionMade()

    def dataReceived(self, data: bytes) -> None:
        if self._silence.active():
            self._silence.reset(SILENT_MAX_S)
        super().dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._silence.active():
            self._silence.cancel()
        super().connectionLost(reason)
        self.factory.connections.note(self, is_open=False)

    def abort(self) -> None:
        self.transport.abortConnection()


class _Factory(WrappingFactory):
    protocol = _Connection
    noisy = False

    def __init__(self, wrappedFactory: Any, connections: Connections, reactor: IReactor) -> None:
        super().__init__(wrappedFactory)
        self.connections = connections
        self.reactor = reactor
