"""Sessions, their identifiers, and their renewal (spec: Session)."""

import hashlib
import secrets
import string

from msgspec import Struct

_ID_BYTES = 32
_ID_CHARS = 43
_ALPHABET = (string.ascii_letters + string.digits + "_-").encode("ascii")

RENEWAL_MAX_S = 60
"""The longest time between a use of a session and its renewal in the store."""


class Session(Struct, frozen=True):
    """A session begun by a sign-in here (spec: Session) or at an OpenID provider. Times are seconds since the epoch.

    The spec leaves the contents of a session open. Here: its user; the fingerprint of the user's account, so that a
    changed password ends the session; the times of creation and of last use; when it expires if it is not used, and
    when it ends in any case, never before that.

    Of a session begun at a provider also: the name that pages show, the id of the provider in the settings, and the
    claims `sub` and `sid` of its ID token. Each is empty if it is not known, and all are after form login.

    For its user: when the user last proved who they are, by a password or a passkey or at the provider; the address,
    the browser, in words, and the scheme of the sign-in. They are 0 and empty if they are not known.

    Of a session that a browser binds to its device: the public key, a JWK in JSON, and the time of the first request
    with a proof of it. From then on the session is bound; before, the browser may have dropped its key.

    New fields go to the end, with a default: stored sessions lack them.
    """

    username: str
    fingerprint: bytes
    created: float
    seen: float
    expires: float
    ends: float
    shown_name: str = ""
    provider: str = ""
    subject: str = ""
    sid: str = ""
    authenticated: float = 0.0
    address: str = ""
    browser: str = ""
    scheme: str = ""
    device_key: str = ""
    bound: float = 0.0


class BindingTimes(Struct, frozen=True):
    """How long what binds a session to a device is accepted, in seconds.

    Args:
        proof_s: the age of a proof.
        stream_s: the age of the proof of an event stream.
        challenge_s: the age of a challenge. One that comes with a proof is accepted for so long after the proof.
        grace_s: the age of a session whose cookie still is enough, without a proof, if no proof was seen earlier.
        on_their_way_s: how long requests may take that were sent without a proof, before there was one.
        skew_s: how far clocks of servers and browsers may differ.
    """

    proof_s: float = 600.0
    stream_s: float = 900.0
    challenge_s: float = 300.0
    grace_s: float = 60.0
    on_their_way_s: float = 5.0
    skew_s: float = 60.0


def make_session_id() -> str:
    """Return a new unguessable identifier: 256 bits from the operating system."""
    return secrets.token_urlsafe(_ID_BYTES)


def hash_session_id(session_id: str) -> bytes | None:
    """Return the hash of an identifier, as kept in the store; None if it is malformed.

    A plain hash suffices: 256 random bits cannot be guessed.
    """
    encoded = session_id.encode(errors="replace")
    if len(encoded) != _ID_CHARS or encoded.translate(None, _ALPHABET):
        return None
    return hashlib.sha256(encoded).digest()


def make_session(username: str, fingerprint: bytes, *, now: float, idle_s: float, lifetime_s: float) -> Session:
    """Return a new session."""
    ends = now + lifetime_s
    return Session(username, fingerprint, now, now, min(now + idle_s, ends), ends)


def renewal(session: Session, *, now: float, idle_s: float) -> float | None:
    """Return the new expiry of a session used now, None if it need not be renewed in the store yet."""
    if now - session.seen < min(RENEWAL_MAX_S, idle_s / 10):
        return None
    return min(now + idle_s, session.ends)
