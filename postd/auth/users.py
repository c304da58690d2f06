"""The accounts of the user file, reloaded when it changes (reference: User file)."""

import hmac
import os
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct
from twisted.logger import Logger

from postd.auth.identity import Revalidate
from postd.auth.user_file import ENTRY_BYTES, Account, load_accounts
from postd.errors import ConfigError
from postd.protocol.password import DUMMY_HASH, cost_of

WATCH_INTERVAL_S = 0.5
"""How often the file is checked for changes (reference: User file; within 2 s)."""


class _Accounts(Struct, frozen=True):
    """The accounts of a file, the fingerprint and the entry of each, and one hash of each cost."""

    by_name: Mapping[str, Account]
    fingerprints: Mapping[str, bytes]
    entries: Mapping[str, bytes]
    hash_by_cost: Mapping[str, str]


def _index(by_name: Mapping[str, Account]) -> _Accounts:
    fingerprints = {name: account.fingerprint for name, account in by_name.items()}
    entries = {name: account.entry_id or fingerprints[name][:ENTRY_BYTES] for name, account in by_name.items()}
    hashes = [account.password_hash for account in by_name.values()] or [DUMMY_HASH]
    return _Accounts(by_name, fingerprints, entries, {cost_of(stored): stored for stored in hashes})


def _is_same(old: Account, new: Account | None) -> bool:
    return new is not None and (old.password_hash, old.entry) == (new.password_hash, new.entry)


class UserDirectory:
    """The current accounts.

    Args:
        path: the user file; empty for no file and no accounts.
        changed: called with the names of accounts whose password or entry has changed, or that were removed, and the
            accounts that they have now, or None.

    Attributes:
        version: differs after each reload.
    """

    _log = Logger()

    def __init__(self, path: str, *, changed: Callable[[Mapping[str, Account | None]], None] = lambda _: None) -> None:
        self.path = path
        self._changed = changed
        self._accounts = _index({})
        self.version = 0
        self._loaded_signature: tuple[int, ...] | None = None
        self._was_read = self._was_empty = False

    def load(self) -> None:
        """Read the file for the first time; a missing file means no users.

        Raises:
            ConfigError: it cannot be read, or a line of it is invalid.
        """
        if not self.path:
            return
        self._loaded_signature = self._signature()
        self._accounts = self._read() or self._accounts
        self.version += 1

    def check(self) -> None:
        """Check that the file can be loaded, without changing the accounts.

        Raises:
            ConfigError: it cannot be used, or was removed.
        """
        if self.path and load_accounts(self.path) is None and self._was_read:
            raise ConfigError(self.path, "no longer exists")

    def recheck(self) -> None:
        """Reload the file now if it has changed, before a user is refused for what another process may have changed."""
        self.refresh(periodic=False)

    def refresh(self, *, periodic: bool = True) -> bool:
        """Reload the file if it has changed; return whether it was reloaded. An invalid file changes nothing.

        An empty file is loaded when a second periodic check finds it empty, too.
        """
        signature = self._signature() if self.path else None
        if signature == self._loaded_signature:
            return False
        self._loaded_signature = signature
        try:
            accounts = self._read()
        except ConfigError as error:
            self._log.error("user file not reloaded, keeping the last good one: {error}", error=error)
            return False
        if accounts is None:
            self._log.error(
                "user file not reloaded, keeping the last good one: {path} no longer exists", path=self.path
            )
            return False
        if not accounts.by_name and self._accounts.by_name and not (periodic and self._was_empty):
            # htpasswd truncates the file before it writes: check once more before all users are signed out.
            self._was_empty, self._loaded_signature = self._was_empty or periodic, None
            return False
        self._was_empty = False
        before, self._accounts = self._accounts, accounts
        self.version += 1
        count = len(accounts.by_name)
        self._log.info("{path}: {users}", path=self.path, users="1 user" if count == 1 else f"{count} users")
        now = accounts.by_name
        self._changed({name: now.get(name) for name, old in before.by_name.items() if not _is_same(old, now.get(name))})
        return True

    def _read(self) -> _Accounts | None:
        by_name = load_accounts(self.path)
        self._was_read = self._was_read or by_name is not None
        return None if by_name is None else _index(by_name)

    def get(self, name: str) -> Account | None:
        """Return an account by its normalized name."""
        return self._accounts.by_name.get(name)

    def fingerprint(self, name: str) -> bytes | None:
        """Return the fingerprint of an account, None if there is no such account."""
        return self._accounts.fingerprints.get(name)

    def entry(self, name: str) -> bytes | None:
        """Return the identity of an account's entry, None if there is no such account."""
        return self._accounts.entries.get(name)

    def revalidate(self, name: str) -> Revalidate:
        """Return a callback that returns whether the account still exists, with the same password."""
        return partial(self._is_unchanged, name, self._accounts.fingerprints.get(name))

    async def _is_unchanged(self, name: str, fingerprint: bytes | None) -> bool:
        return self.fingerprint(name) == fingerprint

    def dummy_hash(self, name: str, key: bytes) -> str:
        """Return the hash to verify against for an unknown user, so that timing does not reveal that it is unknown.

        Its cost is that of some account's hash, and the same each time for a name.

        Args:
            name: the unknown user.
            key: the same for all workers and after each start.
        """
        hashes = self._accounts.hash_by_cost
        text = name.encode(errors="surrogateescape")
        return hashes[max(hashes, key=lambda cost: hmac.digest(key, b"%b\0%b" % (cost.encode(), text), "sha256"))]

    @property
    def accounts(self) -> Mapping[str, Account] | None:
        """All accounts by name; None as long as no file has been read."""
        return self._accounts.by_name if self._was_read else None

    def _signature(self) -> tuple[int, ...] | None:
        """Return the stat fields that identify a version of the file; a restored copy may have an older time."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 - as the docstring says
        except (OSError, ValueError):  # ValueError: the path has a NUL
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
