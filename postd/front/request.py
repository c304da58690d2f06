"""One request, with the interface that resources of twisted.web use.

A stock `Request` is constructed before its body arrives, and writes a response in pieces. This request is constructed
from a decoded head when it is complete, and sends a response with a known body in one write. Attributes that postd's
own resources do not use (`args`, headers in Twisted's form) are made on demand. docs/explanation/front.md lists the
departures; `tests/front/test_connection.py` tests them.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.http import parse_qs
from twisted.web.http_headers import Headers
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource, getChildForRequest
from twisted.web.server import Request
from zope.interface import implementer

from postd.auth.identity import AuthenticationResult, Identity
from postd.errors import ServerBusyError
from postd.front.interface import Connection, Site
from postd.http.errors import make_error_response, not_found
from postd.http.interface import NativeRequest, Output, Responder
from postd.http.peer import certificate_of
from postd.http.responses import Parts, Response, StreamedResponse, make_no_content
from postd.http.views import respond
from postd.protocol.basic import BasicSyntaxError, decode_user_pass
from postd.protocol.http1.head import Head
from postd.protocol.percent import decode_segments
from postd.twisted_private import AdapterCacheOnDemand, DecodedHeaders, release_request

SEGMENTS_MAX = 256
"""Limit on the segments of a path; a longer one is 404, before any resource or file is looked up."""

UNCOUNTED_MAX_BYTES = 4096
"""A body of up to this many bytes is sent also to a client that has used up its memory for responses."""

_CLIENT_VERSIONS = (b"HTTP/1.0", b"HTTP/1.1")
_CLIENT_GONE = 499
"""The status logged for a request whose client disconnected before the response, as nginx does."""

_LOGGED = (b"User-Agent", b"Referer", b"X-Forwarded-For")
"""The fields that the access log uses."""

_ID = re.compile(rb"[A-Za-z0-9._~+/=:@-]{1,128}")
"""An acceptable `X-Request-Id`: it is logged unchanged."""

_TOKEN = re.compile(rb"eyJ|(?![0-9a-f-]+\Z)[A-Za-z0-9_-]{43}", re.DOTALL)
"""The beginning of a JWT, or a possible session id or nonce. A W3C `traceparent` is hexadecimal, and allowed."""

_ALLOWED_SOMEWHERE = make_no_content({b"Allow": b"GET, HEAD, POST, PUT, DELETE, OPTIONS"})


@implementer(IRequest)
class HttpRequest(NativeRequest, AdapterCacheOnDemand, Request):  # type: ignore[override]
    """A request whose body is complete (`postd.http.interface.Request`)."""

    defaultContentType = None
    authentication: AuthenticationResult | None = None
    route: str | None = None
    file: bytes | None = None
    described: Any = None
    responder: Responder | None = None
    channel: Connection  # type: ignore[assignment]
    site: Site  # type: ignore[assignment]
    transport: Any
    extra_headers = b""
    _response_headers: Headers | None = None

    def __init__(self, channel: Connection, head: Head, body: bytes, started_s: float) -> None:
        # All that Twisted's two constructors set, and what its requestReceived does.
        self.channel = channel
        self.site = channel.site
        self.transport = channel.transport
        self.client, self.host = channel.addresses
        self.notifications: list[Deferred[None]] = []
        self.received_cookies: dict[bytes, bytes] = {}
        self.cookies: list[bytes] = []
        self.queued = False
        self.fields = head.fields
        self.method = head.method
        self.uri = head.target
        self.path = head.path
        self.clientproto = _CLIENT_VERSIONS[head.minor]
        self.body = body
        self.content = BytesIO(body)
        self.started_s = started_s
        given = head.fields.get(b"X-Request-Id")
        self.id = (given and _decode_id(given)) or self.site.next_request_id()

    @cached_property
    def prepath(self) -> list[bytes]:  # type: ignore[override]
        return []

    @cached_property
    def postpath(self) -> list[bytes]:  # type: ignore[override]
        return decode_segments(self.path)

    @cached_property
    def requestHeaders(self) -> Headers:  # type: ignore[override]
        # Copied: resources may change them, and the next request may have the same head (`HeadDecoder`).
        fields = {name: [*values] for name, values in self.fields.items()}
        self.fields = fields
        return DecodedHeaders(fields)

    @property
    def args(self) -> dict[bytes, list[bytes]]:  # type: ignore[override]
        parameters: dict[bytes, list[bytes]] = parse_qs(self.uri.partition(b"?")[2], keep_blank_values=True)
        return parameters

    @property
    def responseHeaders(self) -> Headers:  # type: ignore[override]
        """Fields of the response beside its own."""
        if self._response_headers is None:
            self._response_headers = Headers()
        return self._response_headers

    @property
    def identity(self) -> Identity | None:
        return None if self.authentication is None else self.authentication.identity

    @property
    def site_name(self) -> str:
        return self.site.site_name

    @property
    def is_api(self) -> bool:
        return self.site.is_api(self.path)

    @cached_property
    def client_network(self) -> str:
        group = None if self.channel is None else self.channel.group
        return self.site.client_of(self) if group is None else group

    def require_room(self) -> None:
        memory = self.site.memory
        if memory.used_bytes:
            memory.require_room(self.client_network)

    @property
    def client_certificate(self) -> bytes | None:
        return certificate_of(self)

    def common_headers(self) -> bytes:
        """Return the header lines of every response."""
        named = b"X-Request-Id: %b\r\n" % self.id.encode("ascii")
        return named if self.site.secure_fields is None else named + self.site.secure_fields(self)

    def process(self) -> None:
        """Respond with the site's view."""
        path = self.path
        if path == b"*":
            self.send(_ALLOWED_SOMEWHERE)
            return
        if path.count(b"/") > SEGMENTS_MAX:
            self.fail(not_found())
            return
        try:
            responding = self.site.view(self)
        except Exception as error:  # noqa: BLE001 - `make_error_response` has a response for each
            self.fail(error)
        else:
            respond(self, responding)

    def render_resource(self, resource: IResource) -> None:
        self.render(getChildForRequest(resource, self))

    def fail(self, error: Exception) -> None:
        response = make_error_response(self, error)
        if self.startedWriting:
            self.transport.abortConnection()  # so that it is not taken for complete
        else:
            self.send(response)

    def send(self, response: Response) -> None:
        if self.channel is None:  # the client has disconnected
            return
        body = response.body if self.method != b"HEAD" else b""
        if len(body) > UNCOUNTED_MAX_BYTES and self.site.memory.used_bytes:
            try:
                self.site.memory.require_room(self.client_network, (len(body), None, 0))
            except ServerBusyError as error:
                response = make_error_response(self, error)
                body = response.body
        self._begin(response.status, response.head, body)
        self.sentLength = len(body)
        self.finished = 1
        self.site.log(self)
        release_request(self)

    def add_header(self, name: bytes, value: bytes) -> None:
        if b"\n" in value or b"\r" in value:
            raise ValueError("line break in a header value")
        self.extra_headers += b"%b: %b\r\n" % (name, value)

    def begin(self, response: Response | StreamedResponse) -> None:
        if self.channel is not None and self.method != b"HEAD":
            self.channel.hold(response)
        head = response.head
        if isinstance(response, StreamedResponse) and response.chunked and self.clientproto == b"HTTP/1.1":
            head += b"Transfer-Encoding: chunked\r\n"
            self.chunked = self.method != b"HEAD"
        self._begin(response.status, head, b"")
        if isinstance(response, StreamedResponse) and response.live is not None:
            # Thousands of streams may last for hours: they keep no cookies, nor other fields that are not logged.
            self.fields = {name: self.fields[name] for name in _LOGGED if name in self.fields}
            self.content = None

    def _begin(self, status: int, head: bytes, body: bytes) -> None:
        self.startedWriting = 1
        self.code = status
        self.channel.write_response(head + self.extra_headers + self.common_headers(), self._response_headers, body)

    def writeSequence(self, parts: Parts) -> None:
        length = sum(map(len, parts))
        if self.channel is None or not length:  # the client has disconnected; an empty chunk would end the body
            return
        self.sentLength += length
        self.channel.writeSequence([b"%x\r\n" % length, *parts, b"\r\n"] if self.chunked else parts)

    def open_output(self) -> tuple[Output, bool]:
        return self.transport, bool(self.chunked)

    def count_output(self, count: int) -> None:
        self.sentLength += count

    def connectionLost(self, reason: Failure) -> None:
        super().connectionLost(reason)
        if self.responder is not None:
            self.responder.cancel()
        self.producer = None  # it refers to this request: the cycle would keep the body that was being sent
        if not self.startedWriting:
            self.code = _CLIENT_GONE
        self.site.log(self)


def _decode_id(lines: Sequence[bytes]) -> str | None:
    if len(lines) != 1 or not _ID.fullmatch(lines[0]) or _TOKEN.search(lines[0]):
        return None
    try:
        decode_user_pass(lines[0])
    except BasicSyntaxError:
        return lines[0].decode("ascii")
    return None  # it is a name and a password as Basic sends them
