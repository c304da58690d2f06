"""The listening ports of a server: bind, share with workers, pause, reload certificates, close.

Ports are bound before the reactor runs and before twistd forks, so that a start fails if an address is in use. Worker
processes inherit the sockets, and all accept on the same ones.
"""

import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from twisted.internet import tcp
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import gatherResults, maybeDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IAddress, IProtocolFactory
from twisted.python.failure import Failure

import postd.linux  # noqa: F401 - refuses other systems
from postd.errors import ConfigError
from postd.net.endpoint_strings import ALLOWED, has_tls, is_proxied, is_systemd
from postd.net.endpoints import bind_endpoint, expiry_problem, read_certificate
from postd.net.ports import AdoptingReactor, BindingReactor, InheritedSocket
from postd.net.transports import poll_together
from postd.protocol.host import is_loopback, normalize_host
from postd.reactor import IReactor
from postd.twisted_private import close_without_shutdown, systemd_sockets

if TYPE_CHECKING:
    from postd.net.tls import Certificate  # imports OpenSSL (postd.daemon.startup)

BACKLOG = 1024
"""The length of the backlog; the kernel may have a lower limit. With the 50 of stock Twisted, most clients of a burst
would wait for a second, until they send their SYN again."""

TICKET_KEY_BYTES = 32
TICKET_KEY_LIFETIME_S = 3600
"""How long a key of TLS tickets is used. It decrypts what was recorded of the sessions of TLS 1.2 in this time."""

UNSENT_MAX_BYTES = 128 * 1024
"""How much of a response the kernel buffers before it is sent. By default it would buffer 3 MB for a slow client."""


class Listener(Struct, frozen=True):
    """A bound port with its endpoint string; `certificate` is that of an `ssl:` endpoint."""

    description: str
    port: tcp.Port
    certificate: "Certificate | None" = None

    @property
    def tls(self) -> bool:
        """Whether postd terminates TLS here."""
        return has_tls(self.description)

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach it without TLS: neither loopback, nor a UNIX socket, nor TLS."""
        address = self.port.getHost()
        return not (self.tls or isinstance(address, UNIXAddress) or _is_loopback(address))

    @property
    def loopback_only(self) -> bool:
        """Whether it is bound to a loopback address, so that only browsers on this machine can reach it.

        False for a `haproxy:` endpoint: a browser cannot send a PROXY header, and the proxy decides which hosts it
        forwards, as a trusted proxy does.
        """
        address = self.port.getHost()
        return not (isinstance(address, UNIXAddress) or is_proxied(self.description)) and _is_loopback(address)

    @property
    def world_writable(self) -> bool:
        """Whether it is a UNIX socket that every user of this machine can connect to."""
        address = self.port.getHost()
        if not isinstance(address, UNIXAddress):
            return False
        name = _unix_name(address)
        if name.startswith("\0"):  # an abstract socket has no permissions
            return True
        try:
            return bool(Path(name).stat().st_mode & stat.S_IWOTH)
        except OSError:  # it has been removed
            return False

    @property
    def url(self) -> str:
        """The URL of the bound address, such as `http://127.0.0.1:8080/`, or `unix:PATH`."""
        address = self.port.getHost()
        if isinstance(address, UNIXAddress):
            return f"unix:{_unix_name(address)}"
        host = _host(address)
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{address.port}/"

    @property
    def url_for_browsers(self) -> str | None:
        """`url`, None if browsers cannot connect: a UNIX socket, or an endpoint that expects a PROXY header."""
        is_unreachable = isinstance(self.port.getHost(), UNIXAddress) or is_proxied(self.description)
        return None if is_unreachable else self.url


def bind(descriptions: Sequence[str], factory: IProtocolFactory, *, where: str, reactor: IReactor) -> list[Listener]:
    """Bind all endpoints, or none.

    Args:
        descriptions: Twisted's endpoint strings, with absolute paths.
        factory: serves the connections, once the reactor runs.
        where: the setting that the endpoints come from, for the error.
        reactor: accepts the connections.

    Raises:
        ConfigError: an endpoint is malformed, or its address cannot be bound.
    """
    if not descriptions:
        raise ConfigError(where, f"nothing to listen on; give {ALLOWED}")
    listeners: list[Listener] = []
    try:
        for description in descriptions:
            port, certificate = bind_endpoint(description, factory, BindingReactor(reactor), where)
            _use_transports(port, certificate, reactor)
            listeners.append(Listener(description, port, certificate))
            with suppress(OSError):  # the options are optional
                _tune(port, description)
    except ConfigError:
        unbind(listeners)
        raise
    return listeners


def local_addresses(listeners: Iterable[Listener]) -> frozenset[tuple[str, int]]:
    """Return host and port of the listeners that only this machine can reach.

    A connection with such a local address came through such a listener: a port that is bound to one address
    cannot be bound to all addresses, too.
    """
    ports = [listener.port for listener in listeners if listener.loopback_only]
    addresses = [cast("IPv4Address | IPv6Address", port.getHost()) for port in ports]
    return frozenset((address.host, address.port) for address in addresses)


def pause_accepting(listeners: Sequence[Listener]) -> None:
    """Stop accepting for now; clients wait in the backlog."""
    for listener in listeners:
        listener.port.stopReading()


def resume_accepting(listeners: Sequence[Listener]) -> None:
    """Accept connections again, first the connections in the backlog."""
    for listener in listeners:
        listener.port.startReading()


def accept_backlog_and_close(listeners: Sequence[Listener]) -> None:
    """Accept all connections in the backlog, and close the ports in the same turn of the reactor.

    The kernel resets connections that are in the backlog of a port that is closed. Stock Twisted closes ports in a
    later turn, and until then further clients could connect.
    """
    for listener in listeners:
        listener.port.numberAccepts = socket.SOMAXCONN
        tcp.Port.doRead(listener.port)
        _close_now(listener.port)


def take_over_socket_locks(listeners: Sequence[Listener]) -> None:
    """Write this process's number to the lock files of UNIX sockets; twistd forks after they were bound.

    Otherwise another server that starts would treat the locks as left by a dead process, and take over the sockets.
    """
    for listener in listeners:
        lock = getattr(listener.port, "lockFile", None)
        if lock is not None:
            name = os.fsencode(lock.name)
            made = b"%b.%d" % (name, os.getpid())
            with suppress(OSError):  # twistd may run as another user by now, without the right to
                os.symlink(b"%d" % os.getpid(), made)  # noqa: PTH211 - a path of bytes
                os.replace(made, name)  # noqa: PTH105 - paths of bytes


async def close(listeners: Sequence[Listener]) -> None:
    """Close ports while the reactor runs."""
    ports = [listener.port for listener in listeners]
    await gatherResults([maybeDeferred(port.stopListening).addErrback(_force_close, port) for port in ports])


def _force_close(failure: Failure, port: tcp.Port) -> None:
    """Close a UNIX socket even if its path or lock file cannot be removed; stock Twisted would leave it open."""
    failure.trap(OSError, ValueError)
    tcp.Port.connectionLost(port, failure)


def hand_over_to_workers(listeners: Sequence[Listener]) -> list[InheritedSocket]:
    """Stop accepting in this process; return the sockets for worker processes to accept on."""
    sockets: list[InheritedSocket] = []
    for listener in listeners:
        port = listener.port
        port.stopReading()
        close_without_shutdown(port)  # workers accept on it until they close it
        sockets.append(InheritedSocket(listener.description, port.socket.family, port.fileno()))
    return sockets


def adopt_sockets(
    sockets: Sequence[InheritedSocket], factory: IProtocolFactory, *, where: str, reactor: IReactor
) -> list[Listener]:
    """Accept on sockets that the parent process has bound. Their descriptors are duplicated, and closed.

    Args:
        sockets: from the parent's `hand_over_to_workers`.
        factory: serves the connections.
        where: the setting that the endpoints come from, for the error.
        reactor: accepts the connections.

    Raises:
        ConfigError: the key or the certificate of an endpoint cannot be used any more.
    """
    listeners: list[Listener] = []
    for inherited in sockets:
        # Sockets of systemd are known to the parent only.
        description = re.sub(r"^((?:haproxy:)*)systemd:.*", r"\1tcp:0", inherited.description, flags=re.DOTALL)
        port, certificate = bind_endpoint(description, factory, AdoptingReactor(inherited, reactor), where)
        _use_transports(port, certificate, reactor)
        listeners.append(Listener(inherited.description, port, certificate))
    return listeners


def reload_certificates(listeners: Sequence[Listener], *, where: str) -> Callable[[], None]:
    """Read the keys and certificates of listeners again; return a function that new connections use them from.

    Args:
        listeners: bound or adopted ones.
        where: the setting that the endpoints come from, for the error.

    Raises:
        ConfigError: a key or a certificate cannot be used; nothing has changed.
    """
    reloaded = [
        (listener.certificate, read_certificate(listener.description, where))
        for listener in listeners
        if listener.certificate is not None
    ]

    def apply() -> None:
        for certificate, new in reloaded:
            certificate.replace(new)

    return apply


def ask_for_client_certificates(listeners: Iterable[Listener], *, ask: bool) -> None:
    """Set whether new connections to TLS listeners are asked for a client certificate."""
    for listener in listeners:
        if listener.certificate is not None:
            listener.certificate.ask_clients(ask=ask)


def set_ticket_key(listeners: Iterable[Listener], key: bytes) -> None:
    """Let TLS sessions be resumed by tickets; their keys are derived from a key that all workers share."""
    for listener in listeners:
        if listener.certificate is not None:
            listener.certificate.set_ticket_key(key)


def certificate_warnings(listeners: Iterable[Listener], now: float) -> Iterator[str]:
    """Yield a sentence for each certificate that is not valid yet, has expired, expires soon, or is due for renewal."""
    for listener in listeners:
        if listener.certificate is not None:
            _, problem = expiry_problem(listener.certificate, now)
            if problem:
                yield f"{listener.description}: {problem}"


def unbind(listeners: Sequence[Listener]) -> None:
    """Close ports before the reactor runs, in whose next turn stock Twisted would close them."""
    for listener in listeners:
        _close_now(listener.port)


def _close_now(port: tcp.Port) -> None:
    port.stopReading()
    gone = Failure(ConnectionDone())
    try:
        port.connectionLost(gone)
    except (OSError, ValueError):
        tcp.Port.connectionLost(port, gone)  # as `_force_close`


def unclaimed_systemd_sockets(listeners: Sequence[Listener]) -> list[str]:
    """Return the names of sockets that systemd passed and no endpoint uses; clients would wait in their backlog."""
    passed = systemd_sockets()
    names = {fd: name for name, fd in passed.inheritedNamedDescriptors().items()}
    used = {listener.port.fileno() for listener in listeners}
    return [names.get(fd, str(fd)) for fd in passed.inheritedDescriptors() if fd not in used and _is_listening(fd)]


def _is_listening(fd: int) -> bool:
    """Return whether a descriptor is a listening socket. An endpoint that has adopted one has closed the descriptor."""
    try:
        with socket.socket(fileno=os.dup(fd)) as passed:
            return bool(passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _use_transports(port: tcp.Port, certificate: "Certificate | None", reactor: IReactor) -> None:
    if certificate is None:
        poll_together(port, reactor)
    else:
        from postd.net.tls_transports import poll_tls_together  # noqa: PLC0415 - imports OpenSSL (postd.daemon.startup)

        poll_tls_together(port, certificate, reactor)


def _tune(port: tcp.Port, description: str) -> None:
    """Set the options of a listening socket, which the sockets of its connections inherit."""
    if not is_systemd(description) and not re.search(r"(?<!\\):backlog=", description):
        port.socket.listen(BACKLOG)
    if port.socket.family != socket.AF_UNIX:
        port.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX_BYTES)


def _host(address: IAddress) -> str:
    if isinstance(address, IPv4Address | IPv6Address):
        return str(address.host).partition("%")[0]
    return "0.0.0.0"  # noqa: S104 - a port of an unknown address family counts as exposed


def _is_loopback(address: IAddress) -> bool:
    return is_loopback(normalize_host(f"[{_host(address)}]"))


def _unix_name(address: UNIXAddress) -> str:
    name = address.name
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
