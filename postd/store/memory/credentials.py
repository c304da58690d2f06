"""Personal access tokens, passkeys and resets of passwords in memory (`postd.store.interface.CredentialStore`)."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

from postd.defaults import PASSKEYS_PER_ACCOUNT, TOKENS_PER_ACCOUNT
from postd.protocol.passkey import Passkey
from postd.protocol.password_reset import PasswordReset
from postd.protocol.personal_token import PersonalToken
from postd.store.interface import TOKENS_KEPT_S
from postd.store.memory.expiry_queue import ExpiryQueue
from postd.store.memory.lifecycle import MemoryLifecycle


class _Record(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def account(self) -> str: ...

    @property
    def entry(self) -> bytes: ...

    @property
    def created(self) -> float: ...


R = TypeVar("R", bound=_Record)


class _Records(Generic[R]):
    """Tokens or passkeys, by the bytes that identify them."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, R] = {}
        self._keys_by_id: dict[str, bytes] = {}
        self._keys_of: dict[str, set[bytes]] = {}
        self._expiries = ExpiryQueue()

    def add(self, key: bytes, record: R, *, expires: float = math.inf) -> None:
        self.by_key[key] = record
        self._keys_by_id[record.id] = key
        self._keys_of.setdefault(record.account, set()).add(key)
        self._expiries.set(key, expires)

    def find(self, id_: str, account: str | None) -> tuple[bytes, R] | None:
        key = self._keys_by_id.get(id_)
        if key is None or account not in (None, self.by_key[key].account):
            return None
        return key, self.by_key[key]

    def of(self, account: str) -> list[tuple[bytes, R]]:
        return [(key, self.by_key[key]) for key in self._keys_of.get(account, ())]

    def listed(self, account: str | None) -> list[R]:
        found = self.by_key.values() if account is None else [record for _, record in self.of(account)]
        return sorted(found, key=lambda record: (record.created, record.id))

    def delete(self, key: bytes) -> bool:
        """Delete a record; return whether there was one."""
        record = self.by_key.pop(key, None)
        if record is None:
            return False
        del self._keys_by_id[record.id]
        self._expiries.discard(key)
        keys = self._keys_of[record.account]
        keys.remove(key)
        if not keys:
            del self._keys_of[record.account]
        return True

    def delete_ids(self, ids: Iterable[str], account: str | None) -> int:
        found = [self.find(id_, account) for id_ in {*ids}]
        return sum(self.delete(one[0]) for one in found if one is not None)

    def purge(self, *, now: float, most: int) -> int:
        """Delete at most so many expired records; return their number."""
        return sum(map(self.delete, self._expiries.pop_expired(now=now, most=most)))

    def delete_of(self, account: str, kept: bytes | None) -> int:
        return sum(self.delete(key) for key, record in self.of(account) if record.entry != kept)


class MemoryCredentials(MemoryLifecycle):
    """The credentials of a login store in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens = _Records[PersonalToken]()
        self._passkeys = _Records[Passkey]()
        self._resets: dict[bytes, PasswordReset] = {}
        self._reset_of: dict[str, bytes] = {}
        self._reset_expiries = ExpiryQueue()

    async def add_token(
        self, token_hash: bytes, token: PersonalToken, *, max_of_account: int = TOKENS_PER_ACCOUNT
    ) -> bool:
        self._begin("write")
        others = [other for _, other in self._tokens.of(token.account) if other.expires > token.created]
        if sum(other.entry == token.entry for other in others) >= max_of_account:
            return False
        self._tokens.add(token_hash, token, expires=token.expires)
        return True

    async def get_token(self, token_hash: bytes) -> PersonalToken | None:
        self._begin("read")
        return self._tokens.by_key.get(token_hash)

    get_cached_token = get_token

    async def list_tokens(self, account: str | None = None) -> list[PersonalToken]:
        self._begin("read")
        return self._tokens.listed(account)

    async def use_token(self, token_hash: bytes, *, used: float) -> None:
        self._begin("write")
        token = self._tokens.by_key.get(token_hash)
        if token is not None and token.used < used:
            self._tokens.by_key[token_hash] = replace(token, used=used)

    async def delete_tokens(self, ids: Collection[str], *, account: str | None = None) -> int:
        self._begin("write")
        return self._tokens.delete_ids(ids, account)

    async def add_passkey(self, passkey: Passkey, *, max_of_account: int = PASSKEYS_PER_ACCOUNT) -> bool:
        self._begin("write")
        others = sum(other.entry == passkey.entry for _, other in self._passkeys.of(passkey.account))
        if others >= max_of_account or passkey.credential_id in self._passkeys.by_key:
            return False
        self._passkeys.add(passkey.credential_id, passkey)
        return True

    async def get_passkey(self, credential_id: bytes) -> Passkey | None:
        self._begin("read")
        return self._passkeys.by_key.get(credential_id)

    async def list_passkeys(self, account: str | None = None) -> list[Passkey]:
        self._begin("read")
        return self._passkeys.listed(account)

    async def use_passkey(self, credential_id: bytes, *, used: float, sign_count: int, backed_up: bool) -> bool:
        self._begin("write")
        passkey = self._passkeys.by_key.get(credential_id)
        if passkey is None or (sign_count <= passkey.sign_count and (sign_count or passkey.sign_count)):
            return False
        changed = replace(passkey, used=used, sign_count=sign_count, backed_up=backed_up)
        self._passkeys.by_key[credential_id] = changed
        return True

    async def rename_passkey(self, id_: str, label: str, *, account: str) -> bool:
        self._begin("write")
        found = self._passkeys.find(id_, account)
        if found is None:
            return False
        key, passkey = found
        self._passkeys.by_key[key] = replace(passkey, label=label)
        return True

    async def delete_passkeys(self, ids: Collection[str], *, account: str | None = None) -> int:
        self._begin("write")
        return self._passkeys.delete_ids(ids, account)

    async def add_password_reset(self, secret_hash: bytes, reset: PasswordReset) -> None:
        self._begin("write")
        self._delete_reset_of(reset.account)
        self._resets[secret_hash] = reset
        self._reset_of[reset.account] = secret_hash
        self._reset_expiries.set(secret_hash, reset.expires)

    async def get_password_reset(self, secret_hash: bytes) -> PasswordReset | None:
        self._begin("read")
        return self._resets.get(secret_hash)

    async def use_password_reset(self, secret_hash: bytes) -> bool:
        self._begin("write")
        reset = self._resets.get(secret_hash)
        return reset is not None and self._delete_reset_of(reset.account)

    async def delete_credentials_of(self, entries: Mapping[str, bytes | None]) -> int:
        self._begin("write")
        return sum(
            self._tokens.delete_of(account, kept)
            + self._passkeys.delete_of(account, kept)
            + self._delete_reset_of(account)
            for account, kept in entries.items()
        )

    def _purge_credentials(self, now: float, most: int) -> int:
        """Remove at most so many expired tokens, and as many resets; return the larger number of the two."""
        tokens = self._tokens.purge(now=now - TOKENS_KEPT_S, most=most)
        resets = self._reset_expiries.pop_expired(now=now, most=most)
        for secret_hash in resets:
            self._delete_reset_of(self._resets[secret_hash].account)
        return max(tokens, len(resets))

    def _delete_reset_of(self, account: str) -> bool:
        """Delete the reset of an account; return whether there was one."""
        secret_hash = self._reset_of.pop(account, None)
        if secret_hash is None:
            return False
        del self._resets[secret_hash]
        self._reset_expiries.discard(secret_hash)
        return True
