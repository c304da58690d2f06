"""What several operations have in common: parameters, headers, errors and the texts of answers."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from postd.model import POST_ID_MAX, PostId
from postd.web.openapi.operation import Body
from postd.web.posts import LIMIT_MAX
from postd.web.responses import TEXT

TEXT_TYPE = TEXT.decode("ascii")
HTML_TYPE = "text/html; charset=utf-8"
JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
EVENTS_TYPE = "text/event-stream"
FORM_TYPE = "application/x-www-form-urlencoded"


class ProblemDetails(Struct, frozen=True):
    """What is wrong, as RFC 9457 writes it. Further members may come."""

    type: Annotated[str, Meta(description="Always about:blank: the status says it all.", examples=["about:blank"])]
    title: Annotated[str, Meta(description="The name of the status.", examples=["Unprocessable Content"])]
    status: Annotated[
        int, Meta(description="The status.", extra_json_schema={"minimum": 400, "maximum": 599}, examples=[422])
    ]
    detail: Annotated[
        str,
        Meta(
            description="What is wrong with this request, for a person.",
            examples=["The text of a post must not be empty."],
        ),
    ]
    pointer: (
        Annotated[
            str,
            Meta(
                description="Where it is in the body that was sent: a JSON Pointer (RFC 6901).",
                extra_json_schema={"format": "json-pointer"},
                examples=["/post"],
            ),
        ]
        | UnsetType
    ) = UNSET


Count = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": LIMIT_MAX})]
After = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": POST_ID_MAX})]
OnBoard = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": POST_ID_MAX + 1})]
Key = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"})]


class Parameter(Struct, frozen=True):
    """A parameter; `place` is one of path, query and header."""

    name: str
    place: str
    description: str
    type: Any
    example: Any


PARAMETERS: Mapping[str, Parameter] = {
    "id": Parameter("id", "path", "The number of the post.", PostId, 1),
    "limit": Parameter("limit", "query", "How many posts to list at the most; without it: all.", Count, 100),
    "after": Parameter("after", "query", "List only posts with numbers larger than this.", After, 0),
    "If-None-Match": Parameter(
        "If-None-Match",
        "header",
        "The `ETag` of what you have, or several, or `*`. What is still so is answered with 304 where it is read, and "
        "with 412 where it would be changed.",
        str,
        '"5f2b1e"',
    ),
    "If-Match": Parameter(
        "If-Match",
        "header",
        "The `ETag` of what this is meant for, or several, or `*`. If it has changed since, nothing is done: 412.",
        str,
        '"5f2b1e"',
    ),
    "Idempotency-Key": Parameter(
        "Idempotency-Key",
        "header",
        "A text of your choice, new for each post, such as a UUID. If an answer never arrives, send the same bytes "
        "with the same key again: for 24 hours you get the first answer again, and nothing is added twice.",
        Key,
        "8e03978e-40d5-43e8-bc93-6894a57f9324",
    ),
    "Last-Event-ID": Parameter(
        "Last-Event-ID",
        "header",
        "The `id` of the last event that you have got: you are told what came after it.",
        After,
        17,
    ),
    "after-event": Parameter(
        "after",
        "query",
        "As `Last-Event-ID`, for who cannot set a field, such as a browser's first request. The field goes before it.",
        After,
        17,
    ),
    "after-on-board": Parameter("after", "query", "Show posts with numbers larger than this.", OnBoard, 0),
    "before": Parameter(
        "before", "query", "Show posts with numbers smaller than this; not with `after`.", OnBoard, 101
    ),
}

# RFC 9110 §8.8.3
_ETAG = {"type": "string", "pattern": '^"[!#-~]+"$'}

HEADERS: Mapping[str, Mapping[str, Any]] = {
    "ETag": {"description": "Names this state, for `If-Match` and `If-None-Match`.", "schema": _ETAG},
    "Link": {
        "description": 'Where the list goes on (`rel="next"`), while there is more.',
        "schema": {"type": "string", "examples": ['</post?limit=2&after=2>; rel="next"']},
    },
    "Location": {
        "description": "The path of what was made, or of where to go on.",
        "schema": {"type": "string", "format": "uri-reference"},
    },
    "Retry-After": {
        "description": "Seconds to wait before the next attempt.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {
        "description": "What credentials are asked for; one line for each scheme.",
        "schema": {"type": "string"},
    },
    "Authentication-Info": {
        "description": "With Digest: the proof that the server knows the password, too (`rspauth`).",
        "schema": {"type": "string"},
    },
    "Set-Cookie": {"description": "Sets the cookie `session`, or takes it away.", "schema": {"type": "string"}},
}

ERROR_HEADERS: Mapping[int, str] = {
    401: "WWW-Authenticate",
    409: "Retry-After",
    429: "Retry-After",
    503: "Retry-After",
    507: "Retry-After",
}
"""Which header an error always has."""

ERRORS: Mapping[int, str] = {
    400: "The request is not HTTP that can be read in exactly one way.",
    413: "The body is larger than the server takes.",
    414: "The address is too long.",
    431: "The header fields are too large.",
}
"""What any request may be answered with, whatever it is for."""

UNAVAILABLE = "The store does not answer now."
FULL = "The store has no space left; reading goes on."


def text(example: str) -> Body:
    """Return a body that is plain text."""
    return Body(TEXT_TYPE, str, example)


def html(example: str) -> Body:
    """Return a body that is a page."""
    return Body(HTML_TYPE, str, example)
