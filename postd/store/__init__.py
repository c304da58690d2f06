"""Where posts are kept, and what must be remembered of logins.

1. A store knows nothing of HTTP or of who is asking: values in, values out, and the errors of `postd.errors`.
2. `interface` says what a store does; `tests/store/contract.py` proves it for each of them alike.
3. A store is opened by its URL, here and nowhere else.
"""

from postd.errors import ConfigError
from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.sqlite import SqliteStore

__all__ = ["STORE_URLS", "Store", "open_store"]

STORE_URLS = "sqlite:PATH or memory:"
"""What a store URL may be, for messages."""


def open_store(url: str, *, where: str, reactor: IReactor) -> Store:
    """Make the store that `url` names; nothing is opened yet.

    Args:
        url: `sqlite:PATH` or `memory:`.
        where: the setting the URL comes from, for the error.
        reactor: its clock and its threads.

    Raises:
        ConfigError: it names no kind of store that there is.
    """
    kind, colon, rest = url.partition(":")
    if kind == "sqlite" and rest not in {"", ":memory:"} and "\0" not in rest:
        return SqliteStore(rest, reactor=reactor)
    if kind == "memory" and colon and not rest:
        return SqliteStore.in_memory(reactor=reactor)
    raise ConfigError(where, f"{url!r} is no store; allowed: {STORE_URLS}")
