"""What protected pages show (spec: Protected page): a text that says who came in, or a folder of files."""

import errno
import math
import os
import re
import stat
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any

from twisted.logger import Logger
from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from twisted.web.static import File, MultipleRangeStaticProducer, SingleRangeStaticProducer
from werkzeug.exceptions import NotFound

from postd.model import strip_issuer
from postd.web.errors import Problem
from postd.web.responses import PAGE_HEADERS, TEXT, Answer, make_answer, make_redirect
from postd.web.server.driver import Answering, ViewResource, error_page
from postd.web.streaming import PIECE_BYTES, Flow

_log = Logger()

RANGES_MAX = 8
"""A request for more ranges than this gets the whole file, as RFC 9110 §14.2 lets a server do: each costs a head."""

_RANGE = rb"(?:[0-9]{1,18}-[0-9]{0,18}|-[0-9]{1,18})"
_RANGES = re.compile(rb"bytes=(%b(?:[ \t]*,[ \t]*%b)*)" % (_RANGE, _RANGE))
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_DATE = re.compile(rb"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")


def check_method(request: Any) -> None:
    """Let GET and HEAD pass; unlike elsewhere, OPTIONS is another method here (contract 4.3).

    Raises:
        Problem: 405.
    """
    if request.method not in {b"GET", b"HEAD"}:
        raise Problem(405, "Allowed here: GET, HEAD.", headers={b"Allow": b"GET, HEAD"})


async def show_name(request: Any) -> Answer:
    """Answer with the page that says "Success"; the spec gives no more of its body. Below it is nothing."""
    if request.postpath:
        raise NotFound
    check_method(request)
    body = f"Success: {strip_issuer(request.username)}\n".encode()
    headers = {**PAGE_HEADERS, b"Vary": b"Authorization, Cookie"}
    return make_answer(HTTPStatus.OK, TEXT, body, headers)


class Folder(Resource):
    """A folder of files, and those below it; `index.html` stands for its folder, and nothing lists one.

    Names that begin with a dot are not there, and neither is what a link leads to outside of the folder. What of the
    request's fields stock `File` would stumble over, or misread, is taken out of its way.
    """

    isLeaf = True

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def render(self, request: Any) -> Any:
        try:
            return self._send(request)
        except PermissionError:
            return _File.forbidden.render(request)
        except OSError as error:
            return error_page(NotFound() if error.errno in _NOT_THERE else error).render(request)
        except (Problem, NotFound) as error:
            return error_page(error).render(request)

    def _send(self, request: Any) -> Any:
        check_method(request)
        file = self._find(request.postpath)
        request.file = request.path
        if file is None:
            return ViewResource(_add_slash).render(request)
        _tidy_conditions(request, file.stat())
        request.setHeader(b"Cache-Control", b"private, no-store")
        request.setHeader(b"X-Content-Type-Options", b"nosniff")
        rendered = _File(str(file), defaultType="application/octet-stream").render_GET(request)
        if rendered != b"":
            return rendered
        request.finish()  # a 304 or HEAD; who is given an empty body sets its length, which is not the file's
        return NOT_DONE_YET

    def _find(self, segments: list[bytes]) -> Path | None:
        """Return the file at a path, None if it is the path of a folder without its slash.

        Raises:
            NotFound: there is none.
        """
        try:
            names = [segment.decode("utf-8") for segment in segments]
        except UnicodeDecodeError:
            raise NotFound from None
        with_slash = names[-1:] == [""]
        if with_slash:
            names.pop()
        if any(not name or name.startswith(".") or set(name) & set("/\0") for name in names):
            raise NotFound
        # Not Path.resolve(), which has an error of its own for a link that leads to itself.
        root = Path(os.path.realpath(self._path))
        found = Path(os.path.realpath(root.joinpath(*names)))
        if not found.is_relative_to(root) or any(part.startswith(".") for part in found.relative_to(root).parts):
            raise NotFound
        if found.is_dir():
            if not with_slash:
                return None
            found /= "index.html"
        elif with_slash:
            raise NotFound
        if not stat.S_ISREG(os.lstat(found).st_mode):
            raise NotFound
        return found


async def _add_slash(request: Any) -> Answer:
    path, question, query = request.uri.partition(b"?")
    return make_redirect(path + b"/" + question + query)


class _File(File):
    """A file; its errors look like ours, and it is sent as long as it was said to be, or cut off."""

    childNotFound: Any = error_page(NotFound())
    forbidden: Any = error_page(Problem(403, "The server may not read this file."))

    def makeProducer(self, request: Any, fileForReading: IO[bytes]) -> Any:
        producer = super().makeProducer(request, fileForReading)
        if isinstance(producer, SingleRangeStaticProducer):
            spans = [(b"", producer.offset, producer.size)]
        elif isinstance(producer, MultipleRangeStaticProducer):
            spans = producer.rangeInfo
        else:
            spans = [(b"", 0, self.getsize())]
        return _Sending(request, fileForReading, spans)


class _Sending:
    """What stands for a producer of stock `File`, of which one would send what a file has become meanwhile."""

    def __init__(self, request: Any, file: IO[bytes], spans: Sequence[tuple[bytes | None, int, int]]) -> None:
        self._request = request
        self._coroutine = _send_spans(request, file, spans)

    def start(self) -> None:
        Answering(self._request, self._coroutine).go_on(None)


async def _send_spans(request: Any, file: IO[bytes], spans: Sequence[tuple[bytes | None, int, int]]) -> None:
    """Send parts of a file: of each what stands before it, where it begins, and how many bytes it has.

    Raises:
        Problem: the file has become shorter, so that what was promised cannot be sent.
    """
    with file:
        async with Flow(request) as flow:
            for before, offset, size in spans:
                if before:
                    await flow.write(before)
                file.seek(offset)
                left = size
                while left:
                    piece = file.read(min(left, PIECE_BYTES))
                    if not piece:
                        _log.warn("{name} became shorter while it was sent", name=file.name)
                        raise Problem(500, "The file became shorter while it was sent.")
                    left -= len(piece)
                    await flow.write(piece)
    request.finish()


def _tidy_conditions(request: Any, status: os.stat_result) -> None:
    """Take away the conditions that are not to be looked at (RFC 9110 §13.1.3, §13.1.5, §14.2)."""
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
    """Return first and last byte of each range that is in the file; None if the field is not to be looked at."""
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
