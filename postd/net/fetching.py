"""The one client in the server: it asks issuers, and trusts what they answer only as far as it has to.

An answer has a time, a size, a status and a place that it may come from. treq asks; around it stand these bounds:

- `FETCH_MAX_S` for all of it, `ANSWER_MAX_S` for what a request waits for; an older connection is aborted, so that
  none is left to a host that hangs.
- `CONTENT_MAX_BYTES`, of what is sent, which is therefore not compressed; with all around it `RECEIVED_MAX_BYTES`.
- Redirects only of GET, a few, and only within the same origin.
- TLS verified against the platform's roots, and those of `ca_file`.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, cast
from urllib.parse import urljoin, urlsplit

import treq
from msgspec import Struct
from OpenSSL import SSL, crypto
from service_identity import VerificationError
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.ssl import Certificate, platformTrust, trustRootFromCertificates
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import URI, Agent, BrowserLikePolicyForHTTPS, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory
from zope.interface import implementer

from postd.errors import ConfigError
from postd.protocol.discovery import check_url
from postd.reactor import IReactor
from postd.twisted_private import TrustRoots

FETCH_MAX_S = 5.0
ANSWER_MAX_S = 3.0
CONTENT_MAX_BYTES = 256 * 1024
RECEIVED_MAX_BYTES = 4 * CONTENT_MAX_BYTES
REDIRECTS_MAX = 3

_BEGIN = b"-----BEGIN CERTIFICATE-----"


class FetchError(Exception):
    """There is no answer that could be used; `str()` of it says why in one line, and quotes nothing that was sent."""


class UnusableError(FetchError):
    """There is an answer, and it is not what was asked for."""


class Fetched(Struct, frozen=True):
    """An answer: its body, the fields that tell how long it is fresh, and its status, 200 or to a POST also 400."""

    content: bytes
    cache_control: tuple[str, ...] = ()
    age: str = "0"
    status: int = 200


class Fetcher:
    """Asks.

    Args:
        reactor: connects, and has the clock.
        ca_file: PEM file of further roots to trust; none if it is empty.

    Raises:
        ConfigError: `ca_file` cannot be read, or has no certificate in it.
    """

    def __init__(self, reactor: IReactor, *, ca_file: str = "") -> None:
        self._reactor = reactor
        endpoints = Endpoints(reactor, lambda factory: _BoundedFactory(factory, reactor), FETCH_MAX_S, ca_file=ca_file)
        self._agent = _Plain(Agent.usingEndpointFactory(reactor, endpoints))

    def get(self, url: str) -> Deferred[Fetched]:
        """Fetch a document.

        Raises:
            FetchError: it was not to be had.
        """
        return self._limit(self._get(url), FETCH_MAX_S)

    def post(
        self, url: str, form: Mapping[str, str], *, auth: tuple[str, str] | None, in_a_hurry: bool = True
    ) -> Deferred[Fetched]:
        """Send a form; `auth` are a name and a password for Basic. It may take `FETCH_MAX_S` if nobody is in a hurry.

        Raises:
            FetchError: it was not answered as it should.
        """
        return self._limit(self._post(url, form, auth), ANSWER_MAX_S if in_a_hurry else FETCH_MAX_S)

    def _limit(self, fetching: Coroutine[Any, Any, Fetched], seconds: float) -> Deferred[Fetched]:
        limited: Deferred[Fetched] = Deferred.fromCoroutine(fetching)
        return limited.addTimeout(seconds, self._reactor, _say_late).addErrback(_explain)

    async def _get(self, url: str) -> Fetched:
        for _ in range(REDIRECTS_MAX + 1):
            answer = await self._ask("GET", url)
            if not 300 <= answer.code < 400:
                return await _read(answer, {200})
            drop(answer)
            url = _redirect(url, answer.headers.getRawHeaders(b"Location", [b""])[0].decode("latin-1"))
        raise UnusableError(f"it redirects more than {REDIRECTS_MAX} times")

    async def _post(self, url: str, form: Mapping[str, str], auth: tuple[str, str] | None) -> Fetched:
        return await _read(await self._ask("POST", url, data=dict(form), auth=auth), {200, 400})

    async def _ask(self, method: str, url: str, **options: Any) -> Any:
        try:
            check_url(url)
        except ValueError:
            raise FetchError("its URL is not https (http is for loopback only)") from None
        client = HTTPClient(self._agent)
        headers = Headers({"Accept": ["application/json"], "User-Agent": ["postd"]})
        return await client.request(
            method,
            url,
            headers=headers,
            allow_redirects=False,
            unbuffered=True,
            reactor=cast("Any", self._reactor),
            **options,
        )


async def _read(answer: Any, statuses: Collection[int]) -> Fetched:
    if answer.code not in statuses:
        drop(answer)
        raise UnusableError(f"it answers {answer.code}")
    content = bytearray()

    def collect(piece: bytes) -> None:
        content.extend(piece)
        if len(content) > CONTENT_MAX_BYTES:
            raise UnusableError(f"its answer has more than {CONTENT_MAX_BYTES // 1024} KiB")

    await treq.collect(answer, collect)
    cache_control = [value.decode("latin-1") for value in answer.headers.getRawHeaders(b"Cache-Control", [])]
    age = answer.headers.getRawHeaders(b"Age", [b"0"])[0].decode("latin-1")
    return Fetched(bytes(content), tuple(cache_control), age, answer.code)


def drop(answer: Any) -> None:
    """Give up an answer whose body is of no interest, and its connection, which would wait for us to read it."""
    answer.deliverBody(_Dropped())


class _Dropped(Protocol):
    def connectionMade(self) -> None:
        cast("Any", self.transport).loseConnection()


def _redirect(url: str, location: str) -> str:
    """Return where an answer leads to."""
    try:
        target = check_url(urljoin(url, location))
    except ValueError:
        target = ""
    if not location or _origin(target) != _origin(url):
        raise UnusableError("it redirects to another origin, or to nowhere")
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _say_late(_: object, seconds: float) -> NoReturn:
    raise FetchError(f"it has not answered within {seconds:.0f} s")


def _explain(failure: Failure) -> NoReturn:
    error: Any = failure.value
    cause = first_cause(error)
    if isinstance(cause, FetchError | CancelledError):
        raise cause
    raise FetchError(explain(error)) from None


def first_cause(error: Any) -> Any:
    """Return what is behind an error of Twisted's client, which is wrapped once or twice."""
    while reasons := getattr(error, "reasons", None):  # of a request or of an answer that failed
        error = reasons[0].value
    return error


def is_untrusted(error: BaseException) -> bool:
    """Tell whether there is no answer because TLS could not be had, which another try does not change."""
    return isinstance(first_cause(error), SSL.Error | VerificationError)


def explain(error: BaseException) -> str:
    """Say in a line why there is no answer."""
    match first_cause(error):
        case SSL.Error(args=[[(_, _, why), *_]]):
            return f"TLS: {why}"
        case VerificationError():
            return "TLS: its certificate is for another host"
        case ConnectionDone() | ConnectionLost():
            return "the connection was lost"
        case _ if isinstance(error, ResponseFailed):
            return "its answer is malformed"
        case UnicodeError():
            return "there can be no such host"
        case _:
            return Failure(error).getErrorMessage()


@implementer(IAgent)
class _Plain:
    """Asks for answers as they are: a small one that is compressed may be of any size. Takes no cookies, either."""

    def __init__(self, agent: IAgent) -> None:
        self._agent = agent

    def request(
        self, method: bytes, uri: bytes, headers: Headers | None = None, bodyProducer: Any = None
    ) -> Deferred[Any]:
        sent = headers.copy() if headers else Headers()
        sent.setRawHeaders(b"Accept-Encoding", [b"identity"])
        return self._agent.request(method, uri, sent, bodyProducer).addCallback(_make_plain)


def _make_plain(answer: Any) -> Any:
    answer.headers.removeHeader(b"Set-Cookie")
    if answer.headers.getRawHeaders(b"Content-Encoding", [b"identity"]) != [b"identity"]:
        drop(answer)
        raise UnusableError("its answer is compressed, which was not asked for")
    return answer


@implementer(IAgentEndpointFactory)
class Endpoints:
    """Makes connections for an agent, TLS or not, each with something around its protocol.

    Args:
        reactor: connects.
        wrap: makes the factory of what is around a protocol, below TLS, of that protocol's own.
        connect_s: how long a connection may take to be there.
        ca_file: as for `Fetcher`.

    Raises:
        ConfigError: likewise.
    """

    def __init__(
        self, reactor: IReactor, wrap: Callable[[Any], WrappingFactory], connect_s: float, *, ca_file: str
    ) -> None:
        self._reactor = reactor
        self._wrap = wrap
        self._connect_s = connect_s
        self._policy = BrowserLikePolicyForHTTPS(_load_roots(ca_file) if ca_file else platformTrust())

    def endpointForURI(self, uri: URI) -> Any:
        endpoint = _WrappedEndpoint(HostnameEndpoint(self._reactor, uri.host, uri.port, self._connect_s), self._wrap)
        if uri.scheme != b"https":
            return endpoint
        return wrapClientTLS(self._policy.creatorForNetloc(uri.host, uri.port), endpoint)


@implementer(IStreamClientEndpoint)
class _WrappedEndpoint:
    def __init__(self, endpoint: IStreamClientEndpoint, wrap: Callable[[Any], WrappingFactory]) -> None:
        self._endpoint = endpoint
        self._wrap = wrap

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        # It would tell the log of each connection, and Agent has no way to keep it from that. Under TLS it is within.
        getattr(protocolFactory, "wrappedFactory", protocolFactory).noisy = False
        return self._endpoint.connect(self._wrap(protocolFactory)).addCallback(attrgetter("wrappedProtocol"))


class _Bounded(ProtocolWrapper):
    """A connection that is aborted when it is old, or when too much has come in.

    Nobody else does that: to give up an answer while it comes in only asks the other side of a TLS connection to end
    it, and the size of a head has no limit.
    """

    transport: Any

    def connectionMade(self) -> None:
        self._left = RECEIVED_MAX_BYTES
        self._ageing = self.factory.reactor.callLater(FETCH_MAX_S, self.transport.abortConnection)
        super().connectionMade()

    def dataReceived(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self.transport.abortConnection()
        else:
            super().dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._ageing.active():
            self._ageing.cancel()
        super().connectionLost(reason)


class _BoundedFactory(WrappingFactory):
    protocol = _Bounded
    noisy = False

    def __init__(self, wrappedFactory: Any, reactor: IReactor) -> None:
        super().__init__(wrappedFactory)
        self.reactor = reactor


def _load_roots(file: str) -> TrustRoots:
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
    return TrustRoots(platformTrust(), own)
