"""The composition root: the one place that knows the settings and all the parts."""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from twisted.logger import Logger

from postd.daemon.log import file_problem
from postd.daemon.operations import Operations, Place, admin_hosts
from postd.daemon.server import Server, ServerParts, refuse_exposure
from postd.daemon.settings_checks import rules_of
from postd.daemon.systemd import SystemdNotifier
from postd.daemon.worker_pool import StartCallbacks, WorkerPool
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.monitoring.health import Report
from postd.net.endpoints import check_endpoint, make_unused_factory
from postd.net.listening import (
    Listener,
    adopt_sockets,
    bind,
    local_addresses,
    take_over_socket_locks,
    unbind,
    unclaimed_systemd_sockets,
)
from postd.net.ports import InheritedSocket
from postd.reactor import IReactor
from postd.settings.loading import LoadedSettings, count_workers
from postd.settings.schema import Settings
from postd.store.interface import Store
from postd.store.opening import open_store
from postd.web.server.factory import PostdSite

_log = Logger()


def make_service(
    loaded: LoadedSettings,
    *,
    reactor: IReactor,
    reread_settings: Callable[[], LoadedSettings] | None = None,
    reopen_log: Callable[[], None] = lambda: None,
) -> Operations:
    """Build the server, or what starts its workers. The store has been tried and the ports are bound when this returns.

    Args:
        loaded: the settings.
        reactor: the process's.
        reread_settings: reads them anew, for a reload; if there is none they stay as they are.
        reopen_log: called on SIGHUP, before anything else is.

    Raises:
        ConfigError: a setting cannot be used; nothing is left bound.
    """
    settings, where = loaded.settings, loaded.where
    # With workers they are made here all the same, for what can be wrong with them.
    parts = ServerParts(loaded, reactor=reactor)
    count = count_workers(loaded)
    listeners = bind(
        settings.listen, parts.site if count == 1 else make_unused_factory(), where=where["listen"], reactor=reactor
    )
    admin: Place | None = None
    try:
        refuse_exposure(listeners, settings, where["listen"])
        supervisor = Operations(
            loaded,
            reread=partial(_reread, reread_settings or (lambda: loaded), loaded, reactor),
            reopen_log=reopen_log,
            listeners=listeners,
            store=parts.store.description,
            notifier=SystemdNotifier(os.environ, reactor=reactor),
            reactor=reactor,
        )
        if settings.admin.listen:
            admin = supervisor.admin = _bind_admin(settings, f"{where['admin']}.listen", supervisor.report, reactor)
        # Last: it makes the file if there is none.
        _prepare(parts.store, where["store"])
    except ConfigError:
        unbind([*listeners, *(admin.listeners if admin else ())])
        raise
    for name in unclaimed_systemd_sockets([*listeners, *(admin.listeners if admin else ())]):
        _log.warn("systemd has passed on the socket {name}, and no endpoint takes it: its clients wait", name=name)
    for listener in admin.listeners if admin else ():
        if listener.exposed:
            _log.warn("{url} is for those who run the server, and strangers can reach it", url=listener.url)
    rules = "; ".join(f"{what} {', '.join(schemes)}" for what, schemes in rules_of(settings).items())

    def ready() -> None:
        supervisor.log_hosts()
        _log.info(
            "postd ready: {addresses}; store {store}; {rules}{workers}{admin}",
            addresses=_urls(listeners),
            store=parts.store.description,
            rules=rules,
            workers=f"; {count} workers" if count > 1 else "",
            admin=f"; admin {_urls(admin.listeners)}" if admin else "",
        )

    def refused(why: str) -> None:
        _end(why, reactor)

    started = StartCallbacks(supervisor.serving, ready, refused)
    if count > 1:
        renew = partial(parts.renew, listeners=listeners)
        supervisor.server = WorkerPool(loaded, listeners, count, started=started, renew=renew, reactor=reactor)
    else:
        supervisor.server = Server(parts, listeners, started=started, reactor=reactor)
    reactor.callWhenRunning(take_over_socket_locks, [*listeners, *(admin.listeners if admin else ())])
    return supervisor


def _reread(read: Callable[[], LoadedSettings], before: LoadedSettings, reactor: IReactor) -> LoadedSettings:
    """Read the settings anew, and look at what takes a restart, too: the next start is not to fail by it.

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
    file = settings.log.file
    problem = file_problem(file) if file and file != before.settings.log.file else ""
    if problem:
        raise ConfigError(f"{where['log']}.file", f"{file}: {problem}")
    return loaded


def _bind_admin(settings: Settings, where: str, report: Callable[[], Awaitable[Report]], reactor: IReactor) -> Place:
    from postd.web.admin import make_admin_root  # noqa: PLC0415 - who has no use for it need not wait for its import

    root = make_admin_root(report)
    site = PostdSite(root, limits=settings.limits, hosts=admin_hosts(settings), reactor=reactor)
    listeners = bind(settings.admin.listen, site, where=where, reactor=reactor)
    site.local_addresses = local_addresses(listeners)
    return Place(listeners, site)


def _urls(listeners: Sequence[Listener]) -> str:
    return ", ".join(listener.url for listener in listeners)


def make_worker(
    loaded: LoadedSettings, sockets: Sequence[InheritedSocket], *, started: StartCallbacks, reactor: IReactor
) -> Server:
    """Build what a worker process serves with, from what its parent has tried and bound.

    Args:
        loaded: the parent's settings.
        sockets: those to accept on.
        started: for `Server`, as the reactor.
        reactor: likewise.

    Raises:
        ConfigError: a file that the settings name cannot be used any more.
    """
    parts = ServerParts(loaded, reactor=reactor)
    listeners = adopt_sockets(sockets, parts.site, where=loaded.where["listen"], reactor=reactor)
    return Server(parts, listeners, started=started, reactor=reactor)


def _end(why: str, reactor: IReactor) -> None:
    """End the process as a start that fails ends it (contract 1); twistd has taken over and would exit with 0."""
    _log.critical("{why}", why=why)
    print(f"postd: {why}", file=sys.__stderr__, flush=True)
    reactor.addSystemEventTrigger("after", "shutdown", os._exit, 1)
    reactor.callWhenRunning(reactor.stop)


def _prepare(store: Store, where: str) -> None:
    try:
        store.prepare()
    except StoreRefusedError as error:
        raise ConfigError(where, error.why) from None
    except StoreUnavailableError:
        pass  # merely away: requests get 503 until it is there, and start() tells the log why
