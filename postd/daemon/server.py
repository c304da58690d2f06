"""What serves in a process: a store with all that stands before it, and its life."""

from collections.abc import Callable, Sequence

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import IResource

from postd.daemon.authentication import Authentication
from postd.daemon.resources import TRIM_EVERY_S, fit_descriptors, freeze_startup_objects, trim_memory
from postd.daemon.settings_checks import exposure_problem
from postd.daemon.worker_pool import StartCallbacks
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.monitoring.health import OK, Report
from postd.monitoring.tally import Numbers, Tally
from postd.net.listening import (
    Listener,
    accept_backlog_and_close,
    local_addresses,
    pause_accepting,
    reload_certificates,
    resume_accepting,
)
from postd.reactor import IReactor
from postd.settings.loading import LoadedSettings, check_page_folders
from postd.settings.schema import Settings
from postd.store.interface import Store
from postd.store.opening import open_store
from postd.web.events import Events
from postd.web.peer import Clients
from postd.web.routes import ProtectedPage, make_root
from postd.web.server.access_log import AccessLog
from postd.web.server.allowed_hosts import Hosts
from postd.web.server.factory import PostdSite
from postd.web.server.request import PostdRequest

STORE_WAITED_FOR_S = 1.0
"""How long the first clients wait for the store at the most. Then they are told that it is away."""


class ServerParts:
    """What serves with a store, none of it started yet.

    Args:
        loaded: what is to be served, and to whom.
        reactor: its clock, and what it runs in.

    Attributes:
        settings: those that are in force.
        store, logins, events, site: the parts. A reload has others in the place of `logins`.

    Raises:
        ConfigError: a setting, or a file that the settings name, cannot be used.
    """

    def __init__(self, loaded: LoadedSettings, *, reactor: IReactor) -> None:
        settings, where = loaded.settings, loaded.where
        check_page_folders(loaded)
        self.settings = settings
        self._reactor = reactor
        self.tally = Tally() if settings.admin.listen else None
        self.store = open_store(settings.store, where=where["store"], reactor=reactor)
        if self.tally is not None:
            self.store.timed = self.tally.note_store
        self.events = Events(self.store, reactor=reactor)
        self.logins = Authentication(settings, self.store, reactor=reactor, issuers_where=where["bearer"])
        self.site = PostdSite(
            make_tree(settings, self.store, self.events, self.logins),
            limits=settings.limits,
            hosts=_make_hosts(settings, self.logins.access.clients),
            access_log=self._make_access_log(settings, self.logins),
            tally=self.tally,
            secure_fields=_secure_fields(settings, self.logins),
            group_of=self.logins.access.clients.connection_group,
            reactor=reactor,
        )

    def _make_access_log(self, settings: Settings, logins: Authentication) -> AccessLog | None:
        if not settings.log.access:
            return None
        address_of, as_json = logins.access.clients.address, settings.log.format == "json"
        return AccessLog(as_json=as_json, address_of=address_of, reactor=self._reactor)

    def renew(self, loaded: LoadedSettings, listeners: Sequence[Listener]) -> Callable[[], None]:
        """Make what other settings ask for. What is returned puts it into force; the store stays what it is.

        Args:
            loaded: the other settings.
            listeners: those that are listened on, whose certificates are read anew.

        Raises:
            ConfigError: they cannot be used; nothing has changed.
        """
        settings, where = loaded.settings, loaded.where
        check_page_folders(loaded)
        refuse_exposure(listeners, settings, where["listen"])
        show_certificates = reload_certificates(listeners, where=where["listen"])
        logins = Authentication(
            settings, self.store, reactor=self._reactor, issuers_where=where["bearer"], before=self.logins
        )
        root = make_tree(settings, self.store, self.events, logins)

        def put_into_force() -> None:
            before, self.settings, self.logins = self.settings, settings, logins
            show_certificates()
            self.site.renew(
                root,
                limits=settings.limits,
                hosts=_make_hosts(settings, logins.access.clients),
                access_log=self._make_access_log(settings, logins),
                secure_fields=_secure_fields(settings, logins),
                group_of=logins.access.clients.connection_group,
            )
            if settings.bearer or any(getattr(settings, name) != getattr(before, name) for name in _OF_LISTENERS):
                self.events.end_earlier()  # whoever may still listen comes back

        return put_into_force

    def numbers(self, *, whole: bool) -> Numbers:
        """Return what was counted, as `Tally.numbers`; nothing, if nobody could ask."""
        if self.tally is None:
            return Numbers()
        numbers = self.tally.numbers(whole=whole)
        numbers.add(self.logins.numbers)
        numbers.amounts["workers",] = 1
        numbers.counts["worker_ends",] = 0
        numbers.amounts["connections",] = len(self.site.channels)
        numbers.amounts["listeners",] = self.events.listeners
        return numbers


_OF_LISTENERS = ("api", "users", "realm", "session", "bearer", "trusted_proxies")
"""The settings on which it depends who may go on listening to changes. Where there are issuers, it depends on what they
are asked with, too."""


def _make_hosts(settings: Settings, clients: Clients) -> Hosts | None:
    """Return the rule for the hosts of requests, None for any host."""
    return None if "*" in settings.hosts else Hosts(settings.hosts, clients)


def _secure_fields(settings: Settings, logins: Authentication) -> Callable[[PostdRequest], bytes] | None:
    return logins.access.clients.strict_transport(settings.hsts_s) if settings.hsts_s else None


class Server(Service):
    """What serves, in this process: its parts, and listeners that are bound already.

    Args:
        parts: what the listeners' connections are served with.
        listeners: the bound ports.
        started: told how the start turns out.
        reactor: its clock.
    """

    _log = Logger()

    def __init__(
        self, parts: ServerParts, listeners: Sequence[Listener], *, started: StartCallbacks, reactor: IReactor
    ) -> None:
        parts.site.local_addresses = local_addresses(listeners)
        self._parts = parts
        self._store = parts.store
        self._listeners = listeners
        self._started = started
        self._reactor = reactor
        self._starting: Deferred[None] | None = None
        self._opening: IDelayedCall | None = None
        self._trimming = LoopingCall(trim_memory)
        self._trimming.clock = reactor

    def startService(self) -> None:
        super().startService()
        self._fit_connections()
        freeze_startup_objects()
        self._trimming.start(TRIM_EVERY_S, now=False)
        self._parts.logins.start()
        # A store that is there is open in a moment: nobody is told in it that it is away.
        pause_accepting(self._listeners)
        self._opening = self._reactor.callLater(STORE_WAITED_FOR_S, self._let_in)
        self._starting = Deferred.fromCoroutine(self._store.start())
        self._starting.addCallbacks(self._ready, self._not_ready)

    def _fit_connections(self) -> None:
        site = self._parts.site
        site.connections_max = fit_descriptors(site.connections_max)

    def _ready(self, _: None) -> None:
        if self.running:  # else the listeners, whose addresses would be told, are closed
            self._let_in()
            self._started.ready()

    def _let_in(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            if opening.active():
                opening.cancel()
            resume_accepting(self._listeners)
            if self.running:
                self._started.serving()

    async def _stop(self) -> None:
        site = self._parts.site
        if self._trimming.running:
            self._trimming.stop()
        self._let_in()
        site.begin_end()
        self._parts.events.close()
        accept_backlog_and_close(self._listeners)
        await deferLater(self._reactor, 0)  # a turn, in which what they have sent is read
        await site.finish(within_s=self._parts.settings.shutdown_grace_s)
        try:
            self._parts.logins.stop()
        finally:
            await self._store.stop()
        await deferLater(self._reactor, 0)  # a turn for the sockets that were cut off

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    def reload(self, loaded: LoadedSettings) -> None:
        """Serve from now on as other settings say (`postd.daemon.operations.ReloadableServer`)."""
        self._parts.renew(loaded, self._listeners)()
        self._fit_connections()
        self._parts.logins.start()

    async def report(self, *, whole: bool) -> Report:
        """Return how it is (`postd.daemon.operations.ReloadableServer`)."""
        states = {"store": await self._state_of_store(), **self._parts.logins.states}
        if not self.running:
            states = {"service": "stopping", **states}
        return Report(states, self._parts.numbers(whole=whole))

    async def _state_of_store(self) -> str:
        try:
            await self._store.version()
        except StoreUnavailableError as error:
            return error.why
        return OK

    def _not_ready(self, failure: Failure) -> None:
        if failure.check(StoreRefusedError):
            self._started.refused(failure.getErrorMessage())
        elif not failure.check(CancelledError):
            self._log.failure("the store could not be started", failure=failure)


def make_tree(settings: Settings, store: Store, events: Events, logins: Authentication) -> IResource:
    """Return the resource tree that the settings ask for."""
    pages = [ProtectedPage(page.path, page.schemes, page.files, page.allowed) for page in settings.pages]
    api = settings.api
    return make_root(
        store, events, logins.access, read=api.read, write=api.write, pages=pages, cors_origins=api.cors_origins
    )


def refuse_exposure(listeners: Sequence[Listener], settings: Settings, where: str) -> None:
    """Keep strangers from writing, and passwords from travelling in plain text (contract 7)."""
    for listener in listeners:
        problem = exposure_problem(settings) if listener.exposed else None
        if problem is not None:
            raise ConfigError(f"{where}: {listener.description}", problem)
