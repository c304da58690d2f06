"""The composition root: the one place that knows the settings and all the parts."""

import gc
import os
import sys
from collections.abc import Sequence

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, gatherResults, maybeDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import IResource

from postd.config import LoadedSettings, Settings, check_folders
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.listeners import Listener, bind, let_go
from postd.logins import Logins
from postd.reactor import IReactor
from postd.review import exposure_problem, rules_of
from postd.store import Store, open_store
from postd.web.front.channel import PostdSite
from postd.web.site import ProtectedPage, make_root

GC_THRESHOLD = 20000
"""Objects made and not freed before the garbage collector looks at the youngest: some 10 MiB at the most."""


class PostdService(Service):
    """The running server: a store, logins, and listeners that are bound already. `rules` is for the log."""

    _log = Logger()

    def __init__(
        self, store: Store, logins: Logins, listeners: Sequence[Listener], *, rules: str, reactor: IReactor
    ) -> None:
        self._store = store
        self._logins = logins
        self._listeners = listeners
        self._rules = rules
        self._reactor = reactor
        self._starting: Deferred[None] | None = None

    def startService(self) -> None:
        super().startService()
        # What is there now stays: the collector need not look at it again, nor after each 700 new objects, which is
        # every few requests. They are in cycles, mostly, so that it must run at all.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])
        self._logins.start()
        self._starting = Deferred.fromCoroutine(self._store.start())
        self._starting.addCallbacks(self._ready, self._not_ready)

    async def _stop(self) -> None:
        await gatherResults(
            [maybeDeferred(listener.port.stopListening) for listener in self._listeners], consumeErrors=True
        )
        try:
            self._logins.stop()
        finally:
            await self._store.stop()
        await deferLater(self._reactor, 0)  # a turn for the sockets: the answers to the last writes go out

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    def _ready(self, _: None) -> None:
        self._log.info(
            "postd ready: {addresses}; store {store}; {rules}",
            addresses=", ".join(listener.url for listener in self._listeners),
            store=self._store.description,
            rules=self._rules,
        )

    def _not_ready(self, failure: Failure) -> None:
        if failure.check(StoreRefusedError):
            self._end(failure.getErrorMessage())
        elif not failure.check(CancelledError):
            self._log.failure("the store could not be started", failure=failure)

    def _end(self, why: str) -> None:
        """End the process as a start that fails ends it (contract 1); twistd has taken over and would exit with 0."""
        self._log.critical("{why}", why=why)
        print(f"postd: {why}", file=sys.__stderr__, flush=True)
        self._reactor.addSystemEventTrigger("after", "shutdown", os._exit, 1)
        self._reactor.callWhenRunning(self._reactor.stop)


def make_service(loaded: LoadedSettings, *, reactor: IReactor) -> PostdService:
    """Build the server. The store has been tried and the ports are bound when this returns.

    Raises:
        ConfigError: a setting cannot be used; nothing is left bound.
    """
    settings, where = loaded.settings, loaded.where
    check_folders(loaded)
    store = open_store(settings.store, where=where["store"], reactor=reactor)
    logins = Logins(settings, store, reactor=reactor, issuers_where=where["bearer"])
    limits = settings.limits
    root = make_tree(settings, store, logins)
    site = PostdSite(root, max_body_bytes=limits.max_body_bytes, idle_s=limits.idle_s, reactor=reactor)
    listeners = bind(settings.listen, site, where=where["listen"], reactor=reactor)
    try:
        _refuse_exposure(listeners, settings, where["listen"])
        # Last: it makes the file if there is none.
        _prepare(store, where["store"])
    except ConfigError:
        let_go(listeners)
        raise
    rules = "; ".join(f"{what} {', '.join(schemes)}" for what, schemes in rules_of(settings).items())
    return PostdService(store, logins, listeners, rules=rules, reactor=reactor)


def make_tree(settings: Settings, store: Store, logins: Logins) -> IResource:
    """Return the resource tree that the settings ask for."""
    pages = [ProtectedPage(page.path, page.schemes, page.files, page.allowed) for page in settings.pages]
    return make_root(store, logins.access, read=settings.api.read, write=settings.api.write, pages=pages)


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
