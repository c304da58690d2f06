"""Redis with sentinels: failure of the primary, of replicas, of sentinels."""

import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from msgspec import Struct
from pytest_twisted import ensureDeferred
from twisted.internet.defer import CancelledError, Deferred, gatherResults

from postd.errors import PostdError, StoreRefusedError, StoreUnavailableError
from postd.store.interface import Store
from postd.store.redis.scripts import KEYS
from tests.helpers import PATIENCE_S
from tests.redis_server import RedisServer, Sentinel
from tests.store.contract import posts_of, started
from tests.store.failing import (
    Log,
    connected,
    fails,
    make_store,
    reactor,
    serves_again,
    sleep,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("log")

TRIES = 20

PASSWORD = "s3cret"


class Group(Struct):
    """A primary, its replicas, and the sentinels that watch them."""

    primary: RedisServer
    replicas: list[RedisServer]
    sentinels: list[Sentinel]
    password: str | None

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{f':{self.password}@' if self.password else ''}{places}/main"

    def primary_port(self) -> int:
        """Return the port of the primary, by the last sentinel; the servers may not know it yet."""
        return int(self.sentinels[-1].ask("SENTINEL", "get-master-addr-by-name", "main")[1])


def role_of(server: RedisServer) -> str:
    return str(server.ask("ROLE")[0])


def count_posts(server: RedisServer) -> int:
    return int(server.ask("ZCARD", KEYS["POSTS"]))


def is_replicating(server: RedisServer, primary_port: int) -> bool:
    info = server.ask("INFO", "replication")
    return bool(info.get("master_port") == primary_port and info["master_link_status"] == "up")


def waits_for_replica(server: RedisServer) -> bool:
    """Return whether a connection of a primary is blocked in WAIT."""
    return int(server.ask("INFO", "clients")["blocked_clients"]) > 0


async def write_that_waits(store: Store, primary: RedisServer) -> Deferred[list[PostdError]]:
    """Start a write that will fail, and return it while it waits for a replica, which is half a second only."""
    for _ in range(TRIES):
        await serves_again(store)
        writing = started(fails(store.add_post("perhaps")))
        while not writing.called:
            if waits_for_replica(primary):
                return writing
            await sleep(0.02)
        await writing
    pytest.fail("no write waits for a replica")


def start_group(stack: ExitStack, folder: Path, *, replicas: int, password: str | None = None) -> Group:
    """Start a group, and wait until its members know each other."""
    options = ["repl-diskless-sync yes", "repl-diskless-sync-delay 0"]
    watching = []
    if password:
        options += [f"requirepass {password}", f"masterauth {password}"]
        watching = [f"sentinel auth-pass main {password}", f"requirepass {password}"]
    primary = stack.enter_context(RedisServer(folder / "0", *options, password=password))
    others = [
        stack.enter_context(
            RedisServer(folder / f"{n + 1}", *options, f"replicaof 127.0.0.1 {primary.port}", password=password)
        )
        for n in range(replicas)
    ]
    sentinels = [
        stack.enter_context(Sentinel(folder / f"sentinel-{n}", primary.port, *watching, password=password))
        for n in range(3)
    ]
    return Group(primary, others, sentinels, password)


async def until_all_know_each_other(group: Group) -> None:
    def known(sentinel: Sentinel) -> bool:
        found = sentinel.ask("SENTINEL", "MASTER", "main")
        return int(found["num-slaves"]) == len(group.replicas) and int(found["num-other-sentinels"]) == 2

    for replica in group.replicas:
        await wait_until(lambda: is_replicating(replica, group.primary.port))  # noqa: B023
    for sentinel in group.sentinels:
        await wait_until(lambda: known(sentinel))  # noqa: B023
    # Sentinels promote only replicas that have reported their offset.
    await wait_until(
        lambda: all(
            group.primary.ask("INFO", "replication")[f"slave{n}"]["state"] == "online"
            for n in range(len(group.replicas))
        )
    )


@asynccontextmanager
async def group_of(folder: Path, *, replicas: int, password: str | None = None) -> AsyncIterator[Group]:
    with ExitStack() as stack:
        group = start_group(stack, folder, replicas=replicas, password=password)
        await until_all_know_each_other(group)
        yield group


class Writers:
    """Eight concurrent writers, and the posts that were acknowledged."""

    def __init__(self, store: Store) -> None:
        self.acknowledged: dict[int, str] = {}
        self._store = store
        self._ends = False
        self._all = [started(self._write(f"{n}")) for n in range(8)]

    async def _write(self, name: str) -> None:
        count = 0
        while not self._ends:
            count += 1
            text = f"{name}-{count}"
            try:
                post_id = await self._store.add_post(text)
            except StoreUnavailableError:
                await sleep(0.02)
                continue
            assert post_id not in self.acknowledged
            self.acknowledged[post_id] = text

    async def more(self, count: int = 100) -> None:
        before = len(self.acknowledged)
        await wait_until(lambda: len(self.acknowledged) > before + count)

    async def end(self) -> None:
        self._ends = True
        await gatherResults(self._all)

    async def check_nothing_is_lost(self, store: Store) -> None:
        await serves_again(store)  # on a busy machine the connection may just have been dropped
        stored = dict(await posts_of(store))
        assert {post_id: stored.get(post_id) for post_id in self.acknowledged} == self.acknowledged


@pytest.mark.slow
@ensureDeferred
async def test_failover_loses_no_acknowledged_write(tmp_path: Path, log: Log) -> None:
    async with group_of(tmp_path, replicas=2, password=PASSWORD) as group, connected(group.url) as store:
        writers = Writers(store)
        await writers.more(300)
        assert log.lines("trying again") == []
        group.sentinels[0].kill()  # the first that is asked
        before = await store.version()
        group.primary.kill()
        await writers.more(300)
        assert (await store.version()).revision > before.revision
        promoted = group.primary_port()
        assert promoted != group.primary.port
        (replica,) = [one for one in group.replicas if one.port != promoted]
        replica.kill()
        await writers.more(300)  # with no replica that could confirm anything
        # The old primary restarts as a primary, until the sentinels demote it.
        group.primary.start()
        left_over = count_posts(group.primary)
        await writers.more(300)
        await writers.end()
        count = count_posts(group.primary)
        assert count == left_over or role_of(group.primary) != "master"  # demoted meanwhile
        assert group.primary_port() == promoted
        await writers.check_nothing_is_lost(store)
        assert len(log.lines("may lack the last writes")) == 1
        assert log.lines(PASSWORD) == []
        async with connected(group.url) as other:
            assert await other.last_id() == await store.last_id()


@pytest.mark.slow
@ensureDeferred
async def test_suspended_primary_gets_no_writes_when_it_resumes(tmp_path: Path) -> None:
    async with group_of(tmp_path, replicas=2) as group, connected(group.url) as store, connected(group.url) as idle:
        await store.add_post("before")
        await idle.version()
        writers = Writers(store)
        await writers.more()
        group.sentinels[0].freeze()  # the first that is asked takes connections and says nothing
        group.primary.freeze()
        await writers.more()
        promoted = group.primary_port()
        assert promoted != group.primary.port
        await serves_again(idle)
        group.primary.thaw()
        assert role_of(group.primary) == "master"  # not demoted yet
        for n in range(40):
            post_id = await idle.add_post(f"idle {n}")
            writers.acknowledged[post_id] = f"idle {n}"
            await sleep(0.01)
        await writers.end()
        group.sentinels[0].thaw()
        await writers.check_nothing_is_lost(store)
        await writers.check_nothing_is_lost(idle)
        assert group.primary_port() == promoted


@ensureDeferred
async def test_one_working_sentinel_is_enough(tmp_path: Path) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer(tmp_path / "redis"))
        sentinel = stack.enter_context(Sentinel(tmp_path / "sentinel", primary.port))
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        places = [*(f"127.0.0.1:{one.getsockname()[1]}" for one in silent), f"127.0.0.1:{sentinel.port}"]
        url = f"redis+sentinel://{','.join(places)}/main"
        async with connected(url) as store:
            assert await store.add_post("x") == 1
            primary.ask("CLIENT", "KILL", "TYPE", "normal")
            await fails(store.version())
            await serves_again(store)
            with pytest.raises(StoreUnavailableError, match="does not monitor a primary 'other'"):
                make_store(url.replace("/main", "/other")).prepare()
            with pytest.raises(
                StoreRefusedError, match=r"is a sentinel; use a URL like redis\+sentinel://HOST:PORT/PRIMARY"
            ):
                make_store(sentinel.url).prepare()
            with pytest.raises(StoreRefusedError, match=f"sentinel 127.0.0.1:{primary.port}: is no sentinel$"):
                make_store(f"redis+sentinel://127.0.0.1:{primary.port}/main").prepare()
            sentinel.kill()
            with pytest.raises(StoreUnavailableError, match=r"sentinel 127.*Connection refused"):
                make_store(url).prepare()
            assert await store.add_post("a connection that there is needs no sentinels") == 2


def test_missing_permission_for_wait_refuses_the_start(tmp_path: Path) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer(tmp_path / "redis"))
        primary.ask("ACL", "SETUSER", "p", "on", ">x", "~*", "+@all", "-wait")
        sentinel = stack.enter_context(Sentinel(tmp_path / "sentinel", primary.port))
        with pytest.raises(StoreRefusedError, match=r"NOPERM .*'wait'"):
            make_store(f"redis+sentinel://p:x@127.0.0.1:{sentinel.port}/main").prepare()
        make_store(f"redis://p:x@127.0.0.1:{primary.port}").prepare()


@pytest.mark.slow
@ensureDeferred
async def test_write_without_a_replica_is_not_acknowledged(tmp_path: Path) -> None:
    async with group_of(tmp_path, replicas=2) as group:
        # Suspended replicas count as replicas during the whole test, instead of for two seconds.
        group.primary.ask("CONFIG", "SET", "min-replicas-to-write", 1)
        group.primary.ask("CONFIG", "SET", "min-replicas-max-lag", int(PATIENCE_S))
        async with connected(group.url) as store:
            await store.add_post("before")
            for replica in group.replicas:
                replica.freeze()
            errors = await fails(*(store.add_post("perhaps") for _ in range(20)))
            assert "no replica has the last writes yet" in str(errors[0])
            # Reads do not wait behind a write.
            for _ in range(TRIES):
                writing = await write_that_waits(store, group.primary)
                assert (await store.list_posts(limit=1)).posts == [(1, "before")]
                if not writing.called:
                    break
                await writing
            else:
                pytest.fail("each read was done after the write")
            await writing
            given_up = await write_that_waits(store, group.primary)
            given_up.cancel()
            with pytest.raises(CancelledError):
                await given_up
            group.replicas[0].thaw()
            await until_written(store)
            group.replicas[1].thaw()


@pytest.mark.slow
@ensureDeferred
async def test_enforced_replicas_are_needed_for_each_acknowledgement(tmp_path: Path) -> None:
    """The server counts its replicas once a second, and accepts writes without any until then."""
    async with group_of(tmp_path, replicas=1) as group:
        for setting, value in (("min-replicas-to-write", 1), ("min-replicas-max-lag", 2)):
            group.primary.ask("CONFIG", "SET", setting, value)
        async with connected(group.url) as store:
            await until_written(store)
            group.replicas[0].freeze()
            until = reactor.seconds() + 4
            while reactor.seconds() < until:
                await fails(store.add_post("perhaps"))
            group.replicas[0].thaw()
            await until_written(store)


async def until_written(store: Store) -> None:
    """Wait until a write is acknowledged."""
    began = reactor.seconds()
    while True:
        try:
            await store.add_post("after")
        except StoreUnavailableError:
            assert reactor.seconds() < began + PATIENCE_S
            await sleep(0.02)
        else:
            return
