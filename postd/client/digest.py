"""Digest authentication as a client (RFC 7616, qop=auth), which treq does not support."""

import secrets

from msgspec import Struct
from msgspec.structs import replace
from twisted.web.client import URI
from twisted.web.http_headers import Headers
from twisted.web.iweb import IResponse

from postd.client.authenticator import Authenticator
from postd.client.errors import SignInError
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


class _Proof(Struct, frozen=True):
    """The Digest response that was sent, and the challenge that it answers."""

    challenge: DigestChallenge
    response: DigestResponse


class DigestAuthenticator(Authenticator):
    """Answers Digest challenges.

    The first request is sent without credentials, to get a challenge. Its nonce is used for the requests that follow,
    each with a count of its own, until the server declares it stale with a new challenge. A refused password is not
    tried again for the same request, unless it was accepted before: some servers forget their nonces on a restart and
    answer without `stale`. The password is hashed in NFC (RFC 7616 §4).
    """

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = normalize(password)
        self._challenge: DigestChallenge | None = None
        self._count = 0
        self._accepted: DigestChallenge | None = None

    async def authenticate(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers,
        previous: _Proof | None = None,  # noqa: ARG002
    ) -> _Proof | None:
        challenge = self._challenge
        if challenge is None:
            return None
        self._count += 1
        response = answer_challenge(
            challenge,
            self._user,
            self._ha1_for(challenge),
            method=method.decode("ascii"),
            uri=URI.fromBytes(uri).originForm.decode("ascii"),
            count=self._count,
            cnonce=secrets.token_urlsafe(16),
        )
        headers.setRawHeaders(b"Authorization", [encode_digest_response(response, challenge.opaque)])
        return _Proof(challenge, response)

    def should_retry(self, credentials: _Proof | None, uri: bytes, response: IResponse) -> bool:  # noqa: ARG002
        if response.code != 401:
            if credentials is not None:
                self._check_server_proof(credentials, response)
            return False
        offered = choose_challenge(decode_challenges(response.headers.getRawHeaders(b"WWW-Authenticate", [])))
        if offered is None:
            return False
        if credentials is None:
            # Requests that were challenged at the same time share one nonce.
            self._replace_challenge(self._challenge or offered)
            return True
        is_latest = credentials.challenge is self._challenge
        was_accepted = self._accepted is credentials.challenge
        may_be_accepted = offered.stale or offered.realm != credentials.response.realm or was_accepted
        if is_latest:
            self._replace_challenge(offered if may_be_accepted else None)
        return may_be_accepted

    def _check_server_proof(self, credentials: _Proof, response: IResponse) -> None:
        """Check the server's proof in `Authentication-Info`; record an accepted challenge and the next nonce.

        Raises:
            SignInError: the proof is wrong.
        """
        lines = response.headers.getRawHeaders(b"Authentication-Info", [])
        ha1 = self._ha1_for(credentials.challenge)
        try:
            next_nonce = check_authentication_info(b", ".join(lines), credentials.response, ha1) if lines else None
        except ServerAuthenticationError as error:
            raise SignInError(f"the server does not prove that it knows the password: {error}") from None
        if credentials.challenge is not self._challenge:
            return
        if lines or response.code < 400:
            self._accepted = credentials.challenge
        # A nextnonce that repeats the current nonce must not reset its count.
        if next_nonce and next_nonce != credentials.challenge.nonce:
            self._replace_challenge(replace(credentials.challenge, nonce=next_nonce))
            self._accepted = self._challenge

    def _replace_challenge(self, challenge: DigestChallenge | None) -> None:
        if challenge is not self._challenge:
            self._challenge, self._count = challenge, 0

    def _ha1_for(self, challenge: DigestChallenge) -> str:
        return h_a1(challenge.algorithm, self._user, challenge.realm, self._password)
