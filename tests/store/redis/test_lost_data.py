"""The Redis store on a server that has lost data, scripts, or has those of others."""

import shutil
from pathlib import Path

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import gatherResults

from postd.errors import (
    StoreMissingError,
    StoreRefusedError,
    StoreUnavailableError,
)
from postd.store.interface import Reservation
from postd.store.redis.database import STEP
from postd.store.redis.scripts import KEYS
from tests.redis_server import RedisServer
from tests.store.contract import KEYS as FAILURE_KEYS
from tests.store.contract import NOW, posts_of, started
from tests.store.failing import (
    Log,
    check_no_number_comes_again,
    connected,
    fails,
    make_store,
    serves_again,
    sleep,
    wait_for_error,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("log", "patient")


@ensureDeferred
async def test_ids_of_lost_writes_are_not_assigned_again(tmp_path: Path, log: Log) -> None:
    with RedisServer(tmp_path / "redis", "appendonly no") as server:
        async with connected(server.url) as store, connected(server.url) as other:
            for n in range(5):
                await store.add_post(f"post {n}")
            revision = (await store.version()).revision
            assert await other.version() == await store.version()
            server.kill()
            server.start()
            await gatherResults([started(serves_again(store)), started(serves_again(other))])
            last_id = await store.last_id()
            assert last_id == await other.last_id()
            assert 5 < last_id <= 5 + STEP  # one step, not one for each store
            assert await other.version() == await store.version()
            await check_no_number_comes_again(store, last_id=5, revision=revision)
            await check_no_number_comes_again(other, last_id=last_id + 1, revision=revision)
            assert log.lines("may lack the last writes; new ids are larger than") != []


@ensureDeferred
async def test_server_restored_from_an_old_file_is_noticed_by_the_first_store(server: RedisServer, log: Log) -> None:
    copy = server.folder.with_name("copy")
    async with connected(server.url) as store:
        await store.add_post("in the copy")
        shutil.copytree(server.folder, copy)
        for _ in range(3):
            await store.add_post("not in the copy")
        before = await store.version()
    _restore(server, copy)
    async with connected(server.url) as store:  # it does not know the lost writes
        assert len(log.lines("may lack the last writes")) == 1
        assert await posts_of(store) == [(1, "in the copy")]
        assert await store.last_id() == 1 + STEP
        await check_no_number_comes_again(store, last_id=4, revision=before.revision)
        async with connected(server.url) as other:
            assert await other.add_post("the same history") == 3 + STEP
            before = await other.version()
    assert len(log.lines("may lack the last writes")) == 1
    _restore(server, copy)
    async with connected(server.url) as store:
        assert (await store.version()).revision > before.revision


def _restore(server: RedisServer, copy: Path) -> None:
    server.kill()
    shutil.rmtree(server.folder)
    shutil.copytree(copy, server.folder)
    server.start()


@ensureDeferred
async def test_emptied_database_does_not_assign_ids_again(lasting: RedisServer, log: Log) -> None:
    async with connected(lasting.url) as store:
        for n in range(5):
            await store.add_post(f"post {n}")
        revision = (await store.version()).revision
        for call in (store.version, lambda: store.add_post("ghost"), lambda: store.list_posts(limit=9)):
            lasting.ask("FLUSHALL")
            await fails(call())
            await serves_again(store)
            assert await posts_of(store) == []
        await check_no_number_comes_again(store, last_id=5, revision=revision)
        assert log.lines("the posts are not in this database any more; trying again") != []


@ensureDeferred
async def test_databases_of_a_server_are_separate_stores(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store, connected(f"{lasting.url}/3") as other:
        assert await store.add_post("here") == 1
        assert await other.add_post("there") == 1
        assert await store.key("x") != await other.key("x")
        assert [await posts_of(one) for one in (store, other)] == [[(1, "here")], [(1, "there")]]


@ensureDeferred
async def test_flushed_scripts_are_sent_again(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_post("before")
        lasting.ask("SCRIPT", "FLUSH")
        assert await gatherResults([started(store.add_post("after")) for _ in range(5)]) == [2, 3, 4, 5, 6]
        assert len((await store.list_posts(limit=10)).posts) == 6


@ensureDeferred
async def test_stop_finishes_writes_with_flushed_scripts(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        lasting.ask("SCRIPT", "FLUSH")
        waiting = [started(store.add_post("x")) for _ in range(5)]
        await store.stop()
        assert await gatherResults(waiting) == [1, 2, 3, 4, 5]


def test_empty_database_is_no_store(lasting: RedisServer) -> None:
    with pytest.raises(StoreMissingError, match="there is no postd store in this database"):
        make_store(lasting.url).prepare(create=False)
    assert lasting.ask("DBSIZE") == 0
    make_store(lasting.url).prepare()
    make_store(lasting.url).prepare(create=False)


@ensureDeferred
async def test_newer_schema_is_refused(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_post("x")
        lasting.ask("SET", KEYS["SCHEMA"], "2")
        with pytest.raises(StoreRefusedError, match=r"written by a newer postd \(schema 2; this one is 1\)"):
            make_store(lasting.url).prepare()
        lasting.ask("CLIENT", "KILL", "TYPE", "normal")  # a store that has started keeps trying
        await wait_for_error(store, "a newer postd")
        lasting.ask("SET", KEYS["SCHEMA"], "1")
        await serves_again(store)
        assert await posts_of(store) == [(1, "x")]


@ensureDeferred
async def test_ids_of_lost_writes_of_other_nodes_are_not_assigned_again(lasting: RedisServer) -> None:
    """An idle store notes the ids of other nodes in its checks, and remembers them when the data is lost."""
    async with connected(lasting.url) as idle:
        async with connected(lasting.url) as store:
            ids = [await store.add_post(f"post {n}") for n in range(5)]
        before = _looked_up(lasting)
        await wait_until(lambda: _looked_up(lasting) > before)
        await sleep(0.02)  # for the reply
        for _ in range(2):
            lasting.ask("FLUSHALL")
            await fails(idle.version())
            await serves_again(idle)
        assert await idle.add_post("on it goes") > ids[-1] + 2 * STEP


def _looked_up(server: RedisServer) -> int:
    """Return how often a revision was read, which a check does last."""
    return int(server.ask("INFO", "commandstats").get("cmdstat_hget", {}).get("calls", 0))


@ensureDeferred
async def test_key_of_another_type_is_an_error_until_it_is_removed(lasting: RedisServer, log: Log) -> None:
    async with connected(lasting.url) as store:
        lasting.ask("SET", KEYS["POSTS"], "foreign")
        for _ in range(2):
            await fails(store.list_posts(limit=9), store.get_post(1))
        (error,) = await fails(store.delete_post(1))
        assert isinstance(error, StoreUnavailableError)
        assert "WRONGTYPE" in error.why
        assert len(log.lines("reading fails")) == 1
        lasting.ask("DEL", KEYS["POSTS"])
        assert (await store.list_posts(limit=9)).posts == []
        assert len(log.lines("reading works again")) == 1
    lasting.ask("DEL", KEYS["VERSION"])
    lasting.ask("SET", KEYS["VERSION"], "foreign")
    with pytest.raises(StoreRefusedError, match="has a key postd:version that is not postd's"):
        make_store(lasting.url).prepare()


def test_foreign_key_is_refused_and_not_changed(lasting: RedisServer) -> None:
    lasting.ask("SET", KEYS["POSTS"], "foreign")
    with pytest.raises(StoreRefusedError, match="has a key postd:posts that is not postd's; choose another database"):
        make_store(lasting.url).prepare()
    assert lasting.ask("KEYS", "*") == [KEYS["POSTS"]]


@ensureDeferred
async def test_failure_is_added_before_later_reservations(lasting: RedisServer) -> None:
    """Also by a server with flushed scripts: the throttle of a process relies on the order."""
    async with connected(lasting.url) as store:
        reservation = Reservation("one", FAILURE_KEYS, NOW + 1)
        await store.reserve_attempt(reservation, allowed=(9, 9, 9), now=NOW)
        await store.release_attempt(reservation)
        lasting.ask("SCRIPT", "FLUSH")
        failing = started(store.add_failure(FAILURE_KEYS, now=NOW, expires=NOW + 1))
        refused = await store.reserve_attempt(reservation, allowed=(1, 1, 1), now=NOW)
        assert refused is not None
        assert refused[FAILURE_KEYS[0]].count == 1
        await failing
