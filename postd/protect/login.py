"""Sign-in and sign-out by form (spec: Form-login paths; reference: Form login)."""

from collections.abc import Callable, Mapping
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
from postd.http.errors import Problem, retry_after_text, to_problem
from postd.http.interface import Request
from postd.http.pages.template import make_html_response, negotiate_html, read_file, wants_html
from postd.http.peer import PeerResolver
from postd.http.responses import PAGE_HEADERS, TEXT, Response, make_redirect, make_response
from postd.http.urlencoded import decode_form, decode_query
from postd.protect.cookie import (
    below,
    decode_session_cookies,
    expire_session_cookie,
    make_challenge,
    set_session_cookie,
)
from postd.protect.guard import outcome_of
from postd.protect.pages import Page
from postd.protocol.host import is_loopback
from postd.protocol.local_path import encode_local_path

_FORM = Template(read_file(__package__, "login.html"))
_BUTTON = Template(read_file(__package__, "logout.html"))
_NEXT_FIELD = Template('<input type="hidden" name="next" value="$path">\n')
_NOTICE = Template('<div class="notice">\n$content</div>\n')
_ALERT = Template('<p class="alert" id="alert" role="alert">$why</p>\n')

_log = Logger()


class LoginViews:
    """The views of a form for signing in, at the path `sign_in`, of `login` and of `logout` below it.

    The spec does not show what triggers a logout: POST to it does, and GET shows a button for it. `next`, in the query
    of the form's path and then in a field of the form, is the path to redirect to (`encode_local_path`).

    Args:
        realm: the heading of the pages, and the realm of the challenge.
        secure: "always", "never", or "auto" to mark cookies as secure when the client's connection is.
        sign_in: the path of the form.
        after: the path to redirect to after a sign-in without a `next`.
        below_form: HTML below the form.
        links: HTML between the two, for clients that prefer HTML.
        no_accounts: HTML above the form for these clients while there are no accounts: for those on this machine, and
            for all others.
        has_accounts: returns whether there are accounts.
    """

    def __init__(  # noqa: PLR0913 - all but three by name
        self,
        portal: CoroutinePortal,
        sessions: Sessions,
        clients: PeerResolver,
        *,
        realm: str,
        secure: str,
        sign_in: str,
        after: str,
        below_form: str,
        links: str,
        no_accounts: tuple[str, str],
        has_accounts: Callable[[], bool],
    ) -> None:
        self._portal = portal
        self._sessions = sessions
        self._clients = clients
        self._secure = secure
        self._realm = realm
        self._below_form = below_form
        self._links = links
        self._no_accounts = no_accounts
        self._has_accounts = has_accounts
        self._paths = {"login": below(sign_in, "login"), "logout": below(sign_in, "logout"), "after": after}
        # Rendered once (spec: Login form).
        self._login_page = self._make_form(HTTPStatus.OK, {})
        button = _BUTTON.substitute({name: escape(path) for name, path in self._paths.items()})
        self._logout_page = make_html_response(HTTPStatus.OK, "Sign out", button, site_name=realm)
        self._challenge = make_challenge(realm, sign_in)
        self._to_form, self._to_after = make_redirect(sign_in.encode("ascii")), make_redirect(after.encode("ascii"))

    def pages(self) -> Mapping[str, Page]:
        """Return the pages by their names below the path of the form, which has the name ""."""
        return {
            "": Page({b"GET": self.show_form}, self._clients),
            "login": Page({b"POST": self.log_in}, self._clients),
            "login/session": Page({b"GET": self.show_session}, self._clients),
            "logout": Page({b"GET": self.show_button, b"POST": self.log_out}, self._clients),
        }

    async def show_form(self, request: Request) -> Response:
        request.add_header(b"Vary", b"Cookie, Accept")
        parameters = decode_query(request)
        back = _decode_next(parameters)
        credentials = decode_session_cookies(request)
        if credentials is not None:
            try:
                await self._portal.authenticate(credentials)
            except (Refused, StoreUnavailableError):
                pass  # the form is there even when the store is not
            else:
                return self._redirect_to_next(back)
        if wants_html(request):
            return self._make_form(HTTPStatus.OK, parameters, browser=request)
        return self._login_page if back is None else self._make_form(HTTPStatus.OK, parameters)

    async def log_in(self, request: Request) -> Response:
        self._clients.refuse_cross_site(request)
        fields: Mapping[str, list[str]] = {}
        try:
            fields = decode_form(request)
            user, session_id = await self._begin_session(request, fields)
        except CancelledError:  # the client has disconnected; the check continues, and a wrong password is counted
            raise
        except Exception as error:
            request.authentication = AuthenticationResult("form", outcome_of(error))
            if isinstance(error, Refused):
                return self._refuse(request, fields)
            problem = to_problem(error)
            if problem is None or not retry_after_text(problem) or not wants_html(request):
                raise
            request.add_header(b"Vary", b"Accept")
            why = f"{problem.detail} {retry_after_text(problem)}"
            return self._make_form(problem.status, fields, why, {**PAGE_HEADERS, **problem.headers}, browser=request)
        request.authentication = AuthenticationResult("form", "accepted", user.account, user)
        _log.info("signed in: {user!r} from {address}", user=user.account, address=self._clients.address(request))
        secure = self._secure == "always" or (self._secure == "auto" and self._clients.is_secure(request))
        set_session_cookie(request, session_id, secure=secure)
        return self._redirect_to_next(_decode_next(fields))

    def _refuse(self, request: Request, fields: Mapping[str, list[str]]) -> Response:
        headers = {**PAGE_HEADERS, b"WWW-Authenticate": self._challenge}
        if negotiate_html(request):
            return self._make_form(HTTPStatus.UNAUTHORIZED, fields, "Login failed", headers, browser=request)
        return make_response(HTTPStatus.UNAUTHORIZED, TEXT, b"Login failed\n", headers)

    async def _begin_session(self, request: Request, fields: Mapping[str, list[str]]) -> tuple[Identity, str]:
        named = [fields.get(name, []) for name in ("username", "password")]
        if any(len(values) != 1 or not values[0] for values in named):
            raise Refused("a field is missing, empty or there twice")
        (username,), (password,) = named
        address = self._clients.address(request)
        credentials = PasswordCredentials("form", username, password, address, lambda: request.channel is not None)
        request.authentication = AuthenticationResult("form", None)  # for the log, if the client disconnects
        user = await run_to_completion(self._portal.authenticate(credentials))
        cookies = decode_session_cookies(request)
        # The identifier is always a new one: the browser's may have been planted (session fixation).
        return user, await self._sessions.begin(user.name, in_place_of=cookies.id_hashes if cookies else ())

    async def show_session(self, request: Request) -> Response:
        """Return the name of the user who is signed in; a page that asks does not prolong the session."""
        request.add_header(b"Vary", b"Cookie")
        credentials = decode_session_cookies(request)
        user = None if credentials is None else await self._sessions.user_of_only(credentials.id_hashes)
        if user is None:
            raise Problem(401, "There is no session.", headers={b"WWW-Authenticate": self._challenge})
        return make_response(HTTPStatus.OK, TEXT, f"{user}\n".encode(), PAGE_HEADERS)

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

    def _redirect_to_next(self, back: bytes | None) -> Response:
        return self._to_after if back is None else make_redirect(back)

    def _notice(self, request: Request) -> str:
        """Return the notice that there are no accounts, while there are none."""
        if self._has_accounts() or not any(self._no_accounts):
            return ""
        here, elsewhere = self._no_accounts
        return _NOTICE.substitute(content=here if is_loopback(self._clients.address(request)) else elsewhere)

    def _make_form(
        self,
        status: HTTPStatus,
        fields: Mapping[str, list[str]],
        why: str = "",
        headers: Mapping[bytes, bytes] = PAGE_HEADERS,
        *,
        browser: Request | None = None,
    ) -> Response:
        """Return the page with the form: empty, or after a failure (`why`) with the user name of the fields sent.

        `browser` is the request of a client that prefers HTML, None for another client.
        """
        back = _decode_next(fields)
        user = fields.get("username", [""])[0]
        notice = "" if browser is None else self._notice(browser)
        parts = {
            "login": escape(self._paths["login"]),
            "next": "" if back is None else _NEXT_FIELD.substitute(path=escape(back.decode("ascii"))),
            "notice": notice,
            "alert": _ALERT.substitute(why=escape(why)) if why else "",
            "username": f' value="{escape(user)}"' if why else "" if notice else " autofocus",
            "password": ' aria-describedby="alert" autofocus' if why else "",
            "below": ("" if browser is None else self._links) + self._below_form,
        }
        return make_html_response(status, "Sign in", _FORM.substitute(parts), site_name=self._realm, headers=headers)


def _decode_next(fields: Mapping[str, list[str]]) -> bytes | None:
    """Return where `next` leads to, None if it is absent, repeated or unsafe."""
    values = fields.get("next", [])
    return encode_local_path(values[0]) if len(values) == 1 else None
