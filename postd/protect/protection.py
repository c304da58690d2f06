"""Authentication for the resources of a program (`Protection`)."""

import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, Self, TypeVar, cast, get_args

from msgspec.structs import replace
from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials
from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - Twisted's
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import ICredentialFactory, IRequest
from twisted.web.resource import IResource, Resource

from postd.auth.accounts import find_provider_entry
from postd.auth.credentials import run_to_completion
from postd.auth.digest import NONCE_KEY
from postd.auth.identity import Identity
from postd.auth.personal_token import make_personal_token
from postd.auth.portal import CoroutinePortal
from postd.auth.user_file_editing import find_write_problem
from postd.auth.users import UserDirectory
from postd.defaults import (
    ACCOUNT_FAILURES,
    ADDRESS_FAILURES,
    DIGEST_ALGORITHMS,
    FAILURE_WINDOW_S,
    FAILURES,
    NONCE_LIFETIME_S,
    SESSION_IDLE_S,
    SESSION_LIFETIME_S,
    TOKEN_LIFETIME_S,
    TOKENS_PER_ACCOUNT,
)
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.http.errors import make_error_response
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.http.responses import Response, StreamedResponse
from postd.http.stock_request import adapt
from postd.http.views import Responding, ViewResource
from postd.protect.account.options import AccountOptions
from postd.protect.arguments import (
    all_of,
    among,
    check,
    check_path,
    check_reactor,
    choice,
    count,
    expected,
    flag,
    seconds,
    words,
)
from postd.protect.assembly import Authentication, FailureLimits, load_users
from postd.protect.bearer import METADATA_PATH
from postd.protect.credential_factory import StockCredentialFactory
from postd.protect.guard import Guard, PrivateGuard, ProtectedResource, Realm
from postd.protect.issuers import TrustedIssuer, check_issuers
from postd.protect.mounted import MountedResources
from postd.protect.pages import Page, Pages
from postd.protect.providers import TrustedProvider, check_providers
from postd.protect.schemes.basic import Basic
from postd.protect.schemes.bearer import Bearer
from postd.protect.schemes.digest import Digest
from postd.protect.schemes.form import Form, Secure
from postd.protect.schemes.interface import Scheme
from postd.protect.schemes.token import Token
from postd.protocol.bearer import decode_scope, has_issuer
from postd.protocol.digest import HASHES, check_realm
from postd.protocol.host import check_host, check_origin, check_proxy
from postd.protocol.label import check_label
from postd.protocol.password import normalize
from postd.protocol.personal_token import Access, hash_token
from postd.protocol.webauthn import find_rp_id
from postd.reactor import AnyReactor, ServiceClock, Work
from postd.scheme_names import SCHEMES, SchemeName
from postd.store.interface import LoginStore
from postd.store.opening import open_login_store

STORE_WAIT_MAX_S = 1.0
"""How long `start` waits for the store; after that, requests get 503 until it answers."""
RouteT = TypeVar("RouteT", bound=Callable[..., object])

Users = str | os.PathLike[str] | ICredentialsChecker | None


class Protection:
    """Protects resources of any `twisted.web.server.Site` with Basic, Digest, Bearer tokens, a form and other schemes.

    It is an asynchronous context manager. At its end, or when the reactor stops, it closes all connections, threads and
    timers that it has started::

        async with Protection(reactor, users="users") as protection:
            site = Site(protection.protect(app.resource(), "digest", "basic"))

    Args:
        reactor: the reactor of the program.
        realm: the protection space, in all challenges (RFC 9110 §11.5).
        users: the path of a user file, as `postd user` and `htpasswd -B` write it, or a `twisted.cred` checker of
            `IUsernamePassword`, which cannot be used for Digest because it has no H(A1).
        issuers: issuers of access tokens, made by `issuer`.
        store: the store of nonces, sessions and failed logins: `memory:`, `sqlite:PATH` or `redis://...`. Programs with
            the same store share them.
        digest_algorithms: `MD5` and `SHA-256`, in the order of the challenges.
        nonce_lifetime_s: the lifetime of a Digest nonce.
        failures: failed logins that are allowed for an account from one address within `window_s`; then 429.
        address_failures: failed logins that are allowed from one address.
        account_failures: failed logins that are allowed for an account.
        window_s: the time in which failures are counted.
        session_idle_s: a session ends when it was not used for this time.
        session_lifetime_s: a session ends at this age.
        sign_in: the path at which the application mounts `pages`.
        trusted_proxies: addresses, networks, or "unix", whose `X-Forwarded-For` and `X-Forwarded-Proto` are used.
        public_url: the origin of the site as clients see it; "" to derive it from each request.
        hosts: host names and addresses without ports; requests for another one get 421. Empty for any.
        secure: whether cookies are `Secure`: "always", "never", or "auto" if the client's connection is.
        providers: OpenID providers, made by `provider`, for which the form has buttons. Accounts are `ISSUER#NAME`.
        change_password: whether users of the user file may change their password at `account`, among `pages`.
        tokens: whether users may make personal access tokens there.
        token_lifetime_s: the longest lifetime of a token; None for no bound.
        passkeys: whether users may add passkeys there, and sign in with them.
        bind_sessions: whether sessions are bound to the device of a browser that can, over TLS.

    Attributes:
        reactor: that of the arguments.
        portal: the `twisted.cred.portal.Portal` that checks all credentials. Its realm may be replaced; the `mind` is
            the protected resource, a `postd.protect.guard.Protected`.
        factories: the credential factories of the schemes that use `Authorization`, by scheme name, for the stock
            `HTTPAuthSessionWrapper`. That of "token" decodes access tokens, too.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - all but one have their defaults
        self,
        reactor: AnyReactor,
        *,
        realm: str = "postd",
        users: Users = None,
        issuers: Sequence[TrustedIssuer] = (),
        store: str = "memory:",
        digest_algorithms: Sequence[str] = DIGEST_ALGORITHMS,
        nonce_lifetime_s: float = NONCE_LIFETIME_S,
        failures: int = FAILURES,
        address_failures: int = ADDRESS_FAILURES,
        account_failures: int = ACCOUNT_FAILURES,
        window_s: float = FAILURE_WINDOW_S,
        session_idle_s: float = SESSION_IDLE_S,
        session_lifetime_s: float = SESSION_LIFETIME_S,
        sign_in: str = "/",
        trusted_proxies: Sequence[str] = (),
        public_url: str = "",
        hosts: Sequence[str] = (),
        secure: Secure = "auto",
        providers: Sequence[TrustedProvider] = (),
        change_password: bool = False,
        tokens: bool = False,
        token_lifetime_s: float | None = TOKEN_LIFETIME_S,
        passkeys: bool = False,
        bind_sessions: bool = False,
    ) -> None:
        self.reactor = check_reactor(reactor)
        self._realm = check("realm", check_realm, realm)
        self._digest = Digest(
            among("digest_algorithms", digest_algorithms, HASHES), seconds("nonce_lifetime_s", nonce_lifetime_s)
        )
        self._form = Form(
            seconds("session_idle_s", session_idle_s),
            seconds("session_lifetime_s", session_lifetime_s),
            sign_in=check("sign_in", check_path, sign_in),
            secure=cast(Secure, choice("secure", secure, get_args(Secure))),
            providers=check_providers(providers),
            accounts=AccountOptions(
                flag("change_password", change_password),
                flag("tokens", tokens),
                math.inf if token_lifetime_s is None else seconds("token_lifetime_s", token_lifetime_s),
                flag("passkeys", passkeys),
            ),
            bind="offer" if flag("bind_sessions", bind_sessions) else "no",
        )
        self._clients = PeerResolver(
            all_of("trusted_proxies", check_proxy, trusted_proxies),
            check("public_url", check_origin, public_url),
            hosts=all_of("hosts", check_host, hosts),
        )
        if passkeys and self._clients.public_url and find_rp_id(self._clients.public_url) is None:
            raise ValueError(f"passkeys: there are none at public_url {public_url}: they need https and a host name")
        self._clock = ServiceClock(self.reactor)
        try:
            self._store = open_login_store(check("store", str, store), reactor=self.reactor)
        except ConfigError as error:
            raise ValueError(f"store: {error.why}") from None
        self._is_digest_used = False
        self._opening: Deferred[None] | None = None
        self._trigger: object = None
        self._is_store_started = self._is_stopped = False
        self._resources = MountedResources()
        self._mounted: list[tuple[Callable[[], Mapping[str, Page]], Mapping[str, Page]]] = []
        self.portal: CoroutinePortal = _Portal(self._check_running)
        self._own: list[Scheme] = []
        self._users, self._issuers = users, issuers
        self._limits = FailureLimits(failures, address_failures, account_failures, window_s)
        self._authentication = self._assemble(users, issuers, self._limits)
        # The wrapper takes the first factory with the name that a client sends: "Bearer" has two.
        described, in_force = ProtectedResource(self._clients), self._in_force()
        self.factories: Mapping[str, ICredentialFactory] = {
            "dpop" if factory.scheme == b"dpop" else name: StockCredentialFactory(factory, self._clients)
            for name, *more in (("digest",), ("token", "bearer"), ("bearer",), ("basic",))
            for factory in (self._authentication.credentials([name, *more], described)[0] if name in in_force else ())
        }

    def _assemble(
        self,
        users: Users,
        issuers: Sequence[TrustedIssuer],
        limits: FailureLimits,
        previous: Authentication | None = None,
    ) -> Authentication:
        trusted = check_issuers(issuers)
        for name in ("failures", "address_failures", "account_failures"):
            count(name, getattr(limits, name))
        seconds("window_s", limits.window_s)
        directory: UserDirectory | ICredentialsChecker | None
        if isinstance(users, str | os.PathLike):
            before = previous.context.users if previous is not None else None
            directory = _load_users(users, self._store, self._clock, before)
            if self._form.accounts.change_password:
                _warn_if_not_writable(directory.path)
        else:
            directory = users
            if self._form.accounts.change_password:
                raise ValueError("change_password: users must be the path of a user file")
        in_force = {
            "digest": isinstance(directory, UserDirectory),
            "bearer": bool(trusted),
            **dict.fromkeys(("session", "token"), directory is not None or bool(self._form.providers)),
        }
        if previous is not None:
            in_force["bearer"] |= any(isinstance(one, Bearer) and one not in self._own for one in previous.schemes)
        tokens = Token([one.issuer for one in self._form.providers])
        known: Sequence[Scheme] = (self._digest, Bearer(trusted), tokens, Basic(), self._form)
        usable = {one.name: one for one in known if in_force.get(one.name, directory is not None)}
        return Authentication(
            [*(usable[name] for name in SCHEMES if name in usable), *self._own],
            self._store,
            realm=self._realm,
            users=directory,
            limits=limits,
            clients=self._clients,
            clock=self._clock,
            reactor=self.reactor,
            users_changed=self._warn_of_missing_digest,
            portal=self.portal,
            mounted=self._resources,
            previous=previous,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store and start the background work. A `Protection` is started once.

        If the store does not answer within `STORE_WAIT_MAX_S`, connecting continues in the background.

        Raises:
            ValueError: the store refuses access, is not a store of postd, or was written by a newer version.
        """
        if self._opening is not None:
            raise RuntimeError("a Protection is started once")
        self._trigger = self.reactor.addSystemEventTrigger("before", "shutdown", self._stop_with_reactor)
        self._authentication.start()
        opening = self._opening = Deferred.fromCoroutine(self._open_store())
        waiting: Deferred[None] = Deferred()

        def opened(result: Failure | None) -> None:
            if not waiting.called:
                waiting.callback(result)
            elif result is not None and not result.check(CancelledError):
                self._log.error("store: cannot be used: {why}", why=result.getErrorMessage())

        opening.addBoth(opened)
        try:
            with suppress(TimeoutError):
                await waiting.addTimeout(STORE_WAIT_MAX_S, self.reactor)
        except StoreRefusedError as error:
            await self.stop()
            raise ValueError(f"store: {error}") from None
        except Exception:
            if not self._is_stopped:
                await self.stop()
                raise

    async def _open_store(self) -> None:
        with suppress(StoreUnavailableError):  # it is waited for
            await self._authentication.threads.run(self._store.prepare)
        self._is_store_started = True
        await self._store.start()
        await self._authentication.purge_expired()
        if "digest" in self.factories:
            with suppress(StoreUnavailableError):
                # A stock wrapper cannot wait for it (`postd.protect.credential_factory`).
                await self._store.key(NONCE_KEY)

    async def stop(self) -> None:
        """Close the store and stop the background work; later requests get 503. A second call does nothing."""
        if self._opening is None or self._is_stopped:
            return
        self._is_stopped = True
        if self._trigger is not None:
            self.reactor.removeSystemEventTrigger(self._trigger)
        self._opening.cancel()
        self._authentication.stop()
        try:
            if self._is_store_started:  # else it was refused, and its thread would be waited for without end
                await self._store.stop()
        finally:
            self._authentication.end_waits()

    def _check_running(self) -> None:
        if self._opening is None:
            self._log.warn("start() has not been called: requests with credentials get 503")
        if self._opening is None or self._is_stopped:
            raise StoreUnavailableError("the Protection is not started, or was stopped")

    def _stop_with_reactor(self) -> Deferred[None]:
        self._trigger = None
        return Deferred.fromCoroutine(self.stop())

    async def reload(  # noqa: PLR0913 - all have their defaults
        self,
        *,
        users: Users = None,
        issuers: Sequence[TrustedIssuer] | None = None,
        failures: int | None = None,
        address_failures: int | None = None,
        account_failures: int | None = None,
        window_s: float | None = None,
    ) -> None:
        """Change some arguments of a running `Protection`, and read the files of users and issuers again.

        Sessions, nonces, failure counts and the keys of issuers stay, and so do all protected resources::

            await protection.reload(issuers=[issuer(url, audience="https://app.example")], failures=5)

        Args:
            users: another user file in place of the present one; a checker in place of a checker.
            issuers: all issuers from now on.
            failures: as for `Protection`; None for no change.
            address_failures: as for `Protection`; None for no change.
            account_failures: as for `Protection`; None for no change.
            window_s: as for `Protection`; None for no change.

        Raises:
            ValueError: an argument or a file is invalid; nothing has changed.
            RuntimeError: the `Protection` does not run.
        """
        if self._opening is None or self._is_stopped:
            raise RuntimeError("a Protection is reloaded while it runs")
        counts = {"failures": failures, "address_failures": address_failures, "account_failures": account_failures}
        given = {name: value for name, value in {**counts, "window_s": window_s}.items() if value is not None}
        limits = replace(self._limits, **given)
        users = self._users if users is None else users
        if (users is None, isinstance(users, str | os.PathLike)) != (self._users is None, self._has_file):
            raise ValueError("users: a reload replaces a path by a path, and a checker by a checker")
        issuers = self._issuers if issuers is None else issuers
        self._authentication = self._assemble(users, issuers, limits, self._authentication)
        self._users, self._issuers, self._limits = users, issuers, limits
        self._authentication.start()
        for guard, (schemes, described) in self._resources.guards.items():
            guard.use(*self._authentication.credentials(schemes, described))
        for make, pages in self._mounted:
            made = make()
            for name, page in pages.items():
                page.views = made[name].views if name in made else {}

    def protect(
        self,
        resource: IResource,
        *schemes: SchemeName | Scheme,
        users: Sequence[str] = (),
        read_scope: str = "",
        write_scope: str = "",
    ) -> IResource:
        """Return a resource that requires authentication for `resource` and all its children.

        Successful responses get `Cache-Control: private`, unless the resource sets that field::

            root.putChild(b"staff", protection.protect(staff, "digest", "bearer", users=["alice"]))

        Args:
            resource: the resource to protect. `postd.protect.identity` returns the client of a request.
            schemes: one or more of "basic", "digest", "session", "bearer", "token" and schemes of the application's
                own; credentials of any one are sufficient.
            users: the users who have access; other users get 403. Empty for all. The user of an issuer or a provider is
                `ISSUER#NAME`.
            read_scope: the scope that a token needs for safe methods (RFC 9110 §9.2.1), words separated by spaces; ""
                for the `read_scope` of its issuer, and "read" for a personal access token.
            write_scope: the scope that a token needs for other methods, likewise.

        Raises:
            ValueError: an argument is invalid; the message names it.
        """
        if not IResource.providedBy(resource):
            raise expected("resource", "an IResource, such as `app.resource()` of Klein", resource)
        return self._guard(resource, schemes, users, read_scope, write_scope)

    def required(
        self, *schemes: SchemeName | Scheme, users: Sequence[str] = (), read_scope: str = "", write_scope: str = ""
    ) -> Callable[[RouteT], RouteT]:
        """Return a decorator that protects one route of a Klein application, as `protect` does a resource::

            @app.route("/staff")
            @protection.required("digest", users=["alice"])
            def staff(request):
                return f"Hello {identity(request).name}"

        Raises:
            ValueError: an argument is invalid; the message names it.
        """
        guard = self._guard(Resource(), schemes, users, read_scope, write_scope)

        def decorate(view: RouteT) -> RouteT:
            @wraps(view)
            async def enter_and_view(*arguments: Any, **named: Any) -> object:
                request = adapt(next(one for one in arguments if IRequest.providedBy(one)))
                entered = list[Request]()

                async def enter(request: Request) -> None:
                    entered.append(request)

                # A login continues when the client disconnects: otherwise its failure would not be counted.
                response = await run_to_completion(_try(request, guard.enter(request, enter)))
                if not entered:
                    return ViewResource(partial(_return, response))  # None: a resource of the realm has sent it
                result = view(*arguments, **named)
                return await result if isinstance(result, Awaitable) else result

            return cast(RouteT, enter_and_view)

        return decorate

    def _guard(
        self,
        resource: IResource,
        schemes: Sequence[SchemeName | Scheme],
        users: Sequence[str],
        read_scope: str,
        write_scope: str,
    ) -> Guard:
        if not schemes:
            raise expected("schemes", f"one or more of {', '.join(SCHEMES)}", schemes)
        for name, scope in (("read_scope", read_scope), ("write_scope", write_scope)):
            check(name, decode_scope, scope)
        names = words("users", users, may_be_empty=True)
        self._use(schemes)
        if "digest" in schemes and not self._is_digest_used:
            self._is_digest_used = True
            self._warn_of_missing_digest()
        described = ProtectedResource(self._clients, "", read_scope, write_scope)
        accounts = frozenset(normalize(name) if self._has_file and not has_issuer(name) else name for name in names)
        guard = self._authentication.protect(resource, schemes, described, accounts, guard=PrivateGuard)
        self._resources.guards[guard] = schemes, described
        return guard

    @property
    def _has_file(self) -> bool:
        return isinstance(self._users, str | os.PathLike)

    def _use(self, schemes: Sequence[SchemeName | Scheme]) -> None:
        """Check that schemes can be used; put the schemes in force that an application gives as values."""
        own = list[Scheme]()
        for scheme in schemes:
            self._check_scheme(scheme)
            if isinstance(scheme, Scheme) and scheme not in (*self._authentication.schemes, *own):
                own.append(scheme)
        self._authentication.add(own)
        self._own += own

    def _check_scheme(self, scheme: SchemeName | Scheme) -> None:
        if isinstance(scheme, Scheme):
            kind, name = type(scheme), getattr(scheme, "name", None)
            if name in [*SCHEMES] and kind not in (Basic, Bearer, Digest, Form, Token):
                raise ValueError(f"schemes: {name} is the name of a scheme of postd")
            if not isinstance(name, str) or not name or kind.make is Scheme.make:
                raise ValueError(f"schemes: {kind.__name__} needs a name and a method make")
        elif scheme in [*SCHEMES]:  # which may not be hashable
            name = scheme
        else:
            raise ValueError(f"schemes: {scheme!r} is none of {', '.join(SCHEMES)}")
        if (isinstance(scheme, str) or scheme.uses_accounts) and name not in self._in_force():
            if name == "bearer":
                raise ValueError("schemes: bearer needs issuers")
            if self._users is None:
                raise ValueError(
                    f"schemes: {name} needs users{' or providers' if name in {'session', 'token'} else ''}"
                )
            if name == "digest":
                raise ValueError("schemes: digest needs a user file: a checker has no H(A1)")

    def _in_force(self) -> set[str]:
        return {scheme.name for scheme in self._authentication.schemes}

    def _warn_of_missing_digest(self) -> None:
        """Warn of users that cannot sign in by Digest, where a resource is protected by it."""
        accounts = self._authentication.context.users.accounts
        if self._is_digest_used and accounts:
            for problem in self._digest.account_problems(accounts, self._realm):
                self._log.warn("user file: {problem}", problem=problem)

    async def add_token(
        self, account: str, *, access: Access = "read", label: str = "", lifetime_s: float | None = None
    ) -> str:
        """Make a personal access token for the scheme "token", and return it; the store has a hash of it only::

            token = await protection.add_token("alice", access="write", label="CI")

        Args:
            account: a user of the user file, or `ISSUER#NAME` of a provider; with a checker as `users`, any name.
            access: what the token permits: "read" for safe methods, "write" for all.
            label: a text for lists of tokens.
            lifetime_s: at most `token_lifetime_s`, which is the default.

        Raises:
            ValueError: an argument is invalid, there is no such account, or it has as many tokens as an account may.
            StoreUnavailableError: the token could not be stored.
        """
        self._check_running()
        name = check("account", str, account)
        if self._has_file and not has_issuer(name):
            name = normalize(name)
        policies = [one.policy for one in self._form.providers]
        entry = find_provider_entry(name, policies) or self._authentication.context.accounts.entry(name)
        if entry is None or not name:
            raise ValueError(f"account: there is no account {account!r}")
        longest = self._form.accounts.token_lifetime_s
        lifetime_s = longest if lifetime_s is None else seconds("lifetime_s", lifetime_s)
        if lifetime_s > longest:
            raise ValueError(f"lifetime_s: token_lifetime_s allows {longest:g}, got {lifetime_s:g}")
        text, token = make_personal_token(
            name,
            entry,
            access=cast(Access, choice("access", access, get_args(Access))),
            label=check("label", check_label, label),
            now=self._clock.seconds(),
            lifetime_s=lifetime_s,
        )
        if not await self._store.add_token(hash_token(text), token):
            raise ValueError(f"account: {account!r} has {TOKENS_PER_ACCOUNT} tokens already")
        return text

    def pages(self, after: str = "/", *, scheme: Scheme | None = None) -> IResource:
        """Return the sign-in form, with `login` and `logout` below it, to mount at the path `sign_in`::

            root.putChild(b"sign-in", protection.pages(after="/app/"))

        Args:
            after: the path of the page to redirect to after a login.
            scheme: a scheme of the application's own, for the pages of that one in place of the form.

        Raises:
            ValueError: there are neither users nor providers, the path cannot be used, or the scheme cannot be used or
                has no pages.
        """
        if scheme is not None:
            if not isinstance(scheme, Scheme):
                raise expected("scheme", "a Scheme", scheme)
            self._check_scheme(scheme)
            if not self._authentication.pages_of(scheme):
                raise ValueError(f"scheme: {scheme.name} has no pages")
            self._use([scheme])
            return Pages(self._mount(lambda: self._authentication.pages_of(scheme)))
        form = replace(self._form, after=check("after", check_path, after))
        if form.name not in self._in_force():
            raise ValueError("pages: the form needs users or providers")
        return Pages(self._mount(lambda: self._authentication.pages_of(form)))

    def metadata(self) -> IResource:
        """Return the metadata of the resource server (RFC 9728), for `/.well-known/oauth-protected-resource`.

        After this call, Bearer challenges name the URL of the metadata. Below it is the metadata of each resource that
        the site has at a path of its own (not below an application of Klein)::

            well_known.putChild(b"oauth-protected-resource", protection.metadata())

        Raises:
            ValueError: there are no issuers.
        """
        pages = self._mount(self._make_metadata)
        if not pages:
            raise ValueError("metadata: it needs issuers")
        return pages[METADATA_PATH[1:]]

    def _make_metadata(self) -> Mapping[str, Page]:
        bearer = next((scheme for scheme in self._authentication.schemes if isinstance(scheme, Bearer)), None)
        return self._authentication.pages_of(bearer) if bearer is not None else {}

    def _mount(self, make: Callable[[], Mapping[str, Page]]) -> Mapping[str, Page]:
        """Return pages, which a reload makes again."""
        pages = make()
        self._mounted.append((make, pages))
        return pages


async def _try(request: Request, responding: Responding) -> Response | StreamedResponse | None:
    """Return the response of a coroutine, or that of its error."""
    try:
        return await responding
    except Exception as error:  # noqa: BLE001 - each has a response
        return make_error_response(request, error)


async def _return(made: Response | StreamedResponse | None, _request: Request) -> Response | StreamedResponse | None:
    return made


class _Portal(CoroutinePortal):
    """The portal of a `Protection`, by which guards and form sign clients in while it runs."""

    def __init__(self, check_running: Callable[[], None]) -> None:
        super().__init__(Realm())
        self._check_running = check_running

    def authenticate(self, credentials: ICredentials) -> Work[Identity]:
        self._check_running()  # otherwise a token could start a fetch of keys after `stop`
        return super().authenticate(credentials)


_log = Logger()


def _warn_if_not_writable(path: str) -> None:
    problem = find_write_problem(Path(path))
    if problem:
        _log.warn("{path}: {problem}; no password can be changed", path=path, problem=problem)


def _load_users(
    path: str | os.PathLike[str], store: LoginStore, clock: ServiceClock, previous: UserDirectory | None
) -> UserDirectory:
    """Return the accounts of a user file."""
    if not os.fspath(path):
        raise expected("users", "the path of a user file", path)
    absolute = os.path.abspath(path)  # noqa: PTH100 - of text; twistd changes the folder later
    try:
        directory = load_users(absolute, store, clock, previous)
    except ConfigError as error:
        raise ValueError(f"users: {error}") from None
    if not directory.accounts:
        state = "the user file does not exist yet" if directory.accounts is None else "has no users"
        _log.warn("{path}: {state}: no user can sign in", path=absolute, state=state)
    return directory
