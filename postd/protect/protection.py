"""Authentication for the resources of a program (`Protection`)."""

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials
from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - Twisted's
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import ICredentialFactory
from twisted.web.resource import IResource
from zope.interface import Interface

from postd.auth.background_work import Upkeep, end_sessions
from postd.auth.checker import Checker
from postd.auth.digest import NONCE_KEY, DigestChecker, NonceRegistry, describe_missing_digest
from postd.auth.identity import Identity
from postd.auth.password import HashThreads, PasswordChecker, PasswordVerifier
from postd.auth.portal import CoroutinePortal
from postd.auth.session import Fingerprints, SessionChecker, Sessions
from postd.auth.stock_checker import AnyAccount, StockChecker
from postd.auth.throttle import Throttle
from postd.auth.users import UserDirectory
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.http.responses import Response
from postd.protect.arguments import among, check, check_path, check_reactor, count, expected, seconds, words
from postd.protect.basic import BasicCredentialFactory
from postd.protect.bearer import AcceptedTokens
from postd.protect.cookie import SessionReader
from postd.protect.credential_factory import StockCredentialFactory
from postd.protect.digest import DigestCredentialFactory
from postd.protect.guard import CredentialReader, FactoryMaker, PrivateGuard, ProtectedResource, Realm
from postd.protect.issuers import TrustedIssuer, make_issuers
from postd.protect.login import LoginViews
from postd.protect.pages import SignInPages, make_page
from postd.protocol.bearer import decode_scope, has_issuer
from postd.protocol.digest import HASHES, check_realm
from postd.protocol.host import check_proxy
from postd.protocol.password import normalize
from postd.reactor import ServiceClock
from postd.store.opening import open_login_store

STORE_WAIT_MAX_S = 1.0
"""How long `start` waits for the store; after that, requests get 503 until it answers."""

SCHEMES = ("digest", "bearer", "basic", "session")


class Protection:
    """Protects resources of any `twisted.web.server.Site` with Basic, Digest, Bearer tokens and a form.

    It is an asynchronous context manager: `async with Protection(reactor, users="users") as protection`. At its end, or
    when the reactor stops, it closes all connections, threads and timers that it has started.

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

    Attributes:
        portal: the `twisted.cred.portal.Portal` that checks all credentials. Its realm may be replaced; the `mind` is
            the protected resource, a `postd.protect.guard.Protected`.
        factories: the credential factories of the schemes that use `Authorization`, by scheme name, for the stock
            `HTTPAuthSessionWrapper`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - all but one have their defaults
        self,
        reactor: Any,
        *,
        realm: str = "postd",
        users: str | os.PathLike[str] | ICredentialsChecker | None = None,
        issuers: Sequence[TrustedIssuer] = (),
        store: str = "memory:",
        digest_algorithms: Sequence[str] = ("SHA-256", "MD5"),
        nonce_lifetime_s: float = 300,
        failures: int = 10,
        address_failures: int = 50,
        account_failures: int = 100,
        window_s: float = 300,
        session_idle_s: float = 1800,
        session_lifetime_s: float = 43200,
        sign_in: str = "/",
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        reactor = self._reactor = check_reactor(reactor)
        self._realm = check("realm", check_realm, realm)
        self._sign_in = check("sign_in", check_path, sign_in)
        proxies = words("trusted_proxies", trusted_proxies, may_be_empty=True)
        self._clients = PeerResolver([check("trusted_proxies", check_proxy, one) for one in proxies])
        clock = ServiceClock(reactor)
        try:
            self._store = open_login_store(check("store", str, store), reactor=reactor)
        except ConfigError as error:
            raise ValueError(f"store: {error.why}") from None
        throttle = Throttle(
            self._store,
            failures=count("failures", failures),
            address_failures=count("address_failures", address_failures),
            account_failures=count("account_failures", account_failures),
            window_s=seconds("window_s", window_s),
            clock=clock,
        )
        nonces = NonceRegistry(
            self._store,
            lifetime_s=seconds("nonce_lifetime_s", nonce_lifetime_s),
            now=clock.seconds,
        )
        self._ending = [throttle.wake_all]  # callbacks that end all waits, called once the store is stopped
        self._threads = HashThreads(reactor)
        verifier = PasswordVerifier(self._threads, now=clock.seconds)
        self._makers: dict[str, FactoryMaker] = {}  # in the order of the challenges
        self._readers: dict[str, CredentialReader] = {}
        checkers: list[Checker] = []
        self._algorithms = among("digest_algorithms", digest_algorithms, HASHES)
        self._directory = UserDirectory("")
        accounts: Fingerprints = self._directory
        self._has_file = isinstance(users, str | os.PathLike)
        if isinstance(users, str | os.PathLike):
            accounts = self._directory = _load_users(users, changed=partial(end_sessions, self._store))
            checkers.append(PasswordChecker(self._directory, verifier, throttle, store=self._store))
            checkers.append(DigestChecker(self._directory, nonces, throttle, realm=self._realm))
            self._makers["digest"] = lambda resource: [
                DigestCredentialFactory(self._realm, self._algorithms, nonces, resource.clients)
            ]
        elif users is not None:
            accounts = AnyAccount()
            checkers.append(stock := StockChecker(users, throttle, clock=clock))
            self._ending.append(stock.stop)
        self._issuers = make_issuers(issuers, reactor)
        self._ending += [one.stop for one in self._issuers]
        self._tokens = AcceptedTokens(self._realm, self._issuers)
        if self._issuers:
            from postd.auth.bearer import BearerChecker  # noqa: PLC0415 - as in postd.protect.issuers

            checkers.append(BearerChecker(self._issuers, throttle=throttle, store=self._store))
            self._makers["bearer"] = self._tokens.make_factories
        self._sessions = Sessions(
            self._store,
            accounts,
            idle_s=seconds("session_idle_s", session_idle_s),
            lifetime_s=seconds("session_lifetime_s", session_lifetime_s),
            now=clock.seconds,
        )
        if users is not None:
            checkers.append(SessionChecker(self._sessions))
            self._makers["basic"] = lambda resource: [BasicCredentialFactory(self._realm, resource.clients)]
            self._readers["session"] = SessionReader(self._realm, self._sign_in)
        self.portal: CoroutinePortal = _Portal(checkers, self._check_running)
        self.factories: Mapping[str, ICredentialFactory] = {
            factory.scheme.decode("ascii"): StockCredentialFactory(factory, self._clients)
            for make in self._makers.values()
            for factory in make(ProtectedResource(self._clients))
        }
        self._is_digest_used = False
        self._upkeep = Upkeep(
            self._directory, verifier, self._store, clock=clock, reloaded=self._warn_of_missing_digest
        )
        self._opening: Deferred[None] | None = None
        self._trigger: Any = None
        self._is_store_started = self._is_stopped = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store and start the background work. A `Protection` is started once.

        If the store does not answer within `STORE_WAIT_MAX_S`, connecting continues in the background.

        Raises:
            ValueError: the store refuses access, is not one of postd, or was written by a newer version.
        """
        if self._opening is not None:
            raise RuntimeError("a Protection is started once")
        self._trigger = self._reactor.addSystemEventTrigger("before", "shutdown", self._stop_with_reactor)
        self._threads.start()
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
                await waiting.addTimeout(STORE_WAIT_MAX_S, self._reactor)
        except StoreRefusedError as error:
            await self.stop()
            raise ValueError(f"store: {error}") from None
        except Exception:
            if not self._is_stopped:
                await self.stop()
                raise
        if not self._is_stopped:  # `stop` may have been called since
            self._upkeep.start()
            for one in self._issuers:
                one.start()

    async def _open_store(self) -> None:
        with suppress(StoreUnavailableError):  # it is waited for
            await self._threads.run(self._store.prepare)
        self._is_store_started = True
        await self._store.start()
        await self._upkeep.purge_expired()
        if "digest" in self._makers:
            with suppress(StoreUnavailableError):
                # A stock wrapper cannot wait for it (`postd.protect.credential_factory`).
                await self._store.key(NONCE_KEY)

    async def stop(self) -> None:
        """Close the store and stop the background work; later requests get 503. A second call does nothing."""
        if self._opening is None or self._is_stopped:
            return
        self._is_stopped = True
        if self._trigger is not None:
            self._reactor.removeSystemEventTrigger(self._trigger)
        self._upkeep.stop()
        self._opening.cancel()
        self._threads.stop()
        try:
            if self._is_store_started:  # else it was refused, and its thread would be waited for without end
                await self._store.stop()
        finally:
            for end in self._ending:
                end()

    def _check_running(self) -> None:
        if self._opening is None:
            self._log.warn("start() has not been called: requests with credentials get 503")
        if self._opening is None or self._is_stopped:
            raise StoreUnavailableError("the Protection is not started, or was stopped")

    def _stop_with_reactor(self) -> Deferred[None]:
        self._trigger = None
        return Deferred.fromCoroutine(self.stop())

    def protect(
        self,
        resource: IResource,
        *schemes: str,
        users: Sequence[str] = (),
        read_scope: str = "",
        write_scope: str = "",
    ) -> IResource:
        """Return a resource that requires authentication for `resource` and all its children.

        Successful responses get `Cache-Control: private`, unless the resource sets that field.

        Args:
            resource: the resource to protect. `postd.protect.identity` returns the client of a request.
            schemes: one or more of "basic", "digest", "session" and "bearer"; credentials of any one are sufficient.
            users: the users who have access; others get 403. Empty for all. The owner of a token is `ISSUER#NAME`.
            read_scope: the scope that a token needs for safe methods (RFC 9110 §9.2.1), words separated by spaces; ""
                for the `read_scope` of its issuer.
            write_scope: the scope that a token needs for other methods, likewise.

        Raises:
            ValueError: an argument is invalid; the message names it.
        """
        if not IResource.providedBy(resource):
            raise expected("resource", "an IResource, such as `app.resource()` of Klein", resource)
        if not schemes:
            raise expected("schemes", f"one or more of {', '.join(SCHEMES)}", schemes)
        for scheme in schemes:
            if scheme not in SCHEMES:
                raise ValueError(f"schemes: {scheme!r} is none of {', '.join(SCHEMES)}")
            if scheme not in self._makers and scheme not in self._readers:
                raise ValueError(f"schemes: {self._why_unusable(scheme)}")
        for name, scope in (("read_scope", read_scope), ("write_scope", write_scope)):
            check(name, decode_scope, scope)
        names = words("users", users, may_be_empty=True)
        if "digest" in schemes and not self._is_digest_used:
            self._is_digest_used = True
            self._warn_of_missing_digest()
        described = ProtectedResource(self._clients, "", read_scope, write_scope)
        return PrivateGuard(
            self.portal,
            [factory for name, make in self._makers.items() if name in schemes for factory in make(described)],
            resource,
            readers=[reader for name, reader in self._readers.items() if name in schemes],
            clients=self._clients,
            users=frozenset(normalize(name) if self._has_file and not has_issuer(name) else name for name in names),
        )

    def _warn_of_missing_digest(self) -> None:
        accounts = self._directory.accounts
        if self._is_digest_used and accounts:
            problem = describe_missing_digest(accounts, self._realm, self._algorithms)
            if problem is not None:
                self._log.warn("user file: {problem}", problem=problem)

    def _why_unusable(self, scheme: str) -> str:
        if scheme == "bearer":
            return "bearer needs issuers"
        if "basic" not in self._makers:
            return f"{scheme} needs users"
        return "digest needs a user file: a checker has no H(A1)"

    def pages(self, after: str = "/") -> IResource:
        """Return the sign-in form, with `login` and `logout` as children, to mount at the path `sign_in`.

        Args:
            after: the path of the page to redirect to after a login.

        Raises:
            ValueError: there are no users, or the path cannot be used.
        """
        if "session" not in self._readers:
            raise ValueError("pages: the form needs users")
        path = check("after", check_path, after)
        views = LoginViews(
            self.portal, self._sessions, self._clients, realm=self._realm, sign_in=self._sign_in, after=path
        )
        return SignInPages(views)

    def metadata(self) -> IResource:
        """Return the metadata of the resource server (RFC 9728), for `/.well-known/oauth-protected-resource`.

        After this call, Bearer challenges name the URL of the metadata.

        Raises:
            ValueError: there are no issuers.
        """
        if not self._issuers:
            raise ValueError("metadata: it needs issuers")
        self._tokens.with_metadata = True
        origin = ProtectedResource(self._clients)

        async def show(request: Request) -> Response:
            return self._tokens.describe(origin, request)

        return make_page({b"GET": show})


class _Portal(CoroutinePortal):
    """The portal of a `Protection`, by which guards and form sign clients in while it runs."""

    def __init__(self, checkers: Sequence[Checker], check_running: Callable[[], None]) -> None:
        super().__init__(Realm(), checkers)
        self._check_running = check_running

    def authenticate(self, credentials: ICredentials) -> Coroutine[Any, Any, Identity]:
        self._check_running()
        return super().authenticate(credentials)

    def sign_in(
        self, credentials: ICredentials, mind: object, interface: type[Interface]
    ) -> Coroutine[Any, Any, tuple[Identity, Any]]:
        self._check_running()  # otherwise a token could start a fetch of keys after `stop`
        return super().sign_in(credentials, mind, interface)


_log = Logger()


def _load_users(path: str | os.PathLike[str], changed: Callable[[Mapping[str, bytes | None]], None]) -> UserDirectory:
    """Return the accounts of a user file, which `UserDirectory` can do without."""
    if not os.fspath(path):
        raise expected("users", "the path of a user file", path)
    absolute = os.path.abspath(path)  # noqa: PTH100 - of text; twistd changes the folder later
    directory = UserDirectory(absolute, changed=changed)
    try:
        directory.load()
    except ConfigError as error:
        raise ValueError(f"users: {error}") from None
    if not directory.accounts:
        state = "the user file does not exist yet" if directory.accounts is None else "has no users"
        _log.warn("{path}: {state}: no user can sign in", path=absolute, state=state)
    return directory
