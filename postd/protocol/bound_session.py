"""Device Bound Session Credentials (W3C draft): a session that is bound to a key of the browser's device.

Pure: header fields, proofs, the instructions to a browser, and the texts by which a server recognizes its own sessions,
challenges and cookies. Where Chromium differs from the draft (of 17 February 2026), both are read.

The reason in an error (its `str()`) is for the log and has no content of the proof.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from functools import lru_cache

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from msgspec import Struct

from postd.protocol.base64url import decode_base64url, encode_base64url
from postd.protocol.dpop import PRIVATE_MEMBERS, ProofError, decode_own_key, own_members
from postd.protocol.jwk import KeySetError
from postd.protocol.jwt import Jwt, TokenError, decode_signed, describe, is_type, type_of
from postd.protocol.members import member, present

REGISTRATION = b"Secure-Session-Registration"
CHALLENGE = b"Secure-Session-Challenge"
RESPONSE = b"Secure-Session-Response"
SESSION_ID = b"Sec-Secure-Session-Id"

ALGORITHMS = ("ES256", "RS256")
"""The signatures of proofs; browsers implement no others."""

PROOF_MAX_BYTES = 4 * 1024
"""The longest proof: one with a key of RSA-2048 has some 900 bytes."""

COOKIE = "__Host-session-proof"
"""The name of the cookie that a browser renews by a proof."""

ATTRIBUTES = "Path=/; Secure; HttpOnly; SameSite=Lax"
"""Its attributes without its age. Browsers compare them as texts with those in the instructions."""

_ID_PURPOSE = [b"session"]
_DATE_DIGITS = 8
_NONCE_BYTES = 16
_MAC_CHARS = 43
_CHALLENGE = re.compile(rf"([0-9a-f]{{{_DATE_DIGITS}}}[A-Za-z0-9_-]{{22}})([A-Za-z0-9_-]{{{_MAC_CHARS}}})")
_PROVEN = re.compile(rb"(?:^|;)[ \t]*+" + COOKIE.encode() + rb"=([0-9a-f]{8}[0-9a-f]{64})(?=[ \t]*(?:;|$))")
_ITEM = re.compile(rb'(?:"([A-Za-z0-9._~-]*)"|([A-Za-z0-9._~-]*))[ \t]*(?:;.*)?')
_CACHED_MACS = 4096


class DeviceProof(Struct, frozen=True):
    """A decoded proof, not verified.

    Args:
        jwt: its header and claims.
        challenge: what it answers (`jti`).
        key: at a registration the public key in its header, a JWK in JSON with its required members alone; else empty.
    """

    jwt: Jwt
    challenge: str
    key: str = ""

    def verify(self, key: str) -> None:
        """Check that it is signed by a key, a JWK in JSON.

        Raises:
            ProofError: it is not, or the key cannot be used.
        """
        try:
            is_signed = decode_own_key(key).verify(self.jwt)
        except KeySetError as error:
            raise ProofError(f"its key cannot be used: {error}") from None
        if not is_signed:
            raise ProofError("its signature is wrong")


def decode_device_proof(text: bytes, *, registers: bool) -> DeviceProof:
    """Decode a proof without verifying it; one that `registers` has its key with it, any other has none.

    Other claims than `jti` are ignored: `aud`, `iat` and `sub`, which Chromium leaves out, say nothing that the
    challenge does not.

    Raises:
        ProofError: it is malformed, or a member of its header or its `jti` is not as it must be.
    """
    if len(text) > PROOF_MAX_BYTES:
        raise ProofError(f"it has more than {PROOF_MAX_BYTES} bytes")
    try:
        jwt = decode_signed(text)
    except TokenError as error:
        raise ProofError(str(error)) from None
    if not is_type(jwt, "dbsc+jwt"):
        raise ProofError(f"typ is not dbsc+jwt{describe(type_of(jwt))}")
    if jwt.algorithm not in ALGORITHMS:
        raise ProofError(f"alg is not accepted here{describe(jwt.algorithm)}")
    challenge = member(jwt.claims, "jti")
    if not isinstance(challenge, str):
        raise ProofError("jti is missing, or not text")
    key = member(jwt.header, "jwk")
    if not registers:
        if key is not None:
            raise ProofError("it has a key with it, which is for a registration")
        return DeviceProof(jwt, challenge)
    if not isinstance(key, dict):
        raise ProofError("jwk is missing, or not an object")
    if PRIVATE_MEMBERS & present(key).keys():
        raise ProofError("jwk has a private member")
    return DeviceProof(jwt, challenge, json.dumps(own_members(key), separators=(",", ":")))


def decode_item(lines: Sequence[bytes] | None) -> bytes:
    """Return the value of a field, bare as Chromium sends it, or a string as in the draft (RFC 9651 §3.3.3).

    Empty if the field is absent, repeated or malformed.
    """
    found = _ITEM.fullmatch(lines[0].strip(b" \t")) if lines is not None and len(lines) == 1 else None
    return b"" if found is None else found[1] or found[2] or b""


def encode_registration(path: str, challenge: str) -> bytes:
    """Return the value of the field that asks a browser to bind the session, by a request to a path."""
    return f'({" ".join(ALGORITHMS)});path="{path}";challenge="{challenge}"'.encode("ascii")


def encode_challenge(challenge: str, session_id: str = "") -> bytes:
    """Return the value of the field with the next challenge of a session, which has no id before it is bound."""
    named = f';id="{session_id}"' if session_id else ""
    return f'"{challenge}"{named}'.encode("ascii")


def encode_instructions(session_id: str, origin: str | None, refresh_path: str) -> bytes:
    """Return the JSON that tells a browser how to keep a session bound; `origin` is None if it is not known."""
    return orjson.dumps(
        {
            "session_identifier": session_id,
            "refresh_url": refresh_path,
            "scope": {**({} if origin is None else {"origin": origin}), "include_site": False},
            "credentials": [{"type": "cookie", "name": COOKIE, "attributes": ATTRIBUTES}],
        }
    )


def encode_end(session_id: str) -> bytes:
    """Return the JSON that tells a browser that a session has ended."""
    return orjson.dumps({"session_identifier": session_id, "continue": False})


def seal_id(key: bytes, id_hash: bytes) -> str:
    """Return the identifier that a browser has for a bound session: always the same one, and not that in its cookie.

    It hides the hash under which the session is stored (RFC 5297), so that the store needs no index of identifiers.
    """
    return encode_base64url(AESSIV(key).encrypt(id_hash, _ID_PURPOSE))


def unseal_id(key: bytes, session_id: bytes) -> bytes | None:
    """Return the hash under which a session is stored, None if the identifier was not made with this key."""
    try:
        return AESSIV(key).decrypt(decode_base64url(session_id), _ID_PURPOSE)
    except (ValueError, InvalidTag):
        return None


def make_challenge(key: bytes, id_hash: bytes, expires: float) -> str:
    """Return a new challenge for a session."""
    text = f"{_encode_date(expires)}{secrets.token_urlsafe(_NONCE_BYTES)}"
    return text + _mac_of(key, id_hash, text)


def check_challenge(key: bytes, id_hash: bytes, challenge: str) -> float | None:
    """Return when a challenge expires, None if it was not made with this key for this session."""
    found = _CHALLENGE.fullmatch(challenge)
    if found is None or not hmac.compare_digest(_mac_of(key, id_hash, found[1]), found[2]):
        return None
    return float(int(challenge[:_DATE_DIGITS], 16))


def name_challenge(challenge: str) -> bytes:
    """Return 16 bytes that identify a challenge among all proofs of the store."""
    return hashlib.sha256(f"challenge {challenge}".encode()).digest()[:16]


def _mac_of(key: bytes, id_hash: bytes, text: str) -> str:
    return encode_base64url(hmac.digest(key, id_hash + text.encode("ascii"), "sha256"))


def make_proof_cookie(key: bytes, id_hash: bytes, expires: float) -> str:
    """Return the value of the cookie of a session whose browser has proved itself."""
    date = _encode_date(expires).encode("ascii")
    return (date + _seal_date(key, id_hash, date)).decode("ascii")


def find_proof_cookie(cookies: bytes) -> bytes:
    """Return the part of the field `Cookie` with the proof of a session; empty without one."""
    found = _PROVEN.search(cookies)
    return b"" if found is None else found[0]


def check_proof_cookie(key: bytes, id_hash: bytes, cookies: bytes) -> float:
    """Return when the proof of a session in the field `Cookie` expires; 0 without one.

    A browser has one cookie of that name: its prefix keeps neighboring sites from setting more.
    """
    found = _PROVEN.search(cookies)
    return 0.0 if found is None else _expiry_of(key, id_hash, found[1])


def _encode_date(moment: float) -> str:
    return f"{int(moment):0{_DATE_DIGITS}x}"


def _seal_date(key: bytes, id_hash: bytes, date: bytes) -> bytes:
    return hmac.digest(key, id_hash + date, "sha256").hex().encode("ascii")


@lru_cache(_CACHED_MACS)  # a browser sends the same cookie for minutes
def _expiry_of(key: bytes, id_hash: bytes, value: bytes) -> float:
    date, mac = value[:_DATE_DIGITS], value[_DATE_DIGITS:]
    return float(int(date, 16)) if hmac.compare_digest(_seal_date(key, id_hash, date), mac) else 0.0
