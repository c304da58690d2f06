"""What `postd.web.login` and the page `/home` do, in words."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from postd.web.openapi.operation import Access, Body, Operation, Reply
from postd.web.openapi.parts import FORM_TYPE, FULL, UNAVAILABLE, html, text

TAG = "Signing in by form"

_SITE = "A page of another site made the browser send this."

Word = Annotated[str, Meta(extra_json_schema={"minLength": 1})]


class Form(Struct, frozen=True):
    """The fields of the form (spec: Login form), each once."""

    username: Word
    password: Annotated[str, Meta(extra_json_schema={"minLength": 1, "format": "password"})]


OPERATIONS: Mapping[str, Operation] = {
    "GET /": Operation(
        "showSignIn",
        TAG,
        "The form to sign in with",
        "A page for people.",
        {
            200: Reply("The form.", html('<!DOCTYPE html> ... <form name="login_form" ...')),
            302: Reply("You are signed in: go on to `/home`.", text("/home\n"), ("Location",)),
        },
    ),
    "POST /login": Operation(
        "signIn",
        TAG,
        "Sign in",
        "Answers with the cookie `session`. A sign-in that the sent cookie stands for ends. Where sessions may use the "
        "posts, the cookie is what they are used with.",
        {302: Reply("Signed in; go on to `/home`.", text("/home\n"), ("Location", "Set-Cookie"))},
        {
            400: "The form is not UTF-8 text, percent-encoded.",
            401: "User name or password is wrong, missing, empty, or there twice.",
            403: _SITE,
            413: "The form is larger than the server takes.",
            415: f"The form is not said to be `{FORM_TYPE}`.",
            429: "Too many sign-ins have failed.",
            503: f"{UNAVAILABLE} Or too many sign-ins are waiting.",
            507: FULL,
        },
        body=Body(FORM_TYPE, Form, {"username": "alice", "password": "correct horse"}),
        curl="-c cookies.txt --data-urlencode username=alice --data-urlencode password@password.txt",
    ),
    "GET /home": Operation(
        "showHome",
        TAG,
        "Who is signed in",
        "A page that says so.",
        {
            200: Reply("You are signed in.", text("Success: alice\n")),
            302: Reply("You are not: sign in at `/`.", text("/\n"), ("Location",), ("Set-Cookie",)),
        },
        {503: UNAVAILABLE},
        Access.SESSION,
    ),
    "GET /logout": Operation(
        "showSignOut",
        TAG,
        "The button to sign out with",
        "A page for people. It changes nothing.",
        {200: Reply("The button.", html('<!DOCTYPE html> ... <form method="POST" action="/logout"> ...'))},
    ),
    "POST /logout": Operation(
        "signOut",
        TAG,
        "Sign out",
        "Ends the session of the sent cookie; without one there is nothing to end, and the answer is the same.",
        {302: Reply("Signed out.", text("/\n"), ("Location", "Set-Cookie"))},
        {403: _SITE, 503: UNAVAILABLE, 507: FULL},
        curl="-X POST -b cookies.txt -c cookies.txt",
    ),
}
