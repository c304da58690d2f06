"""Who is let in: the settings of it, made into the parts of `postd.auth` and `postd.web` that work together."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypedDict

from msgspec import Struct
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.auth.bearer import BearerChecker, Issuer
from postd.auth.digest import DigestChecker, NonceRegistry
from postd.auth.password import HashThreads, PasswordChecker, PasswordVerifier
from postd.auth.session import SessionChecker, Sessions
from postd.auth.throttle import Throttle
from postd.auth.users import WATCH_INTERVAL_S, UserDirectory
from postd.daemon.issuers import make_issuer
from postd.daemon.settings_checks import find_problems
from postd.errors import StoreUnavailableError
from postd.monitoring.health import OK
from postd.monitoring.tally import Numbers
from postd.reactor import IReactor
from postd.settings.schema import Settings
from postd.store.interface import Store
from postd.web.basic import BasicCredentialFactory
from postd.web.bearer import BearerCredentialFactory
from postd.web.digest import DigestCredentialFactory
from postd.web.guard import Realm
from postd.web.peer import Clients
from postd.web.resource_metadata import ResourceMetadata
from postd.web.routes import Access

PURGE_EVERY_S = 10
"""How often what has expired is removed from the store."""


class _ThrottleLimits(TypedDict):
    failures: int
    address_failures: int
    account_failures: int
    window_s: float


class _Remembering(Struct, frozen=True):
    """What stays when settings change: who has just signed in is not to pay for it, nor who guesses to gain by it."""

    threads: HashThreads
    verifier: PasswordVerifier
    throttle: Throttle


class Authentication:
    """The portal with all that stands around it.

    Args:
        settings: those of users, schemes, sessions, the throttle and proxies.
        store: keeps what must be remembered of logins.
        reactor: its clock and its threads.
        threads: where passwords are verified, if it is to be elsewhere than in threads of its own.
        issuers_where: names the tables of issuers in messages.
        before: those whose place these take when they are started, with other settings.

    Attributes:
        access: what guards need.
        running, settings, users, issuers, kept: for those that come in their place.

    Raises:
        ConfigError: the user file, or a file of an issuer's settings, cannot be used.
    """

    _log = Logger()
    running = False

    def __init__(  # noqa: PLR0913 - all but three have their defaults
        self,
        settings: Settings,
        store: Store,
        *,
        reactor: IReactor,
        threads: HashThreads | None = None,
        issuers_where: str = "bearer",
        before: "Authentication | None" = None,
    ) -> None:
        self.settings = settings
        self._store = store
        self._reactor = reactor
        self._before = before if before is not None and before.running else None
        now = reactor.seconds
        if before is not None and before.settings.users == settings.users:
            self.users: UserDirectory = before.users
            self.users.check()
        else:
            self.users = UserDirectory(settings.users, changed=partial(_end_sessions, store))
            self.users.load()
        self.kept: _Remembering = before.kept if before else _make_kept(settings, store, threads, reactor)
        self._loops = [LoopingCall(self._watch_users), LoopingCall(self._purge)]
        for loop in self._loops:
            loop.clock = reactor
        nonces = NonceRegistry(store, lifetime_s=settings.digest.nonce_lifetime_s, now=now)
        sessions = Sessions(
            store, self.users, idle_s=settings.session.idle_s, lifetime_s=settings.session.lifetime_s, now=now
        )
        clients = Clients(settings.trusted_proxies, settings.public_url)
        algorithms = tuple(dict.fromkeys(settings.digest.algorithms))
        self.issuers = [
            make_issuer(one, where=f"{issuers_where}[{number}]", reactor=reactor)
            for number, one in enumerate(settings.bearer)
        ]
        checkers = (
            DigestChecker(self.users, nonces, self.kept.throttle, realm=settings.realm),
            PasswordChecker(self.users, self.kept.verifier, self.kept.throttle, store=store),
            SessionChecker(sessions),
            BearerChecker(self.issuers, throttle=self.kept.throttle, now=now),
        )
        self.access = Access(
            portal=Portal(Realm(), checkers),
            # The order of the challenges (contract 4): clients that know only one look at the first or the last.
            factories=(
                DigestCredentialFactory(settings.realm, algorithms, nonces, clients),
                BearerCredentialFactory(settings.realm, clients, with_metadata=bool(self.issuers)),
                BasicCredentialFactory(settings.realm, clients),
            ),
            sessions=sessions,
            clients=clients,
            realm=settings.realm,
            secure=settings.session.secure,
            metadata=_make_metadata(self.issuers, clients),
        )

    def start(self) -> None:
        self.running = True
        before, self._before = self._before, None
        if before is None:
            self.kept.threads.start()
        else:
            self._take_over(before)
        self._warn()
        for issuer in self.issuers:
            issuer.start()
        for loop, every_s in zip(self._loops, (WATCH_INTERVAL_S, PURGE_EVERY_S), strict=True):
            loop.start(every_s, now=False).addErrback(self._log_failure)

    def _take_over(self, before: "Authentication") -> None:
        before.rest()
        self.kept.throttle.set_limits(**_throttle_limits(self.settings))
        known = {
            (one.issuer, one.jwks_uri): had for one, had in zip(before.settings.bearer, before.issuers, strict=True)
        }
        for one, issuer in zip(self.settings.bearer, self.issuers, strict=True):
            had = known.get((one.issuer, one.jwks_uri))
            if had is not None:
                issuer.keys.copy_keys(had.keys)
        self._watch_users()

    def stop(self) -> None:
        self.rest()
        for issuer in self.issuers:
            issuer.stop()
        self.kept.threads.stop()

    def rest(self) -> None:
        """Leave what goes on to others; those whom it has begun to let in, it lets in."""
        self.running = False
        for loop in self._loops:
            if loop.running:
                loop.stop()
        for issuer in self.issuers:
            issuer.stop_refreshing()

    @property
    def states(self) -> dict[str, str]:
        """How it is with what logins need from elsewhere (`postd.monitoring.health.Report`)."""
        return {
            f"bearer {issuer.url}": OK if issuer.keys.current is not None else "no keys yet" for issuer in self.issuers
        }

    @property
    def numbers(self) -> Numbers:
        """How many keys are held, and how old they are."""
        numbers = Numbers()
        for issuer in self.issuers:
            held = issuer.keys.current
            numbers.extremes["keys", issuer.url] = 0 if held is None else len(held.keys)
            numbers.extremes["keys_age", issuer.url] = issuer.keys.age_s
        return numbers

    def _log_failure(self, failure: Failure) -> None:
        self._log.failure("users are not watched, or the store is not purged, any more", failure=failure)

    def _watch_users(self) -> None:
        if self.users.refresh():
            self.kept.verifier.clear_cache()
            self._warn()

    def _purge(self) -> Deferred[None]:
        purging = Deferred.fromCoroutine(self._store.purge_expired(now=self._reactor.seconds()))
        return purging.addErrback(lambda failure: failure.trap(StoreUnavailableError))

    def _warn(self) -> None:
        """Tell the log what the settings ask for and the users cannot do."""
        for problem in find_problems(self.settings, self.users.accounts):
            self._log.warn("{problem}", problem=problem)


def _make_kept(settings: Settings, store: Store, threads: HashThreads | None, reactor: IReactor) -> _Remembering:
    threads = threads or HashThreads(reactor)
    throttle = Throttle(store, **_throttle_limits(settings), clock=reactor)
    return _Remembering(threads, PasswordVerifier(threads, now=reactor.seconds), throttle)


def _throttle_limits(settings: Settings) -> _ThrottleLimits:
    limits = settings.throttle
    return {
        "failures": limits.failures,
        "address_failures": limits.address_failures,
        "account_failures": limits.account_failures,
        "window_s": limits.window_s,
    }


def _end_sessions(store: Store, fingerprints: Mapping[str, bytes | None]) -> None:
    """End the sessions of those whose password is another one now, or who have gone."""
    ending = Deferred.fromCoroutine(store.delete_sessions_of(fingerprints))
    # Their fingerprints have ended them already; in the store they are but left over.
    ending.addErrback(lambda failure: failure.trap(StoreUnavailableError))


def _make_metadata(issuers: Sequence[Issuer], clients: Clients) -> ResourceMetadata | None:
    if not issuers:
        return None
    scopes = frozenset[str]().union(*(issuer.scopes for issuer in issuers))
    return ResourceMetadata([issuer.url for issuer in issuers], sorted(scopes), clients)
