"""The interface of an authentication scheme."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

from msgspec import Struct

from postd.auth.password import PasswordChecker
from postd.auth.throttle import Throttle
from postd.auth.user_file import Account
from postd.auth.users import UserDirectory
from postd.http.peer import PeerResolver
from postd.monitoring.tally import Metrics
from postd.reactor import IReactor, ServiceClock
from postd.settings.loading import LoadedSettings
from postd.settings.schema import Settings
from postd.store.interface import Store
from postd.web.access import SchemeDescription, SchemeParts

CheckResult = tuple[bool, str]
"""A line of `postd check`: whether it is ok, and its text."""

Checked = tuple[str, Sequence[CheckResult]]
"""The name of the checked part, and the results."""

NetworkCheck = Callable[[IReactor], Coroutine[Any, Any, Sequence[Checked]]]
"""A check that runs in a reactor."""


class Context(Struct, frozen=True):
    """The parts that a scheme is made from.

    Args:
        settings: those in force.
        where: names the top-level keys of the settings in messages.
        options: the scheme's own table, decoded into its `options`; None if it has none.
        store: keeps sessions, nonces and failures.
        users: the user file.
        throttle: limits failures.
        passwords: checks names and passwords.
        clients: resolves the client's address behind proxies.
        clock: the clock of the dates in the store.
        reactor: for background work.
    """

    settings: Settings
    where: Mapping[str, str]
    options: Any
    store: Store
    users: UserDirectory
    throttle: Throttle
    passwords: PasswordChecker
    clients: PeerResolver
    clock: ServiceClock
    reactor: IReactor


class Background(Protocol):
    """Work of a scheme beside its requests, such as fetching keys."""

    def start(self, previous: Self | None) -> None:
        """Start it; `previous` is the background work of the settings before a reload, None at the first start."""

    def retire(self) -> None:
        """Start no new work; running authentications finish."""

    def stop(self) -> None:
        """Stop, and cancel running work."""

    @property
    def states(self) -> Mapping[str, str]:
        """Its states (`postd.monitoring.health.Health`)."""

    @property
    def metrics(self) -> Metrics:
        """Its metrics."""


class Scheme(ABC):
    """An authentication scheme.

    Attributes:
        description: its words for the API's description.
        uses_accounts: whether the accounts of the user file can use it.
        has_bare_names: whether its identities have names without an issuer, as accounts have.
        options: the type of its own table in the settings file, which has its name; None if it has none.
    """

    description: SchemeDescription
    uses_accounts = False
    has_bare_names = True
    options: type[Struct] | None = None

    @abstractmethod
    def make(self, context: Context) -> tuple[SchemeParts, Background | None]:
        """Return its parts, and its background work, if there is any.

        Raises:
            ConfigError: a file that its settings name cannot be used.
        """

    def secrets(self, settings: Settings, name: str) -> str | None:
        """Name the secrets that the scheme `name` sends in clear text without TLS; None if it is not in use."""
        if self.uses_accounts:
            return "passwords" if settings.users else None
        return "credentials" if settings.uses_scheme(name) else None

    def settings_problems(self, settings: Settings, rules: Sequence[str]) -> Iterator[str]:  # noqa: ARG002
        """Yield a sentence for each problem of the settings; `rules` names the access rules with this scheme."""
        yield from ()

    def account_problems(self, settings: Settings, accounts: Mapping[str, Account]) -> Iterator[str]:  # noqa: ARG002
        """Yield a sentence for each problem of the user file, where an access rule has this scheme."""
        yield from ()

    def check(self, loaded: LoadedSettings) -> NetworkCheck | None:  # noqa: ARG002
        """Return the part of `postd check` that needs the network, None if nothing does."""
        return None
