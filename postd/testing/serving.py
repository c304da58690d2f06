"""Servers that end with a test: in memory, or at a free port (`Server`)."""

from typing import Any, Protocol, Self, TypeVar, cast

from treq.testing import StubTreq
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.protocols.policies import WrappingFactory
from twisted.test.iosim import FakeTransport, IOPump
from twisted.test.iosim import connect as connect_in_memory
from twisted.web.client import Agent
from twisted.web.iweb import IAgent, IAgentEndpointFactory
from twisted.web.resource import IResource
from twisted.web.server import Site
from zope.interface import implementer

from postd.client import Auth, AuthClient, SignInError
from postd.client.arguments import check_provides, check_reactor
from postd.reactor import AnyReactor
from postd.testing.credentials import Fields

PUMP_INTERVAL_S = 0.001
"""How often data written in memory is delivered."""


class _Client(Protocol):
    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=_Client)


class FactoryServer:
    """Serves the connections of a factory, in memory or at a free port: the base of `Server` and `PostServer`."""

    _log = Logger()

    def __init__(self, reactor: AnyReactor, factory: IProtocolFactory, *, on_port: bool = False) -> None:
        self._reactor = reactor = check_reactor(reactor)
        self._on_port = on_port
        self._factory = WrappingFactory(factory)  # it knows all connections
        self._factory.noisy = False
        self._clients: list[_Client] = []
        self._port: Any = None
        self.url = ""
        self._memory = _MemoryEndpoint(self._factory)
        self._memory_agent: IAgent | None = None
        self._pumping = LoopingCall(self._deliver)
        self._pumping.clock = reactor

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start accepting requests. A server is started once."""
        if self._on_port:
            self._port = self._reactor.listenTCP(0, cast(Any, self._factory), interface="127.0.0.1")
            self.url = f"http://127.0.0.1:{self._port.getHost().port}"
        else:
            self._factory.doStart()
            self._memory_agent = Agent.usingEndpointFactory(self._reactor, self._memory)
            self.url = "http://localhost"
        pumping = self._pumping.start(PUMP_INTERVAL_S)
        pumping.addErrback(lambda failure: self._log.failure("a connection in memory has failed", failure=failure))

    async def stop(self) -> None:
        """Close the clients of this server, its port and all connections; requests in progress fail."""
        for client in self._clients:
            await client.close()
        if self._port is not None:
            await maybeDeferred(self._port.stopListening)
        else:
            self._factory.doStop()
        while self._factory.protocols:
            for connection in list(self._factory.protocols):
                connection.transport.abortConnection()
            await deferLater(self._reactor, PUMP_INTERVAL_S)
        if self._pumping.running:
            self._pumping.stop()

    def client(self, auth: Auth | None = None) -> AuthClient:
        """Return treq's client with credentials, such as `postd.client.Digest`; it is closed with the server.

        For treq's own functions there is its agent: `treq.get(url, agent=server.client(auth).agent)`.
        """
        return self._closed_with_server(AuthClient(self._reactor, self.url, auth, agent=self._memory_agent))

    async def sign_in(self, user: str, password: str, *, path: str = "/") -> Fields:
        """Sign in by the form, and return the field `Cookie` of the session.

        Args:
            user: the name in the user file.
            password: the password in the user file.
            path: the path of the form, the `sign_in` of a `Protection`.

        Raises:
            SignInError: the form does not begin a session.
        """
        form = {"username": user, "password": password}
        url = f"{self.url}{path.rstrip('/')}/login"
        response = await self.client().post(url, data=form, allow_redirects=False)
        await response.content()
        cookies = response.headers.getRawHeaders("Set-Cookie", [])
        if response.code >= 400 or not cookies:
            raise SignInError(f"the form answers {response.code}, and no session has begun")
        return {"Cookie": cookies[0].partition(";")[0]}

    def _closed_with_server(self, client: ClientT) -> ClientT:
        self._clients.append(client)
        return client

    def _deliver(self) -> None:
        self._memory.flush()


class Server(FactoryServer):
    """Serves the resources of an application, by a stock `twisted.web.server.Site`, for the length of a test.

    It is an asynchronous context manager. In a `setUp` of `trial`, call `await server.start()`, and then
    `self.addCleanup(server.stop)`.

    Example::

        async with Server(reactor, resource) as server:
            response = await server.client().get(server.url)
            print(response.code)  # 200

    Args:
        reactor: the running reactor, also for connections in memory.
        resource: the root of the application's resources, such as `Klein().resource()`.
        on_port: listen at a free port of 127.0.0.1, for clients of any kind; otherwise requests stay in memory.

    Attributes:
        url: the origin, for URLs: `f"{server.url}/path"`; once it is started.
        treq: a `treq.testing.StubTreq` of the resource: treq's functions, in memory, whatever host a URL has. Its
            requests need no `flush`, but have to be finished when the server is stopped.
    """

    def __init__(self, reactor: AnyReactor, resource: IResource, *, on_port: bool = False) -> None:
        check_provides("resource", resource, IResource, "a resource")
        super().__init__(reactor, Site(resource, reactor=reactor), on_port=on_port)
        self.treq: Any = StubTreq(resource)

    def _deliver(self) -> None:
        super()._deliver()
        self.treq.flush()


@implementer(IAgentEndpointFactory, IStreamClientEndpoint)
class _MemoryEndpoint:
    """Connects the client of any URL to a factory in memory. `treq.testing` does so for resources alone."""

    def __init__(self, factory: IProtocolFactory) -> None:
        self._factory = factory
        self._pumps: list[IOPump] = []

    def endpointForURI(self, _uri: object) -> IStreamClientEndpoint:
        return self

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        here, there = IPv4Address("TCP", "127.0.0.1", 80), IPv4Address("TCP", "127.0.0.1", 40000)
        server, client = self._factory.buildProtocol(there), cast(IProtocol, protocolFactory.buildProtocol(here))
        self._pumps.append(
            connect_in_memory(
                server,
                FakeTransport(server, isServer=True, hostAddress=here, peerAddress=there),
                client,
                FakeTransport(client, isServer=False, hostAddress=there, peerAddress=here),
            )
        )
        return succeed(client)

    def flush(self) -> None:
        """Deliver the data that both sides have written."""
        for pump in list(self._pumps):
            pump.flush()
            if pump.clientIO.disconnected and pump.serverIO.disconnected:
                self._pumps.remove(pump)
