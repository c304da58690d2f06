"""Sessions, begun by a form or at an OpenID provider (spec: Form login with cookie session)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from postd.auth.checker import Checker
from postd.auth.password_reset import PasswordResets
from postd.auth.portal import CoroutinePortal
from postd.auth.session import SessionChecker, Sessions
from postd.auth.stock_checker import StockChecker
from postd.defaults import SESSION_IDLE_S, SESSION_LIFETIME_S, SESSIONS_PER_ACCOUNT
from postd.protect.account.base import AccountArea
from postd.protect.account.options import AccountOptions
from postd.protect.account.pages import make_account_pages
from postd.protect.cookie import SessionReader, below
from postd.protect.guard import ProtectedResource
from postd.protect.login import LoginViews, sign_out_origins
from postd.protect.login_form import LoginForm
from postd.protect.pages import Page
from postd.protect.password_reset import ResetViews
from postd.protect.providers import TrustedProvider
from postd.protect.schemes.interface import (
    CROSS_SITE,
    ClientCode,
    Context,
    Deployment,
    NetworkCheck,
    Scheme,
    SchemeDescription,
    SchemeParts,
)
from postd.protocol.jwt import USER_CLAIM
from postd.protocol.session import BindingTimes
from postd.protocol.webauthn import find_rp_id

if TYPE_CHECKING:
    from postd.auth.bound_session import SessionBinding
    from postd.auth.sign_in import Provider
    from postd.protect.bound_session import BindingViews

_FORM = '"{origin}/login", data={"username": "alice", "password": getpass()}'
_IMPORTS = ("from getpass import getpass",)

Secure = Literal["auto", "always", "never"]
Bind = Literal["no", "offer"]


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
        providers: the OpenID providers, made by `postd.protect.provider`, in the order of their buttons.
        no_accounts: HTML above the form for these clients while there are no accounts: what clients on this machine
            get, and what all others get; empty for none.
        accounts: what users may change at `/account`.
        bind: "offer" to bind sessions to the device of a browser that can, over TLS; "no" to bind none.
        binding: how long proofs of bound sessions are accepted, for tests.
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
    providers: Sequence[TrustedProvider] = ()
    accounts: AccountOptions = AccountOptions()
    bind: Bind = "no"
    binding: BindingTimes = BindingTimes()

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
        for one in self.providers:
            if one.id not in context.providers:
                context.providers[one.id] = one.make(context.reactor)
        providers = {one.id: context.providers[one.id] for one in self.providers}
        binding = self._make_binding(context)
        sessions = Sessions(
            context.store,
            context.accounts,
            idle_s=self.idle_s,
            lifetime_s=self.lifetime_s,
            now=context.clock.seconds,
            max_per_account=self.max_per_account,
            providers={one.id: one.fingerprint for one in providers.values()},
            binding=binding,
        )
        views_of_binding = None if binding is None else self._make_binding_views(sessions, binding, context)
        users, passwords = context.users, context.passwords
        passkeys = None
        if self.accounts.passkeys:
            from postd.protect.passkey import PasskeySignIn  # noqa: PLC0415 - for passkeys alone

            passkeys = PasskeySignIn(context, providers, self.sign_in)
        form = LoginForm(
            context.clients,
            context.realm,
            login=below(self.sign_in, "login"),
            below_form=self.below,
            links=self.links,
            no_accounts=self.no_accounts,
            has_accounts=lambda: bool(users.accounts) or isinstance(passwords, StockChecker),
            providers={one.id: one.name for one in self.providers},
            passkeys=None if passkeys is None else passkeys.form,
        )

        send_back = None if views_of_binding is None else views_of_binding.send_back
        reader = SessionReader(context.realm, self.sign_in, form, send_back)

        def make_pages(portal: CoroutinePortal, resources: Sequence[ProtectedResource]) -> Mapping[str, Page]:
            views = LoginViews(
                portal,
                sessions,
                context.clients,
                realm=context.realm,
                secure=self.secure,
                sign_in=self.sign_in,
                after=self.after,
                form=form,
                resources=resources,
                providers=providers,
                binding=views_of_binding,
            )
            area = AccountArea(
                portal,
                sessions,
                context.clients,
                options=self.accounts,
                reader=reader,
                form=form,
                realm=context.realm,
                sign_in=self.sign_in,
                providers=providers,
                now=context.clock.seconds,
                passkeys=None if passkeys is None else passkeys.form,
            )
            return {
                **views.pages(),
                **({} if views_of_binding is None else views_of_binding.pages()),
                **self._make_pages_of(providers, views, portal, context),
                **({} if passkeys is None else passkeys.pages(views, portal)),
                **make_account_pages(
                    area, self.after, context, *([] if passkeys is None else [passkeys.make_task(area)])
                ),
                **self._make_reset_pages(context),
            }

        # The form checks passwords even if no rule has "session".
        checkers: tuple[Checker, ...] = (SessionChecker(sessions), passwords)
        if passkeys is not None:
            checkers = (*checkers, passkeys.checker)
        if not providers:
            return SchemeParts(checkers, reader=reader, make_pages=make_pages)
        from postd.auth.sign_in import AuthorizationCodeChecker  # noqa: PLC0415 - for providers alone
        from postd.protect.schemes.issuers import Issuers  # noqa: PLC0415 - for providers alone

        codes = AuthorizationCodeChecker([*providers.values()], context.throttle)
        background = Issuers({(one.url, one.id): one for one in providers.values()}, needed=False)
        return SchemeParts(
            (*checkers, codes),
            reader=reader,
            make_pages=make_pages,
            background=background,
            sign_out_origins=partial(sign_out_origins, providers),
        )

    def _make_reset_pages(self, context: Context) -> Mapping[str, Page]:
        """Return the pages on which users set a new password by a link."""
        if not self.accounts.change_password or context.writer is None:
            return {}
        now = context.clock.seconds
        resets = PasswordResets(context.store, context.users, context.writer, context.throttle, now=now)
        return ResetViews(resets, context.clients, realm=context.realm, sign_in=self.sign_in).pages()

    def _make_binding(self, context: Context) -> "SessionBinding | None":
        if self.bind == "no":
            return None
        from postd.auth.bound_session import SessionBinding  # noqa: PLC0415 - for bound sessions alone

        return SessionBinding(context.store, now=context.clock.seconds, times=self.binding)

    def _make_binding_views(self, sessions: Sessions, binding: "SessionBinding", context: Context) -> "BindingViews":
        from postd.protect.bound_session import BindingViews  # noqa: PLC0415 - for bound sessions alone

        return BindingViews(sessions, binding, context.clients, self.sign_in)

    def _make_pages_of(
        self, providers: "Mapping[str, Provider]", views: LoginViews, portal: CoroutinePortal, context: Context
    ) -> Mapping[str, Page]:
        if not providers:
            return {}
        from postd.protect.sign_in import SignInViews  # noqa: PLC0415 - for providers alone

        pages: dict[str, Page] = {}
        for provider in providers.values():
            pages |= SignInViews(provider, views, portal, context.clients, context.store, sign_in=self.sign_in).pages()
        return pages

    def secrets(self, deployment: Deployment) -> str | None:
        return super().secrets(deployment) or ("sessions" if self.providers else None)

    def problems(self, deployment: Deployment) -> Iterator[str]:
        if self.accounts.tokens and not deployment.rules_of("token") and not deployment.rules_of("open"):
            yield 'users may make tokens ([accounts]), but no access rule has "token"'
        if self.accounts.passkeys:
            yield from _passkey_problems(deployment)
        for one in self.providers:
            if one.policy.user_claim != USER_CLAIM:
                why = "another user may get the same value later: sub alone is never given twice"
                yield f"user_claim of sign_in {one.id} is {one.policy.user_claim}: {why}"

    @property
    def issuers_of_users(self) -> Collection[str]:
        return [one.issuer for one in self.providers]

    def check(self) -> NetworkCheck | None:
        if not self.providers:
            return None
        from postd.protect.schemes.providers import check_providers  # noqa: PLC0415 - for providers alone

        return partial(check_providers, self.providers)


def _passkey_problems(deployment: Deployment) -> Iterator[str]:
    """Yield why there is no button for passkeys."""
    url = deployment.public_url
    if url and find_rp_id(url) is None:
        why = "browsers have passkeys only with https and a host name, or at localhost"
        yield f"[accounts] passkeys: there is no button for them at public_url {url}: {why}"
    if not url and not deployment.is_local:
        yield "[accounts] passkeys: without public_url there is a button for them at localhost alone, without a proxy"
