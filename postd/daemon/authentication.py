"""Authentication, made from the settings: user file, throttle, password cache, and all schemes over one portal."""

from collections.abc import Mapping
from functools import partial

from msgspec.structs import asdict
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.auth.password import HashThreads, PasswordChecker, PasswordVerifier
from postd.auth.portal import CoroutinePortal
from postd.auth.throttle import Throttle
from postd.auth.users import WATCH_INTERVAL_S, UserDirectory
from postd.daemon.settings_checks import find_problems
from postd.errors import StoreUnavailableError
from postd.http.peer import PeerResolver
from postd.monitoring.tally import Metrics
from postd.protect.guard import Realm
from postd.reactor import IReactor
from postd.schemes import load_options, load_schemes
from postd.schemes.interface import Background, Context
from postd.settings.loading import LoadedSettings
from postd.store.interface import Store
from postd.web.access import Access, SchemeParts

PURGE_EVERY_S = 10
"""How often expired sessions, nonces and failures are removed from the store."""


class Authentication:
    """The portal, and all that its checkers need.

    Args:
        loaded: the settings of users, schemes, sessions, the throttle and proxies.
        store: keeps sessions, nonces and failures.
        reactor: its clock and its threads.
        threads: where passwords are verified, in place of threads of its own.
        previous: the one that this one replaces when it is started, with other settings.

    Attributes:
        access: what guards need.
        threads, verifier, throttle: the password cache and the failure counts; a reload keeps them.
        running, settings, options, users, background: for the one that replaces this one.

    Raises:
        ConfigError: a scheme's table, the user file, or a file of an issuer's settings cannot be used.
    """

    _log = Logger()
    running = False

    def __init__(
        self,
        loaded: LoadedSettings,
        store: Store,
        *,
        reactor: IReactor,
        threads: HashThreads | None = None,
        previous: "Authentication | None" = None,
    ) -> None:
        self.settings = settings = loaded.settings
        self.options = options = load_options(loaded)
        self._store = store
        self._reactor = reactor
        self._previous = previous if previous is not None and previous.running else None
        if previous is not None and previous.settings.users == settings.users:
            self.users: UserDirectory = previous.users
            self.users.check()
        else:
            self.users = UserDirectory(settings.users, changed=partial(_end_sessions, store))
            self.users.load()
        if previous is None:
            self.threads = threads or HashThreads(reactor)
            self.verifier = PasswordVerifier(self.threads, now=reactor.seconds)
            self.throttle = Throttle(store, **asdict(settings.throttle), clock=reactor)
        else:
            self.threads, self.verifier, self.throttle = previous.threads, previous.verifier, previous.throttle
        self._loops = [LoopingCall(self._watch_users), LoopingCall(self._purge)]
        for loop in self._loops:
            loop.clock = reactor
        clients = PeerResolver(settings.trusted_proxies, settings.public_url)
        passwords = PasswordChecker(self.users, self.verifier, self.throttle, store=store)
        parts: dict[str, SchemeParts] = {}
        self.background: dict[str, Background] = {}
        schemes = load_schemes()
        for name, scheme in schemes.items():
            if scheme.options is not None and name not in options:
                continue
            context = Context(
                settings, loaded.where, options.get(name), store, self.users, self.throttle, passwords, clients, reactor
            )
            parts[name], background = scheme.make(context)
            if background is not None:
                self.background[name] = background
        checkers = dict.fromkeys(checker for one in parts.values() for checker in one.checkers)
        descriptions = {name: schemes[name].description for name in parts}
        self.access = Access(CoroutinePortal(Realm(), checkers), parts, descriptions, clients, settings.realm)

    def start(self) -> None:
        self.running = True
        previous, self._previous = self._previous, None
        if previous is None:
            self.threads.start()
        else:
            previous.retire()
            self.throttle.set_limits(**asdict(self.settings.throttle))
            self._watch_users()
        for name, background in self.background.items():
            background.start(None if previous is None else previous.background.get(name))
        self._log_problems()
        for loop, every_s in zip(self._loops, (WATCH_INTERVAL_S, PURGE_EVERY_S), strict=True):
            loop.start(every_s, now=False).addErrback(self._log_failure)

    def stop(self) -> None:
        self.retire()
        for background in self.background.values():
            background.stop()
        self.threads.stop()

    def retire(self) -> None:
        """Stop background work; authentications that are running finish."""
        self.running = False
        for loop in self._loops:
            if loop.running:
                loop.stop()
        for background in self.background.values():
            background.retire()

    @property
    def states(self) -> dict[str, str]:
        """The states of the schemes' background work (`postd.monitoring.health.Health`)."""
        return {name: state for background in self.background.values() for name, state in background.states.items()}

    @property
    def metrics(self) -> Metrics:
        """The metrics of the schemes' background work."""
        metrics = Metrics()
        for background in self.background.values():
            metrics.add(background.metrics)
        return metrics

    def _log_failure(self, failure: Failure) -> None:
        self._log.failure("background work of authentication stopped", failure=failure)

    def _watch_users(self) -> None:
        if self.users.refresh():
            self.verifier.clear_cache()
            self._log_problems()

    def _purge(self) -> Deferred[None]:
        purging = Deferred.fromCoroutine(self._store.purge_expired(now=self._reactor.seconds()))
        return purging.addErrback(lambda failure: failure.trap(StoreUnavailableError))

    def _log_problems(self) -> None:
        for problem in find_problems(self.settings, self.users.accounts):
            self._log.warn("{problem}", problem=problem)


def _end_sessions(store: Store, fingerprints: Mapping[str, bytes | None]) -> None:
    """End the sessions of users whose password has changed, or who were removed."""
    ending = Deferred.fromCoroutine(store.delete_sessions_of(fingerprints))
    # The fingerprints alone make the sessions invalid; this removes them from the store.
    ending.addErrback(lambda failure: failure.trap(StoreUnavailableError))
