"""What an operator and systemd see of a server, whether it is one process or several (contract 6).

It starts and stops what serves, has the admin listeners, tells systemd how it goes, and on SIGHUP brings in what is
new: all of it, or with a loud word nothing.
"""

import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

import postd
from postd.daemon.settings_checks import forgery_problem, hosts_of
from postd.daemon.systemd import SystemdNotifier
from postd.errors import ConfigError
from postd.monitoring.health import Report
from postd.net.listening import Listener, certificate_warnings, close
from postd.reactor import IReactor
from postd.settings.loading import LoadedSettings, keep_unreloadable
from postd.settings.schema import Settings
from postd.web.peer import Clients
from postd.web.server.allowed_hosts import Hosts
from postd.web.server.factory import PostdSite

LOOK_EVERY_S = 1.0
"""How often it is seen how the service is."""

END_S = 15.0
"""How long the end may take beside `shutdown_grace`: that of workers, of the store and of what has to be cut off."""

ADMIN_END_S = 0.2
"""How long those who ask on the admin listeners have for the rest of their answers when the service ends."""

_HEARD = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
"""The signals that mean something, until the server ends."""

_OF_HOSTS = frozenset({"hosts", "public_url", "trusted_proxies"})
"""The settings on which it depends which hosts are answered for."""


class ReloadableServer(Protocol):
    """What serves."""

    def startService(self) -> object:
        """Begin."""

    def stopService(self) -> Deferred[None]:
        """Finish what is under way, and end."""

    def reload(self, loaded: LoadedSettings) -> None:
        """Serve from now on as other settings say, and take up what has changed in files.

        Raises:
            ConfigError: they cannot be used; nothing has changed.
        """

    async def report(self, *, whole: bool) -> Report:
        """Return how it is; without the `whole` its numbers need not be."""


class Place(Struct, frozen=True):
    """What something listens on, and what its connections are served with."""

    listeners: Sequence[Listener]
    site: PostdSite


class Operations(Service):
    """The server with all that is around it.

    Args:
        loaded: the settings that it serves with.
        reread: reads them anew, for a reload; may raise ConfigError.
        reopen_log: called on SIGHUP, before anything else is.
        listeners: those of the server.
        store: describes its store.
        reactor: its clock, and takes signals.

    Attributes:
        server: what serves, once it is known.
        admin: the admin listeners, if there are any.
    """

    _log = Logger()
    server: ReloadableServer
    admin: Place | None = None

    def __init__(  # noqa: PLR0913 - all that is around
        self,
        loaded: LoadedSettings,
        *,
        reread: Callable[[], LoadedSettings],
        reopen_log: Callable[[], None],
        listeners: Sequence[Listener],
        store: str,
        notifier: SystemdNotifier,
        reactor: IReactor,
    ) -> None:
        self._loaded = loaded
        self._reread = reread
        self._reopen_log = reopen_log
        self._listeners = {listener.url: listener for listener in listeners}  # a port that is closed has no address
        self._store = store
        self._notifier = notifier
        self._reactor = reactor
        self._started_at = time.time()
        self._reloads = {"taken": 0, "refused": 0}
        self._refused = ""
        self._is_serving = False
        self._looking = LoopingCall(self._look)
        self._looking.clock = reactor

    def startService(self) -> None:
        super().startService()
        self._take_signals()
        self.server.startService()
        # As long as the server ends, nobody asks for it once more; stock Twisted would log a traceback.
        self._reactor.addSystemEventTrigger("before", "shutdown", _deafen)
        self._reactor.callWhenRunning(self._watch)

    def _take_signals(self) -> None:
        """Take the signals before anything is started that has to be stopped.

        The reactor takes SIGINT and SIGTERM only when it runs. A Ctrl-C before that is a KeyboardInterrupt: it leaves
        threads running that the process waits for, or Twisted logs it and goes on.
        """
        # A handler may run in the middle of anything.
        signal.signal(signal.SIGHUP, lambda *_: self._reactor.callFromThread(self.reload))
        signal.signal(signal.SIGTERM, self._reactor.sigTerm)
        # As Twisted: one that is ignored (a shell script's `&`) or a debugger's stays so.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._reactor.sigInt)
        # The process that started this one may have blocked them (daemon(7)).
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_HEARD, signal.SIGCHLD})

    def _watch(self) -> None:
        self._notifier.start()
        self._looking.start(LOOK_EVERY_S)

    def _log_failure(self, failure: Failure) -> None:
        self._log.failure("could not see how it goes", failure=failure)

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self._looking.running:
            self._looking.stop()
        self._notifier.stopping(self._loaded.settings.shutdown_grace_s + END_S)
        self._notifier.status("stopping: what is under way is finished")
        try:
            await self.server.stopService()
        finally:
            if self.admin is not None:
                self.admin.site.begin_end()
                await close(self.admin.listeners)
                self.admin.site.close_idle()
                await self.admin.site.finish(within_s=ADMIN_END_S)
            self._notifier.stop()

    def serving(self) -> None:
        """Called when all listeners accept."""
        self._warn()
        self._is_serving = True
        self._notifier.ready()

    async def report(self) -> Report:
        """Return how the service is, for the admin listeners."""
        report = await self.server.report(whole=True)
        numbers = report.numbers
        numbers.counts.update({("reloads", outcome): count for outcome, count in self._reloads.items()})
        numbers.amounts["reload_good",] = not self._refused
        numbers.amounts["ready",] = report.is_ready
        numbers.amounts["info", postd.__version__, self._store] = 1
        numbers.amounts["started",] = self._started_at
        for url, listener in self._listeners.items():
            if listener.certificate is not None:
                numbers.amounts["not_after", url] = listener.certificate.not_after
        return report

    def reload(self) -> None:
        """Take up what has changed: the log's file, settings, and the files that they name."""
        if not self.running:
            return
        self._reopen_log()
        self._log.info("SIGHUP: looking for what has changed")
        if self._is_serving:
            self._notifier.reloading()
        try:
            self._reload_settings()
        except ConfigError as error:
            self._refuse(str(error))
            self._log.error("nothing is reloaded, the old stays in force: {error}", error=error)
        except Exception as error:  # noqa: BLE001 - the log tells what nobody has thought of
            self._refuse(type(error).__name__)
            self._log.failure("could not reload")
        else:
            self._reloads["taken"] += 1
            self._refused = ""
        finally:
            if self._is_serving:
                self._notifier.ready()

    def _refuse(self, why: str) -> None:
        self._reloads["refused"] += 1
        self._refused = f"; the last reload was refused: {why}"

    def _reload_settings(self) -> None:
        before = self._loaded
        loaded, left = keep_unreloadable(self._reread(), before)
        self.server.reload(loaded)
        self._loaded = loaded
        if self.admin is not None:
            self.admin.site.limits = loaded.settings.limits
            self.admin.site.hosts = admin_hosts(loaded.settings)
        names = loaded.settings.__struct_fields__
        encoded = dict(zip(names, loaded.settings.__struct_encode_fields__, strict=True))
        changed = [encoded[name] for name in names if getattr(loaded.settings, name) != getattr(before.settings, name)]
        if changed:
            self._log.info("settings reloaded: {changed}", changed=", ".join(changed))
        if _OF_HOSTS & set(changed):
            self.log_hosts()
        for key in left:
            self._log.warn("{key} has changed in the settings: that takes a restart", key=key)
        self._warn()

    def _warn(self) -> None:
        for ending in certificate_warnings(self._listeners.values(), self._reactor.seconds()):
            self._log.warn("{problem}", problem=ending)
        for listener in self._listeners.values():
            problem = forgery_problem(self._loaded.settings, listener.description) if listener.world_writable else None
            if problem is not None:
                self._log.warn("{endpoint}: {problem}", endpoint=listener.description, problem=problem)

    def log_hosts(self) -> None:
        """Log which hosts each listener answers requests for."""
        settings = self._loaded.settings
        places = [(self._listeners.values(), False), (self.admin.listeners if self.admin else (), True)]
        for listeners, is_admin in places:
            for listener in listeners:
                hosts = hosts_of(settings, local=listener.loopback_only, admin=is_admin)
                self._log.info("{url} answers requests for {hosts}", url=listener.url, hosts=hosts)

    def _look(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._tell_status()).addErrback(self._log_failure)

    async def _tell_status(self) -> None:
        report = await self.server.report(whole=False)
        if self.running:
            how = report.troubles or f"ready: {', '.join(self._listeners)}; store {self._store}"
            self._notifier.status(how + self._refused)


def admin_hosts(settings: Settings) -> Hosts | None:
    """Return the rule for the hosts of requests to the admin listeners, None for any host."""
    clients = Clients(settings.trusted_proxies, settings.public_url)
    return None if "*" in settings.hosts else Hosts(settings.hosts, clients, exclusive=False)


def _deafen() -> None:
    for number in _HEARD:
        signal.signal(number, signal.SIG_IGN)
