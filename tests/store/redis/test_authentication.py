"""Passwords and permissions of the Redis store."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_twisted import ensureDeferred

from postd.errors import (
    StoreRefusedError,
    StoreUnavailableError,
)
from postd.store.interface import Reservation
from tests.redis_server import RedisServer
from tests.store.contract import KEYS as FAILURE_KEYS
from tests.store.contract import NOW, check_changes_are_noticed, id_hash_of, import_posts, make_session, posts_of
from tests.store.failing import (
    Log,
    connected,
    fails,
    make_store,
    serves_again,
    sleep,
    wait_for_error,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("log", "patient")


@ensureDeferred
async def test_wrong_password_refuses_the_start_and_is_not_shown(guarded: RedisServer, tmp_path: Path) -> None:
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


def test_user_may_have_no_password(lasting: RedisServer) -> None:
    lasting.ask("ACL", "SETUSER", "trusted", "on", "nopass", "~*", "&*", "+@all")
    make_store(lasting.url.replace("//", "//trusted@")).prepare()
    lasting.ask("ACL", "DELUSER", "trusted")


def test_password_for_a_server_without_one_is_refused(lasting: RedisServer) -> None:
    with pytest.raises(StoreRefusedError, match="without any password configured") as caught:
        make_store(f"redis://:s3cret@127.0.0.1:{lasting.port}").prepare()
    assert "s3cret" not in str(caught.value)


def test_missing_database_number_is_refused(lasting: RedisServer) -> None:
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
def test_unusable_password_file_is_refused_with_the_reason(
    lasting: RedisServer, tmp_path: Path, content: bytes | None, why: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StoreRefusedError) as caught:
        make_store(f"{lasting.url}?password_file={file}").prepare()
    assert str(caught.value) == f"{file}: {why}"


@ensureDeferred
async def test_changed_password_file_is_used_at_the_next_connect(
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
    """The URL of an empty server, for a user with the rules of the sample settings."""
    lasting.ask("ACL", "SETUSER", "postd", "reset", "on", ">s3cret", *SAMPLE_RULES.split())
    yield f"redis://postd:s3cret@127.0.0.1:{lasting.port}"
    lasting.ask("ACL", "DELUSER", "postd")


@pytest.mark.parametrize("database", ["new", "existing"])
def test_missing_permission_for_any_command_refuses_the_start(
    lasting: RedisServer, limited_url: str, database: str
) -> None:
    for command in re.findall(r"\+(?!auth|wait|xread)(\w+)", SAMPLE_RULES):
        lasting.ask("FLUSHALL")
        if database == "existing":
            make_store(limited_url).prepare()
        lasting.ask("ACL", "SETUSER", "postd", f"-{command}")
        with pytest.raises(StoreRefusedError, match=rf"refuses {command.upper()}: |NOPERM .*'{command}'"):
            make_store(limited_url).prepare()
        lasting.ask("ACL", "SETUSER", "postd", f"+{command}")


@ensureDeferred
async def test_without_permission_for_xread_changes_are_noticed_each_second(
    lasting: RedisServer, limited_url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the rules of earlier versions, until the permission is given."""
    lasting.ask("ACL", "SETUSER", "postd", "-xread")
    async with connected(limited_url) as here, connected(limited_url) as there:
        await check_changes_are_noticed(here, there)
        monkeypatch.setattr("postd.store.redis.change_watch.REFUSED_RETRY_AFTER_S", 0.1)
        before = _refused(lasting)
        here.watch_changes(lambda: None)
        await wait_until(lambda: _refused(lasting) > before + 1)
        lasting.ask("ACL", "SETUSER", "postd", "+xread")
        await wait_until(lambda: int(lasting.ask("INFO", "clients")["blocked_clients"]) == 1)
    (line,) = log.lines("late")
    assert re.search(r"NOPERM.* 'xread' .*up to a second late \(required permissions: etc/redis.conf.example\)", line)


def _refused(server: RedisServer) -> int:
    """Return how many XREAD commands the server has refused."""
    return int(server.ask("INFO", "commandstats")["cmdstat_xread"]["rejected_calls"])


def test_all_missing_permissions_are_named_in_one_message(lasting: RedisServer, limited_url: str) -> None:
    lasting.ask("ACL", "SETUSER", "postd", "-hset", "-zadd", "-incr")
    with pytest.raises(
        StoreRefusedError, match=r": refuses HSET, ZADD: .+ \(required permissions: etc/redis.conf.example\)"
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
async def test_user_of_the_sample_settings_has_all_permissions(lasting: RedisServer, limited_url: str) -> None:
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
        assert await store.register_device(id_hash_of(1), "key")
        await store.bind_session(id_hash_of(1), bound=NOW)
        assert await store.was_bound("alice")
        assert len(await store.list_sessions()) == 1
        assert await store.delete_sessions_of({"alice": None}) == 1
        assert await store.delete_all_sessions() == 0
        reservation = Reservation("one", FAILURE_KEYS, NOW + 1)
        assert await store.reserve_attempt(reservation, allowed=(9, 9, 9), now=NOW) is None
        await store.release_attempt(reservation)
        assert await store.add_failure(FAILURE_KEYS, now=NOW, expires=NOW + 1) != {}
        assert await store.count_failures(FAILURE_KEYS, now=NOW) != {}
        await store.forget_failures(FAILURE_KEYS[0])
        await store.purge_expired(now=NOW + 9999, wall=NOW + 9999)
    with pytest.raises(Exception, match=r"no permissions|NOPERM"):
        lasting.ask("FLUSHALL", username="postd", password="s3cret")
    lasting.ask("ACL", "SETUSER", "postd", "-evalsha", "-eval")
    with pytest.raises(StoreRefusedError, match="NOPERM"):
        make_store(limited_url).prepare()
