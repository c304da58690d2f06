"""Reading posts from the last one back, of a store that lists them forwards only."""

from postd.store.interface import PostStore


async def list_before(store: PostStore, before: int, *, limit: int) -> list[tuple[int, str]]:
    """Return the last `limit` posts with ids smaller than `before`, in ascending order.

    Where ids follow on each other, as they mostly do, that is one look at the store. A gap in them, however large,
    costs some ten looks more, each at no more than `limit` posts: twice as far back until there are enough, then
    halving the distance. Posts that come or go meanwhile may be in it or not.
    """
    before = min(before, await store.last_id() + 1)
    too_late = before - 1  # after this id there are too few of them
    too_early = -1  # and after this one too many
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
