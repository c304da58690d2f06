"""How a command uses stores: it opens them, does its work, and closes them."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

import click
from twisted.internet.defer import Deferred, TimeoutError  # noqa: A004 - Twisted's

from postd.cli.run_async import global_reactor, run
from postd.errors import ConfigError
from postd.settings.loading import LoadedSettings
from postd.store.interface import Store
from postd.store.opening import open_store

T = TypeVar("T")

_STORE_MAX_S = 30
"""How long a command waits for a store that answers at first and then no more."""


def named_store(loaded: LoadedSettings) -> Store:
    """Return the store of the settings, not yet tried. No command brings it up to date: that is for a server's start,
    when no older one is at work on it.

    Raises:
        ConfigError: the settings name none, or one that lasts only as long as its process.
    """
    where = loaded.where["store"]
    if loaded.settings.store == "memory:":
        raise ConfigError(where, "memory: is known to the process of the server alone; name the store of a server")
    return open_store(loaded.settings.store, where=where, reactor=global_reactor(), upgrade=False)


def try_store(loaded: LoadedSettings, *, create: bool = False) -> Store:
    """Return the store of the settings, tried but not opened.

    Args:
        loaded: the settings.
        create: make it if it is not there; only what posts are put into is made.

    Raises:
        ConfigError: as `named_store`.
        StoreRefusedError: it is of no use, or not there (`StoreMissingError`), or was left by an older postd
            (`StoreOlderError`).
        StoreUnavailableError: it is locked or away.
    """
    store = named_store(loaded)
    store.prepare(create=create)
    return store


def use_store(loaded: LoadedSettings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Return what `work`, which is done in no time, comes to with the store of the settings open.

    Raises:
        PostdError: the store is of no use, away, or fails.
        click.ClickException: it does not answer.
        click.Abort: somebody pressed Ctrl-C.
    """
    store = try_store(loaded)
    try:
        return use_stores([store], lambda: work(store), most_s=_STORE_MAX_S)
    except TimeoutError:
        raise _no_answer(store) from None


def use_stores(stores: Sequence[Store], work: Callable[[], Awaitable[T]], *, most_s: float | None = None) -> T:
    """Return what `work` comes to with stores open that were tried.

    Args:
        stores: are opened in this order, and closed in the other.
        work: may take as long as it needs.
        most_s: or at most so many seconds, with opening.

    Raises:
        PostdError: a store is of no use, away, or fails.
        click.ClickException: a store does not answer when it is opened.
        twisted.internet.defer.TimeoutError: it took longer than `most_s`.
        click.Abort: somebody pressed Ctrl-C.
    """

    async def use() -> T:
        async with AsyncExitStack() as opened:
            for store in stores:
                opened.push_async_callback(store.stop)
                await _start(store)
            return await work()

    return run(use, most_s=most_s)


async def _start(store: Store) -> None:
    try:
        await Deferred.fromCoroutine(store.start()).addTimeout(_STORE_MAX_S, global_reactor())
    except TimeoutError:
        raise _no_answer(store) from None


def _no_answer(store: Store) -> click.ClickException:
    return click.ClickException(f"{store.description}: it does not answer")
