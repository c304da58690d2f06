"""Digest: the counts with which nonces were used, as sets of bits (`schema/0013_nonce_uses.sql`)."""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from postd.store.sqlite.rows import ROWS_MAX, execute_rows

PART_COUNTS = 1024
"""How many counts of a nonce are in one row."""


class NonceUse(Struct, frozen=True):
    """A write that notes the use of a nonce; the result is whether it is the first one with its count."""

    nonce: bytes
    count: int
    expires: float

    def __call__(self, connection: sqlite3.Connection) -> bool:
        return use_nonces([self], connection)[id(self)]


def use_nonces(uses: Sequence[NonceUse], connection: sqlite3.Connection) -> dict[int, bool]:
    """Note uses of nonces; return the results by the `id()` of the use."""
    results = dict[int, bool]()
    for start in range(0, len(uses), ROWS_MAX):
        results.update(_use(uses[start : start + ROWS_MAX], connection))
    return results


def _use(uses: Sequence[NonceUse], connection: sqlite3.Connection) -> dict[int, bool]:
    (removed,) = connection.execute("SELECT nonces FROM clock").fetchone()
    results = dict[int, bool]()
    parts: dict[tuple[bytes, int], list[NonceUse]] = {}
    for use in uses:
        if use.expires <= removed:  # the counts of this nonce may be removed
            results[id(use)] = False
        else:
            parts.setdefault((use.nonce, use.count // PART_COUNTS), []).append(use)
    rows = execute_rows(connection, _select, [*parts]) if parts else ()
    stored = {(nonce, part): int.from_bytes(used) for nonce, part, used in rows}
    changed = list[tuple[object, ...]]()
    for key, of_part in parts.items():
        used = before = stored.get(key, 0)
        for use in of_part:
            bit = 1 << use.count % PART_COUNTS
            results[id(use)] = not used & bit
            used |= bit
        if used != before:
            changed.append((*key, used.to_bytes(-(-used.bit_length() // 8)), of_part[0].expires))
    if changed:
        execute_rows(connection, _insert, changed)
    return results


@lru_cache
def _select(places: int) -> str:
    keys = ", ".join(["(?, ?)"] * places)
    return f"SELECT nonce, part, used FROM (VALUES {keys}) CROSS JOIN nonce_use ON nonce = column1 AND part = column2"  # noqa: S608 - only places


@lru_cache
def _insert(places: int) -> str:
    rows = ", ".join(["(?, ?, ?, ?)"] * places)
    return (
        f"INSERT INTO nonce_use SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL "  # noqa: S608 - only places
        "ON CONFLICT (nonce, part) DO UPDATE SET used = excluded.used"
    )
