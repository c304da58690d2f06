"""The cache of sessions and tokens for event streams; a second store stands for another node."""

from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import gatherResults

from postd.errors import StoreUnavailableError
from postd.store.interface import Store
from postd.store.redis.scripts import KEYS
from tests.redis_server import RedisServer
from tests.store.contract import NOW, error_of, id_hash_of, make_session, make_token, started
from tests.store.failing import connected, serves_again, sleep

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(autouse=True)
def _no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postd.store.redis.reconnecting._CHECKS_PER_ROLE_CHECK", 10**9)


async def get_cached(store: Store, count: int) -> list[Any]:
    """Get as many sessions and tokens at once, as the checks of listeners do."""
    numbers = range(count)
    sessions = [started(store.get_cached_session(id_hash_of(number))) for number in numbers]
    tokens = [started(store.get_cached_token(id_hash_of(number))) for number in numbers]
    return list(await gatherResults([*sessions, *tokens]))


def commands(server: RedisServer) -> dict[str, int]:
    """Return how often each command has run since the last call, those in scripts included, but for ours."""
    found = server.ask("INFO", "commandstats")
    server.ask("CONFIG", "RESETSTAT")
    calls = {name.removeprefix("cmdstat_").partition("|")[0]: int(stats["calls"]) for name, stats in found.items()}
    return {name: count for name, count in calls.items() if name not in {"client", "config", "hello", "info"}}


@ensureDeferred
async def test_change_takes_as_many_commands_for_one_listener_as_for_many(lasting: RedisServer) -> None:
    taken = []
    async with connected(lasting.url) as here, connected(lasting.url) as there:
        for number in range(50):
            await there.add_session(id_hash_of(number), make_session(f"user{number}"))
            await there.add_token(id_hash_of(number), make_token(number, f"user{number}"))
        await here.list_changes(after=0, limit=9)
        for count in (1, 50, 50):
            await get_cached(here, count)
            post_id = await there.add_post("a change")
            await there.renew_session(id_hash_of(0), seen=NOW + 60, expires=NOW + 1860)
            await there.use_token(id_hash_of(0), used=NOW + 60)
            commands(lasting)
            assert len(await here.list_changes(after=post_id - 1, limit=9)) == 1
            assert None not in await get_cached(here, count)
            taken.append(commands(lasting))
    assert taken[0] == taken[1] == taken[2]
    assert sum(count for name, count in taken[0].items() if name.startswith("eval")) == 1


@ensureDeferred
async def test_records_that_are_not_cached_are_read_together(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_session(id_hash_of(1), make_session())
        await get_cached(store, 1)
        commands(lasting)
        found = await get_cached(store, 50)
        assert [one for one in found if one is not None] == [make_session()]
        assert commands(lasting) == {"evalsha": 2, "hmget": 100}


@ensureDeferred
async def test_record_that_changes_before_its_reply_is_not_cached(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_session(id_hash_of(1), make_session())
        asked = started(store.get_cached_session(id_hash_of(1)))
        await sleep(0)
        store.database.note_login_changes("another")  # type: ignore[attr-defined] # the command is sent, no reply is read
        assert await asked == make_session()
        lasting.ask("DEL", KEYS["SESSION"] + id_hash_of(1).hex())
        assert await store.get_cached_session(id_hash_of(1)) is None


@ensureDeferred
async def test_session_that_an_older_version_ends_is_cached_until_the_cache_is_cleared(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_session(id_hash_of(1), make_session())
        await store.get_cached_session(id_hash_of(1))
        lasting.ask("DEL", KEYS["SESSION"] + id_hash_of(1).hex())
        assert await store.get_cached_session(id_hash_of(1)) == make_session()
        store.clear_cached_logins()
        assert await store.get_cached_session(id_hash_of(1)) is None


@ensureDeferred
async def test_cache_is_cleared_by_a_reconnection(server: RedisServer) -> None:
    """A server that lost writes may repeat counters."""
    async with connected(server.url) as store:
        for number in (1, 2):
            await store.add_session(id_hash_of(number), make_session())
        await store.delete_sessions([id_hash_of(2)])
        await store.add_post("one")
        await store.list_changes(after=0, limit=9)
        assert await store.get_cached_session(id_hash_of(1)) == make_session()
        server.ask("DEL", KEYS["SESSION"] + id_hash_of(1).hex())
        server.kill()
        assert isinstance(await error_of(store.get_cached_token(id_hash_of(1))), StoreUnavailableError)
        server.start()
        await serves_again(store)
        await store.list_changes(after=0, limit=9)
        assert await store.get_cached_session(id_hash_of(1)) is None
