"""Client certificates: the field `Client-Cert` (RFC 9440), and the thumbprints that tokens are bound to (RFC 8705)."""

import hashlib
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence

from postd.protocol.base64url import encode_base64url

CLIENT_CERT_MAX_BYTES = 8 * 1024
"""The longest value of `Client-Cert`, in bytes: a certificate of 6 KiB. Usual ones have 1 to 2 KiB."""


def decode_client_cert(values: Sequence[bytes]) -> bytes | None:
    """Return the certificate in the values of the field `Client-Cert`, in DER (RFC 9440 §2.2).

    None unless there is one value, a byte sequence as RFC 8941 §4.1.8 serializes it, which is a certificate.
    """
    from cryptography import x509  # noqa: PLC0415 - a server without issuers has not imported it

    if len(values) != 1 or len(values[0]) > CLIENT_CERT_MAX_BYTES:
        return None
    value = values[0]
    try:
        der = a2b_base64(value[1:-1], strict_mode=True)
        x509.load_der_x509_certificate(der)
    except (ValueError, x509.InvalidVersion):
        return None
    return der if value == b":%b:" % b2a_base64(der, newline=False) else None


def certificate_thumbprint(der: bytes) -> str:
    """Return the SHA-256 thumbprint of a certificate in DER, in Base64url: the form of `x5t#S256` (RFC 8705 §3.1)."""
    return encode_base64url(hashlib.sha256(der).digest())
