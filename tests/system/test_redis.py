"""The Redis store on Debian's server, under the settings that we advise: etc/redis.conf.example."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.task import deferLater

from postd.errors import StoreFullError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.opening import open_store as make_store_of
from tests.helpers import PATIENCE_S
from tests.redis_server import RedisServer
from tests.store.contract import MakeStore, check_text_comes_back, error_of, with_any_text
from tests.store.contract import store as store  # noqa: PLC0414 - a fixture
from tests.store.failing import patient as patient  # noqa: PLC0414 - a fixture
from tests.store.redis import test_store

ETC = Path(__file__).parent.parent.parent / "etc"
DEBIAN = os.environ.get("POSTD_REDIS_SERVER", "/usr/bin/redis-server")
WAIT_MAX_S = PATIENCE_S
ADMIN = {"username": "admin", "password": "CHANGE-ME-admin"}
SENTINEL = {"username": "sentinel", "password": "CHANGE-ME-sentinel"}

reactor = cast(IReactor, global_reactor)


class ExampleServer(RedisServer):
    """Debian's server with the lines of etc/redis.conf.example.

    Args:
        folder: for its files.
        options: further lines; they win.
        uncommented: what lines begin with that are there for some cases only.
    """

    def __init__(self, folder: Path, *options: str, uncommented: tuple[str, ...] = ()) -> None:
        super().__init__(folder, program=DEBIAN)
        lines = (ETC / "redis.conf.example").read_text()
        for words in uncommented:
            lines, count = re.subn(rf"^#(?={words} )", "", lines, flags=re.MULTILINE)
            assert count, words
        self._write(lines, *options)

    def _write(self, *lines: str) -> None:
        # The sample's folder is another user's, or is not there: each line of that kind is followed where it is read.
        others = re.sub(r"^dir .*$", "", "\n".join(lines), flags=re.MULTILINE)
        text = f"{others}\nport {self.port}\ndir {self.folder}"
        (self.folder / "redis.conf").write_text(text + "\n")

    @property
    def url(self) -> str:
        return f"redis://postd:CHANGE-ME-postd@127.0.0.1:{self.port}"

    def ask(self, *command: Any, **options: Any) -> Any:
        return super().ask(*command, **(options or ADMIN))


async def once(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline
        await deferLater(reactor, 0.05)


async def once_it_answers(call: Callable[[], Any]) -> Any:
    """Repeat a call until the store is available again; return its result."""
    deadline = time.monotonic() + WAIT_MAX_S
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            assert time.monotonic() < deadline
        await deferLater(reactor, 0.05)


class ExampleSentinel(ExampleServer):
    """Debian's sentinel with the lines of etc/sentinel.conf.example, before a primary on this machine."""

    def __init__(self, folder: Path, primary: RedisServer) -> None:
        super().__init__(folder)
        self._mode = ["--sentinel"]
        self._write(substitute("sentinel.conf.example", {"192.0.2.11 6379": f"127.0.0.1 {primary.port}"}))

    def ask(self, *command: Any, **options: Any) -> Any:
        return super().ask(*command, **(options or SENTINEL))


def substitute(name: str, places: Mapping[str, str]) -> str:
    """Return an example of etc/ with replacements, each of which must apply."""
    text = (ETC / name).read_text()
    for there, here in places.items():
        assert there in text
        text = text.replace(there, here)
    return text


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleServer]:
    with ExampleServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server: ExampleServer) -> ExampleServer:
    """An empty server."""
    shared_server.ask("FLUSHALL")
    shared_server.ask("ACL", "LOG", "RESET")
    return shared_server


class DebianRedisStoreTests(test_store.RedisStoreTests):
    @with_any_text
    @ensureDeferred
    async def test_text_is_stored_exactly(self, store: Store, text: str) -> None:
        await check_text_comes_back(store, text)


@pytest.fixture
def make_store(server: ExampleServer) -> MakeStore:
    return lambda: make_store_of(server.url, where="store", reactor=reactor)


def test_example_settings_are_in_force(server: ExampleServer) -> None:
    for name, value in {
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
        "protected-mode": "yes",
        "bind": "127.0.0.1",
    }.items():
        assert server.ask("CONFIG", "GET", name) == {name: value}


OTHERS = {"auth", "ping", "info", "role", "wait", "xread", "eval", "evalsha"}
"""The commands that no script uses."""


def test_acl_allows_exactly_the_used_commands(server: ExampleServer) -> None:
    """The other tests of the module prove that the permissions suffice."""
    scripts = [file.read_text("utf-8") for file in (resources.files("postd.store.redis") / "lua").iterdir()]
    used = {command.lower() for script in scripts for command in re.findall(r"redis\.call\('([A-Z]+)'", script)}
    (line,) = re.findall(r"^user postd on .*", (ETC / "redis.conf.example").read_text(), re.MULTILINE)
    assert set(re.findall(r" \+(\S+)", line)) == used | OTHERS
    postd = {"username": "postd", "password": "CHANGE-ME-postd"}
    for command in (("GET", "other"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("KEYS", "*")):
        with pytest.raises(redis.exceptions.NoPermissionError):
            server.ask(*command, **postd)
    with pytest.raises(redis.exceptions.AuthenticationError):
        server.ask("GET", "postd:schema", password="")


REFUSING = {
    "OOM": (("maxmemory", "1"),),
    "NOREPLICAS": (("min-replicas-to-write", "1"),),
    "READONLY": (),
    "MISCONF": (("stop-writes-on-bgsave-error", "yes"), ("save", "3600 1000000")),
}


@pytest.mark.parametrize("code", REFUSING)
@ensureDeferred
async def test_refused_write_changes_nothing_and_logs_its_reason(tmp_path: Path, code: str) -> None:
    with ExampleServer(tmp_path / "redis") as server:
        store = make_store_of(server.url, where="store", reactor=reactor)
        store.prepare()
        await store.start()
        try:
            await store.add_post("before")
            if code == "READONLY":
                server.ask("REPLICAOF", "127.0.0.1", "1")
            if code == "MISCONF":  # snapshots cannot be written: something else has their name
                (server.folder / "dump.rdb" / "x").mkdir(parents=True)
                server.ask("BGSAVE")
                await once(lambda: server.ask("INFO")["rdb_last_bgsave_status"] == "err")
            for name, value in REFUSING[code]:
                server.ask("CONFIG", "SET", name, value)
            why = await error_of(store.add_post("refused"))
            assert isinstance(why, StoreFullError if code == "OOM" else StoreUnavailableError)
            assert f": {code} " in why.why
            assert "\n" not in why.why
            server.ask("CONFIG", "SET", "maxmemory", "0")
            server.ask("CONFIG", "SET", "min-replicas-to-write", "0")
            server.ask("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
            server.ask("REPLICAOF", "NO", "ONE")
            await once_it_answers(lambda: store.add_post("after"))
            page = await store.list_posts(limit=10)
            assert [text for _, text in page.posts] == ["before", "after"]
        finally:
            await store.stop()


@pytest.mark.parametrize("program", ["", DEBIAN])
@pytest.mark.parametrize("rights", ["~postd:* +@all -hset", "~other:* +@all", "~postd:* +@all -eval"])
def test_redis_user_without_permission_is_refused(tmp_path: Path, rights: str, program: str) -> None:
    with RedisServer(tmp_path / "redis", f"user p on >x resetchannels {rights}", program=program) as server:
        store = make_store_of(f"redis://p:x@127.0.0.1:{server.port}", where="store", reactor=reactor)
        with pytest.raises(StoreRefusedError, match=r"permission|The user executing the script can't"):
            store.prepare()


def test_other_database_requires_the_select_permission(server: ExampleServer) -> None:
    store = make_store_of(f"{server.url}/1", where="store", reactor=reactor)
    with pytest.raises(StoreRefusedError, match="'select'"):
        store.prepare()
    server.ask("ACL", "SETUSER", "postd", "+select")
    store.prepare()
    server.ask("ACL", "SETUSER", "postd", "-select")


@ensureDeferred
async def test_acknowledged_writes_survive_kill_of_redis(server: ExampleServer, store: Store) -> None:
    ids = [await store.add_post(f"post {number}") for number in range(100)]
    server.kill()
    server.start()
    page = await once_it_answers(lambda: store.list_posts(limit=1000))
    assert [post_id for post_id, _ in page.posts] == ids
    assert await store.add_post("after it") > ids[-1] + 100_000


GROUP = ("min-replicas-to-write", "min-replicas-max-lag", "user replica", "masteruser", "masterauth", "user sentinel")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[list[ExampleServer], list[ExampleSentinel]]]:
    """A primary, two replicas and three sentinels, which have found each other."""
    with ExitStack() as running:
        primary = running.enter_context(ExampleServer(tmp_path / "primary", uncommented=GROUP))
        replicaof = f"replicaof 127.0.0.1 {primary.port}"
        servers = [primary]
        for number in range(2):
            server = ExampleServer(tmp_path / f"replica{number}", replicaof, uncommented=GROUP)
            servers.append(running.enter_context(server))
        sentinels = [
            running.enter_context(ExampleSentinel(tmp_path / f"sentinel{number}", primary)) for number in range(3)
        ]
        deadline = time.monotonic() + WAIT_MAX_S
        while not (all(map(_sees_all, sentinels)) and primary.ask("INFO")["min_slaves_good_slaves"] == 2):
            assert time.monotonic() < deadline, [sentinel.log_file.read_text() for sentinel in sentinels]
            time.sleep(0.1)
        yield servers, sentinels


def _sees_all(sentinel: ExampleSentinel) -> bool:
    primary = sentinel.ask("SENTINEL", "MASTER", "main")
    return (int(primary["num-slaves"]), int(primary["num-other-sentinels"])) == (2, 2)


def _primary_of(servers: Sequence[ExampleServer]) -> ExampleServer | None:
    """Return the server that has both others as replicas, None for as long as none has."""
    return next((server for server in servers if server.ask("INFO").get("min_slaves_good_slaves") == 2), None)


@ensureDeferred
async def test_sentinel_group_survives_loss_of_its_primary(
    group: tuple[list[ExampleServer], list[ExampleSentinel]],
) -> None:
    servers, sentinels = group
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    url = f"redis+sentinel://postd:CHANGE-ME-postd@{hosts}/main"
    store = make_store_of(url, where="store", reactor=reactor)
    store.prepare()
    await store.start()
    try:
        ids = [await once_it_answers(lambda: store.add_post("before")) for _ in range(50)]
        servers[0].kill()
        with pytest.raises(StoreUnavailableError):
            await store.add_post("while there is none")
        after = await once_it_answers(lambda: store.add_post("after"))
        assert after > ids[-1] + 100_000
        posts = (await store.list_posts(limit=1000)).posts
        assert [post_id for post_id, text in posts if text == "before"] == ids
        # The old primary comes back as a replica.
        servers[0].start()
        await once(lambda: servers[0].ask("ROLE")[0] == "slave")
        # Cut off from all others, the primary acknowledges nothing more.
        await once(lambda: _primary_of(servers) is not None)
        await once_it_answers(lambda: store.add_post("with both"))
        primary = _primary_of(servers)
        for server in servers:
            if server is not primary:
                server.kill()
        why = await error_of(store.add_post("cut off"))
        assert isinstance(why, StoreUnavailableError)
        assert (await store.get_post(ids[0])).post == "before"
    finally:
        await store.stop()


@ensureDeferred
async def test_requested_failover_needs_no_other_permission(
    group: tuple[list[ExampleServer], list[ExampleSentinel]],
) -> None:
    servers, sentinels = group
    request = ("SENTINEL", "FAILOVER", "main")
    try:
        sentinels[0].ask(*request, "COORDINATED")  # by the primary itself: Valkey 9
    except redis.exceptions.ResponseError:
        sentinels[0].ask(*request)
    await once(lambda: servers[0].ask("ROLE")[0] == "slave")
    await once(lambda: "failover" not in sentinels[0].ask("SENTINEL", "MASTER", "main")["flags"])
    assert [server.ask("ACL", "LOG") for server in (*servers, *sentinels)] == [[]] * 6
