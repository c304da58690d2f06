"""The Redis store: the contract, on a real server."""

from typing import cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor

from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.opening import open_store as make_store_of
from tests.redis_server import RedisServer
from tests.store.contract import (
    LastingStoreContract,
    MakeStore,
    check_text_comes_back,
    with_any_text,
)

reactor = cast(IReactor, global_reactor)


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A server without data."""
    shared_server.ask("FLUSHALL")
    return shared_server


class RedisStoreTests(LastingStoreContract):
    @pytest.fixture
    def make_store(self, server: RedisServer) -> MakeStore:
        return lambda: make_store_of(server.url, where="store", reactor=reactor)

    @with_any_text
    @ensureDeferred
    async def test_text_is_stored_exactly(self, store: Store, text: str) -> None:
        await check_text_comes_back(store, text)
