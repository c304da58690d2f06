"""Sign-in and sign-out by form (spec: Form-login paths; reference: Form login)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from html import escape
from http import HTTPStatus
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace
from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from postd.auth.credentials import PasswordCredentials, Refused, SessionCredentials, UnprovenError, run_to_completion
from postd.auth.identity import AuthenticationResult, Identity, SignedIn
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
from postd.protocol.host import origin_of
from postd.protocol.sign_in import make_sign_out_url
from postd.protocol.user_agent import describe_browser

if TYPE_CHECKING:
    from postd.auth.sign_in import Provider
    from postd.protect.bound_session import BindingViews

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
        providers: the OpenID providers, by their ids.
        binding: asks browsers to bind new sessions to their devices; None to ask none.
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
        providers: "Mapping[str, Provider]" = MappingProxyType({}),
        binding: "BindingViews | None" = None,
    ) -> None:
        self._binding = binding
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
        self._button = _BUTTON.substitute({name: escape(path) for name, path in paths.items()})
        self._realm = realm
        self._sign_in = sign_in
        self._providers = providers
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
            except UnprovenError:
                sent_back = None if self._binding is None else self._binding.send_back_to_form(request, self._challenge)
                if sent_back is not None:
                    return sent_back
            except (Refused, StoreUnavailableError):
                pass  # the form is there even when the store is not
            else:
                return self._redirect_to_next(back)
        if wants_html(request):
            return self._make_form(HTTPStatus.OK, parameters, browser=request)
        return self._login_page if back is None else self._make_form(HTTPStatus.OK, parameters)

    async def log_in(self, request: Request) -> Response:
        return await self.sign_in(request, "form", self._begin_session)

    async def sign_in(
        self,
        request: Request,
        scheme: str,
        begin_session: Callable[[Request, Mapping[str, list[str]]], Awaitable[Identity]],
        *,
        by: str = "",
        explain: Callable[[Refused], str] | None = None,
    ) -> Response:
        """Sign a user in by a form, which may carry another one.

        Args:
            request: the request, with the form.
            scheme: the scheme of the credentials, for log and metrics.
            begin_session: checks the credentials in the fields of the form, begins a session, and returns the user.
            by: what the user has signed in by, for the log; empty for a password.
            explain: returns the alert of a refusal; None for that of a wrong password, with the user name kept.
        """
        self._clients.refuse_cross_site(request)
        fields: Mapping[str, list[str]] = {}
        try:
            fields = _decode_sign_in(request)
            user = await begin_session(request, fields)
        except CancelledError:  # the client has disconnected; the check continues, and wrong credentials are counted
            raise
        except Exception as error:
            request.authentication = AuthenticationResult(scheme, outcome_of(error))
            if isinstance(error, Refused):
                why = "Login failed" if explain is None else explain(error)
                return self.refuse(request, fields, why, failed=explain is None)
            problem = to_problem(error)
            if problem is None or not retry_after_text(problem) or not wants_html(request):
                raise
            return self.show_alert(request, problem, fields, f"{problem.detail} {retry_after_text(problem)}")
        back, form = decode_next(fields), decode_carried(fields)
        response = self.accept(request, user, back, by)
        if back is None or not form:
            return response
        identity = replace(user, scheme="session")
        request.authentication = AuthenticationResult(scheme, "accepted", user.account, identity)
        return await self._resume(request, back, form)

    async def begin_session(self, request: Request, user: Identity, signed_in: SignedIn | None = None) -> None:
        """Begin a session and set its cookie; the session of a cookie that was sent ends.

        Raises:
            Refused: the account was removed since its credentials were checked.
            StoreUnavailableError: the session could not be stored.
        """
        cookies = decode_session_cookies(request)
        replaced = cookies.id_hashes if cookies else ()
        # The identifier is always a new one: the browser's may have been planted (session fixation).
        session_id = await self._sessions.begin(
            user.account,
            in_place_of=replaced,
            signed_in=signed_in,
            address=self._clients.address(request),
            browser=describe_browser(request.fields.get(b"User-Agent", [b""])[0]),
            scheme=user.scheme,
        )
        set_session_cookie(request, session_id, secure=self.is_secure(request))
        if self._binding is not None:
            await self._binding.offer(request, session_id)

    def accept(self, request: Request, user: Identity, back: bytes | None, by: str = "") -> Response:
        """Log a sign-in, by which provider, and return the redirect to the page after it."""
        request.authentication = AuthenticationResult(user.scheme, "accepted", user.account, user)
        _log.info(
            "signed in: {user!r} from {address}{by}",
            user=user.account,
            address=self._clients.address(request),
            by=f" by {by}" if by else "",
        )
        return self._redirect_to_next(back)

    def is_secure(self, request: Request) -> bool:
        """Return whether cookies are marked as secure."""
        return self._secure == "always" or (self._secure == "auto" and self._clients.is_secure(request))

    def show_alert(
        self, request: Request, problem: Problem, fields: Mapping[str, list[str]], why: str, *, failed: bool = True
    ) -> Response:
        """Return the form with an alert, to a browser; `failed` is whether the user name is kept."""
        request.add_header(b"Vary", b"Accept")
        headers = {**PAGE_HEADERS, **problem.headers}
        return self._make_form(problem.status, fields, why, headers, browser=request, failed=failed)

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

    def refuse(self, request: Request, fields: Mapping[str, list[str]], why: str, *, failed: bool = True) -> Response:
        """Return the response to a sign-in that has failed; a browser gets the form with an alert."""
        headers = {**PAGE_HEADERS, b"WWW-Authenticate": self._challenge}
        if negotiate_html(request):
            return self._make_form(HTTPStatus.UNAUTHORIZED, fields, why, headers, browser=request, failed=failed)
        return make_response(HTTPStatus.UNAUTHORIZED, TEXT, b"Login failed\n", headers)

    async def _begin_session(self, request: Request, fields: Mapping[str, list[str]]) -> Identity:
        named = [fields.get(name, []) for name in ("username", "password")]
        if any(len(values) != 1 or not values[0] for values in named):
            raise Refused("a field is missing, empty or there twice")
        (username,), (password,) = named
        user = await check_password(self._portal, self._clients, request, username, password)
        await self.begin_session(request, user)
        return user

    async def show_session(self, request: Request) -> Response:
        """Return the name of the user who is signed in; a page that asks does not prolong the session."""
        request.add_header(b"Vary", b"Cookie")
        credentials = decode_session_cookies(request)
        found = None if credentials is None else await self._sessions.find_only(credentials)
        if found is None:
            raise Problem(401, "There is no session.", headers={b"WWW-Authenticate": self._challenge})
        return make_response(HTTPStatus.OK, TEXT, f"{found[1].username}\n".encode(), PAGE_HEADERS)

    async def show_button(self, _request: Request) -> Response:
        # GET changes nothing: a link in a page of another site, or a prefetching browser, must not sign a user out.
        return make_html_response(
            HTTPStatus.OK, "Sign out", self._button, site_name=self._realm, targets=sign_out_origins(self._providers)
        )

    async def log_out(self, request: Request) -> Response:
        self._clients.refuse_cross_site(request)
        credentials = decode_session_cookies(request)
        leading_on = None
        if credentials is not None:
            leading_on = await self._find_sign_out(request, credentials) if self._providers else None
            await self._sessions.end(credentials.id_hashes)
        expire_session_cookie(request)
        if self._binding is not None:
            self._binding.forget_proof(request)
        if self._clients.is_secure(request):
            request.add_header(b"Clear-Site-Data", b'"cache"')
        return self._to_form if leading_on is None else leading_on

    async def _find_sign_out(self, request: Request, credentials: SessionCredentials) -> Response | None:
        """Return the redirect that signs the user of a session out at the provider, None if that is not wanted."""
        found = await self._sessions.find_only(credentials)
        provider = None if found is None else self._providers.get(found[1].provider)
        endpoint = "" if provider is None else provider.end_session_endpoint
        if found is None or provider is None or not endpoint:
            return None
        origin = self._clients.origin(request)
        back = "" if origin is None else f"{origin}{self._sign_in}"
        id_token = await self._sessions.id_token_of(found[0])
        return make_redirect(make_sign_out_url(endpoint, provider.policy.client_id, id_token, back).encode("ascii"))

    def _redirect_to_next(self, back: bytes | None) -> Response:
        return self._to_after if back is None else make_redirect(back)


async def check_password(
    portal: CoroutinePortal, clients: PeerResolver, request: Request, username: str, password: str
) -> Identity:
    """Return the identity that a name and a password in a form prove.

    Raises:
        Exception: as `CoroutinePortal.authenticate`.
    """
    address = clients.address(request)
    credentials = PasswordCredentials("form", username, password, address, lambda: request.channel is not None)
    request.authentication = AuthenticationResult("form", None)  # for the log, if the client disconnects
    return await run_to_completion(portal.authenticate(credentials))


def sign_out_origins(providers: "Mapping[str, Provider]") -> list[str]:
    """Return the origins of providers to which signing out may lead (`form-action` of pages with a button for it)."""
    urls = filter(None, (provider.end_session_endpoint for provider in providers.values()))
    return list(dict.fromkeys(map(origin_of, urls)))


def _decode_sign_in(request: Request) -> Mapping[str, list[str]]:
    """Decode the form, which may carry another one.

    Raises:
        Problem: as `decode_form`.
    """
    fields = decode_form(request, CARRIED_FORM_MAX_BYTES)
    if len(request.body) > FORM_MAX_BYTES and "form" not in fields:
        raise Problem(413, f"The form has more than {FORM_MAX_BYTES} bytes.")
    return fields
