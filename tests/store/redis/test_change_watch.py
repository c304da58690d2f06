"""Watching the change log in Redis; a second store stands for another node."""

from pathlib import Path

import pytest
from pytest_twisted import ensureDeferred

from postd.errors import StoreUnavailableError
from tests.redis_server import RedisServer, Sentinel
from tests.store.contract import check_changes_are_noticed
from tests.store.failing import Log, connected, serves_again, wait_until

pytestmark = pytest.mark.usefixtures("patient")


@ensureDeferred
async def test_changes_are_noticed_by_the_waiting_command_alone(
    lasting: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postd.store.redis.reconnecting._CHECKS_PER_ROLE_CHECK", 10**9)
    async with connected(lasting.url) as here, connected(lasting.url) as there:
        await check_changes_are_noticed(here, there)


@ensureDeferred
async def test_changes_are_noticed_on_the_primary_that_a_sentinel_names(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postd.store.redis.reconnecting._CHECKS_PER_ROLE_CHECK", 10**9)
    with Sentinel(tmp_path / "sentinel", server.port) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
        async with connected(url) as here, connected(url) as there:
            await check_changes_are_noticed(here, there)


@ensureDeferred
async def test_waiting_connection_ends_with_the_watch(lasting: RedisServer) -> None:
    def blocked() -> int:
        return int(lasting.ask("INFO", "clients")["blocked_clients"])

    async with connected(lasting.url) as here:
        here.watch_changes(lambda: None)
        await wait_until(lambda: blocked() == 1)
        here.watch_changes(None)
        await wait_until(lambda: blocked() == 0)


@ensureDeferred
async def test_changes_are_noticed_after_an_outage(server: RedisServer, log: Log) -> None:
    calls: list[int] = []
    async with connected(server.url) as here, connected(server.url) as there:
        here.watch_changes(lambda: calls.append(1))
        server.kill()
        with pytest.raises(StoreUnavailableError):
            await there.version()
        server.start()
        for store in (here, there):
            await serves_again(store)
        await wait_until(lambda: int(server.ask("INFO", "clients")["blocked_clients"]) == 1)
        calls.clear()
        await there.add_post("one")
        await wait_until(lambda: bool(calls))
    assert log.lines("unexpected") == []


@ensureDeferred
async def test_waiting_command_is_sent_again(lasting: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postd.store.redis.change_watch.BLOCK_S", 1)
    async with connected(lasting.url) as here:
        here.watch_changes(lambda: None)
        before = _count(lasting)
        await wait_until(lambda: _count(lasting) > before + 1)


def _count(server: RedisServer) -> int:
    """Return how many XREAD commands the server has been sent."""
    return int(server.ask("INFO", "commandstats").get("cmdstat_xread", {}).get("calls", 0))
