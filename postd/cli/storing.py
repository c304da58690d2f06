"""How a command uses the store: it opens it, does its work, and closes it."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
from twisted.internet.defer import TimeoutError  # noqa: A004 - Twisted's

from postd.cli.running import global_reactor, run
from postd.config import LoadedSettings
from postd.errors import ConfigError, StoreRefusedError, StoreUnavailableError
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
    where = loaded.where["store"]
    if loaded.settings.store == "memory:":
        raise ConfigError(where, "memory: is known to the process of the server alone; name the store of a server")
    store = open_store(loaded.settings.store, where=where, reactor=global_reactor())
    store.prepare(create=False)
    return store


def use_store(loaded: LoadedSettings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Return what `work` comes to with the store open.

    Raises:
        click.ClickException: the store is of no use, away, or fails.
        click.Abort: somebody pressed Ctrl-C.
    """
    try:
        store = try_store(loaded)
    except (StoreRefusedError, StoreUnavailableError) as error:
        raise click.ClickException(error.why) from None

    async def use() -> T:
        try:
            await store.start()
            return await work(store)
        finally:
            await store.stop()

    try:
        return run(use, most_s=_STORE_MAX_S)
    except TimeoutError:
        raise click.ClickException(f"{store.description}: it does not answer") from None
    except (StoreRefusedError, StoreUnavailableError) as error:
        raise click.ClickException(error.why) from None
