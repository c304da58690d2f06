"""Personal access tokens, passkeys and resets of passwords in Redis (`postd.store.interface.CredentialStore`).

Values are encoded as in `postd.store.redis.logins`. Requests use no cache: a deleted token is unknown to all nodes
at once.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Literal

from msgspec.structs import asdict

from postd.defaults import PASSKEYS_PER_ACCOUNT, TOKENS_PER_ACCOUNT
from postd.protocol.passkey import Passkey
from postd.protocol.password_reset import PasswordReset
from postd.protocol.personal_token import PersonalToken
from postd.store.base import StorePart
from postd.store.redis.cached_records import CachedRecords, Fields
from postd.store.redis.database import RedisDatabase
from postd.store.redis.scripts import KEYS, load_script

_ADD = load_script("credentials", "add_credential", writes=True)
_DELETE = load_script("credentials", "delete_credentials", writes=True)
_DELETE_OF = load_script("credentials", "delete_credentials_of", writes=True)
_USE_TOKEN = load_script("use_token", writes=True)
_USE_PASSKEY = load_script("use_passkey", writes=True)
_RENAME_PASSKEY = load_script("rename_passkey", writes=True)
_ADD_RESET = load_script("credentials", "add_reset", writes=True)
_USE_RESET = load_script("credentials", "use_reset", writes=True)

_TOKEN_FIELDS = PersonalToken.__struct_fields__
_PASSKEY_FIELDS = Passkey.__struct_fields__
_RESET_FIELDS = PasswordReset.__struct_fields__
_NO_ENTRY = "-"


class RedisCredentials(StorePart[RedisDatabase]):
    """Tokens, passkeys and resets, each under keys of their own."""

    def __init__(self, database: RedisDatabase) -> None:
        super().__init__(database)
        self.get_cached_token = CachedRecords(database, KEYS["TOKEN"], _TOKEN_FIELDS, _decode_token).get

    async def add_token(
        self, token_hash: bytes, token: PersonalToken, *, max_of_account: int = TOKENS_PER_ACCOUNT
    ) -> bool:
        return await self._add("token", token_hash, token, max_of_account)

    async def get_token(self, token_hash: bytes) -> PersonalToken | None:
        key = KEYS["TOKEN"] + token_hash.hex()
        return _decode_token(await self.database.read_command("HMGET", key, *_TOKEN_FIELDS))

    async def list_tokens(self, account: str | None = None) -> list[PersonalToken]:
        tokens = map(_decode_token, await self._find("TOKEN", _TOKEN_FIELDS, account))
        return sorted(filter(None, tokens), key=lambda token: (token.created, token.id))

    async def use_token(self, token_hash: bytes, *, used: float) -> None:
        await self.database.write(_USE_TOKEN, token_hash.hex(), repr(used))

    async def delete_tokens(self, ids: Collection[str], *, account: str | None = None) -> int:
        return await self._delete("token", ids, account)

    async def add_passkey(self, passkey: Passkey, *, max_of_account: int = PASSKEYS_PER_ACCOUNT) -> bool:
        return await self._add("passkey", passkey.credential_id, passkey, max_of_account)

    async def get_passkey(self, credential_id: bytes) -> Passkey | None:
        key = KEYS["PASSKEY"] + credential_id.hex()
        return _decode_passkey(await self.database.read_command("HMGET", key, *_PASSKEY_FIELDS))

    async def list_passkeys(self, account: str | None = None) -> list[Passkey]:
        passkeys = map(_decode_passkey, await self._find("PASSKEY", _PASSKEY_FIELDS, account))
        return sorted(filter(None, passkeys), key=lambda passkey: (passkey.created, passkey.id))

    async def use_passkey(self, credential_id: bytes, *, used: float, sign_count: int, backed_up: bool) -> bool:
        use = (repr(used), sign_count, int(backed_up))
        return bool(await self.database.write(_USE_PASSKEY, credential_id.hex(), *use))

    async def rename_passkey(self, id_: str, label: str, *, account: str) -> bool:
        return bool(await self.database.write(_RENAME_PASSKEY, id_, account, label))

    async def delete_passkeys(self, ids: Collection[str], *, account: str | None = None) -> int:
        return await self._delete("passkey", ids, account)

    async def add_password_reset(self, secret_hash: bytes, reset: PasswordReset) -> None:
        stored = (reset.account, reset.fingerprint.hex(), repr(reset.expires))
        await self.database.write(_ADD_RESET, secret_hash.hex(), *stored)

    async def get_password_reset(self, secret_hash: bytes) -> PasswordReset | None:
        fields = await self.database.read_command("HMGET", KEYS["RESET"] + secret_hash.hex(), *_RESET_FIELDS)
        account, fingerprint, expires = fields
        return None if account is None else PasswordReset(account, bytes.fromhex(fingerprint), float(expires))

    async def use_password_reset(self, secret_hash: bytes) -> bool:
        return bool(await self.database.write(_USE_RESET, secret_hash.hex()))

    async def delete_credentials_of(self, entries: Mapping[str, bytes | None]) -> int:
        pairs = [(account, _NO_ENTRY if kept is None else kept.hex()) for account, kept in entries.items()]
        return await self.database.write_in_batches(_DELETE_OF, (), [*chain.from_iterable(pairs)])

    async def _add(
        self, kind: Literal["token", "passkey"], key: bytes, record: PersonalToken | Passkey, max_of_account: int
    ) -> bool:
        fields = chain.from_iterable((name, _encode(value)) for name, value in asdict(record).items())
        return bool(await self.database.write(_ADD, kind, key.hex(), max_of_account, *fields))

    async def _find(
        self, record: Literal["TOKEN", "PASSKEY"], fields: Sequence[str], account: str | None
    ) -> Sequence[Fields]:
        """Return the fields of all tokens or passkeys, or those of an account."""
        if account is None:
            keys = await self.database.read_command("ZRANGE", KEYS[f"{record}S"], 0, -1)
        else:
            keys = await self.database.read_command("SMEMBERS", KEYS[f"{record}S_OF"] + account)
        return await self.database.read_records(KEYS[record], fields, [*keys])

    async def _delete(self, kind: Literal["token", "passkey"], ids: Collection[str], account: str | None) -> int:
        whose = ("1", "") if account is None else ("", account)
        return await self.database.write_in_batches(_DELETE, (kind, *whose), [*ids])


def _encode(value: str | bytes | float) -> str | int:
    if isinstance(value, bytes):
        return value.hex()
    return repr(value) if isinstance(value, float) else value if isinstance(value, str) else int(value)


def _decode_token(fields: Fields) -> PersonalToken | None:
    id_, account, entry, label, access, created, expires, used = fields
    if id_ is None:
        return None
    entry = bytes.fromhex(entry)
    return PersonalToken(id_, account, entry, label, access, float(created), float(expires), float(used))


def _decode_passkey(fields: Fields) -> Passkey | None:
    id_, credential_id, account, entry, public_key, label, created, used, *rest = fields
    if id_ is None:
        return None
    return Passkey(
        id_,
        bytes.fromhex(credential_id),
        account,
        bytes.fromhex(entry),
        bytes.fromhex(public_key),
        label,
        float(created),
        float(used),
        int(rest[0]),
        rest[1] == "1",
        rest[2] == "1",
        *rest[3:],
    )
