"""The table from exceptions to error responses.

Errors of the API are problem details (RFC 9457), all other errors plain text, or a page for clients that prefer HTML;
421 is always problem details (reference: Post API). A response contains only the texts here and, in the API, the
client's own input: no traceback, file path or version.
"""

from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from math import ceil

import orjson
from msgspec import Struct
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.errors import (
    InvalidTextError,
    IssuerUnavailableError,
    KeyInUseError,
    KeyReusedError,
    LoginsBusyError,
    NoSuchPostError,
    NotAuthorError,
    PostChangedError,
    ServerBusyError,
    StoreBusyError,
    StoreFullError,
    StoreUnavailableError,
    TooManyFailuresError,
)
from postd.http.interface import Request
from postd.http.pages.template import make_html_response, negotiate_html
from postd.http.redaction import show_method, show_target
from postd.http.responses import PAGE_HEADERS, TEXT, Response, make_response, phrase

RETRY_AFTER_S = 1
"""`Retry-After` of temporary errors, in seconds."""

NOT_OUR_HOST = "This server does not answer requests for this host; its operator can add the host to the setting hosts."
"""The detail of a 421."""

_log = Logger()


class Problem(Exception):  # noqa: N818 - RFC 9457's word for it
    """An error response; `pointer` is a JSON Pointer (RFC 6901) to the offending part of the body."""

    def __init__(
        self, status: int, detail: str, *, pointer: str | None = None, headers: Mapping[bytes, bytes] | None = None
    ) -> None:
        super().__init__(status, detail)
        self.status = HTTPStatus(status)
        self.detail = detail
        self.pointer = pointer
        self.headers = dict(headers or {})


class Advice(Struct, frozen=True):
    """Advice on an error page: an optional sentence, and a link."""

    sentence: str = ""
    path: str = "/"
    link: str = "Go to the start page"


_START = Advice()


def to_problem(error: BaseException) -> Problem | None:  # noqa: C901, PLR0911, PLR0912 - a table
    """Return the problem that reports an exception to the client, None for an unexpected exception."""
    match error:
        case Problem():
            return error
        case NoSuchPostError(post_id=post_id):
            return Problem(404, f"There is no post {post_id}.")
        case NotAuthorError(post_id=post_id):
            return Problem(403, f"Post {post_id} may be changed only by its author and by moderators.")
        case PostChangedError():
            return precondition_failed()
        case KeyReusedError():
            return Problem(422, "This Idempotency-Key was used with a different request.")
        case KeyInUseError():
            return Problem(409, "A request with this Idempotency-Key is in progress.", headers=_retry())
        case InvalidTextError(why=why):
            return Problem(422, why, pointer="/post")
        case TooManyFailuresError(retry_after_s=seconds):
            return Problem(429, "Too many failed logins.", headers=_retry(seconds))
        case LoginsBusyError():
            return Problem(503, "Too many logins are waiting.", headers=_retry())
        case ServerBusyError():
            return Problem(503, "The server is busy.", headers=_retry())
        case IssuerUnavailableError(retry_after_s=seconds):
            return Problem(503, "The token issuer is not available.", headers=_retry(max(ceil(seconds), 1)))
        case StoreFullError():
            return Problem(507, "The store has no space left; reading still works.", headers=_retry())
        case StoreBusyError():
            return Problem(503, "Too many writes are waiting; nothing was stored.", headers=_retry())
        case StoreUnavailableError():
            return Problem(503, "The store is not available.", headers=_retry())
        case _:
            return None


def not_found() -> Problem:
    """Return the problem of a path without a resource."""
    return Problem(404, "There is nothing at this address.")


def precondition_failed(*, was_altered: bool = False) -> Problem:
    """Return the problem of a precondition that does not hold (RFC 9110 §13.1).

    `was_altered` is whether `If-Match` has the current entity tag, as a proxy alters it that compresses.
    """
    detail = "A precondition of the request (If-Match or If-None-Match) does not hold."
    if was_altered:
        detail += (
            " If-Match has the current entity tag as altered by a proxy that compresses: it must not compress this."
        )
    return Problem(412, detail)


def _retry(seconds: int = RETRY_AFTER_S) -> dict[bytes, bytes]:
    return {b"Retry-After": b"%d" % seconds}


def retry_after_text(problem: Problem) -> str:
    """Return the sentence that says when to try again, an empty text if waiting is of no use."""
    seconds = problem.headers.get(b"Retry-After", b"").decode("ascii")
    return f"Try again in {seconds} second{'' if seconds == '1' else 's'}." if seconds else ""


def make_error_response(request: Request, error: BaseException) -> Response:
    """Return the response to an exception; log it if it is unexpected."""
    problem = to_problem(error)
    if problem is None:
        _log.failure(
            "unexpected error in {method} {target} (request {id})",
            failure=Failure(error),
            method=show_method(request.method),
            target=show_target(request.uri, request.path, request.route, request.file),
            id=request.id,
        )
        problem = Problem(500, "Internal error; the log of the server has the details.")
    return make_problem_response(request, problem)


def make_problem_response(request: Request, problem: Problem, advice: Advice = _START) -> Response:
    """Return the response with a problem, in the form that suits the request; a page has the advice."""
    # A request for a host that is not allowed gets no page (reference: Hosts).
    if not request.is_api and problem.status is not HTTPStatus.MISDIRECTED_REQUEST:
        headers = {**PAGE_HEADERS, **problem.headers}
        title = phrase(problem.status)
        if not negotiate_html(request):
            return make_response(problem.status, TEXT, f"{title}\n".encode(), headers)
        said = " ".join(filter(None, [problem.detail, advice.sentence, retry_after_text(problem)]))
        content = f'<p>{escape(said)}</p>\n<a href="{escape(advice.path)}">{escape(advice.link)}</a>\n'
        return make_html_response(problem.status, title, content, site_name=request.site_name, headers=headers)
    return make_problem_document(problem)


def make_problem_document(problem: Problem) -> Response:
    """Return the response with a problem as a document (RFC 9457), for programs."""
    # Caches may otherwise store a 404 with a lifetime of their choice (RFC 9111 §4.2.2).
    headers = {b"Cache-Control": b"no-store", **problem.headers}
    members: dict[str, object] = {
        "type": "about:blank",
        "title": phrase(problem.status),
        "status": int(problem.status),
        "detail": problem.detail,
    }
    if problem.pointer is not None:
        members["pointer"] = problem.pointer
    body = orjson.dumps(members, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return make_response(problem.status, b"application/problem+json", body, headers)
