"""The description of an operation, independent of the settings. Texts are plain, with `code` in backticks."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct


class SchemeDescription(Struct, frozen=True, eq=False):
    """The words for an authentication scheme.

    Args:
        title: its name for people.
        security: its Security Scheme Object (OpenAPI 3.1.0 §4.8.27).
        curl: the words of an example's command line that give its credentials.
        errors: statuses and reasons of the errors that it adds to an operation.
        write_errors: those that it adds to operations that write.
        headers: the header fields that it adds to replies at times.
    """

    title: str
    security: Mapping[str, str]
    curl: str
    errors: tuple[tuple[int, str], ...] = ()
    write_errors: tuple[tuple[int, str], ...] = ()
    headers: tuple[str, ...] = ()


Rule = Literal["open", "read", "write", "session"]
"""The access rule of an operation."""


class Body(Struct, frozen=True):
    """The body of a request or response; its schema is made from `type`."""

    content_type: str
    type: Any
    example: Any


class Reply(Struct, frozen=True):
    """A response that is no error.

    Args:
        description: when it is sent.
        body: its body.
        headers: names in `components.HEADERS` that it always has.
        optional_headers: names of those that it may have.
    """

    description: str
    body: Body | None = None
    headers: tuple[str, ...] = ()
    optional_headers: tuple[str, ...] = ()


class Operation(Struct, frozen=True):
    """A method at a path.

    Args:
        id: the `operationId`.
        summary: what it does, in a few words.
        description: details for its users.
        replies: its responses by status, without errors.
        errors: when it fails, by status; errors of any request are in `components.ERRORS`, of authentication in
            `document`.
        rule: who may use it.
        parameters: names in `components.PARAMETERS`.
        body: the request body.
        curl: arguments of the example's command line between `curl` and the URL.
        query: the query of the URL in the example.
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
