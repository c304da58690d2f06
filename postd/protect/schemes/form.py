"""Form login with a cookie session (spec: Form login with cookie session)."""

from collections.abc import Mapping, Sequence
from typing import Literal

from postd.auth.portal import CoroutinePortal
from postd.auth.session import SessionChecker, Sessions
from postd.defaults import SESSION_IDLE_S, SESSION_LIFETIME_S, SESSIONS_PER_ACCOUNT
from postd.protect.cookie import SessionReader, below
from postd.protect.guard import ProtectedResource
from postd.protect.login import LoginViews
from postd.protect.login_form import LoginForm
from postd.protect.pages import Page
from postd.protect.schemes.interface import CROSS_SITE, ClientCode, Context, Scheme, SchemeDescription, SchemeParts

_FORM = '"{origin}/login", data={"username": "alice", "password": getpass()}'
_IMPORTS = ("from getpass import getpass",)

Secure = Literal["auto", "always", "never"]


class Form(Scheme, frozen=True):
    """Sessions, which a sign-in form begins.

    Args:
        idle_s: a session ends when it was not used for this time.
        lifetime_s: a session ends at this age.
        max_per_account: how many sessions an account may have; the oldest ends.
        secure: "always", "never", or "auto" to mark cookies as secure when the client's connection is.
        sign_in: the path of the form.
        after: the path to redirect to after a sign-in without a `next`.
        below: HTML below the form.
        links: HTML between the two, for clients that prefer HTML.
        no_accounts: HTML above the form for these clients while there are no accounts: what clients on this machine
            get, and what all others get; empty for none.
    """

    idle_s: float = SESSION_IDLE_S
    lifetime_s: float = SESSION_LIFETIME_S
    max_per_account: int = SESSIONS_PER_ACCOUNT
    secure: Secure = "auto"
    sign_in: str = "/"
    after: str = "/"
    below: str = ""
    links: str = ""
    no_accounts: tuple[str, str] = ("", "")

    name = "session"
    description = SchemeDescription(
        title="Session",
        security={
            "type": "apiKey",
            "in": "cookie",
            "name": "session",
            "description": "The cookie that `POST /login` sets. Changes are refused if a page of another site sends "
            "them.",
        },
        curl="-b cookies.txt",
        httpx=ClientCode("cookies=form.cookies", (f"form = httpx.post({_FORM})",), _IMPORTS),
        treq=ClientCode(
            "cookies=form.cookies()", (f"form = await treq.post({_FORM}, allow_redirects=False)",), _IMPORTS
        ),
        write_errors=((403, CROSS_SITE),),
    )
    uses_accounts = True

    def make(self, context: Context) -> SchemeParts:
        sessions = Sessions(
            context.store,
            context.accounts,
            idle_s=self.idle_s,
            lifetime_s=self.lifetime_s,
            now=context.clock.seconds,
            max_per_account=self.max_per_account,
        )

        form = LoginForm(
            context.clients,
            context.realm,
            login=below(self.sign_in, "login"),
            below_form=self.below,
            links=self.links,
            no_accounts=self.no_accounts,
            has_accounts=lambda: bool(context.users.accounts),
        )

        def make_pages(portal: CoroutinePortal, resources: Sequence[ProtectedResource]) -> Mapping[str, Page]:
            return LoginViews(
                portal,
                sessions,
                context.clients,
                realm=context.realm,
                secure=self.secure,
                sign_in=self.sign_in,
                after=self.after,
                form=form,
                resources=resources,
            ).pages()

        # The form checks passwords even if no rule has "session".
        checkers = (SessionChecker(sessions), context.passwords)
        return SchemeParts(checkers, reader=SessionReader(context.realm, self.sign_in, form), make_pages=make_pages)
