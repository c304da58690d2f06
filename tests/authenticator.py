"""A browser with an authenticator, in software: makes passkeys and signs by them, with the faults that a test asks for.

Both methods take and return what `parseCreationOptionsFromJSON`, `parseRequestOptionsFromJSON` and `toJSON` do.
"""

import json
import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from postd.protocol.base64url import decode_base64url, encode_base64url

UP, UV, BE, BS, AT, ED = 1, 4, 8, 16, 64, 128
"""The flags of authenticator data (Web Authentication Level 3 §6.1)."""

ES256, EDDSA, RS256, ES384 = -7, -8, -257, -35


def _pad(number: int, size: int = 32) -> bytes:
    return number.to_bytes(size, "big")


class Authenticator:
    """One passkey, once it is created.

    Args:
        origin: the origin of the page.
        algorithm: of the key.
        flags: those of authenticator data, but `AT` and `ED`.
        counts: whether it has a signature counter.
        rsa_bits: the size of an RSA key.
    """

    def __init__(
        self, origin: str, *, algorithm: int = ES256, flags: int = UP | UV, counts: bool = True, rsa_bits: int = 2048
    ) -> None:
        self.origin, self.flags, self.algorithm = origin, flags, algorithm
        self.counter, self._step = 0, int(counts)
        self.credential_id = secrets.token_bytes(32)
        self.user_handle = b""
        self.rp_id = ""
        match algorithm:
            case -8:
                self.private: Any = ed25519.Ed25519PrivateKey.generate()
            case -257:
                self.private = rsa.generate_private_key(65537, rsa_bits)
            case -35:
                self.private = ec.generate_private_key(ec.SECP384R1())
            case _:
                self.private = ec.generate_private_key(ec.SECP256R1())

    def cose_key(self) -> dict[int, object]:
        """Return the public key as a COSE key (RFC 9053 §7, RFC 8230 §4)."""
        public: Any = self.private.public_key()
        match self.algorithm:
            case -8:
                return {1: 1, 3: -8, -1: 6, -2: public.public_bytes_raw()}
            case -257:
                numbers = public.public_numbers()
                return {1: 3, 3: -257, -1: _pad(numbers.n, public.key_size // 8), -2: _pad(numbers.e, 3)}
            case algorithm:
                numbers, size = public.public_numbers(), public.key_size // 8
                curve = 1 if size == 32 else 2
                return {1: 2, 3: algorithm, -1: curve, -2: _pad(numbers.x, size), -3: _pad(numbers.y, size)}

    def create(  # noqa: PLR0913 - faults by name
        self,
        options: Mapping[str, Any],
        *,
        flags: int = 0,
        key: object = None,
        fmt: str = "none",
        statement: Mapping[str, object] | None = None,
        attested_id: bytes | None = None,
        extensions: bytes = b"",
        rp_id: str | None = None,
        attestation: bytes | None = None,
        **client_data: object,
    ) -> str:
        """Return the passkey that the options ask for (§5.1.3)."""
        self.rp_id = options["rp"]["id"]
        self.user_handle = decode_base64url(options["user"]["id"].encode())
        id_ = self.credential_id if attested_id is None else attested_id
        encoded = key if isinstance(key, bytes) else cbor2.dumps(key or self.cose_key(), canonical=True)
        attested = bytes(16) + _pad(len(id_), 2) + id_ + encoded + extensions
        data = self._data(rp_id, (flags or self.flags) | AT | (ED if extensions else 0)) + attested
        document = {"fmt": fmt, "attStmt": statement or {}, "authData": data}
        response = {
            "clientDataJSON": self._client_data("webauthn.create", options, client_data),
            "attestationObject": encode_base64url(
                cbor2.dumps(document, canonical=True) if attestation is None else attestation
            ),
            "transports": ["internal"],
        }
        return self._credential(response)

    def get(  # noqa: PLR0913 - faults by name
        self,
        options: Mapping[str, Any],
        *,
        flags: int = 0,
        rp_id: str | None = None,
        data: bytes | None = None,
        signature: bytes | None = None,
        user_handle: bytes | None = b"",
        credential_id: bytes | None = None,
        **client_data: object,
    ) -> str:
        """Return the assertion that the options ask for (§5.1.4)."""
        if data is None:
            data = self._data(rp_id, flags or self.flags)
        encoded = self._client_data("webauthn.get", options, client_data)
        signed = data + sha256(decode_base64url(encoded.encode())).digest()
        response = {
            "clientDataJSON": encoded,
            "authenticatorData": encode_base64url(data),
            "signature": encode_base64url(self.sign(signed) if signature is None else signature),
        }
        if user_handle is not None:
            response["userHandle"] = encode_base64url(user_handle or self.user_handle)
        return self._credential(response, credential_id)

    def sign(self, data: bytes) -> bytes:
        match self.algorithm:
            case -8:
                signature = self.private.sign(data)
            case -257:
                signature = self.private.sign(data, padding.PKCS1v15(), hashes.SHA256())
            case _:
                signature = self.private.sign(data, ec.ECDSA(hashes.SHA256()))
        return bytes(signature)

    def _data(self, rp_id: str | None, flags: int) -> bytes:
        self.counter += self._step
        return sha256((rp_id or self.rp_id).encode()).digest() + bytes([flags]) + _pad(self.counter, 4)

    def _client_data(self, kind: str, options: Mapping[str, Any], changes: Mapping[str, object]) -> str:
        members = {"type": kind, "challenge": options["challenge"], "origin": self.origin, "crossOrigin": False}
        return encode_base64url(json.dumps({**members, **changes}).encode())

    def _credential(self, response: Mapping[str, object], credential_id: bytes | None = None) -> str:
        encoded = encode_base64url(self.credential_id if credential_id is None else credential_id)
        return json.dumps(
            {
                "id": encoded,
                "rawId": encoded,
                "type": "public-key",
                "authenticatorAttachment": "platform",
                "clientExtensionResults": {},
                "response": response,
            }
        )
