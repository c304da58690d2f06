"""Streamed lists, over an in-memory connection whose client reads as slowly as a test needs."""

import gzip
import json
import zlib
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IPushProducer
from zope.interface.verify import verifyObject

from postd.errors import StoreUnavailableError
from postd.http.views import PacedWriter
from postd.web.lists import encoded_posts
from postd.web.lists.encoded_posts import PIECE_POSTS, SNAPSHOT_POSTS
from postd.web.lists.streamed_list import PORTION_BYTES
from tests.helpers import InMemoryApi, Response, SlowTransport, connect, result_of
from tests.web.wire import ask

MANY = SNAPSHOT_POSTS + PIECE_POSTS
NO_GZIP = {"Accept-Encoding": "gzip;q=0"}  # treq adds gzip; the lower quality applies


@pytest.fixture
def transport(api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> SlowTransport:
    monkeypatch.setattr(encoded_posts, "TURN_MAX_S", float("inf"))  # no waiting for the clock
    monkeypatch.setattr("postd.fair_queue.perf_counter", lambda: 0.0)
    writer = api.store.database.writer  # many posts at once, without the write queue
    assert writer is not None
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO post (post) VALUES (?)", [(f"post {n}",) for n in range(1, MANY + 1)])
    writer.execute("COMMIT")
    transport = SlowTransport()
    connect(transport, api.site)
    return transport


@pytest.fixture
def streamed(transport: SlowTransport, monkeypatch: pytest.MonkeyPatch) -> SlowTransport:
    """A connection to a server that keeps no posts: lists are read while they are sent."""
    monkeypatch.setattr(encoded_posts, "PLAIN_MAX_BYTES", 0)
    monkeypatch.setattr(encoded_posts, "COMPRESSED_MAX_BYTES", 0)
    return transport


def get(transport: SlowTransport, method: str = "GET", version: str = "1.0") -> None:
    transport.protocol.dataReceived(f"{method} /post HTTP/{version}\r\nHost: x\r\n\r\n".encode())


def read_to_the_end(transport: SlowTransport) -> bytes:
    sent = b""
    while transport.connected:
        sent += transport.drain()
    rest: bytes = transport.value()
    return sent + rest


def body_of(answer: bytes) -> bytes:
    return answer.split(b"\r\n\r\n", 1)[1]


def ids(body: bytes) -> list[int]:
    return [post["id"] for post in json.loads(body)]


def test_long_list_is_complete(transport: SlowTransport) -> None:
    get(transport)
    posts = [{"id": n, "post": f"post {n}"} for n in range(1, MANY + 1)]
    assert body_of(read_to_the_end(transport)).decode() == json.dumps(posts, indent=2) + "\n"


def test_reading_follows_the_client(transport: SlowTransport) -> None:
    get(transport)
    for _ in range(3):
        assert transport.value().count(b'"id"') == PIECE_POSTS
        transport.drain()


def test_concurrent_changes_leave_the_list_well_formed(streamed: SlowTransport, api: InMemoryApi) -> None:
    get(streamed)
    begun = streamed.drain()
    writer: Any = api.store.database.writer
    writer.execute("DELETE FROM post WHERE id > ?", (2 * PIECE_POSTS,))
    # The second page was read before the deletion and announces more posts, but none follow.
    assert ids(body_of(begun + read_to_the_end(streamed))) == list(range(1, 2 * PIECE_POSTS + 1))


def test_list_emptied_while_streaming_is_empty(
    streamed: SlowTransport, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer: Any = api.store.database.writer
    read = api.store.list_posts

    async def list_posts(**arguments: Any) -> Any:
        writer.execute("DELETE FROM post")
        return await read(**arguments)

    monkeypatch.setattr(api.store, "list_posts", list_posts)
    get(streamed)
    assert body_of(streamed.value()) == b"[]\n"


def test_list_up_to_the_limit_has_etag_and_length(transport: SlowTransport, api: InMemoryApi) -> None:
    writer: Any = api.store.database.writer
    writer.execute("DELETE FROM post WHERE id > ?", (SNAPSHOT_POSTS,))
    head = ask(api, "HEAD", "/post", headers=NO_GZIP)
    get(transport)
    first = len(transport.value())
    assert PORTION_BYTES <= first < PORTION_BYTES + 64 * 1024  # a piece and the head
    body = body_of(read_to_the_end(transport))
    assert ids(body) == list(range(1, SNAPSHOT_POSTS + 1))
    assert head.header("Content-Length") == str(len(body))
    assert ask(api, "GET", "/post", headers=NO_GZIP | {"If-None-Match": head.header("ETag")}).status == 304


def read(api: InMemoryApi) -> Response:
    return ask(api, "GET", "/post", headers=NO_GZIP)


@pytest.mark.usefixtures("transport")
def test_list_that_was_streamed_is_a_snapshot_from_then_on(api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(api)
    assert first.header("ETag") is None
    monkeypatch.setattr(api.store, "list_posts", None)  # the store is no longer read
    again = read(api)
    assert (again.status, again.body) == (200, first.body)
    tag = again.header("ETag")
    assert tag is not None
    assert ask(api, "GET", "/post", headers=NO_GZIP | {"If-None-Match": tag}).status == 304
    head = ask(api, "HEAD", "/post", headers=NO_GZIP)
    assert (head.header("ETag"), head.header("Content-Length")) == (tag, str(len(first.body)))


def test_slow_client_is_sent_one_version_while_posts_change(transport: SlowTransport, api: InMemoryApi) -> None:
    before = read(api).body
    get(transport)
    begun = transport.drain()
    writer: Any = api.store.database.writer
    writer.execute("UPDATE post SET post = 'changed' WHERE id IN (1, 5000, 10000)")
    later = read(api)
    assert later.body.count(b'"changed"') == 3
    assert later.header("ETag") is not None
    assert body_of(begun + read_to_the_end(transport)) == before


@pytest.mark.usefixtures("streamed")
def test_list_that_is_too_long_to_be_kept_is_streamed_each_time(api: InMemoryApi) -> None:
    assert [read(api).header("ETag") for _ in range(3)] == [None] * 3
    page = ask(api, "GET", "/post?limit=3", headers=NO_GZIP)
    assert (ids(page.body), page.header("ETag") is None) == ([1, 2, 3], False)


def test_head_of_a_long_list_has_no_body(transport: SlowTransport) -> None:
    get(transport, "HEAD")
    top, body = transport.value().split(b"\r\n\r\n", 1)
    assert b"Content-Type: application/json" in top
    assert body == b""


def test_disconnect_ends_the_reading(
    transport: SlowTransport, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_in: list[BaseException | None] = []
    leave = PacedWriter.__aexit__

    async def note(flow: PacedWriter, kind: Any, error: BaseException | None, traceback: Any) -> None:
        left_in.append(error)
        await leave(flow, kind, error, traceback)

    monkeypatch.setattr(PacedWriter, "__aexit__", note)
    get(transport)
    transport.drain()
    assert left_in == []
    transport.loseConnection()
    assert [type(error) for error in left_in] == [CancelledError]


def test_store_failure_aborts_the_list(streamed: SlowTransport, api: InMemoryApi) -> None:
    get(streamed, version="1.1")
    result_of(api.store.stop())
    streamed.drain()
    assert streamed.aborted
    assert not streamed.value().endswith(b"0\r\n\r\n")
    with pytest.raises(StoreUnavailableError):
        result_of(api.store.version())


def test_paced_writer_is_a_push_producer() -> None:
    assert verifyObject(IPushProducer, PacedWriter(cast(Any, None)))


def get_zipped(transport: SlowTransport, method: str = "GET", path: str = "/post") -> None:
    head = f"{method} {path} HTTP/1.0\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
    transport.protocol.dataReceived(head.encode())


def field_of(answer: bytes, name: str) -> str | None:
    lines = answer.split(b"\r\n\r\n", 1)[0].decode("latin-1").split("\r\n")
    values = [line.partition(": ")[2] for line in lines if line.lower().startswith(f"{name.lower()}: ")]
    assert len(values) <= 1
    return values[0] if values else None


def unzip(answer: bytes) -> bytes:
    """Check that the body is exactly one gzip stream; return its text."""
    assert field_of(answer, "Content-Encoding") == "gzip"
    inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
    text = inflating.decompress(body_of(answer))
    assert (inflating.eof, inflating.unused_data) == (True, b"")
    assert gzip.decompress(body_of(answer)) == text
    return text


@pytest.mark.parametrize(("path", "first"), [("/post", 1), ("/post?after=0", 1), ("/post?after=1", 2)])
@pytest.mark.usefixtures("one_more_post")
def test_long_list_is_complete_with_gzip(transport: SlowTransport, path: str, first: int) -> None:
    get_zipped(transport, path=path)
    answer = read_to_the_end(transport)
    assert ids(unzip(answer)) == list(range(first, MANY + 2))
    assert field_of(answer, "Vary") == "Accept-Encoding"
    assert (field_of(answer, "ETag"), field_of(answer, "Content-Length")) == (None, None)


@pytest.fixture
def one_more_post(transport: SlowTransport, api: InMemoryApi) -> int:
    """Add one more post, so that the list after the first post is streamed as well."""
    return api.add("another")


def test_each_gzip_piece_is_readable_on_arrival(transport: SlowTransport) -> None:
    get_zipped(transport)
    inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
    text = inflating.decompress(body_of(transport.drain()))
    seen = [text.count(b'"id"')]
    for _ in range(2):
        text += inflating.decompress(transport.drain())
        seen.append(text.count(b'"id"'))
    assert seen == [PIECE_POSTS, 2 * PIECE_POSTS, 3 * PIECE_POSTS]


@pytest.mark.parametrize("keeps_zipped", [False, True])
def test_cached_list_serves_both_representations(
    transport: SlowTransport, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch, *, keeps_zipped: bool
) -> None:
    plain = read(api).body
    if keeps_zipped:
        get_zipped(transport)
        assert unzip(read_to_the_end(transport)) == plain
    else:
        assert read(api).body == plain
    monkeypatch.setattr(api.store, "list_posts", None)  # the store is no longer read
    tag = read(api).header("ETag") or ""
    zipped_tag = ask(api, "GET", "/post", headers={"Accept-Encoding": "gzip"}).header("ETag") or ""
    assert zipped_tag.startswith(f"{tag[:-1]}-gzip-")
    for method in ("GET", "HEAD"):
        client = SlowTransport()
        connect(client, api.site)
        get_zipped(client, method)
        answer = read_to_the_end(client)
        assert field_of(answer, "ETag") == zipped_tag
        length = int(field_of(answer, "Content-Length") or 0)
        assert 0 < length < len(plain) / 5
        if method == "GET":
            assert unzip(answer) == plain
            assert length == len(body_of(answer))
        else:
            assert body_of(answer) == b""
    assert read(api).body == plain
    for named, headers, status in (
        (zipped_tag, {"Accept-Encoding": "gzip"}, 304),
        (tag, {"Accept-Encoding": "gzip"}, 304),
        (tag, NO_GZIP, 304),
        (zipped_tag, NO_GZIP, 200),
    ):
        head = ask(api, "HEAD", "/post", headers=headers | {"If-None-Match": named})
        assert head.status == status
        assert head.header("Vary") == "Accept-Encoding"
        assert head.header("ETag") == (named if status == 304 else tag)
