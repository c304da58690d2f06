"""The server's HTTP client, for metadata, keys and introspection of token issuers, with strict limits on responses.

treq makes the requests, with these limits:

- Time: `FETCH_MAX_S`, or `URGENT_FETCH_MAX_S` where a client's request waits for the response. Then the connection is
  aborted, so that a host that hangs keeps none.
- Size: `CONTENT_MAX_BYTES` of content, which may not be compressed, and `RECEIVED_MAX_BYTES` of the whole response.
- Redirects: of GET only, at most `REDIRECTS_MAX`, and only within the same origin.
- TLS: verified against the platform's trust roots, and those of `ca_file`.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, cast
from urllib.parse import urljoin

import treq
from msgspec import Struct
from OpenSSL import SSL, crypto
from service_identity import VerificationError
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.error import ConnectingCancelledError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IProtocol, IStreamClientEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.ssl import Certificate, platformTrust, trustRootFromCertificates
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import URI, Agent, BrowserLikePolicyForHTTPS, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from postd.errors import ConfigError
from postd.protocol.discovery import check_url
from postd.reactor import IReactor
from postd.twisted_private import complete_endpoints, join_trust_roots

complete_endpoints()

FETCH_MAX_S = 5.0
URGENT_FETCH_MAX_S = 3.0
CONTENT_MAX_BYTES = 256 * 1024
RECEIVED_MAX_BYTES = 4 * CONTENT_MAX_BYTES
REDIRECTS_MAX = 3

_BEGIN = b"-----BEGIN CERTIFICATE-----"


class FetchError(Exception):
    """There is no usable response; `str()` is the reason in one line, and quotes nothing from the response."""


class UnusableError(FetchError):
    """The host responded, but not with the requested document."""


class RepeatFilter:
    """The last message logged, to suppress its repetitions."""

    def __init__(self) -> None:
        self._last = ""

    def is_new(self, message: str) -> bool:
        """Return whether a message differs from the one before, and remember it."""
        is_new = message != self._last
        self._last = message
        return is_new


class Fetched(Struct, frozen=True):
    """A response: its body, header fields, and its status: 200, to a POST also 400.

    The header fields are those of its freshness, and the lines of `DPoP-Nonce` (RFC 9449 §8).
    """

    content: bytes
    cache_control: tuple[str, ...] = ()
    age: str = "0"
    status: int = 200
    dpop_nonce: tuple[bytes, ...] = ()


class Fetcher:
    """The client.

    Args:
        ca_file: PEM file of trust roots beside the platform's; none if empty.

    Raises:
        ConfigError: `ca_file` cannot be read, or has no usable certificates.
    """

    def __init__(self, reactor: IReactor, *, ca_file: str = "") -> None:
        self._reactor = reactor
        endpoints = EndpointFactory(reactor, _BoundedConnection, FETCH_MAX_S, ca_file=ca_file)
        self._agent = _PlainAgent(Agent.usingEndpointFactory(reactor, endpoints))

    def get(self, url: str) -> Deferred[Fetched]:
        """Fetch a document.

        Raises:
            FetchError: there is no usable response.
        """
        return self._limit(self._get(url), FETCH_MAX_S)

    def post(
        self,
        url: str,
        form: Mapping[str, str],
        *,
        auth: tuple[str, str] | None,
        fields: Mapping[str, str] | None = None,
        urgent: bool = True,
    ) -> Deferred[Fetched]:
        """Send a form.

        Args:
            url: where to.
            form: its fields.
            auth: a name and a password for Basic.
            fields: additional header fields.
            urgent: whether a client's request waits for the response: `URGENT_FETCH_MAX_S` instead of `FETCH_MAX_S`.

        Raises:
            FetchError: there is no usable response.
        """
        return self._limit(self._post(url, form, auth, fields or {}), URGENT_FETCH_MAX_S if urgent else FETCH_MAX_S)

    def _limit(self, fetching: Coroutine[Any, Any, Fetched], seconds: float) -> Deferred[Fetched]:
        limited: Deferred[Fetched] = Deferred.fromCoroutine(fetching)
        return limited.addTimeout(seconds, self._reactor, _raise_late).addErrback(_raise_fetch_error)

    async def _get(self, url: str) -> Fetched:
        for _ in range(REDIRECTS_MAX + 1):
            response = await self._request("GET", url)
            if not 300 <= response.code < 400:
                return await _read(response, {200})
            drop(response)
            url = _redirect(url, response.headers.getRawHeaders(b"Location", [b""])[0].decode("latin-1"))
        raise UnusableError(f"more than {REDIRECTS_MAX} redirects")

    async def _post(
        self, url: str, form: Mapping[str, str], auth: tuple[str, str] | None, fields: Mapping[str, str]
    ) -> Fetched:
        return await _read(await self._request("POST", url, fields, data=dict(form), auth=auth), {200, 400})

    async def _request(
        self, method: str, url: str, fields: Mapping[str, str] = MappingProxyType({}), **options: Any
    ) -> IResponse:
        try:
            check_url(url)
        except ValueError:
            raise FetchError("the URL is not https (http is allowed for loopback only)") from None
        client = HTTPClient(self._agent)
        sent = {"Accept": "application/json", "User-Agent": "postd", **fields}
        headers = Headers({name: [value] for name, value in sent.items()})
        return await client.request(method, url, headers=headers, **single_exchange(self._reactor), **options)


def single_exchange(reactor: IReactor) -> dict[str, Any]:
    """Return treq's options for one request, without redirects, and a response that is read as it arrives."""
    return {"allow_redirects": False, "unbuffered": True, "reactor": reactor}


async def _read(response: IResponse, statuses: Collection[int]) -> Fetched:
    if response.code not in statuses:
        drop(response)
        raise UnusableError(f"unexpected HTTP status {response.code}")
    content = bytearray()

    def collect(piece: bytes) -> None:
        content.extend(piece)
        if len(content) > CONTENT_MAX_BYTES:
            raise UnusableError(f"the response has more than {CONTENT_MAX_BYTES // 1024} KiB")

    await treq.collect(response, collect)
    cache_control = [value.decode("latin-1") for value in response.headers.getRawHeaders(b"Cache-Control", [])]
    age = response.headers.getRawHeaders(b"Age", [b"0"])[0].decode("latin-1")
    nonces = response.headers.getRawHeaders(b"DPoP-Nonce", [])
    return Fetched(bytes(content), tuple(cache_control), age, response.code, tuple(nonces))


def drop(response: IResponse) -> None:
    """Close the connection of a response whose body is not needed; it would stay open until the body is read."""
    response.deliverBody(_Dropped())


class _Dropped(Protocol):
    def connectionMade(self) -> None:
        cast("Any", self.transport).loseConnection()


def _redirect(url: str, location: str) -> str:
    """Return the URL that a redirect leads to."""
    try:
        target = check_url(urljoin(url, location))
    except ValueError:
        target = ""
    if not location or split_origin(target.encode()) != split_origin(url.encode()):
        raise UnusableError("redirect to another origin, or without a valid Location")
    return target


def split_origin(uri: bytes) -> tuple[bytes, bytes, int]:
    """Return scheme, host and port of a URI, as Twisted's client understands it."""
    parts = URI.fromBytes(uri)
    return parts.scheme.lower(), parts.host.lower(), parts.port


def _raise_late(_: object, seconds: float) -> NoReturn:
    raise FetchError(f"no response within {seconds:.0f} s")


def _raise_fetch_error(failure: Failure) -> NoReturn:
    error: Any = failure.value
    cause = root_cause(error)
    if isinstance(cause, FetchError | CancelledError):
        raise cause
    raise FetchError(describe_failure(error)) from None


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


@implementer(IAgent)
class _PlainAgent:
    """An agent that refuses compressed responses, which could expand to any size, and removes cookies."""

    def __init__(self, agent: IAgent) -> None:
        self._agent = agent

    def request(
        self, method: bytes, uri: bytes, headers: Headers | None = None, bodyProducer: IBodyProducer | None = None
    ) -> Deferred[IResponse]:
        sent = headers.copy() if headers else Headers()
        sent.setRawHeaders(b"Accept-Encoding", [b"identity"])
        return self._agent.request(method, uri, sent, bodyProducer).addCallback(_check_plain)


def _check_plain(response: IResponse) -> IResponse:
    response.headers.removeHeader(b"Set-Cookie")
    if response.headers.getRawHeaders(b"Content-Encoding", [b"identity"]) != [b"identity"]:
        drop(response)
        raise UnusableError("the response is compressed, although that was not requested")
    return response


@implementer(IAgentEndpointFactory)
class EndpointFactory:
    """Makes the endpoints of an agent's connections, with a wrapper around each protocol, below TLS.

    Args:
        wrapper: called with a factory, whose `reactor` it may use, and the protocol to wrap.

    Raises:
        ConfigError: as for `Fetcher`.
    """

    def __init__(
        self, reactor: IReactor, wrapper: Callable[[Any, IProtocol], ProtocolWrapper], connect_s: float, *, ca_file: str
    ) -> None:
        self._reactor = reactor
        self._wrapper = wrapper
        self._connect_s = connect_s
        self._connecting: set[Deferred[Any]] = set()
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
        reactor: Any,
        connecting: set[Deferred[Any]],
    ) -> None:
        self._endpoint = endpoint
        self._wrapper = wrapper
        self._reactor = reactor
        self._connecting = connecting

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        # Else the factory logs each connection, and Agent has no option for it. With TLS the factory is wrapped.
        getattr(protocolFactory, "wrappedFactory", protocolFactory).noisy = False
        wrapping: Any = WrappingFactory(protocolFactory)
        wrapping.protocol, wrapping.reactor, wrapping.noisy = self._wrapper, self._reactor, False
        connecting: Deferred[Any] = self._endpoint.connect(wrapping)
        self._connecting.add(connecting)

        def forget(result: Any) -> Any:
            self._connecting.discard(connecting)
            return result

        return connecting.addBoth(forget).addCallback(attrgetter("wrappedProtocol"))


class _BoundedConnection(ProtocolWrapper):
    """A connection that is aborted after `FETCH_MAX_S`, or when it has received `RECEIVED_MAX_BYTES`.

    Twisted does neither: over TLS a cancelled response only asks the peer to close, and a head has no size limit.
    """

    transport: Any

    def connectionMade(self) -> None:
        self._left = RECEIVED_MAX_BYTES
        self._timeout = self.factory.reactor.callLater(FETCH_MAX_S, self.transport.abortConnection)
        super().connectionMade()

    def dataReceived(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self.transport.abortConnection()
        else:
            super().dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._timeout.active():
            self._timeout.cancel()
        super().connectionLost(reason)


def _load_roots(file: str) -> Any:
    """Return the platform's trust roots with those of a PEM file."""
    try:
        text = Path(file).read_bytes()
        blocks = [_BEGIN + block for block in text.split(_BEGIN)[1:]]
        own = trustRootFromCertificates([Certificate.loadPEM(block) for block in blocks])
    except OSError as error:
        raise ConfigError("ca_file", f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, SSL.Error, crypto.Error):
        blocks = []
    if not blocks:
        raise ConfigError("ca_file", f"{file}: has no certificates in PEM, or some that are broken")
    return join_trust_roots(platformTrust(), own)
