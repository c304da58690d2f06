"""Passkeys on the wire: options, challenges, and what browsers return (Web Authentication Level 3).

This module decodes the JSON of browsers and checks what a library leaves to its caller; `postd.auth.passkey` verifies
signatures. Nothing is kept of a challenge before it is answered: it is authenticated by a key of the store, and bound
to a browser or to a session.
"""

import hmac
import json
import secrets
from collections.abc import Collection
from hashlib import sha256
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from postd.protocol.base64url import decode_base64url, encode_base64url
from postd.protocol.cbor import measure_cbor
from postd.protocol.host import is_address, normalize_host

CHALLENGE_S = 5 * 60
"""How long a challenge is valid, in seconds."""

ALGORITHMS = (-7, -8, -257)
"""ES256, EdDSA and RS256 (https://www.iana.org/assignments/cose), in the order in which authenticators choose."""

CREDENTIAL_ID_MAX_BYTES = 1023
"""The longest credential id (Web Authentication Level 3 §4)."""

Purpose = Literal["sign-in", "registration"]
"""What a challenge is for."""

_NONCE_BYTES, _TIME_BYTES, _MAC_BYTES = 16, 8, 32
_AUTHENTICATOR_DATA_MIN_BYTES = 37
_ATTESTED, _EXTENSIONS = 1 << 6, 1 << 7

T = TypeVar("T")


class WebAuthnError(Exception):
    """What a browser has returned is not accepted. The text is for the log.

    Attributes:
        account: the account of the passkey, None if it is not known.
    """

    account: str | None = None


class ChallengeError(WebAuthnError):
    """The challenge is not this browser's or session's, has expired, or was used before."""


class RelyingParty(Struct, frozen=True):
    """The server, as authenticators know it.

    Args:
        origin: its origin, as browsers have it in `clientDataJSON`.
        id: the RP ID, the host of the origin: passkeys belong to it.
        name: its name for people.
    """

    origin: str
    id: str
    name: str


def find_rp_id(origin: str) -> str | None:
    """Return the RP ID of an origin; None if browsers have no passkeys there.

    They have them with https and at `localhost`, never at an IP address.
    """
    scheme, _, authority = origin.partition("://")
    host = normalize_host(authority)
    if is_address(host) or not (scheme == "https" or is_localhost(host)):
        return None
    return host


def is_localhost(host: str) -> bool:
    """Return whether a normalized host is `localhost` or below it."""
    return host == "localhost" or host.endswith(".localhost")


def make_challenge(key: bytes, purpose: Purpose, binding: bytes, now: float) -> bytes:
    """Return a new challenge, which is valid for `CHALLENGE_S`.

    Args:
        key: a key of the store.
        purpose: what it is for.
        binding: identifies the browser or the session that may answer it.
        now: the wall clock, in seconds since the epoch.
    """
    head = secrets.token_bytes(_NONCE_BYTES) + int(now + CHALLENGE_S).to_bytes(_TIME_BYTES, "big")
    return head + _authenticate(key, purpose, binding, head)


def check_challenge(challenge: bytes, key: bytes, purpose: Purpose, binding: bytes, now: float) -> float:
    """Check a challenge, and return when it expires; whether it was used before is for the caller to check.

    Raises:
        ChallengeError: it is not this server's, or is for another purpose, browser or session, or has expired.
    """
    head, mac = challenge[:-_MAC_BYTES], challenge[-_MAC_BYTES:]
    if len(head) != _NONCE_BYTES + _TIME_BYTES or not hmac.compare_digest(
        mac, _authenticate(key, purpose, binding, head)
    ):
        raise ChallengeError(f"the challenge is none for this {purpose} in this browser")
    expires = int.from_bytes(head[_NONCE_BYTES:], "big")
    if expires <= now:
        raise ChallengeError("the challenge has expired")
    return expires


def _authenticate(key: bytes, purpose: Purpose, binding: bytes, head: bytes) -> bytes:
    # The purpose has no NUL, and the head always the same length.
    return hmac.digest(key, b"%b\0%b%b" % (purpose.encode(), head, binding), "sha256")


def make_user_handle(key: bytes, account: str, entry: bytes) -> bytes:
    """Return the user handle of an account: authenticators keep it with the passkey, and return it."""
    return hmac.digest(key, b"%b\0%b" % (sha256(entry).digest(), account.encode()), "sha256")


def make_request_options(party: RelyingParty, challenge: bytes) -> bytes:
    """Return `PublicKeyCredentialRequestOptionsJSON`, for any passkey of this server (§5.5)."""
    return json.dumps(
        {
            "challenge": encode_base64url(challenge),
            "timeout": CHALLENGE_S * 1000,
            "rpId": party.id,
            "allowCredentials": [],
            "userVerification": "required",
        }
    ).encode()


def make_creation_options(
    party: RelyingParty, challenge: bytes, *, handle: bytes, name: str, existing: Collection[bytes]
) -> bytes:
    """Return `PublicKeyCredentialCreationOptionsJSON`, for one more passkey of an account (§5.4).

    Args:
        party: this server.
        challenge: the challenge.
        handle: the user handle.
        name: the name of the account for people, to choose by.
        existing: the credential ids of its passkeys, whose authenticators make no second one.
    """
    return json.dumps(
        {
            "rp": {"id": party.id, "name": party.name},
            "user": {"id": encode_base64url(handle), "name": name, "displayName": name},
            "challenge": encode_base64url(challenge),
            "pubKeyCredParams": [{"type": "public-key", "alg": algorithm} for algorithm in ALGORITHMS],
            "timeout": CHALLENGE_S * 1000,
            "excludeCredentials": [{"type": "public-key", "id": encode_base64url(one)} for one in existing],
            "authenticatorSelection": {
                "residentKey": "required",
                "requireResidentKey": True,
                "userVerification": "required",
            },
            "attestation": "none",
        }
    ).encode()


class ClientData(Struct, frozen=True):
    """`clientDataJSON` (§5.8.1)."""

    type: str
    challenge: str
    origin: str
    crossOrigin: bool = False
    topOrigin: str | None = None


class Answer(Struct, frozen=True):
    """What a browser has returned: the id of a credential, and what the browser and the authenticator say.

    Args:
        credential_id: the credential id.
        client_data: `clientDataJSON`.
        challenge: the challenge in it.
        authenticator_data: that of an assertion; empty for a registration.
        signature: the signature of an assertion; empty for a registration.
        user_handle: the user handle of an assertion, None without one.
        attestation: the attestation object of a registration; empty for an assertion.
    """

    credential_id: bytes
    client_data: bytes
    challenge: bytes
    authenticator_data: bytes = b""
    signature: bytes = b""
    user_handle: bytes | None = None
    attestation: bytes = b""


class _AssertionResponse(Struct):
    clientDataJSON: str
    authenticatorData: str
    signature: str
    userHandle: str | None = None


class _AttestationResponse(Struct):
    clientDataJSON: str
    attestationObject: str


class _Credential(Struct):
    id: str
    rawId: str
    type: Literal["public-key"]


class _Assertion(_Credential):
    response: _AssertionResponse


class _Registration(_Credential):
    response: _AttestationResponse


def decode_assertion(text: str, party: RelyingParty) -> Answer:
    """Decode the JSON of `navigator.credentials.get()`.

    Raises:
        WebAuthnError: it is malformed, or was not made by a page of this server.
    """
    made = _decode(text.encode(), _Assertion)
    response = made.response
    data = _decode_member("authenticatorData", response.authenticatorData)
    check_authenticator_data(data)
    client_data, challenge = _check_client_data(response.clientDataJSON, "webauthn.get", party)
    handle = response.userHandle
    return Answer(
        _decode_id(made),
        client_data,
        challenge,
        authenticator_data=data,
        signature=_decode_member("signature", response.signature),
        user_handle=None if handle is None else _decode_member("userHandle", handle),
    )


def decode_registration(text: str, party: RelyingParty) -> Answer:
    """Decode the JSON of `navigator.credentials.create()`.

    Raises:
        WebAuthnError: it is malformed, or was not made by a page of this server.
    """
    made = _decode(text.encode(), _Registration)
    attestation = _decode_member("attestationObject", made.response.attestationObject)
    _check_cbor(attestation, 0, 1)
    client_data, challenge = _check_client_data(made.response.clientDataJSON, "webauthn.create", party)
    return Answer(_decode_id(made), client_data, challenge, attestation=attestation)


def _decode(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # The text of the error may quote the document.
        raise WebAuthnError(f"the credential is malformed: {type(error).__name__}") from None


def _decode_member(name: str, value: str) -> bytes:
    try:
        return decode_base64url(value.encode("ascii"))
    except ValueError:
        raise WebAuthnError(f"{name} is not Base64url") from None


def _decode_id(made: _Credential) -> bytes:
    credential_id = _decode_member("rawId", made.rawId)
    if made.id != made.rawId or not 1 <= len(credential_id) <= CREDENTIAL_ID_MAX_BYTES:
        raise WebAuthnError("id and rawId are not one credential id")
    return credential_id


def _check_client_data(encoded: str, kind: str, party: RelyingParty) -> tuple[bytes, bytes]:
    """Return `clientDataJSON` and its challenge (§7.1 steps 7 to 11, §7.2 steps 11 to 15)."""
    content = _decode_member("clientDataJSON", encoded)
    client_data = _decode(content, ClientData)
    if client_data.type != kind:
        raise WebAuthnError(f"clientDataJSON is not of type {kind}")
    if client_data.origin != party.origin:
        raise WebAuthnError(f"a page of another origin than {party.origin} has made it")
    if client_data.crossOrigin or client_data.topOrigin is not None:
        raise WebAuthnError("a page embedded in one of another origin has made it")
    return content, _decode_member("challenge", client_data.challenge)


def check_authenticator_data(data: bytes) -> None:
    """Check that authenticator data have the CBOR that their flags announce, and nothing more (§6.1).

    Raises:
        WebAuthnError: they have not.
    """
    if len(data) < _AUTHENTICATOR_DATA_MIN_BYTES:
        raise WebAuthnError("the authenticator data are too short")
    flags, start = data[32], _AUTHENTICATOR_DATA_MIN_BYTES
    if flags & _ATTESTED:
        start += 18 + int.from_bytes(data[start + 16 : start + 18], "big")
    _check_cbor(data, start, (flags & _ATTESTED > 0) + (flags & _EXTENSIONS > 0))


def _check_cbor(data: bytes, start: int, count: int) -> None:
    """Check that data end with so many items of CBOR."""
    try:
        for _ in range(count):
            start = measure_cbor(data, start)
    except ValueError as error:
        raise WebAuthnError(str(error)) from None
    if start != len(data):
        raise WebAuthnError("bytes follow after the CBOR")
