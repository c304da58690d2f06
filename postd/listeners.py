"""Listening: endpoint strings become bound ports, or one line that says why not.

Ports are bound before the reactor runs and before twistd forks, so that a taken port ends the start. Worker processes
inherit them, and accept on the same sockets.

Departures from stock Twisted, for sockets that are shared or somebody else's:

- A worker accepts one connection and leaves the next to others for a moment. Stock Twisted accepts a hundred at once:
  one worker would have a burst of clients almost for itself, and for as long as they stay.
- A UNIX socket that is made has mode 0660 unless its endpoint says otherwise (contract 7); stock Twisted gives it 0666.
  In both, it has it before it listens: there is no moment in which others could connect.
- A UNIX socket keeps its name and its mode, which are the parent's or systemd's to care for, and is not shut down when
  a process ends. A port of stock Twisted that adopts one sees to all that as if it were alone.
- What is shown to clients of TLS can be replaced (`postd.certificates`).
"""

import ipaddress
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from OpenSSL import SSL, crypto
from twisted.internet import tcp, unix
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import gatherResults, maybeDeferred
from twisted.internet.endpoints import _parse, _SystemdParser, serverFromString
from twisted.internet.error import CannotListenError, ConnectionDone, VerifyError
from twisted.internet.interfaces import IAddress, IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.internet.protocol import Factory
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

import postd.linux  # noqa: F401 - refuses other systems
from postd.certificates import UNFIT, Certificate, UnfitError
from postd.errors import ConfigError, check_socket_path
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

ENDS_SOON_S = 7 * 86_400
"""When the log begins to say that a certificate ends."""

UNIX_MODE = "660"
"""The permissions of a UNIX socket whose endpoint gives no `mode=`, octal: the daemon's user and its group."""

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
        return _kinds(self.description)[-1] in {"ssl", "tls"}

    @property
    def exposed(self) -> bool:
        """Whether strangers can reach it and read along: neither loopback, nor a UNIX socket, nor TLS."""
        address = self.port.getHost()
        return not (self.tls or isinstance(address, UNIXAddress) or _is_loopback(address))

    @property
    def for_this_machine(self) -> bool:
        """Whether it is bound to a loopback address, so that only browsers on this machine can reach it.

        Of a `haproxy:` endpoint it is false: a browser cannot send a PROXY header. The proxy decides which hosts it
        passes on, as a trusted proxy does.
        """
        address = self.port.getHost()
        return not (isinstance(address, UNIXAddress) or _is_proxied(self.description)) and _is_loopback(address)

    @property
    def open_to_all(self) -> bool:
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
            port, certificate = _bind(description, factory, _Binding(reactor), where)
            listeners.append(Listener(description, port, certificate))
            with suppress(OSError):  # it goes without
                _tune(port, description)
    except ConfigError:
        let_go(listeners)
        raise
    return listeners


def local_addresses(listeners: Iterable[Listener]) -> frozenset[tuple[str, int]]:
    """Return host and port of those that are for this machine.

    A connection has the same ones on its side of it only if it came through such a listener: what listens on all
    addresses of the machine cannot have a port that is bound to one of them.
    """
    addresses: list[Any] = [one.port.getHost() for one in listeners if one.for_this_machine]
    return frozenset((address.host, address.port) for address in addresses)


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


def accept_last(listeners: Sequence[Listener]) -> None:
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
        port, certificate = _bind(description, factory, _Adopting(one, reactor), where)
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
    fresh = [(certificate, _read_certificate(description, where)) for certificate, description in shown]

    def put_into_force() -> None:
        for certificate, other in fresh:
            certificate.become(other)

    return put_into_force


def certificate_problems(listeners: Iterable[Listener], now: float) -> Iterator[str]:
    """Yield a sentence for each certificate that has ended, or soon will have."""
    for listener in listeners:
        if listener.certificate is not None:
            problem = _end_problem(listener.certificate, now)
            if problem:
                yield f"{listener.description}: {problem}"


def _end_problem(certificate: Certificate, now: float) -> str:
    left_s = certificate.not_after - now
    if left_s > ENDS_SOON_S:
        return ""
    at = datetime.fromtimestamp(certificate.not_after, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"the certificate {'ends soon: ' if left_s > 0 else 'has ended: '}{at}"


def _read_certificate(description: str, where: str) -> Certificate:
    looking = _Looking()
    _listen(_endpoint(description, where, looking), nobody(), f"{where}: {description}")
    assert looking.certificate is not None
    return looking.certificate


def nobody() -> Factory:
    """Return what stands behind ports that are not accepted on."""
    factory = Factory()
    factory.noisy = False
    return factory


class _Looking:
    """What endpoints take for a reactor: wherever they are told to listen, nobody does.

    Attributes:
        certificate: what the clients of an endpoint are shown, if it is one of TLS.
    """

    certificate: Certificate | None = None

    def listenTCP(self, port: int, factory: IProtocolFactory, **keywords: Any) -> IListeningPort:  # noqa: ARG002
        return cast("IListeningPort", None)

    def listenSSL(self, port: int, factory: IProtocolFactory, contextFactory: Any, **keywords: Any) -> IListeningPort:
        self.certificate = Certificate(contextFactory)
        return self.listenTCP(port, TLSMemoryBIOFactory(self.certificate, False, factory), **keywords)  # noqa: FBT003 - Twisted's signature

    def listenUNIX(self, address: str, factory: IProtocolFactory, **keywords: Any) -> IListeningPort:  # noqa: ARG002
        check_socket_path(address)
        return cast("IListeningPort", None)


class _Binding(_Looking):
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
        port: Any
        if family == socket.AF_UNIX:
            port = _KeptUnixPort._fromListeningDescriptor(self._reactor, fd, factory)  # noqa: SLF001
        else:
            port = tcp.Port._fromListeningDescriptor(self._reactor, fd, family, factory)  # noqa: SLF001
        port.startListening()
        adopted: IListeningPort = port
        return adopted


class _Adopting(_Looking):
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


class _KeptUnixPort(unix.Port):
    """A UNIX socket that somebody else has bound."""

    def startListening(self) -> None:
        # What stock Twisted does once it has bound one; nor does it listen anew, with another backlog.
        bound, factory = self._preexistingSocket, self.factory
        assert bound is not None
        assert factory is not None
        factory.doStart()
        self.socket, self._preexistingSocket = bound, None
        self.fileno = bound.fileno  # type: ignore[method-assign]
        self.connected = True
        self._shouldShutdown = False
        self.numberAccepts = 100
        self.startReading()

    def connectionLost(self, reason: Failure) -> None:
        tcp.Port.connectionLost(self, reason)


class _SharedUnixPort(_Sharing, _KeptUnixPort):
    """A UNIX socket that others accept on, too."""


def check_endpoint(description: str, *, where: str, now: float = 0) -> bool:
    """Make sure that an endpoint can be understood, without binding it; return whether strangers could reach it.

    Args:
        description: the endpoint.
        where: the setting it comes from, for the error.
        now: seconds since the epoch, if it matters whether its certificate has ended.

    Raises:
        ConfigError: it cannot be understood, or its key or its certificate cannot be used, or has ended.
    """
    if _is_passed_on(description):  # what it is is known to the service alone
        return False
    kind = _kinds(description)[-1]
    _, certificate = _bind(description, nobody(), _Looking(), where)
    if certificate is not None and certificate.not_after <= now:
        raise ConfigError(where, f"{description}: {_end_problem(certificate, now)}")
    return kind in {"tcp", "tcp6"} and not _names_loopback(description)


def is_for_this_machine(description: str) -> bool | None:
    """Tell of an endpoint what `Listener.for_this_machine` is once it is bound, None if only its socket tells."""
    if _is_proxied(description) or _kinds(description)[-1] == "unix":
        return False
    return None if _is_passed_on(description) else _names_loopback(description)


def _names_loopback(description: str) -> bool:
    named = re.search(r":interface=((?:\\.|[^:\\])*)", description)
    interface = re.sub(r"\\(.)", r"\1", named[1]) if named else ""
    try:
        return ipaddress.ip_address(interface).is_loopback
    except ValueError:
        return interface == "localhost"


def will_be_open_to_all(description: str) -> bool:
    """Tell whether an endpoint makes a UNIX socket that every user of this machine may connect to.

    Args:
        description: one that `check_endpoint` has found good.
    """
    kinds = _kinds(description)
    mode = _unix_mode(description.removeprefix("haproxy:" * (len(kinds) - 1))) if kinds[-1] == "unix" else None
    return mode is not None and bool(int(mode, 8) & stat.S_IWOTH)


def let_go(listeners: Sequence[Listener]) -> None:
    """Close ports before the reactor runs. It would take the names of UNIX sockets away in its next turn."""
    for listener in listeners:
        address = listener.port.getHost()
        listener.port.stopListening()
        if isinstance(address, UNIXAddress) and not _is_passed_on(listener.description):
            for suffix in ("", ".lock"):
                Path(_unix_name(address) + suffix).unlink(missing_ok=True)


def _is_passed_on(description: str) -> bool:
    """Tell whether the socket is systemd's, and stays with it."""
    return _kinds(description)[-1] == "systemd"


def unheard(listeners: Sequence[Listener]) -> list[str]:
    """Return the names of sockets that systemd has passed on and that no endpoint takes: who connects there waits."""
    passed_on = _SystemdParser._sddaemon  # noqa: SLF001 - who read the environment first has taken it away
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


def _is_proxied(description: str) -> bool:
    """Tell whether its connections begin with a PROXY header."""
    return _kinds(description)[0] == "haproxy"


def _kinds(description: str) -> list[str]:
    """The kinds of an endpoint, outermost first: haproxy:tcp:80 is haproxy, then tcp."""
    kind, _, rest = description.partition(":")
    return [kind, *_kinds(rest)] if kind == "haproxy" else [kind]


def _bind(
    description: str, factory: IProtocolFactory, reactor: _Looking, where: str
) -> tuple[IListeningPort, Certificate | None]:
    return _listen(_endpoint(description, where, reactor), factory, f"{where}: {description}"), reactor.certificate


def _endpoint(description: str, where: str, reactor: Any) -> IStreamServerEndpoint:
    known = all(kind in KINDS for kind in _kinds(description))
    # Twisted takes an empty path for one, and leaves a lock file of that name behind.
    if not known or description.endswith("unix:"):
        raise ConfigError(where, f"{description!r} is not {_WANTED}")
    kind, _, rest = description.partition(":")
    if kind == "haproxy":
        return ProxiedEndpoint(_endpoint(rest, where, reactor))
    if kind == "unix" and _unix_mode(description) is None:
        description += f":mode={UNIX_MODE}"
    try:
        endpoint: IStreamServerEndpoint = serverFromString(reactor, description)
    except OSError as error:
        raise ConfigError(where, f"{description}: {error.filename}: {error.strerror}") from None
    except Exception as error:  # noqa: BLE001 - the parsers raise what int(), OpenSSL and missing arguments give
        if isinstance(error, LookupError) and _kinds(description)[-1] == "systemd":
            raise ConfigError(where, f"{description}: systemd has not passed on such a socket") from None
        if isinstance(error, VerifyError):
            raise ConfigError(where, f"{description}: {UNFIT}") from None
        if isinstance(error, SSL.Error | crypto.Error):
            raise ConfigError(where, f"{description}: its key or its certificate is not one, in PEM form") from None
        raise ConfigError(where, f"{description!r} is not {_WANTED}") from None
    return endpoint


def _unix_mode(description: str) -> str | None:
    """Return the `mode=` of a `unix:` endpoint, None if it has none."""
    mode: str | None = _parse(description)[1].get("mode")
    return mode


def _listen(endpoint: IStreamServerEndpoint, factory: IProtocolFactory, where: str) -> IListeningPort:
    ports: list[IListeningPort] = []
    failures: list[Failure] = []
    # Every kind we allow is bound at once; none waits for the reactor.
    endpoint.listen(factory).addCallbacks(ports.append, failures.append)
    if failures:
        error: Any = failures[0].value
        if isinstance(error, UnfitError):
            raise ConfigError(where, f"{error}")
        if isinstance(error, CannotListenError):
            error = error.socketError
        raise ConfigError(where, f"cannot listen: {_words(error)}")
    return ports[0]


def _tune(port: Any, description: str) -> None:
    """Set what sockets do for us, and for those that are accepted on them."""
    if not _is_passed_on(description) and not re.search(r"(?<!\\):backlog=", description):
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


def _is_loopback(address: IAddress) -> bool:
    host = ipaddress.ip_address(_host(address))
    mapped = getattr(host, "ipv4_mapped", None)
    return bool((mapped or host).is_loopback)


def _unix_name(address: UNIXAddress) -> str:
    name = address.name
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
