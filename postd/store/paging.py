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


def check_reached(changes: Sequence[Change], *, after: int, latest: int) -> None:
    """Make sure that the log reaches from a revision to the latest one.

    It has a hole where it was trimmed, and where some changes may have been lost; nowhere else.

    Raises:
        ChangesGoneError: what came next is not the first of `changes`.
    """
    if after > latest or (after < latest and (not changes or changes[0].revision != after + 1)):
        raise ChangesGoneError(after)
