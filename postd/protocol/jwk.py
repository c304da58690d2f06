"""The keys of an issuer (JWK Set: RFC 7517), and signatures verified with them (RFC 7515, 7518, 8037; joserfc)."""

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
"""The longest; each token that names it costs its time."""

KEYS_MAX = 100
"""Keys of a set that are looked at; issuers have two or three."""

_TOLD_MAX = 5

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
"""By `kty`: the key's class, and what a public key has. Nothing else of a JWK is looked at, no certificate, no URL."""


class KeySetError(ValueError):
    """What is no key set; `str()` of it says why."""


class SigningKey(Struct, frozen=True):
    """A public key, and the algorithms whose signatures it verifies."""

    key_id: str | None
    algorithms: frozenset[str]
    key: Any

    def verify(self, jwt: Jwt) -> bool:
        """Tell whether a token was signed with this key."""
        if jwt.algorithm not in self.algorithms:
            return False
        try:
            return bool(JWSRegistry.algorithms[jwt.algorithm].verify(jwt.signed, jwt.signature, self.key))
        except (JoseError, ValueError):
            return False


class KeySet(Struct, frozen=True):
    """The keys that can be used, and why others cannot."""

    keys: tuple[SigningKey, ...]
    left_out: tuple[str, ...] = ()

    def tell_left_out(self) -> str:
        """Return in a line why keys cannot be used, of the first ones."""
        more = len(self.left_out) - _TOLD_MAX
        return "; ".join(self.left_out[:_TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")

    def find(self, jwt: Jwt) -> list[SigningKey]:
        """Return the keys that a token may be signed with.

        A `kid` is only a name to be compared with (RFC 8725 §3.10). Several keys may have the same, if they are of
        different kinds (RFC 7517 §4.5). Without one there must be no choice: exactly one key that fits.
        """
        fitting = [key for key in self.keys if jwt.algorithm in key.algorithms]
        if jwt.key_id is not None:
            return [key for key in fitting if key.key_id == jwt.key_id]
        return fitting if len(fitting) == 1 else []


def decode_key_set(content: bytes) -> KeySet:
    """Decode a JWK Set. Each key is imported on its own: one that is broken, or of a kind that we don't know, costs
    only itself (RFC 7517 §5).

    Raises:
        KeySetError: it is none.
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


class _Unusable(Exception):  # noqa: N818 - it never leaves this module
    """Why a key is left out."""


def _decode_key(entry: object) -> SigningKey:
    if not isinstance(entry, dict):
        raise _Unusable("it is no object")
    kind, key_id = entry.get("kty"), entry.get("kid")
    if not isinstance(kind, str) or kind not in _MEMBERS:
        raise _Unusable("it is symmetric" if kind == "oct" else "its kty is none that signs")
    if key_id is not None and not isinstance(key_id, str):
        raise _Unusable("its kid is no string")
    if entry.get("use", "sig") != "sig":
        raise _Unusable("it is not for signatures (use)")
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise _Unusable("it is not to verify with (key_ops)")
    algorithms = _RSA if kind == "RSA" else _BY_CURVE.get((kind, str(entry.get("crv"))), frozenset())
    if "alg" in entry:
        algorithms = algorithms & {str(entry["alg"])}
    if not algorithms:
        raise _Unusable("its crv or alg is none that signs")
    return SigningKey(key_id, algorithms, _import(kind, entry))


def _import(kind: str, entry: Mapping[str, Any]) -> Any:
    key_class, members = _MEMBERS[kind]
    public: dict[str, Any] = {name: entry.get(name) for name in members}
    try:
        if kind == "RSA":
            _check_modulus(public["n"])
        return key_class.import_key({"kty": kind, **public})
    except (JoseError, ValueError, KeyError, TypeError, AttributeError):
        raise _Unusable("it is broken") from None


def _check_modulus(number: Any) -> None:
    bits = int.from_bytes(decode_base64url(number.encode())).bit_length()
    if not RSA_MIN_BITS <= bits <= RSA_MAX_BITS:  # joserfc would only warn of short ones
        raise _Unusable(f"it has fewer than {RSA_MIN_BITS} bits, or more than {RSA_MAX_BITS}")
