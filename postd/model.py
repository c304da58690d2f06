"""What is true of a post and of a session, whatever the transport and the store."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from postd.errors import InvalidTextError

POST_MAX_CHARS = 140
"""Unicode code points in a text (spec: Limits). The spec leaves open what exceeding it does: it is refused."""

POST_ID_MAX = 2**53 - 1
"""The largest id: what every JSON reader holds exactly (RFC 8259 §6)."""


# What these say is for readers of schemas: msgspec checks none of it. `check_text` does, with words of ours.
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
    """A post as it stands on the wire (spec: Resources and their fields)."""

    id: PostId
    post: PostText


class ChangeKind(StrEnum):
    """What happened to a post."""

    ADDED = "added"
    UPDATED = "updated"
    DELETED = "deleted"


class Change(Struct, frozen=True):
    """One entry of the change log: the post as it was then, whatever came after.

    `revision` is the number of the change; `post` is None when the post was deleted.
    """

    revision: int
    kind: ChangeKind
    id: int
    post: str | None


class Version(Struct, frozen=True):
    """Which state of all posts this is.

    `revision` counts the changes ever made. `tag` is random and new with each change, so that two histories that
    part (a backup is restored and written to) never share a version.
    """

    revision: int
    tag: str


class Session(Struct, frozen=True):
    """A sign-in by form (spec: Session). Times are seconds since the epoch.

    The spec leaves open what a session has beside its identifier. Here: whose it is; the fingerprint of that user's
    entry in the user file, so that a new password ends it; when it began and was last seen in use; when it expires if
    it is not used, and when it ends in any case, which is never before that.
    """

    username: str
    fingerprint: bytes
    created: float
    seen: float
    expires: float
    ends: float


def is_owner(username: str) -> bool:
    """Tell whether a name is that of a token's owner, `ISSUER#NAME` (contract: `[[page]] users`).

    An issuer is a URL and has a colon; an account's name has none, for the user file ends it there.
    """
    return ":" in username


def check_text(text: str) -> str:
    """Return `text` if a post can carry it.

    Raises:
        InvalidTextError: it is empty, longer than `POST_MAX_CHARS`, or has a NUL or a lone surrogate in it.
    """
    if not text:
        raise InvalidTextError("The text of a post must not be empty.")
    if len(text) > POST_MAX_CHARS:
        raise InvalidTextError(f"The text of a post has at most {POST_MAX_CHARS} characters; this one has {len(text)}.")
    # SQLite's length() ends at a NUL, and C clients lose what follows it.
    if "\0" in text:
        raise InvalidTextError("The text of a post must not have the character U+0000 in it.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code_point = ord(text[error.start])
        raise InvalidTextError(
            f"The text of a post must be Unicode text; U+{code_point:04X} is half of a surrogate pair."
        ) from None
    return text
