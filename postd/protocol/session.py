"""Identifiers of sessions (spec: Session)."""

import hashlib
import secrets
import string

from postd.model import Session

_ID_BYTES = 32
_ID_CHARS = 43
_ALPHABET = (string.ascii_letters + string.digits + "_-").encode("ascii")

RENEWAL_MAX_S = 60
"""How long at the most a session may be in use before that is written down."""


def make_session_id() -> str:
    """Make an identifier that nobody guesses: 256 bits from the operating system."""
    return secrets.token_urlsafe(_ID_BYTES)


def hash_session_id(session_id: str) -> bytes | None:
    """Return what a store keeps of an identifier, None if it cannot be one of ours.

    A plain hash is enough: there is nothing to guess that a slow or keyed one would make harder.
    """
    encoded = session_id.encode(errors="replace")
    if len(encoded) != _ID_CHARS or encoded.translate(None, _ALPHABET):
        return None
    return hashlib.sha256(encoded).digest()


def make_session(username: str, fingerprint: bytes, *, now: float, idle_s: float, lifetime_s: float) -> Session:
    """Begin a session."""
    ends = now + lifetime_s
    return Session(username, fingerprint, now, now, min(now + idle_s, ends), ends)


def renewal(session: Session, *, now: float, idle_s: float) -> float | None:
    """Return when a session that is used now expires, None if that need not be written down yet."""
    if now - session.seen < min(RENEWAL_MAX_S, idle_s / 10):
        return None
    return min(now + idle_s, session.ends)
