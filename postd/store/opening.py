"""Open a store, or a login store, by its URL.

Each kind of store is imported when it is opened, because it imports libraries that other kinds do not need.
"""
# ruff: noqa: PLC0415 - a store is imported when it is opened

import re

import postd.linux  # noqa: F401 - refuses other systems
from postd.errors import ConfigError
from postd.reactor import IReactor
from postd.store.interface import LoginStoreWithLifecycle, Store

STORE_URLS = (
    "sqlite:PATH, redis://[USER[:PASSWORD]@]HOST[:PORT][/DB], rediss:// likewise, redis+unix://PATH, "
    "redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]/PRIMARY[/DB], or memory:"
)
"""The forms of a store URL, for messages."""


def open_store(
    url: str, *, where: str, reactor: IReactor, upgrade: bool = True, shared_memory: int | None = None
) -> Store:
    """Make the store that `url` names; nothing is opened yet.

    Args:
        url: a URL in a form of `STORE_URLS`.
        where: the setting that has the URL, for the error.
        reactor: as for the stores.
        upgrade: whether an SQLite file with an older schema is upgraded instead of refused. Redis has one schema.
        shared_memory: that of the workers of a server (`postd.store.replaced_texts`).

    Raises:
        ConfigError: the URL is invalid.
    """
    kind, colon, rest = url.partition(":")
    if kind == "sqlite" and rest not in {"", ":memory:"} and "\0" not in rest:
        from postd.store.sqlite.store import SqliteStore

        return SqliteStore(rest, reactor=reactor, upgrade=upgrade, shared_memory=shared_memory)
    if kind == "memory" and colon and not rest:
        from postd.store.sqlite.store import MemoryStore

        return MemoryStore(reactor=reactor)
    if kind.startswith("redis"):
        from postd.store.redis.store import RedisStore
        from postd.store.redis.url import decode_redis_url

        try:
            address = decode_redis_url(url)
        except ValueError as error:
            # The URL is not shown: it may have a password in it.
            raise ConfigError(where, f"the {kind} URL {error}; allowed: {STORE_URLS}") from None
        return RedisStore(address, reactor=reactor)
    shown = re.sub(r"(?<=:).*@", "***@", url, flags=re.DOTALL)
    raise ConfigError(where, f"{shown!r} is not a store; allowed: {STORE_URLS}")


def open_login_store(url: str, *, reactor: IReactor) -> LoginStoreWithLifecycle:
    """Make the login store that `url` names; nothing is opened yet.

    `memory:` is a store for one process, without SQLite. Any other URL opens a whole store, for any number of
    processes, as `open_store` does.

    Args:
        url: a URL in a form of `STORE_URLS`.
        reactor: as for the stores.

    Raises:
        ConfigError: the URL is invalid; the place to correct is given as `store`.
    """
    if url == "memory:":
        from postd.store.memory.logins import MemoryLogins

        return MemoryLogins(reactor=reactor)
    return open_store(url, where="store", reactor=reactor)
