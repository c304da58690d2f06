"""Parts shared by operations: media types, schemas, parameters, headers and errors."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from postd.model import POST_ID_MAX, PostId
from postd.web.openapi.operation import Body, Reply
from postd.web.posts import LIMIT_MAX
from postd.web.responses import TEXT

TEXT_TYPE = TEXT.decode("ascii")
HTML_TYPE = "text/html; charset=utf-8"
JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
EVENTS_TYPE = "text/event-stream"
FORM_TYPE = "application/x-www-form-urlencoded"


class ProblemDetails(Struct, frozen=True):
    """Problem details (RFC 9457); more members may be added."""

    type: Annotated[str, Meta(description="Always about:blank.", examples=["about:blank"])]
    title: Annotated[str, Meta(description="The reason phrase of the status.", examples=["Unprocessable Content"])]
    status: Annotated[
        int, Meta(description="The HTTP status.", extra_json_schema={"minimum": 400, "maximum": 599}, examples=[422])
    ]
    detail: Annotated[
        str,
        Meta(
            description="What is wrong with this request, in plain text.",
            examples=["The text of a post must not be empty."],
        ),
    ]
    pointer: (
        Annotated[
            str,
            Meta(
                description="The invalid part of the request body: a JSON Pointer (RFC 6901).",
                extra_json_schema={"format": "json-pointer"},
                examples=["/post"],
            ),
        ]
        | UnsetType
    ) = UNSET


Count = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": LIMIT_MAX})]
After = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": POST_ID_MAX})]
BoardId = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": POST_ID_MAX + 1})]
Key = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"})]


class Parameter(Struct, frozen=True):
    """A parameter; `place` is path, query or header."""

    name: str
    place: str
    description: str
    type: Any
    example: Any


PARAMETERS: Mapping[str, Parameter] = {
    "id": Parameter("id", "path", "The number of the post.", PostId, 1),
    "limit": Parameter("limit", "query", "The largest number of posts to list; all by default.", Count, 100),
    "after": Parameter("after", "query", "List only posts with larger numbers than this.", After, 0),
    "If-None-Match": Parameter(
        "If-None-Match",
        "header",
        "One or more values of `ETag`, or `*`. If one of them is current, a read is answered with 304, and a write "
        "with 412.",
        str,
        '"5f2b1e"',
    ),
    "If-Match": Parameter(
        "If-Match",
        "header",
        "One or more values of `ETag`, or `*`. If none of them is current, the request is refused with 412.",
        str,
        '"5f2b1e"',
    ),
    "Idempotency-Key": Parameter(
        "Idempotency-Key",
        "header",
        "A unique text for each post, such as a UUID. If no response arrives, repeat the request with the same key and "
        "the same bytes: for 24 hours it gets the first response again, and the post is added once.",
        Key,
        "8e03978e-40d5-43e8-bc93-6894a57f9324",
    ),
    "Last-Event-ID": Parameter(
        "Last-Event-ID",
        "header",
        "The `id` of the last event received. The stream continues after it.",
        After,
        17,
    ),
    "after-event": Parameter(
        "after",
        "query",
        "As `Last-Event-ID`, for clients that cannot set a field, such as a browser in its first request. The field "
        "takes precedence.",
        After,
        17,
    ),
    "after-on-board": Parameter("after", "query", "Show posts with larger numbers than this.", BoardId, 0),
    "before": Parameter(
        "before", "query", "Show posts with smaller numbers than this; not together with `after`.", BoardId, 101
    ),
}

# RFC 9110 §8.8.3
_ETAG = {"type": "string", "pattern": '^"[!#-~]+"$'}

HEADERS: Mapping[str, Mapping[str, Any]] = {
    "ETag": {"description": "The entity tag, for `If-Match` and `If-None-Match`.", "schema": _ETAG},
    "Link": {
        "description": 'The next page (`rel="next"`), if there is one.',
        "schema": {"type": "string", "examples": ['</post?limit=2&after=2>; rel="next"']},
    },
    "Location": {
        "description": "The path of the new resource, or of the redirect.",
        "schema": {"type": "string", "format": "uri-reference"},
    },
    "Retry-After": {
        "description": "Seconds to wait before a retry.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {
        "description": "The challenges, one line for each scheme.",
        "schema": {"type": "string"},
    },
    "Authentication-Info": {
        "description": "With Digest: the server's proof of the password (`rspauth`).",
        "schema": {"type": "string"},
    },
    "Set-Cookie": {"description": "Sets or deletes the cookie `session`.", "schema": {"type": "string"}},
}

ERROR_HEADERS: Mapping[int, str] = {
    401: "WWW-Authenticate",
    409: "Retry-After",
    429: "Retry-After",
    503: "Retry-After",
    507: "Retry-After",
}
"""The header field that an error always has."""

ERRORS: Mapping[int, str] = {
    400: "The request is malformed or ambiguous HTTP.",
    413: "The body is too large.",
    414: "The URL is too long.",
    431: "The header fields are too large.",
}
"""Errors of any request."""

NOT_MODIFIED = Reply("`If-None-Match` names the current `ETag`.", headers=("ETag",))
CONDITIONS = ("If-None-Match", "If-Match")
CROSS_SITE = "A page of another site made the browser send this."
UNAVAILABLE = "The store is not available."
FULL = "The store has no space left; reading still works."


def text(example: str) -> Body:
    """Return a plain text body."""
    return Body(TEXT_TYPE, str, example)


def html(example: str) -> Body:
    """Return an HTML body."""
    return Body(HTML_TYPE, str, example)
