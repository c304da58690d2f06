"""The accounts of the user file, kept up to date (contract 4.1)."""

import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct
from twisted.logger import Logger

from postd.auth.identity import Revalidate
from postd.auth.user_file import Account, decode_users, read_user_file
from postd.errors import ConfigError
from postd.protocol.password import UNKNOWN_HASH, cost_of

WATCH_EVERY_S = 0.5
"""How often the file is looked at (contract: taken up within 2 s)."""


class _Accounts(Struct, frozen=True):
    """What a file said: its accounts, of each the fingerprint that a session carries, and a hash of each cost."""

    by_name: Mapping[str, Account]
    fingerprints: Mapping[str, bytes]
    one_of_each_cost: Mapping[str, str]


def fingerprint_of(account: Account) -> bytes:
    """Return what a session carries of its user's entry: another one for each password that the user has had."""
    return hashlib.sha256(account.password_hash.encode()).digest()[:16]


def _index(by_name: Mapping[str, Account]) -> _Accounts:
    fingerprints = {name: fingerprint_of(account) for name, account in by_name.items()}
    hashes = [account.password_hash for account in by_name.values()] or [UNKNOWN_HASH]
    return _Accounts(by_name, fingerprints, {cost_of(stored): stored for stored in hashes})


class UserDirectory:
    """The accounts there are.

    Args:
        path: the user file; empty for none, and no accounts.
        changed: is told whose password is another one or who has gone: names, with fingerprints or None.
    """

    _log = Logger()

    def __init__(self, path: str, *, changed: Callable[[Mapping[str, bytes | None]], None] = lambda _: None) -> None:
        self._path = path
        self._changed = changed
        self._accounts = _index({})
        self._seen: tuple[int, ...] | None = None
        self._has_read = self._found_empty = False

    def load(self) -> None:
        """Read the file for the first time. One that is not there yet means no users.

        Raises:
            ConfigError: it cannot be read, or has something in it that cannot be used.
        """
        if not self._path:
            return
        self._seen = self._signature()
        self._accounts = self._read() or self._accounts

    def check(self) -> None:
        """Read the file, and leave what it says.

        Raises:
            ConfigError: it cannot be used, or has gone.
        """
        if self._path and self._read_index() is None and self._has_read:
            raise ConfigError(self._path, "is gone")

    def refresh(self) -> bool:
        """Take the file up if it has changed; return whether it was. What cannot be used leaves the old in force."""
        signature = self._signature() if self._path else None
        if signature == self._seen:
            return False
        self._seen = signature
        try:
            accounts = self._read()
        except ConfigError as error:
            self._log.error("the last good user file stays in force: {error}", error=error)
            return False
        if accounts is None:
            self._log.error("the last good user file stays in force: {path} is gone", path=self._path)
            return False
        if not accounts.by_name and self._accounts.by_name and not self._found_empty:
            # htpasswd empties the file before it writes it anew: another look, before all are signed out.
            self._found_empty, self._seen = True, None
            return False
        self._found_empty = False
        before, self._accounts = self._accounts, accounts
        count = len(accounts.by_name)
        self._log.info("{path}: {users}", path=self._path, users="1 user" if count == 1 else f"{count} users")
        now = accounts.fingerprints
        self._changed({name: now.get(name) for name, old in before.fingerprints.items() if now.get(name) != old})
        return True

    def _read(self) -> _Accounts | None:
        accounts = self._read_index()
        self._has_read = self._has_read or accounts is not None
        return accounts

    def _read_index(self) -> _Accounts | None:
        content = read_user_file(Path(self._path))
        return None if content is None else _index(decode_users(content, self._path))

    def get(self, name: str) -> Account | None:
        """Return an account by its normalized name."""
        return self._accounts.by_name.get(name)

    def fingerprint(self, name: str) -> bytes | None:
        """Return the fingerprint of an account, None if there is no such account."""
        return self._accounts.fingerprints.get(name)

    def revalidate(self, name: str) -> Revalidate:
        """Return a callback that returns whether the account still exists, with the same password."""
        fingerprint = self.fingerprint(name)

        async def is_the_same() -> bool:
            return self.fingerprint(name) == fingerprint

        return is_the_same

    def hash_in_place_of(self, name: str, key: bytes) -> str:
        """Return the hash to verify against for a user that there is not, so that this takes the time it takes others.

        It costs what the hash of some account costs, always the same for a name, as it is for a name that there is.

        Args:
            name: the user that there is not.
            key: the same after each start, and for all workers.
        """
        hashes = self._accounts.one_of_each_cost
        text = name.encode(errors="surrogateescape")
        return hashes[max(hashes, key=lambda cost: hmac.digest(key, b"%b\0%b" % (cost.encode(), text), "sha256"))]

    @property
    def accounts(self) -> Mapping[str, Account] | None:
        """All of them, by name; None if there has not been a file yet."""
        return self._accounts.by_name if self._has_read else None

    def _signature(self) -> tuple[int, ...] | None:
        """Return what differs between states of the file: a copy put back may be older than what it replaces."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - it says what it does
        except (OSError, ValueError):  # a path with NUL in it names nothing
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
