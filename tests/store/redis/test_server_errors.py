"""The Redis store on a server that replies with errors, or is unsuitable."""

import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from pytest_twisted import ensureDeferred

from postd.errors import (
    PostdError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)
from postd.store.redis.connecting import connect
from postd.store.redis.connection import RedisReplyError
from postd.store.redis.url import Host, RedisAddress
from tests.cases import each
from tests.helpers import PATIENCE_S
from tests.redis_server import Proxy, RedisServer, free_port
from tests.store.contract import NOW, error_of, id_hash_of, make_session, make_token, posts_of
from tests.store.failing import (
    Log,
    check_no_number_comes_again,
    connected,
    fails,
    make_store,
    reactor,
    serves_again,
    sleep,
    wait_for_error,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("log", "patient")


@ensureDeferred
async def test_full_server_allows_reads_and_deletions(lasting: RedisServer, log: Log) -> None:
    async with connected(lasting.url) as store:
        for n in range(3):
            await store.add_post(f"post {n}")
        await store.add_session(id_hash_of(1), make_session())
        await store.add_token(id_hash_of(1), make_token(1))
        lasting.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            for call in (store.add_post("x"), store.replace_post(1, "longer"), store.use_nonce(b"n", 1, expires=NOW)):
                assert isinstance(await error_of(call), StoreFullError)
            assert len(log.lines("OOM")) == 1
            assert [text for _, text in await posts_of(store)] == ["post 0", "post 1", "post 2"]
            await store.delete_post(1)
            assert await store.delete_sessions([id_hash_of(1)]) == 1
            assert await store.delete_tokens(["token1"]) == 1
            assert isinstance(await error_of(store.add_token(id_hash_of(2), make_token(2))), StoreFullError)
            lasting.ask("CLIENT", "KILL", "TYPE", "normal")
            await serves_again(store)
            make_store(lasting.url).prepare()
        finally:
            lasting.ask("CONFIG", "SET", "maxmemory", "0")
        assert await store.add_post("there is room again") == 4
        assert [post_id for post_id, _ in await posts_of(store)] == [2, 3, 4]


@ensureDeferred
async def test_server_that_restarts_full_allows_reads(server: RedisServer) -> None:
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
async def test_demoted_primary_is_dropped(lasting: RedisServer, log: Log) -> None:
    async with connected(lasting.url) as store, connected(lasting.url) as idle:
        await store.add_post("before")
        lasting.ask("REPLICAOF", "127.0.0.1", free_port())
        try:
            await fails(store.add_post("ghost"))
            await wait_for_error(store, "is a replica, which is read-only; use the URL of the primary")
            await wait_for_error(idle, "is a replica")
            with pytest.raises(StoreRefusedError, match="is a replica, which is read-only; use the URL of the primary"):
                make_store(lasting.url).prepare()
        finally:
            lasting.ask("REPLICAOF", "NO", "ONE")
        await serves_again(store)
        assert await posts_of(store) == [(1, "before")]
        assert await store.add_post("after") > 1
        await serves_again(idle)


@ensureDeferred
async def test_server_that_lacks_replicas_allows_reads(lasting: RedisServer, log: Log) -> None:
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
async def test_server_that_cannot_save_allows_reads(lasting: RedisServer) -> None:
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


@pytest.mark.slow
@ensureDeferred
async def test_loading_server_is_unavailable_until_it_has_loaded(server: RedisServer, log: Log) -> None:
    async with connected(server.url) as store:
        await store.add_post("before")
        server.ask("EVAL", "for n = 1, 30000 do redis.call('SET', 'other:' .. n, n) end", 0)
        server.kill()
        server.start("key-load-delay 100", wait=False)
        await wait_for_error(store, "loading")
        await fails(store.add_post("ghost"), store.version())
        with pytest.raises(StoreUnavailableError):
            make_store(server.url).prepare()
        await serves_again(store)
        assert await posts_of(store) == [(1, "before")]
        lines = log.lines("trying again")
        assert any("is loading its data" in line for line in lines)
        assert all(line != following for line, following in pairwise(lines))  # no reason is repeated


@ensureDeferred
async def test_risky_settings_of_a_server_are_logged_once(tmp_path: Path, log: Log) -> None:
    options = ("appendonly no", "maxmemory 100mb", "maxmemory-policy allkeys-lru")
    with RedisServer(tmp_path / "redis", *options) as server:
        async with connected(server.url) as store:
            await store.add_post("x")
            server.ask("CLIENT", "KILL", "TYPE", "normal")
            await wait_until(lambda: log.lines("connected to") != [])
            await serves_again(store)
    assert len(log.lines("keeps no append-only file")) == 1
    assert len(log.lines("maxmemory-policy allkeys-lru")) == 1


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [
        (b"redis", b"6.0.", r"is Redis 6\.0\.\d*; postd needs Redis 6\.2 or newer$"),
        (b"valkey", b"7.1.", r"is Valkey 7\.1\.\d*; postd needs Valkey 7\.2 or newer$"),
        (b"redis", b"10.0", None),
        (b"valkey", b"10.", None),
    ],
)
def test_server_that_is_too_old_is_refused(lasting: RedisServer, name: bytes, version: bytes, why: str | None) -> None:
    def pretend(data: bytes) -> bytes:
        """Replace the name and version in the reply to INFO, with the same length."""
        field = name + b"_version:" + version
        return re.sub(rb"(?:redis|valkey)_version:[0-9.]+", lambda found: field.ljust(len(found[0]), b"0"), data)

    with Proxy(lasting.port) as proxy:
        proxy.to_client = pretend
        if why:
            with pytest.raises(StoreRefusedError, match=why):
                make_store(proxy.url).prepare()
        else:
            make_store(proxy.url).prepare()


@pytest.mark.parametrize("field", [b"role", b"master_replid"])
@pytest.mark.parametrize("name", ["a server", r"dfy \d[.0-9]+"])
def test_compatible_server_that_lacks_a_field_is_refused_by_its_name(
    lasting: RedisServer, field: bytes, name: str
) -> None:
    def pretend(data: bytes) -> bytes:
        """Rename fields of the reply to INFO, with the same length."""
        if name != "a server":
            data = data.replace(b"\ngcc_version:", b"\ndfy_version:")
        return data.replace(b"\n%b:" % field, b"\n%b:" % (b"x" * len(field)))

    with Proxy(lasting.port) as proxy:
        proxy.to_client = pretend
        with pytest.raises(StoreRefusedError, match=f"is {name} whose INFO has no {field.decode()}; postd needs Redis"):
            make_store(proxy.url).prepare()


@ensureDeferred
async def test_server_that_loses_a_field_is_reconnected_without_a_traceback(lasting: RedisServer, log: Log) -> None:
    with Proxy(lasting.port) as proxy:
        async with connected(proxy.url) as store:
            proxy.to_client = lambda data: data.replace(b"\nrole:", b"\nxxxx:")
            await wait_for_error(store, "INFO has no role")
            proxy.to_client = lambda data: data
            await serves_again(store)
    assert log.lines("unexpected") == []


def test_redis_cluster_is_refused(lasting: RedisServer) -> None:
    with Proxy(lasting.port) as proxy:
        proxy.to_client = lambda data: data.replace(b"cluster_enabled:0", b"cluster_enabled:1")
        with pytest.raises(StoreRefusedError, match="is part of a Redis Cluster"):
            make_store(proxy.url).prepare()


@each(
    "answer",
    [
        "ERR Error running script (call to f_{sha}): @user_script:87: @user_script: 87: -{why}.",  # Redis 6
        "{why}. script: {sha}, on @user_script:87.",  # Redis 7
        "{why} script: {sha}, on @user_script:87.",
        "{why}. script: on @user_script:87.",  # Valkey 9
    ],
)
def test_error_in_a_script_is_the_same_text_for_all_scripts(answer: str) -> None:
    """Else the log would repeat the problem for each script."""
    why = "OOM command not allowed when used memory > 'maxmemory'"
    error = RedisReplyError(answer.format(why=why, sha="01fa4b0a51" * 4))
    assert (error.code, error.text) == ("OOM", why)


def provoke_misconf(server: RedisServer) -> None:
    """Make snapshots fail: a folder has their name."""
    (server.folder / "dump.rdb" / "x").mkdir(parents=True)
    server.ask("CONFIG", "SET", "save", "3600 1000000")
    server.ask("BGSAVE")
    deadline = time.monotonic() + PATIENCE_S
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
                await protocol.call(*asked)
            error = caught.value.as_store_error("here")
            assert type(error) is kind
            assert re.match(f"here: .*(?:{words})", error.why)
            assert "user_script" not in error.why
    finally:
        protocol.close()


@ensureDeferred
async def test_server_with_too_many_clients_is_unavailable(guarded: RedisServer) -> None:
    url = f"redis://:right@127.0.0.1:{guarded.port}"
    async with connected(url) as store:
        guarded.ask("CONFIG", "SET", "maxclients", "4")
        with ExitStack() as others:
            for _ in range(8):
                others.enter_context(socket.create_connection(("127.0.0.1", guarded.port)))
                await sleep(0.02)
            with pytest.raises(StoreUnavailableError, match="max number of clients reached"):
                make_store(url).prepare()
        assert await store.add_post("an open connection stays") == 1
