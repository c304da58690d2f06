"""Personal access tokens, passkeys and resets of passwords in SQLite (`postd.store.interface.CredentialStore`)."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import astuple, replace

from postd.defaults import PASSKEYS_PER_ACCOUNT, TOKENS_PER_ACCOUNT
from postd.protocol.passkey import Passkey
from postd.protocol.password_reset import PasswordReset
from postd.protocol.personal_token import PersonalToken
from postd.reactor import Work
from postd.store.base import StorePart
from postd.store.sqlite.database import SqliteDatabase

_TOKEN = ", ".join(PersonalToken.__struct_fields__)
_INSERT_TOKEN = f"INSERT INTO personal_token (token_hash, {_TOKEN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - only constants
_COUNT_TOKENS = "SELECT count(*) FROM personal_token WHERE account = ? AND entry = ? AND expires > ?"
_SELECT_TOKEN = f"SELECT {_TOKEN} FROM personal_token WHERE token_hash = ?"  # noqa: S608 - only constants
_NOTE_USE = "UPDATE personal_token SET used = ? WHERE token_hash = ? AND used < ?"
_REVOKE = "DELETE FROM personal_token WHERE id = ? AND account = coalesce(?, account)"

_PASSKEY = ", ".join(Passkey.__struct_fields__)
_INSERT_PASSKEY = f"INSERT INTO passkey ({_PASSKEY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - only constants
_COUNT_PASSKEYS = "SELECT count(*) FROM passkey WHERE account = ? AND entry = ?"
_SELECT_PASSKEY = f"SELECT {_PASSKEY} FROM passkey WHERE credential_id = ?"  # noqa: S608 - only constants
_USE_PASSKEY = """
UPDATE passkey SET used = :used, sign_count = :sign_count, backed_up = :backed_up
WHERE credential_id = :credential_id AND (sign_count < :sign_count OR (sign_count = 0 AND :sign_count = 0))
"""
_REMOVE_PASSKEY = "DELETE FROM passkey WHERE id = ? AND account = coalesce(?, account)"

_RESET = ", ".join(PasswordReset.__struct_fields__)
_INSERT_RESET = f"INSERT OR REPLACE INTO password_reset (secret_hash, {_RESET}) VALUES (?, ?, ?, ?)"  # noqa: S608 - only constants
_SELECT_RESET = f"SELECT {_RESET} FROM password_reset WHERE secret_hash = ?"  # noqa: S608 - only constants

_DELETE_OF = (
    "DELETE FROM personal_token WHERE account = :account AND entry IS NOT :kept",
    "DELETE FROM passkey WHERE account = :account AND entry IS NOT :kept",
    "DELETE FROM password_reset WHERE account = :account",
)

_CACHED = ("personal_token",)

_Row = tuple[Any, ...]
_Values = Sequence[object] | Mapping[str, object]


class SqliteCredentials(StorePart[SqliteDatabase]):
    """The tables of `schema/0011_credentials.sql`, without the sessions."""

    async def add_token(
        self, token_hash: bytes, token: PersonalToken, *, max_of_account: int = TOKENS_PER_ACCOUNT
    ) -> bool:
        def write(connection: sqlite3.Connection) -> bool:
            owner = (token.account, token.entry, token.created)
            if connection.execute(_COUNT_TOKENS, owner).fetchone()[0] >= max_of_account:
                return False
            connection.execute(_INSERT_TOKEN, (token_hash, *astuple(token)))
            return True

        return await self.database.write(write, changes=_CACHED)

    def get_token(self, token_hash: bytes) -> Work[PersonalToken | None]:
        def query(connection: sqlite3.Connection) -> PersonalToken | None:
            row = connection.execute(_SELECT_TOKEN, (token_hash,)).fetchone()
            return PersonalToken(*row) if row else None

        return self.database.cache.read("personal_token", token_hash, query)

    get_cached_token = get_token

    async def list_tokens(self, account: str | None = None) -> list[PersonalToken]:
        rows = await self._list(f"SELECT {_TOKEN} FROM personal_token", account)  # noqa: S608 - only constants
        return [PersonalToken(*row) for row in rows]

    async def use_token(self, token_hash: bytes, *, used: float) -> None:
        row = (used, token_hash, used)
        await self.database.write(lambda connection: connection.execute(_NOTE_USE, row), synced=False, changes=_CACHED)

    async def delete_tokens(self, ids: Collection[str], *, account: str | None = None) -> int:
        return await self._change(_REVOKE, [(id_, account) for id_ in ids], changes=_CACHED)

    async def add_passkey(self, passkey: Passkey, *, max_of_account: int = PASSKEYS_PER_ACCOUNT) -> bool:
        def write(connection: sqlite3.Connection) -> bool:
            owner = (passkey.account, passkey.entry)
            is_taken = connection.execute(_SELECT_PASSKEY, (passkey.credential_id,)).fetchone() is not None
            if is_taken or connection.execute(_COUNT_PASSKEYS, owner).fetchone()[0] >= max_of_account:
                return False
            connection.execute(_INSERT_PASSKEY, astuple(passkey))
            return True

        return await self.database.write(write, changes=())

    async def get_passkey(self, credential_id: bytes) -> Passkey | None:
        def query(connection: sqlite3.Connection) -> Passkey | None:
            row = connection.execute(_SELECT_PASSKEY, (credential_id,)).fetchone()
            return _decode_passkey(row) if row else None

        return await self.database.read(query)

    async def list_passkeys(self, account: str | None = None) -> list[Passkey]:
        rows = await self._list(f"SELECT {_PASSKEY} FROM passkey", account)  # noqa: S608 - only constants
        return list(map(_decode_passkey, rows))

    async def use_passkey(self, credential_id: bytes, *, used: float, sign_count: int, backed_up: bool) -> bool:
        use = {"credential_id": credential_id, "used": used, "sign_count": sign_count, "backed_up": backed_up}
        return await self._change(_USE_PASSKEY, [use]) == 1

    async def rename_passkey(self, id_: str, label: str, *, account: str) -> bool:
        rename = "UPDATE passkey SET label = ? WHERE id = ? AND account = ?"
        return await self._change(rename, [(label, id_, account)]) == 1

    async def delete_passkeys(self, ids: Collection[str], *, account: str | None = None) -> int:
        return await self._change(_REMOVE_PASSKEY, [(id_, account) for id_ in ids])

    async def add_password_reset(self, secret_hash: bytes, reset: PasswordReset) -> None:
        row = (secret_hash, *astuple(reset))
        await self.database.write(lambda connection: connection.execute(_INSERT_RESET, row), changes=())

    async def get_password_reset(self, secret_hash: bytes) -> PasswordReset | None:
        def query(connection: sqlite3.Connection) -> PasswordReset | None:
            row = connection.execute(_SELECT_RESET, (secret_hash,)).fetchone()
            return PasswordReset(*row) if row else None

        return await self.database.read(query)

    async def use_password_reset(self, secret_hash: bytes) -> bool:
        return await self._change("DELETE FROM password_reset WHERE secret_hash = ?", [(secret_hash,)]) == 1

    async def delete_credentials_of(self, entries: Mapping[str, bytes | None]) -> int:
        rows = [{"account": account, "kept": kept} for account, kept in entries.items()]

        def write(connection: sqlite3.Connection) -> int:
            return sum(connection.executemany(delete, rows).rowcount for delete in _DELETE_OF)

        return await self.database.write(write, changes=_CACHED) if rows else 0

    async def _list(self, select: str, account: str | None) -> list[_Row]:
        where, values = ("", ()) if account is None else (" WHERE account = ?", (account,))
        return await self.database.read(
            lambda connection: connection.execute(f"{select}{where} ORDER BY created, id", values).fetchall()
        )

    async def _change(self, statement: str, rows: Sequence[_Values], changes: Sequence[str] = ()) -> int:
        """Run a statement once with each row of values; return how many rows of the table it has changed."""
        if not rows:
            return 0
        return await self.database.write(
            lambda connection: connection.executemany(statement, rows).rowcount, changes=changes
        )


def _decode_passkey(row: _Row) -> Passkey:
    passkey = Passkey(*row)
    return replace(passkey, backup_eligible=bool(passkey.backup_eligible), backed_up=bool(passkey.backed_up))
