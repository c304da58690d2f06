"""Reading posts backwards from a store that lists them only forwards."""

from postd.store.interface import PostStore


async def list_before(store: PostStore, before: int, *, limit: int) -> list[tuple[int, str]]:
    """Return the last `limit` posts with ids smaller than `before`, in ascending order.

    Consecutive ids take one query. A gap of any size takes some ten more, each of at most `limit` posts: the distance
    doubles until there are enough, then a binary search. Concurrent changes may be included or not.
    """
    before = min(before, await store.last_id() + 1)
    too_late = before - 1  # fewer than `limit` posts after this id
    too_early = -1  # more than `limit` posts after this id
    step = limit
    while True:
        after = max(0, too_late - step) if too_early < 0 else (too_early + too_late) // 2
        page = await store.list_posts(after=after, limit=limit + 1)
        posts = [post for post in page.posts if post[0] < before]
        if len(posts) > limit:
            too_early = after
        elif len(posts) == limit or after in {0, too_early}:
            return posts
        else:
            too_late = after
            step *= 2
