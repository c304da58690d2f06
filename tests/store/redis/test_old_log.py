"""The change log of older versions, which has texts: it is read once, and removed."""

import pytest
from pytest_twisted import ensureDeferred

from postd.errors import ChangesGoneError
from postd.model import Change, ChangeKind
from postd.store.interface import CHANGES_KEPT
from postd.store.redis.scripts import KEYS
from tests.redis_server import RedisServer
from tests.store.contract import error_of, open_store, posts_of
from tests.store.failing import connected, make_store

pytestmark = pytest.mark.usefixtures("log", "patient")

OLD = "postd:changes"


def log_as_before(server: RedisServer, revision: int, kind: str, post_id: int, *text: str) -> None:
    """Add an entry to the log of older versions."""
    fields = ("post", text[0]) if text else ()
    server.ask("XADD", OLD, f"{revision}-0", "kind", kind, "id", post_id, "tag", f"{revision:016}", *fields)


def add_as_before(server: RedisServer, text: str) -> None:
    """Add a post, as a node of an older version does."""
    post_id = server.ask("INCR", KEYS["LAST_ID"])
    server.ask("ZADD", KEYS["POSTS"], post_id, f"{post_id}:{text}")
    revision = server.ask("HINCRBY", KEYS["VERSION"], "revision", 1)
    server.ask("HSET", KEYS["VERSION"], "tag", f"{revision:016}")
    log_as_before(server, revision, "added", post_id, text)


@ensureDeferred
async def test_old_log_is_kept_without_its_texts(lasting: RedisServer) -> None:
    async with connected(lasting.url):
        pass
    for text in ("one", "two", "three"):
        add_as_before(lasting, text)
    lasting.ask("ZREM", KEYS["POSTS"], "2:two", "3:three")
    lasting.ask("ZADD", KEYS["POSTS"], 3, "3:drei")
    lasting.ask("HSET", KEYS["VERSION"], "revision", 5, "tag", f"{5:016}")
    log_as_before(lasting, 4, "deleted", 2)
    log_as_before(lasting, 5, "updated", 3, "drei")
    async with connected(lasting.url) as store:
        assert lasting.ask("EXISTS", OLD) == 0
        added, deleted = Change(1, ChangeKind.ADDED, 1, "one"), Change(4, ChangeKind.DELETED, 2, None)
        updated = Change(5, ChangeKind.ADDED, 3, "drei")
        assert await store.list_changes(after=0, limit=9, since=0) == [added, None, None, deleted, updated]
        assert await store.list_changes(after=3, limit=9, since=3) == [
            deleted,
            Change(5, ChangeKind.UPDATED, 3, "drei"),
        ]
        version = await store.version()
        assert await store.add_post("four") == 4
        assert (await store.list_posts(limit=0, since=version)).changes == {4: (4, "four")}


@ensureDeferred
async def test_large_old_log_is_kept(lasting: RedisServer) -> None:
    async with connected(lasting.url):
        pass
    lasting.ask(
        "EVAL",
        "for n = 1, 10000 do"
        "  redis.call('ZADD', KEYS[2], n, n .. ':a text');"
        "  redis.call('XADD', KEYS[1], n .. '-0', 'kind', 'added', 'id', n, 'tag', '0', 'post', 'a text') "
        "end redis.call('HSET', KEYS[3], 'revision', 10000) redis.call('SET', KEYS[4], 10000)",
        4,
        OLD,
        *(KEYS[name] for name in ("POSTS", "VERSION", "LAST_ID")),
    )
    store = await open_store(lambda: make_store(lasting.url))  # on a busy machine it connects twice
    for n in (1, CHANGES_KEPT):
        assert await store.list_changes(after=n - 1, limit=1, since=0) == [Change(n, ChangeKind.ADDED, n, "a text")]
    await store.stop()


@ensureDeferred
async def test_node_of_an_older_version_leaves_a_gap_and_no_text(lasting: RedisServer) -> None:
    async with connected(lasting.url) as store:
        await store.add_post("one")
        version = await store.version()
        add_as_before(lasting, "two")
        assert await posts_of(store) == [(1, "one"), (2, "two")]
        assert isinstance(await error_of(store.list_changes(after=1, limit=9)), ChangesGoneError)
        assert (await store.list_posts(limit=0, since=version)).changes is None
        await store.purge_expired(now=0, wall=0)
        assert lasting.ask("EXISTS", OLD) == 0
        assert await store.add_post("three") == 3
        assert await store.list_changes(after=2, limit=9) == [Change(3, ChangeKind.ADDED, 3, "three")]
        add_as_before(lasting, "four")
    async with connected(lasting.url) as store:
        assert lasting.ask("EXISTS", OLD) == 0
        assert await store.list_changes(after=2, limit=9) == [Change(3, ChangeKind.ADDED, 3, "three")]
