"""Lists made from encoded pieces are what a fresh encoding of the store is, byte for byte, whatever happened before."""

import gzip
import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Protocol, cast

import pytest
import pytest_twisted
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import CancelledError, Deferred, gatherResults

from postd.fair_queue import FairTurns
from postd.front.response_memory import Holding, ResponseMemory
from postd.http.interface import Request
from postd.http.responses import Parts, StreamedResponse
from postd.model import Version
from postd.reactor import IReactor
from postd.store.interface import PostStore, Store
from postd.store.opening import open_store as make_store_of
from postd.store.sqlite.store import SqliteStore
from postd.web.lists import encoded_posts
from postd.web.lists.compression import gzip_etag
from postd.web.lists.encoded_piece import Held, Piece, encode_posts, join_posts
from postd.web.lists.encoded_posts import EncodedPosts
from postd.web.lists.post_lists import PostLists, Span
from tests.helpers import PATIENCE_S
from tests.redis_server import RedisServer
from tests.store.contract import import_posts, open_store, texts

reactor = cast(IReactor, global_reactor)

PIECE = 4
"""`PIECE_POSTS` in these tests."""


class Asked:
    """A request of which only the fields matter."""

    client_network = "192.0.2.1"

    def __init__(self, **fields: bytes) -> None:
        self.fields = {name.replace("_", "-").encode(): [value] for name, value in fields.items()}

    def isSecure(self) -> bool:
        return False

    def require_room(self) -> None:
        """Called for each list that is not cached."""


ZIPPED = {"Accept_Encoding": b"gzip"}


class Answer:
    """A response: its status, its fields, and its body as it was sent."""

    def __init__(self, status: int, head: bytes, body: bytes) -> None:
        self.status = status
        self.fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-1])
        self.body = body
        self.etag = self.fields.get(b"ETag")
        if b"Content-Length" in self.fields:
            assert int(self.fields[b"Content-Length"]) == len(body)

    @property
    def text(self) -> bytes:
        return gzip.decompress(self.body) if b"Content-Encoding" in self.fields else self.body


async def get(lists: PostLists, span: Span, **fields: bytes) -> Answer:
    made = await lists.respond(cast(Request, Asked(**fields)), span)
    if not isinstance(made, StreamedResponse):
        return Answer(made.status, made.head, made.body)
    return Answer(made.status, made.head, await body_of(made))


def stream(posts: EncodedPosts) -> AsyncGenerator[Piece]:
    return posts.stream(0, work=FairTurns(reactor), client="192.0.2.1")


def parts_of(response: StreamedResponse) -> AsyncGenerator[Parts]:
    assert response.pieces is not None
    return response.pieces


async def body_of(response: StreamedResponse) -> bytes:
    return b"".join([part async for parts in parts_of(response) for part in parts])


def encode(posts: Sequence[tuple[int, str]]) -> bytes:
    """Encode a list as the specification has it."""
    shown = [{"id": post_id, "post": text} for post_id, text in posts]
    return (json.dumps(shown, indent=2, ensure_ascii=False) + "\n").encode()


def etag_of(version: Version, span: Span) -> bytes:
    page = "" if span == (0, None) else f"-{span[0]}-{span[1] or 0}"
    return f'"{version.revision}-{version.tag}{page}"'.encode()


class Place(Protocol):
    """Where a store is, which can be put back to its last saved state while the store is open."""

    def make_store(self) -> Store: ...

    def save(self) -> None: ...

    def restore(self) -> None: ...

    def forget_changes(self) -> None: ...


class SqlitePlace:
    def __init__(self, folder: Path, saved: sqlite3.Connection) -> None:
        self._path = folder / "posts.db"
        self._saved = saved

    def make_store(self) -> Store:
        return SqliteStore(str(self._path), reactor=reactor)

    def save(self) -> None:
        with closing(sqlite3.connect(self._path)) as live:
            live.backup(self._saved)

    def restore(self) -> None:
        with closing(sqlite3.connect(self._path)) as live:
            self._saved.backup(live)

    def forget_changes(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as live:
            live.execute("DELETE FROM change WHERE revision % 2")


class RedisPlace:
    KEYS = ("postd:version", "postd:log", "postd:changed", "postd:posts", "postd:last_id")

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._saved: dict[str, Any] = {}
        server.ask("FLUSHALL")

    def make_store(self) -> Store:
        return make_store_of(self._server.url, where="store", reactor=reactor)

    def _ask(self, *command: Any) -> Any:
        return self._server.ask(*command, decode_responses=False)

    def save(self) -> None:
        self._saved = {key: self._ask("DUMP", key) for key in self.KEYS}

    def restore(self) -> None:
        self._ask("DEL", *self.KEYS)
        for key, value in self._saved.items():
            if value is not None:
                self._ask("RESTORE", key, 0, value)

    def forget_changes(self) -> None:
        self._ask("XTRIM", "postd:log", "MAXLEN", 2)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIECE_POSTS": PIECE, "SNAPSHOT_POSTS": 30, "MARGIN_BYTES": 0, "TURN_MAX_S": 0}.items():
        monkeypatch.setattr(encoded_posts, name, value)
    monkeypatch.setattr("postd.web.lists.post_lists.WHOLE_MAX_BYTES", 500)


def make_lists(store: PostStore) -> PostLists:
    return PostLists(store, {}, work=FairTurns(reactor))


def pieces_of(posts: EncodedPosts) -> list[Piece]:
    return posts._pieces  # noqa: SLF001 - nothing else shows how they are divided


def bytes_within_limits(posts: EncodedPosts) -> tuple[int, int]:
    """Return the bytes of uncompressed and of compressed pieces, after a check against the limits."""
    pieces = pieces_of(posts)
    plain = sum(piece.plain_bytes for piece in pieces)
    compressed = sum(piece.held_bytes for piece in pieces if not piece.plain_bytes)
    assert plain <= encoded_posts.PLAIN_MAX_BYTES
    assert compressed <= encoded_posts.COMPRESSED_MAX_BYTES
    return plain, compressed


class Reader:
    """Reads lists, and compares them with the store and with all that was read before."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._store = stores[0]
        self._lists = [make_lists(store) for store in stores]
        self._bodies: dict[bytes, bytes] = {}

    async def check(self, worker: int, span: Span) -> None:
        after, limit = span
        page = await self._store.list_posts(after=after, limit=10_000 if limit is None else limit)
        expected, etag = encode(page.posts), etag_of(page.version, span)
        for encoding, tag in ((b"identity", etag), (b"gzip", gzip_etag(etag))):
            answer = await get(self._lists[worker], span, Accept_Encoding=encoding)
            assert answer.text == expected
            if answer.etag is None:
                assert limit is None
                continue
            assert b"Content-Length" in answer.fields
            assert answer.etag.startswith(tag[:-1] if b"Content-Encoding" in answer.fields else etag)
            assert self._bodies.setdefault(answer.etag, answer.body) == answer.body
            again = await get(self._lists[worker], span, Accept_Encoding=encoding, If_None_Match=answer.etag)
            assert again.status == 304
        bytes_within_limits(self._lists[worker]._posts)  # noqa: SLF001 - nothing else shows what is kept


numbers = st.integers(0, 40)
spans = st.tuples(numbers, st.none() | st.integers(1, 12)) | st.just((0, None))
short = texts.filter(lambda text: len(text) < 20) | st.sampled_from(['"id": 1,\n', "\n  },\n", '{"post"', "x" * 140])
operations = st.one_of(
    st.tuples(st.just("add"), st.lists(short, min_size=1, max_size=9)),
    st.tuples(st.just("update"), numbers, short),
    st.tuples(st.just("delete"), numbers, st.integers(0, 12)),
    st.tuples(st.just("import_posts"), st.dictionaries(st.integers(1, 50), short, max_size=12)),
    st.tuples(st.sampled_from(["raise_revision", "save", "restore", "forget_changes"])),
    *[st.tuples(st.just("read"), st.integers(0, 1), spans)] * 2,
)


class History:
    """What happens to a store, and to the lists of two processes that read it."""

    def __init__(self, place: Place, stores: Sequence[Store]) -> None:
        self._place = place
        self._store = stores[0]
        self._reader = Reader(stores)
        place.save()

    async def ids(self) -> list[int]:
        return [post_id for post_id, _ in (await self._store.list_posts(limit=1000)).posts]

    async def add(self, posts: Sequence[str]) -> None:
        await gatherResults([Deferred.fromCoroutine(self._store.add_post(text)) for text in posts])

    async def update(self, place: int, text: str) -> None:
        if ids := await self.ids():
            await self._store.replace_post(ids[place % len(ids)], text)

    async def delete(self, place: int, many: int) -> None:
        ids = await self.ids()
        first = place % (len(ids) or 1)
        for post_id in ids[first : first + many]:
            await self._store.delete_post(post_id)

    async def import_posts(self, posts: Mapping[int, str]) -> None:
        await import_posts(self._store, list(posts.items()), skip_existing=True)

    async def raise_revision(self) -> None:
        await import_posts(self._store, [], revision=(await self._store.version()).revision + 2)

    async def save(self) -> None:
        self._place.save()

    async def restore(self) -> None:
        self._place.restore()

    async def forget_changes(self) -> None:
        self._place.forget_changes()

    async def read(self, worker: int, span: Span) -> None:
        await self._reader.check(worker, span)

    async def run(self, steps: Sequence[Any]) -> None:
        for name, *arguments in steps:
            await getattr(self, name)(*arguments)
        for worker in range(2):
            for span in ((0, None), (0, 7), (3, None), (3, 7), (30, None), (30, 7)):
                await self.read(worker, span)


steps_of_histories = st.lists(operations, max_size=25)
limits_of_bytes = st.sampled_from([(0, 10**9), (900, 10**9), (1500, 900), (0, 0), (2500, 600)])


async def check_at_limits(place: Place, stores: Sequence[Store], steps: Sequence[Any], limits: tuple[int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoded_posts, "PLAIN_MAX_BYTES", limits[0])
        patch.setattr(encoded_posts, "COMPRESSED_MAX_BYTES", limits[1])
        await History(place, stores).run(steps)


class Spy:
    """Counts the reads of posts of a store."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.posts = 0
        read = store.list_posts

        async def list_posts(**arguments: Any) -> Any:
            page = await read(**arguments)
            self.posts += len(page.posts)
            return page

        monkeypatch.setattr(store, "list_posts", list_posts)


class ListContract:
    """Derived classes have a fixture `place`."""

    @pytest_twisted.async_yield_fixture
    async def stores(self, place: Place) -> AsyncIterator[list[Store]]:
        """Two stores at one place, as two workers have them."""
        opened = [await open_store(place.make_store) for _ in range(2)]
        yield opened
        for store in opened:
            await store.stop()

    @ensureDeferred
    async def test_restored_backup_with_equal_revisions_is_read_anew(self, place: Place, stores: list[Store]) -> None:
        store, _ = stores
        reader = Reader(stores)
        await import_posts(store, [(n, f"post {n}") for n in range(1, 21)])
        place.save()
        for text in ("one history", "another", "a third"):
            place.restore()
            await store.replace_post(3, text)
            for worker in range(2):
                await reader.check(worker, (0, None))
                await reader.check(worker, (2, 3))
            await store.replace_post(5, "of the same history")
            await reader.check(0, (0, None))

    @ensureDeferred
    async def test_concurrent_reads_and_writes_give_lists_of_one_moment(self, stores: list[Store]) -> None:
        """Each version's list is known, because only this test writes."""
        first, second = stores
        await import_posts(first, [(n, f"post {n}") for n in range(1, 26)])
        posts = dict((await first.list_posts(limit=100)).posts)
        revision = (await first.version()).revision
        known: dict[int, Mapping[int, str]] = {revision: dict(posts)}
        lists = [make_lists(store) for store in stores]
        answers: list[Answer] = []

        async def read(worker: int, span: Span) -> None:
            answers.append(await get(lists[worker], span))

        for n in range(60):
            asked: list[Coroutine[Any, Any, None]] = [
                read(k % 2, [(0, None), (5, None), (0, 7), (12, 7)][k]) for k in range(4)
            ]
            pending = [Deferred.fromCoroutine(one) for one in asked]
            post_id = 1 + n * 7 % 25
            writing = Deferred.fromCoroutine((second if n % 2 else first).replace_post(post_id, f"change {n}"))
            pending += [Deferred.fromCoroutine(read(k, (0, None))) for k in range(2)]
            await gatherResults(pending)
            await writing
            posts[post_id] = f"change {n}"
            revision += 1
            known[revision] = dict(posts)
        for answer in answers:
            assert answer.etag is not None
            number, _, *page = answer.etag.strip(b'"').split(b"-")
            after, limit = (int(page[0]), int(page[1]) or None) if page else (0, None)
            at = [(post_id, text) for post_id, text in known[int(number)].items() if post_id > after]
            assert answer.body == encode(at[:limit])

    @ensureDeferred
    async def test_a_thousand_lists_that_wait_for_one_read_are_all_sent(
        self, stores: list[Store], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = stores[0]
        await import_posts(store, [(n, f"post {n}") for n in range(1, 9)])
        posts, version = EncodedPosts(store, clock=reactor), await store.version()
        ready: Deferred[None] = Deferred()
        list_posts = store.list_posts

        async def list_later(**arguments: Any) -> Any:
            await ready
            return await list_posts(**arguments)

        monkeypatch.setattr(store, "list_posts", list_later)
        asked: list[Deferred[Any]] = [
            Deferred.fromCoroutine(posts.snapshot(version, after=0, limit=None))
            if n % 2
            else Deferred.fromCoroutine(anext(stream(posts)))
            for n in range(1000)
        ]
        ready.callback(None)
        snapshots = await gatherResults(asked, consumeErrors=True).addTimeout(PATIENCE_S, reactor)
        assert sum(piece.count for piece in snapshots[1][1]) == 8
        assert all(one == snapshots[1] for one in snapshots[1::2])
        assert all(one is snapshots[0] for one in snapshots[::2])

    @ensureDeferred
    async def test_change_reads_no_posts(self, stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
        store = stores[0]
        await import_posts(store, [(n, f"post {n}") for n in range(1, 26)])
        await store.replace_post(1, "with a tag")
        lists, spy = make_lists(store), Spy(store, monkeypatch)
        await get(lists, (0, None))
        assert spy.posts == 25
        for n in range(5):
            await store.replace_post(5 * n + 1, "changed")
            await store.add_post("added")
            answer = await get(lists, (0, None))
            assert (answer.body.count(b'"changed"'), answer.body.count(b'"added"')) == (n + 1, n + 1)
            await get(lists, (3, 7))
        assert spy.posts == 25

    @ensureDeferred
    async def test_short_page_reads_its_posts_alone(self, stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
        store = stores[0]
        await import_posts(store, [(n, f"post {n}") for n in range(1, 101)])
        lists, spy = make_lists(store), Spy(store, monkeypatch)
        await get(lists, (0, 3))
        assert spy.posts == 3
        await get(lists, (50, 3))
        assert spy.posts == 6

    @ensureDeferred
    async def test_pieces_are_divided_and_joined(self, stores: list[Store]) -> None:
        store = stores[0]
        posts = EncodedPosts(store, clock=reactor)

        async def renew() -> list[int]:
            snapshot = await posts.snapshot(await store.version(), after=0, limit=None)
            assert snapshot is not None
            pieces = pieces_of(posts)
            assert (pieces[0].low, pieces[-1].high) == (0, 2**53 - 1)
            assert [piece.high for piece in pieces[:-1]] == [piece.low for piece in pieces[1:]]
            return [piece.count for piece in pieces]

        for n in range(1, 30):
            await store.add_post(f"post {n}")
            counts = await renew()
            assert sum(counts) == n
            assert max(counts) <= 2 * PIECE
        assert min(await renew()) >= PIECE
        for n in range(1, 30):
            await store.delete_post(n)
            counts = await renew()
            assert len(counts) <= 2 + (29 - n) // (PIECE // 2)
        assert sum(counts) == 0

    @ensureDeferred
    async def test_bytes_are_bounded_and_counted(self, stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
        store = stores[0]
        await import_posts(store, [(n, f"post {n} " + "x" * 100) for n in range(1, 29)])
        monkeypatch.setattr(encoded_posts, "PLAIN_MAX_BYTES", 4000)
        monkeypatch.setattr(encoded_posts, "COMPRESSED_MAX_BYTES", 1200)
        posts = EncodedPosts(store, clock=reactor)
        read = [piece async for piece in stream(posts)]
        assert sum(piece.count for piece in read) == 28
        assert min(bytes_within_limits(posts)) > 0
        assert sum(piece.count for piece in pieces_of(posts)) < 28
        assert await posts.snapshot(await store.version(), after=0, limit=None) is None
        del read
        assert posts.retained_bytes == 0
        monkeypatch.setattr(encoded_posts, "COMPRESSED_MAX_BYTES", 10**9)
        assert [piece.count async for piece in stream(posts)] == [4] * 7

    @ensureDeferred
    async def test_bytes_are_bounded_when_one_batch_changes_many_compressed_pieces(
        self, stores: list[Store], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = stores[0]
        posts, compressed = await self._read_in_two_forms(store, monkeypatch)
        for n in range(1, 2 * PIECE + 1):
            await store.replace_post(n, "short")
        await posts.snapshot(await store.version(), after=0, limit=None)  # there is room for one of the compressed ones
        for piece in compressed:
            await store.replace_post(piece.low + 1, "changed")
        await posts.snapshot(await store.version(), after=0, limit=None)
        bytes_within_limits(posts)
        assert sum(piece.text.count(b'"changed"') for piece in pieces_of(posts)) == len(compressed)

    @ensureDeferred
    async def test_bytes_are_bounded_after_cancelled_reads(
        self, stores: list[Store], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = stores[0]
        posts, compressed = await self._read_in_two_forms(store, monkeypatch)
        monkeypatch.setattr(encoded_posts, "PLAIN_MAX_BYTES", bytes_within_limits(posts)[0])
        await store.replace_post(1, "longer " + "x" * 120)

        async def pause() -> None:
            raise CancelledError

        with monkeypatch.context() as patch:
            patch.setattr(posts, "_pause_if_long", pause)
            for _ in range(3):
                with pytest.raises(CancelledError):
                    await posts.snapshot(await store.version(), after=0, limit=None)
        for piece in compressed:
            await store.replace_post(piece.low + 1, "changed")
        await posts.snapshot(await store.version(), after=0, limit=None)
        bytes_within_limits(posts)

    async def _read_in_two_forms(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[EncodedPosts, Sequence[Piece]]:
        """Return encoded posts of which only some pieces may be uncompressed, and their compressed pieces."""
        await import_posts(store, [(n, f"post {n} " + "x" * 100) for n in range(1, 29)])
        await store.replace_post(28, "with a tag")
        monkeypatch.setattr(encoded_posts, "PLAIN_MAX_BYTES", 4000)
        posts = EncodedPosts(store, clock=reactor)
        await posts.snapshot(await store.version(), after=0, limit=None)
        compressed = [piece for piece in pieces_of(posts) if not piece.plain_bytes]
        assert len(compressed) >= 3
        return posts, compressed

    @pytest.mark.parametrize(
        ("asked", "plain_max", "least"),
        [
            (Asked(), 10**6, 1500),
            (Asked(**ZIPPED), 10**6, 1500),
            (Asked(**ZIPPED), 0, 1500),
            (Asked(), 0, 500),  # the list is inflated
        ],
    )
    @ensureDeferred
    async def test_only_what_clients_share_is_sent_in_large_portions(
        self, stores: list[Store], monkeypatch: pytest.MonkeyPatch, asked: Any, plain_max: int, least: int
    ) -> None:
        monkeypatch.setattr("postd.web.lists.streamed_list.PORTION_BYTES", 1500)
        monkeypatch.setattr("postd.web.lists.streamed_list.WRITE_MAX_BYTES", 500)
        monkeypatch.setattr(encoded_posts, "PLAIN_MAX_BYTES", plain_max)
        await import_posts(stores[0], [(n, Random(n).randbytes(60).hex()) for n in range(1, 29)])
        made = await make_lists(stores[0]).respond(asked, (0, None))
        assert isinstance(made, StreamedResponse)
        *lengths, last = [len(b"".join(parts)) async for parts in parts_of(made)]
        assert lengths
        assert all(least <= length < least + 1500 for length in lengths)  # a piece has less
        assert last < least + 1500
        assert least == 1500 or min(lengths) < 1500

    @ensureDeferred
    async def test_slow_readers_of_many_versions_retain_a_bounded_number_of_bytes(
        self, stores: list[Store], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = stores[0]
        await import_posts(store, [(n, "x" * 100) for n in range(1, 29)])
        await store.replace_post(1, "with a tag")
        monkeypatch.setattr("postd.web.lists.streamed_list.RETAINED_MAX_BYTES", 3000)
        monkeypatch.setattr("postd.web.lists.streamed_list.SNAPSHOT_POSTS", 27)
        lists = make_lists(store)
        begun: list[StreamedResponse] = []
        for n in range(60):
            made = await lists.respond(cast(Request, Asked()), (0, None))
            assert isinstance(made, StreamedResponse)
            begun.append(made)
            await store.replace_post(1 + n % 28, f"change {n} " + "x" * 90)
        posts: EncodedPosts = lists._posts  # noqa: SLF001 - nothing else shows what is retained
        assert 3000 < posts.retained_bytes < 3000 + 2 * 28 * 150 + 20 * encoded_posts.PIECE_POSTS * 150
        snapshots = [b"ETag" in one.head for one in begun]
        assert snapshots == sorted(snapshots, reverse=True)
        assert 0 < sum(snapshots) < 60
        assert await body_of(begun[0]) == encode([(1, "with a tag"), *((n, "x" * 100) for n in range(2, 29))])
        for one in begun:
            await parts_of(one).aclose()
        del begun, made, one
        answer = await get(lists, (0, None))
        assert answer.etag is not None
        assert posts.retained_bytes == 0

    @ensureDeferred
    async def test_short_list_is_a_snapshot_whatever_slow_readers_retain(
        self, stores: list[Store], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = stores[0]
        await import_posts(store, [(n, "x" * 100) for n in range(1, 29)])
        await store.replace_post(1, "with a tag")
        monkeypatch.setattr("postd.web.lists.streamed_list.RETAINED_MAX_BYTES", -1)
        made = await make_lists(store).respond(cast(Request, Asked()), (0, None))
        assert isinstance(made, StreamedResponse)
        assert b"ETag" in made.head

    @pytest.mark.parametrize("span", [(0, None), (2, 20)])
    @pytest.mark.parametrize("fields", [{}, ZIPPED])
    @ensureDeferred
    async def test_memory_of_a_short_list_is_counted_in_full_while_slow_readers_retain_much(
        self, stores: list[Store], span: Span, fields: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await import_posts(stores[0], [(n, "x" * 100) for n in range(1, 29)])
        monkeypatch.setattr("postd.web.lists.post_lists.WHOLE_MAX_BYTES", 500)
        monkeypatch.setattr("postd.web.lists.post_lists.SHORT_PAGE_POSTS", 10)
        lists, memory = make_lists(stores[0]), ResponseMemory(100_000)
        holdings: list[Holding] = []
        used = [0]
        for retained_max_bytes in (10**9, -1, -1):
            monkeypatch.setattr("postd.web.lists.streamed_list.RETAINED_MAX_BYTES", retained_max_bytes)
            made = await lists.respond(cast(Request, Asked(**fields)), span)
            assert isinstance(made, StreamedResponse)
            holdings.append(memory.hold(Asked.client_network, made.memory))
            used.append(memory.used_bytes)
            await parts_of(made).aclose()
        assert 0 < used[1] < 2000
        assert used[2] - used[1] >= 20 * 100
        assert used[3] == used[2]  # it is the same list
        for one in holdings:
            one.release()
        assert memory.used_bytes == 0


class SqliteListTests(ListContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        with closing(sqlite3.connect(":memory:")) as saved:
            yield SqlitePlace(tmp_path, saved)

    # Each class has these tests of its own: pytest-twisted would wrap shared ones again for each class.
    @settings(max_examples=60)  # the posts of all are in one store, which each reads many times
    @given(steps=steps_of_histories)
    @ensureDeferred
    async def test_any_history_gives_exact_lists(self, place: Place, stores: list[Store], steps: Sequence[Any]) -> None:
        await History(place, stores).run(steps)

    @settings(max_examples=60)
    @given(steps=steps_of_histories, limits=limits_of_bytes)
    @ensureDeferred
    async def test_lists_are_exact_at_the_limits(
        self, place: Place, stores: list[Store], steps: Sequence[Any], limits: tuple[int, int]
    ) -> None:
        await check_at_limits(place, stores, steps, limits)


class RedisListTests(ListContract):
    @pytest.fixture
    def place(self, redis: RedisServer) -> Place:
        return RedisPlace(redis)

    # Each class has these tests of its own: pytest-twisted would wrap shared ones again for each class.
    @settings(max_examples=20)
    @given(steps=steps_of_histories)
    @ensureDeferred
    async def test_any_history_gives_exact_lists(self, place: Place, stores: list[Store], steps: Sequence[Any]) -> None:
        await History(place, stores).run(steps)

    @settings(max_examples=20)
    @given(steps=steps_of_histories, limits=limits_of_bytes)
    @ensureDeferred
    async def test_lists_are_exact_at_the_limits(
        self, place: Place, stores: list[Store], steps: Sequence[Any], limits: tuple[int, int]
    ) -> None:
        await check_at_limits(place, stores, steps, limits)


@given(st.dictionaries(st.integers(1, 30), texts), st.dictionaries(st.integers(1, 40), st.none() | texts))
def test_changed_piece_is_what_encoding_anew_gives(posts: Mapping[int, str], changes: Mapping[int, str | None]) -> None:
    encoded = encode_posts(sorted(posts.items()))
    piece = Piece(0, 50, join_posts(encoded), len(encoded), Held())
    new = {post_id: None if text is None else encode_posts([(post_id, text)])[0] for post_id, text in changes.items()}
    after = {post_id: text for post_id, text in {**posts, **changes}.items() if text is not None}
    expected = encode_posts(sorted(after.items()))
    assert piece.posts() == encoded
    assert piece.changed(new) == expected
    assert piece.spliced(new) in {None, (join_posts(expected), len(expected))}
    piece.compress()
    assert piece.text == join_posts(encoded)
    assert piece.changed(new) == expected
    assert piece.spliced(new) in {None, (join_posts(expected), len(expected))}
    for post_id in (0, 1, 15, 50):
        for limit in (0, 1, 3, 50):
            later = [text for number, text in zip(sorted(posts), encoded, strict=True) if number > post_id]
            cut, follow = piece.cut(post_id, limit)
            assert (cut.text, cut.count, follow) == (join_posts(later[:limit]), len(later[:limit]), len(later) > limit)
    if len(posts) > 1:
        halves = Piece(0, 50, join_posts(encoded), len(encoded), Held()).halves()
        assert [post for half in halves for post in half.posts()] == encoded
        assert abs(halves[1].count - halves[0].count) <= 1


def test_bytes_are_counted_until_a_piece_is_dropped() -> None:
    held = Held()
    pieces = [Piece(n, n + 1, b"x" * 1000, 1, held) for n in range(3)]
    assert held.bytes == sum(piece.held_bytes for piece in pieces) > 3000
    pieces[0].compress()
    assert held.bytes == sum(piece.held_bytes for piece in pieces) < 3000 + 3 * 512
    del pieces
    assert held.bytes == 0
