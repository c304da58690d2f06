"""Sign-in and sign-out by form (spec: Form-login paths; reference: Form login)."""

from collections.abc import Mapping, Sequence
from html import escape
from http import HTTPStatus
from string import Template

from msgspec.structs import replace
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
from postd.http.urlencoded import FORM_MAX_BYTES, decode_form, decode_query
from postd.protect.cookie import (
    below,
    decode_session_cookies,
    expire_session_cookie,
    make_challenge,
    set_session_cookie,
)
from postd.protect.guard import ProtectedResource, outcome_of
from postd.protect.login_form import CARRIED_FORM_MAX_BYTES, LoginForm, decode_carried, decode_next
from postd.protect.pages import Page

_BUTTON = Template(read_file(__package__, "logout.html"))

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
        form: renders the form.
        resources: the resources that sessions protect; they show the forms that a sign-in carries.
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
        form: LoginForm,
        resources: Sequence[ProtectedResource],
    ) -> None:
        self._portal = portal
        self._sessions = sessions
        self._clients = clients
        self._secure = secure
        self._make_form = form.make
        self._ask_to_send_again = form.ask_to_send_again
        self._resources = [resource for resource in resources if resource.resume is not None]
        paths = {"logout": below(sign_in, "logout"), "after": after}
        # Rendered once (spec: Login form).
        self._login_page = self._make_form(HTTPStatus.OK, {})
        button = _BUTTON.substitute({name: escape(path) for name, path in paths.items()})
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
        back = decode_next(parameters)
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
            fields = _decode_sign_in(request)
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
        back, form = decode_next(fields), decode_carried(fields)
        if back is None or not form:
            return self._redirect_to_next(back)
        identity = replace(user, scheme="session")
        request.authentication = AuthenticationResult("form", "accepted", user.account, identity)
        return await self._resume(request, back, form)

    async def _resume(self, request: Request, path: bytes, form: Mapping[str, list[str]]) -> Response:
        """Return the page after a sign-in that carries a form."""
        for resource in self._resources:
            prefix = resource.path.encode("ascii")
            if resource.resume is not None and (path + b"/").startswith(prefix + b"/"):
                try:
                    return await resource.resume(request, path.decode("ascii"), form)
                except Exception as error:
                    if to_problem(error) is None:
                        raise
        return self._ask_to_send_again(path, form)

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


def _decode_sign_in(request: Request) -> Mapping[str, list[str]]:
    """Decode the form, which may carry another one.

    Raises:
        Problem: as `decode_form`.
    """
    fields = decode_form(request, CARRIED_FORM_MAX_BYTES)
    if len(request.body) > FORM_MAX_BYTES and "form" not in fields:
        raise Problem(413, f"The form has more than {FORM_MAX_BYTES} bytes.")
    return fields
