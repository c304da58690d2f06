"""What is told of an operation, before it is known who may use it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct


class Access(StrEnum):
    """Which rule lets a client use an operation."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SESSION = "session"


class Body(Struct, frozen=True):
    """What is sent, or comes back.

    `type` is what msgspec decodes it to, or would: the schema is made of it.
    """

    content_type: str
    type: Any
    example: Any


class Reply(Struct, frozen=True):
    """An answer that is no error; `headers` are names in `parts.HEADERS` of what it always has."""

    description: str
    body: Body | None = None
    headers: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()


class Operation(Struct, frozen=True):
    """What a method does at a path. Texts are plain, with `code` in backticks.

    Args:
        id: names it among all (`operationId`).
        tag: the heading it stands under.
        summary: what it does, in a few words.
        description: what else its user must know.
        replies: the answers of it that are no errors, by status.
        errors: when it answers with an error, by status. What any request may get is not told here
            (`parts.ERRORS`, `document.py`).
        access: who may use it.
        parameters: names in `parts.PARAMETERS`.
        body: what is sent.
        curl: words of an example's command line between `curl` and the address.
        query: what stands behind the path in the example.
    """

    id: str
    tag: str
    summary: str
    description: str
    replies: Mapping[int, Reply]
    errors: Mapping[int, str] = {}
    access: Access = Access.OPEN
    parameters: tuple[str, ...] = ()
    body: Body | None = None
    curl: str = ""
    query: str = ""
