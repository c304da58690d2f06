"""Ports on sockets that worker processes share, or that the parent process or systemd has bound.

Stock ports accept a hundred connections at once, and treat each socket as their own. docs/explanation/front.md lists
the departures; `tests/net/test_listening.py` and `tests/integration/test_workers.py` test them.
"""

import os
import socket
import time
from typing import Any

from msgspec import Struct
from twisted.internet import tcp, unix
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.linux import check_socket_path
from postd.net.endpoints import DryRunReactor
from postd.reactor import IReactor
from postd.twisted_private import close_without_shutdown, make_port, take_adopted_socket

ACCEPT_EVERY_S = 0.0005
"""How long a worker pauses after a connection, in seconds: about as long as a request takes."""


_log = Logger()


class InheritedSocket(Struct, frozen=True):
    """A bound socket that a worker inherits: its endpoint string, its address family, and its file descriptor."""

    description: str
    family: int
    fd: int


class BindingReactor(DryRunReactor):
    """The reactor that endpoints are given to bind new sockets, or to adopt sockets of systemd."""

    def __init__(self, reactor: IReactor) -> None:
        self._reactor: Any = reactor

    def listenTCP(self, port: int, factory: IProtocolFactory, **keywords: Any) -> IListeningPort:
        return _start(TCPPort(port, factory, reactor=self._reactor, **keywords))

    def listenUNIX(self, address: str, factory: IProtocolFactory, **keywords: object) -> IListeningPort:
        check_socket_path(address)  # Twisted would make a lock file first, and leave it there
        bound: IListeningPort = self._reactor.listenUNIX(address, factory, **keywords)
        return bound

    def adoptStreamPort(self, fd: int, family: int, factory: IProtocolFactory) -> IListeningPort:
        if family == socket.AF_UNIX:
            return _start(make_port(InheritedUnixPort, self._reactor, fd, family, factory))
        return _start(make_port(TCPPort, self._reactor, fd, family, factory))


class AdoptingReactor(DryRunReactor):
    """The reactor that an endpoint is given to listen on an inherited socket, in place of a new one."""

    def __init__(self, inherited: InheritedSocket, reactor: IReactor) -> None:
        self._inherited = inherited
        self._reactor = reactor

    def listenUNIX(self, address: str, factory: IProtocolFactory, **keywords: object) -> IListeningPort:  # noqa: ARG002
        return self.listenTCP(0, factory)

    def listenTCP(self, port: int, factory: IProtocolFactory, **keywords: object) -> IListeningPort:  # noqa: ARG002
        fd, family = self._inherited.fd, self._inherited.family
        kind: type[tcp.Port] = SharedUnixPort if family == socket.AF_UNIX else SharedPort
        adopted = make_port(kind, self._reactor, fd, family, factory)
        os.close(fd)  # the port has a copy
        return _start(adopted)


def _start(port: tcp.Port) -> IListeningPort:
    port.startListening()
    return port


class TCPPort(tcp.Port):
    """A TCP socket. Stock Twisted prepares to log errors whenever it accepts; here it is called where there is one."""

    def doRead(self) -> None:
        accepted = 0
        while accepted < self.numberAccepts:
            try:
                client, address = self.socket.accept()
            except BlockingIOError:
                break
            except OSError:
                super().doRead()  # it logs the error, and knows what to do without a free descriptor
                return
            accepted += 1
            self._connect(client, address)
        # As stock Twisted: more after as many as expected, else one call less, which would find none.
        self.numberAccepts = accepted + 20 if accepted == self.numberAccepts else max(1, accepted)

    def _connect(self, client: socket.socket, address: Any) -> None:
        peer: IPv4Address | IPv6Address
        if self.addressFamily == socket.AF_INET:
            peer = IPv4Address("TCP", *address)
        else:
            if address[3]:  # the name of the scope is part of the host
                address = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0], *address[1:]
            peer = IPv6Address("TCP", *address)
        assert self.factory is not None
        protocol = None
        try:
            protocol = self.factory.buildProtocol(peer)
            if protocol is not None:
                number = self.sessionno
                self.sessionno += 1
                protocol.makeConnection(self.transport(client, protocol, address, self, number, self.reactor))
        except BaseException:  # noqa: BLE001 - the error ends this connection only
            _log.failure("a connection could not be accepted")
        if protocol is None:
            client.close()


class _OneAtATime:
    """Mixin for ports: accepts one connection and pauses, so that other processes accept the next."""

    _next_s = 0.0
    numberAccepts: int

    def doRead(self) -> None:
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + ACCEPT_EVERY_S
            self.numberAccepts = 1
            super().doRead()  # type: ignore[misc]


class SharedPort(_OneAtATime, TCPPort):
    """A TCP socket that several processes accept on."""


class InheritedUnixPort(unix.Port):
    """A UNIX socket that another process has bound."""

    def startListening(self) -> None:
        # As stock Twisted after it has bound the socket, but without another `listen`, which would change the backlog.
        assert self.factory is not None
        self.factory.doStart()
        self.socket = take_adopted_socket(self)
        self.fileno = self.socket.fileno  # type: ignore[method-assign]
        self.connected = True
        close_without_shutdown(self)
        self.numberAccepts = 100
        self.startReading()

    def connectionLost(self, reason: Failure) -> None:
        tcp.Port.connectionLost(self, reason)


class SharedUnixPort(_OneAtATime, InheritedUnixPort):
    """A UNIX socket that several processes accept on."""
