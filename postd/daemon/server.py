"""One server process: wiring of its parts, startup, reload and shutdown."""

from collections.abc import Callable, Sequence

from msgspec import Struct
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import IResource

from postd.daemon import resources
from postd.daemon.log import ACCESS_LOG
from postd.daemon.schemes import make_authentication
from postd.daemon.settings_checks import describe_deployment, exposure_problem
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.front.access_log import AccessLog
from postd.front.allowed_hosts import Hosts
from postd.front.factory import HttpFactory
from postd.monitoring.health import OK, Health
from postd.monitoring.tally import Metrics, Tally
from postd.net import listening
from postd.net.listening import Listener
from postd.protect.assembly import Authentication
from postd.protect.schemes.interface import Scheme
from postd.reactor import IReactor, ServiceClock
from postd.settings.loading import LoadedSettings, check_page_folders
from postd.settings.schema import Settings, comparable_accounts
from postd.store.interface import Store
from postd.store.opening import open_store
from postd.web.authorship import Authorship
from postd.web.events import Events
from postd.web.routes import ProtectedPage, make_root
from postd.web.routing import is_api

STORE_WAIT_MAX_S = 1.0
"""How long the first clients wait for the store; after that, requests get 503 until it answers."""

RELOAD_FAILED = "reload failed, keeping the current settings: {error}"
"""The log message of a reload with invalid settings."""


class StartCallbacks(Struct, frozen=True):
    """Callbacks of the start of a server, in one process or several: `accepting` when all listeners accept
    connections, `ready` when the store answers as well, `failed` with the reason if the server can never be ready.
    """

    accepting: Callable[[], None]
    ready: Callable[[], None]
    failed: Callable[[str], None]


class ServerParts:
    """The parts of a server, none of them started.

    Args:
        loaded: the settings.
        clock: the clock of the dates in the store.
        access_log: receives the lines of requests.
        shared_memory: for the store, if this process is a worker of several.

    Attributes:
        settings: the current settings; a reload replaces them.
        authentication: the authentication, which a reload replaces.
        store, events, site, tally: the other parts, which a reload keeps.

    Raises:
        ConfigError: a setting, or a file that the settings name, cannot be used.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        clock: ServiceClock,
        reactor: IReactor,
        access_log: Logger = ACCESS_LOG,
        shared_memory: int | None = None,
    ) -> None:
        settings, where = loaded.settings, loaded.where
        check_page_folders(loaded)
        self.settings = settings
        self._clock = clock
        self._reactor = reactor
        self._access_log = access_log
        self.tally = Tally() if settings.admin.listen else None
        self.store = open_store(settings.store, where=where["store"], reactor=reactor, shared_memory=shared_memory)
        if self.tally is not None:
            self.store.observer = self.tally.record_store
        self.events = Events(self.store, reactor=reactor)
        self.authentication = make_authentication(loaded, self.store, clock=clock, reactor=reactor)
        root = make_tree(settings, self.store, self.events, self.authentication)
        self.site = HttpFactory(root, limits=settings.limits, tally=self.tally, is_api=is_api, reactor=reactor)
        self._renew_site(root)

    def _renew_site(self, root: IResource) -> None:
        """Serve a resource tree with the current settings and schemes."""
        settings, clients = self.settings, self.authentication.context.clients
        access_log = None
        if settings.log.access:
            form = "combined" if settings.log.access_file else settings.log.format
            access_log = AccessLog(form, address_of=clients.address, log=self._access_log, reactor=self._reactor)
        self.site.reconfigure(
            root,
            limits=settings.limits,
            hosts=None if "*" in settings.hosts else Hosts(settings.hosts, clients),
            access_log=access_log,
            secure_fields=clients.strict_transport(settings.hsts_s) if settings.hsts_s else None,
            group_of=clients.connection_group,
            client_of=clients.network,
            site_name=settings.realm,
            bodiless_paths={page.path.encode("ascii") for page in settings.pages if page.forward},
        )

    def prepare_reload(self, loaded: LoadedSettings, listeners: Sequence[Listener]) -> Callable[[], None]:
        """Make the parts that other settings need, and read the certificates of the listeners again.

        Returns:
            a function that puts them in place. The store is kept.

        Raises:
            ConfigError: the settings cannot be used; nothing has changed.
        """
        settings, where = loaded.settings, loaded.where
        check_page_folders(loaded)
        previous = self.authentication
        authentication = make_authentication(
            loaded, self.store, clock=self._clock, reactor=self._reactor, previous=previous
        )
        refuse_exposure(listeners, settings, authentication.schemes, where["listen"])
        replace_certificates = listening.reload_certificates(listeners, where=where["listen"])
        root = make_tree(settings, self.store, self.events, authentication)

        def apply() -> None:
            before, self.settings, self.authentication = self.settings, settings, authentication
            replace_certificates()
            listening.ask_for_client_certificates(listeners, ask=settings.tls.asks_clients)
            self._renew_site(root)
            changed = any(getattr(settings, name) != getattr(before, name) for name in _STREAM_SETTINGS)
            if settings.bearer or changed or authentication.schemes != previous.schemes:
                self.events.end_earlier_generations()  # clients that are still allowed to read reconnect

        return apply

    def metrics(self, *, full: bool) -> Metrics:
        """Return the metrics, as `Tally.metrics`; none if there is no admin listener to show them."""
        if self.tally is None:
            return Metrics()
        metrics = self.tally.metrics(full=full)
        for _, background in self.authentication.background:
            metrics.add(background.metrics)
        metrics.gauges["workers",] = 1
        metrics.counters["worker_ends",] = 0
        metrics.gauges["connections",] = len(self.site.channels)
        metrics.gauges["event_listeners",] = self.events.subscribers
        return metrics


_STREAM_SETTINGS = ("api", "users", "realm", "trusted_proxies")
"""The settings that decide which clients may read the event stream, beside the schemes and the secrets of issuers."""


class Server(Service):
    """A server in this process, on listeners that are already bound."""

    _log = Logger()

    def __init__(
        self, parts: ServerParts, listeners: Sequence[Listener], *, callbacks: StartCallbacks, reactor: IReactor
    ) -> None:
        parts.site.local_addresses = listening.local_addresses(listeners)
        listening.ask_for_client_certificates(listeners, ask=parts.settings.tls.asks_clients)
        self._parts = parts
        self._listeners = listeners
        self._callbacks = callbacks
        self._reactor = reactor
        self._accept_timeout: IDelayedCall | None = None
        self._trimming = LoopingCall(resources.trim_memory)
        self._trimming.clock = reactor

    def startService(self) -> None:
        super().startService()
        self._fit_connections()
        resources.freeze_startup_objects()
        self._trimming.start(resources.TRIM_EVERY_S)
        self._parts.authentication.start()
        # A store that is available opens within a moment: until then, clients wait instead of getting 503.
        listening.pause_accepting(self._listeners)
        self._accept_timeout = self._reactor.callLater(STORE_WAIT_MAX_S, self._accept)
        starting = Deferred.fromCoroutine(self._start_store())
        starting.addCallbacks(self._store_ready, self._store_failed)

    def _fit_connections(self) -> None:
        site = self._parts.site
        site.connections_max = resources.raise_descriptor_limit(site.connections_max)

    async def _start_store(self) -> None:
        await self._parts.store.start()
        await self._parts.authentication.purge_expired()

    def _store_ready(self, _: None) -> None:
        if self.running:  # else the listeners, whose addresses would be logged, are closed
            self._accept()
            self._callbacks.ready()

    def _store_failed(self, failure: Failure) -> None:
        if failure.check(StoreRefusedError):
            self._callbacks.failed(failure.getErrorMessage())
        elif not failure.check(CancelledError):
            self._log.failure("store: could not be started", failure=failure)

    def _accept(self) -> None:
        timeout, self._accept_timeout = self._accept_timeout, None
        if timeout is not None:
            if timeout.active():
                timeout.cancel()
            listening.resume_accepting(self._listeners)
            if self.running:
                self._callbacks.accepting()

    async def _stop(self) -> None:
        site = self._parts.site
        if self._trimming.running:
            self._trimming.stop()
        self._accept()
        site.draining = True
        self._parts.events.close()
        listening.accept_backlog_and_close(self._listeners)
        await deferLater(self._reactor, 0)  # a reactor turn, in which pending requests are read
        await site.drain(within_s=self._parts.settings.shutdown_grace_s)
        try:
            self._parts.authentication.stop()
        finally:
            await self._parts.store.stop()
        await deferLater(self._reactor, 0)  # a reactor turn, in which aborted sockets are closed

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    def reload(self, loaded: LoadedSettings) -> None:
        """Apply other settings, and reread the files that they name.

        Raises:
            ConfigError: they cannot be used; nothing has changed.
        """
        self._parts.prepare_reload(loaded, self._listeners)()
        self._fit_connections()
        self._parts.authentication.start()
        resources.collect_replaced()

    def set_ticket_key(self, key: bytes) -> None:
        """Replace the key of TLS tickets, which all processes share."""
        listening.set_ticket_key(self._listeners, key)

    async def health(self, *, full: bool) -> Health:
        """Return its health; without `full` the metrics may be incomplete."""
        store = OK
        try:
            await self._parts.store.version()
        except StoreUnavailableError as error:
            store = error.why
        states = {"store": store, **self._parts.authentication.states}
        if not self.running:
            states = {"service": "stopping", **states}
        return Health(states, self._parts.metrics(full=full))


def make_tree(settings: Settings, store: Store, events: Events, authentication: Authentication) -> IResource:
    """Return the resource tree for the settings."""
    pages = [
        ProtectedPage(
            page.path,
            page.schemes,
            page.files,
            page.allowed,
            page.read_scope,
            page.write_scope,
            page.forward,
            settings.described_hosts(page),
        )
        for page in settings.pages
    ]
    api, deployment = settings.api, describe_deployment(settings)
    return make_root(
        store,
        events,
        authentication,
        read=api.read,
        write=api.write,
        judged=[scheme.name for scheme in authentication.schemes if scheme.secrets(deployment) is not None],
        pages=pages,
        has_board=settings.board.enabled,
        now=authentication.context.clock.seconds,
        authorship=Authorship(api.own, comparable_accounts(api.moderators), api.show_authors == "all"),
        cors_origins=api.cors_origins,
    )


def refuse_exposure(listeners: Sequence[Listener], settings: Settings, schemes: Sequence[Scheme], where: str) -> None:
    """Raise ConfigError if writes are open on a listener, or credentials unencrypted (reference: Safe by default)."""
    for listener in listeners:
        problem = exposure_problem(settings, schemes) if listener.exposed else None
        if problem is not None:
            raise ConfigError(f"{where}: {listener.description}", problem)
