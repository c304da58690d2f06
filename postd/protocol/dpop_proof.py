"""Makes DPoP proofs (RFC 9449 §4.2), and decodes and makes their keys; joserfc signs."""

import secrets
import warnings
from collections.abc import Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Self, cast
from urllib.parse import urlsplit

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from msgspec import Struct

from postd.protocol.base64url import encode_base64url
from postd.protocol.dpop import thumbprint
from postd.protocol.jwk import RSA_MIN_BITS
from postd.protocol.members import decode_object, present

_KEY_CLASSES: Mapping[str, type[ECKey | OKPKey | RSAKey]] = MappingProxyType(
    {"EC": ECKey, "OKP": OKPKey, "RSA": RSAKey}
)
_DEFAULT_PORTS = MappingProxyType({"http": 80, "https": 443})
_JTI_BYTES = 16


class DPoPKey(Struct, frozen=True):
    """A private key for proofs.

    Example::

        key = DPoPKey.generate()
        print(DPoPKey.decode(key.encode_pem()).thumbprint == key.thumbprint)  # True

    Args:
        algorithm: the name of the algorithm that signs (RFC 7518 §3.1, RFC 8037 §3.1).
        jwk: the public key, a JWK with its required members alone.
        private: the private key, a key of joserfc.
    """

    algorithm: str
    jwk: Mapping[str, str]
    private: Any

    def __repr__(self) -> str:
        return f"DPoPKey({self.algorithm!r}, {self.thumbprint!r})"

    @property
    def thumbprint(self) -> str:
        """The thumbprint of the key, which is `cnf.jkt` in tokens that are bound to it (RFC 9449 §6.1)."""
        return thumbprint(self.jwk)

    @classmethod
    def generate(cls) -> Self:
        """Make a new key, EC P-256."""
        return cls._of(ECKey.generate_key("P-256").private_key, None)

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Decode a private key: PEM without a password, such as PKCS#8, or a JWK.

        EC P-256 signs with ES256, Ed25519 with EdDSA, and RSA of `RSA_MIN_BITS` and more with PS256. The `alg` of a JWK
        may choose Ed25519 (RFC 9864) or RS256 in place of them.

        Raises:
            ValueError: the content is not such a key; the message continues a sentence that begins with its name.
        """
        if not isinstance(content, bytes):
            raise ValueError("is not bytes")  # noqa: TRY004 - as all wrong arguments
        if not content.lstrip().startswith(b"{"):
            return cls._of(_decode_pem(content), None)
        document = decode_object(content)
        if document is None:
            raise ValueError("is not JSON, though it begins like a JWK")
        entry = present(document)
        key = cls._of(_decode_jwk(entry), entry.get("alg"))
        if any(entry.get(name) != value for name, value in key.jwk.items()):
            raise ValueError("has a public key that is not its private key's")
        return key

    @classmethod
    def _of(cls, native: object, algorithm: object) -> Self:
        """Return the key for a private key of cryptography; `algorithm` is what a JWK names, if it does."""
        private: Any
        algorithms: tuple[str, ...]
        match native:
            case EllipticCurvePrivateKey(curve=SECP256R1()):
                private, algorithms = ECKey.import_key(native), ("ES256",)
            case Ed25519PrivateKey():
                private, algorithms = OKPKey.import_key(native), ("EdDSA", "Ed25519")
            case RSAPrivateKey(key_size=bits) if bits >= RSA_MIN_BITS:
                private, algorithms = RSAKey.import_key(native), ("PS256", "RS256")
            case RSAPrivateKey(key_size=bits):
                raise ValueError(f"is an RSA key of {bits} bits, fewer than {RSA_MIN_BITS}")
            case _:
                raise ValueError("is not an EC P-256, Ed25519 or RSA key")
        if algorithm is not None and algorithm not in algorithms:
            raise ValueError(f"is a key for {' or '.join(algorithms)}, and its alg is another")
        return cls(str(algorithm or algorithms[0]), private.as_dict(private=False), private)

    def encode_pem(self) -> bytes:
        """Return the private key in PEM (PKCS#8), without a password."""
        return cast("bytes", self.private.as_pem(private=True))


def make_proof(  # noqa: PLR0913 - all but one by name
    key: DPoPKey, *, method: str, url: str, now: float, token: str | None = None, nonce: str | None = None
) -> str:
    """Make a proof for one transmission of a request, with a random `jti`.

    Args:
        key: signs it.
        method: the method of the request.
        url: the URL of the request, whose query and fragment are left out.
        now: the current time, in seconds since the epoch.
        token: the access token that is sent with it, None at a token endpoint.
        nonce: the server's nonce, None if it has given none.
    """
    claims: dict[str, object] = {
        "jti": secrets.token_urlsafe(_JTI_BYTES),
        "htm": method,
        "htu": _target(url),
        "iat": int(now),
    }
    if token is not None:
        claims["ath"] = encode_base64url(sha256(token.encode("ascii")).digest())
    if nonce is not None:
        claims["nonce"] = nonce
    header = {"typ": "dpop+jwt", "alg": key.algorithm, "jwk": dict(key.jwk)}
    signed = ".".join(encode_base64url(orjson.dumps(part)) for part in (header, claims))
    signature = JWSRegistry.algorithms[key.algorithm].sign(signed.encode("ascii"), key.private)
    return f"{signed}.{encode_base64url(signature)}"


def _target(url: str) -> str:
    """Return a URL without query and fragment, normalized as a server does it (RFC 9449 §4.3, RFC 3986 §6.2.2)."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port in {None, _DEFAULT_PORTS.get(parts.scheme)} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{parts.path or '/'}"


def _decode_pem(content: bytes) -> object:
    try:
        return load_pem_private_key(content, None)
    except TypeError:
        raise ValueError("is protected by a password, which is not supported") from None
    except (ValueError, UnsupportedAlgorithm):
        if b"-----BEGIN PUBLIC KEY" in content:
            raise ValueError("has a public key; the private one is needed") from None
        raise ValueError("is not a private key in PEM or a JWK") from None


def _decode_jwk(entry: Mapping[str, Any]) -> object:
    """Return the private key of a JWK, as a key of cryptography."""
    key_class = _KEY_CLASSES.get(str(entry.get("kty")))
    if key_class is None:
        raise ValueError("is a JWK whose kty is not EC, OKP or RSA")
    if "d" not in entry:
        raise ValueError("has a public key; the private one is needed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # of a short RSA key, which is refused afterwards
            return key_class.import_key(dict(entry)).private_key
    except (JoseError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("is a malformed JWK") from None
