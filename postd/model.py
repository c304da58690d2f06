"""Posts and their changes, independent of the transport and the store."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from postd.errors import InvalidTextError

POST_MAX_CHARS = 140
"""The longest text, in Unicode code points (spec: Limits). A longer one is refused, which the spec leaves open."""

POST_ID_MAX = 2**53 - 1
"""The largest id: the largest integer that all JSON readers represent exactly (RFC 8259 §6)."""


# These annotations are for generated schemas only: msgspec checks none of them, `check_text` does.
PostId = Annotated[
    int,
    Meta(
        description="The number of the post, given by the server.",
        extra_json_schema={"minimum": 1, "maximum": POST_ID_MAX},
        examples=[1],
    ),
]
PostText = Annotated[
    str,
    Meta(
        description="The text: any Unicode text without the character U+0000.",
        extra_json_schema={"minLength": 1, "maxLength": POST_MAX_CHARS, "pattern": r"^[^\u0000]*$"},
        examples=["Hello, world"],
    ),
]


class Post(Struct, frozen=True):
    """A post (spec: Resources and their fields)."""

    id: PostId
    post: PostText


class PostDetails(Struct, frozen=True, array_like=True):
    """A post, with its times and its author.

    Args:
        id: the id.
        post: the text.
        created: when it was added, in milliseconds since the epoch; None if that is unknown, as for posts of stores
            that kept no times.
        updated: when its text last changed, or it was added; likewise. Not earlier than `created`.
        author: the account that added it; None if that is unknown, or there was none.
    """

    id: int
    post: str
    created: int | None = None
    updated: int | None = None
    author: str | None = None


class ChangeKind(StrEnum):
    """The kind of a change to a post."""

    ADDED = "added"
    UPDATED = "updated"
    DELETED = "deleted"


class Change(Struct, frozen=True):
    """A change to a post, with the post's text and details after it (`PostDetails`).

    `revision` is the number of the change; `post` is None if the post was deleted.
    """

    revision: int
    kind: ChangeKind
    id: int
    post: str | None
    created: int | None = None
    updated: int | None = None
    author: str | None = None


class Version(Struct, frozen=True):
    """The version of the collection of posts.

    `revision` counts all changes. `tag` is random and new with each change, so that histories that diverge after a
    backup is restored never share a version.
    """

    revision: int
    tag: str


class PostCollection(Struct, frozen=True):
    """The collection of posts as a whole: what stays the same when it is copied or restored.

    Args:
        id: 16 random bytes in hexadecimal digits.
        began: when its times began to be kept, in milliseconds since the epoch.
    """

    id: str
    began: int


def check_text(text: str) -> str:
    """Return `text` if it is allowed in a post.

    Raises:
        InvalidTextError: it is empty, longer than `POST_MAX_CHARS`, or has a NUL or a lone surrogate.
    """
    if not text:
        raise InvalidTextError("The text of a post must not be empty.")
    if len(text) > POST_MAX_CHARS:
        raise InvalidTextError(f"The text of a post has at most {POST_MAX_CHARS} characters; this one has {len(text)}.")
    # SQLite's length() stops at a NUL, and C clients truncate the text there.
    if "\0" in text:
        raise InvalidTextError("The text of a post must not contain the character U+0000.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code_point = ord(text[error.start])
        raise InvalidTextError(
            f"The text of a post must be Unicode text; U+{code_point:04X} is half of a surrogate pair."
        ) from None
    return text
