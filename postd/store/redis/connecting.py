"""Connect to a Redis server: endpoint, TLS, authentication, database, role."""

import os
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.ssl import optionsForClientTLS, platformTrust, trustRootFromCertificates

from postd.credential_files import load_certificates, read_first_line
from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.redis.connection import CONNECT_MAX_S, RedisProtocol, RedisReplyError, wait_for
from postd.store.redis.url import Host, RedisAddress


async def connect(address: RedisAddress, host: Host | None, *, reactor: IReactor) -> RedisProtocol:
    """Connect to the server that was found at an address, and authenticate.

    Args:
        address: has the credentials.
        host: the server; None for a UNIX socket.
        reactor: connects.

    Raises:
        StoreRefusedError: the server refuses us, for a wrong password or because it is a replica.
        StoreUnavailableError: it does not answer, or not now.
    """
    password = read_password(address)
    where = f"{host}, the primary {address.primary!r}" if address.primary else address.description
    protocol = await open_connection(address, host, where, reactor)
    try:
        if password or address.user:  # a user may have no password
            await authenticate(protocol, address, password)
        if address.db:
            await _call_or_refuse(protocol, "SELECT", address.db)
        await _check_role(protocol, by_sentinel=bool(address.primary))
    except RedisReplyError as error:
        protocol.close()
        raise error.as_store_error(where) from None
    except BaseException:
        protocol.close()
        raise
    return protocol


async def open_connection(address: RedisAddress, host: Host | None, where: str, reactor: IReactor) -> RedisProtocol:
    """Connect to a server or a sentinel, without authentication.

    Raises:
        StoreRefusedError: the file of the CA cannot be used.
        StoreUnavailableError: there is no connection within `CONNECT_MAX_S`.
    """
    factory = Factory.forProtocol(lambda: RedisProtocol(where, reactor))
    factory.noisy = False
    connecting = _make_endpoint(address, host, reactor).connect(factory)
    try:
        protocol: RedisProtocol = await wait_for(connecting, where, reactor)
    except (CancelledError, StoreUnavailableError):
        raise
    except ConnectingCancelledError:
        raise StoreUnavailableError(f"{where}: does not answer") from None
    except Exception as error:  # noqa: BLE001 - connecting and resolving a name raise many kinds
        raise StoreUnavailableError(f"{where}: {_describe(error)}") from None
    return protocol


async def authenticate(protocol: RedisProtocol, address: RedisAddress, password: str) -> None:
    """Send the credentials of an address.

    Raises:
        StoreRefusedError, RedisReplyError: they are wrong.
    """
    await _call_or_refuse(protocol, "AUTH", *((address.user,) if address.user else ()), password)


def read_password(address: RedisAddress) -> str:
    """Return the password; its file is read for each connection, so that a new password takes effect.

    Raises:
        StoreRefusedError: the file cannot be used.
    """
    if not address.password_file:
        return address.password
    try:
        password = read_first_line(address.password_file)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise StoreRefusedError(f"{address.password_file}: the password cannot be read: {why}") from None
    if not password:
        raise StoreRefusedError(f"{address.password_file}: has no password in its first line")
    return password


async def _call_or_refuse(protocol: RedisProtocol, *command: object) -> None:
    """Send a command; all its errors are permanent, also errors without a code, as for a password where none is set."""
    try:
        await protocol.call(*command)
    except RedisReplyError as error:
        raise error if error.code else StoreRefusedError(f"{protocol.where}: {error.text}") from None


async def _check_role(protocol: RedisProtocol, *, by_sentinel: bool) -> None:
    role = (await protocol.call("ROLE"))[0]
    if role == "master":
        return
    if by_sentinel:  # temporary: the sentinels or the server have not finished a failover
        raise StoreUnavailableError(f"{protocol.where}: is not a primary")
    if role == "sentinel":
        raise StoreRefusedError(f"{protocol.where}: is a sentinel; use a URL like redis+sentinel://HOST:PORT/PRIMARY")
    raise StoreRefusedError(f"{protocol.where}: is a replica, which is read-only; use the URL of the primary")


def _make_endpoint(address: RedisAddress, host: Host | None, reactor: IReactor) -> IStreamClientEndpoint:
    if host is None:
        return UNIXClientEndpoint(reactor, address.path, timeout=CONNECT_MAX_S)
    endpoint = HostnameEndpoint(reactor, host.name, host.port, timeout=CONNECT_MAX_S, attemptDelay=0.1)
    if not address.tls:
        return endpoint
    trust = _read_trust_roots(address.ca_file) if address.ca_file else platformTrust()
    # Without `clock` small writes would wait for the global reactor, which may not run (postd.store.run_blocking).
    return wrapClientTLS(optionsForClientTLS(host.name, trustRoot=trust), endpoint, clock=reactor)


def _read_trust_roots(ca_file: str) -> Any:
    """Return the only trusted CAs; their file is read for each connection, as the password's is."""
    try:
        certificates = load_certificates(ca_file)
    except OSError as error:
        raise StoreRefusedError(f"{ca_file}: cannot be read: {error.strerror}") from None
    if not certificates:
        raise StoreRefusedError(f"{ca_file}: has no certificates in PEM form")
    return trustRootFromCertificates(certificates)


def _describe(error: Exception) -> str:
    number = getattr(error, "osError", None)
    return os.strerror(number) if isinstance(number, int) else " ".join(str(error).split()) or type(error).__name__
