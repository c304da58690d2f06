"""What several tests of authentication need: a store that refuses writes, and a look at an object's memory."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from twisted.internet.task import Clock

from postd.errors import StoreUnavailableError
from postd.store.interface import LoginStore

_WRITES = (
    "add_failure",
    "add_session",
    "delete_sessions",
    "forget_failures",
    "release_attempt",
    "renew_session",
    "reserve_attempt",
)


@contextmanager
def refusing_writes(store: LoginStore) -> Iterator[list[str]]:
    """Have a store refuse all writes of logins, as on a full disk; give the names of the refused ones."""
    refused = []

    def refuse(name: str) -> Callable[..., Any]:
        async def write(*_: Any, **__: Any) -> None:
            refused.append(name)
            raise StoreUnavailableError("disk full")

        return write

    replaced: dict[str, Any] = {name: refuse(name) for name in _WRITES}
    with patch.multiple(store, **replaced):
        yield refused


def all_in(thing: object) -> Iterator[object]:
    """Return all objects that an object of `postd` keeps, at any depth."""
    return _all_in(thing, set())


def _all_in(thing: object, seen: set[int]) -> Iterator[object]:
    if id(thing) in seen or isinstance(thing, type | Clock):
        return
    seen.add(id(thing))
    yield thing
    inner: list[object] = []
    if isinstance(thing, Mapping):
        inner = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inner = list(thing)
    elif type(thing).__module__.startswith("postd."):
        names = getattr(thing, "__struct_fields__", None) or vars(thing)
        inner = [getattr(thing, name) for name in names]
    for one in inner:
        yield from _all_in(one, seen)
