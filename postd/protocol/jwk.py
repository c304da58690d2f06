"""Decodes the keys of an issuer (JWK Set: RFC 7517), and verifies signatures (RFC 7515, 7518, 8037; with joserfc)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from msgspec import Struct

from postd.protocol.base64url import decode_base64url
from postd.protocol.jwt import Jwt

RSA_MIN_BITS = 2048
"""The shortest RSA key (RFC 7518 §3.3)."""

RSA_MAX_BITS = 16384
"""The longest RSA key: verifying takes longer with each bit."""

KEYS_MAX = 100
"""How many keys of a set are decoded; issuers have two or three."""

_DESCRIBED_MAX = 5

_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_CURVE: Mapping[tuple[str, object], frozenset[str]] = MappingProxyType(
    {
        ("EC", "P-256"): frozenset({"ES256"}),
        ("EC", "P-384"): frozenset({"ES384"}),
        ("EC", "P-521"): frozenset({"ES512"}),
        ("OKP", "Ed25519"): frozenset({"EdDSA", "Ed25519"}),
    }
)
_MEMBERS: Mapping[str, tuple[type[RSAKey | ECKey | OKPKey], tuple[str, ...]]] = MappingProxyType(
    {"RSA": (RSAKey, ("n", "e")), "EC": (ECKey, ("crv", "x", "y")), "OKP": (OKPKey, ("crv", "x"))}
)
"""By `kty`: the key's class, and the members of a public key. Other members, as certificates and URLs, are ignored."""


class KeySetError(ValueError):
    """The document is not a key set, or the key cannot be used; `str()` gives the reason."""


class SigningKey(Struct, frozen=True):
    """A public key, and the algorithms whose signatures it verifies."""

    key_id: str | None
    algorithms: frozenset[str]
    key: Any

    def verify(self, jwt: Jwt) -> bool:
        """Return whether a token was signed with this key."""
        if jwt.algorithm not in self.algorithms:
            return False
        try:
            return bool(JWSRegistry.algorithms[jwt.algorithm].verify(jwt.signed, jwt.signature, self.key))
        except (JoseError, ValueError):
            return False


class KeySet(Struct, frozen=True):
    """The usable keys of an issuer, and the reasons why other keys were left out."""

    keys: tuple[SigningKey, ...]
    left_out: tuple[str, ...] = ()

    def describe_left_out(self) -> str:
        """Return one line with the reasons why the first keys were left out."""
        more = len(self.left_out) - _DESCRIBED_MAX
        return "; ".join(self.left_out[:_DESCRIBED_MAX]) + (f"; and {more} more" if more > 0 else "")

    def find(self, jwt: Jwt) -> list[SigningKey]:
        """Return the keys that a token may be signed with.

        A `kid` is only compared (RFC 8725 §3.10); keys of different types may share one (RFC 7517 §4.5). A token
        without one is accepted only if exactly one key fits its algorithm.
        """
        fitting = [key for key in self.keys if jwt.algorithm in key.algorithms]
        if jwt.key_id is not None:
            return [key for key in fitting if key.key_id == jwt.key_id]
        return fitting if len(fitting) == 1 else []


def decode_key_set(content: bytes) -> KeySet:
    """Decode a JWK Set. A key that is malformed or of an unknown type is left out (RFC 7517 §5).

    Raises:
        KeySetError: the document is not a JWK Set.
    """
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise KeySetError("the key set is not JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise KeySetError("the key set has no list of keys")
    keys, left_out = [], []
    for number, entry in enumerate(entries[:KEYS_MAX]):
        try:
            keys.append(_decode_key(entry))
        except _Unusable as error:
            left_out.append(f"key {number + 1} of {len(entries)}: {error}")
    if len(entries) > KEYS_MAX:
        left_out.append(f"all but the first {KEYS_MAX}")
    return KeySet(tuple(keys), tuple(left_out))


def decode_key(key: Mapping[str, object]) -> SigningKey:
    """Decode one public key (RFC 7517 §4).

    Raises:
        KeySetError: it is malformed, or not for signatures.
    """
    try:
        return _decode_key(key)
    except _Unusable as error:
        raise KeySetError(str(error)) from None


class _Unusable(Exception):  # noqa: N818 - private to this module
    """Why a key is left out."""


def _decode_key(entry: object) -> SigningKey:
    if not isinstance(entry, dict):
        raise _Unusable("it is not an object")
    kind, key_id = entry.get("kty"), entry.get("kid")
    if not isinstance(kind, str) or kind not in _MEMBERS:
        raise _Unusable("it is symmetric" if kind == "oct" else "its kty is not one for signatures")
    if key_id is not None and not isinstance(key_id, str):
        raise _Unusable("its kid is not a string")
    if entry.get("use", "sig") != "sig":
        raise _Unusable("it is not for signatures (use)")
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise _Unusable("it is not for verifying (key_ops)")
    algorithms = _RSA if kind == "RSA" else _BY_CURVE.get((kind, str(entry.get("crv"))), frozenset())
    if "alg" in entry:
        algorithms = algorithms & {str(entry["alg"])}
    if not algorithms:
        raise _Unusable("its crv or alg is not one for signatures")
    return SigningKey(key_id, algorithms, _import(kind, entry))


def _import(kind: str, entry: Mapping[str, Any]) -> Any:
    key_class, members = _MEMBERS[kind]
    public: dict[str, Any] = {name: entry.get(name) for name in members}
    try:
        if kind == "RSA":
            _check_modulus(public["n"])
        return key_class.import_key({"kty": kind, **public})
    except (JoseError, ValueError, KeyError, TypeError, AttributeError):
        raise _Unusable("it is malformed") from None


def _check_modulus(number: Any) -> None:
    bits = int.from_bytes(decode_base64url(number.encode())).bit_length()
    if not RSA_MIN_BITS <= bits <= RSA_MAX_BITS:  # joserfc would only warn of short ones
        raise _Unusable(f"it has fewer than {RSA_MIN_BITS} bits, or more than {RSA_MAX_BITS}")
