"""Open a store by its URL."""

import re

import postd.linux  # noqa: F401 - refuses other systems
from postd.errors import ConfigError
from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.redis.url import REDIS_URLS, decode_redis_url
from postd.store.sqlite.store import MemoryStore, SqliteStore

STORE_URLS = f"sqlite:PATH, {REDIS_URLS}, or memory:"
"""The forms of a store URL, for messages."""


def open_store(url: str, *, where: str, reactor: IReactor, upgrade: bool = True) -> Store:
    """Make the store that `url` names; nothing is opened yet.

    Args:
        url: one of `STORE_URLS`.
        where: the setting that has the URL, for the error.
        reactor: as for the stores.
        upgrade: whether an SQLite file with an older schema is upgraded instead of refused. Redis has one schema.

    Raises:
        ConfigError: the URL is invalid.
    """
    kind, colon, rest = url.partition(":")
    if kind == "sqlite" and rest not in {"", ":memory:"} and "\0" not in rest:
        return SqliteStore(rest, reactor=reactor, upgrade=upgrade)
    if kind == "memory" and colon and not rest:
        return MemoryStore(reactor=reactor)
    if kind.startswith("redis"):
        from postd.store.redis.store import RedisStore  # noqa: PLC0415 - imports libraries that SQLite does not need

        try:
            return RedisStore(decode_redis_url(url), reactor=reactor)
        except ValueError as error:
            # The URL is not shown: it may have a password in it.
            raise ConfigError(where, f"the {kind} URL {error}; allowed: {STORE_URLS}") from None
    shown = re.sub(r"(?<=:).*@", "***@", url, flags=re.DOTALL)
    raise ConfigError(where, f"{shown!r} is no store; allowed: {STORE_URLS}")
