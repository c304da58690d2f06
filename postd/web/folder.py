"""Protected pages that are a folder of files (spec: Protected page).

Stock `twisted.web.static.File` is not used: it sends packed files with a `Content-Encoding`, so that clients unpack
them, has no entity tags, ignores `If-Match` and `If-Unmodified-Since`, and sends the new length of a file that grows.

Imported only if a page has `files`: few servers have.
"""

import errno
import math
import mimetypes
import os
import re
import secrets
import stat
import time
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from email.utils import formatdate, parsedate
from http import HTTPStatus
from pathlib import Path
from typing import IO

from twisted.logger import Logger

from postd.http.errors import Problem, not_found, precondition_failed
from postd.http.interface import Request
from postd.http.responses import (
    Parts,
    Response,
    StreamedResponse,
    make_not_modified,
    make_redirect,
    make_streamed_response,
)
from postd.http.views import WRITE_MAX_BYTES, error_page, send_in_pieces
from postd.web.name_pages import check_method
from postd.web.preconditions import is_not_modified

_log = Logger()

RANGES_MAX = 8
"""Limit on ranges; a request for more gets the whole file (RFC 9110 §14.2), because each range costs a part header."""

_RANGE = rb"(?:[0-9]{1,18}-[0-9]{0,18}|-[0-9]{1,18})"
_RANGES = re.compile(rb"bytes=(%b(?:[ \t]*,[ \t]*%b)*)" % (_RANGE, _RANGE))
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}

_TYPES = mimetypes.MimeTypes([path for path in mimetypes.knownfiles if os.access(path, os.R_OK)])
for _extension in (".conf", ".diff", ".java", ".patch"):
    _TYPES.add_type("text/plain", _extension)
_TYPES.add_type("application/zstd", ".zst")

_PACKED = {"gzip": "gzip", "bzip2": "x-bzip2", "xz": "x-xz", "compress": "x-compress", "br": "x-brotli"}
"""The subtypes of `application` for packed files, by the codings that `mimetypes` has for their names."""


class Folder:
    """A folder of files and subfolders; `index.html` is served for its folder, and there are no listings.

    Dot files are not served, nor are links that lead out of the folder.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    async def show(self, request: Request) -> Response | StreamedResponse | None:
        """Return a redirect to a folder or 304, or send a file."""
        check_method(request)
        try:
            path = self._find(request.postpath)
            request.file = request.path
            if path is None:
                own, question, query = request.uri.partition(b"?")
                return make_redirect(own + b"/" + question + query)
            with path.open("rb") as file:
                response = _make_response(request, path.name, file)
                if isinstance(response, StreamedResponse):
                    await send_in_pieces(request, response)
                    return None
                return response
        except PermissionError:
            return await _FORBIDDEN.view(request)
        except OSError as error:
            if error.errno in _NOT_THERE:
                raise not_found() from None
            raise

    def _find(self, segments: list[bytes]) -> Path | None:
        """Return the file at a path, None for the path of a folder without its trailing slash.

        Raises:
            Problem: 404, there is none.
        """
        try:
            names = [segment.decode("utf-8") for segment in segments]
        except UnicodeDecodeError:
            raise not_found() from None
        with_slash = names[-1:] == [""]
        if with_slash:
            names.pop()
        if any(not name or name.startswith(".") or set(name) & set("/\0") for name in names):
            raise not_found()
        # Path.resolve() raises RuntimeError for a symbolic link loop.
        root = Path(os.path.realpath(self._path))
        found = Path(os.path.realpath(root.joinpath(*names)))
        if not found.is_relative_to(root) or any(part.startswith(".") for part in found.relative_to(root).parts):
            raise not_found()
        if found.is_dir():
            if not with_slash:
                return None
            found /= "index.html"
        elif with_slash:
            raise not_found()
        if not stat.S_ISREG(os.lstat(found).st_mode):
            raise not_found()
        return found


_FORBIDDEN = error_page(Problem(403, "The server may not read this file."))


def _make_response(request: Request, name: str, file: IO[bytes]) -> Response | StreamedResponse:
    """Return the response of a file, or of ranges of it, in the order of conditions of RFC 9110 §13.2.2.

    Raises:
        Problem: 412, a condition does not hold; 416, no range is within the file.
    """
    status = os.fstat(file.fileno())
    # Rounded up, so that it is never earlier than the file, but not in the future (RFC 9110 §8.8.2.1).
    modified = min(math.ceil(status.st_mtime), int(time.time()))
    # The time of the last change of the inode differs for a file that was replaced by one of equal size and time.
    etag = b'"%x-%x-%x"' % (status.st_mtime_ns, status.st_size, status.st_ctime_ns)
    headers = {
        b"Accept-Ranges": b"bytes",
        b"Cache-Control": b"private, no-store",
        b"ETag": etag,
        b"Last-Modified": formatdate(modified, usegmt=True).encode("ascii"),
    }
    fields = request.fields
    if b"If-Match" not in fields and _is_before(request, b"If-Unmodified-Since", modified):
        raise precondition_failed()
    is_known = is_not_modified(request, etag)
    if b"If-None-Match" not in fields:
        is_known = _is_before(request, b"If-Modified-Since", modified) is False
    if is_known:
        return make_not_modified(headers)
    content_type, size = _type_of(name), status.st_size
    ranges = _decode_ranges(request, etag, modified, size)
    if ranges is None:
        return make_streamed_response(content_type, _read(file, [(b"", 0, size)]), headers, length=size)
    if not ranges:
        raise Problem(416, f"The file has {size} bytes.", headers={b"Content-Range": b"bytes */%d" % size})
    places = [b"bytes %d-%d/%d" % (first, last, size) for first, last in ranges]
    if len(ranges) == 1:
        spans = [(b"", ranges[0][0], ranges[0][1] + 1 - ranges[0][0])]
        headers[b"Content-Range"] = places[0]
    else:
        boundary = secrets.token_hex(16).encode("ascii")
        head = b"\r\n--%b\r\nContent-Type: %b\r\nContent-Range: %b\r\n\r\n"
        spans = [
            (head % (boundary, content_type, place), first, last + 1 - first)
            for place, (first, last) in zip(places, ranges, strict=True)
        ]
        spans.append((b"\r\n--%b--\r\n" % boundary, 0, 0))
        content_type = b"multipart/byteranges; boundary=%b" % boundary
    length = sum(len(prefix) + count for prefix, _, count in spans)
    return make_streamed_response(
        content_type, _read(file, spans), headers, length=length, status=HTTPStatus.PARTIAL_CONTENT
    )


def _type_of(name: str) -> bytes:
    """Return the media type of a file; a packed file has that of its packing, and no coding (RFC 6713)."""
    found, coding = _TYPES.guess_type(f"./{name}")  # a name is no URL
    if coding is not None:
        found = f"application/{_PACKED.get(coding, 'octet-stream')}"
    return (found or "application/octet-stream").encode("ascii")


async def _read(file: IO[bytes], spans: Sequence[tuple[bytes, int, int]]) -> AsyncGenerator[Parts]:
    """Yield parts of a file; each span is a prefix, an offset and a size in bytes.

    Raises:
        Problem: the file became shorter, so that the announced length cannot be sent.
    """
    for prefix, offset, size in spans:
        if prefix:
            yield [prefix]
        file.seek(offset)
        left = size
        while left:
            piece = file.read(min(left, WRITE_MAX_BYTES))
            if not piece:
                _log.warn("{name} became shorter while it was sent", name=file.name)
                raise Problem(500, "The file became shorter while it was sent.")
            left -= len(piece)
            yield [piece]


_TIME = rb"[0-9]{2}:[0-9]{2}:[0-9]{2}"
_DATE = re.compile(
    rb"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} %b GMT"
    rb"|[A-Z][a-z]{5,8}, [0-9]{2}-[A-Z][a-z]{2}-[0-9]{2} %b GMT"
    rb"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] %b [0-9]{4}" % (_TIME, _TIME, _TIME)
)
"""The three forms of a date (RFC 9110 §5.6.7)."""


def _decode_date(value: bytes) -> float | None:
    """Return a date in seconds since the epoch; None for any other text."""
    parts = parsedate(value.decode("ascii")) if _DATE.fullmatch(value) else None
    try:
        return None if parts is None else datetime(*parts[:6], tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _is_before(request: Request, name: bytes, modified: int) -> bool | None:
    """Return whether the date in a field is before the file's; None if the field is to be ignored (RFC 9110 §13.1)."""
    values = request.fields.get(name, [])
    date = _decode_date(values[0]) if len(values) == 1 else None
    return None if date is None else date < modified


def _decode_ranges(request: Request, etag: bytes, modified: int, size: int) -> list[tuple[int, int]] | None:
    """Return first and last byte of each satisfiable range; None if the whole file is to be sent (RFC 9110 §14.2)."""
    fields = request.fields
    values = fields.get(b"Range", [])
    if request.method != b"GET" or len(values) != 1:
        return None
    match = _RANGES.fullmatch(values[0].strip())
    pairs = [part.strip().partition(b"-") for part in match[1].split(b",")] if match else []
    if not pairs or len(pairs) > RANGES_MAX:
        return None
    if b"If-Range" in fields and not _is_unchanged(fields[b"If-Range"], etag, modified):
        return None
    wanted = []
    for first, _, last in pairs:
        if first and last and int(first) > int(last):
            return None
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last), size - 1) if first and last else size - 1
        if start <= end:
            wanted.append((start, end))
    return wanted


def _is_unchanged(values: Sequence[bytes], etag: bytes, modified: int) -> bool:
    """Return whether the file is the one that `If-Range` names (RFC 9110 §13.1.5).

    A date of the current second names none, because the file may change again within it (§8.8.2.2).
    """
    if len(values) != 1:
        return False
    return values[0] == etag or (_decode_date(values[0]) == modified and modified < int(time.time()))
