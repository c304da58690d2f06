"""DPoP proofs as a server reads them (RFC 9449 §4.3). Signatures are cryptography's alone: postd signs with joserfc."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from msgspec import Struct

from tests.issuer import b64, unb64


class Proof(Struct):
    """A proof whose signature was verified with the key in it."""

    header: dict[str, Any]
    claims: dict[str, Any]

    @property
    def thumbprint(self) -> str:
        """The thumbprint of the key, all members of which are required ones (RFC 7638)."""
        return b64(
            hashlib.sha256(json.dumps(self.header["jwk"], sort_keys=True, separators=(",", ":")).encode()).digest()
        )


def read_proof(text: str) -> Proof:
    """Decode a proof, and verify its signature."""
    head, body, signature = text.split(".")
    header = json.loads(unb64(head))
    _verify(header["alg"], header["jwk"], f"{head}.{body}".encode(), unb64(signature))
    return Proof(header, json.loads(unb64(body)))


def token_hash(token: str) -> str:
    """Return the `ath` of a token."""
    return b64(hashlib.sha256(token.encode()).digest())


def _number(jwk: Mapping[str, str], name: str) -> int:
    return int.from_bytes(unb64(jwk[name]), "big")


def _verify(alg: str, jwk: Mapping[str, str], signed: bytes, signature: bytes) -> None:
    sha256 = hashes.SHA256()
    match alg, dict(jwk):
        case "ES256", {"kty": "EC", "crv": "P-256"}:
            assert len(signature) == 64
            numbers = ec.EllipticCurvePublicNumbers(_number(jwk, "x"), _number(jwk, "y"), ec.SECP256R1())
            pair = (int.from_bytes(half, "big") for half in (signature[:32], signature[32:]))
            numbers.public_key().verify(encode_dss_signature(*pair), signed, ec.ECDSA(sha256))
        case "EdDSA" | "Ed25519", {"kty": "OKP", "crv": "Ed25519"}:
            ed25519.Ed25519PublicKey.from_public_bytes(unb64(jwk["x"])).verify(signature, signed)
        case "PS256" | "RS256", {"kty": "RSA"}:
            pss = padding.PSS(padding.MGF1(sha256), sha256.digest_size)
            key = rsa.RSAPublicNumbers(_number(jwk, "e"), _number(jwk, "n")).public_key()
            key.verify(signature, signed, pss if alg == "PS256" else padding.PKCS1v15(), sha256)
        case _:
            raise AssertionError(f"{alg} does not go with {jwk}")
