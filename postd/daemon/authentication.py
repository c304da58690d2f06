"""Authentication, made from the settings: user file, issuers, checkers, credential factories, throttle."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypedDict

from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.auth.bearer import BearerChecker, Issuer
from postd.auth.digest import DigestChecker, NonceRegistry
from postd.auth.password import HashThreads, PasswordChecker, PasswordVerifier
from postd.auth.portal import CoroutinePortal
from postd.auth.session import SessionChecker, Sessions
from postd.auth.throttle import Throttle
from postd.auth.users import WATCH_INTERVAL_S, UserDirectory
from postd.daemon.issuers import make_issuer
from postd.daemon.settings_checks import find_problems
from postd.errors import StoreUnavailableError
from postd.monitoring.health import OK
from postd.monitoring.tally import Metrics
from postd.reactor import IReactor
from postd.settings.schema import Settings
from postd.store.interface import Store
from postd.web.basic import BasicCredentialFactory
from postd.web.bearer import BearerCredentialFactory
from postd.web.digest import DigestCredentialFactory
from postd.web.guard import Realm
from postd.web.peer import PeerResolver
from postd.web.resource_metadata import ResourceMetadata
from postd.web.routes import Access

PURGE_EVERY_S = 10
"""How often expired sessions, nonces and failures are removed from the store."""


class _ThrottleLimits(TypedDict):
    failures: int
    address_failures: int
    account_failures: int
    window_s: float


class _KeptState(Struct, frozen=True):
    """State kept across reloads: the password cache and the failure counts."""

    threads: HashThreads
    verifier: PasswordVerifier
    throttle: Throttle


class Authentication:
    """The portal, and all that its checkers need.

    Args:
        settings: those of users, schemes, sessions, the throttle and proxies.
        store: keeps sessions, nonces and failures.
        reactor: its clock and its threads.
        threads: where passwords are verified, in place of threads of its own.
        issuers_where: names the tables of issuers in messages.
        previous: the one that this one replaces when it is started, with other settings.

    Attributes:
        access: what guards need.
        running, settings, users, issuers, kept: for the one that replaces this one.

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
        previous: "Authentication | None" = None,
    ) -> None:
        self.settings = settings
        self._store = store
        self._reactor = reactor
        self._previous = previous if previous is not None and previous.running else None
        now = reactor.seconds
        if previous is not None and previous.settings.users == settings.users:
            self.users: UserDirectory = previous.users
            self.users.check()
        else:
            self.users = UserDirectory(settings.users, changed=partial(_end_sessions, store))
            self.users.load()
        self.kept: _KeptState = previous.kept if previous else _make_kept_state(settings, store, threads, reactor)
        self._loops = [LoopingCall(self._watch_users), LoopingCall(self._purge)]
        for loop in self._loops:
            loop.clock = reactor
        nonces = NonceRegistry(store, lifetime_s=settings.digest.nonce_lifetime_s, now=now)
        sessions = Sessions(
            store, self.users, idle_s=settings.session.idle_s, lifetime_s=settings.session.lifetime_s, now=now
        )
        clients = PeerResolver(settings.trusted_proxies, settings.public_url)
        algorithms = tuple(dict.fromkeys(settings.digest.algorithms))
        self.issuers = [
            make_issuer(table, where=f"{issuers_where}[{number}]", reactor=reactor)
            for number, table in enumerate(settings.bearer)
        ]
        checkers = (
            DigestChecker(self.users, nonces, self.kept.throttle, realm=settings.realm),
            PasswordChecker(self.users, self.kept.verifier, self.kept.throttle, store=store),
            SessionChecker(sessions),
            BearerChecker(self.issuers, throttle=self.kept.throttle, now=now),
        )
        self.access = Access(
            portal=CoroutinePortal(Realm(), checkers),
            # The order of the challenges (reference: Schemes): simple clients look only at the first or the last.
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
        previous, self._previous = self._previous, None
        if previous is None:
            self.kept.threads.start()
        else:
            self._replace(previous)
        self._log_problems()
        for issuer in self.issuers:
            issuer.start()
        for loop, every_s in zip(self._loops, (WATCH_INTERVAL_S, PURGE_EVERY_S), strict=True):
            loop.start(every_s, now=False).addErrback(self._log_failure)

    def _replace(self, previous: "Authentication") -> None:
        previous.retire()
        self.kept.throttle.set_limits(**_throttle_limits(self.settings))
        known = {
            (table.issuer, table.jwks_uri): issuer
            for table, issuer in zip(previous.settings.bearer, previous.issuers, strict=True)
        }
        for table, issuer in zip(self.settings.bearer, self.issuers, strict=True):
            same = known.get((table.issuer, table.jwks_uri))
            if same is not None:
                issuer.keys.copy_keys(same.keys)
        self._watch_users()

    def stop(self) -> None:
        self.retire()
        for issuer in self.issuers:
            issuer.stop()
        self.kept.threads.stop()

    def retire(self) -> None:
        """Stop background work; authentications that are running finish."""
        self.running = False
        for loop in self._loops:
            if loop.running:
                loop.stop()
        for issuer in self.issuers:
            issuer.stop_refreshing()

    @property
    def states(self) -> dict[str, str]:
        """The states of the issuers (`postd.monitoring.health.Health`)."""
        return {
            f"bearer {issuer.url}": OK if issuer.keys.current is not None else "no keys yet" for issuer in self.issuers
        }

    @property
    def metrics(self) -> Metrics:
        """The number and the age of the keys that are held of each issuer."""
        metrics = Metrics()
        for issuer in self.issuers:
            held = issuer.keys.current
            metrics.maxima["keys", issuer.url] = 0 if held is None else len(held.keys)
            metrics.maxima["keys_age", issuer.url] = issuer.keys.age_s
        return metrics

    def _log_failure(self, failure: Failure) -> None:
        self._log.failure("background work of authentication stopped", failure=failure)

    def _watch_users(self) -> None:
        if self.users.refresh():
            self.kept.verifier.clear_cache()
            self._log_problems()

    def _purge(self) -> Deferred[None]:
        purging = Deferred.fromCoroutine(self._store.purge_expired(now=self._reactor.seconds()))
        return purging.addErrback(lambda failure: failure.trap(StoreUnavailableError))

    def _log_problems(self) -> None:
        for problem in find_problems(self.settings, self.users.accounts):
            self._log.warn("{problem}", problem=problem)


def _make_kept_state(settings: Settings, store: Store, threads: HashThreads | None, reactor: IReactor) -> _KeptState:
    threads = threads or HashThreads(reactor)
    throttle = Throttle(store, **_throttle_limits(settings), clock=reactor)
    return _KeptState(threads, PasswordVerifier(threads, now=reactor.seconds), throttle)


def _throttle_limits(settings: Settings) -> _ThrottleLimits:
    limits = settings.throttle
    return {
        "failures": limits.failures,
        "address_failures": limits.address_failures,
        "account_failures": limits.account_failures,
        "window_s": limits.window_s,
    }


def _end_sessions(store: Store, fingerprints: Mapping[str, bytes | None]) -> None:
    """End the sessions of users whose password has changed, or who were removed."""
    ending = Deferred.fromCoroutine(store.delete_sessions_of(fingerprints))
    # The fingerprints alone make the sessions invalid; this removes them from the store.
    ending.addErrback(lambda failure: failure.trap(StoreUnavailableError))


def _make_metadata(issuers: Sequence[Issuer], clients: PeerResolver) -> ResourceMetadata | None:
    if not issuers:
        return None
    scopes = frozenset[str]().union(*(issuer.scopes for issuer in issuers))
    return ResourceMetadata([issuer.url for issuer in issuers], sorted(scopes), clients)
