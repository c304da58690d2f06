"""Posts that come into Redis with their ids (`postd.store.interface.Import`)."""

import secrets
from collections.abc import Sequence
from typing import Any

from postd.errors import PostExistsError, StoreNotEmptyError, StoreUnavailableError
from postd.store.redis.database import RedisDatabase
from postd.store.redis.scripts import KEYS, load_script

_STAGE = load_script("stage_posts", writes=True)
_COMMIT = load_script("commit_import", writes=True)

STAGED_KEPT_S = 3600
"""How long posts are kept that are never committed, because whoever brought them has died, in seconds."""

COMMIT_MAX_S = 60
"""How long the server may take to commit. It does nothing else meanwhile: into a store that has posts, 0.7 s for
100,000; into an empty one a moment, however many."""


class RedisImport:
    """An import into one database, which keeps the posts under a key of its own until they are committed.

    Args:
        database: stores them.
    """

    def __init__(self, database: RedisDatabase) -> None:
        self._database = database
        self._name = secrets.token_hex(8)
        self._taken = 0

    @classmethod
    async def begin(cls, database: RedisDatabase) -> "RedisImport":
        await database.read_command("PING")  # fails before the caller has read its posts, if the store is unavailable
        return cls(database)

    async def add(self, posts: Sequence[tuple[int, str]]) -> None:
        arguments: list[Any] = [argument for post in posts for argument in post]
        twice = await self._database.write(_STAGE, self._name, STAGED_KEPT_S, *arguments)
        if twice:
            raise PostExistsError(int(twice))
        self._taken += len(posts)

    async def commit(
        self, *, skip_existing: bool = False, into_empty: bool = False, last_id: int = 0, revision: int = 0
    ) -> int:
        outcome, detail = await self._database.write(
            _COMMIT,
            secrets.token_hex(8),
            self._name,
            self._taken,
            "1" if skip_existing else "",
            "1" if into_empty else "",
            last_id,
            revision,
            deadline_s=COMMIT_MAX_S,
        )
        if outcome == "lost":
            raise StoreUnavailableError(f"{self._database.description}: has lost the posts that were to be imported")
        if outcome == "not empty":
            raise StoreNotEmptyError
        if outcome == "taken":
            raise PostExistsError(int(detail))
        return int(detail)

    async def discard(self) -> None:
        await self._database.read_command("DEL", KEYS["IMPORT"] + self._name)
