"""The login store in memory: the contract, and what it keeps between purges."""

import math
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.task import Clock

from postd.errors import StoreUnavailableError
from postd.protocol.password_reset import PasswordReset
from postd.protocol.session import Session
from postd.reactor import IReactor
from postd.store.interface import NONCE_COUNTS_KEPT_S, Failures
from postd.store.memory.logins import MemoryLogins
from tests.store.contract import (
    KEYS,
    NOW,
    LoginStoreContract,
    MakeLoginStore,
    error_of,
    id_hash_of,
    make_passkey,
    make_reservation,
    make_session,
    make_token,
    started,
)

reactor = cast(IReactor, global_reactor)

LEFT_MAX_BYTES = 100_000
"""More than tables keep for reuse. Some 5,000 entries, of which nothing should be left, would take five times that."""


class MemoryLoginsTests(LoginStoreContract):
    @pytest.fixture
    def make_store(self) -> MakeLoginStore:
        return lambda: MemoryLogins(reactor=reactor)


@pytest.fixture
def make_store() -> MakeLoginStore:
    return lambda: MemoryLogins(reactor=reactor)


@ensureDeferred
async def test_state_lasts_over_a_restart(store: MemoryLogins) -> None:
    await store.add_session(id_hash_of(1), make_session())
    key = await store.key("one")
    await store.stop()
    assert isinstance(await error_of(store.key("one")), StoreUnavailableError)
    await store.start()
    assert await store.get_session(id_hash_of(1)) == make_session()
    assert await store.key("one") == key


@ensureDeferred
async def test_reservation_is_released_once(store: MemoryLogins) -> None:
    """The second release of one does not release another with the same keys and expiry."""
    one, other = make_reservation("one"), make_reservation("other")
    for reservation in (one, other):
        assert await store.reserve_attempt(reservation, allowed=(9, 9, 9), now=NOW) is None
    for _ in range(2):
        await store.release_attempt(one)
    await store.add_failure(KEYS, now=NOW, expires=NOW + 300, reservation=one)
    assert await store.count_failures(KEYS, now=NOW) == dict.fromkeys(KEYS, Failures(1, NOW + 300, 1))


@ensureDeferred
async def test_session_added_again_is_of_its_new_user(store: MemoryLogins) -> None:
    await store.add_session(id_hash_of(1), make_session("alice"))
    await store.add_session(id_hash_of(1), make_session("bob"))
    assert await store.delete_sessions_of({"alice": None}) == 0
    assert await store.list_sessions() == [make_session("bob")]


@ensureDeferred
async def test_purge_goes_by_the_last_renewal(store: MemoryLogins) -> None:
    for number in (1, 2):
        await store.add_session(id_hash_of(number), make_session())
    for expires in (NOW + 5000, NOW + 10, NOW + 5000):
        await store.renew_session(id_hash_of(1), seen=NOW, expires=expires)
    await store.renew_session(id_hash_of(2), seen=NOW, expires=NOW + 10)
    await store.purge_expired(now=NOW + 4999, wall=NOW + 4999)
    assert await store.get_session(id_hash_of(1)) is not None
    assert await store.get_session(id_hash_of(2)) is None
    await store.purge_expired(now=NOW + 5000, wall=NOW + 5000)
    assert await store.get_session(id_hash_of(1)) is None


@ensureDeferred
async def test_observer_is_called_with_each_operation(store: MemoryLogins) -> None:
    observed: list[tuple[str, bool]] = []
    store.observer = lambda operation, _duration_s, /, *, failed: observed.append((operation, failed))
    await store.key("new")
    await store.key("new")
    await store.count_failures(KEYS, now=NOW)
    await store.use_nonce(b"nonce", 1, expires=NOW)
    await store.stop()
    await error_of(store.list_sessions())
    assert observed == [("write", False), ("read", False), ("read", False), ("write", False), ("read", True)]


def test_reactor_runs_on_during_a_large_purge() -> None:
    clock = Clock()
    store = MemoryLogins(reactor=clock)
    results: list[Any] = []

    def run(call: Coroutine[Any, Any, Any]) -> None:
        started(call).addCallback(results.append)

    run(store.start())
    for number in range(2500):
        run(store.add_session(id_hash_of(number), make_session(f"user {number}")))
    del results[:]
    run(store.purge_expired(now=NOW + 1e6, wall=NOW + 1e6))
    assert results == []
    clock.advance(0)
    assert results == [NOW + 1e6]
    run(store.list_sessions())
    assert results == [NOW + 1e6, []]
    assert not clock.getDelayedCalls()


async def _renew(store: MemoryLogins, now: float) -> None:
    if now == NOW:
        await store.add_session(id_hash_of(1), make_session())
    await store.renew_session(id_hash_of(1), seen=now, expires=now + 1800)


async def _sign_in_and_out(store: MemoryLogins, now: float) -> None:
    await store.add_session(id_hash_of(1), make_session(f"user {now}", created=now))
    await store.delete_sessions([id_hash_of(1)])


async def _make_and_revoke(store: MemoryLogins, now: float) -> None:
    number = int(now)
    await store.add_token(id_hash_of(number), make_token(number, f"user {now}", expires=math.inf))
    await store.add_passkey(make_passkey(number, f"user {now}"))
    await store.add_password_reset(id_hash_of(number), PasswordReset(f"user {now}", b"", now + 3600))
    await store.delete_tokens([f"token{number}"])
    await store.delete_credentials_of({f"user {now}": None})


async def _attempt(store: MemoryLogins, now: float) -> None:
    reservation = make_reservation(f"{now}", now + 60)
    await store.reserve_attempt(reservation, allowed=(9, 9, 9), now=now)
    await store.release_attempt(reservation)


async def _fail_and_forget(store: MemoryLogins, now: float) -> None:
    key = f"account {now}".encode()
    await store.add_failure((key,), now=now, expires=now + 300)
    await store.forget_failures(key)


@pytest.mark.parametrize("operation", [_renew, _sign_in_and_out, _make_and_revoke, _attempt, _fail_and_forget])
@ensureDeferred
async def test_what_ends_takes_no_memory_until_the_purge(
    store: MemoryLogins, operation: Callable[[MemoryLogins, float], Coroutine[Any, Any, None]]
) -> None:
    assert await _growth(lambda n: operation(store, NOW + n), 100, 5000) < LEFT_MAX_BYTES


@ensureDeferred
async def test_purge_frees_what_has_expired(store: MemoryLogins) -> None:
    async def fill_and_purge(n: int) -> None:
        now = NOW + n * 1000
        for number in range(500):
            name = f"{n} {number}".encode()
            await store.use_nonce(name, 1, expires=now + 1)
            await store.add_failure((name,), now=now, expires=now + 1)
            await store.reserve_attempt(make_reservation(f"{n} {number}", now + 1), allowed=(9**9,) * 3, now=now)
            await store.add_session(name, Session(f"{n} {number}", b"", now, now, now + 1, now + 1))
        await store.purge_expired(now=now + 1 + NONCE_COUNTS_KEPT_S, wall=now + 1 + NONCE_COUNTS_KEPT_S)

    assert await _growth(fill_and_purge, 2, 8) < LEFT_MAX_BYTES


async def _growth(run: Callable[[int], Coroutine[Any, Any, None]], before: int, after: int) -> int:
    """Return how many bytes more are allocated after so many runs than before them, after some."""
    tracemalloc.start()
    try:
        for n in range(before):
            await run(n)
        allocated, _ = tracemalloc.get_traced_memory()
        for n in range(before, after):
            await run(n)
        return tracemalloc.get_traced_memory()[0] - allocated
    finally:
        tracemalloc.stop()
