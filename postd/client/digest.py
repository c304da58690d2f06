"""Digest access authentication as a client (RFC 7616, qop=auth), which treq has not."""

import secrets

from msgspec import Struct
from msgspec.structs import replace
from twisted.web.client import URI
from twisted.web.http_headers import Headers
from twisted.web.iweb import IResponse

from postd.client.errors import SignInError
from postd.client.signing import Signer
from postd.protocol.challenge import decode_challenges
from postd.protocol.digest import (
    DigestChallenge,
    DigestResponse,
    ServerAuthenticationError,
    answer_challenge,
    check_authentication_info,
    choose_challenge,
    encode_digest_response,
    h_a1,
)
from postd.protocol.password import normalize


class _Signed(Struct, frozen=True):
    challenge: DigestChallenge
    shown: DigestResponse


class DigestSigner(Signer):
    """Answers challenges.

    The first request is sent without credentials, to be challenged. Its nonce is good for those that follow, each with
    a count of its own; a nonce that is told to be stale is replaced by the one that came with the news. A password
    that was refused is not tried a second time for the same request, unless it has been right before: then rather the
    server has changed, one that does not know its nonces any more and cannot say so.

    Args:
        user: the name.
        password: what goes with it; hashed in NFC (RFC 7616 §4).
    """

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = normalize(password)
        self._challenge: DigestChallenge | None = None
        self._count = 0
        self._right: DigestChallenge | None = None
        self._ha1: dict[tuple[str, str], str] = {}

    async def sign(self, method: bytes, uri: bytes, headers: Headers) -> _Signed | None:
        challenge = self._challenge
        if challenge is None:
            return None
        self._count += 1
        shown = answer_challenge(
            challenge,
            self._user,
            self._h_a1(challenge),
            method=method.decode("ascii"),
            uri=URI.fromBytes(uri).originForm.decode("ascii"),
            count=self._count,
            cnonce=secrets.token_urlsafe(16),
        )
        headers.setRawHeaders(b"Authorization", [encode_digest_response(shown, challenge.opaque)])
        return _Signed(challenge, shown)

    def is_wanted_again(self, signed: _Signed | None, uri: bytes, answer: IResponse) -> bool:  # noqa: ARG002
        if answer.code != 401:
            if signed is not None:
                self._check(signed, answer)
            return False
        told = choose_challenge(decode_challenges(answer.headers.getRawHeaders(b"WWW-Authenticate", [])))
        if told is None:
            return False
        if signed is None:
            # Many may have been asked at once: one nonce is enough for all of them.
            self._take(self._challenge or told)
            return True
        is_latest = signed.challenge is self._challenge
        may_be_right = told.stale or told.realm != signed.shown.realm or self._right is signed.challenge
        if is_latest:
            self._take(told if may_be_right else None)
        return may_be_right

    def _check(self, signed: _Signed, answer: IResponse) -> None:
        """Take note of whether the server knows the password, and of whether it says that we do."""
        lines = answer.headers.getRawHeaders(b"Authentication-Info", [])
        try:
            ha1 = self._h_a1(signed.challenge)
            next_nonce = check_authentication_info(b", ".join(lines), signed.shown, ha1) if lines else None
        except ServerAuthenticationError as error:
            raise SignInError(f"the server does not prove that it knows the password: {error}") from None
        if signed.challenge is not self._challenge:
            return
        if lines or answer.code < 400:
            self._right = signed.challenge
        # One that we have already is not a new one: its count goes on.
        if next_nonce and next_nonce != signed.challenge.nonce:
            self._take(replace(signed.challenge, nonce=next_nonce))
            self._right = self._challenge

    def _take(self, challenge: DigestChallenge | None) -> None:
        if challenge is not self._challenge:
            self._challenge, self._count = challenge, 0

    def _h_a1(self, challenge: DigestChallenge) -> str:
        key = challenge.algorithm, challenge.realm
        if key not in self._ha1:
            # A server has few realms; one that makes them up gets no memory for it.
            self._ha1 = {key: h_a1(challenge.algorithm, self._user, challenge.realm, self._password)}
        return self._ha1[key]
