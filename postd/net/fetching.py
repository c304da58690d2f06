"""The server's HTTP client, for metadata, keys and introspection of token issuers, with strict limits on responses.

treq makes the requests, with these limits:

- Time: `FETCH_MAX_S` by default, or `URGENT_FETCH_MAX_S` where a client's request waits for the response. Then the
  connection is aborted, so that a host that hangs keeps no connection.
- Size: `CONTENT_MAX_BYTES` of content, expanded if it is compressed by gzip although `identity` was asked for, and
  `RECEIVED_MAX_BYTES` of the whole response.
- Rate: after a 429, or a 503 with `Retry-After`, the URL gets no request for as long as the response says, and at most
  `RETRY_AFTER_MAX_S`.
- Redirects: of GET only, at most `REDIRECTS_MAX`, and only within the same origin.
- TLS: verified against the platform's trust roots, and the roots in `ca_file`.
"""

import time
import zlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn, Self
from urllib.parse import urljoin

import treq
from msgspec import Struct
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.failure import Failure
from twisted.web.client import Agent
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer, IResponse
from zope.interface import implementer

from postd.net.http_client import EndpointFactory, describe_failure, drop, root_cause, single_exchange, split_origin
from postd.protocol.discovery import check_url
from postd.protocol.retry_after import decode_retry_after
from postd.reactor import IReactor, Work

FETCH_MAX_S = 5.0
URGENT_FETCH_MAX_S = 3.0
CONTENT_MAX_BYTES = 256 * 1024
RECEIVED_MAX_BYTES = 4 * CONTENT_MAX_BYTES
REDIRECTS_MAX = 3

RETRY_AFTER_MAX_S = 600.0
"""The longest wait that a response can ask for."""

RETRY_AFTER_DEFAULT_S = 1.0
"""The wait after a 429 that does not say how long."""

JSON = "application/json"

_GZIP_WBITS = 16 + zlib.MAX_WBITS

_X_GZIP = b"x-gzip"
"""The other name of gzip (RFC 9110 §8.4.1.3): treq would expand `gzip`, and to any size."""


class FetchError(Exception):
    """There is no usable response; `str()` is the reason in one line, and quotes nothing from the response.

    `retry_after_s` is how long the host wants no further request, 0 if it has not said.
    """

    def __init__(self, why: str, retry_after_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s

    def at(self, url: str) -> Self:
        """Return the error with the URL in its reason."""
        return type(self)(f"{url}: {self}", self.retry_after_s)


class UnusableError(FetchError):
    """The host responded, but not with the requested document."""


class NoDocumentError(UnusableError):
    """The host responded that it has no such document: a status of 4xx."""


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
    """A response: its body, header fields, and its status: 200, or to a POST one of `statuses`.

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
        now: the wall clock, for dates in responses, in seconds since the epoch.
        max_s: the limit of a request, but of an urgent one.

    Raises:
        ConfigError: `ca_file` cannot be read, or has no usable certificates.
    """

    def __init__(
        self,
        reactor: IReactor,
        *,
        ca_file: str = "",
        now: Callable[[], float] = time.time,
        max_s: float = FETCH_MAX_S,
    ) -> None:
        self._reactor = reactor
        self._now = now
        self._max_s = max_s
        self._closed_until: dict[str, float] = {}
        endpoints = EndpointFactory(reactor, partial(_BoundedConnection, max_s), max_s, ca_file=ca_file)
        self._agent = _PlainAgent(Agent.usingEndpointFactory(reactor, endpoints))

    def get(self, url: str, *, accept: str = JSON, token: str = "") -> Deferred[Fetched]:
        """Fetch a document of the media types in `accept`, with a bearer token if there is one.

        Raises:
            FetchError: there is no usable response.
        """
        fields = {"Accept": accept} | ({"Authorization": f"Bearer {token}"} if token else {})
        return self._limit(url, self._get(url, fields), self._max_s)

    def post(  # noqa: PLR0913 - three have their defaults
        self,
        url: str,
        form: Mapping[str, str],
        *,
        auth: tuple[str, str] | None,
        fields: Mapping[str, str] | None = None,
        urgent: bool = True,
        statuses: Collection[int] = frozenset({200, 400}),
    ) -> Deferred[Fetched]:
        """Send a form.

        Args:
            url: where to.
            form: its fields.
            auth: a name and a password for Basic.
            fields: additional header fields.
            urgent: whether a client's request waits for the response: `URGENT_FETCH_MAX_S` instead of `max_s`.
            statuses: the statuses whose bodies are read.

        Raises:
            FetchError: there is no usable response.
        """
        seconds = URGENT_FETCH_MAX_S if urgent else self._max_s
        return self._limit(url, self._post(url, form, auth, fields or {}, statuses), seconds)

    def _limit(self, url: str, fetching: Work[Fetched], seconds: float) -> Deferred[Fetched]:
        limited: Deferred[Fetched] = Deferred.fromCoroutine(self._fetch_in_turn(url, fetching))
        return limited.addTimeout(seconds, self._reactor, _raise_late).addErrback(_raise_fetch_error)

    async def _fetch_in_turn(self, url: str, fetching: Work[Fetched]) -> Fetched:
        """Fetch, unless the host has asked to wait; remember the wait that it asks for."""
        left_s = self._closed_until.get(url, 0.0) - self._reactor.seconds()
        if left_s > 0:
            fetching.close()
            raise FetchError(_BUSY, left_s)
        self._closed_until.pop(url, None)
        try:
            return await fetching
        except FetchError as error:
            if error.retry_after_s:
                self._closed_until[url] = self._reactor.seconds() + error.retry_after_s
            raise

    async def _get(self, url: str, fields: Mapping[str, str]) -> Fetched:
        for _ in range(REDIRECTS_MAX + 1):
            response = await self._request("GET", url, fields)
            if not 300 <= response.code < 400:
                return await self._read(response, {200})
            drop(response)
            url = _redirect(url, response.headers.getRawHeaders(b"Location", [b""])[0].decode("latin-1"))
        raise UnusableError(f"more than {REDIRECTS_MAX} redirects")

    async def _post(
        self,
        url: str,
        form: Mapping[str, str],
        auth: tuple[str, str] | None,
        fields: Mapping[str, str],
        statuses: Collection[int],
    ) -> Fetched:
        return await self._read(await self._request("POST", url, fields, data=dict(form), auth=auth), statuses)

    async def _read(self, response: IResponse, statuses: Collection[int]) -> Fetched:
        if response.code in statuses:
            return await _read(response)
        drop(response)
        asked_s = _retry_after_s(response, self._now())
        if asked_s:
            raise FetchError(_BUSY, asked_s)
        kind = NoDocumentError if 400 <= response.code < 500 else UnusableError
        raise kind(f"unexpected HTTP status {response.code}")

    async def _request(
        self, method: str, url: str, fields: Mapping[str, str] = MappingProxyType({}), **options: Any
    ) -> IResponse:
        try:
            check_url(url)
        except ValueError:
            raise FetchError("the URL is not https (http is allowed for loopback only)") from None
        client = HTTPClient(self._agent)
        sent = {"Accept": JSON, "User-Agent": "postd", **fields}
        headers = Headers({name: [value] for name, value in sent.items()})
        return await client.request(method, url, headers=headers, **single_exchange(self._reactor), **options)


_BUSY = "the host has asked to wait (429, or 503 with Retry-After)"


def _retry_after_s(response: IResponse, now: float) -> float:
    """Return how long a response asks to wait (RFC 6585 §4, RFC 9110 §15.6.4), 0 if it does not."""
    if response.code not in {429, 503}:
        return 0.0
    value = response.headers.getRawHeaders(b"Retry-After", [b""])[0].decode("latin-1").strip()
    least_s = RETRY_AFTER_DEFAULT_S if response.code == 429 else 0.0
    return min(decode_retry_after(value, now) or least_s, RETRY_AFTER_MAX_S)


async def _read(response: IResponse) -> Fetched:
    content = bytearray()
    is_gzip = response.headers.getRawHeaders(b"Content-Encoding") == [_X_GZIP]
    gzip = zlib.decompressobj(_GZIP_WBITS) if is_gzip else None

    def collect(piece: bytes) -> None:
        try:
            content.extend(piece if gzip is None else gzip.decompress(piece, CONTENT_MAX_BYTES + 1))
        except zlib.error:
            raise UnusableError("the response is malformed gzip") from None
        if len(content) > CONTENT_MAX_BYTES:
            raise UnusableError(f"the response has more than {CONTENT_MAX_BYTES // 1024} KiB")

    await treq.collect(response, collect)
    if gzip is not None and not gzip.eof:
        raise UnusableError("the response is malformed gzip")
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
    """An agent that asks for responses without compression, refuses all codings but gzip, and removes cookies."""

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
    named = b",".join(response.headers.getRawHeaders(b"Content-Encoding", [])).lower().split(b",")
    codings = [coding for coding in map(bytes.strip, named) if coding not in {b"", b"identity"}]
    if not codings:
        response.headers.removeHeader(b"Content-Encoding")
    elif codings in ([b"gzip"], [_X_GZIP]):
        response.headers.setRawHeaders(b"Content-Encoding", [_X_GZIP])
    else:
        drop(response)
        raise UnusableError("the response is compressed, although that was not requested, and not by gzip alone")
    return response


class _BoundedConnection(ProtocolWrapper):
    """A connection that is aborted after `max_s`, or when it has received `RECEIVED_MAX_BYTES`.

    Twisted does neither: over TLS a cancelled response only asks the peer to close, and a head has no size limit.
    """

    transport: Any

    def __init__(self, max_s: float, factory: Any, wrapped: IProtocol) -> None:
        super().__init__(factory, wrapped)
        self._max_s = max_s

    def connectionMade(self) -> None:
        self._left = RECEIVED_MAX_BYTES
        self._timeout = self.factory.reactor.callLater(self._max_s, self.transport.abortConnection)
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
