"""The Redis store: the contract, on a real server."""

from typing import cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor

from postd.protocol.password_reset import PasswordReset
from postd.reactor import IReactor
from postd.store.interface import TOKENS_KEPT_S, Store
from postd.store.opening import open_store as make_store_of
from postd.store.redis.scripts import KEYS
from tests.redis_server import RedisServer
from tests.store.contract import (
    ID_TOKEN,
    NOW,
    LastingStoreContract,
    MakeStore,
    check_text_comes_back,
    id_hash_of,
    make_passkey,
    make_provider_session,
    make_session,
    make_token,
    with_any_text,
)

reactor = cast(IReactor, global_reactor)


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A server without data."""
    shared_server.ask("FLUSHALL")
    return shared_server


@pytest.mark.usefixtures("patient")
class RedisStoreTests(LastingStoreContract):
    @pytest.fixture
    def make_store(self, server: RedisServer) -> MakeStore:
        return lambda: make_store_of(server.url, where="store", reactor=reactor)

    @with_any_text
    @ensureDeferred
    async def test_text_is_stored_exactly(self, store: Store, text: str) -> None:
        await check_text_comes_back(store, text)

    @ensureDeferred
    async def test_credentials_leave_no_key(self, store: Store, server: RedisServer) -> None:
        for end in (
            lambda: store.delete_credentials_of({"alice": None}),
            lambda: store.purge_expired(now=NOW + 9 + TOKENS_KEPT_S, wall=NOW),
        ):
            await store.add_token(id_hash_of(1), make_token(1, expires=NOW + 9))
            await store.add_passkey(make_passkey(1))
            for secret in (b"1", b"2"):
                await store.add_password_reset(secret, PasswordReset("alice", b"", NOW))
            await end()
            await store.delete_passkeys(["key1"])
            left = [key for kind in ("token", "passkey", "reset") for key in server.ask("KEYS", f"postd:{kind}*")]
            assert left == []

    @ensureDeferred
    async def test_session_of_an_older_version_is_read(self, store: Store, server: RedisServer) -> None:
        await store.add_session(id_hash_of(1), make_session())
        stored = server.ask("HGETALL", KEYS["SESSION"] + id_hash_of(1).hex())
        assert len(stored) == 6  # the fields of older versions
        assert await store.get_session(id_hash_of(1)) == make_session()

    @ensureDeferred
    async def test_session_that_an_older_version_ends_leaves_no_key(self, store: Store, server: RedisServer) -> None:
        for number in (1, 2):
            await store.add_session(id_hash_of(number), make_provider_session("1", "s"), id_token=ID_TOKEN)
        server.ask("ZREM", KEYS["SESSIONS"], id_hash_of(1).hex())
        server.ask("DEL", KEYS["SESSION"] + id_hash_of(1).hex())
        assert await store.get_id_token(id_hash_of(1)) == ""
        assert await store.end_sessions_at(b"provider", subject="1") == 1
        assert await store.end_sessions_at(b"provider", sid="s") == 0
        assert server.ask("KEYS", f"{KEYS['SESSIONS_AT']}*") == []
