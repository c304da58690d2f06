"""The composition root: the one place that knows the settings and all the parts."""

import os
import sys
from collections.abc import Sequence

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, gatherResults, maybeDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.config import LoadedSettings
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.listeners import Listener, bind, let_go
from postd.reactor import IReactor
from postd.store import PostStore, open_store
from postd.web.front.channel import PostdSite
from postd.web.site import make_root


class PostdService(Service):
    """The running server: a store, and listeners that are bound already."""

    _log = Logger()

    def __init__(self, store: PostStore, listeners: Sequence[Listener], *, reactor: IReactor) -> None:
        self._store = store
        self._listeners = listeners
        self._reactor = reactor
        self._starting: Deferred[None] | None = None

    def startService(self) -> None:
        super().startService()
        self._starting = Deferred.fromCoroutine(self._store.start())
        self._starting.addCallbacks(self._ready, self._not_ready)

    async def _stop(self) -> None:
        await gatherResults(
            [maybeDeferred(listener.port.stopListening) for listener in self._listeners], consumeErrors=True
        )
        await self._store.stop()
        await deferLater(self._reactor, 0)  # a turn for the sockets: the answers to the last writes go out

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    def _ready(self, _: None) -> None:
        self._log.info(
            "postd ready: {addresses}; store {store}; read open; write open",
            addresses=", ".join(listener.url for listener in self._listeners),
            store=self._store.description,
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
    store = open_store(settings.store, where=where["store"], reactor=reactor)
    limits = settings.limits
    site = PostdSite(make_root(store), max_body_bytes=limits.max_body_bytes, idle_s=limits.idle_s, reactor=reactor)
    listeners = bind(settings.listen, site, where=where["listen"], reactor=reactor)
    try:
        _refuse_open_writes(listeners, settings.insecure, where["listen"])
        # Last: it makes the file if there is none.
        _prepare(store, where["store"])
    except ConfigError:
        let_go(listeners)
        raise
    return PostdService(store, listeners, reactor=reactor)


def _prepare(store: PostStore, where: str) -> None:
    try:
        store.prepare()
    except StoreRefusedError as error:
        raise ConfigError(where, error.why) from None
    except StoreUnavailableError:
        pass  # merely away: requests get 503 until it is there, and start() tells the log why


def _refuse_open_writes(listeners: Sequence[Listener], insecure: frozenset[str], where: str) -> None:
    """Keep strangers from writing unless that is what was asked for (contract 7)."""
    exposed = [listener for listener in listeners if listener.exposed]
    if exposed and "open-writes" not in insecure:
        raise ConfigError(
            f"{where}: {exposed[0].description}",
            "anyone who reaches this address could write, unencrypted; listen on loopback, unix: or ssl:, "
            'or add insecure = ["open-writes"] to the settings file',
        )
