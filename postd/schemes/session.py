"""Form login with a cookie session (spec: Form login with cookie session)."""

from collections.abc import Sequence

from postd.auth.portal import CoroutinePortal
from postd.auth.session import SessionChecker, Sessions
from postd.protect.cookie import SessionReader
from postd.protect.guard import ProtectedResource
from postd.schemes.interface import Context, Scheme
from postd.web.access import ClientCode, SchemeDescription, SchemeParts, Views
from postd.web.login import LoginPages
from postd.web.openapi.components import CROSS_SITE

_FORM = '"{origin}/login", data={"username": "alice", "password": getpass()}'
_IMPORTS = ("from getpass import getpass",)


class SessionScheme(Scheme):
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

    def make(self, context: Context) -> tuple[SchemeParts, None]:
        settings = context.settings
        sessions = Sessions(
            context.store,
            context.users,
            idle_s=settings.session.idle_s,
            lifetime_s=settings.session.lifetime_s,
            now=context.clock.seconds,
            max_per_account=settings.session.max_per_account,
        )

        def make_views(portal: CoroutinePortal, _resources: Sequence[ProtectedResource]) -> Sequence[Views]:
            pages = LoginPages(portal, sessions, context.clients, realm=settings.realm, secure=settings.session.secure)
            return [((b"", b"login", b"logout"), pages)]

        # The form checks passwords even if no rule has "session".
        checkers = (SessionChecker(sessions), context.passwords)
        return SchemeParts(checkers, reader=SessionReader(settings.realm), make_views=make_views), None


SCHEME = SessionScheme()
