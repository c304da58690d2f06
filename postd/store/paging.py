"""Reading all posts page by page, where a store cannot show them as they stood at one moment."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from postd.store.interface import Page


async def read_by_pages(
    list_posts: Callable[..., Awaitable[Page]], *, at_once: int
) -> AsyncIterator[Sequence[tuple[int, str]]]:
    """Yield all posts, as `PostStore.read_posts` does, by `list_posts` of the same store: each portion as it stood."""
    after, more = 0, True
    while more:
        page = await list_posts(after=after, limit=at_once)
        if page.posts:
            yield page.posts
            after = page.posts[-1][0]
        more = page.more
