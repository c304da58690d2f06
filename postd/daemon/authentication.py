"""Authentication, made from the settings: user file, throttle, password cache, and all schemes over one portal."""

from functools import partial

from msgspec.structs import asdict
from twisted.logger import Logger

from postd.auth.background_work import Upkeep, end_sessions
from postd.auth.password import HashThreads, PasswordChecker, PasswordVerifier
from postd.auth.portal import CoroutinePortal
from postd.auth.throttle import Throttle
from postd.auth.users import UserDirectory
from postd.daemon.settings_checks import find_problems
from postd.http.peer import PeerResolver
from postd.monitoring.tally import Metrics
from postd.protect.guard import Realm
from postd.reactor import IReactor, ServiceClock
from postd.schemes import load_options, load_schemes
from postd.schemes.interface import Background, Context
from postd.settings.loading import LoadedSettings
from postd.store.interface import Store
from postd.web.access import Access, SchemeParts


class Authentication:
    """The portal and the parts that its checkers use.

    Args:
        loaded: the settings of users, schemes, sessions, the throttle and proxies.
        store: keeps sessions, nonces and failures.
        clock: the clock of the dates in the store.
        reactor: its timers and its threads.
        threads: where passwords are verified, in place of threads of its own.
        previous: on a reload, the object of the old settings, which this one replaces when it is started.

    Attributes:
        access: the parts of authentication that guards use.
        clock: that of the arguments.
        threads, verifier, throttle: the password cache and the failure counts; a reload keeps them.
        running, settings, options, users, background: read by the object that replaces this one on a reload.

    Raises:
        ConfigError: a scheme's table, the user file, or a file of an issuer's settings cannot be used.
    """

    _log = Logger()
    running = False

    def __init__(  # noqa: PLR0913 - all that it is made from
        self,
        loaded: LoadedSettings,
        store: Store,
        *,
        clock: ServiceClock,
        reactor: IReactor,
        threads: HashThreads | None = None,
        previous: "Authentication | None" = None,
    ) -> None:
        self.settings = settings = loaded.settings
        self.options = options = load_options(loaded)
        self.clock = clock
        self._previous = previous if previous is not None and previous.running else None
        if previous is not None and previous.settings.users == settings.users:
            self.users: UserDirectory = previous.users
            self.users.check()
        else:
            self.users = UserDirectory(settings.users, changed=partial(end_sessions, store))
            self.users.load()
        if previous is None:
            self.threads = threads or HashThreads(reactor)
            self.verifier = PasswordVerifier(self.threads, now=self.clock.seconds)
            self.throttle = Throttle(store, **asdict(settings.throttle), clock=self.clock)
        else:
            self.threads, self.verifier, self.throttle = previous.threads, previous.verifier, previous.throttle
        self._upkeep = Upkeep(self.users, self.verifier, store, clock=self.clock, reloaded=self._log_problems)
        clients = PeerResolver(settings.trusted_proxies, settings.public_url, settings.api.cors_origins)
        passwords = PasswordChecker(self.users, self.verifier, self.throttle, store=store)
        parts: dict[str, SchemeParts] = {}
        self.background: dict[str, Background] = {}
        schemes = load_schemes()
        for name, scheme in schemes.items():
            if scheme.options is not None and name not in options:
                continue
            context = Context(
                settings,
                loaded.where,
                options.get(name),
                store,
                self.users,
                self.throttle,
                passwords,
                clients,
                self.clock,
                reactor,
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
            self._upkeep.watch_users()
        for name, background in self.background.items():
            background.start(None if previous is None else previous.background.get(name))
        self._log_problems()
        self._upkeep.start()

    async def purge_expired(self) -> None:
        """Remove expired entries from the store, and bring the clock up to its dates."""
        await self._upkeep.purge_expired()

    def stop(self) -> None:
        self.retire()
        for background in self.background.values():
            background.stop()
        self.threads.stop()

    def retire(self) -> None:
        """Stop background work; authentications that are running finish."""
        self.running = False
        self._upkeep.stop()
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

    def _log_problems(self) -> None:
        for problem in find_problems(self.settings, self.users.accounts):
            self._log.warn("{problem}", problem=problem)
