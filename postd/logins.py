"""Who is let in: the settings of it, made into the parts of `postd.auth` and `postd.web` that work together."""

from collections.abc import Mapping, Sequence

from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.auth.bearer import BearerChecker, Issuer
from postd.auth.digest import DigestChecker, NonceBook
from postd.auth.password import HashThreads, PasswordChecker, PasswordVerifier
from postd.auth.session import SessionChecker, Sessions
from postd.auth.throttle import Throttle
from postd.auth.users import WATCH_EVERY_S, UserDirectory
from postd.config import Settings
from postd.errors import StoreUnavailableError
from postd.issuers import make_issuer
from postd.reactor import IReactor
from postd.review import find_problems
from postd.store.interface import Store
from postd.web.basic import BasicCredentialFactory
from postd.web.bearer import BearerCredentialFactory
from postd.web.client import Clients
from postd.web.digest import DigestCredentialFactory
from postd.web.guard import Realm
from postd.web.metadata import ResourceMetadata
from postd.web.site import Access

PURGE_EVERY_S = 10
"""How often what has expired is removed from the store."""


class Logins:
    """The portal with all that stands around it.

    Args:
        settings: those of users, schemes, sessions, the throttle and proxies.
        store: keeps what must be remembered of logins.
        reactor: its clock and its threads.
        threads: where passwords are verified, if it is to be elsewhere than in threads of its own.
        issuers_where: names the tables of issuers in messages.

    Raises:
        ConfigError: the user file, or a file of an issuer's settings, cannot be used.
    """

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        reactor: IReactor,
        threads: HashThreads | None = None,
        issuers_where: str = "bearer",
    ) -> None:
        self._settings = settings
        self._store = store
        self._reactor = reactor
        now = reactor.seconds
        self._users = UserDirectory(settings.users, changed=self._changed)
        self._users.load()
        self._threads = threads or HashThreads(reactor)
        self._verifier = PasswordVerifier(self._threads, now=now)
        self._loops = [LoopingCall(self._watch_users), LoopingCall(self._purge)]
        for loop in self._loops:
            loop.clock = reactor
        throttle = Throttle(
            store,
            failures=settings.throttle.failures,
            address_failures=settings.throttle.address_failures,
            account_failures=settings.throttle.account_failures,
            window_s=settings.throttle.window_s,
            now=now,
        )
        nonces = NonceBook(store, lifetime_s=settings.digest.nonce_lifetime_s, now=now)
        sessions = Sessions(
            store, self._users, idle_s=settings.session.idle_s, lifetime_s=settings.session.lifetime_s, now=now
        )
        clients = Clients(settings.trusted_proxies, settings.public_url)
        algorithms = tuple(dict.fromkeys(settings.digest.algorithms))
        self._issuers = [
            make_issuer(one, where=f"{issuers_where}[{number}]", reactor=reactor)
            for number, one in enumerate(settings.bearer)
        ]
        checkers = (
            DigestChecker(self._users, nonces, throttle, realm=settings.realm),
            PasswordChecker(self._users, self._verifier, throttle, store=store),
            SessionChecker(sessions),
            BearerChecker(self._issuers, now=now),
        )
        self.access = Access(
            portal=Portal(Realm(), checkers),
            # The order of the challenges (contract 4): clients that know only one look at the first or the last.
            factories=(
                DigestCredentialFactory(settings.realm, algorithms, nonces, clients),
                BearerCredentialFactory(settings.realm, clients, with_metadata=bool(self._issuers)),
                BasicCredentialFactory(settings.realm, clients),
            ),
            sessions=sessions,
            clients=clients,
            realm=settings.realm,
            secure=settings.session.secure,
            metadata=_make_metadata(self._issuers, clients),
        )

    def start(self) -> None:
        self._warn()
        self._threads.start()
        for issuer in self._issuers:
            issuer.start()
        for loop, every_s in zip(self._loops, (WATCH_EVERY_S, PURGE_EVERY_S), strict=True):
            loop.start(every_s, now=False).addErrback(self._log_failure)

    def reload(self) -> None:
        """Take the user file up now, if it has changed."""
        self._watch_users()

    def stop(self) -> None:
        for loop in self._loops:
            if loop.running:
                loop.stop()
        for issuer in self._issuers:
            issuer.stop()
        self._threads.stop()

    def _log_failure(self, failure: Failure) -> None:
        self._log.failure("users are not watched, or the store is not purged, any more", failure=failure)

    def _watch_users(self) -> None:
        if self._users.refresh():
            self._verifier.forget_all()
            self._warn()

    def _changed(self, fingerprints: Mapping[str, bytes | None]) -> None:
        """End the sessions of those whose password is another one now, or who have gone."""
        ending = Deferred.fromCoroutine(self._store.delete_sessions_of(fingerprints))
        # Their fingerprints have ended them already; in the store they are but left over.
        ending.addErrback(lambda failure: failure.trap(StoreUnavailableError))

    def _purge(self) -> Deferred[None]:
        purging = Deferred.fromCoroutine(self._store.purge_expired(now=self._reactor.seconds()))
        return purging.addErrback(lambda failure: failure.trap(StoreUnavailableError))

    def _warn(self) -> None:
        """Tell the log what the settings ask for and the users cannot do."""
        for problem in find_problems(self._settings, self._users.accounts):
            self._log.warn("{problem}", problem=problem)


def _make_metadata(issuers: Sequence[Issuer], clients: Clients) -> ResourceMetadata | None:
    if not issuers:
        return None
    scopes = frozenset[str]().union(*(issuer.scopes for issuer in issuers))
    return ResourceMetadata([issuer.url for issuer in issuers], sorted(scopes), clients)
