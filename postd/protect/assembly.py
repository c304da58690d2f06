"""Authentication, put together once for the server and for `Protection`: all schemes over one portal."""

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import asdict
from twisted.cred.checkers import ICredentialsChecker
from twisted.web.resource import IResource

from postd.auth.background_work import Upkeep, start_deleting_outdated
from postd.auth.checker import Checker
from postd.auth.password import HashThreads, PasswordChecker, PasswordVerifier
from postd.auth.password_change import PasswordWriter
from postd.auth.portal import CoroutinePortal
from postd.auth.stock_checker import AnyAccount, StockChecker
from postd.auth.throttle import RESERVATION_TTL_S, Throttle
from postd.auth.users import UserDirectory
from postd.defaults import ACCOUNT_FAILURES, ADDRESS_FAILURES, FAILURE_WINDOW_S, FAILURES
from postd.errors import ConfigError
from postd.http.peer import PeerResolver
from postd.protect.arguments import expected
from postd.protect.guard import CredentialFactory, CredentialReader, Guard, ProtectedResource, Realm
from postd.protect.mounted import MountedResources
from postd.protect.pages import Page
from postd.protect.schemes.interface import Background, Context, Scheme, SchemeParts
from postd.reactor import IReactor, ServiceClock
from postd.store.interface import LoginStore


class FailureLimits(Struct, frozen=True):
    """The limits of `postd.auth.throttle.Throttle`."""

    failures: int = FAILURES
    address_failures: int = ADDRESS_FAILURES
    account_failures: int = ACCOUNT_FAILURES
    window_s: float = FAILURE_WINDOW_S


class Authentication:
    """The portal, its checkers with their common parts, and the guards of resources.

    Args:
        schemes: the schemes in force, in the order of their challenges.
        store: keeps sessions, nonces and failures.
        realm: the protection space.
        users: the user file, or a checker of `IUsernamePassword` in its place; None for no users.
        limits: the limits of failed logins.
        clients: resolves the client's address behind proxies.
        clock: the clock of the dates in the store.
        reactor: its timers and its threads.
        users_changed: called at the start, and each time that the user file has changed.
        places: stand before the names of options of schemes in errors, by scheme name.
        threads: where passwords are verified, in place of threads of its own.
        portal: the portal of all guards, in place of a new one.
        mounted: the resources of an application, whose paths its site has.
        previous: on a reload, the object that this one replaces when it is started.

    Attributes:
        context: what all schemes are made with.
        portal: the portal of all guards.
        users, threads, verifier: for the object that replaces this one.

    Raises:
        ConfigError: a file that the options of a scheme name cannot be used.
        ValueError: `users` is no checker of `IUsernamePassword`, or two schemes check the same credentials.
    """

    running = False
    context: Context

    def __init__(  # noqa: PLR0913 - all that it is made from
        self,
        schemes: Sequence[Scheme],
        store: LoginStore,
        *,
        realm: str,
        users: UserDirectory | ICredentialsChecker | None,
        limits: FailureLimits,
        clients: PeerResolver,
        clock: ServiceClock,
        reactor: IReactor,
        users_changed: Callable[[], None],
        places: Mapping[str, str] | None = None,
        threads: HashThreads | None = None,
        portal: CoroutinePortal | None = None,
        mounted: MountedResources | None = None,
        previous: "Authentication | None" = None,
    ) -> None:
        self._limits, self._users_changed, self._places = limits, users_changed, places or {}
        self._previous = previous if previous is not None and previous.running else None
        # Parts of replaced objects in which authentications may still run, and when the last authentication has ended.
        self._replaced: list[tuple[float, Background | StockChecker]] = []
        if previous is None:
            self.threads = threads or HashThreads(reactor)
            self.verifier = PasswordVerifier(self.threads, now=clock.seconds)
            throttle = Throttle(store, **asdict(limits), clock=clock)
        else:
            self.threads, self.verifier, throttle = previous.threads, previous.verifier, previous.context.throttle
        self.users = users
        directory = users if isinstance(users, UserDirectory) else UserDirectory("")
        passwords: Checker
        if previous is not None and previous.users is users:
            passwords = previous.context.passwords
        elif users is None or isinstance(users, UserDirectory):
            passwords = PasswordChecker(directory, self.verifier, throttle, store=store)
        else:
            passwords = StockChecker(users, throttle, clock=clock)
        accounts = AnyAccount() if isinstance(passwords, StockChecker) else directory
        writer = PasswordWriter(directory, self.verifier, store, realm=realm, clock=clock)
        self.context = Context(
            realm,
            store,
            directory,
            accounts,
            passwords,
            throttle,
            clients,
            clock,
            reactor,
            mounted or MountedResources(),
            writer=writer if directory.path else None,
        )
        self._upkeep = Upkeep(directory, self.verifier, store, clock=clock, reloaded=users_changed)
        self._parts: list[tuple[Scheme, SchemeParts]] = []
        self._include(schemes)
        self.portal = portal or CoroutinePortal(Realm())
        if previous is None or portal is None:
            self._register_checkers()

    def _make(self, scheme: Scheme) -> SchemeParts:
        try:
            parts = scheme.make(self.context)
        except ConfigError as error:
            raise ConfigError(self._places.get(scheme.name, "") + error.where, error.why) from None
        if not isinstance(parts, SchemeParts):
            raise expected("schemes", f"SchemeParts of {scheme.name}", parts)
        return parts

    def _include(self, schemes: Sequence[Scheme]) -> list[tuple[Scheme, SchemeParts]]:
        """Make the parts of more schemes; return them.

        Raises:
            ConfigError: a file that the options of a scheme name cannot be used.
            ValueError: two schemes check the same credentials; nothing has changed.
        """
        more = [(scheme, self._make(scheme)) for scheme in schemes]
        known: dict[object, Checker] = {}
        for scheme, parts in (*self._parts, *more):
            for checker in parts.checkers:
                if any(known.setdefault(one, checker) is not checker for one in checker.credentialInterfaces):
                    raise ValueError(f"schemes: {scheme.name} is in force with other options")
        self._parts += more
        return more

    def _register_checkers(self) -> None:
        for checker in dict.fromkeys(checker for _, parts in self._parts for checker in parts.checkers):
            self.portal.registerChecker(checker)

    @property
    def schemes(self) -> list[Scheme]:
        """The schemes in force, in the order of their challenges."""
        return [scheme for scheme, _ in self._parts]

    def add(self, schemes: Sequence[Scheme]) -> None:
        """Put schemes in force that are not.

        Raises:
            ConfigError: a file that the options of a scheme name cannot be used.
            ValueError: two schemes check the same credentials; nothing has changed.
        """
        more = self._include(schemes)
        self._register_checkers()
        for _, parts in more:
            if self.running and parts.background is not None:
                parts.background.start(None)

    def start(self) -> None:
        """Start the background work; from now on this object replaces the previous one."""
        self.running = True
        previous, self._previous = self._previous, None
        before: list[tuple[Scheme, Background]] = []
        if previous is None:
            self.threads.start()
        else:
            before = previous.background
            previous.retire()
            self.context.throttle.set_limits(**asdict(self._limits))
            self._register_checkers()
            self._upkeep.watch_users()
            self._replaced = previous.replaced_by(self.context.passwords)
        for scheme, background in self.background:
            background.start(_find_previous(scheme, before))
        self._users_changed()
        self._upkeep.start()

    async def purge_expired(self) -> None:
        """Remove expired entries from the store, and bring the clock up to its dates."""
        await self._upkeep.purge_expired()

    def stop(self) -> None:
        """Stop the work of this object. Logins that wait end with `end_waits`."""
        self.retire()
        for _, part in (*self._replaced, *self.background):
            if not isinstance(part, StockChecker):
                part.stop()
        self.threads.stop()

    def end_waits(self) -> None:
        """End all logins that wait for other logins or for a checker, after `stop` and after the store has stopped."""
        self.context.throttle.wake_all()
        for checker in (self.context.passwords, *(part for _, part in self._replaced)):
            if isinstance(checker, StockChecker):
                checker.stop()

    def retire(self) -> None:
        """Stop background work; authentications that are running finish."""
        self.running = False
        self._upkeep.stop()
        for _, background in self.background:
            background.retire()

    def replaced_by(self, passwords: Checker) -> list[tuple[float, Background | StockChecker]]:
        """Return the parts in which authentications may still run when an object with this checker replaces this one.

        Each has the time, of the reactor, when the last authentication has ended.
        """
        now = self.context.reactor.seconds()
        parts: list[Background | StockChecker] = [background for _, background in self.background]
        if isinstance(self.context.passwords, StockChecker) and self.context.passwords is not passwords:
            parts.append(self.context.passwords)
        return [one for one in self._replaced if one[0] > now] + [(now + RESERVATION_TTL_S, part) for part in parts]

    @property
    def background(self) -> list[tuple[Scheme, Background]]:
        """The background work of the schemes."""
        return [(scheme, parts.background) for scheme, parts in self._parts if parts.background is not None]

    @property
    def states(self) -> dict[str, str]:
        """The states of the schemes' background work (`postd.monitoring.health.Health`)."""
        return {name: state for _, background in self.background for name, state in background.states.items()}

    def sign_out_origins(self) -> list[str]:
        """Return the other origins to which signing out may lead."""
        return [origin for _, parts in self._parts for origin in parts.sign_out_origins()]

    def credentials(
        self, rule: Collection[str | Scheme], described: ProtectedResource
    ) -> tuple[Sequence[CredentialFactory], list[CredentialReader]]:
        """Return the credential factories and the readers of a resource, by a rule: its schemes, or their names."""
        allowed = [parts for scheme, parts in self._parts if scheme.name in rule or scheme in rule]
        makers = [parts.make_factories for parts in allowed if parts.make_factories is not None]
        factories: Sequence[CredentialFactory] = [factory for make in makers for factory in make(described)]
        for parts in allowed:
            if parts.combine is not None:
                factories = parts.combine(factories, described)
        return factories, [parts.reader for parts in allowed if parts.reader is not None]

    def protect(
        self,
        resource: IResource,
        rule: Collection[str | Scheme],
        described: ProtectedResource,
        users: frozenset[str] = frozenset(),
        *,
        guard: Callable[..., Guard] = Guard,
    ) -> Guard:
        """Return a guard before a resource, made by `guard`: credentials of one scheme of the rule are required.

        With `users`, the credentials have to be of an account among them.
        """
        factories, readers = self.credentials(rule, described)
        return guard(self.portal, factories, resource, readers=readers, clients=described.clients, users=users)

    def make_pages(
        self, protected: Collection[tuple[Collection[str], ProtectedResource]], taken: Collection[str] = ()
    ) -> dict[str, Page]:
        """Return the pages of the schemes by path without the first slash; `protected` has all resources with rules.

        Raises:
            ConfigError: a page's first path segment is `taken`, or two schemes have a page with
                the same path.
        """
        pages: dict[str, Page] = {}
        for scheme in self.schemes:
            more = self.pages_of(scheme, [resource for rule, resource in protected if scheme.name in rule])
            for path in more:
                if path in pages or path.partition("/")[0] in taken:
                    where = self._places.get(scheme.name, scheme.name).removesuffix(": ")
                    raise ConfigError(where, f"its page /{path} would hide another one, or be hidden")
            pages |= more
        return pages

    def pages_of(self, scheme: Scheme, protected: Sequence[ProtectedResource] = ()) -> Mapping[str, Page]:
        """Return the pages of a scheme, which protects some resources; it may differ in options from that in force."""
        parts = next((parts for one, parts in self._parts if one == scheme), None) or self._make(scheme)
        return parts.make_pages(self.portal, protected) if parts.make_pages is not None else {}


def load_users(
    path: str, store: LoginStore, clock: ServiceClock, previous: UserDirectory | None = None
) -> UserDirectory:
    """Return the accounts of a user file, "" for none; on a reload the previous accounts if the file has the same path.

    The sessions of users whose password changes, or who are removed, end; so do tokens and passkeys of removed ones.

    Raises:
        ConfigError: the file cannot be used.
    """
    if previous is not None and previous.path == path:
        previous.check()
        return previous
    users = UserDirectory(path, changed=lambda accounts: start_deleting_outdated(store, clock, users, accounts))
    users.load()
    return users


def _find_previous(scheme: Scheme, before: Sequence[tuple[Scheme, Background]]) -> Background | None:
    """Return the background work that a reload replaces: of an equal scheme, or else of the same scheme with other
    options. Schemes of an application's own do not change in a reload, and may have a name in common.
    """
    found = [background for one, background in before if one == scheme]
    return next(iter(found + [background for one, background in before if one.name == scheme.name]), None)
