"""Content negotiation with gzip: `Accept-Encoding` and the two representations of a text (reference: Lists).

Lists of posts and large texts are compressed; forms, files and event streams are not. Compression can reveal a secret
that is compressed together with an attacker's text (BREACH); a list contains nothing that its reader may not read.

Where `identity` is refused and there is no other representation, the field is disregarded (RFC 9110 §12.4.1).
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from postd.errors import ServerBusyError
from postd.fair_queue import FairTurns
from postd.http.interface import Request
from postd.http.responses import Response, make_not_modified, make_response
from postd.protocol.accept import prefers_gzip
from postd.protocol.gzip import compress
from postd.web.preconditions import has_preconditions, matching_etag

COMPRESSED_MIN_BYTES = 1024
"""Shorter texts are not compressed: they fit into one or two packets."""

VARY: Mapping[bytes, bytes] = {b"Vary": b"Accept-Encoding"}
GZIP: Mapping[bytes, bytes] = {b"Content-Encoding": b"gzip"}
NO_HEADERS: Mapping[bytes, bytes] = {}


def negotiated(caching: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the caching fields of a text; `Vary` names what they depend on already, and the content coding."""
    return {**caching, b"Vary": b", ".join([*VARY.values(), *filter(None, [caching.get(b"Vary")])])}


def wants_gzip(request: Request) -> bool:
    """Return whether the client prefers gzip."""
    field_lines = request.fields.get(b"Accept-Encoding")
    return field_lines is not None and prefers_gzip(b",".join(field_lines))


def gzip_etag(etag: bytes, form: bytes = b"") -> bytes:
    """Return the entity tag of the compressed representation, which must differ (RFC 9110 §8.8.3.3).

    If another process may compress the same text to other bytes, `form` is a hash, in hexadecimal digits, of everything
    else that determines the bytes.
    """
    return b'%b-gzip%b%b"' % (etag[:-1], b"-" if form else b"", form)


def acceptable_etags(etag: bytes, *, gzipped: bool) -> Sequence[bytes]:
    """Return the tags of the representations that a client accepts, preferred first.

    A client that accepts gzip may have either representation, and the response has the tag that it names. A client that
    does not accept gzip must not be sent the tag of the compressed one: a cache selects a stored response by the tag of
    a 304 (RFC 9111 §4.3.4). `etag` is that of the uncompressed representation.
    """
    return (gzip_etag(etag), etag) if gzipped else (etag,)


def not_modified_if_current(request: Request, headers: Mapping[bytes, bytes]) -> Response | None:
    """Return the 304 response to GET or HEAD if the client has the current representation, before that is generated.

    `headers` are the headers of the 200 response, `ETag` included.

    Raises:
        Problem: 412, by `If-Match`.
    """
    if not has_preconditions(request):
        return None
    etag, gzipped = headers[b"ETag"], wants_gzip(request)
    forms = _named_forms(request, etag) if gzipped else []
    tag = matching_etag(request, [*forms, *acceptable_etags(etag, gzipped=gzipped)])
    return None if tag is None else make_not_modified({**headers, b"ETag": tag})


def _named_forms(request: Request, etag: bytes) -> list[bytes]:
    """Return the tags of compressed forms of a text that a request names, also of forms that other processes made."""
    begin = etag[:-1] + b"-gzip-"
    lines = [*request.fields.get(b"If-None-Match", ()), *request.fields.get(b"If-Match", ())]
    return [b'%b%b"' % (begin, rest.partition(b'"')[0]) for line in lines for rest in line.split(begin)[1:]]


class NegotiatedText:
    """A fixed text with its responses: plain, gzip (if long enough and smaller) and 304.

    It is compressed on first use, when it is the client's turn. While too much work waits, the plain response is sent.
    `headers` go into all responses, `Vary` (`VARY`) and a strong `ETag` included; the compressed representation
    gets another tag (`gzip_etag`). `more` go into 200 responses alone (RFC 9110 §15.4.5).
    """

    def __init__(
        self,
        content_type: bytes,
        body: bytes,
        headers: Mapping[bytes, bytes],
        more: Mapping[bytes, bytes] = NO_HEADERS,
        *,
        work: FairTurns,
    ) -> None:
        self._content_type = content_type
        self._headers, self._more = headers, more
        self._acceptable_etags = [acceptable_etags(headers[b"ETag"], gzipped=gzipped) for gzipped in (False, True)]
        self._plain = make_response(HTTPStatus.OK, content_type, body, {**headers, **more})
        # None before compression; the plain response if compression does not make it smaller.
        self._compressed = self._plain if len(body) < COMPRESSED_MIN_BYTES else None
        self._work = work
        self._not_modified: dict[bytes, Response] = {}

    async def respond(self, request: Request) -> Response:
        """Return the response to GET or HEAD.

        Raises:
            Problem: 412, by `If-Match`.
        """
        gzipped = wants_gzip(request)
        if has_preconditions(request):
            tag = matching_etag(request, self._acceptable_etags[gzipped])
            if tag is not None:
                return self._not_modified.get(tag) or self._make_not_modified(tag)
        if gzipped:
            return self._compressed or await self._compress(request.client_network)
        return self._plain

    def _make_not_modified(self, tag: bytes) -> Response:
        self._not_modified[tag] = made = make_not_modified({**self._headers, b"ETag": tag})
        return made

    async def _compress(self, client: str) -> Response:
        try:
            async with self._work.turn(client):
                return self._compressed or self._keep_compressed(compress(self._plain.body))
        except ServerBusyError:
            return self._plain

    def _keep_compressed(self, compressed: bytes) -> Response:
        made = self._plain
        if len(compressed) < len(made.body):
            headers = {**self._headers, **self._more, **GZIP, b"ETag": gzip_etag(self._headers[b"ETag"])}
            made = make_response(HTTPStatus.OK, self._content_type, compressed, headers)
        self._compressed = made
        return made
