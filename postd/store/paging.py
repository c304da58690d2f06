"""What stores have in common when they read page by page."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from postd.errors import ChangesGoneError
from postd.model import Change
from postd.store.interface import Page


async def read_by_pages(
    list_posts: Callable[..., Awaitable[Page]], *, at_once: int
) -> AsyncIterator[Sequence[tuple[int, str]]]:
    """Yield all posts, as `PostStore.read_posts` does where a store cannot show them as they stood at one moment.

    Args:
        list_posts: that of the store.
        at_once: how many are yielded together, which are of one moment.
    """
    after, more = 0, True
    while more:
        page = await list_posts(after=after, limit=at_once)
        if page.posts:
            yield page.posts
            after = page.posts[-1][0]
        more = page.more


def follow(changes: Sequence[Change], *, after: int, latest: int) -> list[Change]:
    """Return those changes that follow on a revision, and on each other.

    The log has a hole where it was trimmed, and where some changes may have been lost; what is behind a hole is
    nothing for who has not seen what was in it.

    Raises:
        ChangesGoneError: not even the first of them follows, or the log does not go up to that revision.
    """
    following = [change for number, change in enumerate(changes, after + 1) if change.revision == number]
    if after > latest or (after < latest and not following):
        raise ChangesGoneError(after)
    return following
