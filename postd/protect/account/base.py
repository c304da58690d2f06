"""What the pages below `/account` have in common: the visitor, the frame of a page, and a recent sign-in.

Only a session counts there, no other credentials. A page has a view for GET, and one for the form that POST sends;
`AccountArea.make_page` puts the same checks before both. `AccountTask` is the base of what users can do there.
"""

from collections.abc import Awaitable, Callable, Mapping
from html import escape
from http import HTTPStatus
from string import Template
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, urlencode

from msgspec import Struct
from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from postd.auth.credentials import Refused
from postd.auth.identity import AuthenticationResult
from postd.auth.portal import CoroutinePortal
from postd.auth.session import Sessions
from postd.http.errors import Advice, Problem, make_problem_response, retry_after_text, to_problem
from postd.http.interface import Request
from postd.http.pages.template import STYLE, fill_page, make_policy, read_file
from postd.http.pages.times import make_time
from postd.http.peer import PeerResolver
from postd.http.responses import HTML, PAGE_HEADERS, Response, make_redirect, make_response
from postd.http.urlencoded import decode_form, decode_query
from postd.http.views import View as PageView
from postd.protect.account.options import AccountOptions
from postd.protect.cookie import SessionReader, below, decode_session_cookies, expire_session_cookie, is_unproven
from postd.protect.guard import outcome_of
from postd.protect.login import check_password
from postd.protect.login_form import LoginForm, make_alert, make_hidden
from postd.protect.pages import Page
from postd.protect.passkey_form import SCRIPT, PasskeyForm
from postd.protocol.session import Session
from postd.protocol.user_agent import UNKNOWN

if TYPE_CHECKING:
    from postd.auth.sign_in import Provider

RECENT_S = 15 * 60
"""How long a sign-in is recent, in seconds."""

SECRET_FIELDS = frozenset({"password", "present", "new", "again", "credential"})
"""Fields of forms that no page repeats."""

FORM = "account"
"""The path of the first page, below that of the sign-in form; the paths of all others begin with it."""

Fields = Mapping[str, list[str]]
"""The fields of a form, each with its values."""

_log = Logger()

_STYLE = STYLE + read_file(__package__, "account.css")
_POLICY = make_policy(_STYLE)
_HEADING = Template("<header>\n$site<h1>$title</h1>\n</header>\n$back")
_BACK = Template('<p class="back"><a href="$path">Account</a></p>\n')
_DONE = Template('<p id="done" class="done" role="status" tabindex="-1">$message</p>\n')
_CONFIRM = Template(read_file(__package__, "confirm.html"))
_PASSWORD = Template(read_file(__package__, "confirm-password.html"))
_PROVIDER = Template(read_file(__package__, "confirm-provider.html"))


class Visitor(Struct, frozen=True):
    """The user of a page: the session of the request, and the hash of its identifier."""

    id_hash: bytes
    session: Session

    @property
    def account(self) -> str:
        """The account."""
        return self.session.username

    @property
    def issuer(self) -> str:
        """The issuer of the account, empty for an account of this server."""
        return self.account.partition("#")[0] if self.session.provider else ""

    @property
    def name(self) -> str:
        """The name for people."""
        return self.session.shown_name or self.account[len(self.issuer) + 1 if self.issuer else 0 :]


View = Callable[[Request, Visitor], Awaitable[Response]]
"""Returns a page."""

FormView = Callable[[Request, Visitor, Fields], Awaitable[Response]]
"""Handles a form."""


class AccountArea:
    """The common part of the pages.

    Args:
        portal: checks sessions and passwords.
        sessions: the sessions.
        clients: resolves client and origin of requests.
        options: what users may change.
        reader: redirects to the sign-in form.
        form: the sign-in form, which carries forms.
        realm: the name of the site.
        sign_in: the path of the sign-in form.
        providers: the OpenID providers, by their ids.
        now: the clock of the dates in the store, in seconds since the epoch.
        passkeys: renders the button that signs in by a passkey; None where passkeys are off.
    """

    def __init__(  # noqa: PLR0913 - all that the pages need
        self,
        portal: CoroutinePortal,
        sessions: Sessions,
        clients: PeerResolver,
        *,
        options: AccountOptions,
        reader: SessionReader,
        form: LoginForm,
        realm: str,
        sign_in: str,
        providers: "Mapping[str, Provider]",
        now: Callable[[], float],
        passkeys: PasskeyForm | None = None,
    ) -> None:
        self.sessions, self.clients, self.options, self.providers, self.now = sessions, clients, options, providers, now
        self._portal, self._reader, self._form, self._realm = portal, reader, form, realm
        self.sign_in, self.challenge = sign_in, reader.challenge
        self._passkeys = passkeys

    def path(self, name: str) -> str:
        """Return the path of a page, such as `account/tokens`."""
        return below(self.sign_in, name)

    def make_page(self, get: View | None = None, post: FormView | None = None) -> Page:
        """Return a page with these views, for visitors alone.

        A form that a page of another site sends is refused before anything else.
        """
        views: dict[bytes, PageView] = {}
        if get is not None:
            views[b"GET"] = self._shown(get)
        if post is not None:
            views[b"POST"] = self._handled(post)
        return Page(views, self.clients)

    def _shown(self, view: View) -> PageView:
        async def show(request: Request) -> Response:
            visitor = await self.visit(request)
            return await view(request, visitor) if isinstance(visitor, Visitor) else visitor

        return show

    def _handled(self, view: FormView) -> PageView:
        async def handle(request: Request) -> Response:
            self.clients.refuse_cross_site(request)
            visitor = await self.visit(request)
            return await view(request, visitor, decode_form(request)) if isinstance(visitor, Visitor) else visitor

        return handle

    async def visit(self, request: Request) -> Visitor | Response:
        """Return the visitor, or the response to a request without a session.

        Raises:
            StoreUnavailableError: the session cannot be looked up.
        """
        request.add_header(b"Vary", b"Cookie")
        credentials = decode_session_cookies(request)
        if credentials is None:
            return self._turn_away(request)
        request.authentication = AuthenticationResult("session", None)  # for the log, if the client disconnects
        try:
            identity = await self._portal.authenticate(credentials)
            found = await self.sessions.find_only(credentials)
        except Exception as error:
            request.authentication = AuthenticationResult("session", outcome_of(error))
            if isinstance(error, Refused):
                return self._turn_away(request)
            raise
        if found is None:  # it has just ended
            return self._turn_away(request)
        request.authentication = AuthenticationResult("session", "accepted", identity.account, identity)
        return Visitor(*found)

    def _turn_away(self, request: Request) -> Response:
        """Return the redirect to the sign-in form, or for a browser's form the sign-in form that carries it."""
        if request.method != b"POST":
            redirect = self._reader.redirect_to_sign_in(request, request.uri)
            if redirect is not None:
                return redirect
        elif not is_unproven(request) and decode_session_cookies(request) is not None:
            expire_session_cookie(request)
        carrying = self._form.carry(request, self.challenge, without=SECRET_FIELDS)
        if carrying is not None:
            return carrying
        problem = Problem(401, "There is no session.", headers={b"WWW-Authenticate": self.challenge})
        back = quote(self.path(FORM), safe="/")
        return make_problem_response(request, problem, Advice("", f"{self.sign_in}?next={back}", "Sign in"))

    def page(  # noqa: PLR0913 - most have their defaults
        self,
        status: HTTPStatus,
        title: str,
        content: str,
        *,
        alert: str = "",
        script: str | None = None,
        headers: Mapping[bytes, bytes] = PAGE_HEADERS,
    ) -> Response:
        """Return a page, with plain text in title and alert, HTML in its content, and a script.

        An alert has the id `alert`, for `aria-describedby` of the field that is wrong.
        """
        site = f'<p class="site">{escape(self._realm)}</p>\n' if self._realm else ""
        back = "" if title == TITLE else _BACK.substitute(path=escape(self.path(FORM)))
        heading = _HEADING.substitute(site=site, title=escape(title), back=back)
        ending = "" if script is None else f"<script>{script}</script>\n"
        body = fill_page(
            title,
            (make_alert(alert) if alert else "") + content + ending,
            site_name=self._realm,
            style=_STYLE,
            heading=heading,
        )
        policy = _POLICY if script is None else make_policy(_STYLE, script)
        return make_response(status, HTML, body, {**headers, b"Content-Security-Policy": policy})

    def means(self, session: Session) -> str:
        """Return how the user of a session has signed in, in words."""
        provider = self.providers.get(session.provider)
        if session.scheme == "passkey":
            return "with a passkey"
        return "with a password" if provider is None else f"with {provider.name}"

    def browser(self, session: Session) -> str:
        """Return the browser in which a session began, in words that may begin a line."""
        words = session.browser or UNKNOWN
        return words[0].upper() + words[1:]

    def time(self, moment: float) -> str:
        """Render a time, in seconds since the epoch, relative to now."""
        return make_time(int(moment * 1000), int(self.now() * 1000))

    def redirect(self, name: str, done: str = "") -> Response:
        """Return the redirect to a page after a change; `done` names the message that it shows (`message`)."""
        query = f"?done={done}#done" if done else ""
        return make_redirect(f"{self.path(name)}{query}".encode("ascii"), HTTPStatus.SEE_OTHER)

    def message(self, request: Request, messages: Mapping[str, str]) -> str:
        """Return the message after a change, as HTML: that of `messages` which `?done` names, or none."""
        message = messages.get(decode_query(request).get("done", [""])[0], "")
        return _DONE.substitute(message=message) if message else ""

    def log(self, request: Request, visitor: Visitor, what: str) -> None:
        """Log a change of an account."""
        address = self.clients.address(request)
        _log.info("account: {user!r} from {address}: {what}", user=visitor.account, address=address, what=what)

    async def check_password(self, request: Request, visitor: Visitor, password: str) -> None:
        """Check the password of a visitor as a sign-in does: it is throttled, and failures are logged.

        Raises:
            Refused: it is wrong.
            TooManyFailuresError: there were too many failures.
            StoreUnavailableError: the throttle's counts cannot be read or written.
        """
        accepted = request.authentication
        try:
            identity = await check_password(self._portal, self.clients, request, visitor.account, password)
        except CancelledError:
            raise
        except Exception as error:
            request.authentication = AuthenticationResult("form", outcome_of(error))
            raise
        if identity.account != visitor.account:
            raise Refused("the password is another user's", visitor.account, known=True)
        request.authentication = accepted

    async def is_recent(self, visitor: Visitor) -> bool:
        """Return whether the visitor has signed in, or confirmed that, recently.

        The sign-in is not enough in a session that is not bound to a device, of an account with a password that has had
        a bound one: its cookie may have been stolen since.
        """
        session = visitor.session
        if self.now() - session.authenticated > RECENT_S:
            return False
        if visitor.issuer or session.bound or session.authenticated > session.created:
            return True
        return not await self.sessions.binds(visitor.account)

    async def confirm(self, request: Request, visitor: Visitor, fields: Fields) -> Response | None:
        """Return None if the visitor has signed in recently, or the form has the password; else the page that asks.

        The page has the fields of the form, so that nothing has to be typed again.
        """
        if await self.is_recent(visitor):
            return None
        password = fields.get("password", [""])[0]
        if not password or visitor.issuer:
            return await self._ask(request, visitor, fields)
        try:
            await self.check_password(request, visitor, password)
            await self.sessions.confirm(visitor.id_hash)
        except Refused:
            return await self._ask(request, visitor, fields, "The password is wrong.")
        except CancelledError:
            raise
        except Exception as error:
            problem = to_problem(error)
            if problem is None or not retry_after_text(problem):
                raise
            return await self._ask(request, visitor, fields, f"{problem.detail} {retry_after_text(problem)}", problem)
        return None

    async def _ask(
        self, request: Request, visitor: Visitor, fields: Fields, why: str = "", problem: Problem | None = None
    ) -> Response:
        """Return the page "Confirm that it is you"."""
        path = escape(request.path.decode("ascii"))
        if visitor.issuer:
            provider = self.providers[visitor.session.provider]
            back = quote(f"{self.path(FORM)}?done=confirmed", safe="/")
            href = f"{self.path(f'login/{provider.id}')}?fresh=1&next={back}"
            proof = _PROVIDER.substitute(name=escape(provider.name), href=escape(href))
        else:
            described = ' aria-describedby="alert" aria-invalid="true"' if why else ""
            proof = _PASSWORD.substitute(account=escape(visitor.account), described=described)
        kept = {name: values for name, values in fields.items() if name not in SECRET_FIELDS}
        passkey = ""
        if self._passkeys is not None:
            back_here = {"next": request.path.decode("ascii"), "form": urlencode(kept, doseq=True)}
            passkey = await self._passkeys.make_for(visitor.account, request, make_hidden(back_here))
        content = _CONFIRM.substitute(
            name=escape(visitor.name),
            action=path,
            hidden="".join(make_hidden({name: value}) for name, values in kept.items() for value in values),
            proof=proof,
            passkey=passkey,
            back=escape(self.path(FORM)),
        )
        status = HTTPStatus.UNAUTHORIZED if problem is None else problem.status
        more = {b"WWW-Authenticate": self.challenge} if problem is None else problem.headers
        script, headers = SCRIPT if passkey else None, {**PAGE_HEADERS, **more}
        return self.page(status, "Confirm that it is you", content, alert=why, script=script, headers=headers)


TITLE = "Your account"
"""The title of the first page."""


class AccountTask:
    """What users can do on some of the pages.

    Attributes:
        name: the path of its first page, below that of the sign-in form.
        title: the title of that page.
        area: the common part.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, area: AccountArea) -> None:
        self.area = area

    def pages(self) -> Mapping[str, Page]:
        """Return the pages by their paths below that of the sign-in form."""
        raise NotImplementedError

    async def describe(self, visitor: Visitor) -> str | None:
        """Return a sentence for the first page, as plain text; None if the task is not for this visitor."""
        raise NotImplementedError


def require(fields: Fields, name: str) -> str:
    """Return the value of a field.

    Raises:
        Problem: 400, it is missing or repeated.
    """
    values = fields.get(name, [])
    if len(values) != 1:
        raise Problem(400, f"The form must have {name!r} once.")
    return values[0]
