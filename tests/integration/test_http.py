"""The API as clients on real sockets see it."""

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
import pytest_twisted
import treq

from tests.integration.daemon import Daemon
from tests.integration.wire import talk

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("http")) as daemon:
        yield daemon
    assert "Traceback" not in daemon.log


@pytest_twisted.ensureDeferred
async def test_treq_reads_and_writes_posts(daemon: Daemon) -> None:
    added = await treq.post(f"{daemon.url}/post", json={"post": "from treq"})
    assert added.code == 201
    location = added.headers.getRawHeaders("Location")[0]
    assert await added.text() == "Success a Post!\n"
    got = await treq.get(f"{daemon.url}{location}")
    assert (await got.json())["post"] == "from treq"
    assert (await treq.put(f"{daemon.url}{location}", json={"post": "changed"})).code == 200
    deleted = await treq.delete(f"{daemon.url}{location}")
    assert await deleted.text() == "Delete a Post!\n"
    assert (await treq.get(f"{daemon.url}{location}")).code == 404


def test_head_has_the_content_length(daemon: Daemon) -> None:
    got, head = httpx.get(f"{daemon.url}/post"), httpx.head(f"{daemon.url}/post")
    assert head.headers["Content-Length"] == got.headers["Content-Length"] == str(len(got.content))


def test_not_modified_has_no_body(daemon: Daemon) -> None:
    etag = httpx.get(f"{daemon.url}/post").headers["ETag"]
    request = f"GET /post HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {etag}\r\nConnection: close\r\n\r\n"
    top, body = talk(daemon, request.encode()).split(b"\r\n\r\n", 1)
    assert top.startswith(b"HTTP/1.1 304 Not Modified\r\n")
    assert b"Content-Length" not in top
    assert b"Transfer-Encoding" not in top
    assert body == b""


def test_a_hundred_pipelined_requests_are_answered_in_order(daemon: Daemon) -> None:
    requests = b"".join(b"GET /post/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n for n in range(900_001, 900_101))
    answers = talk(daemon, requests + b"GET /post HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    places = [answers.index(b"There is no post %d." % n) for n in range(900_001, 900_101)]
    assert places == sorted(places)


def test_absolute_form_target_is_accepted(daemon: Daemon) -> None:
    for target, status in (
        ("http://localhost/post", b"200"),
        ("HTTP://x.localhost:80/post?limit=1", b"200"),
        ("http://127.0.0.1", b"200"),
        ("http://example.org/post", b"421"),
    ):
        answer = talk(daemon, f"GET {target} HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 " + status)


def test_half_closed_client_gets_its_responses(daemon: Daemon) -> None:
    post = b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    post += b'Content-Length: 12\r\n\r\n{"post":"x"}'
    for request, answers in (
        (post, 1),
        (b"GET /post HTTP/1.1\r\nHost: localhost\r\n\r\n", 1),
        (post * 5, 5),
        (b"GET /po", 0),
    ):
        assert talk(daemon, request, half_closes=True).count(b"HTTP/1.1 20") == answers


def test_too_large_body_is_refused_before_it_is_sent(daemon: Daemon) -> None:
    for expect in (b"", b"Expect: 100-continue\r\n"):
        answer = talk(
            daemon,
            b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + expect
            + b"Content-Length: 1073741824\r\n\r\n",
        )
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["status"] == 413


def test_client_that_sends_a_too_large_body_gets_the_refusal(daemon: Daemon) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 16384

    url = f"{daemon.url}/post"
    for content in (b"x" * 2_000_000, chunks()):
        assert httpx.post(url, content=content, headers=JSON).status_code == 413


def test_large_bodies_do_not_disturb_other_clients(daemon: Daemon) -> None:
    with daemon.connect() as rude:
        rude.sendall(b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 50_000)
        assert httpx.get(f"{daemon.url}/post").status_code == 200


def test_concurrent_writes_are_all_stored(daemon: Daemon) -> None:
    before = len(httpx.get(f"{daemon.url}/post").json())

    def add() -> None:
        with httpx.Client() as client:
            for n in range(25):
                assert client.post(f"{daemon.url}/post", json={"post": f"post {n}"}).status_code == 201

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    posts = httpx.get(f"{daemon.url}/post").json()
    assert len(posts) == before + 200
    assert [post["id"] for post in posts] == sorted({post["id"] for post in posts})


def test_concurrent_if_match_updates_succeed_once(daemon: Daemon) -> None:
    location = httpx.post(f"{daemon.url}/post", json={"post": "contended"}).headers["Location"]
    etag = httpx.get(f"{daemon.url}{location}").headers["ETag"]
    statuses: list[int] = []

    def update(n: int) -> None:
        answer = httpx.put(f"{daemon.url}{location}", json={"post": f"by {n}"}, headers={"If-Match": etag})
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=update, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] + [412] * 7
