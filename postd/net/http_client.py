"""HTTP clients of Twisted: endpoints with wrapped protocols, responses that are dropped, failures in one line.

`postd.net.fetching` and `postd.client` use it.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.error import ConnectingCancelledError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IProtocol, IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.internet.ssl import platformTrust, trustRootFromCertificates
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import URI, BrowserLikePolicyForHTTPS, ResponseFailed
from twisted.web.iweb import IAgentEndpointFactory, IResponse
from zope.interface import implementer

from postd.credential_files import load_certificates
from postd.errors import ConfigError
from postd.reactor import IReactor
from postd.twisted_private import complete_endpoints, join_trust_roots

complete_endpoints()

T = TypeVar("T")


def single_exchange(reactor: IReactor) -> dict[str, Any]:
    """Return treq's options for one request, without redirects, and a response that is read as it arrives."""
    return {"allow_redirects": False, "unbuffered": True, "reactor": reactor}


def drop(response: IResponse) -> None:
    """Close the connection of a response whose body is not needed; it would stay open until the body is read."""
    response.deliverBody(_Dropped())


class _Dropped(Protocol):
    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.loseConnection()


def split_origin(uri: bytes) -> tuple[bytes, bytes, int]:
    """Return scheme, host and port of a URI, as Twisted's client understands it."""
    parts = URI.fromBytes(uri)
    return parts.scheme.lower(), parts.host.lower(), parts.port


def root_cause(error: BaseException) -> BaseException:
    """Return the cause of an error of Twisted's client, which wraps it once or twice."""
    while reasons := getattr(error, "reasons", None):  # of a failed request or response
        error = reasons[0].value
    return error


def is_tls_failure(error: BaseException) -> bool:
    """Return whether TLS could not be established, so that nothing was sent and a retry would not help."""
    return isinstance(root_cause(error), SSL.Error | VerificationError)


def describe_failure(error: BaseException) -> str:
    """Return in one line why there is no response."""
    match root_cause(error):
        case SSL.Error(args=[[(_, _, why), *_]]):
            return f"TLS: {why}"
        case VerificationError():
            return "TLS: its certificate is for another host"
        case ConnectionDone() | ConnectionLost() | ConnectingCancelledError():
            return "the connection was lost"
        case _ if isinstance(error, ResponseFailed):
            return "the response is malformed"
        case UnicodeError():
            return "the host name is invalid"
        case _:
            return Failure(error).getErrorMessage()


@implementer(IAgentEndpointFactory)
class EndpointFactory:
    """Makes the endpoints of an agent's connections, with a wrapper around each protocol, below TLS.

    Args:
        wrapper: called with a factory, whose `reactor` it may use, and the protocol to wrap.

    Raises:
        ConfigError: `ca_file` cannot be read, or has no usable certificates.
    """

    def __init__(
        self, reactor: IReactor, wrapper: Callable[[Any, IProtocol], ProtocolWrapper], connect_s: float, *, ca_file: str
    ) -> None:
        self._reactor = reactor
        self._wrapper = wrapper
        self._connect_s = connect_s
        self._connecting: set[Deferred[IProtocol]] = set()
        self._policy = BrowserLikePolicyForHTTPS(_load_roots(ca_file) if ca_file else platformTrust())

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        connecting = HostnameEndpoint(self._reactor, uri.host, uri.port, self._connect_s)
        endpoint = _WrappedEndpoint(connecting, self._wrapper, self._reactor, self._connecting)
        if uri.scheme != b"https":
            return endpoint
        return wrapClientTLS(self._policy.creatorForNetloc(uri.host, uri.port), endpoint)

    def cancel(self) -> None:
        """Cancel the connections that are being made: `ConnectingCancelledError`."""
        for connecting in list(self._connecting):
            connecting.cancel()


@implementer(IStreamClientEndpoint)
class _WrappedEndpoint:
    def __init__(
        self,
        endpoint: IStreamClientEndpoint,
        wrapper: Callable[..., ProtocolWrapper],
        reactor: IReactor,
        connecting: set[Deferred[IProtocol]],
    ) -> None:
        self._endpoint = endpoint
        self._wrapper = wrapper
        self._reactor = reactor
        self._connecting = connecting

    def connect(self, protocolFactory: Any) -> Deferred[IProtocol]:
        # Else the factory logs each connection, and Agent has no option for it. With TLS the factory is wrapped.
        getattr(protocolFactory, "wrappedFactory", protocolFactory).noisy = False
        wrapping: Any = WrappingFactory(protocolFactory)
        wrapping.protocol, wrapping.reactor, wrapping.noisy = self._wrapper, self._reactor, False
        connecting: Deferred[IProtocol] = self._endpoint.connect(wrapping)
        self._connecting.add(connecting)

        def forget(result: T) -> T:
            self._connecting.discard(connecting)
            return result

        return connecting.addBoth(forget).addCallback(attrgetter("wrappedProtocol"))


def _load_roots(file: str) -> object:
    """Return the platform's trust roots with the roots in a PEM file."""
    try:
        certificates = load_certificates(file)
    except OSError as error:
        raise ConfigError("ca_file", f"{file}: cannot be read: {error.strerror}") from None
    if not certificates:
        raise ConfigError("ca_file", f"{file}: has no certificates in PEM, or some that are broken")
    return join_trust_roots(platformTrust(), trustRootFromCertificates(certificates))
