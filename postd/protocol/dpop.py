"""DPoP proofs: a client proves, with each request, that it has the key that its access token is bound to (RFC 9449).

The reason in an error (its `str()`) is for the log and has no content of the proof.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache

from hyperlink import URL
from msgspec import Struct

from postd.protocol.base64url import encode_base64url
from postd.protocol.bearer import PROOF_ALGORITHMS
from postd.protocol.jwk import KeySetError, SigningKey, decode_key
from postd.protocol.jwt import (
    Jwt,
    TokenError,
    decode_date,
    decode_signed,
    describe,
    is_type,
    type_of,
    with_both_names,
)
from postd.protocol.members import member, present

PROOF_MAX_BYTES = 8 * 1024
"""The longest proof; proofs of real clients have some 500 bytes."""

PROOF_LIFETIME_S = 60.0
"""How long a proof may be used after its `iat`, without the clock skew."""

KEYS_MAX = 1024
"""How many keys of clients are cached, some 2 KiB each; only keys that an accepted token is bound to."""

PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
"""Members of private and of symmetric keys (RFC 7518 §6)."""

_THUMBPRINT_MEMBERS: Mapping[str, tuple[str, ...]] = {
    "EC": ("crv", "kty", "x", "y"),
    "OKP": ("crv", "kty", "x"),
    "RSA": ("e", "kty", "n"),
}


class ProofError(ValueError):
    """A proof that is not accepted."""


class Proof(Struct, frozen=True):
    """A decoded proof, not verified.

    Args:
        jwt: its header and claims.
        key: the public key in its header, as a JWK with its required members alone. The others say what the key may be
            used for, and a proof is one use.
        thumbprint: the SHA-256 thumbprint of the key (RFC 7638), in Base64url.
    """

    jwt: Jwt
    key: Mapping[str, str]
    thumbprint: str

    @property
    def id(self) -> bytes:
        """16 bytes that identify its `jti` among the proofs of all keys."""
        text = f"{self.thumbprint} {self.jwt.claims['jti']}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]

    def check(  # noqa: PLR0913 - as many as RFC 9449 §4.3 checks
        self, *, method: str, url: str, token: str, bound_to: str, now: float, leeway_s: float
    ) -> float:
        """Check the proof for a request (RFC 9449 §4.3); whether its `jti` is new is not checked.

        Until the signature is verified nothing costs more than hashing the token. URLs are normalized only after that:
        URLs of 6 KiB take milliseconds, and anyone who has seen a proof could send its key with another `htu`.

        Args:
            method: the request's.
            url: the request's, without query and fragment, as clients see it.
            token: the access token with it.
            bound_to: the thumbprint of the key that the token is bound to (`cnf.jkt`).
            now: seconds since the epoch.
            leeway_s: the clock skew allowed, in seconds.

        Returns:
            until when it could be used again, in seconds since the epoch.

        Raises:
            ProofError: it is not accepted.
        """
        claims = self.jwt.claims
        if self.thumbprint != bound_to:
            raise ProofError("its key is not the one that the token is bound to")
        if claims.get("htm") != method:
            raise ProofError("htm is another method")
        if claims.get("ath") != encode_base64url(hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()):
            raise ProofError("ath is not the hash of the token")
        ends_at = self._check_time(now, leeway_s)
        try:
            key = decode_own_key(json.dumps(self.key, sort_keys=True))
        except KeySetError as error:
            raise ProofError(f"its key cannot be used: {error}") from None
        if not key.verify(self.jwt):
            raise ProofError("its signature is wrong")
        if not _is_same_url(claims.get("htu"), url):
            raise ProofError("htu is another URL")
        return ends_at

    def _check_time(self, now: float, leeway_s: float) -> float:
        try:
            issued_at = decode_date(self.jwt.claims, "iat")
        except TokenError as error:
            raise ProofError(str(error)) from None
        if issued_at is None:
            raise ProofError("iat is missing")
        ends_at = issued_at + PROOF_LIFETIME_S + leeway_s
        if now >= ends_at:
            raise ProofError("iat is too long ago")
        if now < issued_at - leeway_s:
            raise ProofError("iat is in the future")
        return ends_at


@lru_cache(KEYS_MAX)  # it takes a third of a check's time
def decode_own_key(key: str) -> SigningKey:
    """Decode the public key of a client, a JWK in JSON.

    Raises:
        KeySetError: it is malformed.
    """
    return decode_key(json.loads(key))


def decode_proof(text: bytes) -> Proof:
    """Decode the field `DPoP` without verifying the proof in it (RFC 9449 §4.2).

    Raises:
        ProofError: it is malformed, or a member of its header or its `jti` is not as it must be.
    """
    if len(text) > PROOF_MAX_BYTES:
        raise ProofError(f"it has more than {PROOF_MAX_BYTES} bytes")
    try:
        jwt = decode_signed(text)
    except TokenError as error:
        raise ProofError(str(error)) from None
    if not is_type(jwt, "dpop+jwt"):
        raise ProofError(f"typ is not dpop+jwt{describe(type_of(jwt))}")
    if jwt.algorithm not in with_both_names(PROOF_ALGORITHMS):
        raise ProofError(f"alg is not accepted here{describe(jwt.algorithm)}")
    key = member(jwt.header, "jwk")
    if not isinstance(key, dict):
        raise ProofError("jwk is missing, or not an object")
    if PRIVATE_MEMBERS & present(key).keys():
        raise ProofError("jwk has a private member")
    jti = member(jwt.claims, "jti")
    if not isinstance(jti, str):
        raise ProofError("jti is missing, or not text")
    own = own_members(key)
    return Proof(jwt, own, thumbprint(own))


def thumbprint(key: Mapping[str, object]) -> str:
    """Return the SHA-256 thumbprint of a public JWK, in Base64url (RFC 7638 §3).

    Raises:
        ProofError: its `kty` is none of EC, OKP and RSA, or a member is missing or not text.
    """
    # In the order of their names; the members of usable keys are ASCII.
    text = json.dumps(own_members(key), separators=(",", ":"))
    return encode_base64url(hashlib.sha256(text.encode()).digest())


def own_members(key: Mapping[str, object]) -> Mapping[str, str]:
    """Return the required members of a public key, in the order of their names.

    Raises:
        ProofError: its `kty` is none of EC, OKP and RSA, or a member is missing or not text.
    """
    members = {name: member(key, name) for name in _THUMBPRINT_MEMBERS.get(str(key.get("kty")), ())}
    own = {name: value for name, value in members.items() if isinstance(value, str)}
    if not own or len(own) < len(members):
        raise ProofError("jwk is malformed")
    return own


def _is_same_url(sent: object, url: str) -> bool:
    """Return whether `htu`, without query and fragment, is equivalent to a URL (RFC 3986 §6.2.2, §6.2.3)."""
    if not isinstance(sent, str):
        return False
    sent = sent.partition("#")[0].partition("?")[0]
    if sent == url:
        return True
    try:
        normalized, wanted = (URL.from_text(text).normalize() for text in (sent, url))
    except (ValueError, UnicodeError):
        return False
    return bool(normalized == wanted)
