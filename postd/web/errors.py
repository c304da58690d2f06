"""The one table from what went wrong to what the client is told.

The API answers problem details (RFC 9457), everything else plain text (contract 2); 421 is problem details at every
address. No answer carries more than is
written here or was the client's own input at fault: no traceback, no path, no version.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from twisted.logger import Logger
from twisted.python.failure import Failure
from werkzeug.exceptions import MethodNotAllowed, NotFound

from postd.errors import (
    InvalidTextError,
    IssuerUnavailableError,
    KeyInUseError,
    KeyReusedError,
    LoginsBusyError,
    NoSuchPostError,
    PostChangedError,
    StoreBusyError,
    StoreFullError,
    StoreUnavailableError,
    TooManyFailuresError,
)
from postd.protocol.percent import percent_decode
from postd.web.redaction import show_method, show_target
from postd.web.responses import PAGE_HEADERS, TEXT, Response, make_no_content, make_response, phrase

API_SEGMENTS = (b"post", b".well-known", b"openapi.json")
"""What the paths of the API begin with."""

_API = [[b"", segment] for segment in API_SEGMENTS]

RETRY_AFTER_S = 1
"""What a client is asked to wait when the store is away (`Retry-After`)."""

_log = Logger()


class Problem(Exception):  # noqa: N818 - RFC 9457's word for it
    """An answer other than success.

    Args:
        status: the HTTP status.
        detail: what is wrong with this request, for a person.
        pointer: JSON Pointer (RFC 6901) to the offending part of the body.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        pointer: str | None = None,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> None:
        super().__init__(status, detail)
        self.status = HTTPStatus(status)
        self.detail = detail
        self.pointer = pointer
        self.headers = dict(headers or {})


def problem_of(error: BaseException) -> Problem | None:  # noqa: C901, PLR0911, PLR0912 - a table
    """Return what an error means to a client, None for one that should never have come this far."""
    match error:
        case Problem():
            return error
        case NoSuchPostError(post_id=post_id):
            return Problem(404, f"There is no post {post_id}.")
        case PostChangedError():
            return precondition_failed()
        case KeyReusedError():
            return Problem(422, "Another request was made with this Idempotency-Key.")
        case KeyInUseError():
            return Problem(409, "A request with this Idempotency-Key is under way.", headers=_retry())
        case InvalidTextError(why=why):
            return Problem(422, why, pointer="/post")
        case TooManyFailuresError(retry_after_s=seconds):
            return Problem(429, "Too many failed logins; wait a while.", headers=_retry(seconds))
        case LoginsBusyError():
            return Problem(503, "Too many logins are waiting.", headers=_retry())
        case IssuerUnavailableError():
            return Problem(503, "The issuer of such tokens does not answer now.", headers=_retry())
        case StoreFullError():
            return Problem(507, "There is no space left to store this; reading goes on.", headers=_retry())
        case StoreBusyError():
            return Problem(503, "Too many writes are waiting; nothing was stored.", headers=_retry())
        case StoreUnavailableError():
            return Problem(503, "The store does not answer now.", headers=_retry())
        case MethodNotAllowed(valid_methods=methods):
            allow = ", ".join(sorted({*(methods or ()), "OPTIONS"}))
            return Problem(405, f"Allowed here: {allow}.", headers={b"Allow": allow.encode()})
        case NotFound():
            return Problem(404, "There is nothing at this address.")
        case _:
            return None


def precondition_failed() -> Problem:
    """Return the answer to an `If-Match` or `If-None-Match` that does not hold (RFC 9110 §13.1)."""
    return Problem(412, "The state that the request was made for is no longer the current one.")


def _retry(seconds: int = RETRY_AFTER_S) -> dict[bytes, bytes]:
    return {b"Retry-After": b"%d" % seconds}


def make_error_response(request: Any, error: BaseException) -> Response:
    """Return the answer to an error, and log it where an operator should know."""
    problem = problem_of(error)
    if problem is None:
        _log.failure(
            "unexpected error in {method} {target} (request {id})",
            failure=Failure(error),
            method=show_method(request.method),
            target=show_target(request),
            id=request.id,
        )
        problem = Problem(500, "Something went wrong here; the log of the server says what.")
    if isinstance(error, MethodNotAllowed) and request.method == b"OPTIONS":
        return make_no_content(problem.headers)
    return make_problem_response(request.path, problem)


def make_problem_response(path: bytes, problem: Problem) -> Response:
    """Return the answer that tells a problem at an address."""
    # A 404 may otherwise be kept by caches as they see fit (RFC 9111 §4.2.2).
    headers = {b"Cache-Control": b"no-store", **problem.headers}
    # A request for another server's host has no page of ours to answer it (contract 7).
    if not is_api(path) and problem.status is not HTTPStatus.MISDIRECTED_REQUEST:
        body = f"{phrase(problem.status)}\n".encode()
        return make_response(problem.status, TEXT, body, {**PAGE_HEADERS, **headers})
    members: dict[str, Any] = {
        "type": "about:blank",
        "title": phrase(problem.status),
        "status": int(problem.status),
        "detail": problem.detail,
    }
    if problem.pointer is not None:
        members["pointer"] = problem.pointer
    body = orjson.dumps(members, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return make_response(problem.status, b"application/problem+json", body, headers)


def is_api(path: bytes) -> bool:
    """Tell whether errors at this address are problem details; so they are where no address could be made out."""
    return not path or [percent_decode(segment) for segment in path.split(b"/", 2)[:2]] in _API
