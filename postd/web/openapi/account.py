"""Descriptions of `postd.protect.account`."""

from postd.web.openapi.components import UNAVAILABLE, Operation, Reply, html, text

_PAGE = html("<!DOCTYPE html> ...")
_SIGN_IN = Reply("There is no session: redirects to `/`.", text("/?next=/account\n"), ("Location",), ("Set-Cookie",))
_UNAVAILABLE = {503: UNAVAILABLE}

OPERATIONS = {
    "GET /account": Operation(
        "showAccount",
        "Show the account",
        "An HTML page: who is signed in, how, and what the user can do.",
        {200: Reply("The page.", _PAGE), 302: _SIGN_IN},
        _UNAVAILABLE,
        "session",
    ),
}
