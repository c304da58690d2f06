"""How a command uses the store: it opens it, does its work, and closes it."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import click
from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - Twisted's
from twisted.python.failure import Failure

from postd.config import LoadedSettings
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store import Store, open_store

T = TypeVar("T")

_STORE_MAX_S = 30
"""How long a command waits for a store that answers at first and then no more."""


def try_store(loaded: LoadedSettings) -> Store:
    """Return the store of the settings, tried but not opened; a command never makes one.

    Raises:
        ConfigError: the settings name none, or one that lasts only as long as its process.
        StoreRefusedError: it is of no use, or not there (`StoreMissingError`).
        StoreUnavailableError: it is locked or away.
    """
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it

    where = loaded.where["store"]
    if loaded.settings.store == "memory:":
        raise ConfigError(where, "memory: is known to the process of the server alone; name the store of a server")
    store = open_store(loaded.settings.store, where=where, reactor=cast("IReactor", reactor))
    store.prepare(create=False)
    return store


def use_store(loaded: LoadedSettings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Return what `work` comes to with the store open.

    Raises:
        click.ClickException: the store is of no use, away, or fails.
        click.Abort: somebody pressed Ctrl-C.
    """
    from twisted.internet import reactor  # noqa: PLC0415

    try:
        store = try_store(loaded)
    except (StoreRefusedError, StoreUnavailableError) as error:
        raise click.ClickException(error.why) from None
    results: list[T | Failure] = []

    async def run() -> T:
        try:
            await store.start()
            return await work(store)
        finally:
            await store.stop()

    def end(running: Deferred[None]) -> Deferred[None]:
        running.cancel()
        return running

    def begin() -> None:
        running = Deferred.fromCoroutine(run())
        running.addTimeout(_STORE_MAX_S, clock).addBoth(results.append)
        # Ctrl-C ends the reactor, and that the work; the store is closed all the same, and its thread ended.
        clock.addSystemEventTrigger("before", "shutdown", end, running)
        running.addBoth(lambda _: clock.callLater(0, clock.stop) if clock.running else None)

    clock = cast("Any", reactor)
    clock.callWhenRunning(begin)
    clock.run()
    if not results or (isinstance(results[0], Failure) and results[0].check(CancelledError)):
        raise click.Abort
    result = results[0]
    if isinstance(result, Failure):
        if result.check(TimeoutError):
            raise click.ClickException(f"{store.description}: it does not answer")
        if isinstance(result.value, StoreRefusedError | StoreUnavailableError):
            raise click.ClickException(result.value.why)
        result.raiseException()
    return result
