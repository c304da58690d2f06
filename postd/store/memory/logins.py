"""Sessions, nonce counts, failed logins and keys in memory (`postd.store.interface.LoginStore`)."""

import secrets
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from postd.defaults import SESSIONS_PER_ACCOUNT
from postd.protocol.session import Session
from postd.store.interface import (
    KEY_BYTES,
    NONCE_COUNTS_KEPT_S,
    FailureKeys,
    Failures,
    Reservation,
)
from postd.store.memory.credentials import MemoryCredentials
from postd.store.memory.expiry_queue import ExpiryQueue

K = TypeVar("K")

_PURGED_AT_ONCE = 200
"""How many entries of each kind are purged before the reactor runs on: a millisecond or two."""

_EXPIRY: Callable[[tuple[float, str]], float] = itemgetter(0)


class _Attempts(Struct):
    """The attempts of a key that were not purged.

    Args:
        failures: the expiry of each, in ascending order.
        reservations: the expiry and the id of each, in ascending order.
    """

    failures: list[float] = field(default_factory=list)
    reservations: list[tuple[float, str]] = field(default_factory=list)

    def count(self, now: float) -> Failures:
        expired = bisect_right(self.failures, now)
        count = len(self.failures) - expired
        reserved = len(self.reservations) - bisect_right(self.reservations, now, key=_EXPIRY)
        return Failures(count, self.failures[expired] if count else 0.0, reserved)

    def delete_reservation(self, reservation: Reservation) -> bool:
        """Delete a reservation; return whether there was one."""
        kept = reservation.expires, reservation.id
        index = bisect_left(self.reservations, kept)
        found = self.reservations[index : index + 1] == [kept]
        if found:
            del self.reservations[index]
        return found

    def first_expiry(self) -> float | None:
        return min((*self.failures[:1], *map(_EXPIRY, self.reservations[:1])), default=None)

    def drop_expired(self, now: float) -> None:
        del self.failures[: bisect_right(self.failures, now)]
        del self.reservations[: bisect_right(self.reservations, now, key=_EXPIRY)]


class MemoryLogins(MemoryCredentials):
    """A login store of one process, in memory (`postd.store.interface.LoginStoreWithLifecycle`).

    The data live as long as this object: they survive `stop` and `start`, but not the process. Each operation is one
    step without waiting, except for `purge_expired`.

    Args:
        reactor: runs on between the steps of a large purge.
    """

    def __init__(self, *, reactor: IReactorTime) -> None:
        super().__init__()
        self._reactor = reactor
        self._keys: dict[str, bytes] = {}
        self._sessions: dict[bytes, Session] = {}
        self._id_tokens: dict[bytes, str] = {}
        self._sessions_of: dict[str, set[bytes]] = {}
        self._sessions_at: dict[tuple[bytes, str, str], set[bytes]] = {}
        self._session_expiries = ExpiryQueue()
        self._bound_accounts: set[str] = set()
        self._nonce_counts: dict[bytes, set[int]] = {}
        self._nonce_expiries = ExpiryQueue()
        self._proofs: dict[bytes, float] = {}  # with their expiries
        self._proof_expiries = ExpiryQueue()
        self._reached = 0.0
        self._last_proof_removed = 0.0  # its expiry
        self._attempts: dict[bytes, _Attempts] = {}
        self._attempt_expiries = ExpiryQueue()  # of each key the first expiry

    async def key(self, name: str) -> bytes:
        key = self._keys.get(name)
        self._begin("write" if key is None else "read")
        if key is None:
            key = self._keys[name] = secrets.token_bytes(KEY_BYTES)
        return key

    async def use_nonce(self, nonce: bytes, count: int, *, expires: float) -> bool:
        self._begin("write")
        if expires <= self._reached - NONCE_COUNTS_KEPT_S:
            return False
        counts = self._nonce_counts.setdefault(nonce, set())
        if count in counts:
            return False
        counts.add(count)
        self._nonce_expiries.set(nonce, expires)
        return True

    async def use_proof(self, proof: bytes, *, expires: float) -> bool:
        self._begin("write")
        if proof in self._proofs or expires <= self._last_proof_removed:
            return False
        self._proofs[proof] = expires
        self._proof_expiries.set(proof, expires)
        return True

    async def add_session(
        self,
        id_hash: bytes,
        session: Session,
        *,
        in_place_of: Collection[bytes] = (),
        max_of_user: int = SESSIONS_PER_ACCOUNT,
        id_token: str = "",
    ) -> None:
        self._begin("write")
        for old in (*in_place_of, id_hash):
            self._end_session(old)
        others = self._sessions_of.get(session.username, ())
        if len(others) >= max_of_user:
            oldest_first = sorted(others, key=lambda old: self._age(old, session.created))
            for old in oldest_first[: len(others) + 1 - max_of_user]:
                self._end_session(old)
        self._sessions[id_hash] = session
        if id_token:
            self._id_tokens[id_hash] = id_token
        self._sessions_of.setdefault(session.username, set()).add(id_hash)
        for key in _keys_at(session):
            self._sessions_at.setdefault(key, set()).add(id_hash)
        self._session_expiries.set(id_hash, session.expires)

    async def get_session(self, id_hash: bytes) -> Session | None:
        self._begin("read")
        return self._sessions.get(id_hash)

    get_cached_session = get_session

    def clear_cached_logins(self) -> None:
        pass

    async def get_id_token(self, id_hash: bytes) -> str:
        self._begin("read")
        return self._id_tokens.get(id_hash, "")

    async def list_sessions(self) -> list[Session]:
        self._begin("read")
        return sorted(self._sessions.values(), key=lambda session: (session.created, session.username))

    async def list_sessions_of(self, username: str) -> dict[bytes, Session]:
        self._begin("read")
        found = [(id_hash, self._sessions[id_hash]) for id_hash in self._sessions_of.get(username, ())]
        return dict(sorted(found, key=lambda one: (one[1].created, one[0])))

    async def renew_session(self, id_hash: bytes, *, seen: float, expires: float) -> None:
        self._begin("write")
        session = self._sessions.get(id_hash)
        if session is not None:
            self._sessions[id_hash] = replace(session, seen=seen, expires=expires)
            self._session_expiries.set(id_hash, expires)

    async def prove_session(self, id_hash: bytes, *, authenticated: float, fingerprint: bytes | None = None) -> None:
        self._begin("write")
        session = self._sessions.get(id_hash)
        if session is not None:
            kept = session.fingerprint if fingerprint is None else fingerprint
            self._sessions[id_hash] = replace(session, authenticated=authenticated, fingerprint=kept)

    async def register_device(self, id_hash: bytes, key: str) -> bool:
        self._begin("write")
        session = self._sessions.get(id_hash)
        if session is None or session.device_key not in ("", key):
            return False
        self._sessions[id_hash] = replace(session, device_key=key)
        return True

    async def bind_session(self, id_hash: bytes, *, bound: float) -> bool:
        self._begin("write")
        session = self._sessions.get(id_hash)
        if session is None or not session.device_key or session.bound:
            return False
        self._sessions[id_hash] = replace(session, bound=bound)
        self._bound_accounts.add(session.username)
        return True

    async def was_bound(self, username: str) -> bool:
        self._begin("read")
        return username in self._bound_accounts

    async def delete_sessions(self, id_hashes: Collection[bytes]) -> int:
        self._begin("write")
        return sum(map(self._end_session, id_hashes))

    async def delete_sessions_of(self, fingerprints: Mapping[str, bytes | None]) -> int:
        self._begin("write")
        ended = [
            id_hash
            for username, kept in fingerprints.items()
            for id_hash in self._sessions_of.get(username, ())
            if self._sessions[id_hash].fingerprint != kept
        ]
        return sum(map(self._end_session, ended))

    async def end_sessions_at(self, fingerprint: bytes, *, subject: str = "", sid: str = "") -> int:
        self._begin("write")
        key = (fingerprint, "sid", sid) if sid else (fingerprint, "subject", subject)
        found = self._sessions_at.get(key, ())
        ended = [id_hash for id_hash in found if subject in ("", self._sessions[id_hash].subject)]
        return sum(map(self._end_session, ended))

    async def delete_all_sessions(self) -> int:
        self._begin("write")
        return sum(map(self._end_session, list(self._sessions)))

    async def count_failures(self, keys: FailureKeys, *, now: float) -> Mapping[bytes, Failures]:
        self._begin("read")
        return self._count(keys, now)

    async def reserve_attempt(
        self, reservation: Reservation, *, allowed: Sequence[int], now: float
    ) -> Mapping[bytes, Failures] | None:
        self._begin("write")
        counted = self._count(reservation.keys, now)
        for key, most in zip(reservation.keys, allowed, strict=True):
            if key in counted and counted[key].count + counted[key].reserved >= most:
                return counted
        for key in reservation.keys:
            attempts = self._attempts.setdefault(key, _Attempts())
            insort(attempts.reservations, (reservation.expires, reservation.id))
            self._update_expiry(key, attempts)
        return None

    async def release_attempt(self, reservation: Reservation) -> None:
        self._begin("write")
        self._delete_reservation(reservation)

    async def add_failure(
        self, keys: FailureKeys, *, now: float, expires: float, reservation: Reservation | None = None
    ) -> Mapping[bytes, Failures]:
        self._begin("write")
        if reservation is not None:
            self._delete_reservation(reservation)
        for key in keys:
            attempts = self._attempts.setdefault(key, _Attempts())
            insort(attempts.failures, expires)
            self._update_expiry(key, attempts)
        return self._count(keys, now)

    async def forget_failures(self, key: bytes) -> None:
        self._begin("write")
        attempts = self._attempts.get(key)
        if attempts is not None:
            attempts.failures.clear()
            self._update_expiry(key, attempts)

    async def purge_expired(self, *, now: float, wall: float) -> float:
        self._begin("write")
        self._reached = max(self._reached, now)
        while self._purge_some(now, min(now, wall)):
            await deferLater(self._reactor, 0)
        return self._reached

    def _purge_some(self, now: float, proofs_until: float) -> bool:
        """Remove at most `_PURGED_AT_ONCE` expired entries of each kind; return whether there may be more."""
        sessions = self._session_expiries.pop_expired(now=now, most=_PURGED_AT_ONCE)
        for id_hash in sessions:
            self._end_session(id_hash)
        nonces = self._nonce_expiries.pop_expired(now=now - NONCE_COUNTS_KEPT_S, most=_PURGED_AT_ONCE)
        for nonce in nonces:
            del self._nonce_counts[nonce]
        proofs = self._proof_expiries.pop_expired(now=proofs_until - NONCE_COUNTS_KEPT_S, most=_PURGED_AT_ONCE)
        for proof in proofs:
            self._last_proof_removed = max(self._last_proof_removed, self._proofs.pop(proof))
        keys = self._attempt_expiries.pop_expired(now=now, most=_PURGED_AT_ONCE)
        for key in keys:
            attempts = self._attempts[key]
            attempts.drop_expired(now)
            self._update_expiry(key, attempts)
        credentials = self._purge_credentials(now, _PURGED_AT_ONCE)
        return max(credentials, len(sessions), len(nonces), len(proofs), len(keys)) == _PURGED_AT_ONCE

    def _age(self, id_hash: bytes, now: float) -> float:
        """Return when a session was created; 0 if it has expired."""
        session = self._sessions[id_hash]
        return session.created if session.expires > now else 0

    def _end_session(self, id_hash: bytes) -> bool:
        """End a session; return whether there was one."""
        session = self._sessions.pop(id_hash, None)
        if session is None:
            return False
        self._id_tokens.pop(id_hash, None)
        _remove(self._sessions_of, session.username, id_hash)
        for key in _keys_at(session):
            _remove(self._sessions_at, key, id_hash)
        self._session_expiries.discard(id_hash)
        return True

    def _count(self, keys: FailureKeys, now: float) -> dict[bytes, Failures]:
        counted = {}
        for key in keys:
            attempts = self._attempts.get(key)
            if attempts is not None:
                found = attempts.count(now)
                if found.count or found.reserved:
                    counted[key] = found
        return counted

    def _delete_reservation(self, reservation: Reservation) -> None:
        for key in reservation.keys:
            attempts = self._attempts.get(key)
            if attempts is not None and attempts.delete_reservation(reservation):
                self._update_expiry(key, attempts)

    def _update_expiry(self, key: bytes, attempts: _Attempts) -> None:
        """Note when the first attempt of a key expires, after a change of them; remove the key if none is left."""
        expires = attempts.first_expiry()
        if expires is None:
            del self._attempts[key]
            self._attempt_expiries.discard(key)
        else:
            self._attempt_expiries.set(key, expires)


def _keys_at(session: Session) -> list[tuple[bytes, str, str]]:
    """Return the keys under which `end_sessions_at` finds a session."""
    claims = (("subject", session.subject), ("sid", session.sid))
    return [(session.fingerprint, claim, value) for claim, value in claims if value]


def _remove(index: dict[K, set[bytes]], key: K, id_hash: bytes) -> None:
    """Remove a session from an index, and its key if no other session has it."""
    found = index[key]
    found.remove(id_hash)
    if not found:
        del index[key]
