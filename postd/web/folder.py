"""Protected pages that are a folder of files (spec: Protected page).

Imported only if a page has `files`: importing `twisted.web.static` takes 6 ms and half a mebibyte.
"""

import errno
import math
import os
import re
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from twisted.logger import Logger
from twisted.web import http
from twisted.web.static import File, MultipleRangeStaticProducer, SingleRangeStaticProducer

from postd.http.errors import Problem, not_found
from postd.http.interface import Request
from postd.http.responses import Response, StreamedResponse, make_redirect
from postd.http.views import WRITE_MAX_BYTES, PacedWriter, error_page, respond
from postd.web.name_pages import check_method

_log = Logger()

RANGES_MAX = 8
"""Limit on ranges; a request for more gets the whole file (RFC 9110 §14.2), because each range costs a part header."""

_RANGE = rb"(?:[0-9]{1,18}-[0-9]{0,18}|-[0-9]{1,18})"
_RANGES = re.compile(rb"bytes=(%b(?:[ \t]*,[ \t]*%b)*)" % (_RANGE, _RANGE))
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_DATE = re.compile(rb"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")


class Folder:
    """A folder of files and subfolders; `index.html` is served for its folder, and there are no listings.

    Dot files are not served, nor are links that lead out of the folder. Header fields that stock `File` fails on or
    misreads are removed from the request first.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    async def show(self, request: Request) -> Response | StreamedResponse | None:
        """Return a redirect to a folder, or send a file."""
        try:
            return self._send(request)
        except PermissionError:
            return await _FORBIDDEN.view(request)
        except OSError as error:
            if error.errno in _NOT_THERE:
                raise not_found() from None
            raise

    def _send(self, request: Request) -> Response | None:
        check_method(request)
        file = self._find(request.postpath)
        request.file = request.path
        if file is None:
            path, question, query = request.uri.partition(b"?")
            return make_redirect(path + b"/" + question + query)
        _normalize_conditions(request, file.stat())
        request.setHeader(b"Cache-Control", b"private, no-store")
        request.setHeader(b"X-Content-Type-Options", b"nosniff")
        rendered = _File(str(file), defaultType="application/octet-stream").render_GET(request)
        if rendered == b"":
            request.finish()  # 304 or HEAD: returning an empty body would set Content-Length to 0
        return None

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


class _File(File):
    """A file with postd's error responses; a body that becomes shorter than announced aborts the connection."""

    childNotFound: Any = error_page(not_found())
    forbidden: Any = _FORBIDDEN

    def makeProducer(self, request: Any, fileForReading: IO[bytes]) -> Any:
        producer = super().makeProducer(request, fileForReading)
        if isinstance(producer, SingleRangeStaticProducer):
            spans = [(b"", producer.offset, producer.size)]
        elif isinstance(producer, MultipleRangeStaticProducer):
            spans = producer.rangeInfo
        else:
            spans = [(b"", 0, self.getsize())]
        # Replaces the producers of stock `File`, which send the new length of a file that grows during the response.
        return SimpleNamespace(start=partial(respond, request, _send_spans(request, fileForReading, spans)))


async def _send_spans(request: Request, file: IO[bytes], spans: Sequence[tuple[bytes | None, int, int]]) -> None:
    """Send parts of a file; each span is a prefix, an offset and a size in bytes.

    Raises:
        Problem: the file became shorter, so that the announced length cannot be sent.
    """
    with file:
        async with PacedWriter(request) as writer:
            for prefix, offset, size in spans:
                if prefix:
                    await writer.write(prefix)
                file.seek(offset)
                left = size
                while left:
                    piece = file.read(min(left, WRITE_MAX_BYTES))
                    if not piece:
                        _log.warn("{name} became shorter while it was sent", name=file.name)
                        raise Problem(500, "The file became shorter while it was sent.")
                    left -= len(piece)
                    await writer.write(piece)
    request.finish()


def _normalize_conditions(request: Request, status: os.stat_result) -> None:
    """Remove conditions that must be ignored, and normalize `Range` (RFC 9110 §13.1.3, §13.1.5, §14.2)."""
    headers = request.requestHeaders
    since = headers.getRawHeaders(b"If-Modified-Since", [])
    if len(since) != 1 or not _DATE.fullmatch(since[0]) or headers.hasHeader(b"If-None-Match"):
        headers.removeHeader(b"If-Modified-Since")
    ranges = headers.getRawHeaders(b"Range")
    if ranges is None:
        return
    only_if = headers.getRawHeaders(b"If-Range", [])
    changed = only_if not in ([], [http.datetimeToString(math.ceil(status.st_mtime))])  # as Last-Modified has it
    ignored = request.method == b"HEAD" or changed or len(ranges) != 1
    wanted = None if ignored else _decode_ranges(ranges[0], status.st_size)
    if wanted is None:
        headers.removeHeader(b"Range")
        return
    if not wanted:
        unsatisfiable = {b"Content-Range": b"bytes */%d" % status.st_size}
        raise Problem(416, f"The file has {status.st_size} bytes.", headers=unsatisfiable)
    headers.setRawHeaders(b"Range", [b"bytes=" + b",".join(b"%d-%d" % pair for pair in wanted)])


def _decode_ranges(value: bytes, size: int) -> list[tuple[int, int]] | None:
    """Return first and last byte of each satisfiable range; None if the field is invalid and to be ignored."""
    match = _RANGES.fullmatch(value.strip())
    pairs = [part.strip().partition(b"-") for part in match[1].split(b",")] if match else []
    if not pairs or len(pairs) > RANGES_MAX:
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
