"""Operations, and the parts that they share: media types, schemas, parameters, headers and errors.

Nothing here depends on the settings. Texts are plain, with `code` in backticks.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from postd.http.responses import HTML, TEXT
from postd.model import POST_ID_MAX, PostId, PostText
from postd.web.posts import LIMIT_MAX

TEXT_TYPE = TEXT.decode("ascii")
HTML_TYPE = HTML.decode("ascii")
PROBLEM_TYPE = "application/problem+json"
EVENTS_TYPE = "text/event-stream"
FORM_TYPE = "application/x-www-form-urlencoded"

Rule = Literal["open", "read", "write", "session"]
"""The access rule of an operation."""


class Body(Struct, frozen=True):
    """The body of a request or response; its schema is made from `type`."""

    type: object
    example: Any
    content_type: str = "application/json"


class Reply(Struct, frozen=True):
    """A response that is no error.

    Args:
        description: when it is sent.
        body: its body.
        page: its body for clients that prefer HTML, where there is a choice.
        headers: names in `HEADERS` that it always has.
        optional_headers: names of headers that it may have.
        examples: values of header fields by name, where they differ from `HEADERS`.
    """

    description: str
    body: Body | None = None
    headers: tuple[str, ...] = ()
    optional_headers: tuple[str, ...] = ()
    page: Body | None = None
    examples: Mapping[str, str] = {}


class Operation(Struct, frozen=True):
    """A method at a path.

    Args:
        id: the `operationId`.
        summary: what it does, in a few words.
        description: details for its users.
        replies: its responses by status, without errors.
        errors: when it fails, by status; errors of any request are in `ERRORS`, of authentication in `document`.
        rule: which schemes may use it.
        parameters: names in `PARAMETERS`.
        body: the request body.
        curl: words of the sample's command line beside the words for the method, the credentials and the body.
        query: the query of the URL in the samples.
        sends_session: whether the samples send a session cookie although none is required.
    """

    id: str
    summary: str
    description: str
    replies: Mapping[int, Reply]
    errors: Mapping[int, str] = {}
    rule: Rule = "open"
    parameters: tuple[str, ...] = ()
    body: Body | None = None
    curl: str = ""
    query: str = ""
    sends_session: bool = False


_POINTER = "The invalid part of the request body: a JSON Pointer (RFC 6901)."


def _member(description: str, example: object, **schema: object) -> Meta:
    return Meta(description=description, examples=[example], extra_json_schema=schema)


class ProblemDetails(Struct, frozen=True):
    """Problem details (RFC 9457); more members may be added."""

    type: Annotated[str, _member("Always about:blank.", "about:blank")]
    title: Annotated[str, _member("The reason phrase of the status.", "Unprocessable Content")]
    status: Annotated[int, _member("The HTTP status.", 422, minimum=400, maximum=599)]
    detail: Annotated[
        str, _member("What is wrong with this request, in plain text.", "The text of a post must not be empty.")
    ]
    pointer: Annotated[str, _member(_POINTER, "/post", format="json-pointer")] | UnsetType = UNSET


_Time = Annotated[datetime, Meta(tz=True)]
_TIME = "2026-11-28T09:30:00.250Z"


class Post(Struct, frozen=True):
    """`postd.model.Post`; with `include=meta` with all members, null where they are unknown."""

    id: PostId
    post: PostText
    created: Annotated[_Time | None, _member("When the post was added.", _TIME)] | UnsetType = UNSET
    updated: Annotated[_Time | None, _member("When its text last changed.", _TIME)] | UnsetType = UNSET
    author: Annotated[str | None, _member("The account that added it.", "alice")] | UnsetType = UNSET


Count = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": LIMIT_MAX})]
After = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": POST_ID_MAX})]
Include = Annotated[Literal["meta"], Meta(extra_json_schema={"type": "string"})]
BoardId = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": POST_ID_MAX + 1})]
Before = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": POST_ID_MAX + 1})]
Key = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"})]


class Parameter(Struct, frozen=True):
    """A parameter in the path, which is required, in the query or a header field.

    Optional parameters have no example: forms made from the document, such as those of Swagger UI, would send it.

    Args:
        place: path, query or header.
        description: details for its users.
        type: its schema is made from it.
        name: its name, empty if it is the key in `PARAMETERS`.
        example: a value, for a parameter in the path.
    """

    place: str
    description: str
    type: object
    name: str = ""
    example: object = None


def _tags(consequence: str) -> Parameter:
    return Parameter("header", f"One or more values of `ETag`, or `*`. {consequence}", str)


PARAMETERS: Mapping[str, Parameter] = {
    "id": Parameter("path", "The number of the post.", PostId, example=1),
    "path": Parameter("path", "The path of the resource, without its first slash.", str, example="post"),
    "limit": Parameter("query", "The largest number of posts to list; all by default.", Count),
    "after": Parameter("query", "List only posts with larger numbers than this.", After),
    "If-None-Match": _tags("If a listed tag is current, a read is answered with 304, and a write with 412."),
    "If-Match": _tags("If none of them is current, the request is refused with 412."),
    "Idempotency-Key": Parameter(
        "header",
        "A unique text for each post, such as a UUID. If no response arrives, repeat the request with the same key and "
        "the same bytes: for 24 hours it gets the first response again, and the post is added once.",
        Key,
    ),
    "Last-Event-ID": Parameter("header", "The `id` of the last event received. The stream continues after it.", After),
    "after-event": Parameter(
        "query",
        "As `Last-Event-ID`, for clients that cannot set a field, such as a browser in its first request. The field "
        "takes precedence.",
        After,
        "after",
    ),
    "last-event-in-query": Parameter(
        "query",
        "As `Last-Event-ID`, for polyfills of `EventSource` that cannot set a field. The field takes precedence; this "
        "takes precedence over `after`.",
        After,
        "lastEventId",
    ),
    "include": Parameter("query", "`meta` adds times and author to each post.", Include),
    "after-on-board": Parameter("query", "Show posts with larger numbers than this.", BoardId, "after"),
    "next": Parameter(
        "query",
        "A path of this host, with its query, to go to after the sign-in. It begins with one slash and has no `//`, "
        "backslash or control character; anything else is ignored.",
        str,
    ),
    "secret": Parameter("query", "The secret of the link.", str),
    "before": Parameter("query", "Show posts with smaller numbers than this; not together with `after`.", Before),
}


def _header(description: str, kind: str = "string", **schema: object) -> Mapping[str, object]:
    return {"description": description, "schema": {"type": kind, **schema}}


HEADERS: Mapping[str, Mapping[str, object]] = {
    # RFC 9110 §8.8.3
    "ETag": _header(
        "The entity tag, for `If-Match` and `If-None-Match`.", pattern='^"[!#-~]+"$', examples=['"5f2b1e"']
    ),
    "Link": _header('The next page (`rel="next"`), if there is one.', examples=['</post?limit=2&after=2>; rel="next"']),
    "Location": _header("The path of the new resource, or of the redirect.", format="uri-reference"),
    "Retry-After": _header("Seconds to wait before a retry.", "integer", minimum=1),
    "WWW-Authenticate": _header("The challenges, one line for each scheme."),
    "Authentication-Info": _header("With Digest: the server's proof of the password (`rspauth`)."),
    "Set-Cookie": _header(
        "Sets or deletes the cookie `session`.", examples=["session=...; Path=/; HttpOnly; SameSite=Lax"]
    ),
}

ERROR_HEADERS: Mapping[int, str] = {401: "WWW-Authenticate", **dict.fromkeys((409, 429, 503, 507), "Retry-After")}
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
UNAVAILABLE = "The store is not available."
FULL = "The store has no space left; reading still works."


def text(example: str) -> Body:
    """Return a plain text body."""
    return Body(str, example, TEXT_TYPE)


def html(example: str) -> Body:
    """Return an HTML body."""
    return Body(str, example, HTML_TYPE)
