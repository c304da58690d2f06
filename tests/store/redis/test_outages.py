"""The Redis store without a server, or with one that does not answer."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import CancelledError, Deferred, gatherResults

from postd.errors import StoreUnavailableError
from postd.store.interface import Store
from postd.store.redis.connection import EXTENSION_MAX_S
from postd.store.redis.reconnecting import DEADLINE_S
from postd.store.redis.scripts import load_script
from tests.held_reactor import HeldReactor
from tests.redis_server import Proxy, RedisServer
from tests.store.contract import NOW, error_of, posts_of, started
from tests.store.failing import (
    Log,
    all_fail,
    connected,
    fails,
    fails_at_once,
    make_store,
    serves_again,
    sleep,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("log")


def resident_kib() -> int:
    """Return the resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def count_deferreds() -> int:
    gc.collect()
    return sum(isinstance(one, Deferred) for one in gc.get_objects())


@pytest.mark.usefixtures("patient")
@ensureDeferred
async def test_commands_without_a_server_fail_at_once_and_are_not_executed_later(server: RedisServer, log: Log) -> None:
    async with connected(server.url) as store:
        for n in range(3):
            await store.add_post(f"post {n}")
        server.kill()
        await fails(*(store.add_post("ghost") for _ in range(200)), store.version())
        await sleep(1)
        await fails_at_once(*(store.add_post("ghost") for _ in range(200)), store.list_posts(limit=9))
        await fails_at_once(store.get_session(b"x"), store.key("x"), store.use_nonce(b"x", 1, expires=NOW))
        server.start()
        await serves_again(store)
        await sleep(0.2)
        assert [text for _, text in await posts_of(store)] == ["post 0", "post 1", "post 2"]
        assert await store.add_post("on it goes") > 3
        assert len(log.lines("trying again")) <= 2  # the connection was lost; connection refused
        assert len(log.lines("connected to")) == 1


@pytest.mark.slow
@ensureDeferred
async def test_suspended_server_is_dropped(server: RedisServer, log: Log) -> None:
    async with connected(server.url) as store:
        await store.add_post("before")
        server.freeze()
        writes = (store.add_post("ghost") for _ in range(50))
        await fails(*writes, store.version(), store.list_posts(limit=9), store.replace_post(1, "ghost"))
        await fails_at_once(store.add_post("ghost"), store.version())
        server.thaw()
        await serves_again(store)
        await sleep(0.2)
        assert await posts_of(store) == [(1, "before")]
        assert len(log.lines("does not answer; trying again")) == 1
        assert len(log.lines("connected to")) == 1
        server.freeze()  # also when idle
        await wait_until(lambda: len(log.lines("does not answer; trying again")) == 2)
        await fails_at_once(store.add_post("ghost"), store.version())
        server.thaw()
        await serves_again(store)
        assert await store.add_post("after") == 2  # the same data, so no step


@asynccontextmanager
async def suspended(server: RedisServer) -> AsyncIterator[tuple[Store, HeldReactor]]:
    """A store whose server does not answer; time stands, but for what the test advances it."""
    held = HeldReactor()
    store = make_store(server.url, cast(Any, held))
    store.prepare()
    await store.start()
    server.freeze()
    try:
        yield store, held
    finally:
        server.thaw()
        stopping = started(store.stop())
        while not stopping.called:  # it waits for pending replies
            await pass_time(held, 0.1, 0.1)
        await stopping


async def pass_time(held: HeldReactor, seconds: float, iteration_s: float) -> None:
    """Advance the time by iterations of the reactor that take so long each."""
    for _ in range(round(seconds / iteration_s)):
        held.advance(iteration_s)
        await sleep(0)


@ensureDeferred
async def test_call_fails_within_two_seconds_while_the_server_is_suspended(server: RedisServer) -> None:
    """Reference: Workers and nodes."""
    async with suspended(server) as (store, held):
        calls = [started(store.list_posts(limit=9)), started(store.add_post("ghost"))]
        await pass_time(held, 1.4, 0.05)
        assert not any(call.called for call in calls)
        await pass_time(held, 0.6, 0.05)
        await wait_until(lambda: all(call.called for call in calls))  # the connection is closed by the reactor itself
        await all_fail(calls)


@ensureDeferred
async def test_short_suspension_keeps_the_connection(server: RedisServer, log: Log) -> None:
    async with suspended(server) as (store, held):
        asking = started(store.list_posts(limit=9))
        await pass_time(held, 1.4, 0.05)
        server.thaw()
        assert (await asking).posts == []
        assert log.lines("trying again") == []


@ensureDeferred
async def test_stall_of_our_own_process_keeps_the_connection(server: RedisServer, log: Log) -> None:
    """An iteration of the reactor that takes longer than the timeout of a reply, on a busy machine."""
    async with suspended(server) as (store, held):
        asking = started(store.list_posts(limit=9))
        await pass_time(held, 2, 2)
        await pass_time(held, 0.5, 0.05)
        server.thaw()
        assert (await asking).posts == []
        assert log.lines("trying again") == []


@ensureDeferred
async def test_silent_server_is_dropped_in_time_although_each_iteration_is_long(server: RedisServer) -> None:
    async with suspended(server) as (store, held):
        asking = started(error_of(store.list_posts(limit=9)))
        await pass_time(held, DEADLINE_S + EXTENSION_MAX_S + 2.5, 0.61)  # some iterations
        await wait_until(lambda: asking.called)
        assert isinstance(await asking, StoreUnavailableError)


@pytest.mark.slow
@ensureDeferred
async def test_write_that_arrives_late_is_not_executed(server: RedisServer) -> None:
    """A network may deliver bytes long after their sender has closed the connection."""
    with Proxy(server.port) as proxy:
        async with connected(proxy.url) as store, connected(server.url) as other:
            await store.add_post("before")
            proxy.pause()
            await fails(store.add_post("ghost"), store.replace_post(1, "ghost"), store.delete_post(1))
            proxy.resume()
            await serves_again(store)
            await sleep(0.2)
            assert await posts_of(other) == [(1, "before")]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "add_post",
            "replace_post",
            "delete_post",
            "make_key",
            "use_nonce",
            "use_proof",
            "add_session",
            "prove_session",
            "renew_session",
            "register_device",
            "bind_session",
        ),
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
def test_each_writing_script_checks_its_deadline(lasting: RedisServer, name: str) -> None:
    make_store(lasting.url).prepare()
    keys = sorted(lasting.ask("KEYS", "*"))
    late = int(lasting.ask("TIME")[0]) * 1000 - 1
    with pytest.raises(Exception, match="LATE the deadline has passed"):
        lasting.ask("EVAL", load_script(name, writes=True).text, 0, late, *["1"] * 8)
    assert sorted(lasting.ask("KEYS", "*")) == keys


@ensureDeferred
async def test_step_of_the_servers_clock_refuses_writes_only_until_it_is_measured(server: RedisServer) -> None:
    async with connected(server.url) as store:
        # As if the clock of the server had been set forward.
        connection = cast("Any", store).database._connection  # noqa: SLF001 - the clock of this machine cannot be set
        connection._server_ahead_s -= 3600  # noqa: SLF001 - likewise
        assert "LATE" in str(await error_of(store.add_post("too late")))
        await store.version()  # the server answers in order: it has said the time before
        assert await store.add_post("in time") == 1


@pytest.mark.usefixtures("patient")
@ensureDeferred
async def test_restart_under_load_loses_no_acknowledged_write(server: RedisServer) -> None:
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


@pytest.mark.usefixtures("patient")
@ensureDeferred
async def test_memory_stays_flat_without_a_server(server: RedisServer) -> None:
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


@pytest.mark.slow
@ensureDeferred
async def test_cancelled_calls_leave_nothing_behind(server: RedisServer) -> None:
    async with connected(server.url) as store:
        before = count_deferreds()
        server.freeze()
        calls = [started(store.add_post("ghost") if n % 2 else store.version()) for n in range(5000)]
        for call in calls:
            call.addErrback(lambda failure: failure.trap(CancelledError, StoreUnavailableError))
            call.cancel()
        await gatherResults(calls)
        del calls
        await fails(store.version())
        server.thaw()
        await serves_again(store)
        await sleep(0.2)
        assert count_deferreds() < before + 100
        assert await posts_of(store) == []


@ensureDeferred
async def test_store_stopped_while_connecting_stays_stopped(server: RedisServer) -> None:
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
