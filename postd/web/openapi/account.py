"""Descriptions of `postd.protect.account`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from postd.protect.schemes.interface import CROSS_SITE
from postd.protocol.label import LABEL_MAX_CHARS
from postd.protocol.personal_token import Access
from postd.web.openapi.components import FORM_TYPE, FULL, UNAVAILABLE, Body, Operation, Reply, html, text

_SECRET = {"format": "password"}


class EndingSessions(Struct, frozen=True):
    """The form that ends a session, or all others."""

    id: Annotated[str, Meta(description="The session, as the page names it.")] | UnsetType = UNSET
    others: Annotated[str, Meta(description="In place of `id`, with a value such as 1.")] | UnsetType = UNSET


Password = Annotated[str, Meta(extra_json_schema={"minLength": 1, **_SECRET})]


class NewPassword(Struct, frozen=True):
    """The form that changes a password; each field once."""

    present: Password
    new: Password
    again: Annotated[str, Meta(description="The new one again.", extra_json_schema=_SECRET)]


class ResetPassword(Struct, frozen=True):
    """The form that sets a password by a link; each field once."""

    secret: Annotated[str, Meta(description="That of the link.")]
    new: Password
    again: Annotated[str, Meta(description="The new one again.", extra_json_schema=_SECRET)]


class MakingToken(Struct, frozen=True):
    """The form that makes a token."""

    label: Annotated[str, Meta(description="What the token is for.", min_length=1, max_length=LABEL_MAX_CHARS)]
    access: (
        Annotated[Access, Meta(description="What the program may do.", extra_json_schema={"type": "string"})]
        | UnsetType
    ) = UNSET
    expires: Annotated[str, Meta(description='When it expires: a duration, such as "30d", or "never".')] | UnsetType = (
        UNSET
    )
    password: (
        Annotated[str, Meta(description="The user's, where the sign-in is not recent.", extra_json_schema=_SECRET)]
        | UnsetType
    ) = UNSET
    key: Annotated[str, Meta(description="Identifies the form: sent twice, it makes one token.")] | UnsetType = UNSET


class RevokingToken(Struct, frozen=True):
    """The form that revokes a token."""

    id: Annotated[str, Meta(description="The token, as the page names it.")]


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


def _done(location: str, description: str = "Done: redirects to the page.") -> Reply:
    return Reply(description, text(f"{location}\n"), ("Location",), ("Set-Cookie",))


_PASSWORD_ERRORS = {
    409: "The password was changed in the meantime.",
    422: "The new password is not allowed, or the two differ.",
    429: "Too many failed sign-ins, or changes of this password.",
    503: f"{UNAVAILABLE} Or the user file cannot be written.",
}
_DEAD_LINK = "The link is unknown, used or expired, or the password was changed since."


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
    "GET /account/password": _show(
        "/account/password", "showPasswordForm", "Show the form for a new password", "the form."
    ),
    "POST /account/password": Operation(
        "changePassword",
        "Change the password",
        "Ends the other sessions of the user. The session of the request, tokens and passkeys stay.",
        {303: _done("/account/password?done=changed#done")},
        {**_FORM_ERRORS, **_PASSWORD_ERRORS, 401: f"The present password is wrong. Or: {_CHALLENGE}"},
        "session",
        body=Body(NewPassword, {"present": "correct horse", "new": "battery", "again": "battery"}, FORM_TYPE),
    ),
    "GET /login/reset": Operation(
        "showResetForm",
        "Show the form of a link for a new password",
        "An HTML page. It does not use the link up.",
        {200: Reply("The form.", _PAGE)},
        {400: _DEAD_LINK, 429: _PASSWORD_ERRORS[429], 503: UNAVAILABLE},
        parameters=("secret",),
    ),
    "POST /login/reset": Operation(
        "resetPassword",
        "Set a new password by a link",
        "Uses the link up, and ends the sessions, tokens and passkeys of the account.",
        {200: Reply("The password is set.", _PAGE)},
        {status: why for status, why in {**_FORM_ERRORS, **_PASSWORD_ERRORS}.items() if status not in {401, 409}}
        | {400: f"{_FORM_ERRORS[400]} Or: {_DEAD_LINK}"},
        body=Body(ResetPassword, {"secret": "...", "new": "battery", "again": "battery"}, FORM_TYPE),
    ),
    "GET /account/tokens": _show(
        "/account/tokens", "showTokens", "List access tokens", "the personal access tokens of the user."
    ),
    "POST /account/tokens": Operation(
        "makeToken",
        "Make an access token",
        "Makes a personal access token. It needs a sign-in of the last 15 minutes, or the password; else the page asks "
        "for it.",
        {
            200: Reply("Made: a page that shows the token, once.", _PAGE),
            303: _done(
                "/account/tokens?done=repeated#done", "The form has made a token before: redirects to the list."
            ),
        },
        {
            **_FORM_ERRORS,
            401: f"{_CHALLENGE} Or the sign-in is not recent, or the password is wrong.",
            422: "A field is not valid, or the user has too many tokens; the page has the form again.",
            429: "Too many failed sign-ins.",
        },
        "session",
        body=Body(MakingToken, {"label": "Feed reader", "access": "read", "expires": "30d"}, FORM_TYPE),
    ),
    "POST /account/tokens/revoke": Operation(
        "revokeToken",
        "Revoke an access token",
        "Revokes a token of the user.",
        {303: _done("/account/tokens?done=revoked#done")},
        _FORM_ERRORS,
        "session",
        body=Body(RevokingToken, {"id": "k3v9x0c1m2a7"}, FORM_TYPE),
    ),
}
