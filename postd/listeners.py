"""Listening: endpoint strings become bound ports, or one line that says why not.

Ports are bound before the reactor runs and before twistd forks, so that a taken port ends the start. Worker processes
inherit them, and accept on the same sockets.

Departures from stock Twisted, for sockets that are shared:

- A worker accepts one connection and leaves the next to others for a moment. Stock Twisted accepts a hundred at once:
  one worker would have a burst of clients almost for itself, and for as long as they stay.
- A UNIX socket keeps its name and its mode, which are the parent's to care for, and is not shut down when a worker
  ends. A port of stock Twisted that adopts one sees to all that as if it were alone.
"""

import ipaddress
import os
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from OpenSSL import SSL, crypto
from twisted.internet import tcp, unix
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import gatherResults, maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress, IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from postd.errors import ConfigError
from postd.proxied import ProxiedEndpoint
from postd.reactor import IReactor

KINDS = ("tcp", "tcp6", "ssl", "tls", "unix", "systemd", "haproxy")
"""The endpoints that make sense for a server, of those that Twisted has."""

_WANTED = f"an endpoint such as tcp:8080:interface=127.0.0.1; kinds: {', '.join(KINDS)}"


ACCEPT_EVERY_S = 0.0005
"""How long a worker leaves further connections to others when it has accepted one; to serve it takes about as long."""


BACKLOG = 1024
"""How many connections may wait to be accepted; the kernel may have a lower limit. Stock Twisted has 50: of a burst of
clients most would wait for a second, until they try again."""

UNSENT_MAX_BYTES = 128 * 1024
"""How much of an answer the kernel takes before the network has. What a client does not read it would keep: 3 MB."""


class Listener(Struct, frozen=True):
    """A bound port. `tls` tells whether what goes through it is encrypted by us."""

    description: str
    port: IListeningPort
    tls: bool

    @property
    def exposed(self) -> bool:
        """Whether strangers can reach it and read along: neither loopback, nor a UNIX socket, nor TLS."""
        address = self.port.getHost()
        if self.tls or isinstance(address, UNIXAddress):
            return False
        host = ipaddress.ip_address(_host(address))
        mapped = getattr(host, "ipv4_mapped", None)
        return not (mapped or host).is_loopback

    @property
    def url(self) -> str:
        """Where it really listens, as a person would type it."""
        address = self.port.getHost()
        if isinstance(address, UNIXAddress):
            return f"unix:{_unix_name(address)}"
        host = _host(address)
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{address.port}/"  # type: ignore[attr-defined]


class Inherited(Struct, frozen=True):
    """A bound socket as a worker gets it: the endpoint that it is of, its address family, and its file descriptor."""

    description: str
    family: int
    fd: int


def bind(descriptions: Sequence[str], factory: IProtocolFactory, *, where: str, reactor: IReactor) -> list[Listener]:
    """Bind all endpoints, or none.

    Args:
        descriptions: endpoint strings as Twisted has them, with absolute paths.
        factory: serves the connections, once the reactor runs.
        where: the setting they come from, for the error.
        reactor: listens.

    Raises:
        ConfigError: an endpoint cannot be understood, or its address cannot be had.
    """
    if not descriptions:
        raise ConfigError(where, f"nothing to listen on; give {_WANTED}")
    listeners: list[Listener] = []
    try:
        for description in descriptions:
            endpoint = _endpoint(description, where, reactor)
            port = _listen(endpoint, factory, f"{where}: {description}")
            listeners.append(Listener(description, port, _kinds(description)[-1] in {"ssl", "tls"}))
            with suppress(OSError):  # it goes without
                _tune(port, description)
    except ConfigError:
        let_go(listeners)
        raise
    return listeners


def keep_waiting(listeners: Sequence[Listener]) -> None:
    """Accept nobody for now: who connects waits."""
    for listener in listeners:
        port: Any = listener.port
        port.stopReading()


def let_in(listeners: Sequence[Listener]) -> None:
    """Accept those who wait, and all who come."""
    for listener in listeners:
        port: Any = listener.port
        port.startReading()


def accept_waiting(listeners: Sequence[Listener]) -> None:
    """Accept all who have connected by now: when a port is closed they are turned away."""
    for listener in listeners:
        port: Any = listener.port
        port.numberAccepts = socket.SOMAXCONN
        tcp.Port.doRead(port)


def own_locks(listeners: Sequence[Listener]) -> None:
    """Put the number of this process into the locks beside UNIX sockets; twistd forks after they were bound.

    Else whoever starts next takes the locks for those of a process that has died, and the sockets with them.
    """
    for listener in listeners:
        lock = getattr(listener.port, "lockFile", None)
        if lock is not None:
            name = os.fsencode(lock.name)
            made = b"%b.%d" % (name, os.getpid())
            with suppress(OSError):  # twistd may have given up the right to, for another user's
                os.symlink(b"%d" % os.getpid(), made)  # noqa: PTH211 - a path of bytes, as below
                os.replace(made, name)  # noqa: PTH105


async def close(listeners: Sequence[Listener]) -> None:
    """Close ports while the reactor runs."""
    await gatherResults(
        [maybeDeferred(one.port.stopListening).addErrback(_close_all_the_same, one.port) for one in listeners]
    )


def _close_all_the_same(failure: Failure, port: Any) -> None:
    """Close a UNIX socket whose name or lock cannot be removed: stock Twisted gives up with the socket open."""
    failure.trap(OSError, ValueError)
    tcp.Port.connectionLost(port, failure)


def hold(listeners: Sequence[Listener]) -> list[Inherited]:
    """Leave bound ports to workers: nothing is accepted here. Return what to hand on."""
    handed: list[Inherited] = []
    for listener in listeners:
        port: Any = listener.port
        port.stopReading()
        port._shouldShutdown = False  # noqa: SLF001 - workers accept on it until they close it
        handed.append(Inherited(listener.description, port.socket.family, port.fileno()))
    return handed


def adopt(sockets: Sequence[Inherited], factory: IProtocolFactory, *, where: str, reactor: IReactor) -> list[Listener]:
    """Accept on sockets that another process has bound; their file descriptors are closed, and others taken for them.

    Args:
        sockets: what `hold` gave there; endpoints are built around them as they are around sockets of our own.
        factory: serves the connections.
        where: the setting they come from, for the error.
        reactor: listens.

    Raises:
        ConfigError: the key or the certificate of an endpoint cannot be used any more.
    """
    listeners: list[Listener] = []
    for one in sockets:
        # What systemd has passed on it passed on to the parent alone.
        description = re.sub(r"^((?:haproxy:)*)systemd:.*", r"\1tcp:0", one.description, flags=re.DOTALL)
        endpoint = _endpoint(description, where, cast("IReactor", _Adopting(one, reactor)))
        port = _listen(endpoint, factory, f"{where}: {one.description}")
        listeners.append(Listener(one.description, port, _kinds(one.description)[-1] in {"ssl", "tls"}))
    return listeners


class _Adopting:
    """What endpoints take for a reactor: wherever it is told to listen, that is the socket which is there already."""

    def __init__(self, inherited: Inherited, reactor: IReactor) -> None:
        self._inherited = inherited
        self._reactor = reactor

    def listenTCP(self, _port: int, factory: IProtocolFactory, *_: Any, **__: Any) -> IListeningPort:
        return self._adopt(factory)

    def listenSSL(
        self, _port: int, factory: IProtocolFactory, contextFactory: Any, *_: Any, **__: Any
    ) -> IListeningPort:
        return self._adopt(TLSMemoryBIOFactory(contextFactory, False, factory))  # noqa: FBT003 - Twisted's signature

    def listenUNIX(self, _address: str, factory: IProtocolFactory, *_: Any, **__: Any) -> IListeningPort:
        return self._adopt(factory)

    def _adopt(self, factory: IProtocolFactory) -> IListeningPort:
        fd, family = self._inherited.fd, self._inherited.family
        port: Any
        if family == socket.AF_UNIX:
            port = _SharedUnixPort._fromListeningDescriptor(self._reactor, fd, factory)  # noqa: SLF001
        else:
            port = _SharedPort._fromListeningDescriptor(self._reactor, fd, family, factory)  # noqa: SLF001
        os.close(fd)  # the port has a copy
        port.startListening()
        adopted: IListeningPort = port
        return adopted


class _Sharing:
    """Leaves connections to others who accept on the same socket."""

    _next_s = 0.0
    numberAccepts: int

    def doRead(self) -> None:
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + ACCEPT_EVERY_S
            self.numberAccepts = 1
            super().doRead()  # type: ignore[misc]


class _SharedPort(_Sharing, tcp.Port):
    """A TCP socket that others accept on, too."""


class _SharedUnixPort(_Sharing, unix.Port):
    """A UNIX socket that others accept on, too."""

    def startListening(self) -> None:
        # The way of TCP: what is bound already it takes as it is.
        tcp.Port.startListening(self)

    def connectionLost(self, reason: Failure) -> None:
        tcp.Port.connectionLost(self, reason)


def check_endpoint(description: str, *, where: str, reactor: IReactor) -> bool:
    """Make sure that an endpoint can be understood, without binding it; return whether strangers could reach it.

    Raises:
        ConfigError: it cannot be understood, or its key or its certificate cannot be used.
    """
    kind = _kinds(description)[-1]
    if kind == "systemd":  # what it is is known to the service alone
        return False
    _endpoint(description, where, reactor)
    named = re.search(r":interface=((?:\\.|[^:\\])*)", description)
    interface = re.sub(r"\\(.)", r"\1", named[1]) if named else ""
    try:
        loopback = ipaddress.ip_address(interface).is_loopback
    except ValueError:
        loopback = interface == "localhost"
    return kind in {"tcp", "tcp6"} and not loopback


def let_go(listeners: Sequence[Listener]) -> None:
    """Close ports before the reactor runs. It would take the names of UNIX sockets away in its next turn."""
    for listener in listeners:
        address = listener.port.getHost()
        listener.port.stopListening()
        if isinstance(address, UNIXAddress):
            for suffix in ("", ".lock"):
                Path(_unix_name(address) + suffix).unlink(missing_ok=True)


def _kinds(description: str) -> list[str]:
    """The kinds of an endpoint, outermost first: haproxy:tcp:80 is haproxy, then tcp."""
    kind, _, rest = description.partition(":")
    return [kind, *_kinds(rest)] if kind == "haproxy" else [kind]


def _endpoint(description: str, where: str, reactor: IReactor) -> IStreamServerEndpoint:
    known = all(kind in KINDS for kind in _kinds(description))
    # Twisted takes an empty path for one, and leaves a lock file of that name behind.
    if not known or description.endswith("unix:"):
        raise ConfigError(where, f"{description!r} is not {_WANTED}")
    kind, _, rest = description.partition(":")
    if kind == "haproxy":
        return ProxiedEndpoint(_endpoint(rest, where, reactor))
    try:
        endpoint: IStreamServerEndpoint = serverFromString(reactor, description)
    except OSError as error:
        raise ConfigError(where, f"{description}: {error.filename}: {error.strerror}") from None
    except Exception as error:  # noqa: BLE001 - the parsers raise what int(), OpenSSL and missing arguments give
        if isinstance(error, LookupError) and _kinds(description)[-1] == "systemd":
            raise ConfigError(where, f"{description}: systemd has not passed on such a socket") from None
        if isinstance(error, SSL.Error | crypto.Error):
            raise ConfigError(where, f"{description}: its key or its certificate is not one, in PEM form") from None
        raise ConfigError(where, f"{description!r} is not {_WANTED}") from None
    return endpoint


def _listen(endpoint: IStreamServerEndpoint, factory: IProtocolFactory, where: str) -> IListeningPort:
    ports: list[IListeningPort] = []
    failures: list[Failure] = []
    # Every kind we allow is bound at once; none waits for the reactor.
    endpoint.listen(factory).addCallbacks(ports.append, failures.append)
    if failures:
        error: Any = failures[0].value
        if isinstance(error, CannotListenError):
            error = error.socketError
        raise ConfigError(where, f"cannot listen: {_words(error)}")
    return ports[0]


def _tune(port: Any, description: str) -> None:
    """Set what sockets do for us, and for those that are accepted on them."""
    if _kinds(description)[-1] != "systemd" and not re.search(r"(?<!\\):backlog=", description):
        port.socket.listen(BACKLOG)
    if port.socket.family != socket.AF_UNIX:
        port.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX_BYTES)


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{error}" or type(error).__name__


def _host(address: IAddress) -> str:
    if isinstance(address, IPv4Address | IPv6Address):
        return str(address.host).partition("%")[0]
    return "0.0.0.0"  # noqa: S104 - an address family that we don't know is taken for an exposed one


def _unix_name(address: UNIXAddress) -> str:
    name = address.name
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
