"""Sessions, nonce counts, failed logins and keys in Redis (`postd.store.interface.LoginStore`).

Bytes are stored as hexadecimal digits, and times as text that is read back exactly. Redis' own expiry is not used:
expired entries are purged, as in every store.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from postd.defaults import SESSIONS_PER_ACCOUNT
from postd.protocol.session import Session
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
from postd.store.redis.cached_records import CachedRecords, Fields
from postd.store.redis.database import RedisDatabase
from postd.store.redis.scripts import KEYS, Script, load_script

_MAKE_KEY = load_script("make_key", writes=True)
_USE_NONCE = load_script("use_nonce", writes=True)
_USE_PROOF = load_script("use_proof", writes=True)
_ADD_SESSION = load_script("add_session", writes=True)
_PROVE_SESSION = load_script("prove_session", writes=True)
_RENEW_SESSION = load_script("renew_session", writes=True)
_REGISTER_DEVICE = load_script("register_device", writes=True)
_BIND_SESSION = load_script("bind_session", writes=True)
_DELETE_SESSIONS = load_script("delete_sessions", writes=True)
_DELETE_SESSIONS_OF = load_script("delete_sessions_of", writes=True)
_END_SESSIONS_AT = load_script("end_sessions_at", writes=True)
_COUNT_FAILURES = load_script("count_failures")
_RESERVE_ATTEMPT = load_script("reserve_attempt", writes=True, in_order=True)
_RELEASE_ATTEMPT = load_script("release_attempt", writes=True)
_ADD_FAILURE = load_script("add_failure", writes=True, in_order=True)
_FORGET_FAILURES = load_script("forget_failures", writes=True)
_PURGE = load_script("credentials", "purge", writes=True)

_PURGED_AT_ONCE = 1000
"""How many entries of each kind are purged by one script: a few milliseconds of the server's time."""

_SESSION_FIELDS = Session.__struct_fields__
_NO_FINGERPRINT = "-"


class RedisLogins(StorePart[RedisDatabase]):
    """Sessions, nonce counts, failures and service keys, each under keys of their own."""

    def __init__(self, database: RedisDatabase) -> None:
        super().__init__(database)
        self._read_command, self._read, self._write = database.read_command, database.read, database.write
        self.get_cached_session = CachedRecords(database, KEYS["SESSION"], _SESSION_FIELDS, _decode_session).get

    async def key(self, name: str) -> bytes:
        key = self.database.service_keys.get(name)
        if key is None:
            known = await self._read_command("GET", KEYS["KEY"] + name)
            encoded = known or await self._write(_MAKE_KEY, name, secrets.token_hex(KEY_BYTES))
            key = self.database.service_keys[name] = bytes.fromhex(encoded)
        return key

    async def use_nonce(self, nonce: bytes, count: int, *, expires: float) -> bool:
        first: bool = await self._write(_USE_NONCE, nonce.hex(), count, repr(expires)) == 1
        return first

    async def use_proof(self, proof: bytes, *, expires: float) -> bool:
        first: bool = await self._write(_USE_PROOF, proof.hex(), repr(expires)) == 1
        return first

    async def add_session(
        self,
        id_hash: bytes,
        session: Session,
        *,
        in_place_of: Collection[bytes] = (),
        max_of_user: int = SESSIONS_PER_ACCOUNT,
        id_token: str = "",
    ) -> None:
        times = (repr(time) for time in (session.created, session.seen, session.expires, session.ends))
        ending = (old.hex() for old in in_place_of)
        stored = (id_hash.hex(), session.username, session.fingerprint.hex(), *times)
        provided = (session.shown_name, session.provider, session.subject, session.sid)
        authenticated = repr(session.authenticated) if session.authenticated else ""
        shown = (authenticated, session.address, session.browser, session.scheme)
        device = (session.device_key, repr(session.bound) if session.bound else "")
        await self._write(_ADD_SESSION, *stored, max_of_user, *provided, *shown, *device, id_token, *ending)

    async def get_session(self, id_hash: bytes) -> Session | None:
        return _decode_session(await self._read_command("HMGET", KEYS["SESSION"] + id_hash.hex(), *_SESSION_FIELDS))

    def clear_cached_logins(self) -> None:
        self.database.cached_records = {}

    async def get_id_token(self, id_hash: bytes) -> str:
        return await self._read_command("HGET", KEYS["SESSION"] + id_hash.hex(), "id_token") or ""

    async def list_sessions(self) -> list[Session]:
        ids = await self._read_command("ZRANGE", KEYS["SESSIONS"], 0, -1)
        found = map(_decode_session, await self.database.read_records(KEYS["SESSION"], _SESSION_FIELDS, ids))
        sessions = [session for session in found if session is not None]
        return sorted(sessions, key=lambda session: (session.created, session.username))

    async def list_sessions_of(self, username: str) -> dict[bytes, Session]:
        ids = [*await self._read_command("SMEMBERS", KEYS["SESSIONS_OF"] + username)]
        found = map(_decode_session, await self.database.read_records(KEYS["SESSION"], _SESSION_FIELDS, ids))
        sessions = [
            (bytes.fromhex(id_), session) for id_, session in zip(ids, found, strict=True) if session is not None
        ]
        return dict(sorted(sessions, key=lambda one: (one[1].created, one[0])))

    async def renew_session(self, id_hash: bytes, *, seen: float, expires: float) -> None:
        await self._write(_RENEW_SESSION, id_hash.hex(), repr(seen), repr(expires))

    async def prove_session(self, id_hash: bytes, *, authenticated: float, fingerprint: bytes | None = None) -> None:
        changed = () if fingerprint is None else ("fingerprint", fingerprint.hex())
        await self._write(_PROVE_SESSION, id_hash.hex(), "authenticated", repr(authenticated), *changed)

    async def register_device(self, id_hash: bytes, key: str) -> bool:
        registered: bool = await self._write(_REGISTER_DEVICE, id_hash.hex(), key) == 1
        return registered

    async def bind_session(self, id_hash: bytes, *, bound: float) -> bool:
        is_first: bool = await self._write(_BIND_SESSION, id_hash.hex(), repr(bound)) == 1
        return is_first

    async def was_bound(self, username: str) -> bool:
        return await self._read_command("HGET", KEYS["BOUND_ACCOUNTS"], username) is not None

    async def delete_sessions(self, id_hashes: Collection[bytes]) -> int:
        return await self._delete_sessions(_DELETE_SESSIONS, [id_hash.hex() for id_hash in id_hashes])

    async def delete_sessions_of(self, fingerprints: Mapping[str, bytes | None]) -> int:
        pairs = ((name, _NO_FINGERPRINT if kept is None else kept.hex()) for name, kept in fingerprints.items())
        return await self._delete_sessions(_DELETE_SESSIONS_OF, [*chain.from_iterable(pairs)])

    async def end_sessions_at(self, fingerprint: bytes, *, subject: str = "", sid: str = "") -> int:
        ended: int = await self._write(_END_SESSIONS_AT, fingerprint.hex(), subject, sid)
        return ended

    async def delete_all_sessions(self) -> int:
        ids = await self._read_command("ZRANGE", KEYS["SESSIONS"], 0, -1)
        return await self._delete_sessions(_DELETE_SESSIONS, ids)

    async def _delete_sessions(self, script: Script, arguments: Sequence[str]) -> int:
        return await self.database.write_in_batches(script, (), arguments)

    async def count_failures(self, keys: FailureKeys, *, now: float) -> Mapping[bytes, Failures]:
        return _decode_failures(await self._read(_COUNT_FAILURES, repr(now), *(key.hex() for key in keys)))

    async def reserve_attempt(
        self, reservation: Reservation, *, allowed: Sequence[int], now: float
    ) -> Mapping[bytes, Failures] | None:
        keys = (key.hex() for key in reservation.keys)
        counted = await self._write(
            _RESERVE_ATTEMPT, repr(now), repr(reservation.expires), reservation.id, *keys, *allowed
        )
        return None if counted is None else _decode_failures(counted)

    async def release_attempt(self, reservation: Reservation) -> None:
        await self._write(_RELEASE_ATTEMPT, reservation.id, *(key.hex() for key in reservation.keys))

    async def add_failure(
        self, keys: FailureKeys, *, now: float, expires: float, reservation: Reservation | None = None
    ) -> Mapping[bytes, Failures]:
        id_ = secrets.token_hex(8) if reservation is None else reservation.id
        hexed = (key.hex() for key in keys)
        return _decode_failures(await self._write(_ADD_FAILURE, repr(now), repr(expires), id_, *hexed))

    async def forget_failures(self, key: bytes) -> None:
        await self._write(_FORGET_FAILURES, key.hex())

    async def purge_expired(self, *, now: float, wall: float) -> float:
        nonces, proofs, tokens = now - NONCE_COUNTS_KEPT_S, min(now, wall) - NONCE_COUNTS_KEPT_S, now - TOKENS_KEPT_S
        times = [*map(repr, (now, nonces, proofs, tokens))]
        more = True
        while more:
            more, reached = await self._write(_PURGE, *times, CLOCK_KEPT_S, _PURGED_AT_ONCE)
        return float(reached)


def _decode_session(fields: Fields) -> Session | None:
    username, fingerprint, created, seen, expires, ends, shown_name, provider, subject, sid, *rest = fields
    if username is None:
        return None
    authenticated, address, browser, scheme, device_key, bound = rest
    return Session(
        username,
        bytes.fromhex(fingerprint),
        float(created),
        float(seen),
        float(expires),
        float(ends),
        shown_name or "",  # empty fields are not stored, nor were they by older versions
        provider or "",
        subject or "",
        sid or "",
        float(authenticated or 0.0),
        address or "",
        browser or "",
        scheme or "",
        device_key or "",
        float(bound or 0.0),
    )


def _decode_failures(counted: list[Any]) -> dict[bytes, Failures]:
    return {bytes.fromhex(key): Failures(count, float(first), reserved) for key, count, first, reserved in counted}
