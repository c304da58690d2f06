"""Helpers for tests of authentication."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from postd.auth.password import HashThreads
from postd.errors import StoreUnavailableError
from postd.store.interface import LoginStore
from tests.helpers import InMemoryApi

T = TypeVar("T")

_WRITES = (
    "add_failure",
    "add_session",
    "bind_session",
    "delete_sessions",
    "forget_failures",
    "register_device",
    "release_attempt",
    "prove_session",
    "renew_session",
    "reserve_attempt",
)


@contextmanager
def refusing_writes(store: LoginStore) -> Iterator[list[str]]:
    """Make a store refuse all writes of logins, as on a full disk; yield the names of the refused calls."""
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


class SlowThreads(HashThreads):
    """Threads that verify only when a test calls `run_waiting`; `done` counts what they have verified."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.asked = self.done = 0

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def run(self, function: Callable[..., T], *args: object) -> Deferred[T]:
        result: Deferred[T] = Deferred()
        self.asked += 1

        def verify() -> None:
            self.done += 1
            try:
                verified = function(*args)
            except Exception:  # noqa: BLE001 - as a thread pool does
                result.errback(Failure())
            else:
                result.callback(verified)

        self.waiting.append(verify)
        return result

    def run_waiting(self) -> None:
        """Verify all waiting passwords, and those queued meanwhile."""
        while self.waiting:
            self.waiting.pop(0)()


class Logins:
    """The surroundings of a login: a user file, a store with its clock, and threads that verify on demand."""

    def __init__(self, folder: Path, users: str) -> None:
        self.user_file = folder / "users"
        self.user_file.write_text(users)
        self.api = InMemoryApi()
        self.clock = self.api.clock
        self.threads = SlowThreads()

    def close(self) -> None:
        self.threads.run_waiting()
        self.api.close()
