"""Sign-in and sign-out by form (spec: Form-login paths; reference: Form login)."""

from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from string import Template

from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from postd.auth.credentials import PasswordCredentials, Refused, run_to_completion
from postd.auth.identity import AuthenticationResult, Identity
from postd.auth.portal import CoroutinePortal
from postd.auth.session import Sessions
from postd.errors import StoreUnavailableError
from postd.http.interface import Request
from postd.http.pages import STYLE, fill_page, make_policy, read_file
from postd.http.peer import PeerResolver
from postd.http.responses import HTML, PAGE_HEADERS, TEXT, Response, make_redirect, make_response
from postd.http.urlencoded import decode_form
from postd.protect.cookie import (
    below,
    decode_session_cookies,
    expire_session_cookie,
    make_challenge,
    set_session_cookie,
)
from postd.protect.guard import outcome_of

_HEADERS = {**PAGE_HEADERS, b"Content-Security-Policy": make_policy(STYLE)}

_log = Logger()


class LoginViews:
    """The views of a form for signing in, at the path `sign_in`, of `login` and of `logout` below it.

    The spec does not show what triggers a logout: POST to it does, and GET shows a button for it.

    Args:
        realm: the heading of the pages, and the realm of the challenge.
        secure: "always", "never", or "auto" to mark cookies as secure when the client's connection is.
        sign_in: the path of the form.
        after: the path of the page that a client is led to once it is signed in.
    """

    def __init__(  # noqa: PLR0913 - all but three have their defaults
        self,
        portal: CoroutinePortal,
        sessions: Sessions,
        clients: PeerResolver,
        *,
        realm: str,
        secure: str = "auto",
        sign_in: str = "/",
        after: str = "/home",
    ) -> None:
        self._portal = portal
        self._sessions = sessions
        self._clients = clients
        self._secure = secure
        paths = {"login": below(sign_in, "login"), "logout": below(sign_in, "logout"), "after": after}
        # Rendered once (spec: Login form).
        self._login_page, self._logout_page = (
            make_response(HTTPStatus.OK, HTML, _fill(title, file, realm, paths), _HEADERS)
            for title, file in (("Sign in", "login.html"), ("Sign out", "logout.html"))
        )
        self._challenge = make_challenge(realm, sign_in)
        self._to_form, self._to_after = make_redirect(sign_in.encode("ascii")), make_redirect(after.encode("ascii"))

    async def show_form(self, request: Request) -> Response:
        request.add_header(b"Vary", b"Cookie")
        credentials = decode_session_cookies(request)
        if credentials is not None:
            try:
                await self._portal.authenticate(credentials)
            except (Refused, StoreUnavailableError):
                pass  # the form is there even when the store is not
            else:
                return self._to_after
        return self._login_page

    async def log_in(self, request: Request) -> Response:
        self._clients.refuse_cross_site(request)
        try:
            user, session_id = await self._begin_session(request)
        except CancelledError:  # the client has gone; the check goes on, and the throttle counts a wrong password
            raise
        except Exception as error:
            request.authentication = AuthenticationResult("form", outcome_of(error))
            if not isinstance(error, Refused):
                raise
            headers = {**PAGE_HEADERS, b"WWW-Authenticate": self._challenge}
            return make_response(HTTPStatus.UNAUTHORIZED, TEXT, b"Login failed\n", headers)
        request.authentication = AuthenticationResult("form", "accepted", user.account, user)
        _log.info("signed in: {user!r} from {address}", user=user.account, address=self._clients.address(request))
        secure = self._secure == "always" or (self._secure == "auto" and self._clients.is_secure(request))
        set_session_cookie(request, session_id, secure=secure)
        return self._to_after

    async def _begin_session(self, request: Request) -> tuple[Identity, str]:
        fields = decode_form(request)
        named = [fields.get(name, []) for name in ("username", "password")]
        if any(len(values) != 1 or not values[0] for values in named):
            raise Refused("a field is missing, empty or there twice")
        (username,), (password,) = named
        credentials = PasswordCredentials("form", username, password, self._clients.address(request))
        request.authentication = AuthenticationResult("form", None)  # for the log, if the client disconnects
        user = await run_to_completion(self._portal.authenticate(credentials))
        cookies = decode_session_cookies(request)
        # The identifier is always a new one: the browser's may have been planted (session fixation).
        return user, await self._sessions.begin(user.name, in_place_of=cookies.id_hashes if cookies else ())

    async def show_button(self, _request: Request) -> Response:
        # GET changes nothing: a link in a page of another site, or a prefetching browser, must not sign a user out.
        return self._logout_page

    async def log_out(self, request: Request) -> Response:
        self._clients.refuse_cross_site(request)
        credentials = decode_session_cookies(request)
        if credentials is not None:
            await self._sessions.end(credentials.id_hashes)
        expire_session_cookie(request)
        if self._clients.is_secure(request):
            request.add_header(b"Clear-Site-Data", b'"cache"')
        return self._to_form


def _fill(title: str, file: str, realm: str, paths: Mapping[str, str]) -> bytes:
    shown = Template(read_file(__package__, file)).substitute({name: escape(path) for name, path in paths.items()})
    return fill_page(title, shown, site_name=realm, style=STYLE)
