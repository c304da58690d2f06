"""Sign-in by a passkey: the page `login/passkey` (reference: Passkeys)."""

import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from postd.auth.accounts import Accounts
from postd.auth.credentials import Refused, run_to_completion
from postd.auth.identity import AuthenticationResult, Identity
from postd.auth.passkey import (
    SCHEME,
    LateAnswerError,
    PasskeyChecker,
    PasskeyCredentials,
    PasskeyIdentity,
    Passkeys,
)
from postd.auth.portal import CoroutinePortal
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.http.responses import JSON, PAGE_HEADERS, Response, make_response
from postd.protect.account.base import AccountArea, AccountTask
from postd.protect.account.passkeys import PasskeyTask
from postd.protect.cookie import below, set_cookie
from postd.protect.login import LoginViews
from postd.protect.pages import Page
from postd.protect.passkey_form import PasskeyForm
from postd.protect.schemes.interface import Context
from postd.protocol.webauthn import CHALLENGE_S, make_request_options

if TYPE_CHECKING:
    from postd.auth.sign_in import Provider

PATH = "login/passkey"
"""The path below that of the sign-in form."""

_COOKIE = re.compile(rb"(?:^|;)[ \t]*+passkey=([A-Za-z0-9_-]{43})(?![^; \t])")


class PasskeySignIn:
    """Sign-in by passkeys, and what belongs to it.

    Args:
        context: what the scheme of sessions is made with.
        providers: the OpenID providers, by their ids.
        sign_in: the path of the sign-in form.

    Attributes:
        form: the button of the sign-in form.
        checker: checks assertions.
    """

    def __init__(self, context: Context, providers: "Mapping[str, Provider]", sign_in: str) -> None:
        self._path = below(sign_in, PATH)
        self._clients = context.clients
        self._passkeys = Passkeys(context.store, context.clock)
        self._accounts = Accounts(context.accounts, providers)
        self.form = PasskeyForm(context.clients, context.realm, self._path, context.store)
        self.checker = PasskeyChecker(self._passkeys, self._accounts, context.throttle)

    def make_task(self, area: AccountArea) -> AccountTask:
        """Return the pages on which users add and remove passkeys."""
        return PasskeyTask(area, self._passkeys, self.form, self._accounts)

    def pages(self, login: LoginViews, portal: CoroutinePortal) -> Mapping[str, Page]:
        """Return the page by its path below that of the form."""
        views = PasskeyViews(self._passkeys, self.form, login, portal, self._clients, path=self._path)
        return {PATH: Page({b"GET": views.begin, b"POST": views.finish}, self._clients)}


class PasskeyViews:
    """The views of the page.

    Args:
        passkeys: makes challenges.
        form: finds the relying party.
        login: begins sessions, and shows the form again.
        portal: checks assertions.
        clients: resolves the client's address.
        path: the path of the page.
    """

    def __init__(  # noqa: PLR0913 - all that the page needs
        self,
        passkeys: Passkeys,
        form: PasskeyForm,
        login: LoginViews,
        portal: CoroutinePortal,
        clients: PeerResolver,
        *,
        path: str,
    ) -> None:
        self._passkeys = passkeys
        self._form = form
        self._login = login
        self._portal = portal
        self._clients = clients
        self._path = path

    async def begin(self, request: Request) -> Response:
        """Return the options for `navigator.credentials.get()`.

        The challenge is bound to the browser by a cookie, which several tabs have in common.
        """
        party = self._form.require_party(request)
        browser = _find_browser(request) or secrets.token_urlsafe(32).encode("ascii")
        challenge = await self._passkeys.make_challenge("sign-in", browser)
        pair, secure = f"passkey={browser.decode('ascii')}", self._login.is_secure(request)
        set_cookie(request, pair, path=self._path, max_age_s=CHALLENGE_S, secure=secure)
        return make_response(HTTPStatus.OK, JSON, make_request_options(party, challenge), PAGE_HEADERS)

    async def finish(self, request: Request) -> Response:
        """Exchange an assertion for a session."""
        return await self._login.sign_in(request, SCHEME, self._begin_session, by=SCHEME, explain=_explain)

    async def _begin_session(self, request: Request, fields: Mapping[str, list[str]]) -> Identity:
        party, browser = self._form.require_party(request), _find_browser(request)
        texts = fields.get("credential", [])
        if len(texts) != 1 or browser is None:
            raise Refused("the credential or the cookie of the browser is missing")
        credentials = PasskeyCredentials(texts[0], browser, party, self._clients.address(request))
        request.authentication = AuthenticationResult(SCHEME, None)  # for the log, if the client disconnects
        user = await run_to_completion(self._portal.authenticate(credentials))
        assert isinstance(user, PasskeyIdentity)
        await self._login.begin_session(request, user, user.signed_in)
        return user


def _explain(refusal: Refused) -> str:
    """Return the alert of a refusal, in words that do not say whether there is such a passkey."""
    if isinstance(refusal, LateAnswerError):
        return "The sign-in has taken too long. Try again."
    return "Login failed: the passkey was not accepted."


def _find_browser(request: Request) -> bytes | None:
    """Return what the cookie identifies the browser by, None without one."""
    found = _COOKIE.search(b";".join(request.fields.get(b"Cookie", [])))
    return None if found is None else found[1]
