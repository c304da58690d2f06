"""Descriptions of `postd.protect.account`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from postd.protect.schemes.interface import CROSS_SITE
from postd.web.openapi.components import FORM_TYPE, FULL, UNAVAILABLE, Body, Operation, Reply, html, text


class EndingSessions(Struct, frozen=True):
    """The form that ends a session, or all others."""

    id: Annotated[str, Meta(description="The session, as the page names it.")] | UnsetType = UNSET
    others: Annotated[str, Meta(description="Any value, in place of `id`.")] | UnsetType = UNSET


_PAGE = html("<!DOCTYPE html> ...")
_CHALLENGE = "There is no session. Browsers get the sign-in form, which carries the form that they have sent."
_FORM_ERRORS = {
    400: "The form is not percent-encoded UTF-8, or a field is missing or repeated.",
    401: _CHALLENGE,
    403: CROSS_SITE,
    413: "The form is too large.",
    415: f"The `Content-Type` is not `{FORM_TYPE}`.",
    503: UNAVAILABLE,
    507: FULL,
}


def _show(path: str, operation_id: str, summary: str, description: str) -> Operation:
    sign_in = Reply("There is no session: redirects to `/`.", text(f"/?next={path}\n"), ("Location",), ("Set-Cookie",))
    replies = {200: Reply("The page.", _PAGE), 302: sign_in}
    return Operation(operation_id, summary, f"An HTML page: {description}", replies, {503: UNAVAILABLE}, "session")


def _done(location: str) -> Reply:
    return Reply("Done: redirects to the page.", text(f"{location}\n"), ("Location",), ("Set-Cookie",))


OPERATIONS = {
    "GET /account": _show(
        "/account", "showAccount", "Show the account", "who is signed in, how, and what the user can do."
    ),
    "GET /account/sessions": _show(
        "/account/sessions", "showSessions", "List sessions", "the sessions of the user, with address and browser."
    ),
    "POST /account/sessions/end": Operation(
        "endSessions",
        "End sessions",
        "Ends one session of the user, or all others.",
        {303: _done("/account/sessions?done=others#done")},
        _FORM_ERRORS,
        "session",
        body=Body(EndingSessions, {"others": "1"}, FORM_TYPE),
    ),
}
