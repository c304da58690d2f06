"""The connections of a client: reused, limited in time, and closed with the client."""

from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool

from postd.net.http_client import EndpointFactory
from postd.reactor import IReactor

CONNECT_MAX_S = 10.0
KEEP_ALIVE_S = 20
"""How long an idle connection is kept: shorter than servers do, which would close it during the next request."""

SILENT_MAX_S = 75.0
"""How long a connection may receive nothing: longer than a response takes, or an event stream is silent."""


class ConnectionPool:
    """The connections of a client; its arguments are described at `postd.client.auth.AuthClient`.

    Raises:
        ConfigError: `ca_file` cannot be used.
    """

    def __init__(self, reactor: IReactor, *, ca_file: str = "", repeats: bool = True) -> None:
        self._open: set[_Connection] = set()
        self._waiting: list[Deferred[None]] = []
        self._closed = False
        self._pool = HTTPConnectionPool(reactor)
        self._pool.cachedConnectionTimeout = KEEP_ALIVE_S
        self._pool.retryAutomatically = repeats
        self._endpoints = EndpointFactory(reactor, partial(_Connection, self), CONNECT_MAX_S, ca_file=ca_file)
        self.agent = Agent.usingEndpointFactory(reactor, self._endpoints, self._pool)

    async def close(self) -> None:
        """Close all connections. Requests in progress fail."""
        self._closed = True
        self._endpoints.cancel()
        for connection in list(self._open):
            connection.abort()
        if self._open:
            closed: Deferred[None] = Deferred()
            self._waiting.append(closed)
            await closed
        await self._pool.closeCachedConnections()

    def record(self, connection: "_Connection", *, is_open: bool) -> None:
        """Record that a connection was made or lost. One that was made after `close` is aborted."""
        if is_open and self._closed:
            connection.abort()
        (self._open.add if is_open else self._open.discard)(connection)
        if not self._open:
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                waiter.callback(None)


class _Connection(ProtocolWrapper):
    """A connection below TLS, where it can be aborted without a reply of the peer."""

    transport: Any

    def __init__(self, pool: ConnectionPool, factory: Any, wrapped: IProtocol) -> None:
        super().__init__(factory, wrapped)
        self._pool = pool

    def connectionMade(self) -> None:
        self._silence_timeout = self.factory.reactor.callLater(SILENT_MAX_S, self.abort)
        self._pool.record(self, is_open=True)
        super().connectionMade()

    def dataReceived(self, data: bytes) -> None:
        if self._silence_timeout.active():
            self._silence_timeout.reset(SILENT_MAX_S)
        super().dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._silence_timeout.active():
            self._silence_timeout.cancel()
        super().connectionLost(reason)
        self._pool.record(self, is_open=False)

    def abort(self) -> None:
        self.transport.abortConnection()
