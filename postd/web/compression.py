"""gzip for whoever takes it (contract 2): `Accept-Encoding`, and the two forms that a text then has.

Compressed are lists of posts, and texts of ours that are large. A form, a page of files and an event stream are not. A
stranger can learn a secret from how well it is compressed together with text of his own (BREACH); posts have no secret
in them: whoever may read a list may read all of it.

Where `identity` is refused and there is no other form, the field is disregarded, as RFC 9110 §12.4.1 lets a server do.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from twisted.internet.threads import deferToThread

from postd.caching import SingleFlight
from postd.protocol.accept import prefers_gzip
from postd.protocol.gzip import compress
from postd.web.preconditions import current_tag, has_preconditions
from postd.web.responses import Response, make_not_modified, make_response

LEAST_BYTES = 1024
"""What is shorter fits into a packet or two as it is."""

INLINE_MAX_BYTES = 64 * 1024
"""What is longer, and takes more than a millisecond or so, is compressed in a thread."""

VARY: Mapping[bytes, bytes] = {b"Vary": b"Accept-Encoding"}
GZIP: Mapping[bytes, bytes] = {b"Content-Encoding": b"gzip"}


def takes_gzip(request: Any) -> bool:
    """Tell whether gzip is what the client would rather be sent."""
    field_lines = request.fields.get(b"Accept-Encoding")
    return field_lines is not None and prefers_gzip(b",".join(field_lines))


def gzip_tag(etag: bytes) -> bytes:
    """Return the tag of the compressed form: other bytes have another one (RFC 9110 §8.8.3.3)."""
    return b'%b-gzip"' % etag[:-1]


def good_tags(etag: bytes, *, gzipped: bool) -> Sequence[bytes]:
    """Return the tags of the forms that are good for a client, the best first.

    Of one that takes gzip both are: it is told that it has the form that it names. Of one that does not, the compressed
    form is not, though it be current: a cache in between would pass it on (RFC 9111 §4.3.4 lets it choose, among what
    it has kept, by the tag of a 304).

    Args:
        etag: the tag of the form without gzip.
        gzipped: whether the client takes it.
    """
    return (gzip_tag(etag), etag) if gzipped else (etag,)


def not_modified_if_current(request: Any, headers: Mapping[bytes, bytes]) -> Response | None:
    """Return the 304 to a client that has what would be sent with these headers, before that is made.

    Raises:
        Problem: 412, by `If-Match`.
    """
    if not has_preconditions(request):
        return None
    tag = current_tag(request, good_tags(headers[b"ETag"], gzipped=takes_gzip(request)))
    return None if tag is None else make_not_modified({**headers, b"ETag": tag})


class Text:
    """A text that is sent as it is, or with gzip if it is long enough and becomes shorter.

    The second form is made when it is first asked for, once for all who ask.

    Args:
        content_type: its type.
        body: the text; it does not change.
        headers: those of both forms, `Vary` (`VARY`) and a strong `ETag` among them. The compressed form has another
            tag (`gzip_tag`).
    """

    def __init__(self, content_type: bytes, body: bytes, headers: Mapping[bytes, bytes]) -> None:
        self._content_type = content_type
        self._headers = headers
        self._good_tags = [good_tags(headers[b"ETag"], gzipped=gzipped) for gzipped in (False, True)]
        self._plain = make_response(HTTPStatus.OK, content_type, body, headers)
        # None until it is known what becomes of it; the plain form, if that is no shorter.
        self._compressed = self._plain if len(body) < LEAST_BYTES else None
        self._compressing: SingleFlight[None, Response] = SingleFlight()
        self._not_modified: dict[bytes, Response] = {}

    async def answer(self, request: Any) -> Response:
        """Return the answer to GET and HEAD.

        Raises:
            Problem: 412, by `If-Match`.
        """
        gzipped = takes_gzip(request)
        if has_preconditions(request):
            tag = current_tag(request, self._good_tags[gzipped])
            if tag is not None:
                return self._not_modified.get(tag) or self._make_not_modified(tag)
        if gzipped:
            return self._compressed or await self._compressing.run(None, self._compress)
        return self._plain

    def _make_not_modified(self, tag: bytes) -> Response:
        self._not_modified[tag] = made = make_not_modified({**self._headers, b"ETag": tag})
        return made

    async def _compress(self) -> Response:
        body = self._plain.body
        compressed = compress(body) if len(body) <= INLINE_MAX_BYTES else await deferToThread(compress, body)
        if len(compressed) < len(body):
            headers = {**self._headers, **GZIP, b"ETag": gzip_tag(self._headers[b"ETag"])}
            self._compressed = make_response(HTTPStatus.OK, self._content_type, compressed, headers)
        else:
            self._compressed = self._plain
        return self._compressed
