"""Passkeys: their registration, and sign-in by one (Web Authentication Level 3 §7).

`postd.protocol.webauthn` checks what browsers say; the package `webauthn` what authenticators say, and their
signatures. Passkeys belong to the entry of an account (`postd.auth.accounts`): an account that is added again has none.
"""

import hmac
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import NoReturn

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from msgspec import Struct
from twisted.cred.credentials import ICredentials
from webauthn import verify_authentication_response, verify_registration_response
from webauthn.helpers import (
    decode_credential_public_key,
    decoded_public_key_to_cryptography,
    encode_cbor,
    parse_cbor,
)
from webauthn.helpers.cose import COSEAlgorithmIdentifier
from webauthn.helpers.structs import (
    AuthenticationCredential,
    AuthenticatorAssertionResponse,
    AuthenticatorAttestationResponse,
    CredentialDeviceType,
    RegistrationCredential,
)
from zope.interface import Attribute, implementer

from postd.auth.accounts import Accounts
from postd.auth.checker import Checker
from postd.auth.credentials import Refused, log_refusal, log_throttled
from postd.auth.identity import Identity, SignedIn
from postd.auth.throttle import Throttle, address_keys
from postd.errors import TooManyFailuresError, printable
from postd.protocol.base64url import encode_base64url
from postd.protocol.passkey import Passkey
from postd.protocol.webauthn import (
    ALGORITHMS,
    Answer,
    ChallengeError,
    Purpose,
    RelyingParty,
    WebAuthnError,
    check_authenticator_data,
    check_challenge,
    decode_assertion,
    decode_registration,
    make_challenge,
    make_user_handle,
)
from postd.reactor import ServiceClock
from postd.store.interface import LoginStore

SCHEME = "passkey"
"""The scheme of passkeys, in log and metrics."""

RSA_MIN_BITS, RSA_MAX_BITS, RSA_EXPONENT_MAX = 2048, 4096, 2**31 - 1
"""The sizes of RSA keys, and the largest public exponent; greater ones take long to verify."""

_CHALLENGE_KEY, _HANDLE_KEY = "passkey-challenge", "passkey"
"""The names of the keys in the store."""

# The base point of P-256.
_NO_KEY = bytes.fromhex(
    "a5010203262001"
    "2158206b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
    "2258204fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
)
"""The COSE key that takes the place of an unknown passkey's: the answer takes as long."""


class IPasskeyCredentials(ICredentials):
    """An assertion by a passkey."""

    text: str = Attribute("the JSON of the browser")
    browser: bytes = Attribute("identifies the browser, to which its challenge is bound")
    party: RelyingParty = Attribute("this server, as the browser sees it")
    address: str = Attribute("the client's address, for log and throttle")


@implementer(IPasskeyCredentials)
class PasskeyCredentials(Struct, frozen=True):
    text: str
    browser: bytes
    party: RelyingParty
    address: str

    def __repr__(self) -> str:
        return f"PasskeyCredentials(address={self.address!r})"


class LateAnswerError(Refused):
    """The challenge has expired, was used before, or is another browser's; a further try may succeed."""


class PasskeyIdentity(Identity, frozen=True, kw_only=True):
    """The identity that a passkey proves, with what a session of a provider's account needs; None for others."""

    signed_in: SignedIn | None


class Passkeys:
    """Makes challenges, and registers passkeys.

    Args:
        store: keeps passkeys, keys, and which challenges were used.
        clock: the clock of the dates in the store.
        now: the wall clock, by which challenges expire, in seconds since the epoch.
    """

    def __init__(self, store: LoginStore, clock: ServiceClock, now: Callable[[], float] = time.time) -> None:
        self.store = store
        self.clock = clock
        self.now = now

    async def make_challenge(self, purpose: Purpose, binding: bytes) -> bytes:
        """Return a new challenge for a browser or a session."""
        return make_challenge(await self.store.key(_CHALLENGE_KEY), purpose, binding, self.now())

    async def check_challenge(self, answer: Answer, purpose: Purpose, binding: bytes) -> float:
        """Check the challenge of an answer, and return when it expires.

        Raises:
            ChallengeError: it is not valid.
        """
        return check_challenge(answer.challenge, await self.store.key(_CHALLENGE_KEY), purpose, binding, self.now())

    async def use_challenge(self, answer: Answer, expires: float) -> None:
        """Note the use of a checked challenge.

        Raises:
            ChallengeError: it was used before, or may have been.
        """
        if not await self.store.use_proof(sha256(answer.challenge).digest(), expires=expires):
            raise ChallengeError("the challenge was used before, or may have been")

    async def user_handle(self, account: str, entry: bytes) -> bytes:
        """Return the user handle of an account."""
        return make_user_handle(await self.store.key(_HANDLE_KEY), account, entry)

    async def register(self, text: str, party: RelyingParty, session: bytes) -> "Registered":
        """Return the passkey in the JSON of a browser, the answer to a challenge for a session.

        Raises:
            WebAuthnError: it is not accepted.
        """
        answer = decode_registration(text, party)
        await self.use_challenge(answer, await self.check_challenge(answer, "registration", session))
        return verify_registration(answer, party)


class PasskeyChecker(Checker):
    """Assertions by passkeys. Refused ones count as failures of their address, as opaque tokens do.

    They do not count for the account: a signature cannot be guessed, and a client that knows a credential id could lock
    its owner out.

    Args:
        passkeys: makes challenges.
        accounts: the accounts.
        throttle: limits failures.
    """

    credentialInterfaces = (IPasskeyCredentials,)

    def __init__(self, passkeys: Passkeys, accounts: Accounts, throttle: Throttle) -> None:
        self._passkeys = passkeys
        self._accounts = accounts
        self._throttle = throttle

    async def check(self, credentials: PasskeyCredentials) -> PasskeyIdentity:
        """Return the user whose passkey has signed.

        Raises:
            Refused: the assertion is not accepted.
            TooManyFailuresError: the throttle does not admit one from this address.
            StoreUnavailableError: the passkey cannot be looked up, or its use not be noted.
        """
        party, address = credentials.party, credentials.address
        try:
            answer = decode_assertion(credentials.text, party)
            expires = await self._passkeys.check_challenge(answer, "sign-in", credentials.browser)
        except WebAuthnError as error:
            raise log_refusal(SCHEME, _to_refusal(error), address) from None
        try:
            attempt = await self._throttle.reserve(await self._throttle.admit(address_keys(address)))
        except TooManyFailuresError as error:
            raise log_throttled(SCHEME, error, address) from None
        try:
            await self._passkeys.use_challenge(answer, expires)
            owner = await self._find_owner(answer, party)
        except WebAuthnError as error:
            refusal = _to_refusal(error)
            if isinstance(refusal, LateAnswerError):
                await self._throttle.release(attempt)
            else:
                await self._throttle.record_failure(attempt)
            raise log_refusal(SCHEME, refusal, address) from None
        except Exception:
            await self._throttle.release(attempt)
            raise
        await self._throttle.release(attempt)
        return owner

    async def _find_owner(self, answer: Answer, party: RelyingParty) -> PasskeyIdentity:
        """Return the user whose passkey has signed; note the use of the passkey.

        Raises:
            WebAuthnError: none has, or its owner has no access any more.
        """
        passkey = await self._passkeys.store.get_passkey(answer.credential_id)
        if passkey is None:
            with suppress(WebAuthnError):
                verify_assertion(answer, party, _NO_KEY)
            raise WebAuthnError("there is no such passkey")
        try:
            await self._use(passkey, answer, party)
        except WebAuthnError as error:
            error.account = passkey.account
            raise
        provider = self._accounts.provider(passkey.account, passkey.entry)
        if provider is None:
            return PasskeyIdentity(passkey.account, SCHEME, signed_in=None)
        return PasskeyIdentity(
            passkey.account,
            SCHEME,
            provider.url,
            shown_name=passkey.shown_name,
            signed_in=SignedIn(
                provider.id, passkey.shown_name, passkey.subject, "", authenticated=self._passkeys.clock.seconds()
            ),
        )

    async def _use(self, passkey: Passkey, answer: Answer, party: RelyingParty) -> None:
        """Check that a passkey has signed an assertion, and note its use (§7.2 steps 5 to 25)."""
        handle = await self._passkeys.user_handle(passkey.account, passkey.entry)
        use = verify_assertion(answer, party, passkey.public_key)
        if not hmac.compare_digest(answer.user_handle or b"", handle):
            raise WebAuthnError("the user handle is not that of the passkey's account")
        if use.backup_eligible != passkey.backup_eligible:
            raise WebAuthnError("the backup eligibility has changed: the passkey may have been copied")
        if not self._accounts.has_entry(passkey.account, passkey.entry):
            raise WebAuthnError("the account was removed since the passkey was added")
        if not await self._passkeys.store.use_passkey(
            passkey.credential_id,
            used=self._passkeys.clock.seconds(),
            sign_count=use.sign_count,
            backed_up=use.backed_up,
        ):
            raise WebAuthnError("the signature counter went back: the passkey may have been copied")


def _to_refusal(error: WebAuthnError) -> Refused:
    if isinstance(error, ChallengeError):
        return LateAnswerError(str(error))
    return Refused(str(error), error.account, known=True)


class Use(Struct, frozen=True):
    """What an authenticator says of a passkey when it signs."""

    sign_count: int
    backup_eligible: bool
    backed_up: bool


def verify_assertion(answer: Answer, party: RelyingParty, public_key: bytes) -> Use:
    """Verify the signature of an assertion, and the flags that it signs; the counter is for the caller to compare.

    Raises:
        WebAuthnError: they are not accepted.
    """
    credential = AuthenticationCredential(
        id=encode_base64url(answer.credential_id),
        raw_id=answer.credential_id,
        response=AuthenticatorAssertionResponse(
            client_data_json=answer.client_data,
            authenticator_data=answer.authenticator_data,
            signature=answer.signature,
            user_handle=answer.user_handle,
        ),
    )
    try:
        verified = verify_authentication_response(
            credential=credential,
            expected_challenge=answer.challenge,
            expected_rp_id=party.id,
            expected_origin=party.origin,
            credential_public_key=public_key,
            credential_current_sign_count=0,  # the store compares it in one step with the update
            require_user_verification=True,
        )
    except Exception as error:  # noqa: BLE001 - the package raises ValueError, KeyError and others for odd keys, too
        _refuse(error)
    return Use(
        verified.new_sign_count,
        verified.credential_device_type == CredentialDeviceType.MULTI_DEVICE,
        verified.credential_backed_up,
    )


class Registered(Struct, frozen=True):
    """A new passkey, as its authenticator describes it."""

    credential_id: bytes
    public_key: bytes
    use: Use


def verify_registration(answer: Answer, party: RelyingParty) -> Registered:
    """Verify what an authenticator says of a new passkey.

    What it says of itself (the attestation statement) is ignored: any authenticator will do, and browsers send none, or
    one that the new key signs.

    Raises:
        WebAuthnError: it is not accepted.
    """
    try:
        document = parse_cbor(answer.attestation)
        data = document["authData"]
        check_authenticator_data(data)
        credential = RegistrationCredential(
            id=encode_base64url(answer.credential_id),
            raw_id=answer.credential_id,
            response=AuthenticatorAttestationResponse(
                client_data_json=answer.client_data,
                attestation_object=encode_cbor({"fmt": "none", "attStmt": {}, "authData": data}),
            ),
        )
        verified = verify_registration_response(
            credential=credential,
            expected_challenge=answer.challenge,
            expected_rp_id=party.id,
            expected_origin=party.origin,
            require_user_verification=True,
            supported_pub_key_algs=[COSEAlgorithmIdentifier(algorithm) for algorithm in ALGORITHMS],
        )
        _check_key(verified.credential_public_key)
    except Exception as error:  # noqa: BLE001 - the package raises ValueError, KeyError and others for odd keys, too
        _refuse(error)
    if verified.credential_id != answer.credential_id:
        raise WebAuthnError("the credential ids of browser and authenticator differ")
    use = Use(
        verified.sign_count,
        verified.credential_device_type == CredentialDeviceType.MULTI_DEVICE,
        verified.credential_backed_up,
    )
    return Registered(verified.credential_id, verified.credential_public_key, use)


def _refuse(error: Exception) -> NoReturn:
    # Its text may quote the document.
    raise (
        error
        if isinstance(error, WebAuthnError)
        else WebAuthnError(f"{type(error).__name__}: {printable(str(error))[:200]}")
    ) from None


def _check_key(encoded: bytes) -> None:
    """Check that a public key is of the kind and the size that its algorithm has; the package checks neither.

    Raises:
        WebAuthnError: it is not.
    """
    decoded = decode_credential_public_key(encoded)
    key: object = decoded_public_key_to_cryptography(decoded)
    match int(decoded.alg), key:
        case -7, EllipticCurvePublicKey(curve=SECP256R1()):
            pass
        case -8, Ed25519PublicKey():
            pass
        case -257, RSAPublicKey(key_size=bits) if (
            RSA_MIN_BITS <= bits <= RSA_MAX_BITS and key.public_numbers().e <= RSA_EXPONENT_MAX
        ):
            pass
        case _:
            raise WebAuthnError("the public key is not one of its algorithm, too short, or takes long to verify")
