"""The tests that every store must pass.

The test module of a store derives a class from the contracts that the store fulfills, and has a fixture `make_store`: a
function that returns a store that is not started. Called again, it returns another one on the same place, if the place
is persistent. A whole store fulfills `StoreContract` or, if its place is persistent, `LastingStoreContract`; a login
store without posts fulfills `LoginStoreContract`.
"""

import math
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import pytest
import pytest_twisted
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import Deferred, DeferredList, gatherResults
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from postd.errors import (
    ChangesGoneError,
    KeyReusedError,
    NoSuchPostError,
    NotAuthorError,
    PostChangedError,
    PostdError,
    PostExistsError,
    StoreBusyError,
    StoreNotEmptyError,
    StoreUnavailableError,
)
from postd.model import POST_ID_MAX, Change, ChangeKind, Post, PostCollection, PostDetails, Version
from postd.protocol.passkey import Passkey
from postd.protocol.password_reset import PasswordReset
from postd.protocol.personal_token import PersonalToken
from postd.protocol.session import Session
from postd.reactor import IReactor
from postd.store.group_commit import QUEUE_MAX
from postd.store.interface import (
    CHANGES_KEPT,
    CLOCK_KEPT_S,
    KEY_BYTES,
    NONCE_COUNTS_KEPT_S,
    PAGE_CHANGES_MAX,
    TOKENS_KEPT_S,
    CredentialStore,
    FailureKeys,
    Failures,
    IdempotencyKey,
    LoginStore,
    LoginStoreWithLifecycle,
    Page,
    Reservation,
    Store,
)
from tests.helpers import PATIENCE_S

MakeStore = Callable[[], Store]
MakeLoginStore = Callable[[], LoginStoreWithLifecycle]
StoreT = TypeVar("StoreT", bound=LoginStoreWithLifecycle)

TRIMMED_BEYOND = 500
"""The log holds at least `CHANGES_KEPT` changes, and fewer than this number more."""

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=140)


async def open_store(make_store: Callable[[], StoreT]) -> StoreT:
    store = make_store()
    with suppress(StoreUnavailableError):  # on a busy machine; `start` tries again
        store.prepare()
    await store.start()
    return store


@pytest_twisted.async_yield_fixture
async def store(make_store: MakeLoginStore) -> AsyncIterator[LoginStoreWithLifecycle]:
    opened = await open_store(make_store)
    yield opened
    await opened.stop()


async def until_available(store: Store) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            await store.version()
        except StoreUnavailableError as error:
            assert time.monotonic() < deadline, error.why
            await deferLater(cast(IReactor, global_reactor), 0.1)
        else:
            return


async def error_of(call: Any) -> PostdError:
    """Return the error that awaiting `call` raises."""
    with pytest.raises(PostdError) as caught:
        await call
    return caught.value


def started(call: Any) -> Deferred[Any]:
    """Start a call without waiting for its result."""
    return Deferred.fromCoroutine(call)


def with_any_text(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test with texts of all kinds.

    Each class needs a test of its own for this: pytest-twisted would wrap a shared one again for each class.
    """
    for text in (
        "é" * 140,
        "\U0001f9d1\u200d\U0001f680" * 46,
        "line\nfeed\r\n\t ",
        "\ufeff\u2028\uffff",
        "0012",
    ):
        test = example(text=text)(test)
    return given(text=texts)(test)


async def check_text_comes_back(store: Store, text: str) -> None:
    assert (await store.get_post(await store.add_post(text))).post == text


async def check_changes_are_noticed(here: Store, there: Store) -> None:
    """Check that a watcher of one store is called after each change by another store, which has no posts yet."""
    noticed: Deferred[None] = Deferred()

    def notice() -> None:
        if not noticed.called:
            noticed.callback(None)

    here.watch_changes(notice)
    for change in (
        lambda: there.add_post("one"),
        lambda: there.replace_post(1, "uno"),
        lambda: there.delete_post(1),
        lambda: import_posts(there, [(7, "seven")]),
    ):
        noticed = Deferred()
        await change()
        await noticed.addTimeout(PATIENCE_S, cast(IReactor, global_reactor))


async def posts_of(store: Store) -> list[tuple[int, str]]:
    return [(post.id, post.post) for post in await details_of(store)]


async def details_of(store: Store) -> list[PostDetails]:
    return [post async for portion in store.read_posts(batch_size=1000) for post in portion]


def without_details(posts: Sequence[tuple[int, str]]) -> list[PostDetails]:
    return [PostDetails(*post) for post in posts]


async def import_posts(store: Store, posts: Sequence[tuple[int, str]], **how: Any) -> int:
    """Import posts with their ids; return how many were stored."""
    return await import_details(store, without_details(posts), **how)


async def import_details(store: Store, posts: Sequence[PostDetails], **how: Any) -> int:
    """Import posts with their details; return how many were stored."""
    taken = await store.begin_import()
    try:
        for start in range(0, len(posts), 1000):
            await taken.add(posts[start : start + 1000])
        return await taken.commit(**how)
    finally:
        await taken.discard()


class DetailsContract:
    """The times and authors of posts."""

    @ensureDeferred
    async def test_added_post_has_its_time_and_author(self, store: Store) -> None:
        owner = "https://idp.example/realms/main#Zoë: admin"
        assert await store.add_post("one", author="alice", now=NOW + 0.1239) == 1
        assert await store.add_post("two", author=owner, now=NOW) == 2
        assert await store.add_post("three", now=0.0) == 3
        assert await store.add_post("four") == 4
        posts = [
            PostDetails(1, "one", MS + 123, MS + 123, "alice"),
            PostDetails(2, "two", MS, MS, owner),
            PostDetails(3, "three", 0, 0),
            PostDetails(4, "four"),
        ]
        assert [await store.get_details(n) for n in (1, 2, 3, 4)] == posts
        assert (await store.list_details(limit=9)).posts == posts
        assert await details_of(store) == posts
        assert (await store.list_posts(limit=9)).posts == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]
        assert isinstance(await error_of(store.get_details(5)), NoSuchPostError)

    @ensureDeferred
    async def test_concurrent_posts_have_their_own_details(self, store: Store) -> None:
        authors = [f"user {n}" if n % 3 else None for n in range(300)]
        adding = [started(store.add_post(f"{n}", author=author, now=NOW + n)) for n, author in enumerate(authors)]
        ids = await gatherResults(adding)
        assert sorted(ids) == list(range(1, 301))
        for n, author in enumerate(authors):
            moment = MS + 1000 * n
            assert await store.get_details(ids[n]) == PostDetails(ids[n], f"{n}", moment, moment, author)

    @ensureDeferred
    async def test_replaced_post_keeps_its_author_and_has_the_time_of_the_change(self, store: Store) -> None:
        await store.add_post("one", author="alice", now=NOW)
        await store.replace_post(1, "uno", now=NOW + 5)
        assert await store.get_details(1) == PostDetails(1, "uno", MS, MS + 5000, "alice")
        await store.add_post("two")
        await store.replace_post(2, "due", now=NOW)
        assert await store.get_details(2) == PostDetails(2, "due", None, MS)

    @ensureDeferred
    async def test_same_text_changes_no_time(self, store: Store) -> None:
        await store.add_post("one", author="alice", now=NOW)
        await store.replace_post(1, "one", now=NOW + 5)
        assert await store.get_details(1) == PostDetails(1, "one", MS, MS, "alice")

    @ensureDeferred
    async def test_times_never_go_back(self, store: Store) -> None:
        await store.add_post("one", now=NOW)
        await store.replace_post(1, "uno", now=NOW - 5)
        assert await store.get_details(1) == PostDetails(1, "uno", MS, MS)
        await store.replace_post(1, "eins", now=NOW + 5)
        await store.replace_post(1, "one", now=NOW + 3)
        assert await store.get_details(1) == PostDetails(1, "one", MS, MS + 5000)

    @ensureDeferred
    async def test_repeated_request_keeps_the_first_details(self, store: Store) -> None:
        for author, now in (("alice", NOW), ("bob", NOW + 1)):
            assert await store.add_post("one", author=author, now=now, idempotency_key=make_key()) == 1
        assert await store.get_details(1) == PostDetails(1, "one", MS, MS, "alice")

    @ensureDeferred
    async def test_write_with_another_expected_author_changes_nothing(self, store: Store) -> None:
        await store.add_post("one", author="alice", now=NOW)
        await store.add_post("two")
        version = await store.version()
        for post_id, author in ((1, "bob"), (1, ""), (2, "alice"), (2, "")):
            writes = (
                store.replace_post(post_id, "new", expected_author=author),
                store.replace_post(post_id, "new", expected="other", expected_author=author),
                store.delete_post(post_id, expected_author=author),
            )
            for write in writes:
                error = await error_of(write)
                assert isinstance(error, NotAuthorError)
                assert error.post_id == post_id
        for write in (store.replace_post(3, "new", expected_author="bob"), store.delete_post(3, expected_author="bob")):
            assert isinstance(await error_of(write), NoSuchPostError)
        for write in (
            store.replace_post(1, "new", expected="other", expected_author="alice"),
            store.delete_post(1, expected="other", expected_author="alice"),
        ):
            assert isinstance(await error_of(write), PostChangedError)
        assert await store.version() == version
        await store.replace_post(1, "uno", now=NOW, expected_author="alice")
        await store.delete_post(1, expected="uno", expected_author="alice")
        assert await posts_of(store) == [(2, "two")]

    @ensureDeferred
    async def test_page_of_details_has_the_changes_since_a_version(self, store: Store) -> None:
        await store.add_post("one", author="alice", now=NOW)
        await store.add_post("two", author="bob", now=NOW)
        before = await store.version()
        await store.replace_post(1, "uno", now=NOW + 1)
        await store.delete_post(2)
        await store.add_post("three")
        replaced, added = PostDetails(1, "uno", MS, MS + 1000, "alice"), PostDetails(3, "three")
        page = await store.list_details(limit=1, since=before)
        changes = {1: replaced, 2: None, 3: added}
        assert page == Page(await store.version(), [replaced], more=True, changes=changes)
        assert await store.list_details(after=1, limit=1) == Page(page.version, [added], more=False)

    @ensureDeferred
    async def test_latest_posts_end_before_an_id(self, store: Store) -> None:
        assert (await store.list_latest(limit=3)).posts == []
        for n in range(1, 8):
            await store.add_post(f"post {n}", author="alice", now=NOW + n)
        await store.delete_post(5)
        for before, limit, ids, more in (
            (POST_ID_MAX + 1, 3, [4, 6, 7], True),
            (POST_ID_MAX + 1, 6, [1, 2, 3, 4, 6, 7], False),
            (7, 3, [3, 4, 6], True),
            (4, 3, [1, 2, 3], False),
            (1, 3, [], False),
        ):
            page = await store.list_latest(before=before, limit=limit)
            assert ([post.id for post in page.posts], page.more) == (ids, more)
            assert page.version == await store.version()
        assert (await store.list_latest(limit=1)).posts == [PostDetails(7, "post 7", MS + 7000, MS + 7000, "alice")]

    @ensureDeferred
    async def test_listeners_get_the_details_of_each_change(self, store: Store) -> None:
        await store.add_post("one", author="alice", now=NOW)
        await store.replace_post(1, "uno", now=NOW + 1)
        await store.replace_post(1, "eins", now=NOW + 2)
        await store.add_post("two", author="bob", now=NOW + 3)
        await store.delete_post(2)
        changes = [
            Change(1, ChangeKind.ADDED, 1, "one", MS, MS, "alice"),
            Change(2, ChangeKind.UPDATED, 1, "uno", MS, MS + 1000, "alice"),
            Change(3, ChangeKind.UPDATED, 1, "eins", MS, MS + 2000, "alice"),
            Change(4, ChangeKind.ADDED, 2, "two", MS + 3000, MS + 3000, "bob"),
            Change(5, ChangeKind.DELETED, 2, None),
        ]
        assert await store.list_changes(after=0, limit=9) == changes
        last = Change(3, ChangeKind.ADDED, 1, "eins", MS, MS + 2000, "alice")
        assert await store.list_changes(after=0, limit=9, since=0) == [None, None, last, None, changes[4]]

    @ensureDeferred
    async def test_import_keeps_details_and_adds_none(self, store: Store) -> None:
        posts = [
            PostDetails(1, "one", MS, MS + 1, "alice"),
            PostDetails(2, "two"),
            PostDetails(3, "three", MS),
            PostDetails(4, "four", None, MS),
            PostDetails(5, "five", author="bob"),
            PostDetails(6, "six", -1, 0),
        ]
        assert await import_details(store, posts[1:]) == 5
        assert await import_details(store, [posts[0], PostDetails(2, "again", MS, MS, "eve")], skip_existing=True) == 1
        assert await details_of(store) == posts
        await store.delete_post(1)
        assert await import_posts(store, [(1, "again")]) == 1
        assert await store.get_details(1) == PostDetails(1, "again")

    @ensureDeferred
    async def test_ids_of_an_author_are_found(self, store: Store) -> None:
        for author in ("alice", None, "bob", "alice", "Alice", "alice"):
            await store.add_post("x", author=author)
        await store.delete_post(4)
        for author, ids in (("alice", [1, 6]), ("bob", [3]), ("carol", [])):
            found = [post_id async for batch in store.read_ids_of(author, batch_size=2) for post_id in batch]
            assert found == ids

    @ensureDeferred
    async def test_collection_is_the_same_after_writes_and_may_be_imported(self, store: Store) -> None:
        collection = await store.collection()
        assert len(bytes.fromhex(collection.id)) == 16
        await store.add_post("one")
        await import_posts(store, [(2, "two")])
        assert await store.collection() == collection
        copied = PostCollection("0123456789abcdef" * 2, MS)
        await import_posts(store, [(3, "three")], collection=copied)
        assert await store.collection() == copied


class ImportContract:
    """Reading all posts, and importing posts with their ids."""

    @ensureDeferred
    async def test_posts_are_read_in_order_and_batches(self, store: Store) -> None:
        assert [portion async for portion in store.read_posts(batch_size=4)] == []
        await gatherResults([started(store.add_post(f"post {n}")) for n in range(1, 31)])
        for post_id in (1, 7, 30):
            await store.delete_post(post_id)
        for batch_size in (1, 4, 27, 1000):
            portions = [list(portion) async for portion in store.read_posts(batch_size=batch_size)]
            assert {len(portion) for portion in portions} <= set(range(1, batch_size + 1))
            read = [(post.id, post.post) for portion in portions for post in portion]
            assert read == [(n, f"post {n}") for n in range(1, 31) if n not in {1, 7, 30}]

    @ensureDeferred
    async def test_reading_does_not_block_writes(self, store: Store) -> None:
        await import_posts(store, [(n, f"post {n}") for n in range(1, 21)])
        read: list[tuple[int, str]] = []
        async for portion in store.read_posts(batch_size=5):
            read += [(post.id, post.post) for post in portion]
            assert await store.add_post("late") > 20
        assert read[:20] == [(n, f"post {n}") for n in range(1, 21)]
        assert {text for _, text in read[20:]} <= {"late"}
        assert [post_id for post_id, _ in read] == sorted({post_id for post_id, _ in read})

    @ensureDeferred
    async def test_reading_can_stop_early(self, store: Store) -> None:
        await import_posts(store, [(n, "x") for n in range(1, 21)])
        async for portion in store.read_posts(batch_size=5):
            assert len(portion) == 5
            break
        assert await store.add_post("y") == 21

    @ensureDeferred
    async def test_last_id_is_the_largest_id_ever_assigned(self, store: Store) -> None:
        assert await store.last_id() == 0
        for _ in range(3):
            await store.add_post("x")
        await store.delete_post(3)
        assert await store.last_id() == 3
        await import_posts(store, [(10, "ten"), (8, "eight")])
        assert await store.last_id() == 10

    @ensureDeferred
    async def test_imported_posts_keep_their_ids_and_later_ids_are_larger(self, store: Store) -> None:
        assert await store.add_post("one") == 1
        assert await import_posts(store, [(70, "seventy"), (3, "three")]) == 2
        assert await posts_of(store) == [(1, "one"), (3, "three"), (70, "seventy")]
        assert await store.get_post(70) == Post(70, "seventy")
        assert await store.add_post("next") == 71
        assert await import_posts(store, [(2, "two")]) == 1
        assert await store.add_post("next") == 72

    @ensureDeferred
    async def test_import_may_use_the_id_of_a_deleted_post(self, store: Store) -> None:
        await store.add_post("one")
        await store.delete_post(1)
        assert await import_posts(store, [(1, "uno")]) == 1
        assert await posts_of(store) == [(1, "uno")]

    @ensureDeferred
    async def test_import_may_use_the_largest_id(self, store: Store) -> None:
        assert await import_posts(store, [(POST_ID_MAX, "last"), (POST_ID_MAX - 1, "last but one")]) == 2
        assert await posts_of(store) == [(POST_ID_MAX - 1, "last but one"), (POST_ID_MAX, "last")]
        assert (await store.get_post(POST_ID_MAX)).post == "last"
        assert await store.last_id() == POST_ID_MAX

    @ensureDeferred
    async def test_import_is_invisible_before_its_commit(self, store: Store) -> None:
        version = await store.version()
        taken = await store.begin_import()
        await taken.add(without_details([(1, "one"), (2, "two")]))
        assert await posts_of(store) == []
        assert await store.version() == version
        assert await taken.commit() == 2
        assert await posts_of(store) == [(1, "one"), (2, "two")]
        await taken.discard()
        assert await posts_of(store) == [(1, "one"), (2, "two")]

    @ensureDeferred
    async def test_discarded_import_leaves_no_trace(self, store: Store) -> None:
        version = await store.version()
        taken = await store.begin_import()
        await taken.add(without_details([(5, "five")]))
        await taken.discard()
        await taken.discard()
        assert await posts_of(store) == []
        assert await store.version() == version
        assert await import_posts(store, [(5, "another")]) == 1
        assert await posts_of(store) == [(5, "another")]

    @ensureDeferred
    async def test_import_with_an_existing_id_is_refused_whole(self, store: Store) -> None:
        for text in ("one", "two", "three"):
            await store.add_post(text)
        version = await store.version()
        error = await error_of(import_posts(store, [(9, "new"), (2, "zwei"), (1000, "new")]))
        assert isinstance(error, PostExistsError)
        assert error.post_id == 2
        assert await posts_of(store) == [(1, "one"), (2, "two"), (3, "three")]
        assert (await store.version(), await store.last_id()) == (version, 3)
        assert len(await store.list_changes(after=0, limit=10)) == 3

    @ensureDeferred
    async def test_import_may_skip_existing_ids(self, store: Store) -> None:
        for text in ("one", "two"):
            await store.add_post(text)
        assert await import_posts(store, [(2, "zwei"), (3, "drei"), (1, "eins")], skip_existing=True) == 1
        assert await posts_of(store) == [(1, "one"), (2, "two"), (3, "drei")]
        version = await store.version()
        assert await import_posts(store, [(2, "zwei"), (3, "drei")], skip_existing=True) == 0
        assert await store.version() == version

    @ensureDeferred
    async def test_import_into_empty_store_is_refused_if_there_are_posts(self, store: Store) -> None:
        await store.add_post("one")
        version = await store.version()
        how: dict[str, Any] = {"into_empty": True, "last_id": 50, "revision": 50}
        assert isinstance(await error_of(import_posts(store, [(2, "two")], **how)), StoreNotEmptyError)
        assert isinstance(await error_of(import_posts(store, [], **how)), StoreNotEmptyError)
        assert (await store.version(), await store.last_id()) == (version, 1)
        await store.delete_post(1)
        assert await import_posts(store, [(2, "two")], **how) == 1
        assert await posts_of(store) == [(2, "two")]
        assert await store.add_post("next") == 51

    @ensureDeferred
    async def test_import_with_a_duplicate_id_is_refused(self, store: Store) -> None:
        for portions in ([[(1, "a"), (2, "b"), (1, "a")]], [[(1, "a"), (2, "b")], [(3, "c"), (1, "b")]]):
            taken = await store.begin_import()
            for portion in portions[:-1]:
                await taken.add(without_details(portion))
            error = await error_of(taken.add(without_details(portions[-1])))
            assert isinstance(error, PostExistsError)
            assert error.post_id == 1
            await taken.discard()
        assert await posts_of(store) == []

    @ensureDeferred
    async def test_import_may_raise_the_next_id_and_revision(self, store: Store) -> None:
        tags = {(await store.version()).tag}
        assert await import_posts(store, [(3, "three")], last_id=40, revision=100) == 1
        assert (await store.version()).revision == 101
        assert await store.last_id() == 40
        assert await store.list_changes(after=100, limit=10) == [Change(101, ChangeKind.ADDED, 3, "three")]
        for unknown in (0, 50, 99, 102):
            assert isinstance(await error_of(store.list_changes(after=unknown, limit=10)), ChangesGoneError)
        tags.add((await store.version()).tag)
        assert await import_posts(store, [(4, "four")], last_id=7, revision=7) == 1
        assert ((await store.version()).revision, await store.last_id()) == (102, 40)
        tags.add((await store.version()).tag)
        assert await import_posts(store, [], last_id=60, revision=200) == 0
        assert ((await store.version()).revision, await store.last_id()) == (200, 60)
        tags.add((await store.version()).tag)
        assert await store.add_post("next") == 61
        assert await store.list_changes(after=200, limit=10) == [Change(201, ChangeKind.ADDED, 61, "next")]
        assert len(tags) == 4

    @ensureDeferred
    async def test_each_imported_post_is_a_change(self, store: Store) -> None:
        await store.add_post("one")
        before = await store.version()
        await import_posts(store, [(9, "nine"), (4, "four"), (7, "seven")])
        after = await store.version()
        assert after.revision == before.revision + 3
        assert after.tag != before.tag
        changes = list(filter(None, await store.list_changes(after=before.revision, limit=10)))
        assert [change.revision for change in changes] == [2, 3, 4]
        assert {(change.kind, change.id, change.post) for change in changes} == {
            (ChangeKind.ADDED, 4, "four"),
            (ChangeKind.ADDED, 7, "seven"),
            (ChangeKind.ADDED, 9, "nine"),
        }
        await store.delete_post(4)
        assert await store.list_changes(after=4, limit=10) == [Change(5, ChangeKind.DELETED, 4, None)]

    @ensureDeferred
    async def test_empty_import_is_no_change(self, store: Store) -> None:
        await store.add_post("one")
        version = await store.version()
        assert await import_posts(store, []) == 0
        assert (await store.version(), await store.last_id()) == (version, 1)

    @ensureDeferred
    async def test_log_keeps_the_last_changes_of_a_large_import(self, store: Store) -> None:
        await store.add_post("one")
        many = CHANGES_KEPT + TRIMMED_BEYOND
        assert await import_posts(store, [(n, f"post {n}") for n in range(many + 1, 1, -1)]) == many
        assert (await store.version()).revision == many + 1
        reach = many + 1 - CHANGES_KEPT
        kept = list(filter(None, await store.list_changes(after=reach, limit=2 * CHANGES_KEPT)))
        assert [change.revision for change in kept] == list(range(reach + 1, many + 2))
        assert len({change.id for change in kept}) == CHANGES_KEPT
        assert isinstance(await error_of(store.list_changes(after=0, limit=1)), ChangesGoneError)
        assert [post_id for post_id, _ in await posts_of(store)] == list(range(1, many + 2))

    @ensureDeferred
    async def test_staging_an_import_does_not_block_writes(self, store: Store) -> None:
        taken = await store.begin_import()
        await taken.add(without_details([(100, "a hundred")]))
        ids = await gatherResults([started(store.add_post(f"post {n}")) for n in range(20)])
        await taken.add(without_details([(50, "fifty")]))
        await store.delete_post(ids[0])
        assert await taken.commit() == 2
        await taken.discard()
        assert ids == list(range(1, 21))
        assert [post_id for post_id, _ in await posts_of(store)] == [*range(2, 21), 50, 100]

    @ensureDeferred
    async def test_import_is_refused_if_an_id_was_assigned_meanwhile(self, store: Store) -> None:
        taken = await store.begin_import()
        await taken.add(without_details([(1, "imported")]))
        assert await store.add_post("added") == 1
        assert isinstance(await error_of(taken.commit()), PostExistsError)
        await taken.discard()
        assert await posts_of(store) == [(1, "added")]

    @ensureDeferred
    async def test_concurrent_imports_are_independent(self, store: Store) -> None:
        one, other = await store.begin_import(), await store.begin_import()
        await one.add(without_details([(1, "one"), (2, "two")]))
        await other.add(without_details([(1, "another one")]))
        await other.discard()
        assert await one.commit() == 2
        await one.discard()
        assert await posts_of(store) == [(1, "one"), (2, "two")]

    @ensureDeferred
    async def test_import_preserves_texts_of_all_kinds(self, store: Store) -> None:
        kinds = [
            "é" * 140,
            "\U0001f9d1\u200d\U0001f680" * 46,
            "a\nb\r\n\t ",
            "\ufeff\u2028\uffff",
            "0012",
            "7:x",
            "\x01",
            "{}",
        ]
        posts = list(enumerate(kinds, 1))
        assert await import_posts(store, posts) == len(posts)
        assert await posts_of(store) == posts
        assert [change and change.post for change in await store.list_changes(after=0, limit=100)] == kinds

    @ensureDeferred
    async def test_store_not_started_refuses_to_read_and_import(self, make_store: MakeStore) -> None:
        store = make_store()
        for call in (store.last_id(), store.begin_import(), posts_of(store)):
            assert isinstance(await error_of(call), StoreUnavailableError)

    @ensureDeferred
    async def test_stopped_store_refuses_to_read_and_import(self, make_store: MakeStore) -> None:
        store = await open_store(make_store)
        taken = await store.begin_import()
        await taken.add(without_details([(1, "one")]))
        await store.stop()
        for call in (
            store.last_id(),
            store.begin_import(),
            posts_of(store),
            taken.add(without_details([(2, "two")])),
            taken.commit(),
        ):
            assert isinstance(await error_of(call), StoreUnavailableError)


class PostStoreContract(DetailsContract, ImportContract):
    """Posts, their version, and the log of their changes."""

    @ensureDeferred
    async def test_new_store_is_empty(self, store: Store) -> None:
        page = await store.list_posts(limit=10)
        assert (list(page.posts), page.more, page.version.revision) == ([], False, 0)
        assert await store.list_changes(after=0, limit=10) == []

    @ensureDeferred
    async def test_added_post_is_stored(self, store: Store) -> None:
        assert [await store.add_post("one"), await store.add_post("two")] == [1, 2]
        assert (await store.list_posts(limit=10)).posts == [(1, "one"), (2, "two")]
        assert await store.get_post(2) == Post(2, "two")

    @ensureDeferred
    async def test_replaced_post_keeps_its_place(self, store: Store) -> None:
        for text in ("one", "two"):
            await store.add_post(text)
        await store.replace_post(1, "uno")
        assert (await store.list_posts(limit=10)).posts == [(1, "uno"), (2, "two")]

    @ensureDeferred
    async def test_deleted_post_is_gone(self, store: Store) -> None:
        await store.add_post("one")
        await store.delete_post(1)
        assert not (await store.list_posts(limit=10)).posts

    @pytest.mark.parametrize("missing", [1, 2, 2**53 - 1])
    @ensureDeferred
    async def test_missing_post_is_named_in_the_error(self, store: Store, missing: int) -> None:
        await store.add_post("one")
        await store.delete_post(1)
        for call in (
            store.get_post(missing),
            store.replace_post(missing, "x"),
            store.replace_post(missing, "x", expected="y"),
            store.delete_post(missing),
        ):
            error = await error_of(call)
            assert isinstance(error, NoSuchPostError)
            assert error.post_id == missing

    @ensureDeferred
    async def test_write_with_another_expected_text_changes_nothing(self, store: Store) -> None:
        await store.add_post("one")
        version = await store.version()
        assert isinstance(await error_of(store.replace_post(1, "new", expected="other")), PostChangedError)
        assert isinstance(await error_of(store.delete_post(1, expected="other")), PostChangedError)
        assert await store.version() == version
        await store.replace_post(1, "two", expected="one")
        await store.delete_post(1, expected="two")

    @ensureDeferred
    async def test_id_is_never_assigned_twice(self, store: Store) -> None:
        for _ in range(3):
            await store.add_post("x")
        await store.delete_post(3)
        assert await store.add_post("y") == 4
        for post_id in (1, 2, 4):
            await store.delete_post(post_id)
        assert await store.add_post("z") == 5

    @ensureDeferred
    async def test_idempotency_key_stores_one_post(self, store: Store) -> None:
        assert await store.add_post("other") == 1
        assert await add_with_key(store, "one") == 2
        await store.replace_post(2, "changed since")
        version = await store.version()
        assert await add_with_key(store, "one", now=NOW + 9) == 2
        assert isinstance(await error_of(add_with_key(store, "two", request=b"other")), KeyReusedError)
        assert await store.version() == version
        assert await add_with_key(store, "one", key=b"\0\xff") == 3
        await store.delete_post(2)
        assert await add_with_key(store, "one") == 2
        assert await store.last_id() == 3

    @ensureDeferred
    async def test_concurrent_requests_with_an_idempotency_key_store_one_post(self, store: Store) -> None:
        adding = [started(store.add_post(text, idempotency_key=key)) for text in "abc" for key in (make_key(), None)]
        ids = await gatherResults(adding)
        assert len(set(ids[::2])) == 1
        assert sorted({*ids[1::2], ids[0]}) == [1, 2, 3, 4]
        assert len((await store.list_posts(limit=9)).posts) == 4

    @ensureDeferred
    async def test_idempotency_key_expires(self, store: Store) -> None:
        assert await add_with_key(store, "one") == 1
        await store.purge_expired(now=NOW + 99.5, wall=NOW + 99.5)
        assert await add_with_key(store, "one", now=NOW + 99.5) == 1
        # Expired, although not purged, and with another request.
        assert await add_with_key(store, "two", request=b"other", now=NOW + 100) == 2
        await store.purge_expired(now=NOW + 100, wall=NOW + 100)
        assert await add_with_key(store, "two", request=b"other", now=NOW + 101) == 2
        await store.purge_expired(now=NOW + 200, wall=NOW + 200)
        assert await add_with_key(store, "one", now=NOW + 150) == 3

    @ensureDeferred
    async def test_concurrent_writes_are_done_in_order(self, store: Store) -> None:
        ids = await gatherResults([started(store.add_post(f"post {n}")) for n in range(700)])
        assert ids == list(range(1, 701))
        assert (await store.list_posts(limit=1000)).posts == [(n + 1, f"post {n}") for n in range(700)]

    @ensureDeferred
    async def test_refused_write_does_not_affect_concurrent_ones(self, store: Store) -> None:
        first, missing, second = (
            started(store.add_post("one")),
            started(store.delete_post(99)),
            started(store.add_post("two")),
        )
        assert (await first, await second) == (1, 2)
        assert isinstance(await error_of(missing), NoSuchPostError)

    @ensureDeferred
    async def test_pages_are_consecutive(self, store: Store) -> None:
        for n in range(5):
            await store.add_post(f"post {n}")
        await store.delete_post(2)
        first = await store.list_posts(limit=2)
        assert ([post_id for post_id, _ in first.posts], first.more) == ([1, 3], True)
        last = await store.list_posts(after=3, limit=2)
        assert ([post_id for post_id, _ in last.posts], last.more) == ([4, 5], False)
        assert not (await store.list_posts(after=5, limit=2)).posts

    @ensureDeferred
    async def test_page_has_the_version_of_its_posts(self, store: Store) -> None:
        await store.add_post("one")
        assert (await store.list_posts(limit=1)).version == await store.version()

    @ensureDeferred
    async def test_each_change_makes_a_new_version(self, store: Store) -> None:
        versions = [await store.version()]
        for write in (
            store.add_post("one"),
            store.add_post("two"),
            store.replace_post(1, "uno"),
            store.delete_post(1),
        ):
            await write
            versions.append(await store.version())
        assert [version.revision for version in versions] == [0, 1, 2, 3, 4]
        assert len({version.tag for version in versions}) == len(versions)

    @ensureDeferred
    async def test_same_text_is_no_change(self, store: Store) -> None:
        await store.add_post("one")
        version = await store.version()
        await store.replace_post(1, "one")
        assert await store.version() == version

    @ensureDeferred
    async def test_listeners_get_each_change_as_it_was_made(self, store: Store) -> None:
        await store.add_post("one")
        await store.replace_post(1, "uno")
        await store.delete_post(1)
        added, updated, deleted = (
            Change(1, ChangeKind.ADDED, 1, "one"),
            Change(2, ChangeKind.UPDATED, 1, "uno"),
            Change(3, ChangeKind.DELETED, 1, None),
        )
        assert await store.list_changes(after=0, limit=10) == [added, updated, deleted]
        assert await store.list_changes(after=1, limit=1) == [updated]
        assert await store.list_changes(after=3, limit=10) == []

    @ensureDeferred
    async def test_replay_has_the_last_change_of_each_post(self, store: Store) -> None:
        for text in ("one", "two"):
            await store.add_post(text)
        for text in ("uno", "eins"):
            await store.replace_post(1, text)
        await store.delete_post(2)
        await store.add_post("three")
        deleted, added = Change(5, ChangeKind.DELETED, 2, None), Change(6, ChangeKind.ADDED, 3, "three")
        for since, kind in ((0, ChangeKind.ADDED), (1, ChangeKind.UPDATED), (3, ChangeKind.UPDATED)):
            left = [None, None, None, Change(4, kind, 1, "eins"), deleted, added]
            assert await store.list_changes(after=since, limit=10, since=since) == left[since:]
            assert [*await store.list_changes(after=4, limit=1, since=since)] == [deleted]
        assert await store.list_changes(after=0, limit=3, since=0) == [None, None, None]
        assert await store.list_changes(after=3, limit=1, since=0) == [Change(4, ChangeKind.ADDED, 1, "eins")]

    @ensureDeferred
    async def test_replay_has_a_deleted_post_that_is_imported_again(self, store: Store) -> None:
        await store.add_post("one")
        await store.delete_post(1)
        await import_posts(store, [(1, "again")])
        await store.replace_post(1, "last")
        for since in (0, 1, 2):
            left = [None, None, None, Change(4, ChangeKind.ADDED, 1, "last")]
            assert await store.list_changes(after=since, limit=9, since=since) == left[since:]
        assert await store.list_changes(after=3, limit=9, since=3) == [Change(4, ChangeKind.UPDATED, 1, "last")]

    @ensureDeferred
    async def test_replay_of_any_history_leads_to_the_posts(self, store: Store) -> None:
        chance = random.Random(7)
        posts: dict[int, str] = {}
        states = [dict(posts)]
        for n in range(120):
            post_id = chance.choice([*posts, 0])
            match chance.randrange(4) if post_id else 0:
                case 0 | 1:
                    post_id = await store.add_post(f"text {n}")
                    posts[post_id] = f"text {n}"
                case 2:
                    await store.replace_post(post_id, f"text {n}")
                    posts[post_id] = f"text {n}"
                case 3:
                    await store.delete_post(post_id)
                    del posts[post_id]
            states.append(dict(posts))
        for since, state in enumerate(states):
            after = since
            changed = set[int]()
            while changes := await store.list_changes(after=after, limit=chance.randrange(1, 30), since=since):
                after += len(changes)
                for change in filter(None, changes):
                    assert change.id not in changed
                    changed.add(change.id)
                    known = change.id in state
                    assert change.kind == ("deleted" if change.post is None else "updated" if known else "added")
                    state[change.id] = change.post or ""
            assert {post_id: text for post_id, text in state.items() if text} == posts

    @ensureDeferred
    async def test_page_has_the_changes_since_a_version(self, store: Store) -> None:
        await store.add_post("one")
        versions = [await store.version()]
        for write in (
            store.add_post("two"),
            store.replace_post(1, "uno"),
            store.delete_post(2),
            import_posts(store, [(7, "seven"), (5, "five")]),
        ):
            await write
            versions.append(await store.version())
        imported: dict[int, tuple[int, str] | None] = {5: (5, "five"), 7: (7, "seven")}
        replaced = (1, "uno")
        since = [
            {2: None, 1: replaced} | imported,
            {1: replaced, 2: None} | imported,
            {2: None} | imported,
            imported,
            {},
        ]
        for version, changes in zip(versions, since, strict=True):
            page = await store.list_posts(after=1, limit=1, since=version)
            assert page == Page(versions[-1], [(5, "five")], more=True, changes=changes)
        assert (await store.list_posts(limit=0, since=versions[-2])).posts == []
        assert (await store.list_posts(limit=1)).changes is None

    @ensureDeferred
    async def test_changes_since_a_version_of_another_history_are_unknown(self, store: Store) -> None:
        async def changes(revision: int, tag: str) -> Mapping[int, tuple[int, str] | None] | None:
            return (await store.list_posts(limit=1, since=Version(revision, tag))).changes

        for text in ("one", "two", "three"):
            await store.add_post(text)
        now = await store.version()
        for revision in range(6):
            assert await changes(revision, "00" * 8) is None
        assert await changes(2, now.tag) is None
        assert await changes(3, now.tag) == {}
        await import_posts(store, [], revision=100)
        assert await changes(3, now.tag) is None  # 4 to 100 are not in the log
        raised = await store.version()
        await store.add_post("four")
        assert await changes(100, raised.tag) is None

    @ensureDeferred
    async def test_more_changes_than_a_page_may_have_are_left_out(self, store: Store) -> None:
        await store.add_post("one")
        version = await store.version()
        many = [(n, f"post {n}") for n in range(2, PAGE_CHANGES_MAX + 2)]
        await import_posts(store, many)
        assert (await store.list_posts(limit=1, since=version)).changes == {post[0]: post for post in many}
        await store.add_post("one more")
        assert (await store.list_posts(limit=1, since=version)).changes is None

    @ensureDeferred
    async def test_log_is_bounded_and_refuses_older_revisions(self, store: Store) -> None:
        beyond = TRIMMED_BEYOND
        for _ in range(0, CHANGES_KEPT + beyond, 100):
            await gatherResults([started(store.add_post("x")) for _ in range(100)])
        kept = list(filter(None, await store.list_changes(after=beyond, limit=2 * CHANGES_KEPT)))
        assert [kept[0].revision, kept[-1].revision, len(kept)] == [beyond + 1, CHANGES_KEPT + beyond, CHANGES_KEPT]
        for out_of_reach in (0, CHANGES_KEPT + beyond + 1):
            assert isinstance(await error_of(store.list_changes(after=out_of_reach, limit=1)), ChangesGoneError)

    @ensureDeferred
    async def test_watcher_is_called_when_a_change_is_acknowledged(self, store: Store) -> None:
        calls: list[int] = []
        await store.add_post("before")
        store.watch_changes(lambda: calls.append(1))
        for change in (store.add_post("one"), store.replace_post(1, "uno"), store.delete_post(1)):
            calls.clear()
            await change
            assert calls
        store.watch_changes(None)
        calls.clear()
        await store.add_post("two")
        assert calls == []

    @ensureDeferred
    async def test_writes_beyond_the_queue_are_refused(self, store: Store) -> None:
        await store.add_post("x")  # a server that does not know the script yet would be sent all twice
        waiting = [started(store.add_post("x")) for _ in range(QUEUE_MAX)]
        assert isinstance(await error_of(store.add_post("one too many")), StoreBusyError)
        # On a busy machine some may miss their deadline.
        outcomes = [outcome for _, outcome in await DeferredList(waiting, consumeErrors=True)]
        refused = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        assert all(outcome.check(StoreUnavailableError) for outcome in refused)
        assert len(refused) < QUEUE_MAX
        stored = (await store.list_posts(limit=2 * QUEUE_MAX)).posts
        assert QUEUE_MAX - len(refused) <= len(stored) - 1 <= QUEUE_MAX

    @ensureDeferred
    async def test_stop_finishes_queued_writes_and_refuses_new_ones(self, make_store: MakeStore) -> None:
        store = await open_store(make_store)
        await store.add_post("x")
        # Few enough for a busy machine: each has a deadline.
        waiting = [started(store.add_post("x")) for _ in range(100)]
        stopping = started(store.stop())
        assert isinstance(await error_of(store.add_post("late")), StoreUnavailableError)
        assert await gatherResults(waiting) == list(range(2, 102))
        await stopping
        assert isinstance(await error_of(store.version()), StoreUnavailableError)

    @ensureDeferred
    async def test_store_not_started_is_unavailable(self, make_store: MakeStore) -> None:
        store = make_store()
        assert isinstance(await error_of(store.version()), StoreUnavailableError)
        assert isinstance(await error_of(store.list_posts(limit=1)), StoreUnavailableError)


class LastingPostStoreContract(PostStoreContract):
    """In addition: acknowledged writes survive the process, and stores on one place share them."""

    @ensureDeferred
    async def test_idempotency_keys_are_shared_by_stores_on_one_place(self, make_store: MakeStore) -> None:
        stores = [await open_store(make_store) for _ in range(2)]
        ids = await gatherResults([started(add_with_key(store, "one")) for store in stores * 5])
        assert set(ids) == {1}
        for store in stores:
            await store.stop()
        again = await open_store(make_store)
        assert await add_with_key(again, "one") == 1
        assert isinstance(await error_of(add_with_key(again, "two", request=b"other")), KeyReusedError)
        await again.stop()

    @ensureDeferred
    async def test_posts_survive_a_restart(self, make_store: MakeStore) -> None:
        store = await open_store(make_store)
        await store.add_post("one")
        await store.add_post("two")
        await store.replace_post(1, "uno")
        await store.delete_post(2)
        version = await store.version()
        await store.stop()
        again = await open_store(make_store)
        assert (await again.list_posts(limit=10)).posts == [(1, "uno")]
        assert await again.version() == version
        assert len(await again.list_changes(after=0, limit=10)) == 4
        assert await again.add_post("three") == 3
        await again.stop()

    @ensureDeferred
    async def test_stores_on_one_place_share_posts(self, make_store: MakeStore) -> None:
        here, there = await open_store(make_store), await open_store(make_store)
        await here.add_post("one")
        assert (await there.list_posts(limit=10)).posts == [(1, "one")]
        assert await there.add_post("two") == 2
        assert await here.version() == await there.version()
        await here.stop()
        await there.stop()

    @ensureDeferred
    async def test_watcher_is_called_after_each_change_of_another_process(self, make_store: MakeStore) -> None:
        here, there = await open_store(make_store), await open_store(make_store)
        await check_changes_are_noticed(here, there)
        await here.stop()
        await there.stop()

    @ensureDeferred
    async def test_replay_of_another_process_has_no_replaced_text(self, make_store: MakeStore) -> None:
        here, there = await open_store(make_store), await open_store(make_store)
        await here.add_post("one")
        await here.add_post("two")
        assert len(await there.list_changes(after=0, limit=9, since=0)) == 2
        await here.replace_post(1, "uno")
        await here.delete_post(2)
        left = [Change(3, ChangeKind.ADDED, 1, "uno"), Change(4, ChangeKind.DELETED, 2, None)]
        for store in (here, there):
            assert await store.list_changes(after=0, limit=9, since=0) == [None, None, *left]
        await here.stop()
        await there.stop()

    @ensureDeferred
    async def test_import_survives_a_restart(self, make_store: MakeStore) -> None:
        store = await open_store(make_store)
        await import_posts(store, [(5, "five"), (2, "two")], last_id=9, revision=20)
        abandoned = await store.begin_import()
        await abandoned.add(without_details([(7, "never committed")]))
        await store.stop()
        again = await open_store(make_store)
        assert await posts_of(again) == [(2, "two"), (5, "five")]
        assert (await again.version()).revision == 22
        assert await again.add_post("ten") == 10
        await again.stop()

    @ensureDeferred
    async def test_import_is_atomic_for_other_stores_on_the_place(self, make_store: MakeStore) -> None:
        here, there = await open_store(make_store), await open_store(make_store)
        taken = await here.begin_import()
        await taken.add(without_details([(n, "x") for n in range(1, 501)]))
        assert await posts_of(there) == []
        assert await there.add_post("y") == 1
        assert await taken.commit(skip_existing=True) == 499
        await taken.discard()
        assert len(await posts_of(there)) == 500
        assert await there.add_post("z") == 501
        assert await here.version() == await there.version()
        await here.stop()
        await there.stop()


NOW = 1_800_000_000.25
MS = 1_800_000_000_250


def make_reservation(id_: str, expires: float = NOW + 60) -> Reservation:
    return Reservation(id_, KEYS, expires)


KEYS: FailureKeys = (b"pair", b"address", b"account")


def id_hash_of(number: int) -> bytes:
    return number.to_bytes(32)


def make_session(username: str = "alice", fingerprint: bytes = b"first", created: float = NOW) -> Session:
    return Session(username, fingerprint, created, created, created + 1800, created + 43200)


def make_provider_session(
    subject: str, sid: str, *, fingerprint: bytes = b"provider", expires: float = NOW + 1800
) -> Session:
    username = f"https://idp.example#{subject}"
    return Session(username, fingerprint, NOW, NOW, expires, NOW + 43200, "Alice", "idp", subject, sid)


ID_TOKEN = "eyJ" + "aB3-_." * 682
"""As long as one may be, and with characters outside of base64url."""

EndSession = Callable[[LoginStore], Coroutine[Any, Any, object]]

ENDS: dict[str, EndSession] = {
    "delete_sessions": lambda store: store.delete_sessions([id_hash_of(1), id_hash_of(2)]),
    "delete_sessions_of": lambda store: store.delete_sessions_of({"https://idp.example#1": b"another"}),
    "delete_all_sessions": lambda store: store.delete_all_sessions(),
    "end_sessions_at": lambda store: store.end_sessions_at(b"provider", sid="s"),
    "purge_expired": lambda store: store.purge_expired(now=NOW + 1800, wall=NOW),
    "in_place_of": lambda store: store.add_session(
        id_hash_of(9), make_session(), in_place_of=[id_hash_of(1), id_hash_of(2)]
    ),
    "max_of_user": lambda store: store.add_session(
        id_hash_of(9), replace(make_provider_session("1", "s"), subject="", created=NOW + 1), max_of_user=1
    ),
}


def make_key(request: bytes = b"request", key: bytes = b"key", now: float = NOW) -> IdempotencyKey:
    return IdempotencyKey(key, request, now, now + 100)


async def add_with_key(store: Store, text: str, **key: Any) -> int:
    return await store.add_post(text, idempotency_key=make_key(**key))


DAY_S = 24 * 3600


def make_token(number: int, account: str = "alice", **changes: Any) -> PersonalToken:
    token = PersonalToken(f"token{number}", account, b"entry", "CI", "read", NOW + number, NOW + 90 * DAY_S)
    return replace(token, **changes)


def make_passkey(number: int, account: str = "alice", **changes: Any) -> Passkey:
    passkey = Passkey(f"key{number}", id_hash_of(number), account, b"entry", b"cose", "phone", NOW + number)
    return replace(passkey, **changes)


async def tokens_in(store: CredentialStore) -> list[str]:
    return [token.id for token in await store.list_tokens()]


async def passkeys_in(store: CredentialStore) -> list[str]:
    return [passkey.id for passkey in await store.list_passkeys()]


class CredentialStoreContract:
    """Personal access tokens, passkeys and resets of passwords."""

    @ensureDeferred
    async def test_token_is_stored_exactly(self, store: CredentialStore) -> None:
        for number, token in enumerate(
            [
                make_token(0),
                make_token(1, "jürgen 🚀 '\"", entry=b"\0\xff\n", label="", access="write"),
                make_token(2, "https://idp.example#é", label="\u202e%s\n", created=NOW + 1 / 3, expires=NOW + 0.1),
                make_token(3, expires=math.inf, used=NOW + 1 / 3),
            ]
        ):
            assert await store.get_token(id_hash_of(number)) is None
            assert await store.add_token(id_hash_of(number), token)
            assert await store.get_token(id_hash_of(number)) == token
            assert token in await store.list_tokens()
            assert token in await store.list_tokens(token.account)
        assert await store.get_token(b"") is None

    @ensureDeferred
    async def test_passkey_is_stored_exactly(self, store: CredentialStore) -> None:
        for passkey in (
            make_passkey(0),
            make_passkey(
                1, "jürgen 🚀 '\"", entry=b"\0\xff", public_key=bytes(range(256)) * 2, label="", used=NOW + 1 / 3
            ),
            make_passkey(2, credential_id=bytes(1023), sign_count=2**32 - 1, backup_eligible=True),
            make_passkey(3, credential_id=b"\0", backup_eligible=True, backed_up=True, label="\u202e%s\n"),
            make_passkey(4, account="https://idp.example#7", shown_name="Älice", subject="7"),
        ):
            assert await store.get_passkey(passkey.credential_id) is None
            assert await store.add_passkey(passkey)
            found = await store.get_passkey(passkey.credential_id)
            assert found == passkey
            assert (type(found.backup_eligible), type(found.backed_up)) == (bool, bool)
            assert passkey in await store.list_passkeys()
            assert passkey in await store.list_passkeys(passkey.account)
        assert await store.get_passkey(b"") is None

    @ensureDeferred
    async def test_credentials_are_listed_oldest_first(self, store: CredentialStore) -> None:
        assert await tokens_in(store) == await passkeys_in(store) == []
        for number in (3, 1, 2):
            account = "bob" if number == 2 else "alice"
            await store.add_token(id_hash_of(number), make_token(number, account))
            await store.add_passkey(make_passkey(number, account))
        assert await tokens_in(store) == ["token1", "token2", "token3"]
        assert await passkeys_in(store) == ["key1", "key2", "key3"]
        assert await store.list_tokens("alice") == [make_token(1), make_token(3)]
        assert await store.list_passkeys("alice") == [make_passkey(1), make_passkey(3)]
        assert (await store.list_tokens("carol"), await store.list_passkeys("carol")) == ([], [])

    @ensureDeferred
    async def test_account_has_no_more_tokens_than_its_limit(self, store: CredentialStore) -> None:
        added = [await store.add_token(id_hash_of(n), make_token(n), max_of_account=3) for n in range(5)]
        assert added == [True, True, True, False, False]
        assert await tokens_in(store) == ["token0", "token1", "token2"]
        assert await store.get_token(id_hash_of(3)) is None
        # Neither those of other accounts or entries count, nor expired ones, nor deleted ones.
        assert await store.add_token(id_hash_of(10), make_token(10, "bob"), max_of_account=1)
        assert await store.add_token(id_hash_of(11), make_token(11, entry=b"new"), max_of_account=1)
        assert not await store.add_token(id_hash_of(12), make_token(12, entry=b"new"), max_of_account=1)
        assert await store.delete_tokens(["token1"]) == 1
        assert await store.add_token(id_hash_of(13), make_token(13, expires=NOW + 20), max_of_account=3)
        assert not await store.add_token(id_hash_of(14), make_token(14), max_of_account=3)
        assert await store.add_token(id_hash_of(15), make_token(20, expires=math.inf), max_of_account=3)
        assert not await store.add_token(id_hash_of(16), make_token(21), max_of_account=3)

    @ensureDeferred
    async def test_account_has_no_more_passkeys_than_its_limit(self, store: CredentialStore) -> None:
        added = [await store.add_passkey(make_passkey(n), max_of_account=3) for n in range(5)]
        assert added == [True, True, True, False, False]
        assert await passkeys_in(store) == ["key0", "key1", "key2"]
        assert await store.get_passkey(id_hash_of(3)) is None
        assert await store.add_passkey(make_passkey(10, "bob"), max_of_account=1)
        assert await store.add_passkey(make_passkey(11, entry=b"new"), max_of_account=1)
        assert await store.delete_passkeys(["key1"]) == 1
        assert await store.add_passkey(make_passkey(13), max_of_account=3)
        assert not await store.add_passkey(make_passkey(14), max_of_account=3)

    @ensureDeferred
    async def test_account_has_a_hundred_tokens_and_twenty_passkeys_by_default(self, store: CredentialStore) -> None:
        tokens = [await store.add_token(id_hash_of(n), make_token(n)) for n in range(101)]
        passkeys = [await store.add_passkey(make_passkey(n)) for n in range(21)]
        assert (tokens.count(True), passkeys.count(True)) == (100, 20)

    @ensureDeferred
    async def test_concurrent_tokens_and_passkeys_stay_within_the_limit(self, store: CredentialStore) -> None:
        tokens = [started(store.add_token(id_hash_of(n), make_token(n), max_of_account=5)) for n in range(30)]
        passkeys = [started(store.add_passkey(make_passkey(n), max_of_account=5)) for n in range(30)]
        assert (await gatherResults(tokens)).count(True) == len(await store.list_tokens()) == 5
        assert (await gatherResults(passkeys)).count(True) == len(await store.list_passkeys()) == 5

    @ensureDeferred
    async def test_credential_id_is_taken_once_by_any_account(self, store: CredentialStore) -> None:
        assert await store.add_passkey(make_passkey(1))
        for other in (make_passkey(2, "bob"), make_passkey(3), make_passkey(4, entry=b"new")):
            assert not await store.add_passkey(replace(other, credential_id=id_hash_of(1)))
        assert await store.list_passkeys() == [make_passkey(1)]

    @ensureDeferred
    async def test_use_of_a_token_is_noted(self, store: CredentialStore) -> None:
        for number in (1, 2):
            await store.add_token(id_hash_of(number), make_token(number))
        await store.use_token(id_hash_of(1), used=NOW + 60)
        assert await store.get_token(id_hash_of(1)) == make_token(1, used=NOW + 60)
        await store.use_token(id_hash_of(1), used=NOW + 30)  # by a clock that is behind
        assert await store.get_token(id_hash_of(1)) == make_token(1, used=NOW + 60)
        assert await store.get_token(id_hash_of(2)) == make_token(2)
        await gatherResults(
            [started(store.delete_tokens(["token1"])), started(store.use_token(id_hash_of(1), used=NOW + 90))]
        )
        await store.use_token(id_hash_of(3), used=NOW)
        assert await store.get_token(id_hash_of(1)) is await store.get_token(id_hash_of(3)) is None
        assert await tokens_in(store) == ["token2"]

    @ensureDeferred
    async def test_credentials_are_deleted_by_their_ids(self, store: CredentialStore) -> None:
        for number in range(5):
            await store.add_token(id_hash_of(number), make_token(number, "bob" if number == 4 else "alice"))
            await store.add_passkey(make_passkey(number, "bob" if number == 4 else "alice"))
        for delete, prefix in ((store.delete_tokens, "token"), (store.delete_passkeys, "key")):
            assert await delete([]) == await delete(["unknown", ""]) == 0
            assert await delete([f"{prefix}0", f"{prefix}1", f"{prefix}1", "unknown"]) == 2
            assert await delete([f"{prefix}2", f"{prefix}4"], account="alice") == 1
            assert await delete([f"{prefix}3"], account="bob") == await delete([f"{prefix}3"], account="") == 0
            assert await delete([f"{prefix}0"]) == 0
        assert await tokens_in(store) == ["token3", "token4"]
        assert await passkeys_in(store) == ["key3", "key4"]
        found = [
            (await store.get_token(id_hash_of(n)), await store.get_passkey(id_hash_of(n))) != (None, None)
            for n in range(5)
        ]
        assert found == [False, False, False, True, True]

    @ensureDeferred
    async def test_passkey_is_used_with_a_greater_count_or_without_one(self, store: CredentialStore) -> None:
        await store.add_passkey(make_passkey(1))
        await store.add_passkey(make_passkey(2, backed_up=True))

        async def use(number: int, count: int) -> bool:
            return await store.use_passkey(
                id_hash_of(number), used=NOW + count, sign_count=count, backed_up=bool(count % 2)
            )

        counts = [0, 0, 3, 3, 2, 0, 2**31 + 4, 2**31 + 4, 5, 2**32 - 1]
        assert [await use(1, count) for count in counts] == [
            *(True, True, True, False, False, False, True, False, False, True)
        ]
        last = 2**32 - 1
        assert await store.get_passkey(id_hash_of(1)) == make_passkey(
            1, used=NOW + last, sign_count=last, backed_up=True
        )
        assert await use(2, 0)
        assert await store.get_passkey(id_hash_of(2)) == make_passkey(2, used=NOW)
        assert not await use(3, 1)
        assert len(await store.list_passkeys()) == 2

    @ensureDeferred
    async def test_one_of_concurrent_uses_of_a_count_is_accepted(self, store: CredentialStore) -> None:
        await store.add_passkey(make_passkey(1))
        uses = [store.use_passkey(id_hash_of(1), used=NOW, sign_count=7, backed_up=False) for _ in range(20)]
        assert (await gatherResults([started(use) for use in uses])).count(True) == 1

    @ensureDeferred
    async def test_passkey_is_renamed_by_its_account(self, store: CredentialStore) -> None:
        await store.add_passkey(make_passkey(1))
        assert await store.rename_passkey("key1", "lost phone 🚀", account="alice")
        assert await store.get_passkey(id_hash_of(1)) == make_passkey(1, label="lost phone 🚀")
        assert not await store.rename_passkey("key1", "mine", account="bob")
        assert not await store.rename_passkey("key2", "mine", account="alice")
        assert await store.list_passkeys() == [make_passkey(1, label="lost phone 🚀")]

    @ensureDeferred
    async def test_reset_of_a_password_is_used_once(self, store: CredentialStore) -> None:
        reset = PasswordReset("jürgen 🚀", b"\0\xff", NOW + 1 / 3)
        assert await store.get_password_reset(b"1") is None
        await store.add_password_reset(b"1", reset)
        await store.add_password_reset(b"2", PasswordReset("bob", b"", NOW))
        for _ in range(2):  # reading uses nothing up
            assert await store.get_password_reset(b"1") == reset
        uses = [started(store.use_password_reset(b"1")) for _ in range(10)]
        assert (await gatherResults(uses)).count(True) == 1
        assert await store.get_password_reset(b"1") is None
        assert await store.get_password_reset(b"2") is not None
        assert not await store.use_password_reset(b"3")

    @ensureDeferred
    async def test_account_has_one_reset_of_its_password(self, store: CredentialStore) -> None:
        for secret in (b"1", b"2", b"2"):
            await store.add_password_reset(secret, PasswordReset("alice", secret, NOW))
        assert await store.get_password_reset(b"1") is None
        assert not await store.use_password_reset(b"1")
        assert await store.get_password_reset(b"2") == PasswordReset("alice", b"2", NOW)
        assert await store.use_password_reset(b"2")

    @ensureDeferred
    async def test_credentials_of_accounts_with_another_entry_are_deleted(self, store: CredentialStore) -> None:
        for number, (account, entry) in enumerate(
            [("alice", b"old"), ("alice", b"new"), ("bob", b"old"), ("bob", b"new"), ("carol", b"old")]
        ):
            await store.add_token(id_hash_of(number), make_token(number, account, entry=entry))
            await store.add_passkey(make_passkey(number, account, entry=entry))
            await store.add_password_reset(account.encode(), PasswordReset(account, b"", NOW))
        assert await store.delete_credentials_of({}) == 0
        assert await store.delete_credentials_of({"unknown": None, "alice": b"new", "bob": None}) == 8
        assert await store.delete_credentials_of({"unknown": None, "alice": b"new", "bob": None}) == 0
        assert await tokens_in(store) == ["token1", "token4"]
        assert await passkeys_in(store) == ["key1", "key4"]
        assert (await store.get_token(id_hash_of(0)), await store.get_passkey(id_hash_of(3))) == (None, None)
        resets = [await store.get_password_reset(secret) is not None for secret in (b"alice", b"bob", b"carol")]
        assert resets == [False, False, True]

    @ensureDeferred
    async def test_deleted_credentials_leave_nothing_behind(self, store: CredentialStore) -> None:
        """No remainder comes back with the same key, or is in its way."""
        for _ in range(3):
            assert await store.add_token(id_hash_of(1), make_token(1), max_of_account=1)
            assert await store.add_passkey(make_passkey(1), max_of_account=1)
            await store.add_password_reset(b"1", PasswordReset("alice", b"", NOW))
            assert await store.delete_credentials_of({"alice": None}) == 3
            assert await tokens_in(store) == await passkeys_in(store) == []

    @ensureDeferred
    async def test_purge_keeps_expired_tokens_for_a_while(self, store: LoginStore) -> None:
        for number, expires in enumerate([NOW, NOW + 1, NOW + 2, math.inf]):
            await store.add_token(id_hash_of(number), make_token(number, expires=expires))
            await store.add_password_reset(b"%d" % number, PasswordReset(f"{number}", b"", expires))
        await store.add_passkey(make_passkey(1))

        async def left_at(now: float) -> tuple[list[str], list[bool]]:
            await store.purge_expired(now=now, wall=now)
            resets = [await store.get_password_reset(b"%d" % number) is not None for number in range(4)]
            return await tokens_in(store), resets

        assert await left_at(NOW - 1) == (["token0", "token1", "token2", "token3"], [True, True, True, True])
        assert await left_at(NOW + 1) == (["token0", "token1", "token2", "token3"], [False, False, True, True])
        assert await left_at(NOW + TOKENS_KEPT_S + 1) == (["token2", "token3"], [False, False, False, True])
        assert await store.get_token(id_hash_of(1)) is None
        assert await store.get_token(id_hash_of(3)) == make_token(3, expires=math.inf)
        assert await left_at(NOW + 1e9) == (["token3"], [False, False, False, True])
        assert await passkeys_in(store) == ["key1"]
        # What is purged is not in the way.
        assert await store.add_token(id_hash_of(1), make_token(1), max_of_account=2)
        await store.add_password_reset(b"1", PasswordReset("1", b"", NOW))

    @ensureDeferred
    async def test_many_expired_credentials_are_purged(self, store: LoginStore) -> None:
        adding = []
        for number in range(1200):
            token = make_token(number, f"account{number}", expires=NOW)
            adding.append(started(store.add_token(id_hash_of(number), token)))
            reset = PasswordReset(token.account, b"", NOW)
            adding.append(started(store.add_password_reset(id_hash_of(number), reset)))
        await gatherResults(adding)
        await store.purge_expired(now=NOW + TOKENS_KEPT_S, wall=NOW)
        assert await store.list_tokens() == []
        assert [await store.get_password_reset(id_hash_of(number)) for number in range(1200)] == [None] * 1200

    @ensureDeferred
    async def test_clock_goes_with_tokens_that_expire(self, store: LoginStore) -> None:
        await store.add_token(id_hash_of(1), make_token(1, expires=NOW + DAY_S))
        assert await store.purge_expired(now=NOW, wall=NOW) == NOW
        assert await store.purge_expired(now=NOW - 7200, wall=NOW) == NOW

    @ensureDeferred
    async def test_each_write_of_a_token_is_visible_at_once(self, store: LoginStore) -> None:
        """No cached result is returned after a write."""
        for n in range(20):
            assert await store.get_token(id_hash_of(1)) is None
            await store.add_token(id_hash_of(1), make_token(n))
            for _ in range(2):
                assert await store.get_token(id_hash_of(1)) == make_token(n)
            await store.use_token(id_hash_of(1), used=NOW + n)
            assert await store.get_token(id_hash_of(1)) == make_token(n, used=NOW + n)
            if n % 2:
                await store.delete_tokens([f"token{n}"])
            else:
                await store.delete_credentials_of({"alice": None})

    @ensureDeferred
    async def test_credentials_of_a_stopped_store_are_unavailable(self, make_store: MakeLoginStore) -> None:
        store = await open_store(make_store)
        await store.add_token(id_hash_of(1), make_token(1))
        assert await store.get_token(id_hash_of(1)) is not None
        await store.stop()
        for call in (
            store.add_token(id_hash_of(2), make_token(2)),
            store.get_token(id_hash_of(1)),
            store.list_tokens(),
            store.use_token(id_hash_of(1), used=NOW),
            store.delete_tokens(["token1"]),
            store.add_passkey(make_passkey(1)),
            store.get_passkey(id_hash_of(1)),
            store.list_passkeys("alice"),
            store.use_passkey(id_hash_of(1), used=NOW, sign_count=1, backed_up=False),
            store.rename_passkey("key1", "", account="alice"),
            store.delete_passkeys(["key1"]),
            store.add_password_reset(b"1", PasswordReset("alice", b"", NOW)),
            store.get_password_reset(b"1"),
            store.use_password_reset(b"1"),
            store.delete_credentials_of({"alice": None}),
            store.list_sessions_of("alice"),
        ):
            assert isinstance(await error_of(call), StoreUnavailableError)


class LoginStoreContract(CredentialStoreContract):
    """Sessions, nonce counts, failed logins and service keys."""

    @ensureDeferred
    async def test_service_key_is_random_and_stays_the_same(self, store: LoginStore) -> None:
        keys = [await store.key(name) for name in ("one", "two", "one", "", "ü")]
        assert keys[0] == keys[2]
        assert len(set(keys)) == 4
        assert {len(key) for key in keys} == {KEY_BYTES}

    @ensureDeferred
    async def test_concurrent_calls_get_the_same_new_service_key(self, store: LoginStore) -> None:
        assert len(set(await gatherResults([started(store.key("new")) for _ in range(20)]))) == 1

    @ensureDeferred
    async def test_nonce_count_is_accepted_once_in_any_order(self, store: LoginStore) -> None:
        for count in (5, 3, 1, 2**32 - 1, 0, 4):
            assert await store.use_nonce(b"nonce", count, expires=NOW)
        for count in (0, 1, 3, 4, 5, 2**32 - 1):
            assert not await store.use_nonce(b"nonce", count, expires=NOW)
        assert await store.use_nonce(b"other", 1, expires=NOW)
        assert await store.use_nonce(b"nonce", 2, expires=NOW)

    @ensureDeferred
    async def test_used_nonce_count_is_refused_whatever_its_expiry(self, store: LoginStore) -> None:
        """That of a DPoP proof depends on its `iat`, and on settings that may change."""
        assert await store.use_nonce(b"nonce", 1, expires=NOW)
        for expires in (NOW, NOW + 1, NOW - 1, NOW + 3600):
            assert not await store.use_nonce(b"nonce", 1, expires=expires)

    @ensureDeferred
    async def test_one_of_concurrent_uses_of_a_nonce_count_is_accepted(self, store: LoginStore) -> None:
        firsts = await gatherResults([started(store.use_nonce(b"nonce", 1, expires=NOW)) for _ in range(50)])
        assert firsts.count(True) == 1

    @ensureDeferred
    async def test_concurrent_uses_of_nonces_have_their_own_results(self, store: LoginStore) -> None:
        uses = [(b"nonce", 1), (b"nonce", 2), (b"other", 2), (b"nonce", 3), (b"nonce", 4)]
        results = await gatherResults([started(store.use_nonce(nonce, n, expires=NOW)) for nonce, n in uses])
        assert results == [True] * 5
        uses = [(b"nonce", 5), (b"nonce", 3), (b"other", 3), (b"other", 2), (b"nonce", 6), (b"third", 1)]
        results = await gatherResults([started(store.use_nonce(nonce, n, expires=NOW)) for nonce, n in uses])
        assert results == [True, False, True, False, True, True]
        assert not any(await gatherResults([started(store.use_nonce(nonce, n, expires=NOW)) for nonce, n in uses]))

    @ensureDeferred
    async def test_hundreds_of_concurrent_uses_of_a_nonce_have_their_own_results(self, store: LoginStore) -> None:
        assert await store.use_nonce(b"nonce", 300, expires=NOW)
        uses = [store.use_nonce(b"nonce", n, expires=NOW) for n in (*range(1, 500), 450)]
        results = await gatherResults([started(use) for use in uses])
        assert results == [n != 300 for n in range(1, 500)] + [False]

    @ensureDeferred
    async def test_uses_of_nonces_with_gaps_are_accepted_once_each(self, store: LoginStore) -> None:
        draw, used = random.Random(1), set[tuple[bytes, int]]()
        for _ in range(10):
            uses = [
                (b"nonce %d" % draw.randrange(40), draw.choice((1, 50, 5000)) * draw.randrange(9)) for _ in range(150)
            ]
            expected = [use not in uses[:at] and use not in used for at, use in enumerate(uses)]
            found = await gatherResults([started(store.use_nonce(nonce, n, expires=NOW)) for nonce, n in uses])
            assert found == expected
            used.update(uses)

    @ensureDeferred
    async def test_expired_nonce_is_kept_for_a_while(self, store: LoginStore) -> None:
        """A node whose clock is behind still accepts it."""
        await store.use_nonce(b"nonce", 1, expires=NOW)
        await store.purge_expired(now=NOW + NONCE_COUNTS_KEPT_S - 1, wall=NOW + NONCE_COUNTS_KEPT_S - 1)
        assert not await store.use_nonce(b"nonce", 1, expires=NOW)
        await store.purge_expired(now=NOW + NONCE_COUNTS_KEPT_S, wall=NOW)
        assert not await store.use_nonce(b"nonce", 1, expires=NOW)

    @ensureDeferred
    async def test_nonce_whose_counts_may_be_removed_is_refused(self, store: LoginStore) -> None:
        assert await store.use_nonce(b"nonce", 1, expires=NOW)
        for later in (NONCE_COUNTS_KEPT_S, 0, -7200):  # of a process whose clock is behind
            await store.purge_expired(now=NOW + later, wall=NOW)
            uses = [store.use_nonce(name, 2, expires=NOW) for name in (b"nonce", b"other")]
            assert await gatherResults(map(started, uses)) == [False, False]
        uses = [store.use_nonce(b"%d" % n, 1, expires=NOW + (0.001 if n % 3 else 0)) for n in range(9)]
        assert await gatherResults(map(started, uses)) == [n % 3 > 0 for n in range(9)]

    @ensureDeferred
    async def test_proof_is_accepted_once_whatever_its_expiry(self, store: LoginStore) -> None:
        assert await store.use_proof(b"proof", expires=NOW)
        uses = [store.use_proof(b"proof", expires=NOW + more) for more in (0, -1, 1)]
        uses += [store.use_proof(b"other", expires=NOW) for _ in range(20)]
        assert await gatherResults(map(started, uses)) == [False] * 3 + [True] + [False] * 19

    @ensureDeferred
    async def test_proof_is_removed_when_it_has_expired_by_both_clocks(self, store: LoginStore) -> None:
        assert await store.use_proof(b"proof", expires=NOW)
        for now, wall in ((3600, 0), (0, 3600), (3600, 3600)):
            await store.purge_expired(now=NOW + now, wall=NOW + wall)
            assert not await store.use_proof(b"proof", expires=NOW)
            # None is removed but the first at last: only one that expires as early may have been used.
            other = store.use_proof(b"%d, %d" % (now, wall), expires=NOW - 1)
            assert await other == (not now or not wall)
        assert await store.use_proof(b"later", expires=NOW + 0.001)

    @ensureDeferred
    async def test_clock_goes_with_the_latest_purge(self, store: LoginStore) -> None:
        await store.add_failure(KEYS, now=NOW, expires=NOW + 600)
        reached = [await store.purge_expired(now=NOW + later, wall=NOW) for later in (0, CLOCK_KEPT_S, -7200, 600)]
        assert reached == [NOW, NOW + CLOCK_KEPT_S, NOW + CLOCK_KEPT_S, NOW + 600]

    @ensureDeferred
    async def test_session_is_stored_exactly(self, store: LoginStore) -> None:
        for number, session in enumerate(
            [
                make_session(),
                make_session("jürgen 🚀 '\"", b"\0\xff\n"),
                Session("bob", b"", NOW, NOW + 0.1, NOW + 1 / 3, NOW + 1e6),
                Session("https://idp.example#é", b"p", NOW, NOW, NOW, NOW, "Zoë '\"\n", "idp", "a:b %", "s\U0001f680"),
                Session("https://idp.example#1", b"p", NOW, NOW, NOW, NOW, provider="idp", subject="1"),
                Session("https://idp.example#2", b"p", NOW, NOW, NOW, NOW, sid="only"),
                replace(make_session(), authenticated=NOW + 1 / 3, address="2001:db8::1", browser="Firefox on Linux"),
                replace(make_session(), scheme="passkey"),
                replace(make_session(), browser='\u202e "\n'),
                Session("bob", b"p", NOW, NOW, NOW, NOW, device_key='{"kty":"EC"}', bound=NOW + 1 / 3),
            ]
        ):
            assert await store.get_session(id_hash_of(number)) is None
            await store.add_session(id_hash_of(number), session)
            assert await store.get_session(id_hash_of(number)) == session
            assert session in await store.list_sessions()
        assert await store.get_session(b"") is None

    @ensureDeferred
    async def test_sessions_are_listed_oldest_first(self, store: LoginStore) -> None:
        assert await store.list_sessions() == []
        ages = [3, 1, 2]
        for number in ages:
            await store.add_session(id_hash_of(number), make_session(f"user{number}", created=NOW + number))
        assert [session.username for session in await store.list_sessions()] == ["user1", "user2", "user3"]

    @ensureDeferred
    async def test_new_session_replaces_old_ones(self, store: LoginStore) -> None:
        for number in range(4):
            await store.add_session(id_hash_of(number), make_session())
        await store.add_session(id_hash_of(9), make_session("bob"), in_place_of=[id_hash_of(n) for n in (0, 2, 77)])
        found = [await store.get_session(id_hash_of(number)) is not None for number in (0, 1, 2, 3, 9)]
        assert found == [False, True, False, True, True]

    @ensureDeferred
    async def test_proof_of_a_user_changes_one_session(self, store: LoginStore) -> None:
        for number in range(3):
            await store.add_session(id_hash_of(number), make_session(created=NOW + number), id_token="e.y.J")
        await store.prove_session(id_hash_of(0), authenticated=NOW + 1 / 3, fingerprint=b"second")
        await store.prove_session(id_hash_of(1), authenticated=NOW + 9)
        first, second, third = (make_session(created=NOW + number) for number in range(3))
        assert await store.list_sessions_of("alice") == {
            id_hash_of(0): replace(first, authenticated=NOW + 1 / 3, fingerprint=b"second"),
            id_hash_of(1): replace(second, authenticated=NOW + 9),
            id_hash_of(2): third,
        }
        assert await store.get_session(id_hash_of(1)) == replace(second, authenticated=NOW + 9)
        assert await store.get_id_token(id_hash_of(0)) == "e.y.J"

    @ensureDeferred
    async def test_ended_session_is_not_proved(self, store: LoginStore) -> None:
        await store.add_session(id_hash_of(1), make_session())
        await store.delete_sessions([id_hash_of(1)])
        await store.prove_session(id_hash_of(1), authenticated=NOW, fingerprint=b"second")
        assert await store.list_sessions() == []
        assert await store.get_session(id_hash_of(1)) is None

    @ensureDeferred
    async def test_sessions_of_a_user_are_listed_oldest_first(self, store: LoginStore) -> None:
        assert await store.list_sessions_of("alice") == {}
        for number in (3, 1, 2):
            await store.add_session(id_hash_of(number), make_session(created=NOW + number))
        await store.add_session(id_hash_of(4), make_session("bob"))
        await store.renew_session(id_hash_of(1), seen=NOW + 60, expires=NOW + 1860)
        await store.delete_sessions([id_hash_of(2)])
        found = await store.list_sessions_of("alice")
        assert [*found] == [id_hash_of(1), id_hash_of(3)]
        assert (found[id_hash_of(1)].seen, found[id_hash_of(3)]) == (NOW + 60, make_session(created=NOW + 3))

    @ensureDeferred
    async def test_oldest_session_of_a_user_ends_above_the_limit(self, store: LoginStore) -> None:
        await store.add_session(id_hash_of(50), make_session("bob", created=NOW - 100))
        for number, created in enumerate([3, 1, 2, 4, 5]):
            await store.add_session(id_hash_of(number), make_session(created=NOW + created), max_of_user=3)
        left = [session.created - NOW for session in await store.list_sessions()]
        assert left == [-100, 3, 4, 5]
        for number in (1, 2):
            assert await store.get_session(id_hash_of(number)) is None
        # The new one stays, even by a clock that is behind.
        await store.add_session(id_hash_of(9), make_session(created=NOW), max_of_user=3)
        assert [session.created - NOW for session in await store.list_sessions()] == [-100, 0, 4, 5]
        # A replaced one has made room, and a lower limit ends several.
        await store.add_session(
            id_hash_of(10), make_session(created=NOW + 6), in_place_of=[id_hash_of(4)], max_of_user=3
        )
        assert [session.created - NOW for session in await store.list_sessions()] == [-100, 0, 4, 6]
        await store.add_session(id_hash_of(11), make_session(created=NOW + 7), max_of_user=1)
        assert [session.created - NOW for session in await store.list_sessions()] == [-100, 7]

    @ensureDeferred
    async def test_expired_session_ends_before_older_ones(self, store: LoginStore) -> None:
        for number, expires in enumerate([NOW + 500, NOW + 40, NOW + 500]):
            session = Session("alice", b"", NOW + number, NOW + number, expires, NOW + 500)
            await store.add_session(id_hash_of(number), session)
        await store.add_session(id_hash_of(3), make_session(created=NOW + 40), max_of_user=3)
        assert [session.created - NOW for session in await store.list_sessions()] == [0, 2, 40]

    @ensureDeferred
    async def test_user_has_a_hundred_sessions_by_default(self, store: LoginStore) -> None:
        for number in range(103):
            await store.add_session(id_hash_of(number), make_session(created=NOW + number))
        sessions = await store.list_sessions()
        assert (len(sessions), sessions[0].created) == (100, NOW + 3)

    @ensureDeferred
    async def test_session_is_renewed(self, store: LoginStore) -> None:
        for number in (1, 2):
            await store.add_session(id_hash_of(number), make_session())
        await store.renew_session(id_hash_of(1), seen=NOW + 60, expires=NOW + 1860)
        assert await store.get_session(id_hash_of(1)) == Session(
            "alice", b"first", NOW, NOW + 60, NOW + 1860, NOW + 43200
        )
        assert await store.get_session(id_hash_of(2)) == make_session()

    @ensureDeferred
    async def test_ended_session_is_not_renewed(self, store: LoginStore) -> None:
        await store.add_session(id_hash_of(1), make_session())
        await gatherResults(
            [
                started(store.delete_sessions([id_hash_of(1)])),
                started(store.renew_session(id_hash_of(1), seen=NOW, expires=NOW + 9)),
            ]
        )
        await store.renew_session(id_hash_of(2), seen=NOW, expires=NOW + 9)
        assert await store.get_session(id_hash_of(1)) is None
        assert await store.list_sessions() == []

    @ensureDeferred
    async def test_session_gets_one_key(self, store: LoginStore) -> None:
        await store.add_session(id_hash_of(1), make_session())
        assert (
            await gatherResults([started(store.register_device(id_hash_of(1), "one")) for _ in range(3)]) == [True] * 3
        )
        assert not await store.register_device(id_hash_of(1), "other")
        assert await store.get_session(id_hash_of(1)) == replace(make_session(), device_key="one")
        assert not await store.register_device(id_hash_of(2), "one")
        assert await store.get_session(id_hash_of(2)) is None

    @ensureDeferred
    async def test_first_proof_binds_a_session_with_a_key(self, store: LoginStore) -> None:
        for number in (1, 2):
            await store.add_session(id_hash_of(number), make_session(f"user{number}"))
        await store.register_device(id_hash_of(1), "key")
        for number in (1, 2, 3):
            for later in (1 / 3, 2):
                is_first = (number, later) == (1, 1 / 3)
                assert await store.bind_session(id_hash_of(number), bound=NOW + later) is is_first
        bound = replace(make_session("user1"), device_key="key", bound=NOW + 1 / 3)
        assert await store.get_session(id_hash_of(1)) == bound
        assert await store.get_session(id_hash_of(2)) == make_session("user2")
        assert await store.get_session(id_hash_of(3)) is None
        await store.renew_session(id_hash_of(1), seen=NOW + 60, expires=NOW + 1860)
        assert await store.get_session(id_hash_of(1)) == replace(bound, seen=NOW + 60, expires=NOW + 1860)

    @ensureDeferred
    async def test_user_stays_one_who_had_a_bound_session(self, store: LoginStore) -> None:
        await store.add_session(id_hash_of(1), make_session("jürgen"))
        await store.register_device(id_hash_of(1), "key")
        assert not await store.was_bound("jürgen")
        await store.bind_session(id_hash_of(1), bound=NOW)
        await store.delete_all_sessions()
        assert await store.was_bound("jürgen")
        assert not await store.was_bound("alice")

    @ensureDeferred
    async def test_deletion_of_sessions_returns_their_number(self, store: LoginStore) -> None:
        for number in range(5):
            await store.add_session(id_hash_of(number), make_session())
        assert await store.delete_sessions([]) == 0
        assert await store.delete_sessions([id_hash_of(7)]) == 0
        assert await store.delete_sessions([id_hash_of(0), id_hash_of(1), id_hash_of(7)]) == 2
        assert await store.delete_sessions([id_hash_of(0)]) == 0
        assert await store.delete_all_sessions() == 3
        assert await store.delete_all_sessions() == 0
        assert await store.list_sessions() == []

    @ensureDeferred
    async def test_sessions_of_a_user_with_another_fingerprint_end(self, store: LoginStore) -> None:
        for number, (name, fingerprint) in enumerate(
            [("alice", b"old"), ("alice", b"new"), ("bob", b"old"), ("bob", b"new"), ("carol", b"old")]
        ):
            await store.add_session(id_hash_of(number), make_session(name, fingerprint))
        assert await store.delete_sessions_of({}) == 0
        assert await store.delete_sessions_of({"unknown": None, "alice": b"new", "bob": None}) == 3
        left = {(session.username, session.fingerprint) for session in await store.list_sessions()}
        assert left == {("alice", b"new"), ("carol", b"old")}

    @ensureDeferred
    async def test_renewed_session_keeps_what_its_provider_said(self, store: LoginStore) -> None:
        session = make_provider_session("1", "s")
        await store.add_session(id_hash_of(1), session, id_token=ID_TOKEN)
        await store.renew_session(id_hash_of(1), seen=NOW + 60, expires=NOW + 1860)
        renewed = replace(session, seen=NOW + 60, expires=NOW + 1860)
        assert await store.get_session(id_hash_of(1)) == renewed
        assert await store.get_id_token(id_hash_of(1)) == ID_TOKEN
        assert await store.end_sessions_at(b"provider", subject="1") == 1

    @ensureDeferred
    async def test_id_token_is_kept_exactly_and_with_its_session_only(self, store: LoginStore) -> None:
        await store.add_session(id_hash_of(1), make_provider_session("1", "s"), id_token=ID_TOKEN)
        await store.add_session(id_hash_of(2), make_provider_session("1", "s"))
        found = [await store.get_id_token(id_hash) for id_hash in (id_hash_of(1), id_hash_of(2), id_hash_of(3), b"")]
        assert found == [ID_TOKEN, "", "", ""]

    @ensureDeferred
    async def test_id_token_goes_with_its_session(self, store: LoginStore) -> None:
        for how, end in ENDS.items():
            await self._check_end(store, how, end)

    async def _check_end(self, store: LoginStore, how: str, end: EndSession) -> None:
        await store.delete_all_sessions()
        await store.add_session(id_hash_of(1), make_provider_session("1", "s"), id_token=ID_TOKEN)
        await store.add_session(id_hash_of(2), replace(make_provider_session("1", "s"), expires=NOW), id_token="x")
        await end(store)
        for number in (1, 2):
            assert await store.get_session(id_hash_of(number)) is None
            assert await store.get_id_token(id_hash_of(number)) == "", how
            # No remainder comes back with the same hash, or is in its way.
            await store.add_session(id_hash_of(number), make_session())
            assert await store.get_id_token(id_hash_of(number)) == ""
        assert await store.end_sessions_at(b"provider", subject="1") == 0

    @ensureDeferred
    async def test_sessions_at_a_provider_end_by_their_claims(self, store: LoginStore) -> None:
        for subject, sid, ended in (
            ("1", "", "ab"),
            ("2", "", "cf"),
            ("", "s", "ac"),
            ("", "u", "e"),
            ("1", "s", "a"),
            ("3", "s", ""),
            ("1", "u", ""),
            ("2", "other", ""),
            ("%", "", ""),
            ("", "", ""),
        ):
            await self._check_claims(store, subject, sid, ended)

    async def _check_claims(self, store: LoginStore, subject: str, sid: str, ended: str) -> None:
        await store.delete_all_sessions()
        sessions = {
            "a": make_provider_session("1", "s"),
            "b": make_provider_session("1", "t"),
            "c": make_provider_session("2", "s"),
            "e": make_provider_session("", "u"),
            "f": make_provider_session("2", "", expires=NOW - 9),
            "g": make_provider_session("1", "s", fingerprint=b"other"),
            "h": make_provider_session("", ""),
            "i": make_session("1"),
        }
        for name, session in sessions.items():
            await store.add_session(name.encode(), session, id_token=name)
        assert await store.end_sessions_at(b"provider", subject=subject, sid=sid) == len(ended)
        left = [name for name in sessions if await store.get_session(name.encode()) is not None]
        assert left == [name for name in sessions if name not in ended], (subject, sid)
        assert [await store.get_id_token(name.encode()) for name in sessions] == [
            name if name in left else "" for name in sessions
        ]
        assert await store.end_sessions_at(b"provider", subject=subject, sid=sid) == 0

    @ensureDeferred
    async def test_session_added_after_those_at_a_provider_ended_stays(self, store: LoginStore) -> None:
        adding = [started(store.add_session(id_hash_of(n), make_provider_session("1", "s"))) for n in range(3)]
        ending = started(store.end_sessions_at(b"provider", sid="s"))
        adding += [started(store.add_session(id_hash_of(n), make_provider_session("1", "s"))) for n in range(3, 5)]
        await gatherResults(adding)
        assert await ending == 3
        found = [await store.get_session(id_hash_of(n)) is not None for n in range(5)]
        assert found == [False, False, False, True, True]

    @ensureDeferred
    async def test_failures_are_counted_for_each_key(self, store: LoginStore) -> None:
        assert await store.count_failures(KEYS, now=NOW) == {}
        assert await store.add_failure(KEYS, now=NOW, expires=NOW + 300) == dict.fromkeys(KEYS, Failures(1, NOW + 300))
        counted = await store.add_failure((b"pair2", b"address", b"account2"), now=NOW + 1, expires=NOW + 301)
        assert counted == {
            b"pair2": Failures(1, NOW + 301),
            b"address": Failures(2, NOW + 300),
            b"account2": Failures(1, NOW + 301),
        }
        assert await store.count_failures(KEYS, now=NOW + 1) == {
            b"pair": Failures(1, NOW + 300),
            b"address": Failures(2, NOW + 300),
            b"account": Failures(1, NOW + 300),
        }
        assert await store.count_failures((b"x", b"y", b"account2"), now=NOW) == {b"account2": Failures(1, NOW + 301)}

    @ensureDeferred
    async def test_failure_counts_until_it_expires_purged_or_not(self, store: LoginStore) -> None:
        for n in range(3):
            await store.add_failure(KEYS, now=NOW + n, expires=NOW + 300 + n)
        for now, left in ((NOW + 299.9, 3), (NOW + 300, 2), (NOW + 301, 1), (NOW + 302, 0), (NOW + 300, 2)):
            counted = await store.count_failures(KEYS, now=now)
            assert counted == (dict.fromkeys(KEYS, Failures(left, NOW + 303 - left)) if left else {})
        await store.purge_expired(now=NOW + 301, wall=NOW + 301)
        assert await store.count_failures(KEYS, now=NOW) == dict.fromkeys(KEYS, Failures(1, NOW + 302))

    @ensureDeferred
    async def test_failures_of_a_key_can_be_removed(self, store: LoginStore) -> None:
        await store.add_failure(KEYS, now=NOW, expires=NOW + 300)
        await store.add_failure((b"pair2", b"address", b"account"), now=NOW, expires=NOW + 300)
        await store.forget_failures(b"pair")
        await store.forget_failures(b"nothing")
        assert await store.count_failures(KEYS, now=NOW) == {
            b"address": Failures(2, NOW + 300),
            b"account": Failures(2, NOW + 300),
        }

    @ensureDeferred
    async def test_concurrent_failures_return_different_counts(self, store: LoginStore) -> None:
        results = await gatherResults([started(store.add_failure(KEYS, now=NOW, expires=NOW + 1)) for _ in range(50)])
        assert sorted(counted[b"pair"].count for counted in results) == list(range(1, 51))

    @ensureDeferred
    async def test_reservation_counts_until_released(self, store: LoginStore) -> None:
        one, other = make_reservation("one"), make_reservation("other")
        for reservation in (one, other):
            assert await store.reserve_attempt(reservation, allowed=(9, 9, 9), now=NOW) is None
        assert await store.count_failures(KEYS, now=NOW) == dict.fromkeys(KEYS, Failures(0, 0, 2))
        await store.release_attempt(one)
        assert await store.count_failures(KEYS, now=NOW) == dict.fromkeys(KEYS, Failures(0, 0, 1))
        await store.release_attempt(other)
        await store.release_attempt(other)
        assert await store.count_failures(KEYS, now=NOW) == {}

    @ensureDeferred
    async def test_failure_replaces_its_reservation(self, store: LoginStore) -> None:
        one, other = make_reservation("one"), make_reservation("other")
        for reservation in (one, other):
            await store.reserve_attempt(reservation, allowed=(9, 9, 9), now=NOW)
        counted = await store.add_failure(KEYS, now=NOW, expires=NOW + 300, reservation=one)
        assert counted == dict.fromkeys(KEYS, Failures(1, NOW + 300, 1))
        assert await store.count_failures(KEYS, now=NOW) == counted
        await store.release_attempt(other)
        assert await store.count_failures(KEYS, now=NOW) == dict.fromkeys(KEYS, Failures(1, NOW + 300, 0))

    @pytest.mark.parametrize("full", range(3))
    @ensureDeferred
    async def test_reservation_is_refused_at_the_limit_of_any_key(self, store: LoginStore, full: int) -> None:
        await store.add_failure(KEYS, now=NOW, expires=NOW + 300)
        await store.reserve_attempt(make_reservation("one"), allowed=(9, 9, 9), now=NOW)
        counted = dict.fromkeys(KEYS, Failures(1, NOW + 300, 1))
        allowed = [2 if n == full else 3 for n in range(3)]
        assert await store.reserve_attempt(make_reservation("two"), allowed=allowed, now=NOW) == counted
        assert await store.count_failures(KEYS, now=NOW) == counted  # nothing of it was kept
        assert await store.reserve_attempt(make_reservation("two"), allowed=(3, 3, 3), now=NOW) is None

    @ensureDeferred
    async def test_reservation_may_have_one_key(self, store: LoginStore) -> None:
        reservation = Reservation("one", (b"address",), NOW + 60)
        assert await store.reserve_attempt(reservation, allowed=(1,), now=NOW) is None
        counted = await store.reserve_attempt(make_reservation("two"), allowed=(1, 1, 1), now=NOW)
        assert counted == {b"address": Failures(0, 0, 1)}
        await store.release_attempt(reservation)
        assert await store.count_failures(KEYS, now=NOW) == {}

    @ensureDeferred
    async def test_expired_reservation_does_not_count_and_is_removed(self, store: LoginStore) -> None:
        for n in range(3):
            await store.reserve_attempt(make_reservation(f"{n}", NOW + 60 + n), allowed=(9, 9, 9), now=NOW)
        for now, left in ((NOW + 59.9, 3), (NOW + 60, 2), (NOW + 61, 1), (NOW + 62, 0)):
            counted = await store.count_failures(KEYS, now=now)
            assert counted == (dict.fromkeys(KEYS, Failures(0, 0, left)) if left else {})
        assert await store.reserve_attempt(make_reservation("new", NOW + 99), allowed=(1, 1, 1), now=NOW + 62) is None
        await store.purge_expired(now=NOW + 61, wall=NOW + 61)
        assert await store.count_failures(KEYS, now=NOW) == dict.fromkeys(KEYS, Failures(0, 0, 2))

    @ensureDeferred
    async def test_removal_of_failures_keeps_reservations(self, store: LoginStore) -> None:
        await store.add_failure(KEYS, now=NOW, expires=NOW + 300)
        await store.reserve_attempt(make_reservation("one"), allowed=(9, 9, 9), now=NOW)
        await store.forget_failures(KEYS[0])
        assert (await store.count_failures(KEYS, now=NOW))[KEYS[0]] == Failures(0, 0, 1)

    @ensureDeferred
    async def test_concurrent_reservations_stay_within_the_limit(self, store: LoginStore) -> None:
        await store.add_failure(KEYS, now=NOW, expires=NOW + 300)
        reservations = [make_reservation(f"{n}") for n in range(200)]
        made = await gatherResults(
            [started(store.reserve_attempt(one, allowed=(10, 50, 100), now=NOW)) for one in reservations]
        )
        assert made.count(None) == 9
        assert await store.count_failures(KEYS, now=NOW) == dict.fromkeys(KEYS, Failures(1, NOW + 300, 9))

    @ensureDeferred
    async def test_purge_removes_only_expired_entries(self, store: LoginStore) -> None:
        key = await store.key("kept")
        for number in range(3):
            session = Session("alice", b"", NOW, NOW, NOW + number, NOW + 100)
            await store.add_session(id_hash_of(number), session)
        await store.purge_expired(now=NOW - 1, wall=NOW - 1)
        assert len(await store.list_sessions()) == 3
        await store.purge_expired(now=NOW + 1, wall=NOW + 1)
        assert [session.expires for session in await store.list_sessions()] == [NOW + 2]
        assert await store.get_session(id_hash_of(2)) is not None
        await store.purge_expired(now=NOW + 1e9, wall=NOW + 1e9)
        assert await store.list_sessions() == []
        assert await store.key("kept") == key

    @ensureDeferred
    async def test_each_write_is_visible_at_once(self, store: LoginStore) -> None:
        """No cached result is returned after a write."""
        for n in range(20):
            assert await store.get_session(id_hash_of(1)) is None
            await store.add_session(id_hash_of(1), make_session(created=NOW + n))
            for _ in range(2):
                assert await store.get_session(id_hash_of(1)) == make_session(created=NOW + n)
            await store.renew_session(id_hash_of(1), seen=NOW, expires=NOW + n)
            renewed = await store.get_session(id_hash_of(1))
            assert renewed is not None
            assert renewed.expires == NOW + n
            await store.delete_all_sessions()
            assert len(await store.count_failures(KEYS, now=NOW)) == (0 if n == 0 else 3)
            counted = await store.add_failure(KEYS, now=NOW, expires=NOW + 1)
            assert counted == await store.count_failures(KEYS, now=NOW)

    @ensureDeferred
    async def test_cached_sessions_and_tokens_are_as_stored(self, store: LoginStore) -> None:
        for _ in range(2):
            assert await store.get_cached_session(id_hash_of(1)) is None
            assert await store.get_cached_token(id_hash_of(1)) is None
        await store.add_session(id_hash_of(1), make_session())
        await store.add_token(id_hash_of(1), make_token(1))
        for _ in range(2):
            assert await store.get_cached_session(id_hash_of(1)) == make_session()
            assert await store.get_cached_token(id_hash_of(1)) == make_token(1)
        await store.renew_session(id_hash_of(1), seen=NOW + 60, expires=NOW + 1860)
        await store.use_token(id_hash_of(1), used=NOW + 60)
        store.clear_cached_logins()
        renewed = replace(make_session(), seen=NOW + 60, expires=NOW + 1860)
        assert await store.get_cached_session(id_hash_of(1)) == renewed
        assert await store.get_cached_token(id_hash_of(1)) == make_token(1, used=NOW + 60)

    @ensureDeferred
    async def test_login_state_of_a_store_not_started_is_unavailable(self, make_store: MakeLoginStore) -> None:
        store = make_store()
        for call in (
            store.key("x"),
            store.get_session(id_hash_of(1)),
            store.get_cached_session(id_hash_of(1)),
            store.get_id_token(id_hash_of(1)),
            store.list_sessions(),
            store.list_sessions_of("alice"),
            store.get_token(id_hash_of(1)),
            store.get_cached_token(id_hash_of(1)),
            store.list_tokens(),
            store.get_passkey(id_hash_of(1)),
            store.list_passkeys(),
            store.get_password_reset(b"1"),
            store.count_failures(KEYS, now=NOW),
            store.purge_expired(now=NOW, wall=NOW),
        ):
            assert isinstance(await error_of(call), StoreUnavailableError)

    @ensureDeferred
    async def test_login_state_of_a_stopped_store_is_unavailable(self, make_store: MakeLoginStore) -> None:
        store = await open_store(make_store)
        await store.add_session(id_hash_of(1), make_session())
        assert await store.get_session(id_hash_of(1)) is not None
        await store.count_failures(KEYS, now=NOW)
        await store.stop()
        for call in (
            store.get_session(id_hash_of(1)),
            store.count_failures(KEYS, now=NOW),
            store.key("never asked for"),
            store.use_nonce(b"nonce", 1, expires=NOW),
            store.add_session(id_hash_of(2), make_session()),
            store.renew_session(id_hash_of(1), seen=NOW, expires=NOW),
            store.delete_sessions([id_hash_of(1)]),
            store.end_sessions_at(b"provider", sid="s"),
            store.add_failure(KEYS, now=NOW, expires=NOW),
            store.reserve_attempt(make_reservation("one"), allowed=(9, 9, 9), now=NOW),
            store.release_attempt(make_reservation("one")),
            store.purge_expired(now=NOW, wall=NOW),
        ):
            assert isinstance(await error_of(call), StoreUnavailableError)


class LastingLoginStoreContract(LoginStoreContract):
    """In addition: the state survives the process, and stores on one place share it."""

    @ensureDeferred
    async def test_login_state_survives_a_restart(self, make_store: MakeLoginStore) -> None:
        store = await open_store(make_store)
        key = await store.key("one")
        assert await store.use_nonce(b"nonce", 7, expires=NOW)
        await store.add_session(id_hash_of(1), make_session())
        await store.add_session(id_hash_of(2), make_session("bob"))
        await store.add_session(id_hash_of(3), make_provider_session("1", "s"), id_token=ID_TOKEN)
        await store.renew_session(id_hash_of(1), seen=NOW + 60, expires=NOW + 1860)
        await store.delete_sessions([id_hash_of(2)])
        await store.add_failure(KEYS, now=NOW, expires=NOW + 300)
        await store.forget_failures(b"pair")
        await store.stop()
        again = await open_store(make_store)
        assert await again.key("one") == key
        assert not await again.use_nonce(b"nonce", 7, expires=NOW)
        assert await again.use_nonce(b"nonce", 8, expires=NOW)
        session = await again.get_session(id_hash_of(1))
        assert session is not None
        assert (session.username, session.seen, session.expires) == ("alice", NOW + 60, NOW + 1860)
        assert await again.get_session(id_hash_of(2)) is None
        assert await again.get_session(id_hash_of(3)) == make_provider_session("1", "s")
        assert await again.get_id_token(id_hash_of(3)) == ID_TOKEN
        assert await again.end_sessions_at(b"provider", sid="s") == 1
        left = await again.count_failures(KEYS, now=NOW)
        assert left == {key: Failures(1, NOW + 300) for key in (b"address", b"account")}
        await again.stop()

    @ensureDeferred
    async def test_tokens_that_never_expire_and_passkeys_keep_no_clock(self, make_store: MakeLoginStore) -> None:
        """An idle store is not written."""
        store = await open_store(make_store)
        await store.add_token(id_hash_of(1), make_token(1, expires=math.inf))
        await store.add_passkey(make_passkey(1))
        assert await store.purge_expired(now=NOW, wall=NOW) == 0
        await store.add_password_reset(b"1", PasswordReset("alice", b"", NOW + 1))
        assert await store.purge_expired(now=NOW, wall=NOW) == NOW
        await store.stop()

    @ensureDeferred
    async def test_nothing_used_and_removed_is_accepted_after_a_restart(self, make_store: MakeLoginStore) -> None:
        store, other = await open_store(make_store), await open_store(make_store)
        assert await store.use_nonce(b"nonce", 1, expires=NOW)
        assert await store.use_proof(b"proof", expires=NOW)
        assert await store.purge_expired(now=NOW + 3600, wall=NOW + 3600) == NOW + 3600
        await store.stop()
        for one in (other, await open_store(make_store)):
            assert not await one.use_nonce(b"nonce", 1, expires=NOW)
            assert not await one.use_proof(b"proof", expires=NOW)
            assert await one.purge_expired(now=NOW, wall=NOW) == NOW + 3600
            await one.stop()

    @ensureDeferred
    async def test_stores_on_one_place_share_login_state_at_once(self, make_store: MakeLoginStore) -> None:
        stores = here, there = await open_store(make_store), await open_store(make_store)
        made = await gatherResults([started(store.key(name)) for name in ("one", "two") for store in stores])
        assert made[0] == made[1] != made[2] == made[3]
        for n in range(10):
            for store, other in (stores, stores[::-1]):
                for looking in stores:
                    assert await looking.get_session(id_hash_of(1)) is None
                await store.add_session(id_hash_of(1), make_session())
                assert await other.get_session(id_hash_of(1)) == make_session()
                await other.renew_session(id_hash_of(1), seen=NOW, expires=NOW + n)
                renewed = await store.get_session(id_hash_of(1))
                assert renewed is not None
                assert renewed.expires == NOW + n
                assert await store.delete_all_sessions() == 1
                assert await store.use_nonce(b"nonce", n, expires=NOW) == (store is here)
                counted = await other.add_failure(KEYS, now=NOW, expires=NOW + 1)
                assert counted == await store.count_failures(KEYS, now=NOW)
        both = [started(store.use_nonce(b"raced", count, expires=NOW)) for count in range(20) for store in stores]
        assert (await gatherResults(both)).count(True) == 20
        await here.stop()
        await there.stop()

    @ensureDeferred
    async def test_stores_on_one_place_limit_sessions_together(self, make_store: MakeLoginStore) -> None:
        stores = here, there = await open_store(make_store), await open_store(make_store)
        adding = [
            started(stores[n % 2].add_session(id_hash_of(n), make_session(created=NOW + n % 7), max_of_user=10))
            for n in range(60)
        ]
        await gatherResults(adding)
        for store in stores:
            assert len(await store.list_sessions()) == 10
            found = [await store.get_session(id_hash_of(n)) is not None for n in range(60)]
            assert found.count(True) == 10
        await here.stop()
        await there.stop()

    @ensureDeferred
    async def test_stores_on_one_place_give_a_session_one_key(self, make_store: MakeLoginStore) -> None:
        stores = here, there = await open_store(make_store), await open_store(make_store)
        for n in range(5):
            await here.add_session(id_hash_of(n), make_session())
            assert await there.get_session(id_hash_of(n)) == make_session()  # which is in its cache
            registering = [started(store.register_device(id_hash_of(n), f"key {k}")) for k, store in enumerate(stores)]
            won = await gatherResults(registering)
            assert sorted(won) == [False, True]
            await stores[n % 2].bind_session(id_hash_of(n), bound=NOW)
            for store in stores:
                found = await store.get_session(id_hash_of(n))
                assert found == replace(make_session(), device_key=f"key {won.index(True)}", bound=NOW)
                assert await store.was_bound("alice")
        await here.stop()
        await there.stop()

    @ensureDeferred
    async def test_stores_on_one_place_end_sessions_at_a_provider_together(self, make_store: MakeLoginStore) -> None:
        stores = here, there = await open_store(make_store), await open_store(make_store)
        for n in range(6):
            await stores[n % 2].add_session(id_hash_of(n), make_provider_session("1", f"{n % 3}"), id_token=ID_TOKEN)
            assert await stores[1 - n % 2].get_session(id_hash_of(n)) is not None
            assert await stores[1 - n % 2].get_id_token(id_hash_of(n)) == ID_TOKEN
        ending = [started(store.end_sessions_at(b"provider", subject="1", sid="2")) for store in stores]
        assert sorted(await gatherResults(ending)) == [0, 2]
        for store in stores:
            found = [await store.get_session(id_hash_of(n)) is not None for n in range(6)]
            assert found == [True, True, False, True, True, False]
            assert await store.get_id_token(id_hash_of(2)) == ""
        # Each session has ended, or was added later: none is half there.
        adding = [
            started(stores[n % 2].add_session(id_hash_of(n), make_provider_session("2", "x"), id_token=ID_TOKEN))
            for n in range(10, 50)
        ]
        ended = sum(await gatherResults([started(store.end_sessions_at(b"provider", sid="x")) for store in stores]))
        await gatherResults(adding)
        left = [n for n in range(10, 50) if await here.get_session(id_hash_of(n)) is not None]
        assert len(left) == 40 - ended
        assert [n for n in range(10, 50) if await there.get_id_token(id_hash_of(n))] == left
        assert await there.end_sessions_at(b"provider", subject="2") == len(left)
        await here.stop()
        await there.stop()

    @ensureDeferred
    async def test_stores_on_one_place_share_reservations(self, make_store: MakeLoginStore) -> None:
        stores = here, there = await open_store(make_store), await open_store(make_store)
        reserving = [
            started(stores[n % 2].reserve_attempt(make_reservation(f"{n}"), allowed=(10, 50, 100), now=NOW))
            for n in range(100)
        ]
        assert (await gatherResults(reserving)).count(None) == 10
        await here.stop()  # a reservation outlives the store that made it
        again = await open_store(make_store)
        assert await again.count_failures(KEYS, now=NOW) == dict.fromkeys(KEYS, Failures(0, 0, 10))
        await again.stop()
        await there.stop()

    @ensureDeferred
    async def test_credentials_survive_a_restart(self, make_store: MakeLoginStore) -> None:
        store = await open_store(make_store)
        for number in (1, 2):
            await store.add_token(id_hash_of(number), make_token(number))
            await store.add_passkey(make_passkey(number))
            await store.add_password_reset(b"%d" % number, PasswordReset(f"{number}", b"", NOW))
        await store.use_token(id_hash_of(1), used=NOW + 60)
        await store.use_passkey(id_hash_of(1), used=NOW + 60, sign_count=7, backed_up=True)
        await store.rename_passkey("key1", "tablet", account="alice")
        await store.delete_tokens(["token2"])
        await store.delete_passkeys(["key2"])
        await store.use_password_reset(b"2")
        await store.stop()
        again = await open_store(make_store)
        assert await again.list_tokens() == [make_token(1, used=NOW + 60)]
        assert await again.get_token(id_hash_of(2)) is None
        assert await again.list_passkeys() == [
            make_passkey(1, used=NOW + 60, sign_count=7, backed_up=True, label="tablet")
        ]
        assert await again.get_password_reset(b"1") == PasswordReset("1", b"", NOW)
        assert await again.get_password_reset(b"2") is None
        await again.stop()

    @ensureDeferred
    async def test_stores_on_one_place_share_credentials_at_once(self, make_store: MakeLoginStore) -> None:
        stores = here, there = await open_store(make_store), await open_store(make_store)
        for n in range(10):
            for store, other in (stores, stores[::-1]):
                for looking in stores:
                    assert await looking.get_token(id_hash_of(1)) is None
                await store.add_token(id_hash_of(1), make_token(n))
                for looking in stores:
                    assert await looking.get_token(id_hash_of(1)) == make_token(n)
                await other.use_token(id_hash_of(1), used=NOW + n)
                assert await store.get_token(id_hash_of(1)) == make_token(n, used=NOW + n)
                assert await other.delete_tokens([f"token{n}"]) == 1
        await here.add_passkey(make_passkey(1))
        await there.add_password_reset(b"1", PasswordReset("alice", b"", NOW))
        uses = [
            started(store.use_passkey(id_hash_of(1), used=NOW, sign_count=count, backed_up=False))
            for count in (1, 2, 3)
            for store in stores
        ]
        assert 1 <= (await gatherResults(uses)).count(True) <= 3
        resets = [started(store.use_password_reset(b"1")) for store in stores]
        assert sorted(await gatherResults(resets)) == [False, True]
        await here.stop()
        await there.stop()

    @ensureDeferred
    async def test_stores_on_one_place_limit_credentials_together(self, make_store: MakeLoginStore) -> None:
        stores = here, there = await open_store(make_store), await open_store(make_store)
        tokens = [started(stores[n % 2].add_token(id_hash_of(n), make_token(n), max_of_account=10)) for n in range(60)]
        passkeys = [started(stores[n % 2].add_passkey(make_passkey(n), max_of_account=5)) for n in range(60)]
        assert (await gatherResults(tokens)).count(True) == len(await here.list_tokens()) == 10
        assert (await gatherResults(passkeys)).count(True) == len(await there.list_passkeys()) == 5
        await here.stop()
        await there.stop()


async def check_cache(here: Store, there: Store) -> None:
    """Check that once a change is listed no session or token is cached as it was before, whatever process changed it.

    The stores, on one place, have no sessions and tokens.
    """

    async def list_change() -> None:
        await there.add_post("after it")
        await here.list_changes(after=(await here.version()).revision - 1, limit=9)

    first, second = id_hash_of(1), id_hash_of(2)
    for end in ENDS.values():
        await there.delete_all_sessions()
        await there.add_session(first, make_provider_session("1", "s"))
        await there.add_session(second, replace(make_provider_session("1", "s"), expires=NOW))
        assert await here.get_cached_session(first) == make_provider_session("1", "s")
        assert await here.get_cached_session(second) is not None
        await end(there)
        await list_change()
        assert await here.get_cached_session(first) is await here.get_cached_session(second) is None
    await there.add_session(first, make_session())
    assert await here.get_cached_session(first) == make_session()
    await there.prove_session(first, authenticated=NOW, fingerprint=b"second")
    await list_change()
    proved = replace(make_session(fingerprint=b"second"), authenticated=NOW)
    assert await here.get_cached_session(first) == proved
    await there.register_device(first, "key")
    await there.bind_session(first, bound=NOW)
    await list_change()
    assert await here.get_cached_session(first) == replace(proved, device_key="key", bound=NOW)
    for end_tokens in (
        lambda: there.delete_tokens(["token1"]),
        lambda: there.delete_credentials_of({"alice": None}),
        lambda: there.purge_expired(now=NOW + 9 + TOKENS_KEPT_S, wall=NOW),
    ):
        await there.add_token(first, make_token(1, expires=NOW + 9))
        assert await here.get_cached_token(first) == make_token(1, expires=NOW + 9)
        await end_tokens()
        await list_change()
        assert await here.get_cached_token(first) is None


class StoreContract(PostStoreContract, LoginStoreContract):
    """A whole store, whose posts and logins do not affect each other."""

    @ensureDeferred
    async def test_session_that_ended_before_a_change_is_not_cached_after_it(self, store: Store) -> None:
        await check_cache(store, store)

    @ensureDeferred
    async def test_concurrent_uses_of_nonces_beside_posts_have_their_own_results(self, store: Store) -> None:
        assert await store.use_nonce(b"nonce", 3, expires=NOW)
        assert await store.use_nonce(b"other", 2, expires=NOW)
        uses = [(b"nonce", 5), (b"nonce", 3), (b"other", 3), (b"other", 2), (b"nonce", 6), (b"third", 1)]
        results = await gatherResults(
            [
                started(call)
                for nonce, n in uses
                for call in (store.use_nonce(nonce, n, expires=NOW), store.add_post("beside it"))
            ]
        )
        assert results[::2] == [True, False, True, False, True, True]
        assert len((await store.list_posts(limit=10)).posts) == len(uses)

    @ensureDeferred
    async def test_purge_keeps_posts(self, store: Store) -> None:
        await store.add_post("kept")
        await store.add_session(id_hash_of(1), make_session())
        await store.purge_expired(now=NOW + 1e9, wall=NOW + 1e9)
        assert await store.list_sessions() == []
        assert (await store.get_post(1)).post == "kept"

    @ensureDeferred
    async def test_login_state_does_not_change_the_version_of_posts(self, store: Store) -> None:
        await store.add_post("one")
        version = await store.version()
        await store.key("new")
        await store.use_nonce(b"nonce", 1, expires=NOW)
        await store.add_session(id_hash_of(1), make_session())
        await store.renew_session(id_hash_of(1), seen=NOW, expires=NOW)
        await store.delete_all_sessions()
        await store.add_failure(KEYS, now=NOW, expires=NOW)
        await store.forget_failures(b"pair")
        await store.reserve_attempt(make_reservation("one"), allowed=(9, 9, 9), now=NOW)
        await store.release_attempt(make_reservation("one"))
        await store.purge_expired(now=NOW + 1000, wall=NOW + 1000)
        assert await store.version() == version
        assert len(await store.list_changes(after=0, limit=9)) == 1


class LastingStoreContract(LastingPostStoreContract, LastingLoginStoreContract, StoreContract):
    """A whole store on a persistent place."""

    @ensureDeferred
    async def test_session_that_another_process_ended_before_a_change_is_not_cached_after_it(
        self, make_store: MakeStore
    ) -> None:
        here, there = await open_store(make_store), await open_store(make_store)
        await check_cache(here, there)
        await here.stop()
        await there.stop()
