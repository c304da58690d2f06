"""The page on which a user sets a new password by a link (`postd user reset`)."""

from collections.abc import Awaitable, Callable, Mapping
from html import escape
from http import HTTPStatus
from string import Template

from twisted.internet.defer import CancelledError

from postd.auth.credentials import Refused, run_to_completion
from postd.auth.identity import AuthenticationResult
from postd.auth.password_reset import PAGE, SCHEME, PasswordResets
from postd.http.errors import Problem, make_problem_response, retry_after_text
from postd.http.interface import Request
from postd.http.pages.template import make_html_response, negotiate_html, read_file
from postd.http.peer import PeerResolver
from postd.http.responses import PAGE_HEADERS, Response
from postd.http.urlencoded import decode_form, decode_query
from postd.http.views import View
from postd.protect.cookie import below
from postd.protect.guard import outcome_of
from postd.protect.login_form import make_alert
from postd.protect.new_password import check_new_password, to_password_problem
from postd.protect.pages import Page
from postd.protocol.password_reset import PasswordReset

_TITLE = "New password"
_FORM = Template(read_file(__package__, "reset.html"))
_DEAD = (
    "This link is not good any more: it was used, is older than an hour, or another one was made. Ask for a new one."
)
# The address has a secret. Browsers apply the last policy that they know (Referrer Policy §11.1): with no-referrer
# alone, the form would have the origin `null`, as the form of another site's page may have.
_REFERRER = {b"Referrer-Policy": b"no-referrer, strict-origin"}
_HEADERS = {**PAGE_HEADERS, **_REFERRER}


class ResetViews:
    """The page: GET shows the form and uses nothing up, as mail programs fetch links; POST sets the password.

    Args:
        resets: finds and uses links.
        clients: resolves client and origin of requests.
        realm: the name of the site.
        sign_in: the path of the sign-in form.
    """

    def __init__(self, resets: PasswordResets, clients: PeerResolver, *, realm: str, sign_in: str) -> None:
        self._resets, self._clients, self._realm = resets, clients, realm
        self._action = escape(below(sign_in, PAGE))
        to_form = f'<a href="{escape(sign_in)}">Sign in</a>\n'
        self._done_page, self._dead_page = f"<p>Your password was set.</p>\n{to_form}", f"<p>{_DEAD}</p>\n{to_form}"

    def pages(self) -> Mapping[str, Page]:
        """Return the page by its name below the path of the form."""
        return {PAGE: Page({b"GET": self._guarded(self._show), b"POST": self._guarded(self._set)}, self._clients)}

    def _guarded(self, view: Callable[[Request], Awaitable[Response]]) -> View:
        """Return a view whose errors have the header fields of the page."""

        async def respond(request: Request) -> Response:
            try:
                return await view(request)
            except CancelledError:
                raise
            except Exception as error:
                is_dead = isinstance(error, Refused)
                problem = Problem(400, _DEAD) if is_dead else to_password_problem(error)
                if problem is None:
                    raise
                problem.headers |= _REFERRER
                if is_dead and negotiate_html(request):
                    return self._make_page(problem.status, self._dead_page)
                return make_problem_response(request, problem)

        return respond

    async def _show(self, request: Request) -> Response:
        secret = _only(decode_query(request), "secret")
        return self._make_form(await self._find(request, secret), secret)

    async def _set(self, request: Request) -> Response:
        self._clients.refuse_cross_site(request)
        fields = decode_form(request)
        secret, address = _only(fields, "secret"), self._clients.address(request)
        reset = await self._find(request, secret)
        try:
            password = check_new_password(_only(fields, "new"), _only(fields, "again"))
            await run_to_completion(self._resets.use(secret, reset, password, address))
        except CancelledError:
            raise
        except Exception as error:
            problem = to_password_problem(error)
            request.authentication = AuthenticationResult(SCHEME, outcome_of(error))
            if problem is None or not negotiate_html(request):
                raise
            return self._make_form(reset, secret, problem)
        request.authentication = AuthenticationResult(SCHEME, "accepted", reset.account)
        return self._make_page(HTTPStatus.OK, self._done_page)

    async def _find(self, request: Request, secret: str) -> PasswordReset:
        request.authentication = AuthenticationResult(SCHEME, None)  # for the log, if the client disconnects
        try:
            # To the end, even if the client disconnects: a wrong secret is counted.
            return await run_to_completion(self._resets.find(secret, self._clients.address(request)))
        except CancelledError:
            raise
        except Exception as error:
            request.authentication = AuthenticationResult(SCHEME, outcome_of(error))
            raise

    def _make_form(self, reset: PasswordReset, secret: str, problem: Problem | None = None) -> Response:
        alert = "" if problem is None else f"{problem.detail} {retry_after_text(problem)}".strip()
        content = _FORM.substitute(
            alert=make_alert(alert) if alert else "",
            action=self._action,
            secret=escape(secret),
            name=escape(reset.account),
            new=' aria-invalid="true" aria-describedby="alert"' if alert else "",
        )
        return self._make_page(HTTPStatus.OK if problem is None else problem.status, content, problem)

    def _make_page(self, status: HTTPStatus, content: str, problem: Problem | None = None) -> Response:
        headers = {**_HEADERS, **({} if problem is None else problem.headers)}
        return make_html_response(status, _TITLE, content, site_name=self._realm, headers=headers)


def _only(fields: Mapping[str, list[str]], name: str) -> str:
    """Return the value of a field or a parameter; empty if it is missing or repeated."""
    values = fields.get(name, [])
    return values[0] if len(values) == 1 else ""
