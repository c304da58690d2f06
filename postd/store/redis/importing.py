"""Import posts with their ids into Redis (`postd.store.interface.Import`)."""

import secrets
from collections.abc import Sequence
from typing import Any

from postd.errors import PostExistsError, StoreNotEmptyError, StoreUnavailableError
from postd.model import PostCollection, PostDetails
from postd.store.redis.database import RedisDatabase
from postd.store.redis.details import encode_details
from postd.store.redis.scripts import KEYS, load_script

_STAGE = load_script("stage_posts", writes=True)
_COMMIT = load_script("commit_import", writes=True)

STAGED_KEPT_S = 3600
"""Expiry of staged posts, in seconds, in case the import is never committed."""

COMMIT_MAX_S = 60
"""Timeout of the commit, which blocks the server: 0.7 s for 100,000 posts into a store that has posts; next to nothing,
however many, into an empty one."""


class RedisImport:
    """An import into one database, which stages the posts under a key of its own."""

    def __init__(self, database: RedisDatabase) -> None:
        self._database = database
        self._name = secrets.token_hex(8)
        self._staged = self._staged_details = 0

    @classmethod
    async def begin(cls, database: RedisDatabase) -> "RedisImport":
        await database.read_command("PING")  # fails before the caller has read its posts, if the store is unavailable
        return cls(database)

    async def add(self, posts: Sequence[PostDetails]) -> None:
        details = [encode_details(post.created, post.updated, post.author) for post in posts]
        arguments: list[Any] = []
        for post, encoded in zip(posts, details, strict=True):
            arguments += (post.id, post.post, encoded)
        duplicate = await self._database.write(_STAGE, self._name, STAGED_KEPT_S, *arguments)
        if duplicate:
            raise PostExistsError(int(duplicate))
        self._staged += len(posts)
        self._staged_details += sum(map(bool, details))

    async def commit(
        self,
        *,
        skip_existing: bool = False,
        into_empty: bool = False,
        last_id: int = 0,
        revision: int = 0,
        collection: PostCollection | None = None,
    ) -> int:
        staged = (secrets.token_hex(8), self._name, self._staged)
        options = ("1" if skip_existing else "", "1" if into_empty else "", last_id, revision, self._staged_details)
        same = () if collection is None else (collection.id, collection.began)
        outcome, detail = await self._database.write(_COMMIT, *staged, *options, *same, deadline_s=COMMIT_MAX_S)
        if outcome == "lost":
            raise StoreUnavailableError(f"{self._database.description}: has lost the staged posts of the import")
        if outcome == "not empty":
            raise StoreNotEmptyError
        if outcome == "taken":
            raise PostExistsError(int(detail))
        return int(detail)

    async def discard(self) -> None:
        staged = KEYS["IMPORT"] + self._name
        await self._database.read_command("DEL", staged, f"{staged}:details")
