"""Real `twistd postd` processes on one Redis: nodes that act as one, and an unavailable Redis."""

import base64
import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from postd.auth.user_file import make_account, set_account
from tests.helpers import PATIENCE_S, wait_until
from tests.integration.daemon import FREE_PORT, Daemon, run_postd
from tests.integration.forking import run
from tests.integration.logins import POSTD, DigestUser, see_home, sign_in, sign_in_at_once
from tests.integration.test_daemon import check_refused
from tests.redis_server import RedisServer, free_port

USERS = {name: f"the password of {name}" for name in ("alice", "bob", "carol", "dave")}
SECRET = "s3cret"

SETTINGS = """
users = "users"
[api]
read = ["open", "session"]
write = ["open", "basic", "digest", "session"]
[[page]]
path = "/basic"
schemes = ["basic"]
[[page]]
path = "/digest"
schemes = ["digest"]
"""


@functools.cache
def user_file() -> bytes:
    """Return the user file, which is the same on all nodes."""
    content = b""
    for name, password in USERS.items():
        content = set_account(content, make_account(name, password, "postd"))
    return content


def serve(folder: Path, url: str, *, wait: bool = True, listen: str = FREE_PORT) -> Daemon:
    """Return a node in a folder of its own, not started yet."""
    folder.mkdir(exist_ok=True)
    (folder / "users").write_bytes(user_file())
    (folder / "postd.toml").write_text(f'store = "{url}"\n{SETTINGS}')
    return Daemon(folder, "-c", "postd.toml", wait=wait, listen=listen)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def nodes(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    folder = tmp_path_factory.mktemp("nodes")
    with serve(folder / "a", redis.url) as one, serve(folder / "b", redis.url) as other:
        yield one, other


def test_post_is_visible_on_all_nodes_at_once(nodes: tuple[Daemon, Daemon]) -> None:
    places = set()
    with httpx.Client(base_url=nodes[0].url) as one, httpx.Client(base_url=nodes[1].url) as other:
        for n in range(20):
            here, there = (one, other) if n % 2 else (other, one)
            seen = there.get("/post").headers["ETag"]
            place = here.post("/post", json={"post": f"post {n}"}).headers["Location"]
            places.add(place)
            listed = there.get("/post", headers={"If-None-Match": seen})
            assert (listed.status_code, listed.json()[-1]["post"]) == (200, f"post {n}")
            assert here.get("/post").headers["ETag"] == listed.headers["ETag"]
            assert here.get("/post", headers={"If-None-Match": listed.headers["ETag"]}).status_code == 304
            post = there.get(place)
            assert here.put(place, json={"post": f"changed {n}"}).status_code == 200
            late = there.put(place, json={"post": "late"}, headers={"If-Match": post.headers["ETag"]})
            assert late.status_code == 412
    assert len(places) == 20


def test_session_is_shared_by_all_nodes(nodes: tuple[Daemon, Daemon]) -> None:
    one, other = nodes
    session = sign_in(one, "alice", USERS["alice"]).cookies["session"]
    assert see_home(other, session).text == "Success: alice\n"
    assert b"alice" in run([POSTD, "session", "list", "-c", "postd.toml"], other.folder).stdout
    signed_out = httpx.post(f"{other.url}/logout", headers={"Cookie": f"session={session}"})
    assert signed_out.status_code == 302
    assert see_home(one, session).status_code == 302


def test_limit_of_sessions_is_that_of_all_nodes(nodes: tuple[Daemon, Daemon]) -> None:
    live = sign_in_at_once(nodes, "dave", USERS["dave"], 130)
    assert len(live) == 100
    assert see_home(nodes[0], sign_in(nodes[1], "dave", USERS["dave"]).cookies["session"]).status_code == 200
    assert [see_home(nodes[1], session).status_code for session in live].count(200) == 99


def test_nonce_count_is_valid_once_on_all_nodes(nodes: tuple[Daemon, Daemon]) -> None:
    one, other = nodes
    user = DigestUser("alice", USERS["alice"])
    nonce = user.nonce(one)
    with httpx.Client(base_url=one.url) as here, httpx.Client(base_url=other.url) as there:
        assert user.get(there, nonce, 1).status_code == 200
        assert user.get(here, nonce, 1).status_code == 401
        assert user.get(here, nonce, 2).status_code == 200
        assert user.get(there, nonce, 2).status_code == 401


def test_failures_are_counted_on_all_nodes_together(nodes: tuple[Daemon, Daemon]) -> None:
    for n in range(10):
        wrong = httpx.get(f"{nodes[n % 2].url}/basic", auth=("bob", f"wrong {n}"))
        assert wrong.status_code == 401
    for node in nodes:
        throttled = httpx.get(f"{node.url}/basic", auth=("bob", USERS["bob"]))
        assert throttled.status_code == 429
        assert int(throttled.headers["Retry-After"]) > 0


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def check_unavailable(node: Daemon, session: str, nonce: str) -> None:
    """Make a request of each kind; none succeeds, and none hangs."""
    basic = base64.b64encode(f"carol:{USERS['carol']}".encode()).decode()
    cookie = {"Cookie": f"session={session}"}
    digest = {"Authorization": DigestUser("alice", USERS["alice"]).credentials(nonce, 7)}
    text: dict[str, object] = {"json": {"post": "ghost"}}
    form = {"username": "dave", "password": USERS["dave"]}
    requests: list[tuple[str, str, dict[str, object]]] = [
        ("GET", "/post", {}),
        ("GET", "/post/1", {}),
        ("HEAD", "/post", {}),
        ("POST", "/post", text),
        ("PUT", "/post/1", text),
        ("DELETE", "/post/1", {}),
        ("POST", "/post", {**text, "headers": {**cookie, "Sec-Fetch-Site": "same-origin"}}),
        ("GET", "/basic", {"headers": {"Authorization": f"Basic {basic}"}}),
        ("GET", "/digest", {"headers": digest}),
        ("GET", "/home", {"headers": cookie}),
        ("POST", "/login", {"data": form}),
        ("POST", "/logout", {"headers": cookie}),
    ]
    with httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client:
        for method, path, options in requests:
            answer = client.request(method, path, **options)  # type: ignore[arg-type] # of many kinds
            assert answer.status_code == 503, (method, path, answer.status_code)
            assert int(answer.headers["Retry-After"]) > 0


def ask_many(node: Daemon, count: int) -> None:
    """Request the list on one connection, a hundred pipelined requests at a time."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as client:
        for _ in range(count // 100):
            client.sendall(b"GET /post HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            answers = b""
            while answers.count(b"is not available") < 100:
                answers += client.recv(65536)
            assert answers.count(b"HTTP/1.1 503 ") == 100


def wait_for_service(node: Daemon, ask: Callable[[], httpx.Response] | None = None) -> None:
    """Wait until a request succeeds, by default a read without credentials."""
    wait_until(
        lambda: (ask() if ask else httpx.get(f"{node.url}/post")).status_code == 200,
        lambda: node.log,
    )


@pytest.mark.slow
def test_unavailable_redis_is_503_until_it_returns(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as redis, serve(tmp_path / "node", redis.url) as node:
        httpx.post(f"{node.url}/post", json={"post": "before"})
        session = sign_in(node, "alice", USERS["alice"]).cookies["session"]
        user = DigestUser("alice", USERS["alice"])
        nonce = user.nonce(node)
        redis.kill()
        check_unavailable(node, session, nonce)
        ask_many(node, 1000)
        before = resident_kib(node.process.pid)
        ask_many(node, 4000)
        assert resident_kib(node.process.pid) - before < 4096
        redis.start()
        wait_for_service(node)
        assert [post["post"] for post in httpx.get(f"{node.url}/post").json()] == ["before"]
        assert see_home(node, session).text == "Success: alice\n"
        with httpx.Client(base_url=node.url) as client:
            assert user.get(client, nonce, 7).status_code == 200
        redis.freeze()
        check_unavailable(node, session, nonce)
        redis.thaw()
        wait_for_service(node)
        assert [post["post"] for post in httpx.get(f"{node.url}/post").json()] == ["before"]
        assert "Traceback" not in node.log
        assert "Unhandled" not in node.log


def test_start_without_redis_serves_503(tmp_path: Path) -> None:
    port, redis_port = free_port(), free_port()
    listen = f"tcp:{port}:interface=127.0.0.1"
    url = f"redis://:{SECRET}@127.0.0.1:{redis_port}"
    with serve(tmp_path / "node", url, wait=False, listen=listen) as node:
        node.wait_for("trying again")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            answer = client.get("/post")
            assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
            assert client.post("/post", json={"post": "ghost"}).status_code == 503
            assert "postd ready" not in node.log
            with RedisServer(tmp_path / "redis", f"requirepass {SECRET}", port=redis_port, password=SECRET):
                node.wait_for("postd ready")
                assert f"store redis://:***@127.0.0.1:{redis_port}/0;" in node.log
                assert client.get("/post").text == "[]\n"
                assert client.post("/post", json={"post": "x"}).status_code == 201
        assert node.log.count("the password is in the URL") == 1
        assert SECRET not in node.log


def test_late_refusal_by_redis_fails_the_start(tmp_path: Path) -> None:
    redis_port = free_port()
    node = serve(tmp_path / "node", f"redis://:wr0ng@127.0.0.1:{redis_port}", wait=False)
    with node:
        node.wait_for("trying again")
        with RedisServer(tmp_path / "redis", f"requirepass {SECRET}", port=redis_port, password=SECRET):
            assert node.process.wait(PATIENCE_S) == 1
    assert "wr0ng" not in node.log
    assert "Traceback" not in node.log
    assert node.log.count("\npostd: redis://:***@") == 1


def test_refusal_by_redis_fails_the_start_in_one_line(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", f"requirepass {SECRET}", password=SECRET) as redis:
        place = f"127.0.0.1:{redis.port}"
        redis.ask("ACL", "SETUSER", "limited", "on", ">wr0ng", "~*", "+@all", "-hset")
        for url, words in (
            (f"redis://:wr0ng@{place}", ["--store: redis://:***@", "WRONGPASS"]),
            (f"redis://limited:wr0ng@{place}", ["--store: redis://limited:***@", "refuses HSET: "]),
            (f"redis://{place}?password_file=none", ["--store: ", f"{tmp_path}/none", "No such file or directory"]),
            (f"redis://:wr0ng@{place}/x", ["--store: ", "has an invalid database number"]),
            (f"rediss://:{SECRET}@{place}?ca_file=none", ["--store: ", f"{tmp_path}/none", "cannot be read"]),
        ):
            result = run_postd(tmp_path, "-l", FREE_PORT, "-s", url)
            check_refused(result, *words)
            assert "wr0ng" not in result.stderr
        assert redis.ask("DBSIZE") == 0


def test_check_of_redis_shows_no_password(tmp_path: Path) -> None:
    def check(url: str) -> tuple[int, str]:
        ended = run([POSTD, "check", "-s", url], tmp_path)
        assert SECRET.encode() not in ended.stdout + ended.stderr
        return ended.returncode, ended.stdout.decode()

    with RedisServer(tmp_path / "redis", f"requirepass {SECRET}", password=SECRET) as redis:
        place = f"127.0.0.1:{redis.port}"
        status, output = check(f"redis://:{SECRET}@{place}")
        assert status == 0
        assert (
            f"store: ok, redis://:***@{place}/0: there is no postd store in this database; the server creates it"
            in (output)
        )
        assert redis.ask("DBSIZE") == 0
    status, output = check(f"redis://:{SECRET}@{place}")
    assert (status, "Connection refused" in output) == (1, True)


def test_kill_9_of_a_node_loses_no_acknowledged_post(
    redis: RedisServer, nodes: tuple[Daemon, Daemon], tmp_path: Path
) -> None:
    _, other = nodes
    acknowledged: dict[int, str] = {}
    enough = threading.Event()
    ends = threading.Event()

    def write(node: Daemon, name: str) -> None:
        with httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client:
            count = 0
            while not ends.is_set():
                text = f"{name}-{count}"
                try:
                    answer = client.post("/post", json={"post": text})
                except httpx.TransportError:
                    return
                if answer.status_code == 503:  # Redis did not answer in time
                    continue
                assert answer.status_code == 201
                acknowledged[int(answer.headers["Location"].removeprefix("/post/"))] = text
                count += 1
                if len(acknowledged) > 300:
                    enough.set()

    with serve(tmp_path / "node", redis.url) as one:
        writers = [threading.Thread(target=write, args=(node, f"{n}")) for n, node in enumerate([one, other] * 2)]
        for writer in writers:
            writer.start()
        assert enough.wait(PATIENCE_S)
        one.kill()
        time.sleep(0.2)
        ends.set()
        for writer in writers:
            writer.join()
        stored = {post["id"]: post["post"] for post in httpx.get(f"{other.url}/post").json()}
        assert {post_id: stored.get(post_id) for post_id in acknowledged} == acknowledged
