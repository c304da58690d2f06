"""The composition root: the one place that knows the settings and all the parts."""

import os
import signal
import sys
from collections.abc import Callable, Sequence

from msgspec import Struct
from twisted.application.service import IService, Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Factory
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import IResource

from postd.config import LoadedSettings, Settings, check_folders, count_workers
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.listeners import (
    Inherited,
    Listener,
    accept_waiting,
    adopt,
    bind,
    close,
    keep_waiting,
    let_go,
    let_in,
    own_locks,
)
from postd.logins import Logins
from postd.process import TRIM_EVERY_S, fit_descriptors, settle_memory, trim_memory
from postd.reactor import IReactor
from postd.review import exposure_problem, rules_of
from postd.store import Store, open_store
from postd.web.events import Events
from postd.web.front.access_log import AccessLog
from postd.web.front.site import PostdSite
from postd.web.site import ProtectedPage, make_root
from postd.workers import SHUTDOWN_GRACE_S, Started, WorkerPool

STORE_WAITED_FOR_S = 1.0
"""How long the first clients wait for the store at the most. Then they are told that it is away."""

_log = Logger()


class Parts(Struct, frozen=True):
    """What serves with a store, none of it started yet."""

    store: Store
    logins: Logins
    events: Events
    site: PostdSite


class PostdService(Service):
    """What serves, in this process: its parts, and listeners that are bound already.

    Args:
        parts: what the listeners' connections are served with.
        listeners: the bound ports.
        started: told whether the store answers.
        reactor: its clock.
    """

    _log = Logger()

    def __init__(self, parts: Parts, listeners: Sequence[Listener], *, started: Started, reactor: IReactor) -> None:
        self._store = parts.store
        self._logins = parts.logins
        self._events = parts.events
        self._site = parts.site
        self._listeners = listeners
        self._started = started
        self._reactor = reactor
        self._starting: Deferred[None] | None = None
        self._opening: IDelayedCall | None = None
        self._trimming = LoopingCall(trim_memory)
        self._trimming.clock = reactor

    def startService(self) -> None:
        super().startService()
        self._site.connections_max = fit_descriptors(self._site.connections_max)
        settle_memory()
        self._trimming.start(TRIM_EVERY_S, now=False)
        self._logins.start()
        # A store that is there is open in a moment: nobody is told in it that it is away.
        keep_waiting(self._listeners)
        self._opening = self._reactor.callLater(STORE_WAITED_FOR_S, self._let_in)
        self._starting = Deferred.fromCoroutine(self._store.start())
        self._starting.addCallbacks(self._ready, self._not_ready)

    def _ready(self, _: None) -> None:
        self._let_in()
        self._started.ready()

    def _let_in(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            if opening.active():
                opening.cancel()
            let_in(self._listeners)

    async def _stop(self) -> None:
        if self._trimming.running:
            self._trimming.stop()
        self._let_in()
        self._site.begin_end()
        self._events.close()
        accept_waiting(self._listeners)
        # It takes a turn, in which what they have sent is read.
        await close(self._listeners)
        await self._site.finish(within_s=SHUTDOWN_GRACE_S)
        try:
            self._logins.stop()
        finally:
            await self._store.stop()
        await deferLater(self._reactor, 0)  # a turn for the sockets that were cut off

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    def reload(self) -> None:
        """Take up what has changed."""
        self._logins.reload()

    def _not_ready(self, failure: Failure) -> None:
        if failure.check(StoreRefusedError):
            self._started.refused(failure.getErrorMessage())
        elif not failure.check(CancelledError):
            self._log.failure("the store could not be started", failure=failure)


def make_service(
    loaded: LoadedSettings, *, reactor: IReactor, reopen_log: Callable[[], None] = lambda: None
) -> IService:
    """Build the server, or what starts its workers. The store has been tried and the ports are bound when this returns.

    Args:
        loaded: the settings.
        reactor: the process's.
        reopen_log: called on SIGHUP, before anything else is.

    Raises:
        ConfigError: a setting cannot be used; nothing is left bound.
    """
    settings, where = loaded.settings, loaded.where
    check_folders(loaded)
    # With workers they are made here all the same, for what can be wrong with them.
    parts = _make_parts(loaded, reactor)
    count = count_workers(loaded)
    listeners = bind(settings.listen, parts.site if count == 1 else _nobody(), where=where["listen"], reactor=reactor)
    try:
        _refuse_exposure(listeners, settings, where["listen"])
        # Last: it makes the file if there is none.
        _prepare(parts.store, where["store"])
    except ConfigError:
        let_go(listeners)
        raise
    rules = "; ".join(f"{what} {', '.join(schemes)}" for what, schemes in rules_of(settings).items())

    def ready() -> None:
        _log.info(
            "postd ready: {addresses}; store {store}; {rules}{workers}",
            addresses=", ".join(listener.url for listener in listeners),
            store=parts.store.description,
            rules=rules,
            workers=f"; {count} workers" if count > 1 else "",
        )

    def refused(why: str) -> None:
        _end(why, reactor)

    started = Started(ready, refused)
    service: PostdService | WorkerPool
    if count > 1:
        service = WorkerPool(loaded, listeners, count, started=started, reactor=reactor)
    else:
        service = PostdService(parts, listeners, started=started, reactor=reactor)

    _listen_to_signals(service.reload, reopen_log, reactor)
    reactor.callWhenRunning(own_locks, listeners)
    return service


def _listen_to_signals(reload: Callable[[], None], reopen_log: Callable[[], None], reactor: IReactor) -> None:
    """Reload on SIGHUP, and while the server ends take no notice of who asks for it once more."""

    def hang_up() -> None:
        reopen_log()
        _log.info("SIGHUP: looking for what has changed")
        reload()

    def deafen() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    # As Twisted has its own: a handler may run in the middle of anything.
    reactor.callWhenRunning(signal.signal, signal.SIGHUP, lambda *_: reactor.callFromThread(hang_up))
    # Stock Twisted would log a traceback.
    reactor.addSystemEventTrigger("before", "shutdown", deafen)


def make_worker(
    loaded: LoadedSettings, sockets: Sequence[Inherited], *, started: Started, reactor: IReactor
) -> PostdService:
    """Build what a worker process serves with, from what its parent has tried and bound.

    Args:
        loaded: the parent's settings.
        sockets: those to accept on.
        started: for `PostdService`, as the reactor.
        reactor: likewise.

    Raises:
        ConfigError: a file that the settings name cannot be used any more.
    """
    parts = _make_parts(loaded, reactor)
    listeners = adopt(sockets, parts.site, where=loaded.where["listen"], reactor=reactor)
    return PostdService(parts, listeners, started=started, reactor=reactor)


def _make_parts(loaded: LoadedSettings, reactor: IReactor) -> Parts:
    settings, where = loaded.settings, loaded.where
    store = open_store(settings.store, where=where["store"], reactor=reactor)
    logins = Logins(settings, store, reactor=reactor, issuers_where=where["bearer"])
    events = Events(store, reactor=reactor)
    root = make_tree(settings, store, events, logins)
    as_json, address_of = settings.log.format == "json", logins.access.clients.address
    access_log = AccessLog(as_json=as_json, address_of=address_of, reactor=reactor) if settings.log.access else None
    site = PostdSite(root, limits=settings.limits, access_log=access_log, reactor=reactor)
    return Parts(store, logins, events, site)


def _nobody() -> Factory:
    """Return what stands behind ports that are not accepted on."""
    factory = Factory()
    factory.noisy = False
    return factory


def _end(why: str, reactor: IReactor) -> None:
    """End the process as a start that fails ends it (contract 1); twistd has taken over and would exit with 0."""
    _log.critical("{why}", why=why)
    print(f"postd: {why}", file=sys.__stderr__, flush=True)
    reactor.addSystemEventTrigger("after", "shutdown", os._exit, 1)
    reactor.callWhenRunning(reactor.stop)


def make_tree(settings: Settings, store: Store, events: Events, logins: Logins) -> IResource:
    """Return the resource tree that the settings ask for."""
    pages = [ProtectedPage(page.path, page.schemes, page.files, page.allowed) for page in settings.pages]
    api = settings.api
    return make_root(
        store, events, logins.access, read=api.read, write=api.write, pages=pages, cors_origins=api.cors_origins
    )


def _prepare(store: Store, where: str) -> None:
    try:
        store.prepare()
    except StoreRefusedError as error:
        raise ConfigError(where, error.why) from None
    except StoreUnavailableError:
        pass  # merely away: requests get 503 until it is there, and start() tells the log why


def _refuse_exposure(listeners: Sequence[Listener], settings: Settings, where: str) -> None:
    """Keep strangers from writing, and passwords from travelling in plain text (contract 7)."""
    for listener in listeners:
        problem = exposure_problem(settings) if listener.exposed else None
        if problem is not None:
            raise ConfigError(f"{where}: {listener.description}", problem)
