"""Descriptions of `postd.protect.login` and the page `/home`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from postd.protect.schemes.interface import CROSS_SITE
from postd.web.openapi.components import FORM_TYPE, FULL, UNAVAILABLE, Body, Operation, Reply, html, text

Word = Annotated[str, Meta(extra_json_schema={"minLength": 1})]


class Form(Struct, frozen=True):
    """The fields of the form (spec: Login form), each once; `next` may be absent."""

    username: Word
    password: Annotated[str, Meta(extra_json_schema={"minLength": 1, "format": "password"})]
    next: Annotated[str, Meta(description="The path to go to, from the query of the form's page.")] | UnsetType = UNSET
    form: (
        Annotated[str, Meta(description="The body of a form that was sent to `next` without a session.")] | UnsetType
    ) = UNSET


OPERATIONS = {
    "GET /": Operation(
        "showSignIn",
        "Show the sign-in form",
        "An HTML page.",
        {
            200: Reply("The form.", html('<!DOCTYPE html> ... <form name="login_form" ...')),
            302: Reply("Already signed in: redirects to `next`, or to `/home`.", text("/home\n"), ("Location",)),
        },
        parameters=("next",),
    ),
    "POST /login": Operation(
        "signIn",
        "Sign in",
        "Sets the cookie `session`, and ends the session of a cookie that was sent. Where the settings allow sessions, "
        "the cookie gives access to the posts. Clients that prefer HTML to plain text, as browsers do, get the form "
        "again with a 401, 429 or 503.",
        {302: Reply("Signed in: redirects to `next`, or to `/home`.", text("/home\n"), ("Location", "Set-Cookie"))},
        {
            400: "The form is not percent-encoded UTF-8.",
            401: "User name or password is wrong, missing, empty or repeated.",
            403: CROSS_SITE,
            413: "The form is too large.",
            415: f"The `Content-Type` is not `{FORM_TYPE}`.",
            429: "Too many failed sign-ins.",
            503: f"{UNAVAILABLE} Or too many sign-ins are in progress.",
            507: FULL,
        },
        body=Body(Form, {"username": "alice", "password": "correct horse"}, FORM_TYPE),
        curl="-c cookies.txt",
    ),
    "GET /login/session": Operation(
        "showSession",
        "Show whether a session is live",
        "The name of the user who is signed in. Asking is no use of the session: it does not last longer.",
        {200: Reply("There is a session.", text("alice\n"))},
        {401: "There is no session, or it has ended.", 503: UNAVAILABLE},
        "session",
    ),
    "GET /home": Operation(
        "showHome",
        "Show the signed-in user",
        "The user name: a page for clients that prefer HTML to plain text, as browsers do, else a text.",
        {
            200: Reply(
                "Signed in. The page has links to the board, if there is one, and to the sign-out button.",
                text("Success: alice\n"),
                page=html("<!DOCTYPE html> ... <h1>Success: alice</h1> ..."),
            ),
            302: Reply("Not signed in: redirects to `/`.", text("/\n"), ("Location",), ("Set-Cookie",)),
        },
        {503: UNAVAILABLE},
        "session",
    ),
    "GET /logout": Operation(
        "showSignOut",
        "Show the sign-out button",
        "An HTML page.",
        {200: Reply("The button.", html('<!DOCTYPE html> ... <form method="POST" action="/logout"> ...'))},
    ),
    "POST /logout": Operation(
        "signOut",
        "Sign out",
        "Ends the session of the cookie. Without a cookie the response is the same.",
        {
            302: Reply(
                "Signed out: redirects to `/`.",
                text("/\n"),
                ("Location", "Set-Cookie"),
                examples={"Set-Cookie": "session=; Path=/; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=0"},
            )
        },
        {403: CROSS_SITE, 503: UNAVAILABLE, 507: FULL},
        curl="-c cookies.txt",
        sends_session=True,
    ),
}
