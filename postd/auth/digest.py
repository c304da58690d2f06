"""Proofs of knowing a password (Digest, RFC 7616; spec: Digest)."""

import hmac
import secrets
from collections.abc import Callable

from postd.auth.checker import Checker
from postd.auth.credentials import (
    DigestCredentials,
    IDigestCredentials,
    Refused,
    StaleNonceError,
    log_refusal,
)
from postd.auth.identity import Identity
from postd.auth.throttle import Throttle, login_keys
from postd.auth.user_file import NAME_MAX_BYTES
from postd.auth.users import UserDirectory
from postd.protocol.digest import HASHES, check_nonce, decode_encoded_username, h_a1, make_nonce, response_hash
from postd.protocol.password import normalize
from postd.store.interface import LoginStore

NONCE_KEY = "digest-nonce"
"""The name of the key that signs nonces."""

_ENCODED_NAME_MAX_CHARS = NAME_MAX_BYTES * 3
"""The longest name that is decoded if it is percent-encoded: three characters for each of its bytes."""


class NonceBook:
    """Nonces that every worker knows for ours, each good for any count, once.

    Args:
        store: keeps the key and the counts.
        lifetime_s: how long a nonce lives, in seconds.
        now: the clock, in seconds since the epoch.
    """

    def __init__(self, store: LoginStore, *, lifetime_s: float, now: Callable[[], float]) -> None:
        self._store = store
        self._lifetime_s = lifetime_s
        self._now = now

    async def issue(self) -> str:
        """Make a nonce.

        Raises:
            StoreUnavailableError: the key cannot be had.
        """
        return make_nonce(await self._store.key(NONCE_KEY), expires=self._now() + self._lifetime_s)

    async def use(self, text: str, count: int) -> bool:
        """Tell whether this is the first use of a live nonce of ours with this count, and note it.

        Raises:
            StoreUnavailableError: nobody knows.
        """
        nonce = check_nonce(await self._store.key(NONCE_KEY), text)
        if nonce is None or nonce.expires <= self._now():
            return False
        return await self._store.use_nonce(nonce.identity, count, expires=nonce.expires)


class DigestChecker(Checker):
    """Digest responses.

    Args:
        users: have H(A1)s in the place of passwords.
        realm: what they are bound to.
        nonces: ours.
        throttle: counts wrong responses.
    """

    credentialInterfaces = (IDigestCredentials,)

    def __init__(self, users: UserDirectory, nonces: NonceBook, throttle: Throttle, *, realm: str) -> None:
        self._users = users
        self._nonces = nonces
        self._throttle = throttle
        self._realm = realm
        self._nobody = {algorithm: h_a1(algorithm, "", realm, secrets.token_hex()) for algorithm in HASHES}

    async def check(self, credentials: DigestCredentials) -> Identity:
        """Return who can compute this response; `credentials.accepted` has been called with the `rspauth` by then.

        Raises:
            StaleNonceError: all is right but the nonce.
            Refused: there is no such user, it cannot use Digest, or the response is not right.
            TooManyFailuresError: the throttle does not let it pass.
            StoreUnavailableError: the counts cannot be had.
        """
        sent = credentials.response
        name = sent.username
        if NAME_MAX_BYTES < len(name) <= _ENCODED_NAME_MAX_CHARS:
            name = decode_encoded_username(name)
        if len(name) > NAME_MAX_BYTES:
            raise log_refusal("digest", Refused("longer than any name", sent.username), credentials.address)
        name = normalize(name)
        if "%" in name and self._users.get(name) is None:
            name = normalize(decode_encoded_username(name))
        attempt = await self._throttle.admit(login_keys(name, credentials.address))
        # Up to the comparison nothing waits (`Throttle.admit`).
        account = self._users.get(name)
        known = account.h_a1_for(self._realm, sent.algorithm) if account else None
        ha1 = known or self._nobody[sent.algorithm]
        wanted = response_hash(sent, ha1, credentials.method)
        right = sent.response.isascii() and hmac.compare_digest(wanted, sent.response.lower())
        if known is None or not right:
            why = "wrong response" if known else "no H(A1) for this realm and algorithm" if account else "no such user"
            refusal = log_refusal("digest", Refused(why, name, known=account is not None), credentials.address)
            await self._throttle.record_failure(attempt)
            raise refusal
        # Only now: that a nonce is stale is told to those alone who know the password (RFC 7616 §3.3).
        fresh = await self._nonces.use(sent.nonce, int(sent.nc, 16))
        if self._throttle.needs_release(attempt):
            await self._throttle.release(attempt, reset_failures=fresh)
        if not fresh:
            stale = StaleNonceError("nonce not ours, expired, or used with this count", name, known=True)
            raise log_refusal("digest", stale, credentials.address)
        credentials.accepted(response_hash(sent, ha1, ""))
        return Identity(name, "digest", revalidate=self._users.revalidate(name))
