"""The interface of an authentication scheme: a value with options, which makes the parts that authenticate requests."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from msgspec import Struct, field

from postd.auth.checker import Checker
from postd.auth.password_change import PasswordWriter
from postd.auth.portal import CoroutinePortal
from postd.auth.session import Fingerprints
from postd.auth.throttle import Throttle
from postd.auth.user_file import Account
from postd.auth.users import UserDirectory
from postd.http.peer import PeerResolver
from postd.protect.guard import CredentialFactory, CredentialReader, FactoryMaker, ProtectedResource
from postd.protect.mounted import MountedResources
from postd.protect.pages import Page
from postd.reactor import IReactor, ServiceClock, Work
from postd.store.interface import LoginStore

if TYPE_CHECKING:
    from postd.auth.sign_in import Provider
    from postd.monitoring.tally import Metrics

SAMPLE_USER = "alice"
"""The user in code samples."""

CROSS_SITE = "A page of another site sent the request."
"""The reason of a 403 for credentials that browsers send by themselves."""

CheckResult = tuple[bool, str]
"""A line of `postd check`: whether it is ok, and its text."""

Checked = tuple[str, Sequence[CheckResult]]
"""The name of the checked part, and the results."""

NetworkCheck = Callable[[IReactor], Work[Sequence[Checked]]]
"""A check that runs in a reactor."""


class ClientCode(Struct, frozen=True):
    """Python code that sends credentials; `{origin}` in it stands for the server's origin.

    Args:
        argument: the keyword argument of a request.
        before: the lines before the request.
        imports: the imports of these lines from the standard library.
        more_imports: the imports from other packages.
    """

    argument: str = ""
    before: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    more_imports: tuple[str, ...] = ()


class SchemeDescription(Struct, frozen=True, eq=False):
    """The texts about an authentication scheme in the description of the API.

    Args:
        title: its name for people.
        security: its Security Scheme Object (OpenAPI 3.1.0 §4.8.27).
        curl: the words of a sample's command line that give the credentials of the user `SAMPLE_USER`.
        httpx: the same for a program with httpx; None for no such sample.
        treq: the same for a program with treq.
        errors: statuses and reasons of the errors that it adds to an operation.
        write_errors: the same for operations that write.
        headers: the header fields that it adds to replies at times.
    """

    title: str
    security: Mapping[str, str]
    curl: str
    httpx: ClientCode | None = None
    treq: ClientCode | None = None
    errors: tuple[tuple[int, str], ...] = ()
    write_errors: tuple[tuple[int, str], ...] = ()
    headers: tuple[str, ...] = ()


class Background(Protocol):
    """Work of a scheme beside its requests, such as fetching keys."""

    def start(self, previous: Self | None) -> None:
        """Start it; `previous` is the background work of the options before a reload, None at the first start."""

    def retire(self) -> None:
        """Start no new work; running authentications finish."""

    def stop(self) -> None:
        """Stop, and cancel running work."""

    @property
    def states(self) -> Mapping[str, str]:
        """Its states (`postd.monitoring.health.Health`)."""

    @property
    def metrics(self) -> "Metrics":
        """Its metrics."""


class SchemeParts(Struct, frozen=True):
    """The parts of an authentication scheme.

    Args:
        checkers: check its credentials.
        make_factories: makes its credential factories; None if its credentials are not in `Authorization`.
        reader: finds its credentials elsewhere in a request; None if they are in `Authorization`.
        make_pages: returns its own pages, which may sign clients in, by path without the first slash, from the portal
            and the resources that the scheme protects; None if it has none.
        background: its work beside requests, None if there is none.
        combine: returns the credential factories of a rule with this scheme, from those of the other schemes of the
            rule, for credentials that are sent by another scheme's name; None if there are none.
        sign_out_origins: returns the other origins to which signing out may lead (`form-action` of pages with a button
            for it).
    """

    checkers: Sequence[Checker]
    make_factories: FactoryMaker | None = None
    reader: CredentialReader | None = None
    make_pages: Callable[[CoroutinePortal, Sequence[ProtectedResource]], Mapping[str, Page]] | None = None
    background: Background | None = None
    combine: Callable[[Sequence[CredentialFactory], ProtectedResource], Sequence[CredentialFactory]] | None = None
    sign_out_origins: Callable[[], Sequence[str]] = list


class Context(Struct, frozen=True):
    """What a scheme is made with.

    Args:
        realm: the protection space.
        store: keeps sessions, nonces and failures.
        users: the user file.
        accounts: the accounts that may have sessions, of the user file or of a checker in its place.
        passwords: checks names and passwords.
        throttle: limits failures.
        clients: resolves the client's address behind proxies.
        clock: the clock of the dates in the store.
        reactor: for background work.
        mounted: the resources of an application, whose paths its site has.
        providers: the OpenID providers in force, by their ids, which all sign-in pages have in common.
        writer: writes new passwords to the user file; None without one.
    """

    realm: str
    store: LoginStore
    users: UserDirectory
    accounts: Fingerprints
    passwords: Checker
    throttle: Throttle
    clients: PeerResolver
    clock: ServiceClock
    reactor: IReactor
    mounted: MountedResources
    providers: "dict[str, Provider]" = field(default_factory=dict)
    writer: PasswordWriter | None = None


class Rule(Struct, frozen=True):
    """An access rule of a server.

    Args:
        name: the name.
        schemes: the schemes.
        users: the only users with access; empty for all.
        scopes: the scopes that tokens need, without empty ones.
    """

    name: str
    schemes: Sequence[str]
    users: Sequence[str] = ()
    scopes: Sequence[str] = ()


class Deployment(Struct, frozen=True):
    """The settings of a server that the checks of a scheme need beside the scheme's options.

    Args:
        rules: all access rules.
        has_users: whether there is a user file.
        names_any_host: whether a client may name any host as this server's.
        sees_certificates: whether clients can present a certificate.
        public_url: the origin as clients see it, empty where it is not set.
        is_local: whether only this machine can reach the listeners.
    """

    rules: Sequence[Rule]
    has_users: bool
    names_any_host: bool
    sees_certificates: bool
    public_url: str = ""
    is_local: bool = True

    def rules_of(self, scheme: str) -> list[str]:
        """Return the names of the access rules with a scheme."""
        return [rule.name for rule in self.rules if scheme in rule.schemes]


class Scheme(Struct, frozen=True, forbid_unknown_fields=True):
    """An authentication scheme. Its fields are its options, and the keys of its table in the settings file.

    Attributes:
        name: its name in settings, in `Protection.protect` and in the log.
        description: its texts for the API's description.
        uses_accounts: whether the accounts of the user file can use it.
        has_bare_names: whether its identities have names without an issuer, as accounts have.
    """

    name: ClassVar[str]
    description: ClassVar[SchemeDescription]
    uses_accounts: ClassVar[bool] = False
    has_bare_names: ClassVar[bool] = True

    def make(self, context: Context) -> SchemeParts:
        """Return its parts.

        Raises:
            ConfigError: a file that its options name cannot be used; its place is the name of the option.
        """
        raise NotImplementedError

    def secrets(self, deployment: Deployment) -> str | None:
        """Name the secrets that the scheme sends in clear text without TLS; None if it is not in use."""
        if self.uses_accounts:
            return "passwords" if deployment.has_users else None
        return "credentials" if deployment.rules_of(self.name) else None

    def problems(self, deployment: Deployment) -> Iterator[str]:  # noqa: ARG002 - for subclasses
        """Yield a sentence for each problem of its options."""
        yield from ()

    def account_problems(self, accounts: Mapping[str, Account], realm: str) -> Iterator[str]:  # noqa: ARG002 - for subclasses
        """Yield a sentence for each problem of the user file, where an access rule has this scheme."""
        yield from ()

    @property
    def issuers_of_users(self) -> Collection[str]:
        """The issuers whose users it authenticates, as accounts `ISSUER#NAME`."""
        return ()

    def check(self) -> NetworkCheck | None:
        """Return the part of `postd check` that needs the network, None if nothing does."""
        return None
