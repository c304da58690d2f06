"""The composition root: the only module that has all settings and all parts of a server."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from twisted.logger import Logger

from postd.daemon.log import ACCESS_LOG, file_problem
from postd.daemon.operations import Operations, admin_hosts
from postd.daemon.server import Server, ServerParts, StartCallbacks, refuse_exposure
from postd.daemon.worker_pool import WorkerPool
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.front.factory import HttpFactory
from postd.net import listening
from postd.net.endpoints import check_endpoint, make_unused_factory
from postd.net.listening import Listener
from postd.net.ports import InheritedSocket
from postd.reactor import IReactor, ServiceClock
from postd.settings.loading import LoadedSettings, count_workers
from postd.settings.schema import Settings
from postd.store.opening import open_store
from postd.web.routing import Router

_log = Logger()


def make_service(
    loaded: LoadedSettings,
    *,
    reactor: IReactor,
    read_settings: Callable[[], LoadedSettings] | None = None,
    reopen_log: Callable[[], None] = lambda: None,
    access_log: Logger = ACCESS_LOG,
) -> Operations:
    """Build the server, or the parent of its workers. When this returns, its ports are bound and its store was tried.

    Args:
        loaded: the settings.
        reactor: that of the process.
        read_settings: reads the settings again, for a reload; without it they stay as they are.
        reopen_log: called first on SIGHUP.
        access_log: receives the lines of requests.

    Raises:
        ConfigError: a setting cannot be used; nothing is left bound.
    """
    settings, where = loaded.settings, loaded.where
    clock = ServiceClock(reactor)
    # Also with workers, which build their own: this checks the settings.
    parts = ServerParts(loaded, clock=clock, access_log=access_log, reactor=reactor)
    count = count_workers(loaded)
    factory = parts.site if count == 1 else make_unused_factory()
    listeners = listening.bind(settings.listen, factory, where=where["listen"], reactor=reactor)
    bound = [*listeners]
    try:
        refuse_exposure(listeners, settings, parts.authentication.schemes, where["listen"])
        operations = Operations(
            loaded,
            read_settings=partial(_read_again, read_settings or (lambda: loaded), loaded, reactor),
            reopen_log=reopen_log,
            listeners=listeners,
            store=parts.store.description,
            reactor=reactor,
        )
        if settings.admin.listen:
            _bind_admin(operations, settings, f"{where['admin']}.listen", reactor)
            bound += operations.admin_listeners
        try:
            # Last: it creates the file if there is none.
            if parts.store.prepare():
                _log.info("store {store}: created, as there was none", store=parts.store.description)
        except StoreRefusedError as error:
            raise ConfigError(where["store"], error.why) from None
        except StoreUnavailableError:
            pass  # requests get 503 until it is available; its start logs why
    except ConfigError:
        listening.unbind(bound)
        raise
    for name in listening.unclaimed_systemd_sockets(bound):
        _log.warn("systemd passed socket {name}, but no listen endpoint uses it", name=name)
    for listener in operations.admin_listeners:
        if listener.exposed:
            _log.warn("admin listener {url} is reachable from other machines", url=listener.url)
    callbacks = StartCallbacks(
        operations.on_accepting,
        partial(_log_ready, operations, settings, listeners, parts.store.description, count),
        partial(_abort_start, reactor),
    )
    if count > 1:
        prepare_reload = partial(parts.prepare_reload, listeners=listeners)
        operations.server = WorkerPool(
            loaded,
            listeners,
            count,
            callbacks=callbacks,
            prepare_reload=prepare_reload,
            clock=clock,
            access_log=access_log,
            reactor=reactor,
        )
    else:
        operations.server = Server(parts, listeners, callbacks=callbacks, reactor=reactor)
    return operations


def make_worker(  # noqa: PLR0913 - all that the parent passes on
    loaded: LoadedSettings,
    sockets: Sequence[InheritedSocket],
    shared_memory: int,
    *,
    callbacks: StartCallbacks,
    clock_offset_s: float,
    reactor: IReactor,
) -> Server:
    """Build the server of a worker process from the settings, sockets, shared memory and clock of its parent.

    Raises:
        ConfigError: a file that the settings name cannot be used any more.
    """
    clock = ServiceClock(reactor, offset_s=clock_offset_s)
    parts = ServerParts(loaded, clock=clock, reactor=reactor, shared_memory=shared_memory)
    listeners = listening.adopt_sockets(sockets, parts.site, where=loaded.where["listen"], reactor=reactor)
    return Server(parts, listeners, callbacks=callbacks, reactor=reactor)


def _bind_admin(operations: Operations, settings: Settings, where: str, reactor: IReactor) -> None:
    from postd.web.admin import Admin  # noqa: PLC0415 - the import takes time that most starts save

    views = Router(Admin(operations.health))
    site = HttpFactory(views, limits=settings.limits, hosts=admin_hosts(settings), reactor=reactor)
    operations.admin_site = site
    operations.admin_listeners = listening.bind(settings.admin.listen, site, where=where, reactor=reactor)
    site.local_addresses = listening.local_addresses(operations.admin_listeners)


def _log_ready(
    operations: Operations, settings: Settings, listeners: Sequence[Listener], store: str, workers: int
) -> None:
    operations.log_hosts()
    _log.info(
        "postd ready: {addresses}; store {store}; {rules}{workers}{admin}",
        addresses=", ".join(listener.url for listener in listeners),
        store=store,
        rules="; ".join(f"{what} {', '.join(schemes)}" for what, schemes in settings.access_rules.items()),
        workers=f"; {workers} workers" if workers > 1 else "",
        admin=f"; admin {', '.join(admin.url for admin in operations.admin_listeners)}"
        if settings.admin.listen
        else "",
    )
    operations.show_address()


def _abort_start(reactor: IReactor, why: str) -> None:
    """End the process with exit status 1 and one line (reference: Running); twistd would exit with 0."""
    _log.critical("{why}", why=why)
    print(f"postd: {why}", file=sys.__stderr__, flush=True)
    reactor.addSystemEventTrigger("after", "shutdown", os._exit, 1)
    reactor.callWhenRunning(reactor.stop)


def _read_again(read: Callable[[], LoadedSettings], before: LoadedSettings, reactor: IReactor) -> LoadedSettings:
    """Read the settings again, and also check settings that need a restart, so that the next start succeeds.

    Raises:
        ConfigError: something in them cannot be used.
    """
    loaded = read()
    settings, where = loaded.settings, loaded.where
    count_workers(loaded)
    open_store(settings.store, where=where["store"], reactor=reactor)
    for key, descriptions in ((where["listen"], settings.listen), (f"{where['admin']}.listen", settings.admin.listen)):
        for description in descriptions:
            check_endpoint(description, where=key)
    for key, file in settings.log.files.items():
        problem = file_problem(file) if before.settings.log.files.get(key) != file else ""
        if problem:
            raise ConfigError(f"{where['log']}.{key}", f"{file}: {problem}")
    return loaded
