"""Checks personal access tokens (reference: Personal access tokens)."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from twisted.internet.defer import Deferred

from postd.auth.accounts import Accounts
from postd.auth.checker import Checker
from postd.auth.credentials import (
    InsufficientScopeError,
    InvalidTokenError,
    ITokenCredentials,
    Refused,
    TokenCredentials,
    log_refusal,
    log_throttled,
)
from postd.auth.identity import Identity
from postd.auth.throttle import Throttle, address_keys
from postd.auth.user_file import NAME_MAX_BYTES
from postd.errors import StoreUnavailableError, TooManyFailuresError
from postd.protocol.bearer import decode_scope, has_issuer
from postd.protocol.password import normalize
from postd.protocol.personal_token import (
    Access,
    PersonalToken,
    hash_token,
    is_token,
    make_record_id,
    make_token,
)
from postd.store.interface import LoginStore

SCOPES = {"read": frozenset({"read"}), "write": frozenset({"read", "write"})}
"""The scopes of a token, by its access."""

ACCEPTED_MAX = 4096
"""Of how many accepted tokens the form is not checked again, which takes longer than to look the token up."""

USED_INTERVAL_S = 3600
"""How often at most the time of a token's last use is stored."""


def make_personal_token(  # noqa: PLR0913 - all but two by name
    account: str, entry: bytes, *, access: Access, label: str, now: float, lifetime_s: float
) -> tuple[str, PersonalToken]:
    """Return the text of a new token, which is to be shown once, and what a store has of it."""
    text = make_token()
    return text, PersonalToken(make_record_id(), account, entry, label, access, now, now + lifetime_s)


class PersonalTokenChecker(Checker):
    """Checks personal access tokens, by their hashes in the store; their owners are accounts.

    A token belongs to an entry: it is refused when its account is removed, also if it is added again. A store sees a
    revocation by another process at once, and caches tokens until then: there is no other cache.

    A token with a wrong checksum is a typing error: it is refused without a look-up, and counts as no failure. Each
    other refused token counts as a failure of its address, as an opaque token does, one that has expired, too.
    """

    credentialInterfaces = (ITokenCredentials,)

    def __init__(self, accounts: Accounts, store: LoginStore, throttle: Throttle, *, now: Callable[[], float]) -> None:
        self._accounts = accounts
        self._store = store
        self._throttle = throttle
        self._now = now
        self._accepted = set[bytes]()
        self._noting = set[bytes]()

    async def check(self, credentials: TokenCredentials) -> Identity:
        """Return the owner of the token.

        Raises:
            InvalidTokenError: the token is not accepted.
            InsufficientScopeError: it is accepted, but lacks the scope.
            TooManyFailuresError: the throttle does not admit a token from this address.
            StoreUnavailableError: the token or the throttle's counts cannot be read.
        """
        token_hash, keys = hash_token(credentials.token), address_keys(credentials.address)
        if token_hash not in self._accepted and not is_token(credentials.token):
            raise _refuse(InvalidTokenError("its form or its checksum is not that of a token"), credentials)
        token, now = await self._store.get_token(token_hash), self._now()
        refusal = self._find_fault(token, credentials, now)
        try:
            if isinstance(refusal, InvalidTokenError):
                # Admitted after the look-up, which may wait, and counted at once: the limit holds.
                await self._throttle.record_failure(await self._throttle.admit(keys))
            else:
                await self._throttle.check(keys)
        except TooManyFailuresError as error:
            raise log_throttled(credentials.scheme, error, credentials.address) from None
        if refusal is not None:
            raise _refuse(refusal, credentials)
        assert token is not None
        if len(self._accepted) >= ACCEPTED_MAX:
            self._accepted.clear()
        self._accepted.add(token_hash)
        if now - token.used >= USED_INTERVAL_S and token_hash not in self._noting:
            Deferred.fromCoroutine(self._note_use(token_hash))
        account = token.account
        provider = self._accounts.provider(account, token.entry) if has_issuer(account) else None
        issuer = "" if provider is None else provider.url
        revalidate = partial(self._is_valid, token_hash, credentials)
        return Identity(account, credentials.scheme, issuer, SCOPES[token.access], revalidate)

    def _find_fault(self, token: PersonalToken | None, credentials: TokenCredentials, now: float) -> Refused | None:
        """Return why a token is refused, None if it is valid, and permits the request."""
        if token is None:
            return InvalidTokenError("it is unknown, or was revoked")
        account = token.account
        if not self._accounts.has_entry(account, token.entry):
            return InvalidTokenError(f"token {token.id}: its account was removed since", account)
        if credentials.username is not None and not _is_name_of(credentials.username, account):
            return InvalidTokenError(f"token {token.id}: it was sent with another user name", account)
        if token.expires <= now:
            return InvalidTokenError(f"token {token.id}: it has expired", account, expired=True)
        # The method alone decides which scope is needed, as for Bearer.
        scopes, scope = SCOPES[token.access], credentials.scope
        if not scope:
            scope = "write" if credentials.writes else "read"
            return None if scope in scopes else InsufficientScopeError(account, scope)
        return None if decode_scope(scope) <= scopes else InsufficientScopeError(account, scope)

    async def _is_valid(self, token_hash: bytes, credentials: TokenCredentials) -> bool:
        try:
            token = await self._store.get_cached_token(token_hash)
        except StoreUnavailableError:
            return True  # unknown; without the store there is no response to send anyway
        return self._find_fault(token, credentials, self._now()) is None

    async def _note_use(self, token_hash: bytes) -> None:
        """Store the time of use of a token; the request does not wait for it, and never fails by it."""
        self._noting.add(token_hash)
        try:
            with suppress(StoreUnavailableError):  # the store logs the error
                await self._store.use_token(token_hash, used=self._now())
        finally:
            self._noting.discard(token_hash)


def _refuse(refusal: Refused, credentials: TokenCredentials) -> Refused:
    return log_refusal(credentials.scheme, refusal, credentials.address)


def _is_name_of(username: str, account: str) -> bool:
    """Return whether a user name is the name of an account; only names of the user file are normalized."""
    # The length bounds the work (`postd.auth.password.check_lengths`).
    return username == account or (len(username) <= NAME_MAX_BYTES and normalize(username) == account)
