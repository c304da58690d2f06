"""A deleted or replaced text is gone from all workers and nodes, once the write is acknowledged; listeners got it."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from tests.helpers import run_sql, wait_until
from tests.integration.daemon import Daemon
from tests.integration.test_events import Listener, add, listening
from tests.integration.test_redis import serve
from tests.integration.test_workers import TWO, clients_of_each
from tests.redis_server import RedisServer

ADDED, REPLACED, LEFT = "the text that was added", "the text that replaced it", "the text that is left"


def write_and_delete(writers: Sequence[httpx.Client]) -> int:
    """Add two posts, replace and delete one of them, and replace the other, each by the next writer; return its id."""
    ids = [int(add(writers[0], ADDED).headers["Location"].rpartition("/")[2]) for _ in range(2)]
    for n, text in enumerate((REPLACED, LEFT)):
        assert writers[n % len(writers)].put(f"/post/{ids[1]}", json={"post": text}).status_code == 200
    assert writers[-1].put(f"/post/{ids[0]}", json={"post": REPLACED}).status_code == 200
    assert writers[0].delete(f"/post/{ids[0]}").status_code == 200
    return ids[1]


def check_answers(clients: Sequence[httpx.Client], listeners: Sequence[Listener], post_id: int) -> None:
    """Check that no answer that begins now has the old texts, and that the listeners got them."""
    for client in clients:
        with client.stream("GET", "/post/events?after=0") as stream:
            lines = []
            for line in stream.iter_lines():
                lines.append(line)
                if "event: deleted" in lines and not line:
                    break
        replay = "\n".join(lines)
        assert (ADDED in replay, REPLACED in replay, replay.count(LEFT)) == (False, False, 1)
        for path in ("/post", "/post?limit=10", f"/post/{post_id}"):
            answer = client.get(path)
            assert (ADDED in answer.text, REPLACED in answer.text, answer.text.count(LEFT)) == (False, False, 1)
    for listener in listeners:
        listener.wait_for(6)
        received = [(kind, data["id"] == post_id, data.get("post")) for kind, _, data in listener.events]
        assert received == [
            ("added", False, ADDED),
            ("added", True, ADDED),
            ("updated", True, REPLACED),
            ("updated", True, LEFT),
            ("updated", False, REPLACED),
            ("deleted", False, None),
        ]


def content_below(folder: Path) -> bytes:
    content = b""
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):  # it has been replaced meanwhile
            content += file.read_bytes()
    return content


def test_deleted_text_is_gone_from_all_workers(tmp_path: Path) -> None:
    with Daemon(tmp_path, *TWO) as daemon, clients_of_each(daemon) as clients, ExitStack() as closing:
        # With 8 connections some go to each of the workers.
        listeners = [closing.enter_context(listening(daemon.url)) for _ in range(8)]
        post_id = write_and_delete(clients)
        check_answers(clients, listeners, post_id)
        run_sql(tmp_path / "postd.db", "PRAGMA wal_checkpoint(TRUNCATE)")
        content = content_below(tmp_path)
        assert LEFT.encode() in content
        assert not any(text.encode() in content for text in (ADDED, REPLACED))


def stored_in(redis: RedisServer) -> bytes:
    dumps = (redis.ask("DUMP", key, decode_responses=False) for key in redis.ask("KEYS", "postd:*"))
    return b"".join(dump for dump in dumps if dump is not None)  # a key may be gone meanwhile


def test_deleted_text_is_gone_from_all_nodes(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "rdbcompression no") as redis, ExitStack() as closing:
        nodes = [closing.enter_context(serve(tmp_path / name, redis.url)) for name in ("one", "two")]
        for node in nodes:
            node.wait_for("postd ready")
        clients = [closing.enter_context(httpx.Client(base_url=node.url)) for node in nodes]
        listeners = [closing.enter_context(listening(node.url)) for node in nodes]
        post_id = write_and_delete(clients)
        check_answers(clients, listeners, post_id)
        # Replaced texts are kept for listeners for a second.
        wait_until(lambda: not any(text.encode() in stored_in(redis) for text in (ADDED, REPLACED)))
        assert LEFT.encode() in stored_in(redis)
        # Redis hides a key that has expired, and deletes it some time later: until then it is rewritten, too.
        wait_until(lambda: redis.ask("DBSIZE") == len(redis.ask("KEYS", "*")))
        redis.ask("BGREWRITEAOF")
        wait_until(lambda: not any(text.encode() in content_below(tmp_path / "redis") for text in (ADDED, REPLACED)))
        assert LEFT.encode() in content_below(tmp_path / "redis")
