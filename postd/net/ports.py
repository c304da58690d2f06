"""Ports of sockets that are shared with other processes, or that another process has bound.

Departures from stock Twisted, for sockets that are shared or of another process:

- A worker accepts one connection and leaves the next to others for a moment. Stock Twisted accepts a hundred at once:
  one worker would have a burst of clients almost for itself, and for as long as they stay.
- A UNIX socket that is made has mode 0660 unless its endpoint says otherwise (contract 7); stock Twisted gives it 0666.
  In both, it has it before it listens: there is no moment in which others could connect.
- A UNIX socket keeps its name and its mode, which are the parent's or systemd's to care for, and is not shut down when
  a process ends. A port of stock Twisted that adopts one sees to all that as if it were alone.
- What is shown to clients of TLS can be replaced (`postd.net.tls`).
"""

import os
import socket
import time
from typing import Any

from msgspec import Struct
from twisted.internet import tcp, unix
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.python.failure import Failure

import postd.linux  # noqa: F401 - refuses other systems
from postd.errors import check_socket_path
from postd.net.endpoints import DryRunReactor
from postd.reactor import IReactor
from postd.twisted_private import close_without_shutdown, make_port, take_adopted_socket

ACCEPT_EVERY_S = 0.0005
"""How long a worker leaves further connections to others when it has accepted one; to serve it takes about as long."""


class Inherited(Struct, frozen=True):
    """A bound socket as a worker gets it: the endpoint that it is of, its address family, and its file descriptor."""

    description: str
    family: int
    fd: int


class BindingReactor(DryRunReactor):
    """What endpoints take for a reactor: it listens as that does, but for what is said at the top.

    Args:
        reactor: listens.
    """

    def __init__(self, reactor: IReactor) -> None:
        self._reactor: Any = reactor

    def listenTCP(self, port: int, factory: IProtocolFactory, **keywords: Any) -> IListeningPort:
        bound: IListeningPort = self._reactor.listenTCP(port, factory, **keywords)
        return bound

    def listenUNIX(self, address: str, factory: IProtocolFactory, **keywords: Any) -> IListeningPort:
        check_socket_path(address)  # before Twisted makes a lock beside it, and leaves it there
        bound: IListeningPort = self._reactor.listenUNIX(address, factory, **keywords)
        return bound

    def adoptStreamPort(self, fd: int, family: int, factory: IProtocolFactory) -> IListeningPort:
        if family == socket.AF_UNIX:
            return _start(make_port(InheritedUnixPort, self._reactor, fd, family, factory))
        adopted: IListeningPort = self._reactor.adoptStreamPort(fd, family, factory)
        return adopted


class AdoptingReactor(DryRunReactor):
    """What endpoints take for a reactor: wherever it is told to listen, that is the socket which is there already."""

    def __init__(self, inherited: Inherited, reactor: IReactor) -> None:
        self._inherited = inherited
        self._reactor = reactor

    def listenTCP(self, port: int, factory: IProtocolFactory, **keywords: Any) -> IListeningPort:  # noqa: ARG002
        return self._adopt(factory)

    def listenUNIX(self, address: str, factory: IProtocolFactory, **keywords: Any) -> IListeningPort:  # noqa: ARG002
        return self._adopt(factory)

    def _adopt(self, factory: IProtocolFactory) -> IListeningPort:
        fd, family = self._inherited.fd, self._inherited.family
        kind: type[tcp.Port] = SharedUnixPort if family == socket.AF_UNIX else SharedPort
        port = make_port(kind, self._reactor, fd, family, factory)
        os.close(fd)  # the port has a copy
        return _start(port)


def _start(port: Any) -> IListeningPort:
    port.startListening()
    started: IListeningPort = port
    return started


class _TakesTurns:
    """Leaves connections to others who accept on the same socket."""

    _next_s = 0.0
    numberAccepts: int

    def doRead(self) -> None:
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + ACCEPT_EVERY_S
            self.numberAccepts = 1
            super().doRead()  # type: ignore[misc]


class SharedPort(_TakesTurns, tcp.Port):
    """A TCP socket that others accept on, too."""


class InheritedUnixPort(unix.Port):
    """A UNIX socket that somebody else has bound."""

    def startListening(self) -> None:
        # What stock Twisted does once it has bound one; nor does it listen anew, with another backlog.
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


class SharedUnixPort(_TakesTurns, InheritedUnixPort):
    """A UNIX socket that others accept on, too."""
