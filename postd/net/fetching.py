"""The server's HTTP client, for metadata, keys and introspection of token issuers, with strict limits on responses.

treq makes the requests, with these limits:

- Time: `FETCH_MAX_S`, or `URGENT_FETCH_MAX_S` where a client's request waits for the response. Then the connection is
  aborted, so that a host that hangs keeps no connection.
- Size: `CONTENT_MAX_BYTES` of content, which may not be compressed, and `RECEIVED_MAX_BYTES` of the whole response.
- Redirects: of GET only, at most `REDIRECTS_MAX`, and only within the same origin.
- TLS: verified against the platform's trust roots, and the roots in `ca_file`.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NoReturn
from urllib.parse import urljoin

import treq
from msgspec import Struct
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.failure import Failure
from twisted.web.client import Agent
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer, IResponse
from zope.interface import implementer

from postd.net.http_client import EndpointFactory, describe_failure, drop, root_cause, single_exchange, split_origin
from postd.protocol.discovery import check_url
from postd.reactor import IReactor, Work

FETCH_MAX_S = 5.0
URGENT_FETCH_MAX_S = 3.0
CONTENT_MAX_BYTES = 256 * 1024
RECEIVED_MAX_BYTES = 4 * CONTENT_MAX_BYTES
REDIRECTS_MAX = 3


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

    Of the header fields it has `Cache-Control` and `Age`, and the lines of `DPoP-Nonce` (RFC 9449 §8).
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

    def _limit(self, fetching: Work[Fetched], seconds: float) -> Deferred[Fetched]:
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


def _redirect(url: str, location: str) -> str:
    """Return the URL that a redirect leads to."""
    try:
        target = check_url(urljoin(url, location))
    except ValueError:
        target = ""
    if not location or split_origin(target.encode()) != split_origin(url.encode()):
        raise UnusableError("redirect to another origin, or without a valid Location")
    return target


def _raise_late(_: object, seconds: float) -> NoReturn:
    raise FetchError(f"no response within {seconds:.0f} s")


def _raise_fetch_error(failure: Failure) -> NoReturn:
    error: Any = failure.value
    cause = root_cause(error)
    if isinstance(cause, FetchError | CancelledError):
        raise cause
    raise FetchError(describe_failure(error)) from None


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
