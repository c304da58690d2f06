"""Operation of a server, whether it is one process or several: signals, reload, stop, admin listeners, systemd.

A reload applies everything that has changed, or logs an error and applies nothing (reference: Operations).
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

import postd
from postd.daemon.first_steps import address_to_open
from postd.daemon.server import RELOAD_FAILED, Server
from postd.daemon.settings_checks import describe_hosts, spoofing_problem
from postd.daemon.systemd import SystemdNotifier
from postd.daemon.worker_pool import WorkerPool
from postd.errors import ConfigError
from postd.front.allowed_hosts import Hosts
from postd.front.factory import HttpFactory
from postd.http.peer import PeerResolver
from postd.monitoring.health import Health
from postd.net.endpoints import NO_RESUMPTION, validity
from postd.net.listening import (
    TICKET_KEY_BYTES,
    TICKET_KEY_LIFETIME_S,
    Listener,
    certificate_warnings,
    close,
    reload_certificates,
    take_over_socket_locks,
)
from postd.reactor import IReactor
from postd.scheme_names import SCHEMES
from postd.settings.loading import LoadedSettings, keep_unreloadable
from postd.settings.schema import Settings

if TYPE_CHECKING:
    from postd.net.tls import Certificate  # imports OpenSSL (postd.daemon.startup)

STATUS_CHECK_EVERY_S = 1.0
"""How often the status that systemd shows is updated, and workers are checked."""

STOP_MAX_S = 15.0
"""How long a stop may take after `shutdown_grace`: stopping workers and the store, cutting off connections."""

ADMIN_STOP_MAX_S = 0.2
"""How long clients of the admin listeners have to read the rest of a response when the service stops."""

_HANDLED_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})

_HOST_SETTINGS = frozenset({"hosts", "public_url", "trusted_proxies"})
"""The settings that decide which hosts are served."""


class Operations(Service):
    """A server with its signal handlers, admin listeners and notifications to systemd.

    Args:
        read_settings: reads the settings again, for a reload; may raise ConfigError.
        reopen_log: called first on SIGHUP.
        store: the description of the server's store.

    Attributes:
        server: the server; set before the service starts.
        admin_listeners, admin_site: the admin listeners, if there are any, and their site; set at the same time.
    """

    _log = Logger()
    server: Server | WorkerPool
    admin_listeners: Sequence[Listener] = ()
    admin_site: HttpFactory | None = None

    def __init__(  # noqa: PLR0913 - all that an operator sees
        self,
        loaded: LoadedSettings,
        *,
        read_settings: Callable[[], LoadedSettings],
        reopen_log: Callable[[], None],
        listeners: Sequence[Listener],
        store: str,
        reactor: IReactor,
    ) -> None:
        self._loaded = loaded
        self._read_settings = read_settings
        self._reopen_log = reopen_log
        self._listeners = {listener.url: listener for listener in listeners}  # a closed port has no address
        self._store = store
        self._notifier = SystemdNotifier(os.environ, reactor=reactor)
        self._reactor = reactor
        self._started_at = time.time()
        self._reloads = {"taken": 0, "refused": 0}
        self._reload_problem = ""
        self._certificates: dict[str, Certificate] = {}
        self._is_accepting = self._is_stopping = False
        self._status_check = LoopingCall(self._update_status)
        self._status_check.clock = reactor
        self._ticket_key_renewal = LoopingCall(self._renew_ticket_key)
        self._ticket_key_renewal.clock = reactor

    def startService(self) -> None:
        super().startService()
        # First: until then another server would regard the lock of a UNIX socket as that of a dead process.
        listeners = [*self._listeners.values(), *self.admin_listeners]
        take_over_socket_locks(listeners)
        self._certificates = {each.url: each.certificate for each in listeners if each.certificate is not None}
        self._install_signal_handlers()
        if any(listener.tls for listener in self._listeners.values()):
            self._ticket_key_renewal.start(TICKET_KEY_LIFETIME_S)
        if any(listener.certificate and not listener.certificate.can_resume for listener in self._listeners.values()):
            self._log.info(NO_RESUMPTION)
        self.server.startService()
        # Stock Twisted logs a traceback for a second request to stop.
        self._reactor.addSystemEventTrigger("before", "shutdown", _ignore_signals)
        self._reactor.callWhenRunning(self._start_status_checks)

    def _renew_ticket_key(self) -> None:
        self.server.set_ticket_key(os.urandom(TICKET_KEY_BYTES))

    def _install_signal_handlers(self) -> None:
        """Handle signals before anything is started that has to be stopped.

        The reactor handles SIGINT and SIGTERM only once it runs. A Ctrl-C before that is a KeyboardInterrupt: it leaves
        threads running that the process waits for, or Twisted logs it and continues.
        """
        # Not directly: a handler may run at any bytecode.
        signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self.reload))
        signal.signal(signal.SIGTERM, partial(self._stop_once, self._reactor.sigTerm))
        # As in Twisted, a handler that ignores it (a shell's `&`) or belongs to a debugger stays.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, partial(self._stop_once, self._reactor.sigInt))
        # The parent process may have blocked them (daemon(7)).
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_HANDLED_SIGNALS, signal.SIGCHLD})

    def _stop_once(self, stop: Callable[[int, FrameType | None], None], number: int, frame: FrameType | None) -> None:
        """Stop the reactor at the first signal. Stock Twisted logs a traceback for a second one in the same turn."""
        if not self._is_stopping:
            self._is_stopping = True
            stop(number, frame)

    def _start_status_checks(self) -> None:
        self._install_signal_handlers()  # again: the reactor has just installed its own for SIGTERM
        self._notifier.start()
        if self._notifier.is_connected or isinstance(self.server, WorkerPool):  # else an idle server has work less
            self._status_check.start(STATUS_CHECK_EVERY_S)

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        for call in (self._status_check, self._ticket_key_renewal):
            if call.running:
                call.stop()
        self._notifier.stopping(self._loaded.settings.shutdown_grace_s + STOP_MAX_S)
        self._notifier.status("stopping: finishing running requests")
        try:
            await self.server.stopService()
        finally:
            if self.admin_site is not None:
                self.admin_site.draining = True
                await close(self.admin_listeners)
                self.admin_site.close_idle()
                await self.admin_site.drain(within_s=ADMIN_STOP_MAX_S)
            self._notifier.stop()

    def show_address(self) -> None:
        """Print the address to open in a browser, if standard error is a terminal."""
        address = address_to_open(self._loaded.settings, self._listeners.values())
        if address is not None and sys.__stderr__ is not None and sys.__stderr__.isatty():
            print(f"open {address}", file=sys.__stderr__, flush=True)

    def on_accepting(self) -> None:
        """Called when all listeners accept connections (`postd.daemon.server.StartCallbacks`)."""
        self._log_warnings()
        self._is_accepting = True
        self._notifier.ready()

    async def health(self) -> Health:
        """Return the health of the service, for the admin listeners."""
        health = await self.server.health(full=True)
        metrics = health.metrics
        metrics.counters.update({("reloads", outcome): count for outcome, count in self._reloads.items()})
        metrics.gauges["last_reload_good",] = not self._reload_problem
        metrics.gauges["ready",] = health.is_ready
        metrics.gauges["info", postd.__version__, self._store] = 1
        metrics.gauges["started",] = self._started_at
        for url, certificate in self._certificates.items():
            metrics.gauges["not_before", url] = certificate.not_before
            metrics.gauges["not_after", url] = certificate.not_after
        return health

    def reload(self) -> None:
        """Reopen the log files, then apply changed settings and reread the files that they name."""
        if not self.running:
            return
        self._reopen_log()
        self._log.info("SIGHUP: reloading")
        if self._is_accepting:
            self._notifier.reloading()
        try:
            self._reload_settings()
        except ConfigError as error:
            self._note_failed_reload(str(error))
            self._log.error(RELOAD_FAILED, error=error)
        except Exception as error:  # noqa: BLE001 - an error of the program must not stop the service
            self._note_failed_reload(type(error).__name__)
            self._log.failure("reload failed")
        else:
            self._reloads["taken"] += 1
            self._reload_problem = ""
        finally:
            if self._is_accepting:
                self._notifier.ready()

    def _note_failed_reload(self, why: str) -> None:
        self._reloads["refused"] += 1
        self._reload_problem = f"; last reload failed: {why}"

    def _reload_settings(self) -> None:
        before = self._loaded
        loaded, fixed = keep_unreloadable(self._read_settings(), before)
        earlier = {url: certificate.fingerprint for url, certificate in self._certificates.items()}
        replace_admin_certificates = reload_certificates(self.admin_listeners, where=f"{loaded.where['admin']}.listen")
        self.server.reload(loaded)
        replace_admin_certificates()
        self._loaded = loaded
        if self.admin_site is not None:
            self.admin_site.limits = loaded.settings.limits
            self.admin_site.hosts = admin_hosts(loaded.settings)
        names = loaded.settings.__struct_fields__
        encoded = dict(zip(names, loaded.settings.__struct_encode_fields__, strict=True))
        changed = [encoded[name] for name in names if getattr(loaded.settings, name) != getattr(before.settings, name)]
        own_tables = SCHEMES.keys() - encoded.values()
        changed += [name for name in sorted(own_tables) if loaded.values.get(name) != before.values.get(name)]
        if changed:
            self._log.info("settings reloaded: {changed}", changed=", ".join(changed))
        if _HOST_SETTINGS & set(changed):
            self.log_hosts()
        for url, certificate in self._certificates.items():
            if certificate.fingerprint != earlier[url]:
                self._log.info("{url} has a new certificate, {until}", url=url, until=validity(certificate))
        for key in fixed:
            self._log.warn("{key} changed in the settings: restart to apply it", key=key)
        self._log_warnings()

    def _log_warnings(self) -> None:
        for warning in certificate_warnings([*self._listeners.values(), *self.admin_listeners], time.time()):
            self._log.warn("{problem}", problem=warning)
        for listener in self._listeners.values():
            problem = spoofing_problem(self._loaded.settings, listener.description) if listener.world_writable else None
            if problem is not None:
                self._log.warn("{endpoint}: {problem}", endpoint=listener.description, problem=problem)

    def log_hosts(self) -> None:
        """Log which hosts each listener serves."""
        settings = self._loaded.settings
        for listeners, is_admin in ((self._listeners.values(), False), (self.admin_listeners, True)):
            for listener in listeners:
                hosts = describe_hosts(settings, local=listener.loopback_only, admin=is_admin)
                self._log.info("{url} answers requests for {hosts}", url=listener.url, hosts=hosts)

    async def _update_status(self) -> None:
        try:
            health = await self.server.health(full=False)
            if self.running:
                status = health.problems or f"ready: {', '.join(self._listeners)}; store {self._store}"
                self._notifier.status(status + self._reload_problem)
        except Exception:  # noqa: BLE001 - the next check comes all the same
            self._log.failure("status check failed")


def admin_hosts(settings: Settings) -> Hosts | None:
    """Return the allowed hosts of requests to the admin listeners, None for any host."""
    clients = PeerResolver(settings.trusted_proxies, settings.public_url)
    return None if "*" in settings.hosts else Hosts(settings.hosts, clients, exclusive=False)


def _ignore_signals() -> None:
    for number in _HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
