"""Descriptions of `postd.web.board.views`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from postd.model import PostText
from postd.protect.schemes.interface import CROSS_SITE
from postd.web.openapi.components import FORM_TYPE, FULL, UNAVAILABLE, Body, Operation, Reply, html, text

_READ_ONLY = "The reader may not write."
_GONE = "There is no such post; an HTML page."
_NO_ID = "The number is out of range."
_OTHER = "The post has changed since; a page with both texts."
_SIGN_IN = Reply(
    "Where a session is required and there is none: redirects to `/`.", text("/\n"), ("Location",), ("Set-Cookie",)
)
_DONE = ("Location",)
_WAS = "Hello, world"


Account = Annotated[str, Meta(description="The account of the reader that the form was made for.")]


class Adding(Struct, frozen=True):
    """The form that adds a post."""

    post: PostText
    key: Annotated[str, Meta(description="Identifies the form: sent twice, it adds one post.")] | UnsetType = UNSET
    account: Account | UnsetType = UNSET


_Was = Annotated[str, Meta(description="The text that the post must have; without it, any.")] | UnsetType


class Saving(Struct, frozen=True):
    """The form that replaces the text of a post."""

    post: PostText
    was: _Was = UNSET
    account: Account | UnsetType = UNSET


class Deleting(Struct, frozen=True):
    """The form that deletes a post."""

    was: _Was = UNSET


_PAGE = html("<!DOCTYPE html> ...")
_FORM_ERRORS = {
    400: "The form is not percent-encoded UTF-8, or a field is missing or repeated.",
    403: CROSS_SITE,
    413: "The form is too large.",
    415: f"The `Content-Type` is not `{FORM_TYPE}`.",
    503: UNAVAILABLE,
    507: FULL,
}

OPERATIONS = {
    "GET /board": Operation(
        "showBoard",
        "Show the posts",
        "A page with the newest posts, or with the posts before or after a number, and a form to add a post.",
        {200: Reply("The page.", _PAGE), 302: _SIGN_IN},
        {400: "`after` or `before` is out of range, or both are given.", 503: UNAVAILABLE},
        "read",
        ("after-on-board", "before"),
    ),
    "POST /board": Operation(
        "addOnBoard",
        "Add a post by form",
        "Submitted by the page `/board`.",
        {
            302: _SIGN_IN,
            303: Reply("Added: redirects to the page.", text("/board?done=added#post\n"), _DONE),
            422: Reply("The text is not allowed as a post; the page says why.", _PAGE),
        },
        _FORM_ERRORS,
        "write",
        body=Body(Adding, {"post": "Hello, world"}, FORM_TYPE),
    ),
    "GET /board/{id}": Operation(
        "showBoardPost",
        "Show a post as a page",
        "A page with the post, and with forms to change and delete it for those who may.",
        {200: Reply("The page.", _PAGE), 302: _SIGN_IN, 404: Reply(_GONE, _PAGE)},
        {404: _NO_ID, 503: UNAVAILABLE},
        "read",
        ("id",),
    ),
    "POST /board/{id}": Operation(
        "saveOnBoard",
        "Change a post by form",
        "Submitted by the page of the post.",
        {
            302: _SIGN_IN,
            303: Reply("Changed: redirects to the page.", text("/board?done=saved#post-1\n"), _DONE),
            404: Reply(_GONE, _PAGE),
            409: Reply(_OTHER, _PAGE),
            422: Reply("The text is not allowed as a post; the page says why.", _PAGE),
        },
        {**_FORM_ERRORS, 404: _NO_ID},
        "write",
        ("id",),
        Body(Saving, {"post": "Hello, world", "was": _WAS}, FORM_TYPE),
    ),
    "GET /board/{id}/delete": Operation(
        "askToDeleteOnBoard",
        "Ask whether to delete a post",
        "A page with a form that deletes the post.",
        {200: Reply("The page.", _PAGE), 302: _SIGN_IN, 404: Reply(_GONE, _PAGE)},
        {403: _READ_ONLY, 404: _NO_ID, 503: UNAVAILABLE},
        "read",
        ("id",),
    ),
    "POST /board/{id}/delete": Operation(
        "deleteOnBoard",
        "Delete a post by form",
        "Submitted by the page of the post.",
        {
            302: _SIGN_IN,
            303: Reply("Deleted: redirects.", text("/board?done=deleted#done\n"), _DONE),
            409: Reply(_OTHER, _PAGE),
        },
        {**_FORM_ERRORS, 404: _NO_ID},
        "write",
        ("id",),
        Body(Deleting, {"was": _WAS}, FORM_TYPE),
    ),
}
