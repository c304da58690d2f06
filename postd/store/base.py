"""Code that all stores share: the parts over one database, reading by pages, a change log without gaps."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from postd.errors import ChangesGoneError
from postd.model import Change, Version
from postd.store.interface import Lifecycle, OperationObserver, Page

DatabaseT = TypeVar("DatabaseT", bound=Lifecycle)


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
    list_posts: Callable[..., Awaitable[Page]], *, batch_size: int
) -> AsyncIterator[Sequence[tuple[int, str]]]:
    """Yield all posts, as `PostStore.read_posts`, each batch as of another moment."""
    after, more = 0, True
    while more:
        page = await list_posts(after=after, limit=batch_size)
        if page.posts:
            yield page.posts
            after = page.posts[-1][0]
        more = page.more


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
    entries: Sequence[tuple[str | None, int, str | None]], since: Version, version: Version
) -> dict[int, str | None] | None:
    """Return the posts that changed from one version to another, as `postd.store.interface.Page.changes`.

    Args:
        entries: all changes in the log from revision `since` to `version`, both included: the tag of each, the id of
            its post, and the text that the post has now.
        since: the earlier version, perhaps of another history: the log proves that it is not by its tag.
        version: the current version.
    """
    if since == version:
        return {}
    if not entries or entries[0][0] != since.tag or len(entries) != version.revision - since.revision + 1:
        return None
    return {post_id: text for _, post_id, text in entries[1:]}
