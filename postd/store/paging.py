"""Reading page by page, for any store."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from postd.errors import ChangesGoneError
from postd.model import Change
from postd.store.interface import Page


async def read_by_pages(
    list_posts: Callable[..., Awaitable[Page]], *, batch_size: int
) -> AsyncIterator[Sequence[tuple[int, str]]]:
    """Yield all posts, as `PostStore.read_posts`, each batch as of another moment.

    Args:
        list_posts: `PostStore.list_posts`.
        batch_size: how many posts are yielded together, at most.
    """
    after, more = 0, True
    while more:
        page = await list_posts(after=after, limit=batch_size)
        if page.posts:
            yield page.posts
            after = page.posts[-1][0]
        more = page.more


def contiguous_changes(changes: Sequence[Change], *, after: int, latest: int) -> list[Change]:
    """Return the changes that follow a revision without a gap.

    The log has a gap where it was trimmed, or where a store may have lost changes.

    Args:
        changes: entries of the log after that revision.
        after: the revision.
        latest: the revision of the posts now.

    Raises:
        ChangesGoneError: the first change does not follow, or the log does not reach that revision.
    """
    following = [change for revision, change in enumerate(changes, after + 1) if change.revision == revision]
    if after > latest or (after < latest and not following):
        raise ChangesGoneError(after)
    return following
