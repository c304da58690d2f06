"""Sessions bound to a device: keys, challenges and proofs of a service (W3C draft; reference: Sessions)."""

from collections.abc import Callable
from contextlib import suppress

from twisted.logger import Logger

from postd.errors import StoreUnavailableError
from postd.protocol.bound_session import (
    DeviceProof,
    check_challenge,
    check_proof_cookie,
    find_proof_cookie,
    make_challenge,
    make_proof_cookie,
    name_challenge,
    seal_id,
    unseal_id,
)
from postd.protocol.dpop import ProofError
from postd.protocol.session import BindingTimes, Session
from postd.store.interface import LoginStore

_COOKIE_KEY, _CHALLENGE_KEY, _ID_KEY = "session-proof", "session-challenge", "bound-session"
"""The names of the keys in the store."""

_log = Logger()


class SessionBinding:
    """Binds sessions to keys of browsers' devices, and checks that they are used with a proof.

    Args:
        store: keeps the keys, and which challenges were answered.
        now: the clock of the dates in the store.
        times: how long all of it is accepted.
    """

    def __init__(self, store: LoginStore, *, now: Callable[[], float], times: BindingTimes) -> None:
        self._store, self._now, self.times = store, now, times
        self._late_s = times.on_their_way_s + times.skew_s

    async def is_proven(self, id_hash: bytes, session: Session, cookies: bytes) -> bool:
        """Return whether a session may be used by a request with some cookies; the first proof binds the session.

        The cookie of the session is enough before that, and for a moment after the sign-in.
        """
        now = self._now()
        # Not by a method of its own: each request takes these steps.
        expires = check_proof_cookie(await self._store.key(_COOKIE_KEY), id_hash, cookies)
        if now < expires + self._late_s:
            if not session.bound:
                with suppress(StoreUnavailableError):  # the next request binds it; the store logs the error
                    if await self._store.bind_session(id_hash, bound=now):  # not by another request at the same time
                        _log.info("session bound to a device: {user!r}", user=session.username)
            return True
        return self._needs_no_proof(session, now)

    async def may_stream(self, id_hash: bytes, session: Session, cookies: bytes) -> bool:
        """Return whether an event stream that a request with some cookies has opened may go on."""
        now, age_s = self._now(), self.times.stream_s - self.times.proof_s
        expires = check_proof_cookie(await self._store.key(_COOKIE_KEY), id_hash, cookies)
        return now < expires + age_s or self._needs_no_proof(session, now)

    def _needs_no_proof(self, session: Session, now: float) -> bool:
        since = min(session.created + self.times.grace_s, session.bound)
        # By a clock that is far behind that of the node that bound it, the moment would last for as long.
        return not session.bound or session.bound - self.times.skew_s <= now < since + self.times.on_their_way_s

    def find_proof(self, cookies: bytes) -> bytes:
        """Return the part of some cookies with the proof of a session; empty without one."""
        return find_proof_cookie(cookies)

    async def make_proof_cookie(self, id_hash: bytes) -> str:
        """Return the value of the cookie that is the proof of a session from now on."""
        return make_proof_cookie(await self._store.key(_COOKIE_KEY), id_hash, self._now() + self.times.proof_s)

    async def make_challenge(self, id_hash: bytes, *, in_advance: bool = False) -> str:
        """Return a new challenge for a session; one `in_advance` is answered when a proof of now has expired."""
        wait_s = self.times.proof_s if in_advance else 0.0
        expires = self._now() + wait_s + self.times.challenge_s
        return make_challenge(await self._store.key(_CHALLENGE_KEY), id_hash, expires)

    async def session_id(self, id_hash: bytes) -> str:
        """Return the identifier that browsers have for a bound session."""
        return seal_id(await self._store.key(_ID_KEY), id_hash)

    async def find_id_hash(self, session_id: bytes) -> bytes | None:
        """Return the hash of a session's identifier by the identifier that browsers have for it; None for others."""
        return unseal_id(await self._store.key(_ID_KEY), session_id)

    async def is_for(self, id_hash: bytes, challenge: str) -> bool:
        """Return whether a challenge was made for a session, however long ago."""
        return await self._challenge_expiry(id_hash, challenge) is not None

    async def register(self, id_hash: bytes, session: Session, proof: DeviceProof) -> None:
        """Store the key of a session, before the session is bound; the same key may come again.

        Raises:
            ProofError: the proof is not accepted.
            StoreUnavailableError: the key could not be stored.
        """
        if session.bound:
            raise ProofError("the session is bound")
        expires = await self._challenge_expiry(id_hash, proof.challenge)
        if expires is None:
            raise ProofError("jti is no challenge for this session")
        if expires <= self._now() and session.device_key != proof.key:
            raise ProofError("its challenge has expired")
        proof.verify(proof.key)
        if not await self._store.register_device(id_hash, proof.key):
            raise ProofError("the session has another key")
        # Whether it is the first use does not matter: another key would have been refused.
        await self._store.use_proof(name_challenge(proof.challenge), expires=expires)

    async def check(self, id_hash: bytes, session: Session, proof: DeviceProof) -> None:
        """Check the proof of a session with a key, which uses its challenge up.

        Raises:
            ProofError: it is not accepted.
            StoreUnavailableError: the use could not be stored.
        """
        expires = await self._challenge_expiry(id_hash, proof.challenge)
        if expires is None:
            raise ProofError("jti is no challenge for this session")
        if expires <= self._now():
            raise ProofError("its challenge has expired")
        proof.verify(session.device_key)
        if not await self._store.use_proof(name_challenge(proof.challenge), expires=expires):
            raise ProofError("its challenge was used before, or may have been")

    async def _challenge_expiry(self, id_hash: bytes, challenge: str) -> float | None:
        return check_challenge(await self._store.key(_CHALLENGE_KEY), id_hash, challenge)
