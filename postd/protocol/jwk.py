"""Decodes the keys of an issuer (JWK Set: RFC 7517), and verifies signatures (RFC 7515, 7518, 8037; with joserfc)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from msgspec import Struct

from postd.protocol.base64url import decode_any_base64, encode_base64url
from postd.protocol.jwt import Jwt, with_both_names
from postd.protocol.members import decode_object, member

RSA_MIN_BITS = 2048
"""The shortest RSA key (RFC 7518 §3.3)."""

RSA_MAX_BITS = 16384
"""The longest RSA key: verifying takes longer with each bit."""

RSA_EXPONENT_MAX = 2**31 - 1
"""The largest public exponent of an RSA key, as in Go; the longest ones take 200 times as long to verify with."""

KEYS_MAX = 100
"""How many keys of a set are decoded; issuers have two or three."""

_DESCRIBED_MAX = 5

_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_CURVE: Mapping[tuple[str, object], tuple[frozenset[str], int]] = MappingProxyType(
    {
        ("EC", "P-256"): (frozenset({"ES256"}), 32),
        ("EC", "P-384"): (frozenset({"ES384"}), 48),
        ("EC", "P-521"): (frozenset({"ES512"}), 66),
        ("OKP", "Ed25519"): (with_both_names({"Ed25519"}), 32),
    }
)
"""By `kty` and `crv`: the algorithms, and the bytes of a number."""

_NUMBERS: Mapping[str, tuple[type[RSAKey | ECKey | OKPKey], tuple[str, ...]]] = MappingProxyType(
    {"RSA": (RSAKey, ("n", "e")), "EC": (ECKey, ("x", "y")), "OKP": (OKPKey, ("x",))}
)
"""By `kty`: the key's class, and the numbers of a public key. Other members, as certificates and URLs, are ignored."""


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
    document = decode_object(content)
    if document is None:
        raise KeySetError("the key set is not a JSON object")
    entries = document.get("keys")
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
    kind, key_id = entry.get("kty"), member(entry, "kid")
    if not isinstance(kind, str) or kind not in _NUMBERS:
        raise _Unusable("it is symmetric" if kind == "oct" else "its kty is not one for signatures")
    if key_id is not None and not isinstance(key_id, str):
        raise _Unusable("its kid is not a string")
    if member(entry, "use", "sig") != "sig":
        raise _Unusable("it is not for signatures (use)")
    operations = member(entry, "key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise _Unusable("it is not for verifying (key_ops)")
    algorithms, size = (_RSA, 0) if kind == "RSA" else _BY_CURVE.get((kind, str(entry.get("crv"))), (frozenset(), 0))
    algorithm = member(entry, "alg")
    if algorithm is not None:
        algorithms = algorithms & with_both_names({str(algorithm)})
    if not algorithms:
        raise _Unusable("its crv or alg is not one for signatures")
    return SigningKey(key_id, algorithms, _import(kind, entry, size))


def _import(kind: str, entry: Mapping[str, Any], size: int) -> Any:
    """Import a public key whose numbers have `size` bytes; 0 for any."""
    key_class, names = _NUMBERS[kind]
    numbers = {name: _decode_number(entry, name, size) for name in names}
    if kind == "RSA":
        bits = int.from_bytes(numbers["n"]).bit_length()
        if not RSA_MIN_BITS <= bits <= RSA_MAX_BITS:  # joserfc would only warn of short ones
            raise _Unusable(f"it has fewer than {RSA_MIN_BITS} bits, or more than {RSA_MAX_BITS}")
        if int.from_bytes(numbers["e"]) > RSA_EXPONENT_MAX:
            raise _Unusable(f"its e is greater than {RSA_EXPONENT_MAX}")
    encoded = {name: encode_base64url(number) for name, number in numbers.items()}
    try:
        return key_class.import_key({"kty": kind, **({"crv": entry["crv"]} if size else {}), **encoded})
    except (JoseError, ValueError, KeyError, TypeError, AttributeError):
        raise _Unusable(f"its {' and '.join(names)} are not those of a public key") from None


def _decode_number(entry: Mapping[str, object], name: str, size: int) -> bytes:
    """Return the bytes of a number.

    Padding, the standard alphabet and another number of leading zero bytes are accepted, though RFC 7518 §6 has none of
    them: the number is the same.
    """
    text = member(entry, name)
    if text is None:
        raise _Unusable(f"its {name} is missing")
    try:
        number = decode_any_base64(text)
    except ValueError:
        raise _Unusable(f"its {name} is not Base64url") from None
    if size == 0:
        return number
    number = number.lstrip(b"\0").rjust(size, b"\0") if entry["kty"] == "EC" else number
    if len(number) != size:
        raise _Unusable(f"its {name} has {len(number)} bytes, not {size}")
    return number
