"""Every private name of Twisted that postd uses, under a name of our own.

Twisted does not promise to keep these names. They are collected here, each with its purpose and the reason why no
public name serves it. tests/test_twisted_private.py has a test for each, of the behavior that postd relies on. All are
checked with Twisted 26.10. No other module of postd uses a private name of another package.
"""

import importlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from twisted.internet import endpoints
from twisted.internet.abstract import FileDescriptor
from twisted.internet.endpoints import _SystemdParser
from twisted.internet.interfaces import IAddress, IProtocolFactory
from twisted.internet.tcp import Port
from twisted.internet.unix import Port as UnixPort
from twisted.logger import FileLogObserver
from twisted.protocols.haproxy._exceptions import InvalidProxyHeader
from twisted.protocols.haproxy._v1parser import V1Parser
from twisted.protocols.haproxy._v2parser import V2Parser
from twisted.python.logfile import LogFile
from twisted.python.systemd import ListenFDs
from twisted.web.guard import HTTPAuthSessionWrapper
from twisted.web.http import Request, _NoPushProducer
from twisted.web.http_headers import Headers, _nameEncoder
from twisted.web.resource import IResource
from zope.interface import implementer

PortT = TypeVar("PortT", bound=Port)

ProxyAddresses = tuple[IAddress | None, IAddress | None]
"""The client's address and the address it connected to; None where a PROXY header has none."""


# Listening sockets


def make_port(kind: type[PortT], reactor: Any, fd: int, family: int, factory: IProtocolFactory) -> PortT:
    """Return a port of a class of ours on a copy of a listening descriptor; the caller starts it.

    The public `adoptStreamPort` of a reactor always makes a `twisted.internet.tcp.Port`.
    """
    port: PortT
    if issubclass(kind, UnixPort):
        port = kind._fromListeningDescriptor(reactor, fd, factory)
    else:
        port = kind._fromListeningDescriptor(reactor, fd, family, factory)
    return port


def take_adopted_socket(port: Port) -> socket.socket:
    """Return the socket that `make_port` gave to a port, for a `startListening` that takes the place of Twisted's."""
    adopted = port._preexistingSocket
    assert adopted is not None
    port._preexistingSocket = None
    return adopted


def close_without_shutdown(port: Any) -> None:
    """Let a port only close its descriptor in the end.

    A shutdown would end the socket for all processes that share it. Twisted leaves it out for TCP sockets that it has
    adopted, and has no option for other sockets.
    """
    port._shouldShutdown = False


def systemd_sockets() -> ListenFDs:
    """Return the sockets that systemd passed to this process.

    Twisted's endpoints read the environment variables when they are imported, and delete them.
    """
    return _SystemdParser._sddaemon


# The PROXY protocol. Twisted's public `proxyEndpoint` accepts headers that postd refuses (postd.net.proxy_protocol).

PROXY_V2_SIGNATURE: bytes = V2Parser.PREFIX
"""The 12 bytes that a header of version 2 begins with."""


def parse_proxy(header: bytes) -> ProxyAddresses:
    """Return the addresses in a whole header, of version 2 if it begins with `PROXY_V2_SIGNATURE`, else of version 1.

    Raises:
        ValueError: it is malformed.
    """
    is_v2 = header.startswith(PROXY_V2_SIGNATURE)
    try:
        info = V2Parser.parse(header) if is_v2 else V1Parser.parse(header.removesuffix(b"\r\n"))
    except InvalidProxyHeader as error:
        raise ValueError(str(error)) from None
    return info.source, info.destination


# TLS


def complete_endpoints() -> None:
    """Give `twisted.internet.endpoints` its parts with TLS if it was imported without pyOpenSSL (postd.daemon.startup).

    The module stays the same one, so functions and classes that were imported from it before use TLS, too. Which global
    name says that they are missing is documented nowhere.
    """
    if endpoints.TLSMemoryBIOFactory is None:
        importlib.reload(endpoints)


def join_trust_roots(*roots: Any) -> Any:
    """Return the union of several trust roots, such as the roots of `platformTrust` and `trustRootFromCertificates`.

    `twisted.internet.ssl` makes each of them, but cannot combine them; the interface has a private name.
    """
    from twisted.internet._sslverify import IOpenSSLTrustRoot  # noqa: PLC0415 - imports OpenSSL (postd.daemon.startup)

    @implementer(IOpenSSLTrustRoot)
    class TrustRoots:
        def _addCACertsToContext(self, context: Any) -> None:
            for root in roots:
                root._addCACertsToContext(context)

    return TrustRoots()


def openssl_behind(context: Any) -> tuple[Path, int]:
    """Return the file of the OpenSSL that a context of pyOpenSSL uses, and the address of OpenSSL's own context.

    pyOpenSSL has no method for the keys of session tickets (`postd.net.openssl`).
    """
    from cryptography.hazmat.bindings import _rust  # noqa: PLC0415 - imports OpenSSL (postd.daemon.startup)

    return Path(str(_rust.__file__)), int(_rust._openssl.ffi.cast("uintptr_t", context._context))


def read_one_record(connection: Any) -> None:
    """Let a read of a TLS connection end after a record without data, such as KeyUpdate.

    pyOpenSSL sets the opposite for each connection: OpenSSL reads until there is data, or nothing more has arrived.
    """
    lib = _openssl().lib
    lib.SSL_clear_mode(connection._ssl, lib.SSL_MODE_AUTO_RETRY)


def use_socket(connection: Any, descriptor: int) -> None:
    """Let OpenSSL read and send for a TLS connection whose input and output have been in memory; both must be empty.

    pyOpenSSL can do so for a new connection only.
    """
    _openssl().lib.SSL_set_fd(connection._ssl, descriptor)  # frees what is in memory
    connection._into_ssl = connection._from_ssl = None


@cache
def _openssl() -> Any:
    from cryptography.hazmat.bindings import _rust  # noqa: PLC0415 - imports OpenSSL (postd.daemon.startup)

    return _rust._openssl


# Logs


def make_twistd_log_observer(options: Mapping[str, object]) -> FileLogObserver:
    """Return the observer that twistd would log to by its options `logfile` and `nodaemon`.

    This opens the file, and handles SIGUSR1 by rotating it. An application can only replace twistd's observer.

    Raises:
        OSError: the file cannot be opened.
        SystemExit: the log is to go to standard output, of a daemon.
    """
    from twisted.scripts._twistd_unix import UnixAppLogger  # noqa: PLC0415 - only twistd needs it

    observer: FileLogObserver = UnixAppLogger(options)._getLogObserver()
    return observer


def log_file_of(observer: FileLogObserver) -> LogFile | None:
    """Return the rotated file that an observer writes to; None if it is standard output."""
    file: object = observer._outFile
    return file if isinstance(file, LogFile) else None


def log_file_descriptor(file: LogFile) -> int:
    """Return the descriptor that a rotated log file writes to, without a buffer. It has no `fileno`."""
    return file._file.fileno()


# Connections


def buffered_bytes(transport: FileDescriptor) -> int:
    """Return how many bytes a socket's transport holds that the kernel has not taken.

    `dataBuffer` and `offset` are public, the list of the writes since is not.
    """
    return len(transport.dataBuffer) - transport.offset + transport._tempDataLen


def largest_viewed(transport: Any) -> bytes | None:
    """Return the largest object that a socket's transport keeps by a view (`buffer_pieces`), None if there is none."""
    viewed: list[Any] = [piece.obj for piece in transport._tempDataBuffer if isinstance(piece, memoryview)]
    return max(viewed, key=len, default=None)


def drop_buffer(transport: FileDescriptor) -> None:
    """Forget what the transport of a lost connection has not sent.

    A transport and its protocol refer to each other: until the next garbage collection, it would stay in memory.
    """
    transport.dataBuffer, transport.offset = b"", 0
    transport._tempDataBuffer, transport._tempDataLen = [], 0


def buffer_only_write(transport: FileDescriptor, data: bytes) -> None:
    """Do what `write` of a connected socket's transport does while it has nothing buffered, with at most 64 KiB.

    `write` checks its argument, and whether to pause the producer, too.
    """
    if not transport._writeDisconnected:
        transport._tempDataBuffer.append(data)
        transport._tempDataLen += len(data)
        transport.startWriting()


def buffer_pieces(transport: Any, pieces: Sequence[bytes | memoryview]) -> None:
    """Do what `writeSequence` of a socket's transport does, which refuses a `memoryview`."""
    if transport.connected and not transport._writeDisconnected:
        transport._tempDataBuffer += pieces
        transport._tempDataLen += sum(map(len, pieces))
        transport._maybePauseProducer()
        transport.startWriting()


def send_pieces(transport: Any) -> bool:
    """Send the writes that a socket's transport has buffered, without joining them as `doWrite` does.

    Returns:
        False if the kernel has not accepted all of them. Otherwise `doWrite` has to be called: it sends what this
        leaves, such as a single write, and ends the output.
    """
    pieces = transport._tempDataBuffer
    # `doWrite` does not copy a single write, unless it is a `memoryview`.
    if transport.dataBuffer or not pieces or (len(pieces) == 1 and isinstance(pieces[0], bytes)):
        return True
    try:
        sent = transport.socket.sendmsg(pieces)
    except BlockingIOError:
        return False
    except OSError:  # `doWrite` raises the same error, or the kernel does not take so many pieces at a time
        return True
    transport._tempDataLen -= sent
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            transport._tempDataBuffer = [memoryview(piece)[sent:], *pieces[index + 1 :]]
            return False
        sent -= len(piece)
    transport._tempDataBuffer = []
    return True


def send_only_write(transport: Any) -> bool:
    """Send the output of a socket's transport if it is one write and nothing follows it; return whether all is sent.

    If not, `doWrite` has to be called. It does the same, with several calls and checks more.
    """
    pieces = transport._tempDataBuffer
    if len(pieces) != 1 or transport.dataBuffer or not isinstance(pieces[0], bytes):
        return False
    if transport.disconnecting or transport._writeDisconnecting or transport.producerPaused:
        return False
    if transport.producer is not None and not transport.streamingProducer:  # it waits for a call after each piece
        return False
    try:
        sent = transport.socket.send(pieces[0])
    except OSError:  # `doWrite` raises the same error
        return False
    left = pieces[0][sent:]
    transport._tempDataBuffer, transport._tempDataLen = [left] if left else [], len(left)
    return not left


NoPushProducer = _NoPushProducer
"""A producer that does nothing, for transports that cannot pause, such as the transports of tests."""


# Authentication


class AuthSessionWrapper(HTTPAuthSessionWrapper, ABC):
    """The stock wrapper with a hook of a public name: `resource_for` returns the resource that answers a request.

    `render` and `getChildWithDefault` of the stock wrapper ask its private `_authorizedResource`.
    """

    @abstractmethod
    def resource_for(self, request: object) -> IResource:
        """Return the resource to render, which the rest of the path leads on from."""

    def _authorizedResource(self, request: object) -> IResource:
        return self.resource_for(request)


# Requests

canonical_header_name = _nameEncoder.encode
"""Return the spelling of a header name that `Headers` has as its key; raise `ValueError` if it is not a token.

`Headers` encodes with each call; postd looks names up in a dictionary of its own.
"""


class DecodedHeaders(Headers):
    """Headers made from a dictionary with canonical names and decoded values.

    The public constructor would encode and check each of them again.
    """

    def __init__(self, fields: dict[bytes, list[bytes]]) -> None:
        self._rawHeaders = fields


release_request = Request._cleanup
"""End a request whose response is written: release its channel, close its content, fire `notifyFinish`.

`Request.finish` is this after several checks, which cost time and which postd has made by then.
"""


class AdapterCacheOnDemand:
    """Mixin for a `twisted.web.server.Request` made without its constructor: creates its adapter cache on first use.

    The cache belongs to `twisted.python.components.Componentized`; few requests are ever adapted.
    """

    @cached_property
    def _adapterCache(self) -> dict[str, Any]:
        return {}
