"""What every store does, proved the same way for each.

A store's test module derives a class from `PostStoreContract` and gives a fixture `make_store`: a function that makes a
store not yet started. Called again, it makes another one on the same place, if there is a place that lasts.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_twisted
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pytest_twisted import ensureDeferred
from twisted.internet.defer import Deferred, gatherResults

from postd.errors import (
    ChangesGoneError,
    NoSuchPostError,
    PostChangedError,
    PostdError,
    StoreBusyError,
    StoreUnavailableError,
)
from postd.model import Change, ChangeKind, Post
from postd.store.interface import CHANGES_KEPT, PostStore
from postd.store.writes import QUEUE_MAX

MakeStore = Callable[[], PostStore]

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=140)


async def open_store(make_store: MakeStore) -> PostStore:
    store = make_store()
    store.prepare()
    await store.start()
    return store


@pytest_twisted.async_yield_fixture
async def store(make_store: MakeStore) -> AsyncIterator[PostStore]:
    opened = await open_store(make_store)
    yield opened
    await opened.stop()


async def error_of(call: Any) -> PostdError:
    """Return the error that awaiting `call` raises."""
    with pytest.raises(PostdError) as caught:
        await call
    return caught.value


def started(call: Any) -> Deferred[Any]:
    """Begin a call without waiting for it."""
    return Deferred.fromCoroutine(call)


def with_any_text(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test with texts of all kinds.

    Each class has a test of its own to hang this on: pytest-twisted wraps a shared one once more for each class.
    """
    for text in (
        "é" * 140,
        "\U0001f9d1\u200d\U0001f680" * 46,
        "line\nfeed\r\n\t ",
        "\ufeff\u2028\uffff",
        "0012",
    ):
        test = example(text=text)(test)
    unhurried = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    return given(text=texts)(unhurried(test))


async def check_text_comes_back(store: PostStore, text: str) -> None:
    assert (await store.get_post(await store.add_post(text))).post == text


class PostStoreContract:
    """Posts, their version, and the log of their changes."""

    @ensureDeferred
    async def test_a_new_store_is_empty(self, store: PostStore) -> None:
        page = await store.list_posts(limit=10)
        assert (list(page.posts), page.more, page.version.revision) == ([], False, 0)
        assert await store.list_changes(after=0, limit=10) == []

    @ensureDeferred
    async def test_what_was_added_is_there(self, store: PostStore) -> None:
        assert [await store.add_post("one"), await store.add_post("two")] == [1, 2]
        assert (await store.list_posts(limit=10)).posts == [(1, "one"), (2, "two")]
        assert await store.get_post(2) == Post(2, "two")

    @ensureDeferred
    async def test_replacing_changes_the_text_in_place(self, store: PostStore) -> None:
        for text in ("one", "two"):
            await store.add_post(text)
        await store.replace_post(1, "uno")
        assert (await store.list_posts(limit=10)).posts == [(1, "uno"), (2, "two")]

    @ensureDeferred
    async def test_what_was_deleted_is_gone(self, store: PostStore) -> None:
        await store.add_post("one")
        await store.delete_post(1)
        assert not (await store.list_posts(limit=10)).posts

    @pytest.mark.parametrize("missing", [1, 2, 2**53 - 1])
    @ensureDeferred
    async def test_a_missing_post_is_named(self, store: PostStore, missing: int) -> None:
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
    async def test_a_write_that_expects_another_text_changes_nothing(self, store: PostStore) -> None:
        await store.add_post("one")
        version = await store.version()
        assert isinstance(await error_of(store.replace_post(1, "new", expected="other")), PostChangedError)
        assert isinstance(await error_of(store.delete_post(1, expected="other")), PostChangedError)
        assert await store.version() == version
        await store.replace_post(1, "two", expected="one")
        await store.delete_post(1, expected="two")

    @ensureDeferred
    async def test_an_id_is_never_used_twice(self, store: PostStore) -> None:
        for _ in range(3):
            await store.add_post("x")
        await store.delete_post(3)
        assert await store.add_post("y") == 4
        for post_id in (1, 2, 4):
            await store.delete_post(post_id)
        assert await store.add_post("z") == 5

    @ensureDeferred
    async def test_writes_asked_for_together_all_happen_in_order(self, store: PostStore) -> None:
        ids = await gatherResults([started(store.add_post(f"post {n}")) for n in range(700)])
        assert ids == list(range(1, 701))
        assert (await store.list_posts(limit=1000)).posts == [(n + 1, f"post {n}") for n in range(700)]

    @ensureDeferred
    async def test_one_refused_write_does_not_touch_its_neighbours(self, store: PostStore) -> None:
        first, missing, second = (
            started(store.add_post("one")),
            started(store.delete_post(99)),
            started(store.add_post("two")),
        )
        assert (await first, await second) == (1, 2)
        assert isinstance(await error_of(missing), NoSuchPostError)

    @ensureDeferred
    async def test_pages_follow_each_other(self, store: PostStore) -> None:
        for n in range(5):
            await store.add_post(f"post {n}")
        await store.delete_post(2)
        first = await store.list_posts(limit=2)
        assert ([post_id for post_id, _ in first.posts], first.more) == ([1, 3], True)
        last = await store.list_posts(after=3, limit=2)
        assert ([post_id for post_id, _ in last.posts], last.more) == ([4, 5], False)
        assert not (await store.list_posts(after=5, limit=2)).posts

    @ensureDeferred
    async def test_a_page_carries_the_version_of_its_posts(self, store: PostStore) -> None:
        await store.add_post("one")
        assert (await store.list_posts(limit=1)).version == await store.version()

    @ensureDeferred
    async def test_every_change_gives_a_new_version(self, store: PostStore) -> None:
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
    async def test_the_same_text_again_is_no_change(self, store: PostStore) -> None:
        await store.add_post("one")
        version = await store.version()
        await store.replace_post(1, "one")
        assert await store.version() == version

    @ensureDeferred
    async def test_the_log_tells_each_change_as_it_was(self, store: PostStore) -> None:
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
    async def test_the_log_is_bounded_and_says_when_it_does_not_reach(self, store: PostStore) -> None:
        beyond = 5
        for start in range(0, CHANGES_KEPT + beyond, QUEUE_MAX):
            many = range(start, min(start + QUEUE_MAX, CHANGES_KEPT + beyond))
            await gatherResults([started(store.add_post("x")) for _ in many])
        kept = await store.list_changes(after=beyond, limit=2 * CHANGES_KEPT)
        assert [kept[0].revision, kept[-1].revision, len(kept)] == [beyond + 1, CHANGES_KEPT + beyond, CHANGES_KEPT]
        for out_of_reach in (0, beyond - 1, CHANGES_KEPT + beyond + 1):
            assert isinstance(await error_of(store.list_changes(after=out_of_reach, limit=1)), ChangesGoneError)

    @ensureDeferred
    async def test_more_writes_than_it_takes_on_are_refused(self, store: PostStore) -> None:
        waiting = [started(store.add_post("x")) for _ in range(QUEUE_MAX)]
        assert isinstance(await error_of(store.add_post("one too many")), StoreBusyError)
        await gatherResults(waiting)
        assert len((await store.list_posts(limit=2 * QUEUE_MAX)).posts) == QUEUE_MAX

    @ensureDeferred
    async def test_stopping_finishes_what_waits_and_refuses_the_rest(self, make_store: MakeStore) -> None:
        store = await open_store(make_store)
        waiting = [started(store.add_post("x")) for _ in range(1000)]
        stopping = started(store.stop())
        assert isinstance(await error_of(store.add_post("late")), StoreUnavailableError)
        assert await gatherResults(waiting) == list(range(1, 1001))
        await stopping
        assert isinstance(await error_of(store.version()), StoreUnavailableError)

    @ensureDeferred
    async def test_a_store_not_started_is_away(self, make_store: MakeStore) -> None:
        store = make_store()
        assert isinstance(await error_of(store.version()), StoreUnavailableError)
        assert isinstance(await error_of(store.list_posts(limit=1)), StoreUnavailableError)


class LastingStoreContract(PostStoreContract):
    """Further: what was acknowledged outlives the store that took it."""

    @ensureDeferred
    async def test_all_is_there_after_a_restart(self, make_store: MakeStore) -> None:
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
        assert [change.revision for change in await again.list_changes(after=0, limit=10)] == [1, 2, 3, 4]
        assert await again.add_post("three") == 3
        await again.stop()

    @ensureDeferred
    async def test_two_stores_on_one_place_see_each_others_posts(self, make_store: MakeStore) -> None:
        here, there = await open_store(make_store), await open_store(make_store)
        await here.add_post("one")
        assert (await there.list_posts(limit=10)).posts == [(1, "one")]
        assert await there.add_post("two") == 2
        assert await here.version() == await there.version()
        await here.stop()
        await there.stop()
