"""The bound ports of a server: bind, share with workers, pause, reload certificates, close.

Ports are bound before the reactor runs and before twistd forks, so that a taken port ends the start. Worker processes
inherit them, and accept on the same sockets.
"""

import ipaddress
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from twisted.internet import tcp
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import gatherResults, maybeDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IAddress, IListeningPort, IProtocolFactory
from twisted.python.failure import Failure

import postd.linux  # noqa: F401 - refuses other systems
from postd.errors import ConfigError
from postd.net.endpoint_strings import WANTED, is_proxied, is_systemd, kinds_of
from postd.net.endpoints import bind_endpoint, expiry_problem, read_certificate
from postd.net.ports import AdoptingReactor, BindingReactor, Inherited
from postd.net.tls import Certificate
from postd.reactor import IReactor
from postd.twisted_private import close_without_shutdown, systemd_sockets

BACKLOG = 1024
"""How many connections may wait to be accepted; the kernel may have a lower limit. Stock Twisted has 50: of a burst of
clients most would wait for a second, until they try again."""


UNSENT_MAX_BYTES = 128 * 1024
"""How much of an answer the kernel takes before the network has. What a client does not read it would keep: 3 MB."""


class Listener(Struct, frozen=True):
    """A bound port; `certificate` is what the clients of an `ssl:` endpoint are shown."""

    description: str
    port: IListeningPort
    certificate: Certificate | None = None

    @property
    def tls(self) -> bool:
        """Whether what goes through it is encrypted by us."""
        return kinds_of(self.description)[-1] in {"ssl", "tls"}

    @property
    def exposed(self) -> bool:
        """Whether strangers can reach it and read along: neither loopback, nor a UNIX socket, nor TLS."""
        address = self.port.getHost()
        return not (self.tls or isinstance(address, UNIXAddress) or _is_loopback(address))

    @property
    def loopback_only(self) -> bool:
        """Whether it is bound to a loopback address, so that only browsers on this machine can reach it.

        Of a `haproxy:` endpoint it is false: a browser cannot send a PROXY header. The proxy decides which hosts it
        passes on, as a trusted proxy does.
        """
        address = self.port.getHost()
        return not (isinstance(address, UNIXAddress) or is_proxied(self.description)) and _is_loopback(address)

    @property
    def world_writable(self) -> bool:
        """Whether it is a UNIX socket that every user of this machine may connect to."""
        address = self.port.getHost()
        if not isinstance(address, UNIXAddress):
            return False
        name = _unix_name(address)
        if name.startswith("\0"):  # an abstract one has no permissions
            return True
        try:
            return bool(Path(name).stat().st_mode & stat.S_IWOTH)
        except OSError:  # it has been removed
            return False

    @property
    def url(self) -> str:
        """Where it really listens, as a person would type it."""
        address = self.port.getHost()
        if isinstance(address, UNIXAddress):
            return f"unix:{_unix_name(address)}"
        host = _host(address)
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{address.port}/"  # type: ignore[attr-defined]


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
        raise ConfigError(where, f"nothing to listen on; give {WANTED}")
    listeners: list[Listener] = []
    try:
        for description in descriptions:
            port, certificate = bind_endpoint(description, factory, BindingReactor(reactor), where)
            listeners.append(Listener(description, port, certificate))
            with suppress(OSError):  # it goes without
                _tune(port, description)
    except ConfigError:
        unbind(listeners)
        raise
    return listeners


def local_addresses(listeners: Iterable[Listener]) -> frozenset[tuple[str, int]]:
    """Return host and port of those that are for this machine.

    A connection has the same ones on its side of it only if it came through such a listener: what listens on all
    addresses of the machine cannot have a port that is bound to one of them.
    """
    addresses: list[Any] = [one.port.getHost() for one in listeners if one.loopback_only]
    return frozenset((address.host, address.port) for address in addresses)


def pause_accepting(listeners: Sequence[Listener]) -> None:
    """Accept nobody for now: who connects waits."""
    for listener in listeners:
        port: Any = listener.port
        port.stopReading()


def resume_accepting(listeners: Sequence[Listener]) -> None:
    """Accept those who wait, and all who come."""
    for listener in listeners:
        port: Any = listener.port
        port.startReading()


def accept_backlog_and_close(listeners: Sequence[Listener]) -> None:
    """Accept all who have connected by now, and close the ports.

    In one go: the kernel resets whoever is still waiting then. Stock Twisted closes in a later turn, in which come all
    that were accepted in this one.
    """
    for listener in listeners:
        port: Any = listener.port
        port.stopReading()
        port.numberAccepts = socket.SOMAXCONN
        tcp.Port.doRead(port)
        gone = Failure(ConnectionDone())
        try:
            port.connectionLost(gone)
        except (OSError, ValueError):
            _close_all_the_same(gone, port)


def take_over_socket_locks(listeners: Sequence[Listener]) -> None:
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
    await gatherResults([maybeDeferred(one.port.stopListening).addErrback(_closed, one.port) for one in listeners])


def _closed(failure: Failure, port: Any) -> None:
    failure.trap(OSError, ValueError)
    _close_all_the_same(failure, port)


def _close_all_the_same(reason: Failure, port: Any) -> None:
    """Close a UNIX socket whose name or lock cannot be removed: stock Twisted gives up with the socket open."""
    tcp.Port.connectionLost(port, reason)


def hold(listeners: Sequence[Listener]) -> list[Inherited]:
    """Leave bound ports to workers: nothing is accepted here. Return what to hand on."""
    handed: list[Inherited] = []
    for listener in listeners:
        port: Any = listener.port
        port.stopReading()
        close_without_shutdown(port)  # workers accept on it until they close it
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
        port, certificate = bind_endpoint(description, factory, AdoptingReactor(one, reactor), where)
        listeners.append(Listener(one.description, port, certificate))
    return listeners


def reread(listeners: Sequence[Listener], *, where: str) -> Callable[[], None]:
    """Read the keys and certificates of listeners anew. What is returned puts them into force.

    Args:
        listeners: bound or adopted ones.
        where: the setting they come from, for the error.

    Raises:
        ConfigError: one of them cannot be used; nothing has changed.
    """
    shown = [(one.certificate, one.description) for one in listeners if one.certificate is not None]
    fresh = [(certificate, read_certificate(description, where)) for certificate, description in shown]

    def put_into_force() -> None:
        for certificate, other in fresh:
            certificate.become(other)

    return put_into_force


def certificate_warnings(listeners: Iterable[Listener], now: float) -> Iterator[str]:
    """Yield a sentence for each certificate that has ended, or soon will have."""
    for listener in listeners:
        if listener.certificate is not None:
            problem = expiry_problem(listener.certificate, now)
            if problem:
                yield f"{listener.description}: {problem}"


def unbind(listeners: Sequence[Listener]) -> None:
    """Close ports before the reactor runs. It would take the names of UNIX sockets away in its next turn."""
    for listener in listeners:
        address = listener.port.getHost()
        listener.port.stopListening()
        if isinstance(address, UNIXAddress) and not is_systemd(listener.description):
            for suffix in ("", ".lock"):
                Path(_unix_name(address) + suffix).unlink(missing_ok=True)


def unclaimed_systemd_sockets(listeners: Sequence[Listener]) -> list[str]:
    """Return the names of sockets that systemd has passed on and that no endpoint takes: who connects there waits."""
    passed_on = systemd_sockets()
    names = {fd: name for name, fd in passed_on.inheritedNamedDescriptors().items()}
    taken = {cast("Any", listener.port).fileno() for listener in listeners}
    return [names.get(fd, str(fd)) for fd in passed_on.inheritedDescriptors() if fd not in taken and _listens(fd)]


def _listens(fd: int) -> bool:
    """Tell whether it is a socket that is listened on; an endpoint that takes one closes this number of it."""
    try:
        with socket.socket(fileno=os.dup(fd)) as found:
            return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _tune(port: Any, description: str) -> None:
    """Set what sockets do for us, and for those that are accepted on them."""
    if not is_systemd(description) and not re.search(r"(?<!\\):backlog=", description):
        port.socket.listen(BACKLOG)
    if port.socket.family != socket.AF_UNIX:
        port.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX_BYTES)


def _host(address: IAddress) -> str:
    if isinstance(address, IPv4Address | IPv6Address):
        return str(address.host).partition("%")[0]
    return "0.0.0.0"  # noqa: S104 - an address family that we don't know is taken for an exposed one


def _is_loopback(address: IAddress) -> bool:
    host = ipaddress.ip_address(_host(address))
    mapped = getattr(host, "ipv4_mapped", None)
    return bool((mapped or host).is_loopback)


def _unix_name(address: UNIXAddress) -> str:
    name = address.name
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
