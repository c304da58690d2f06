"""What `postd.web.board` does, in words."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from postd.model import PostText
from postd.web.openapi.operation import Access, Body, Operation, Reply
from postd.web.openapi.parts import FORM_TYPE, FULL, UNAVAILABLE, html, text

TAG = "The board"

_FORM = "The form is no text in UTF-8, percent-encoded, or lacks a field, or has one twice."
_NO_FORM = f"The form is not said to be `{FORM_TYPE}`."
_LARGE = "The form is larger than the server takes."
_READ_ONLY = "A session does not let anybody write here."
_SITE = "Or a page of another site made the browser send this."
_GONE = "There is no such post; a page that says so."
_NO_ID = "The number cannot be one of a post."
_OTHER = "Somebody has changed the post meanwhile; a page that shows both texts."
_SEND = "-X POST --data-urlencode post='Hello, world'"
_SIGN_IN = Reply("You are not signed in: sign in at `/`.", text("/\n"), ("Location",), ("Set-Cookie",))
_DONE = ("Location",)


class Adding(Struct, frozen=True):
    """The form that adds a post; `key` keeps what is sent twice from being stored twice."""

    post: PostText
    key: Annotated[str, Meta(description="What makes a form that is sent twice add one post.")] | UnsetType = UNSET


Was = Annotated[str, Meta(description="What the form came with: it names the text that was there.")]


class Saving(Struct, frozen=True):
    """The form that gives a post another text."""

    post: PostText
    was: Was


class Deleting(Struct, frozen=True):
    """The form that deletes a post."""

    was: Was


_PAGE = html("<!DOCTYPE html> ...")
_FORM_ERRORS = {
    400: _FORM,
    403: f"{_READ_ONLY} {_SITE}",
    413: _LARGE,
    415: _NO_FORM,
    503: UNAVAILABLE,
    507: FULL,
}

OPERATIONS: Mapping[str, Operation] = {
    "GET /board": Operation(
        "showBoard",
        TAG,
        "The posts",
        "A page with the newest posts, or with those before or after a number, and a form to add one.",
        {200: Reply("The page.", _PAGE), 302: _SIGN_IN},
        {400: "`after` or `before` is no number in its range, or both are there.", 503: UNAVAILABLE},
        Access.SESSION,
        ("after-on-board", "before"),
    ),
    "POST /board": Operation(
        "addOnBoard",
        TAG,
        "Add a post by form",
        "What the page's form does.",
        {
            302: _SIGN_IN,
            303: Reply("Added; go on to the page.", text("/board?done=added#post\n"), _DONE),
            422: Reply("No post can have this text; the page says why.", _PAGE),
        },
        _FORM_ERRORS,
        Access.SESSION,
        body=Body(FORM_TYPE, Adding, {"post": "Hello, world"}),
        curl=_SEND,
    ),
    "GET /board/{id}": Operation(
        "showBoardPost",
        TAG,
        "One post, to change or delete it",
        "A page with two forms.",
        {200: Reply("The page.", _PAGE), 302: _SIGN_IN, 404: Reply(_GONE, _PAGE)},
        {403: _READ_ONLY, 404: _NO_ID, 503: UNAVAILABLE},
        Access.SESSION,
        ("id",),
    ),
    "POST /board/{id}": Operation(
        "saveOnBoard",
        TAG,
        "Change a post by form",
        "What the page's first form does.",
        {
            302: _SIGN_IN,
            303: Reply("Changed; go on to the page.", text("/board?done=saved#post-1\n"), _DONE),
            404: Reply(_GONE, _PAGE),
            409: Reply(_OTHER, _PAGE),
            422: Reply("No post can have this text; the page says why.", _PAGE),
        },
        {**_FORM_ERRORS, 404: _NO_ID},
        Access.SESSION,
        ("id",),
        Body(FORM_TYPE, Saving, {"post": "Hello, world", "was": "89e2a7f1"}),
        f"{_SEND} -d was=89e2a7f1",
    ),
    "POST /board/{id}/delete": Operation(
        "deleteOnBoard",
        TAG,
        "Delete a post by form",
        "What the page's second form does.",
        {
            302: _SIGN_IN,
            303: Reply("Gone; go on to the page.", text("/board?done=deleted#done\n"), _DONE),
            409: Reply(_OTHER, _PAGE),
        },
        {**_FORM_ERRORS, 404: _NO_ID},
        Access.SESSION,
        ("id",),
        Body(FORM_TYPE, Deleting, {"was": "89e2a7f1"}),
        "-X POST -d was=89e2a7f1",
    ),
}
