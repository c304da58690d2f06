"""Checks Digest responses, and issues and uses up nonces (RFC 7616; spec: Digest)."""

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from postd.auth.checker import Checker
from postd.auth.credentials import (
    DigestCredentials,
    IDigestCredentials,
    Refused,
    StaleNonceError,
    log_refusal,
    log_throttled,
)
from postd.auth.identity import Identity
from postd.auth.throttle import Throttle, login_keys
from postd.auth.user_file import NAME_MAX_BYTES, Account
from postd.auth.users import UserDirectory
from postd.errors import TooManyFailuresError, join_names
from postd.protocol.digest import HASHES, check_nonce, decode_encoded_username, h_a1, make_nonce, response_hashes
from postd.protocol.password import normalize
from postd.store.interface import LoginStore

NONCE_KEY = "digest-nonce"
"""The name of the stored key that signs nonces."""

_ENCODED_NAME_MAX_CHARS = NAME_MAX_BYTES * 3
"""The longest name that is decoded if it is percent-encoded: three characters for each of its bytes."""


class NonceRegistry:
    """Issues nonces that every worker and node can verify, and records the counts used with each.

    Args:
        now: the clock, in seconds since the epoch.
    """

    def __init__(self, store: LoginStore, *, lifetime_s: float, now: Callable[[], float]) -> None:
        self._store = store
        self._lifetime_s = lifetime_s
        self._now = now

    async def issue(self) -> str:
        """Make a nonce.

        Raises:
            StoreUnavailableError: the key cannot be read.
        """
        return make_nonce(await self._store.key(NONCE_KEY), expires=self._now() + self._lifetime_s)

    async def use(self, text: str, count: int, *, now: float) -> bool:
        """Record a use of a nonce; return whether the nonce is valid now, and was not used with this count before.

        Raises:
            StoreUnavailableError: the key or the counts cannot be read.
        """
        nonce = check_nonce(await self._store.key(NONCE_KEY), text)
        if nonce is None or nonce.expires <= now:
            return False
        return await self._store.use_nonce(nonce.identity, count, expires=nonce.expires)


def describe_missing_digest(accounts: Mapping[str, Account], realm: str, algorithms: Iterable[str]) -> str | None:
    """Return a sentence that names the accounts without an H(A1) of the realm for each algorithm; None if all have it.

    They can sign in by all schemes but Digest (reference: User file).
    """
    without = [name for name, one in accounts.items() if not all(one.h_a1_for(realm, each) for each in algorithms)]
    if not without:
        return None
    cure = "set their passwords again with `postd user passwd NAME`"
    return f"no Digest in the realm {str(realm)!r} for {join_names(without)}: {cure}"


class _Secret(Struct, frozen=True):
    """The H(A1) of an account for an algorithm, and the identity that it proves."""

    ha1: str
    identity: Identity


class DigestChecker(Checker):
    """Checks Digest responses; `realm` is the protection realm that H(A1) is bound to."""

    credentialInterfaces = (IDigestCredentials,)

    def __init__(self, users: UserDirectory, nonces: NonceRegistry, throttle: Throttle, *, realm: str) -> None:
        self._users = users
        self._nonces = nonces
        self._throttle = throttle
        self._realm = realm
        self._secrets: dict[tuple[str, str], _Secret] = {}  # by account and algorithm, of one version of the users
        self._users_version = users.version
        self._dummy_h_a1 = {algorithm: h_a1(algorithm, "", realm, secrets.token_hex()) for algorithm in HASHES}

    async def check(self, credentials: DigestCredentials) -> Identity:
        """Return the identity that the response proves, after a call of `credentials.accepted` with the `rspauth`.

        Raises:
            StaleNonceError: the response is right, but for an unknown, expired or used nonce.
            Refused: the user does not exist or cannot use Digest, or the response is wrong.
            TooManyFailuresError: the throttle does not admit the attempt.
            StoreUnavailableError: the counts cannot be read.
        """
        sent = credentials.response
        name = sent.username
        if len(name) > NAME_MAX_BYTES or "%" in name or not name.isascii():
            name = self._resolve(name)
        if len(name) > NAME_MAX_BYTES:
            raise log_refusal("digest", Refused("longer than any name", sent.username), credentials.address)
        try:
            attempt = await self._throttle.admit(login_keys(name, credentials.address))
        except TooManyFailuresError as error:
            is_known = self._users.get(name) is not None
            raise log_throttled("digest", error, credentials.address, name, known=is_known) from None
        # No wait up to the comparison: the attempt may have no reservation (`Throttle.admit`).
        secret = self._secrets.get((name, sent.algorithm)) if self._users.version == self._users_version else None
        if secret is None:
            secret = self._load_secret(name, sent.algorithm)
        ha1 = self._dummy_h_a1[sent.algorithm] if secret is None else secret.ha1
        expected, rspauth = response_hashes(sent, ha1, credentials.method)
        right = hmac.compare_digest(expected, sent.response.lower())
        if secret is None or not right:
            account = self._users.get(name)
            why = "wrong response" if secret else "no H(A1) for this realm and algorithm" if account else "no such user"
            refusal = log_refusal("digest", Refused(why, name, known=account is not None), credentials.address)
            await self._throttle.record_failure(attempt)
            raise refusal
        # Only after the response: `stale` is for clients that know the password (RFC 7616 §3.3).
        fresh = await self._nonces.use(sent.nonce, int(sent.nc, 16), now=attempt.time)
        if attempt.needs_release:
            await self._throttle.release(attempt, reset_failures=fresh)
        if not fresh:
            stale = StaleNonceError("unknown or expired nonce, or used with this count", name, known=True)
            raise log_refusal("digest", stale, credentials.address)
        credentials.accepted(rspauth)
        return secret.identity

    def _load_secret(self, name: str, algorithm: str) -> _Secret | None:
        """Return the secret of an account as it is now, None if it has none for this realm and algorithm."""
        if self._users.version != self._users_version:
            self._users_version = self._users.version
            self._secrets.clear()
        account = self._users.get(name)
        ha1 = account.h_a1_for(self._realm, algorithm) if account else None
        if ha1 is None:
            return None
        identity = Identity(name, "digest", revalidate=self._users.revalidate(name))
        secret = self._secrets[name, algorithm] = _Secret(ha1, identity)
        return secret

    def refuse(self, why: str, username: str) -> Refused:
        """Return a refusal of credentials that are not checked; it names the user if the account exists."""
        name = self._resolve(username)
        return Refused(why, name, known=self._users.get(name) is not None)

    def _resolve(self, username: str) -> str:
        """Return the name of the account that a client means, normalized; too long a name is returned unchanged."""
        name = username
        if NAME_MAX_BYTES < len(name) <= _ENCODED_NAME_MAX_CHARS:
            name = decode_encoded_username(name)
        if len(name) > NAME_MAX_BYTES:
            return name
        name = normalize(name)
        if "%" in name and self._users.get(name) is None:
            name = normalize(decode_encoded_username(name))
        return name
