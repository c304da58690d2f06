"""Sessions, nonce counts, failed logins and keys in SQLite (`postd.store.interface.LoginStore`)."""

import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import msgspec

from postd.defaults import SESSIONS_PER_ACCOUNT
from postd.protocol.session import Session
from postd.reactor import Work
from postd.store.base import StorePart
from postd.store.interface import (
    CLOCK_KEPT_S,
    KEY_BYTES,
    NONCE_COUNTS_KEPT_S,
    TOKENS_KEPT_S,
    FailureKeys,
    Failures,
    Reservation,
)
from postd.store.sqlite.batches import InsertRow
from postd.store.sqlite.database import SqliteDatabase
from postd.store.sqlite.nonce_uses import NonceUse

_EXPIRING = ("session", "failure", "idempotency_key", "nonce_use", "used_proof", "personal_token", "password_reset")
"""The tables whose rows expire."""

_FIELDS = ", ".join(Session.__struct_fields__)
_INSERT_SESSION = f"INSERT INTO session (id_hash, {_FIELDS}) VALUES (?{', ?' * len(Session.__struct_fields__)})"  # noqa: S608 - only constants
_SELECT_SESSION = f"SELECT {_FIELDS} FROM session WHERE id_hash = ?"  # noqa: S608 - only constants
_SELECT_SESSIONS = f"SELECT {_FIELDS} FROM session ORDER BY created, username"  # noqa: S608 - only constants
_SELECT_SESSIONS_OF = f"SELECT id_hash, {_FIELDS} FROM session WHERE username = ? ORDER BY created, id_hash"  # noqa: S608 - only constants

# The comparisons with '' make SQLite use the indexes, which are partial. With both claims it uses the index of the sid:
# a sid has one subject, a subject may have many.
_END_AT_SUBJECT = "DELETE FROM session WHERE fingerprint = ? AND subject = ? AND subject <> ''"
_END_AT_SID = "DELETE FROM session WHERE fingerprint = ? AND sid = ? AND sid <> '' AND ? IN ('', subject)"

_SELECT_CLOCK = "SELECT reached FROM clock"
_UPDATE_CLOCK = """
UPDATE clock SET reached = max(reached, ?), nonces = max(nonces, ?),
    proofs = max(proofs, coalesce((SELECT max(expires) FROM used_proof WHERE expires <= ?), 0))
"""

_REGISTER_DEVICE = "UPDATE session SET device_key = ? WHERE id_hash = ? AND device_key IN ('', ?)"
_BIND_SESSION = "UPDATE session SET bound = ? WHERE id_hash = ? AND bound = 0 AND device_key <> ''"
_NOTE_ACCOUNT = "INSERT OR IGNORE INTO bound_account SELECT username FROM session WHERE id_hash = ?"

_END_SESSION = "DELETE FROM session WHERE id_hash = ?"
_END_OLDEST = """
DELETE FROM session WHERE id_hash IN (
    SELECT id_hash FROM session WHERE username = ? ORDER BY expires > ? DESC, created DESC LIMIT -1 OFFSET ?
)
"""


class _Ended(NamedTuple):
    """How many sessions a write has ended, and how many of them had an ID token."""

    sessions: int
    id_tokens: int


class SqliteLogins(StorePart[SqliteDatabase]):
    """The tables of `schema/0002_logins.sql`, `0008_clock.sql`, `0010_provider_sessions.sql` and `0013_nonce_uses.sql`.

    The purge is that of all tables.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        # Bound once: each request calls these methods.
        self._read, self._read_cached, self._write = database.read, database.cache.read, database.write

    async def key(self, name: str) -> bytes:
        keys = self.database.service_keys  # of the file that is open now, which another one may replace meanwhile
        key = keys.get(name)
        if key is None:
            key = keys[name] = await self._load_or_create_key(name)
        return key

    async def _load_or_create_key(self, name: str) -> bytes:
        def query(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute("SELECT value FROM service_key WHERE name = ?", (name,)).fetchone()
            return row[0] if row else None

        def write(connection: sqlite3.Connection) -> bytes:
            key = query(connection)  # of another process, perhaps
            if key is None:
                key = secrets.token_bytes(KEY_BYTES)
                connection.execute("INSERT INTO service_key VALUES (?, ?)", (name, key))
            return key

        key = await self._read(query)
        return await self._write(write, changes=()) if key is None else key

    def use_nonce(self, nonce: bytes, count: int, *, expires: float) -> Work[bool]:
        # After a power failure, and only then, a nonce that has not expired may be used twice.
        return self._write(NonceUse(nonce, count, expires), synced=False, changes=())

    def use_proof(self, proof: bytes, *, expires: float) -> Work[bool]:
        # Bound once, too.
        return self._write(InsertRow("INSERT INTO used_proof", (expires, proof)), synced=False, changes=())

    async def add_session(
        self,
        id_hash: bytes,
        session: Session,
        *,
        in_place_of: Collection[bytes] = (),
        max_of_user: int = SESSIONS_PER_ACCOUNT,
        id_token: str = "",
    ) -> None:
        def write(connection: sqlite3.Connection) -> _Ended:
            replaced = _end_sessions(connection, _END_SESSION, [(old,) for old in in_place_of])
            oldest = _end_sessions(connection, _END_OLDEST, [(session.username, session.created, max_of_user - 1)])
            connection.execute(_INSERT_SESSION, (id_hash, *msgspec.structs.astuple(session)))
            if id_token:
                connection.execute("INSERT INTO id_token VALUES (?, ?)", (id_hash, id_token))
            return _Ended(replaced.sessions + oldest.sessions, replaced.id_tokens + oldest.id_tokens)

        await self._write_ending(write)

    def get_session(self, id_hash: bytes) -> Work[Session | None]:
        def query(connection: sqlite3.Connection) -> Session | None:
            row = connection.execute(_SELECT_SESSION, (id_hash,)).fetchone()
            return Session(*row) if row else None

        return self._read_cached("session", id_hash, query)

    get_cached_session = get_session

    def clear_cached_logins(self) -> None:
        pass

    async def get_id_token(self, id_hash: bytes) -> str:
        def query(connection: sqlite3.Connection) -> str:
            row = connection.execute("SELECT id_token FROM id_token WHERE id_hash = ?", (id_hash,)).fetchone()
            return row[0] if row else ""

        return await self._read(query)

    async def list_sessions(self) -> list[Session]:
        def query(connection: sqlite3.Connection) -> list[Session]:
            return [Session(*row) for row in connection.execute(_SELECT_SESSIONS)]

        return await self._read(query)

    async def list_sessions_of(self, username: str) -> dict[bytes, Session]:
        def query(connection: sqlite3.Connection) -> dict[bytes, Session]:
            return {id_hash: Session(*row) for id_hash, *row in connection.execute(_SELECT_SESSIONS_OF, (username,))}

        return await self._read(query)

    async def renew_session(self, id_hash: bytes, *, seen: float, expires: float) -> None:
        def write(connection: sqlite3.Connection) -> None:
            update = "UPDATE session SET seen = ?, expires = ? WHERE id_hash = ?"
            connection.execute(update, (seen, expires, id_hash))

        await self._write(write, changes=("session",))

    async def prove_session(self, id_hash: bytes, *, authenticated: float, fingerprint: bytes | None = None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            update = "UPDATE session SET authenticated = ?, fingerprint = coalesce(?, fingerprint) WHERE id_hash = ?"
            connection.execute(update, (authenticated, fingerprint, id_hash))

        await self._write(write, changes=("session",))

    async def register_device(self, id_hash: bytes, key: str) -> bool:
        def write(connection: sqlite3.Connection) -> bool:
            return connection.execute(_REGISTER_DEVICE, (key, id_hash, key)).rowcount == 1

        return await self._write(write, changes=("session",))

    async def bind_session(self, id_hash: bytes, *, bound: float) -> bool:
        def write(connection: sqlite3.Connection) -> bool:
            is_first = connection.execute(_BIND_SESSION, (bound, id_hash)).rowcount == 1
            if is_first:
                connection.execute(_NOTE_ACCOUNT, (id_hash,))
            return is_first

        return await self._write(write, changes=("session",))

    async def was_bound(self, username: str) -> bool:
        query = "SELECT 1 FROM bound_account WHERE username = ?"
        return await self._read(lambda connection: connection.execute(query, (username,)).fetchone() is not None)

    async def delete_sessions(self, id_hashes: Collection[bytes]) -> int:
        return await self._delete_sessions(_END_SESSION, [(id_hash,) for id_hash in id_hashes])

    async def delete_sessions_of(self, fingerprints: Mapping[str, bytes | None]) -> int:
        rows = list(fingerprints.items())
        return await self._delete_sessions("DELETE FROM session WHERE username = ? AND fingerprint IS NOT ?", rows)

    async def end_sessions_at(self, fingerprint: bytes, *, subject: str = "", sid: str = "") -> int:
        if sid:
            return await self._delete_sessions(_END_AT_SID, [(fingerprint, sid, subject)])
        return await self._delete_sessions(_END_AT_SUBJECT, [(fingerprint, subject)])

    async def delete_all_sessions(self) -> int:
        return await self._delete_sessions("DELETE FROM session", [()])

    async def _delete_sessions(self, delete: str, rows: Sequence[tuple[object, ...]]) -> int:
        if not rows:
            return 0
        return await self._write_ending(lambda connection: _end_sessions(connection, delete, rows))

    async def _write_ending(self, write: Callable[[sqlite3.Connection], _Ended]) -> int:
        """Commit a write that may end sessions; return how many ended."""
        ended = await self._write(write, changes=("session",))
        self._remove_later(ended.id_tokens)
        return ended.sessions

    def _remove_later(self, id_tokens: int) -> None:
        """Remove deleted ID tokens from the write-ahead log and unused space, too, as the texts of deleted posts."""
        if id_tokens:
            self.database.deleted_texts.remove_later()

    async def count_failures(self, keys: FailureKeys, *, now: float) -> Mapping[bytes, Failures]:
        expiries = await self._read_cached("failure", keys, lambda connection: _select_failures(connection, keys))
        return _count(keys, expiries, now) if expiries else {}

    async def reserve_attempt(
        self, reservation: Reservation, *, allowed: Sequence[int], now: float
    ) -> Mapping[bytes, Failures] | None:
        keys = reservation.keys

        def write(connection: sqlite3.Connection) -> dict[bytes, Failures] | None:
            counted = _count(keys, _select_failures(connection, keys), now)
            for key, most in zip(keys, allowed, strict=True):
                if key in counted and counted[key].count + counted[key].reserved >= most:
                    return counted
            _insert_failures(connection, map(_reserved, keys), reservation.expires)
            return None

        # Not synced: a power failure ends the attempt, too.
        return await self._write(write, synced=False, changes=("failure",))

    async def release_attempt(self, reservation: Reservation) -> None:
        await self._write(
            lambda connection: _delete_reservation(connection, reservation), synced=False, changes=("failure",)
        )

    async def add_failure(
        self, keys: FailureKeys, *, now: float, expires: float, reservation: Reservation | None = None
    ) -> Mapping[bytes, Failures]:
        def write(connection: sqlite3.Connection) -> dict[bytes, Failures]:
            if reservation is not None:
                _delete_reservation(connection, reservation)
            _insert_failures(connection, keys, expires)
            return _count(keys, _select_failures(connection, keys), now)

        return await self._write(write, changes=("failure",))

    async def forget_failures(self, key: bytes) -> None:
        delete = "DELETE FROM failure WHERE key = ?"
        await self._write(lambda connection: connection.execute(delete, (key,)), changes=("failure",))

    async def purge_expired(self, *, now: float, wall: float) -> float:
        expired = dict.fromkeys(_EXPIRING, now)
        expired["nonce_use"] = now - NONCE_COUNTS_KEPT_S
        expired["used_proof"] = min(now, wall) - NONCE_COUNTS_KEPT_S
        expired["personal_token"] = now - TOKENS_KEPT_S

        def query(connection: sqlite3.Connection) -> tuple[bool, float]:
            (reached,) = connection.execute(_SELECT_CLOCK).fetchone()
            # Of an empty table nothing is found, so that the clock of an idle store is not written; nor for tokens that
            # never expire.
            found = (connection.execute(f"SELECT min(expires) FROM {table}").fetchone()[0] for table in expired)  # noqa: S608 - only constants
            earliest = {table: first for table, first in zip(expired, found, strict=True) if first not in (None, inf)}
            is_behind = bool(earliest) and reached <= now - CLOCK_KEPT_S
            return is_behind or any(first <= expired[table] for table, first in earliest.items()), reached

        def write(connection: sqlite3.Connection) -> tuple[float, int]:
            connection.execute(_UPDATE_CLOCK, (now, expired["nonce_use"], expired["used_proof"]))
            id_tokens = 0
            for table, until in expired.items():
                delete = f"DELETE FROM {table} WHERE expires <= ?"  # noqa: S608 - only constants
                id_tokens += _end_sessions(connection, delete, [(until,)]).id_tokens  # of other tables none
            return connection.execute(_SELECT_CLOCK).fetchone()[0], id_tokens

        needs_write, reached = await self._read(query)
        # An empty write transaction would lock other processes out.
        if needs_write:
            reached, id_tokens = await self._write(write, synced=False)
            self._remove_later(id_tokens)
        return reached


def _end_sessions(connection: sqlite3.Connection, delete: str, rows: Sequence[tuple[object, ...]]) -> _Ended:
    before = connection.total_changes  # with those of triggers: an ID token is deleted by one
    sessions = connection.executemany(delete, rows).rowcount if rows else 0
    return _Ended(sessions, connection.total_changes - before - sessions)


def _reserved(key: bytes) -> bytes:
    """Return the key under which the reservations of a key are stored, as failures."""
    return key + b" reserved"


def _insert_failures(connection: sqlite3.Connection, keys: Iterable[bytes], expires: float) -> None:
    connection.executemany("INSERT INTO failure (key, expires) VALUES (?, ?)", [(key, expires) for key in keys])


def _delete_reservation(connection: sqlite3.Connection, reservation: Reservation) -> None:
    # Rows with the same key and expiry are interchangeable: any row of them is deleted.
    one = "SELECT number FROM failure WHERE key = ? AND expires = ? LIMIT 1"
    rows = [(_reserved(key), reservation.expires) for key in reservation.keys]
    connection.executemany(f"DELETE FROM failure WHERE number = ({one})", rows)  # noqa: S608 - only a constant


def _select_failures(connection: sqlite3.Connection, keys: FailureKeys) -> dict[bytes, list[float]]:
    """Return the expiry times of the failures and reservations of each key, in ascending order."""
    wanted = (*keys, *map(_reserved, keys))
    places = ", ".join("?" * len(wanted))
    query = f"SELECT key, expires FROM failure WHERE key IN ({places}) ORDER BY expires"  # noqa: S608 - only places
    expiries: dict[bytes, list[float]] = {}
    for key, expires in connection.execute(query, wanted):
        expiries.setdefault(key, []).append(expires)
    return expiries


def _count(keys: FailureKeys, expiries: Mapping[bytes, list[float]], now: float) -> dict[bytes, Failures]:
    counted = {}
    for key in keys:
        failed, reserved = (
            [expires for expires in expiries.get(kept, ()) if expires > now] for kept in (key, _reserved(key))
        )
        if failed or reserved:
            counted[key] = Failures(len(failed), failed[0] if failed else 0.0, len(reserved))
    return counted
