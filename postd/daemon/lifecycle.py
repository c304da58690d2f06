"""Interfaces between a server and what operates it, whether it is one process (`server`) or several (`worker_pool`)."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from twisted.internet.defer import Deferred

from postd.monitoring.health import Health
from postd.settings.loading import LoadedSettings

RELOAD_FAILED = "reload failed, keeping the current settings: {error}"
"""The log message of a reload whose settings cannot be used."""


class StartCallbacks(Struct, frozen=True):
    """Called while a server starts: `accepting` when all listeners accept connections, `ready` when the store answers,
    too, `failed` with the reason if that can never happen.
    """

    accepting: Callable[[], None]
    ready: Callable[[], None]
    failed: Callable[[str], None]


class ReloadableServer(Protocol):
    """A server that `postd.daemon.operations` starts, checks, reloads and stops."""

    def startService(self) -> object:
        """Start."""

    def stopService(self) -> Deferred[None]:
        """Finish running requests, then stop."""

    def reload(self, loaded: LoadedSettings) -> None:
        """Apply other settings, and reread the files that they name.

        Raises:
            ConfigError: they cannot be used; nothing has changed.
        """

    async def health(self, *, full: bool) -> Health:
        """Return its health; without `full` the metrics may be incomplete."""
