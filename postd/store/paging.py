"""Reading page by page, for any store."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from postd.errors import ChangesGoneError
from postd.model import Change
from postd.store.interface import Page


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


def contiguous_changes(changes: Sequence[Change], *, after: int, latest: int) -> list[Change]:
    """Return those of the changes after a revision that follow it without a gap; `latest` is the revision now.

    The log has a gap where it was trimmed, or where a store may have lost changes.

    Raises:
        ChangesGoneError: the first change does not follow, or the log does not reach that revision.
    """
    following = [change for revision, change in enumerate(changes, after + 1) if change.revision == revision]
    if after > latest or (after < latest and not following):
        raise ChangesGoneError(after)
    return following
