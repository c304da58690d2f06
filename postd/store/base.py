"""Code that all stores share: the parts over one database, reading by pages, a change log without gaps."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from postd.errors import ChangesGoneError
from postd.model import Change, PostDetails, Version
from postd.store.interface import Lifecycle, OperationObserver, Page, RowT

DatabaseT = TypeVar("DatabaseT", bound=Lifecycle)

_REVISION_GAP = 10**9
"""The gap between the revisions of a store and of its copy if the clock was set back."""


class StorePart(Generic[DatabaseT]):
    """Posts or logins in a database. A store inherits from both, and is a `postd.store.interface.Store`."""

    def __init__(self, database: DatabaseT) -> None:
        self.database = database
        self.description = database.description
        self.prepare, self.start, self.stop = database.prepare, database.start, database.stop

    @property
    def observer(self) -> OperationObserver:
        return self.database.observer

    @observer.setter
    def observer(self, observer: OperationObserver) -> None:
        self.database.observer = observer


async def read_by_pages(
    list_details: Callable[..., Awaitable[Page[PostDetails]]], *, batch_size: int
) -> AsyncIterator[Sequence[PostDetails]]:
    """Yield all posts, as `PostStore.read_posts`, each batch as of another moment."""
    after, more = 0, True
    while more:
        page = await list_details(after=after, limit=batch_size)
        if page.posts:
            yield page.posts
            after = page.posts[-1].id
        more = page.more


async def read_ids_by_pages(
    list_details: Callable[..., Awaitable[Page[PostDetails]]], author: str, *, batch_size: int
) -> AsyncIterator[Sequence[int]]:
    """Yield the ids of the posts of an author, as `PostStore.read_ids_of`, each batch as of another moment."""
    async for posts in read_by_pages(list_details, batch_size=batch_size):
        yield [post.id for post in posts if post.author == author]


def revision_of_copy(revision: int) -> int:
    """Return a revision after which a copy of the posts may count on, beside the store that it is a copy of.

    It is larger than all that the store and earlier copies of it have used, unless the clock was set back: no store has
    more changes than microseconds have passed. So an event stream that resumes with one of theirs gets a `reset` event.
    """
    now = time.time_ns() // 1000
    return now if now > revision else revision + _REVISION_GAP


def to_milliseconds(now: float | None) -> int | None:
    """Return the time of a post, as `PostDetails` has it."""
    return None if now is None else int(now * 1000)


def contiguous_changes(changes: Sequence[tuple[int, Change | None]], *, after: int, latest: int) -> list[Change | None]:
    """Return the changes that follow a revision without a gap.

    The log has a gap where it was trimmed, or where a store may have lost changes.

    Args:
        changes: each with its revision; None in place of a change that another change of its post followed.
        after: the revision.
        latest: the revision now.

    Raises:
        ChangesGoneError: the first change does not follow, or the log does not reach that revision.
    """
    following = [change for expected, (revision, change) in enumerate(changes, after + 1) if revision == expected]
    if after > latest or (after < latest and not following):
        raise ChangesGoneError(after)
    return following


def proven_changes(
    entries: Sequence[tuple[str | None, int, RowT | None]], since: Version, version: Version
) -> dict[int, RowT | None] | None:
    """Return the posts that changed from one version to another, as `postd.store.interface.Page.changes`.

    Args:
        entries: all changes in the log from revision `since` to `version`, both included: the tag of each, the id of
            its post, and the post as it is now.
        since: the earlier version, perhaps of another history: the log proves that it is not by its tag.
        version: the current version.
    """
    if since == version:
        return {}
    if not entries or entries[0][0] != since.tag or len(entries) != version.revision - since.revision + 1:
        return None
    return {post_id: post for _, post_id, post in entries[1:]}
