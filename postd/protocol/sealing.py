"""Sealed texts: state that clients keep, and neither read nor change (AES-256-GCM, RFC 5116)."""

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from postd.protocol.base64url import decode_base64url, encode_base64url

_NONCE_BYTES = 12


def seal(key: bytes, content: bytes, purpose: str) -> str:
    """Return content, encrypted and authenticated; it can be opened with the same 32 bytes and for the same purpose."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return encode_base64url(nonce + AESGCM(key).encrypt(nonce, content, purpose.encode()))


def unseal(key: bytes, sealed: bytes, purpose: str) -> bytes | None:
    """Return the content of a sealed text, None if it was not sealed with this key for this purpose."""
    try:
        data = decode_base64url(sealed)
        return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], purpose.encode())
    except (ValueError, InvalidTag):
        return None
