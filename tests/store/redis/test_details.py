"""Databases of versions that keep no times and authors, and nodes of such versions beside newer ones."""

import time

import pytest
from pytest_twisted import ensureDeferred

from postd.errors import StoreUnavailableError
from postd.model import PostDetails
from postd.store.redis.scripts import KEYS
from tests.redis_server import RedisServer
from tests.store.contract import MS, NOW, details_of, error_of, import_posts
from tests.store.failing import connected

pytestmark = pytest.mark.usefixtures("log", "patient")


@ensureDeferred
async def test_database_without_details_is_opened_and_its_posts_have_none(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_post("one", author="alice", now=NOW)
    lasting.ask("DEL", KEYS["DETAILS"], KEYS["COLLECTION"])
    async with connected(lasting.url) as store:
        assert await details_of(store) == [PostDetails(1, "one")]
        collection = await store.collection()
        assert abs(collection.began / 1000 - time.time()) < 60
        await store.replace_post(1, "uno", now=NOW)
        assert await store.get_details(1) == PostDetails(1, "uno", None, MS)
    async with connected(lasting.url) as store:
        assert await store.collection() == collection


@ensureDeferred
async def test_details_that_an_older_node_leaves_are_not_those_of_a_post_with_the_same_id(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        for text in ("one", "two", "three"):
            await store.add_post(text, author="alice", now=NOW)
        for member in ("1:one", "2:two"):
            lasting.ask("ZREM", KEYS["POSTS"], member)
        three = PostDetails(3, "three", MS, MS, "alice")
        assert (await store.list_latest(limit=9)).posts == [three]
        await import_posts(store, [(1, "again")])
        assert await details_of(store) == [PostDetails(1, "again"), three]
        await store.delete_post(1)
        await store.delete_post(3)
        await import_posts(store, [(2, "again")])  # into a store without posts
        assert await details_of(store) == [PostDetails(2, "again")]


@ensureDeferred
async def test_full_server_without_a_collection_is_read(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_post("one")
    lasting.ask("DEL", KEYS["COLLECTION"])
    lasting.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        async with connected(lasting.url) as store:
            assert (await store.get_post(1)).post == "one"
            assert isinstance(await error_of(store.collection()), StoreUnavailableError)
    finally:
        lasting.ask("CONFIG", "SET", "maxmemory", "0")
