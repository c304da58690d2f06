"""Responses decoded into values and errors of the client: header fields, problem details, connection errors."""

import time
from collections.abc import Mapping
from http.client import responses as phrases
from typing import NoReturn

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol
from twisted.web.iweb import IResponse

from postd.client.errors import NoAnswerError, ProblemError
from postd.net.http_client import describe_failure, is_tls_failure, root_cause
from postd.protocol.members import decode_object
from postd.protocol.retry_after import decode_retry_after

BODY_MAX_BYTES = 64 * 1024
"""How much of a body is read that reports an error, or is discarded."""


def connection_error(error: Exception, origin: str) -> Exception:
    """Return the client's error for a failed request, or the `CancelledError` that Twisted has wrapped."""
    if isinstance(root_cause(error), CancelledError):
        return CancelledError()
    never_sent = isinstance(error, ConnectError | DNSLookupError) or is_tls_failure(error)
    return NoAnswerError(f"{origin}: {describe_failure(error)}", sent=not never_sent)


def header_fields(response: IResponse) -> dict[str, str]:
    """Return the header fields of a treq response, as `postd.client.posts.Response` has them."""
    raw = response.headers.getAllRawHeaders()
    joined = {name.decode("latin-1").lower(): b", ".join(values) for name, values in raw}
    return {name: value.decode("latin-1") for name, value in joined.items()}


def raise_timeout(_: object, seconds: float) -> NoReturn:
    """Raise the error of a timeout; for `Deferred.addTimeout`."""
    raise NoAnswerError(f"no response within {seconds:.0f} s")


async def read_body(response: IResponse, *, max_s: float, clock: IReactorTime) -> bytes:
    """Return the body of a response, so that its connection can be reused.

    The body is read for `max_s` seconds, up to `BODY_MAX_BYTES`; beyond that the connection is closed.
    """
    body = _Body()
    response.deliverBody(body)
    await body.done.addTimeout(max_s, clock, body.abort)
    return bytes(body.content)


class _Body(Protocol):
    def __init__(self) -> None:
        self.content = bytearray()
        self.done: Deferred[None] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self.content += data
        if len(self.content) > BODY_MAX_BYTES:
            self.abort()

    def connectionLost(self, reason: object = None) -> None:  # noqa: ARG002
        if not self.done.called:
            self.done.callback(None)

    def abort(self, *_: object) -> None:
        assert self.transport is not None
        self.transport.loseConnection()


def decode_problem(status: int, fields: Mapping[str, str], content: bytes) -> ProblemError:
    """Return the error in a response without success, from its problem details if it has any."""
    is_problem = fields.get("content-type", "").partition(";")[0].strip().lower() == "application/problem+json"
    document = (decode_object(content) if is_problem else None) or {}
    words = {name: value for name, value in document.items() if isinstance(value, str)}
    location = fields.get("location", "")
    return ProblemError(
        status,
        words.get("title") or phrases.get(status, "Unknown Status"),
        words.get("detail") or (f"it leads to {location}" if location and 300 <= status < 400 else ""),
        pointer=words.get("pointer", ""),
        retry_after_s=decode_retry_after(fields.get("retry-after", ""), time.time()),
    )
