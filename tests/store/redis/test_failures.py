"""A Redis server that dies, stands still, is full, is another one, lies or says nothing: what becomes of the store."""

import gc
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.task import LoopingCall

from postd.errors import (
    ChangesGoneError,
    PostdError,
    StoreFullError,
    StoreMissingError,
    StoreRefusedError,
    StoreUnavailableError,
)
from postd.store.interface import Reservation, Store
from postd.store.redis.connection import EXTENSION_MAX_S, RedisReplyError, connect
from postd.store.redis.engine import STEP
from postd.store.redis.reconnecting import DEADLINE_S
from postd.store.redis.scripts import KEYS, load_script
from postd.store.redis.url import Host, RedisAddress
from tests.redis_server import Proxy, RedisServer, free_port
from tests.store.contract import KEYS as FAILURE_KEYS
from tests.store.contract import NOW, error_of, id_hash_of, import_posts, make_session, posts_of, started
from tests.store.failing import (
    AT_ONCE_S,
    BACK_WITHIN_S,
    Log,
    connected,
    fails,
    make_store,
    reactor,
    serves_again,
    sleep,
    wait_until,
)
from tests.store.failing import log as log  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.usefixtures("log")


@pytest.fixture
def lasting(shared_server: RedisServer) -> RedisServer:
    """A server without data, for tests that leave it as it was."""
    shared_server.ask("FLUSHALL")
    return shared_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server for what a test likes to do to it."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


def resident_kib() -> int:
    """Return how much memory this process has."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def count_deferreds() -> int:
    gc.collect()
    return sum(isinstance(one, Deferred) for one in gc.get_objects())


# It dies, or stands still


@ensureDeferred
async def test_without_a_server_everything_fails_at_once_and_nothing_is_done_later(
    server: RedisServer, log: Log
) -> None:
    async with connected(server.url) as store:
        for n in range(3):
            await store.add_post(f"post {n}")
        server.kill()
        await fails(*(store.add_post("ghost") for _ in range(200)), store.version(), within_s=AT_ONCE_S)
        await sleep(1)
        await fails(*(store.add_post("ghost") for _ in range(200)), store.list_posts(limit=9), within_s=AT_ONCE_S)
        await fails(store.get_session(b"x"), store.key("x"), store.use_nonce(b"x", 1, expires=NOW), within_s=AT_ONCE_S)
        server.start()
        await serves_again(store)
        await sleep(0.2)
        assert [text for _, text in await posts_of(store)] == ["post 0", "post 1", "post 2"]
        assert await store.add_post("on it goes") > 3
        assert len(log.lines("trying again")) <= 2  # the connection was lost; and nobody listens
        assert len(log.lines("connected to")) == 1


@ensureDeferred
async def test_a_server_that_stands_still_is_given_up_in_time(server: RedisServer, log: Log) -> None:
    async with connected(server.url) as store:
        await store.add_post("before")
        server.freeze()
        writes = (store.add_post("ghost") for _ in range(50))
        await fails(*writes, store.version(), store.list_posts(limit=9), store.replace_post(1, "ghost"))
        await fails(store.add_post("ghost"), store.version(), within_s=AT_ONCE_S)
        server.thaw()
        await serves_again(store)
        await sleep(0.2)
        assert await posts_of(store) == [(1, "before")]
        assert len(log.lines("does not answer; trying again")) == 1
        assert len(log.lines("connected to")) == 1
        server.freeze()  # and while it has nothing to do
        await wait_until(lambda: len(log.lines("does not answer; trying again")) == 2)
        await fails(store.add_post("ghost"), store.version(), within_s=AT_ONCE_S)
        server.thaw()
        await serves_again(store)
        assert await store.add_post("after") == 2  # no other history, so no step


@ensureDeferred
async def test_a_short_stop_costs_no_connection(server: RedisServer, log: Log) -> None:
    async with connected(server.url) as store:
        server.freeze()
        adding = started(store.add_post("patience"))
        await sleep(0.3)
        server.thaw()
        assert await adding == 1
        assert log.lines("trying again") == []


@ensureDeferred
async def test_stall_of_our_own_process_costs_no_connection(server: RedisServer, log: Log) -> None:
    """A turn of the reactor that takes longer than an answer may, on a busy machine."""
    async with connected(server.url) as store:
        server.freeze()
        asking = started(store.list_posts(limit=9))
        time.sleep(2)  # noqa: ASYNC251 - the stall
        reactor.callLater(0.5, server.thaw)
        await asking
        assert log.lines("trying again") == []


@ensureDeferred
async def test_silent_server_is_given_up_in_time_where_each_turn_of_the_reactor_is_long(server: RedisServer) -> None:
    async with connected(server.url) as store:
        server.freeze()
        busy = LoopingCall(time.sleep, 0.6)
        turning = busy.start(0.61)
        began = time.monotonic()
        try:
            assert isinstance(await error_of(store.list_posts(limit=9)), StoreUnavailableError)
            assert time.monotonic() - began < DEADLINE_S + EXTENSION_MAX_S + 2.5  # some turns
        finally:
            busy.stop()
            await turning
            server.thaw()


@ensureDeferred
async def test_a_write_that_arrives_late_is_not_done(server: RedisServer) -> None:
    """A network may hold bytes back and bring them long after their sender has gone."""
    with Proxy(server.port) as proxy:
        async with connected(proxy.url) as store, connected(server.url) as other:
            await store.add_post("before")
            proxy.hold()
            await fails(store.add_post("ghost"), store.replace_post(1, "ghost"), store.delete_post(1))
            proxy.unbind()
            await serves_again(store)
            await sleep(0.2)
            assert await posts_of(other) == [(1, "before")]


@pytest.mark.parametrize(
    "name",
    [
        *("add_post", "replace_post", "delete_post", "make_key", "use_nonce", "add_session", "renew_session"),
        *(
            "delete_sessions",
            "delete_sessions_of",
            "add_failure",
            "reserve_attempt",
            "release_attempt",
            "forget_failures",
            "purge",
            "stage_posts",
        ),
        "commit_import",
    ],
)
def test_each_script_that_writes_looks_at_its_deadline(lasting: RedisServer, name: str) -> None:
    make_store(lasting.url).prepare()
    keys = sorted(lasting.ask("KEYS", "*"))
    late = int(lasting.ask("TIME")[0]) * 1000 - 1
    with pytest.raises(Exception, match="LATE nobody waits for it any more"):
        lasting.ask("EVAL", load_script(name, writes=True).text, 0, late, *["1"] * 8)
    assert sorted(lasting.ask("KEYS", "*")) == keys


@ensureDeferred
async def test_a_restart_under_load_loses_nothing_acknowledged(server: RedisServer) -> None:
    acknowledged: dict[int, str] = {}
    ends = False

    async def write(store: Store, name: str) -> None:
        count = 0
        while not ends:
            text = f"{name}-{count}"
            try:
                post_id = await store.add_post(text)
            except StoreUnavailableError:
                await sleep(0.02)
            else:
                assert post_id not in acknowledged
                acknowledged[post_id] = text
            count += 1

    async with connected(server.url) as store, connected(server.url) as other:
        writers = [started(write(one, f"{n}")) for n, one in enumerate([store, other] * 8)]
        for _ in range(2):
            before = len(acknowledged)
            await wait_until(lambda: len(acknowledged) > before + 300)  # noqa: B023 - waited for here
            server.kill()
            await sleep(0.1)
            server.start()
        await serves_again(store)
        await serves_again(other)
        last = max(acknowledged)
        await wait_until(lambda: max(acknowledged) > last)
        ends = True
        await gatherResults(writers)
        stored = dict(await posts_of(store))
        assert {post_id: stored.get(post_id) for post_id in acknowledged} == acknowledged


@ensureDeferred
async def test_memory_stays_flat_while_it_is_away(server: RedisServer) -> None:
    async def ask(store: Store, times: int) -> None:
        for n in range(times):
            with pytest.raises(StoreUnavailableError):
                await (store.add_post("x" * 140) if n % 2 else store.version())
            if n % 100 == 0:
                await sleep(0)

    async with connected(server.url) as store:
        server.kill()
        await fails(store.version())
        await ask(store, 2000)
        before = resident_kib()
        await ask(store, 20_000)
        assert resident_kib() - before < 2048
        server.start()
        await serves_again(store)


@ensureDeferred
async def test_calls_that_are_cancelled_leave_nothing_behind(server: RedisServer) -> None:
    async with connected(server.url) as store:
        before = count_deferreds()
        server.freeze()
        calls = [started(store.add_post("ghost") if n % 2 else store.version()) for n in range(5000)]
        for call in calls:
            call.addErrback(lambda failure: failure.trap(CancelledError, StoreUnavailableError))
            call.cancel()
        await gatherResults(calls)
        del calls
        await fails(store.version(), within_s=10)  # the turn that all this takes is no silence of Redis
        server.thaw()
        await serves_again(store)
        await sleep(0.2)
        assert count_deferreds() < before + 100
        assert await posts_of(store) == []


# It has lost something, or is another one


async def check_no_number_comes_again(store: Store, *, last_id: int, revision: int) -> None:
    assert (await store.version()).revision > revision
    assert isinstance(await error_of(store.list_changes(after=revision, limit=10)), ChangesGoneError)
    assert await store.add_post("on it goes") > last_id


@ensureDeferred
async def test_what_a_server_has_lost_is_not_numbered_again(tmp_path: Path, log: Log) -> None:
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
            assert 5 < last_id <= 5 + STEP  # one step, not one for each
            assert await other.version() == await store.version()
            await check_no_number_comes_again(store, last_id=5, revision=revision)
            await check_no_number_comes_again(other, last_id=last_id + 1, revision=revision)
            assert log.lines("it may lack the last writes; new ids are larger than") != []


@ensureDeferred
async def test_an_old_copy_of_its_file_is_noticed_by_whoever_comes_first(server: RedisServer, log: Log) -> None:
    copy = server.folder.with_name("copy")
    async with connected(server.url) as store:
        await store.add_post("in the copy")
        shutil.copytree(server.folder, copy)
        for _ in range(3):
            await store.add_post("not in the copy")
        before = await store.version()
    server.kill()
    shutil.rmtree(server.folder)
    copy.rename(server.folder)
    server.start()
    async with connected(server.url) as store:  # a process that has seen nothing of what is lost
        assert len(log.lines("it may lack the last writes")) == 1
        assert await posts_of(store) == [(1, "in the copy")]
        assert await store.last_id() == 1 + STEP
        await check_no_number_comes_again(store, last_id=4, revision=before.revision)
        async with connected(server.url) as other:
            assert await other.add_post("the same history") == 3 + STEP
    assert len(log.lines("it may lack the last writes")) == 1


@ensureDeferred
async def test_a_database_emptied_under_a_running_store_numbers_on(lasting: RedisServer, log: Log) -> None:
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
async def test_each_database_of_a_server_is_a_store_of_its_own(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store, connected(f"{lasting.url}/3") as other:
        assert await store.add_post("here") == 1
        assert await other.add_post("there") == 1
        assert await store.key("x") != await other.key("x")
        assert [await posts_of(one) for one in (store, other)] == [[(1, "here")], [(1, "there")]]


@ensureDeferred
async def test_scripts_that_the_server_forgets_are_sent_again(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_post("before")
        lasting.ask("SCRIPT", "FLUSH")
        assert await gatherResults([started(store.add_post("after")) for _ in range(5)]) == [2, 3, 4, 5, 6]
        assert len((await store.list_posts(limit=10)).posts) == 6


@ensureDeferred
async def test_stopping_finishes_writes_whose_script_the_server_has_forgotten(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        lasting.ask("SCRIPT", "FLUSH")
        waiting = [started(store.add_post("x")) for _ in range(5)]
        await store.stop()
        assert await gatherResults(waiting) == [1, 2, 3, 4, 5]


def test_an_empty_database_is_told_apart_from_a_store(lasting: RedisServer) -> None:
    with pytest.raises(StoreMissingError, match="there is no postd store in this database"):
        make_store(lasting.url).prepare(create=False)
    assert lasting.ask("DBSIZE") == 0
    make_store(lasting.url).prepare()
    make_store(lasting.url).prepare(create=False)


@ensureDeferred
async def test_a_store_of_a_newer_postd_is_refused(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_post("x")
        lasting.ask("SET", KEYS["SCHEMA"], "2")
        with pytest.raises(StoreRefusedError, match=r"written by a newer postd \(schema 2; this one is 1\)"):
            make_store(lasting.url).prepare()
        lasting.ask("CLIENT", "KILL", "TYPE", "normal")  # once it has served, it is asked again and again
        await wait_for_error(store, "a newer postd")
        lasting.ask("SET", KEYS["SCHEMA"], "1")
        await serves_again(store)
        assert await posts_of(store) == [(1, "x")]


@ensureDeferred
async def test_what_others_have_added_is_not_numbered_again(lasting: RedisServer) -> None:
    """By one that only reads, and even that not, when all is gone and nobody else is left to remember."""
    async with connected(lasting.url) as idle:
        async with connected(lasting.url) as store:
            ids = [await store.add_post(f"post {n}") for n in range(5)]
            await sleep(1.5)
        for _ in range(2):
            lasting.ask("FLUSHALL")
            await fails(idle.version())
            await serves_again(idle)
        assert await idle.add_post("on it goes") > ids[-1] + 2 * STEP


async def wait_for_error(store: Store, words: str) -> StoreUnavailableError:
    """Wait until a store fails for a reason, which it has to soon."""
    deadline = reactor.seconds() + BACK_WITHIN_S
    while True:
        try:
            await store.version()
        except StoreUnavailableError as error:
            if words in error.why:
                return error
        assert reactor.seconds() < deadline
        await sleep(0.02)


@ensureDeferred
async def test_a_key_of_another_kind_is_an_error_and_no_more(lasting: RedisServer, log: Log) -> None:
    async with connected(lasting.url) as store:
        lasting.ask("SET", KEYS["POSTS"], "somebody else's")
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
    lasting.ask("SET", KEYS["VERSION"], "somebody else's")
    with pytest.raises(StoreRefusedError, match="has a key postd:version that is not postd's"):
        make_store(lasting.url).prepare()


def test_a_key_of_somebody_elses_is_left_alone(lasting: RedisServer) -> None:
    lasting.ask("SET", KEYS["POSTS"], "somebody else's")
    with pytest.raises(StoreRefusedError, match="has a key postd:posts that is not postd's; choose another database"):
        make_store(lasting.url).prepare()
    assert lasting.ask("KEYS", "*") == [KEYS["POSTS"]]


# It refuses


@ensureDeferred
async def test_a_full_server_can_be_read_and_made_room_in(lasting: RedisServer, log: Log) -> None:
    async with connected(lasting.url) as store:
        for n in range(3):
            await store.add_post(f"post {n}")
        await store.add_session(id_hash_of(1), make_session())
        lasting.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            for call in (store.add_post("x"), store.replace_post(1, "longer"), store.use_nonce(b"n", 1, expires=NOW)):
                assert isinstance(await error_of(call), StoreFullError)
            assert len(log.lines("OOM")) == 1
            assert [text for _, text in await posts_of(store)] == ["post 0", "post 1", "post 2"]
            await store.delete_post(1)
            assert await store.delete_sessions([id_hash_of(1)]) == 1
            lasting.ask("CLIENT", "KILL", "TYPE", "normal")
            await serves_again(store)
            make_store(lasting.url).prepare()
        finally:
            lasting.ask("CONFIG", "SET", "maxmemory", "0")
        assert await store.add_post("there is room again") == 4
        assert [post_id for post_id, _ in await posts_of(store)] == [2, 3, 4]


@ensureDeferred
async def test_a_server_that_comes_back_full_can_be_read(server: RedisServer) -> None:
    async with connected(server.url) as store:
        await store.add_post("before")
        revision = (await store.version()).revision
        server.kill()
        server.start("maxmemory 1")
        await serves_again(store)
        assert await posts_of(store) == [(1, "before")]
        assert isinstance(await error_of(store.add_post("x")), StoreFullError)
        server.ask("CONFIG", "SET", "maxmemory", "0")
        await check_no_number_comes_again(store, last_id=1, revision=revision)


@ensureDeferred
async def test_a_primary_that_becomes_a_replica_is_left(lasting: RedisServer, log: Log) -> None:
    async with connected(lasting.url) as store, connected(lasting.url) as idle:
        await store.add_post("before")
        lasting.ask("REPLICAOF", "127.0.0.1", free_port())
        try:
            await fails(store.add_post("ghost"))
            await wait_for_error(store, "is a replica, which cannot be written to; name the primary")
            await wait_for_error(idle, "is a replica")
            with pytest.raises(StoreRefusedError, match="is a replica, which cannot be written to; name the primary"):
                make_store(lasting.url).prepare()
        finally:
            lasting.ask("REPLICAOF", "NO", "ONE")
        await serves_again(store)
        assert await posts_of(store) == [(1, "before")]
        assert await store.add_post("after") > 1
        await serves_again(idle)


@ensureDeferred
async def test_a_server_that_misses_its_replicas_can_be_read(lasting: RedisServer, log: Log) -> None:
    async with connected(lasting.url) as store:
        await store.add_post("before")
        lasting.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        try:
            for _ in range(2):
                (error,) = await fails(store.add_post("x"))
                assert "NOREPLICAS" in str(error)
            (error,) = await fails(store.delete_post(1))
            assert await posts_of(store) == [(1, "before")]
        finally:
            lasting.ask("CONFIG", "SET", "min-replicas-to-write", "0")
        assert await store.add_post("after") == 2
        assert len(log.lines("writing fails")) == 1
        assert len(log.lines("writing works again")) == 1


@ensureDeferred
async def test_a_server_that_cannot_save_can_be_read(lasting: RedisServer) -> None:
    in_the_way = lasting.folder / "dump.rdb"
    async with connected(lasting.url) as store:
        await store.add_post("before")
        in_the_way.mkdir()
        lasting.ask("CONFIG", "SET", "save", "3600 1000000")
        try:
            lasting.ask("BGSAVE")
            await wait_until(lambda: lasting.ask("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
            (error,) = await fails(store.add_post("x"))
            assert "MISCONF" in str(error)
            assert await posts_of(store) == [(1, "before")]
        finally:
            in_the_way.rmdir()
            lasting.ask("CONFIG", "SET", "save", "")
        assert await store.add_post("after") == 2


@ensureDeferred
async def test_a_server_that_reads_its_data_is_waited_for(server: RedisServer, log: Log) -> None:
    async with connected(server.url) as store:
        await store.add_post("before")
        server.ask("EVAL", "for n = 1, 20000 do redis.call('SET', 'other:' .. n, n) end", 0)
        server.kill()
        server.start("key-load-delay 200", wait=False)
        await wait_for_error(store, "loading")
        await fails(store.add_post("ghost"), store.version(), within_s=AT_ONCE_S)
        with pytest.raises(StoreUnavailableError):
            make_store(server.url).prepare()
        await serves_again(store, within_s=20)
        assert await posts_of(store) == [(1, "before")]
        told = log.lines("trying again")
        assert any("is loading its data" in line for line in told)
        assert all(one != other for one, other in pairwise(told))  # nothing is told twice in a row


@ensureDeferred
async def test_problems_of_a_server_are_told_once(tmp_path: Path, log: Log) -> None:
    options = ("appendonly no", "maxmemory 100mb", "maxmemory-policy allkeys-lru")
    with RedisServer(tmp_path / "redis", *options) as server:
        async with connected(server.url) as store:
            await store.add_post("x")
            server.ask("CLIENT", "KILL", "TYPE", "normal")
            await wait_until(lambda: log.lines("connected to") != [])
            await serves_again(store)
    assert len(log.lines("keeps no append-only file")) == 1
    assert len(log.lines("maxmemory-policy allkeys-lru")) == 1


# It does not know us


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with a password."""
    with RedisServer(tmp_path / "redis", "requirepass right", password="right") as server:
        yield server


@ensureDeferred
async def test_a_password_that_is_wrong_at_first_is_told_and_never_shown(guarded: RedisServer, tmp_path: Path) -> None:
    place = f"127.0.0.1:{guarded.port}"
    (tmp_path / "wrong").write_text("wr0ng\n")
    for url in (
        f"redis://:wr0ng@{place}",
        f"redis://app:wr0ng@{place}",
        f"redis://{place}?password_file={tmp_path}/wrong",
    ):
        with pytest.raises(StoreRefusedError, match="WRONGPASS") as caught:
            make_store(url).prepare()
        assert "wr0ng" not in str(caught.value).replace(str(tmp_path), "")
        store = make_store(url)
        with pytest.raises(StoreRefusedError, match="WRONGPASS"):
            await store.start()
        await store.stop()
    with pytest.raises(StoreRefusedError, match="NOAUTH"):
        make_store(f"redis://{place}").prepare()
    async with connected(f"redis://:right@{place}") as store, connected(f"redis://default:right@{place}/1"):
        assert await store.add_post("x") == 1


@ensureDeferred
async def test_a_server_with_too_many_clients_is_waited_for(guarded: RedisServer) -> None:
    url = f"redis://:right@127.0.0.1:{guarded.port}"
    async with connected(url) as store:
        guarded.ask("CONFIG", "SET", "maxclients", "4")
        with ExitStack() as others:
            for _ in range(8):
                others.enter_context(socket.create_connection(("127.0.0.1", guarded.port)))
                await sleep(0.02)
            with pytest.raises(StoreUnavailableError, match="max number of clients reached"):
                make_store(url).prepare()
        assert await store.add_post("who is in stays in") == 1


def test_a_user_may_have_no_password(lasting: RedisServer) -> None:
    lasting.ask("ACL", "SETUSER", "trusted", "on", "nopass", "~*", "&*", "+@all")
    make_store(lasting.url.replace("//", "//trusted@")).prepare()
    lasting.ask("ACL", "DELUSER", "trusted")


@ensureDeferred
async def test_a_connection_that_is_lost_already_says_so(lasting: RedisServer) -> None:
    address = RedisAddress(hosts=(Host("127.0.0.1", lasting.port),))
    protocol = await connect(address, address.hosts[0], reactor=reactor)
    gone = protocol.whenDisconnected()
    protocol.hang_up()
    assert await gone is protocol
    assert await protocol.whenDisconnected().addTimeout(1, reactor) is protocol


def test_a_password_where_none_is_set_is_told(lasting: RedisServer) -> None:
    with pytest.raises(StoreRefusedError, match="without any password configured") as caught:
        make_store(f"redis://:s3cret@127.0.0.1:{lasting.port}").prepare()
    assert "s3cret" not in str(caught.value)


def test_a_database_that_there_is_not_is_told(lasting: RedisServer) -> None:
    with pytest.raises(StoreRefusedError, match="out of range"):
        make_store(f"{lasting.url}/99").prepare()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "the password cannot be read: No such file or directory"),
        (b"", "has no password in its first line"),
        (b"\nright", "has no password in its first line"),
        (b"\xff\xfe", "the password cannot be read: it is not UTF-8 text"),
    ],
)
def test_a_password_file_that_cannot_be_used_is_told(
    lasting: RedisServer, tmp_path: Path, content: bytes | None, why: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StoreRefusedError) as caught:
        make_store(f"{lasting.url}?password_file={file}").prepare()
    assert str(caught.value) == f"{file}: {why}"


@ensureDeferred
async def test_a_password_changed_while_it_runs_is_taken_up_from_its_file(
    guarded: RedisServer, tmp_path: Path, log: Log
) -> None:
    file = tmp_path / "password"
    file.write_text("right\n")
    async with connected(f"{guarded.url}?password_file={file}") as store:
        await store.add_post("before")
        guarded.ask("CONFIG", "SET", "requirepass", "n3wer")
        guarded.password = "n3wer"
        guarded.ask("CLIENT", "KILL", "TYPE", "normal")
        await wait_for_error(store, "WRONGPASS")
        await sleep(1)
        file.unlink()
        await wait_for_error(store, "No such file or directory")
        file.write_text("n3wer")
        await serves_again(store)
        assert await posts_of(store) == [(1, "before")]
        assert len(log.lines("WRONGPASS")) == 1
        assert log.lines("n3wer") == []


SAMPLE = Path(__file__).parents[3] / "etc" / "redis.conf.example"
(SAMPLE_RULES,) = re.findall(r"^user postd on >\S+ (.*)", SAMPLE.read_text(), re.MULTILINE)


@pytest.fixture
def limited_url(lasting: RedisServer) -> Iterator[str]:
    """The URL of a server without data, for a user that has the rules of the sample settings."""
    lasting.ask("ACL", "SETUSER", "postd", "reset", "on", ">s3cret", *SAMPLE_RULES.split())
    yield f"redis://postd:s3cret@127.0.0.1:{lasting.port}"
    lasting.ask("ACL", "DELUSER", "postd")


@pytest.mark.parametrize("database", ["new", "existing"])
def test_missing_permission_for_any_command_refuses_the_start(
    lasting: RedisServer, limited_url: str, database: str
) -> None:
    for command in re.findall(r"\+(?!auth|wait)(\w+)", SAMPLE_RULES):
        lasting.ask("FLUSHALL")
        if database == "existing":
            make_store(limited_url).prepare()
        lasting.ask("ACL", "SETUSER", "postd", f"-{command}")
        with pytest.raises(StoreRefusedError, match=rf"refuses {command.upper()}: |NOPERM .*'{command}'"):
            make_store(limited_url).prepare()
        lasting.ask("ACL", "SETUSER", "postd", f"+{command}")


def test_all_missing_permissions_are_named_in_one_message(lasting: RedisServer, limited_url: str) -> None:
    lasting.ask("ACL", "SETUSER", "postd", "-hset", "-zadd", "-incr")
    with pytest.raises(
        StoreRefusedError, match=r": refuses HSET, ZADD: .+ \(what postd needs: etc/redis.conf.example\)"
    ):
        make_store(limited_url).prepare()
    lasting.ask("ACL", "SETUSER", "postd", "+hset", "+zadd", "resetkeys", "~postd:[^n]*")
    with pytest.raises(StoreRefusedError, match=r": refuses postd:nonce:, postd:nonces: .* key"):
        make_store(limited_url).prepare()
    assert lasting.ask("DBSIZE") == 0


def test_check_of_permissions_changes_nothing(lasting: RedisServer) -> None:
    make_store(lasting.url).prepare()
    keys = {key: lasting.ask("DUMP", key, decode_responses=False) for key in lasting.ask("KEYS", "*")}
    make_store(lasting.url).prepare()
    assert {key: lasting.ask("DUMP", key, decode_responses=False) for key in lasting.ask("KEYS", "*")} == keys


@ensureDeferred
async def test_permission_lost_while_running_fails_writes_until_it_is_back(
    lasting: RedisServer, limited_url: str, log: Log
) -> None:
    async with connected(limited_url) as store:
        await store.add_post("before")
        lasting.ask("ACL", "SETUSER", "postd", "-zadd")
        errors = await fails(
            store.add_post("x"), store.add_session(id_hash_of(1), make_session()), store.use_nonce(b"n", 1, expires=NOW)
        )
        assert {type(error) for error in errors} == {StoreUnavailableError}
        assert await posts_of(store) == [(1, "before")]
        (line,) = log.lines("writing fails")
        assert re.search("can't run this command|no permissions to run the 'zadd' command", line)
        lasting.ask("ACL", "SETUSER", "postd", "+zadd")
        assert await store.add_post("after") > 1
        assert len(log.lines("writing works again")) == 1


@ensureDeferred
async def test_permission_missing_at_a_reconnect_is_logged_once(
    lasting: RedisServer, limited_url: str, log: Log
) -> None:
    async with connected(limited_url) as store:
        await store.add_post("before")
        lasting.ask("ACL", "SETUSER", "postd", "-zadd")
        lasting.ask("CLIENT", "KILL", "TYPE", "normal")
        await wait_for_error(store, "refuses ZADD: ")
        await sleep(1)
        assert len(log.lines("refuses ZADD: ")) == 1
        lasting.ask("ACL", "SETUSER", "postd", "+zadd")
        await serves_again(store)
        assert await posts_of(store) == [(1, "before")]


@ensureDeferred
async def test_the_user_of_the_sample_settings_may_do_what_is_needed(lasting: RedisServer, limited_url: str) -> None:
    async with connected(limited_url) as store:
        assert [await store.add_post("x"), await store.add_post("y")] == [1, 2]
        await store.replace_post(1, "z")
        await store.delete_post(2)
        assert await posts_of(store) == [(1, "z")]
        assert len(await store.list_changes(after=0, limit=10)) == 4
        assert await import_posts(store, [(7, "seven")]) == 1
        assert len(await store.key("x")) == 32
        assert await store.use_nonce(b"n", 1, expires=NOW)
        await store.add_session(id_hash_of(1), make_session())
        await store.renew_session(id_hash_of(1), seen=NOW, expires=NOW)
        assert len(await store.list_sessions()) == 1
        assert await store.delete_sessions_of({"alice": None}) == 1
        assert await store.delete_all_sessions() == 0
        reservation = Reservation("one", FAILURE_KEYS, NOW + 1)
        assert await store.reserve_attempt(reservation, allowed=(9, 9, 9), now=NOW) is None
        await store.release_attempt(reservation)
        assert await store.add_failure(FAILURE_KEYS, now=NOW, expires=NOW + 1) != {}
        assert await store.count_failures(FAILURE_KEYS, now=NOW) != {}
        await store.forget_failures(FAILURE_KEYS[0])
        await store.purge_expired(now=NOW + 9999)
    with pytest.raises(Exception, match=r"no permissions|NOPERM"):
        lasting.ask("FLUSHALL", username="postd", password="s3cret")
    lasting.ask("ACL", "SETUSER", "postd", "-evalsha", "-eval")
    with pytest.raises(StoreRefusedError, match="NOPERM"):
        make_store(limited_url).prepare()


# What stands between


def cut_off(data: bytes) -> bytes:
    return b""


def say_nothing(data: bytes) -> bytes:
    return b""


def speak_http(data: bytes) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


def speak_numbers(data: bytes) -> bytes:
    return b":1\r\n"


def cut_a_script_off(data: bytes) -> bytes:
    return b"" if b"EVAL" in data else data


def _trouble(proxy: Proxy, kind: str) -> None:
    if kind == "refuses":
        proxy.is_refusing = True
    elif kind == "says nothing":
        proxy.hold()
    elif kind == "cuts off in the handshake":
        proxy.to_server = cut_off
    elif kind == "cuts off the first script":
        proxy.to_server = cut_a_script_off
    else:
        proxy.to_client = {"speaks HTTP": speak_http, "speaks nonsense": speak_numbers}[kind]


def _no_trouble(proxy: Proxy) -> None:
    proxy.is_refusing = False
    proxy.to_server = proxy.to_client = lambda data: data
    proxy.unbind()


@pytest.mark.parametrize(
    "kind",
    [
        *("refuses", "says nothing", "cuts off in the handshake", "cuts off the first script", "speaks HTTP"),
        "speaks nonsense",
    ],
)
@ensureDeferred
async def test_whatever_meets_it_on_the_way_it_connects_again(guarded: RedisServer, kind: str, log: Log) -> None:
    with Proxy(guarded.port) as proxy:
        url = f"redis://:right@127.0.0.1:{proxy.port}/1"
        async with connected(url) as store:
            await store.add_post("before")
            _trouble(proxy, kind)
            guarded.ask("CLIENT", "KILL", "TYPE", "normal")
            accepted = proxy.accepted
            await wait_until(lambda: proxy.accepted > accepted + 2, within_s=20)
            await fails(store.add_post("ghost"), store.version())
            began = reactor.seconds()
            with pytest.raises(StoreUnavailableError):
                make_store(url).prepare()
            assert reactor.seconds() < began + 3
            _no_trouble(proxy)
            await serves_again(store)
            assert await posts_of(store) == [(1, "before")]
            assert len(log.lines("trying again")) <= 4


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [
        (b"redis", b"6.0.", r"is Redis 6\.0\.\d*; it takes 6\.2 or newer$"),
        (b"valkey", b"7.1.", r"is Valkey 7\.1\.\d*; it takes 7\.2 or newer$"),
        (b"redis", b"10.0", None),
        (b"valkey", b"10.", None),
    ],
)
def test_server_that_is_too_old_is_refused(lasting: RedisServer, name: bytes, version: bytes, why: str | None) -> None:
    def pretend(data: bytes) -> bytes:
        """Put another name and version, of the same length, into the answer to INFO."""
        told = name + b"_version:" + version
        return re.sub(rb"(?:redis|valkey)_version:[0-9.]+", lambda found: told.ljust(len(found[0]), b"0"), data)

    with Proxy(lasting.port) as proxy:
        proxy.to_client = pretend
        if why:
            with pytest.raises(StoreRefusedError, match=why):
                make_store(proxy.url).prepare()
        else:
            make_store(proxy.url).prepare()


def test_redis_cluster_is_refused(lasting: RedisServer) -> None:
    with Proxy(lasting.port) as proxy:
        proxy.to_client = lambda data: data.replace(b"cluster_enabled:0", b"cluster_enabled:1")
        with pytest.raises(StoreRefusedError, match="is part of a Redis Cluster"):
            make_store(proxy.url).prepare()


@pytest.mark.parametrize(
    "answer",
    [
        "ERR Error running script (call to f_{sha}): @user_script:87: @user_script: 87: -{why}.",  # Redis 6
        "{why}. script: {sha}, on @user_script:87.",  # Redis 7
        "{why} script: {sha}, on @user_script:87.",
        "{why}. script: on @user_script:87.",  # Valkey 9
    ],
)
def test_what_a_script_meets_is_told_alike_whichever_it_is(answer: str) -> None:
    """The log is told when the trouble becomes another one."""
    why = "OOM command not allowed when used memory > 'maxmemory'"
    error = RedisReplyError(answer.format(why=why, sha="01fa4b0a51" * 4))
    assert (error.code, error.text) == ("OOM", why)


def provoke_misconf(server: RedisServer) -> None:
    """Let snapshots fail: something else has their name."""
    (server.folder / "dump.rdb" / "x").mkdir(parents=True)
    server.ask("CONFIG", "SET", "save", "3600 1000000")
    server.ask("BGSAVE")
    deadline = time.monotonic() + BACK_WITHIN_S
    while server.ask("INFO", "persistence")["rdb_last_bgsave_status"] != "err":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def provoke_masterdown(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "replica-serve-stale-data", "no")
    server.ask("REPLICAOF", "127.0.0.1", "1")


def asking(*command: object) -> Callable[[RedisServer], object]:
    return lambda server: server.ask(*command)


@pytest.mark.parametrize(
    ("kind", "words", "provoke", "command"),
    [
        (StoreRefusedError, "can't run|no permissions", asking("ACL", "SETUSER", "p", "-set"), ("SET", "a", "b")),
        (StoreRefusedError, "can't access|access", asking("ACL", "SETUSER", "p", "resetkeys"), ("SET", "a", "b")),
        (StoreRefusedError, "WRONGTYPE", asking("SADD", "a", "b"), ("GET", "a")),
        (StoreRefusedError, "[Uu]nknown (Redis )?command", asking("PING"), ("NOSUCHCOMMAND", "a")),
        (StoreFullError, "OOM", asking("CONFIG", "SET", "maxmemory", "1"), ("SET", "a", "b")),
        (StoreUnavailableError, "NOREPLICAS", asking("CONFIG", "SET", "min-replicas-to-write", "1"), ("SET", "a", "b")),
        (StoreUnavailableError, "READONLY", asking("REPLICAOF", "127.0.0.1", "1"), ("SET", "a", "b")),
        (StoreUnavailableError, "MASTERDOWN", provoke_masterdown, ("GET", "a")),
        (StoreUnavailableError, "MISCONF", provoke_misconf, ("SET", "a", "b")),
    ],
)
@ensureDeferred
async def test_error_means_the_same_in_a_command_and_in_a_script(
    server: RedisServer,
    kind: type[PostdError],
    words: str,
    provoke: Callable[[RedisServer], object],
    command: tuple[str, ...],
) -> None:
    server.ask("ACL", "SETUSER", "p", "on", ">x", "~*", "+@all")
    address = RedisAddress(hosts=(Host("127.0.0.1", server.port),), user="p", password="x")
    protocol = await connect(address, address.hosts[0], reactor=reactor)
    try:
        provoke(server)
        script = "(unpack(ARGV))"
        for asked in (command, *(("EVAL", f"return redis.{call}{script}", 0, *command) for call in ("call", "pcall"))):
            with pytest.raises(RedisReplyError) as caught:
                await protocol.ask_soon(*asked)
            error = caught.value.as_store_error("here")
            assert type(error) is kind
            assert re.match(f"here: .*(?:{words})", error.why)
            assert "user_script" not in error.why
    finally:
        protocol.hang_up()


def test_a_host_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(StoreUnavailableError, match=r"^redis://127.0.0.1:\d+/0: does not answer$"):
            make_store(f"redis://127.0.0.1:{full.getsockname()[1]}").prepare()


def test_nobody_there(socket_folder: Path) -> None:
    for url in (
        f"redis://127.0.0.1:{free_port()}",
        f"redis+unix://{socket_folder}/none",
        "redis://no.such.host.invalid",
    ):
        began = reactor.seconds()
        with pytest.raises(StoreUnavailableError):
            make_store(url).prepare()
        assert reactor.seconds() < began + 3


@ensureDeferred
async def test_a_unix_socket(socket_folder: Path) -> None:
    with RedisServer(socket_folder / "redis", f"unixsocket {socket_folder}/r") as server:
        async with connected(f"redis+unix://{socket_folder}/r?db=1") as store:
            assert await store.add_post("x") == 1
            server.kill()
            await fails(store.add_post("ghost"))
            server.start()
            await serves_again(store)
            assert await posts_of(store) == [(1, "x")]


@ensureDeferred
async def test_a_store_that_is_stopped_while_it_connects_stays_stopped(server: RedisServer) -> None:
    server.freeze()
    store: Any = make_store(server.url)
    starting = started(store.start())
    await sleep(0.2)
    await store.stop()
    with pytest.raises(CancelledError):
        await starting
    server.thaw()
    await sleep(0.3)
    await fails(store.version())
    assert server.ask("CLIENT", "LIST", "TYPE", "normal").count(" addr=") == 1


async def test_failure_is_noted_before_reservations_that_were_asked_for_later(lasting: RedisServer) -> None:
    """Also by a server that has just forgotten the scripts: a throttle in one process relies on that order."""
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
