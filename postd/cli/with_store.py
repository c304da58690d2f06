"""Open stores for a command, run its work, and close them."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

import click
from twisted.internet.defer import Deferred, TimeoutError  # noqa: A004 - Twisted's

from postd.cli.run_async import global_reactor, run
from postd.errors import ConfigError, printable
from postd.reactor import Work
from postd.settings.loading import LoadedSettings
from postd.store.interface import Store
from postd.store.opening import open_store

T = TypeVar("T")

_STORE_TIMEOUT_S = 30
"""The timeout of a command for a store that stops responding."""


def configured_store(loaded: LoadedSettings) -> Store:
    """Return the store of the settings, not yet prepared. Commands never upgrade its schema: only the start of a server
    does, when no older server uses the store.

    Raises:
        ConfigError: the store URL is not valid, or is `memory:`.
    """
    where = loaded.where["store"]
    if loaded.settings.store == "memory:":
        raise ConfigError(where, "memory: exists only in the process of the server; name another store")
    return open_store(loaded.settings.store, where=where, reactor=global_reactor(), upgrade=False)


def prepare_store(loaded: LoadedSettings, *, create: bool = False) -> Store:
    """Return the store of the settings, prepared but not started; `create` is for commands that add posts.

    Raises:
        ConfigError: as for `configured_store`.
        StoreRefusedError: it cannot be used, does not exist (`StoreMissingError`), or has an older schema
            (`StoreOlderError`).
        StoreUnavailableError: it is locked or unavailable.
    """
    store = configured_store(loaded)
    if create:
        create_store(store)
    else:
        store.prepare(create=False)
    return store


def create_store(store: Store) -> None:
    """Prepare a store; if there is none, create it, and say so: its URL may be a mistake.

    Raises:
        StoreRefusedError: as for `prepare_store`.
        StoreUnavailableError: likewise.
    """
    if store.prepare():
        click.echo(f"{printable(store.description)}: created, as there was none")


def use_store(loaded: LoadedSettings, work: Callable[[Store], Work[T]]) -> T:
    """Run `work` with the store of the settings open, within `_STORE_TIMEOUT_S`; return its result.

    Raises:
        PostdError: the store cannot be used, is unavailable, or fails.
        click.ClickException: the store does not respond.
        click.Abort: interrupted by Ctrl-C.
    """
    store = prepare_store(loaded)
    return use_stores([store], lambda: within_limit(store, work(store)))


def use_stores(stores: Sequence[Store], work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` with prepared stores open; return its result.

    Args:
        stores: opened in this order, and closed in reverse.
        work: called when all stores are open.

    Raises:
        PostdError: a store cannot be used, is unavailable, or fails.
        click.ClickException: a store does not respond when it is opened.
        click.Abort: interrupted by Ctrl-C.
    """

    async def use() -> T:
        async with AsyncExitStack() as opened:
            for store in stores:
                opened.push_async_callback(store.stop)
                await within_limit(store, store.start())
            return await work()

    return run(use)


async def within_limit(store: Store, work: Work[T]) -> T:
    """Return the result of work with a store that is done within `_STORE_TIMEOUT_S`.

    Raises:
        click.ClickException: the store does not respond.
    """
    try:
        return await Deferred.fromCoroutine(work).addTimeout(_STORE_TIMEOUT_S, global_reactor())
    except TimeoutError:
        raise click.ClickException(f"{store.description}: it does not answer") from None
