"""Decode endpoint strings and bind their ports; an error is one line with the setting, the endpoint and the cause."""

import errno
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from twisted.internet import tcp
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from postd.errors import ConfigError, UnusableCertificateError
from postd.linux import check_socket_path
from postd.net.endpoint_strings import (
    ALLOWED,
    KINDS,
    UNIX_MODE,
    arguments_of,
    has_tls,
    is_systemd,
    kinds_of,
    names_empty_path,
    names_loopback,
    split_tls_endpoint,
)
from postd.net.proxy_protocol import ProxyProtocolEndpoint

if TYPE_CHECKING:
    from postd.net.tls import Certificate

RENEWAL_SHARE, URGENT_SHARE = 1 / 3, 1 / 10
"""The shares of a certificate's lifetime that are left when its renewal is due, and when it expires soon.

A certificate may be valid for a year or for a day. Clients of ACME renew it when a third is left.
"""


NO_RESUMPTION = "TLS sessions are not resumed: the functions of OpenSSL for the keys of tickets are not found"


def validity(certificate: "Certificate") -> str:
    """Return until when a certificate is valid, in words."""
    return f"valid until {_minute(certificate.not_after)}"


def expiry_problem(certificate: "Certificate", now: float) -> tuple[bool, str]:
    """Return whether clients refuse a certificate now or soon, and a sentence for this or a due renewal, else ""."""
    left_s, lifetime_s = certificate.not_after - now, certificate.not_after - certificate.not_before
    at = _minute(certificate.not_after)
    if now < certificate.not_before:
        return True, f"the certificate is not valid before {_minute(certificate.not_before)}"
    if left_s <= 0:
        return True, f"the certificate has expired: {at}"
    if left_s < lifetime_s * URGENT_SHARE:
        return True, f"the certificate expires soon: {at}, less than a tenth of its lifetime is left"
    if left_s < lifetime_s * RENEWAL_SHARE:
        return False, f"the certificate is due for renewal: less than a third of its lifetime is left, until {at}"
    return False, ""


def _minute(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def read_certificate(description: str, where: str) -> "Certificate":
    """Read the key and certificate files that a TLS endpoint names.

    Raises:
        ConfigError: the key or the certificate cannot be read or used.
    """
    certificate = find_certificate(description, where)
    assert certificate is not None
    return certificate


def find_certificate(description: str, where: str) -> "Certificate | None":
    """Read the key and certificate files of an endpoint, as `read_certificate`; return None if it has no TLS."""
    if is_systemd(description):  # only a process that systemd starts has the socket
        return None
    return bind_endpoint(description, make_unused_factory(), DryRunReactor(), where)[1]


def make_unused_factory() -> Factory:
    """Return a protocol factory for ports on which this process does not accept connections."""
    factory = Factory()
    factory.noisy = False
    return factory


class DryRunReactor:
    """A reactor for endpoints that checks the paths of UNIX sockets, but binds nothing."""

    def listenTCP(self, port: int, factory: IProtocolFactory, **keywords: object) -> IListeningPort:  # noqa: ARG002
        return cast("IListeningPort", None)

    def listenUNIX(self, address: str, factory: IProtocolFactory, **keywords: object) -> IListeningPort:  # noqa: ARG002
        check_socket_path(address)
        return cast("IListeningPort", None)


def check_endpoint(description: str, *, where: str, now: float = 0) -> bool:
    """Check an endpoint without binding it; return whether other machines could reach it without TLS.

    Args:
        description: the endpoint string.
        where: the setting that it comes from, for the error.
        now: seconds since the epoch, to refuse a certificate that has expired; 0 to accept it.

    Raises:
        ConfigError: it is malformed, or its key or its certificate cannot be used or has expired.
    """
    if is_systemd(description):  # only a process that systemd starts has the socket
        return False
    kind = kinds_of(description)[-1]
    certificate = find_certificate(description, where)
    if certificate is not None and certificate.not_after <= now:
        raise ConfigError(where, f"{description}: {expiry_problem(certificate, now)[1]}")
    return kind in {"tcp", "tcp6"} and not names_loopback(description)


def bind_endpoint(
    description: str, factory: IProtocolFactory, reactor: DryRunReactor, where: str
) -> "tuple[tcp.Port, Certificate | None]":
    """Listen on an endpoint; return its port, and its certificate if it has TLS.

    Raises:
        ConfigError: it is malformed, its key or certificate cannot be used, or its address cannot be bound.
    """
    endpoint, certificate = _decode_endpoint(description, where, reactor)
    ports: list[tcp.Port] = []
    failures: list[Failure] = []
    # Endpoints of all allowed kinds listen at once; their Deferreds have fired.
    listening: Any = endpoint.listen(factory)
    listening.addCallbacks(ports.append, failures.append)
    if failures:
        error: Any = failures[0].value
        if isinstance(error, CannotListenError):
            error = error.socketError
        raise ConfigError(f"{where}: {description}", f"cannot listen: {_reason(error)}")
    return ports[0], certificate


def _decode_endpoint(
    description: str, where: str, reactor: DryRunReactor
) -> "tuple[IStreamServerEndpoint, Certificate | None]":
    known = all(kind in KINDS for kind in kinds_of(description))
    if not known or names_empty_path(description):
        raise ConfigError(where, f"{description!r} is not {ALLOWED}")
    kind, _, rest = description.partition(":")
    if kind == "haproxy":
        endpoint, certificate = _decode_endpoint(rest, where, reactor)
        return ProxyProtocolEndpoint(endpoint), certificate
    if kind == "unix" and "mode" not in arguments_of(description):
        description += f":mode={UNIX_MODE}"
    below, certificate = description, None
    try:
        if has_tls(description):
            from postd.net.tls import Certificate  # noqa: PLC0415 - imports OpenSSL (postd.daemon.startup)

            below, options = split_tls_endpoint(description)
            certificate = Certificate.read(options)
        return serverFromString(reactor, below), certificate
    except OSError as error:
        raise ConfigError(where, f"{description}: {error.filename}: {error.strerror}") from None
    except UnusableCertificateError as error:
        raise ConfigError(where, f"{description}: {error}") from None
    except Exception as error:  # noqa: BLE001 - parsers let errors of int() and of missing arguments pass
        if isinstance(error, LookupError) and kinds_of(description)[-1] == "systemd":
            raise ConfigError(where, f"{description}: systemd has not passed a socket of this name") from None
        raise ConfigError(where, f"{description!r} is not {ALLOWED}") from None


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        cure = "; stop the program that uses it, or give another endpoint with --listen"
        return error.strerror + (cure if error.errno == errno.EADDRINUSE else "")
    return f"{error}" or type(error).__name__
