"""A cache of sessions and tokens, so that Redis is not asked about each listener before each event.

Each script that ends or changes a session or a token increments a counter (`note_login_change` in `lua/common.lua`).
The reply with the changes of posts has the counter, too: if it differs from the last one, the cache is cleared. So a
session that ended before a change of posts is not in the cache when that change is sent. Uses and renewals are not
counted: `seen`, `expires` and `used` may be outdated.

Nodes of older versions do not increment the counter. What they end is cached until the event streams clear the cache,
every few seconds. Requests do not use it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from postd.store.redis.database import RedisDatabase
from postd.store.redis.shared_call import SharedCall

Fields = Sequence[Any]
"""The fields of a hash, each a `str`, or None if it is not there: then no field is."""

T = TypeVar("T")


class CachedRecords(Generic[T]):
    """Records of one kind, cached in `RedisDatabase.cached_records`.

    Records that are not cached are read with one script for all calls of one reactor iteration.

    Args:
        database: has the records.
        prefix: of their keys, before a hash.
        fields: the fields of a record.
        decode: returns the record with these fields, None if there is none.
    """

    def __init__(
        self,
        database: RedisDatabase,
        prefix: str,
        fields: Sequence[str],
        decode: Callable[[Fields], T | None],
    ) -> None:
        self._database = database
        self._prefix = prefix
        self._fields = fields
        self._decode = decode
        self._reading = SharedCall(self._read, reactor=database.reactor)

    async def get(self, id_hash: bytes) -> T | None:
        """Return the record with a hash, None if there is none.

        Raises:
            StoreUnavailableError: it is not cached, and cannot be read.
        """
        hexed = id_hash.hex()
        record = cast(T | None, self._database.cached_records.get(self._prefix + hexed))
        return record if record is not None else (await self._reading.run(hexed))[hexed]

    async def _read(self, hashes: list[str]) -> Mapping[str, T | None]:
        cached = self._database.cached_records  # a new dictionary replaces it if a record changes before the reply
        found = await self._database.read_records(self._prefix, self._fields, hashes)
        records = dict(zip(hashes, map(self._decode, found), strict=True))
        cached.update({self._prefix + hexed: record for hexed, record in records.items() if record is not None})
        return records
