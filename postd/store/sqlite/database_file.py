"""Opening an SQLite file: is it ours, is it whole, is its schema today's?

All of it blocks. Every way in which a file can be unfit ends in one clear line.

A file that an older postd has left is brought up to date, step by step, in one transaction. No older postd can use it
after that; so a copy of it as it was is kept first, and only a server does it, never a command that is meant to look.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from twisted.logger import Logger

from postd.errors import (
    StoreFullError,
    StoreMissingError,
    StoreOlderError,
    StoreRefusedError,
    StoreUnavailableError,
)
from postd.store.sqlite.file_locks import Identity, identity_of
from postd.store.sqlite.upgrade_copy import check_room, keep_upgrade_copy, size_of
from postd.store.sqlite.wal_files import is_in_use, log_is_of_another

APPLICATION_ID = int.from_bytes(b"post")
"""SQLite's mark of whose file it is (`PRAGMA application_id`)."""

OPEN_TIMEOUT_MS = 250
"""How long opening waits for a lock that another process holds."""

BUSY_TIMEOUT_MS = 5000
"""How long a write does."""

CHECKED_WHOLE_MAX_BYTES = 256 * 1024 * 1024
"""A larger file is not read from end to end at start."""

_SELECT_SCHEMA = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"

_AWAY = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"}
_FULL = {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}
_REFUSED = {
    "SQLITE_NOTADB": "it is not an SQLite database",
    "SQLITE_CORRUPT": "it is damaged; restore a backup, or try sqlite3's .recover",
    "SQLITE_READONLY": "it is not writable",
    "SQLITE_PERM": "it is not writable",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_ERROR": "its tables are not those of postd",
}


def is_locked(error: sqlite3.Error) -> bool:
    """Tell whether another connection holds what was asked for."""
    return _name(error)[0] in _AWAY


def store_error(error: sqlite3.Error, path: str) -> StoreRefusedError | StoreUnavailableError:
    """Put SQLite's error into our words: refused, full, or away for now."""
    primary, name = _name(error)
    if primary in _FULL or name in _FULL:
        return StoreFullError(f"{path}: no space left ({name})")
    if name == "SQLITE_READONLY_DIRECTORY":
        return StoreRefusedError(f"{path}: its folder is not writable")
    if primary in _REFUSED:
        return StoreRefusedError(f"{path}: {_REFUSED[primary]} ({error})")
    return StoreUnavailableError(f"{path}: {error} ({name})")


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN") -> Iterator[None]:
    """Make one transaction of what is done within; whatever goes wrong, none is left open."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends it by itself after some errors
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def _name(error: sqlite3.Error) -> tuple[str, str]:
    """SQLite's name of an error without and with its extension: SQLITE_IOERR, SQLITE_IOERR_WRITE."""
    name = getattr(error, "sqlite_errorname", None) or "SQLITE_ERROR"
    return "_".join(name.split("_")[:2]), name


class DatabaseFile:
    """A store's file.

    Args:
        path: the file.
        synchronous: SQLite's word for how durable a commit is.
        upgrade: whether one that an older postd has left is brought up to date, and not refused.
    """

    _log = Logger()

    def __init__(self, path: str, *, synchronous: str = "FULL", upgrade: bool = True) -> None:
        self.path = path
        self._synchronous = synchronous
        self._may_upgrade = upgrade
        self._synced = True
        self._busy_timeout_ms = BUSY_TIMEOUT_MS

    def open_writer(self, *, create: bool = False, check_whole: bool = False) -> sqlite3.Connection:
        """Open the file for writing, bringing its schema up to date if need be.

        Args:
            create: make the file if it is not there.
            check_whole: read the file from end to end, as far as that is quick.

        Raises:
            StoreRefusedError: it cannot or must not be used (`StoreOlderError`: not as an older postd has left it).
            StoreUnavailableError: it is locked, or there is no space, or an older postd is at work on it.
        """
        if create:
            self._create_if_missing()
        self._check_place()
        if log_is_of_another(self.path):
            raise StoreUnavailableError(
                f"{self.path}: the write-ahead log beside it is that of a file that was there before, and in use"
            )

        in_use = is_in_use(self.path)

        def set_up(connection: sqlite3.Connection) -> None:
            connection.execute(f"PRAGMA busy_timeout = {OPEN_TIMEOUT_MS}")
            self._identify(connection)
            # All that can be wrong is found before anything is changed.
            steps = schema_steps()
            with transaction(connection):
                schema = self._schema(connection, known=len(steps))
                if schema:
                    self._check_tables(connection, steps[:schema])
            if check_whole and Path(self.path).stat().st_size <= CHECKED_WHOLE_MAX_BYTES:
                self._check_whole(connection)
            if 0 < schema < len(steps):
                self._check_upgrade(connection, schema, len(steps), in_use=in_use)
            self._set_journal(connection)
            if schema < len(steps):
                self._upgrade(connection, steps)
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            self._synced, self._busy_timeout_ms = True, BUSY_TIMEOUT_MS

        return self._open(set_up)

    def open_reader(self) -> sqlite3.Connection:
        """Open the file, which a writer has open already, for reading.

        It never waits for a lock: it is for the reactor's thread.
        """

        def set_up(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("SELECT count(*) FROM sqlite_master")  # only now are all its files open

        return self._open(set_up)

    def set_synchronous(self, connection: sqlite3.Connection, *, synced: bool) -> None:
        """Let the next commits of a writer wait for the disk, or for the operating system only."""
        if synced != self._synced and self._synchronous == "FULL":
            connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            self._synced = synced

    def set_waited(self, connection: sqlite3.Connection, waited_s: float) -> None:
        """Let the next transaction of a writer wait for as long as is left of what a write may wait in all."""
        busy_timeout_ms = BUSY_TIMEOUT_MS - int(waited_s * 10) * 100
        if busy_timeout_ms != self._busy_timeout_ms:
            connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
            self._busy_timeout_ms = busy_timeout_ms

    def identity(self) -> Identity | None:
        """Return what tells this file from another one put in its place, None if there is none."""
        return identity_of(self.path)

    def _create_if_missing(self) -> None:
        """Make the empty file ourselves: SQLite would leave its mode to the umask, and it will hold secrets."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise StoreRefusedError(f"{self.path}: it cannot be created: {error.strerror}") from None

    def _check_place(self) -> None:
        try:
            mode = Path(self.path).stat().st_mode
        except FileNotFoundError:
            raise StoreMissingError(f"{self.path}: there is no such file") from None
        except OSError as error:
            raise StoreRefusedError(f"{self.path}: it cannot be opened: {error.strerror}") from None
        if not stat.S_ISREG(mode):
            raise StoreRefusedError(f"{self.path}: it is not a file")
        # SQLite opens what it may only read, and begins a transaction on it, without a word.
        if not os.access(self.path, os.W_OK):
            raise StoreRefusedError(f"{self.path}: it is not writable")

    def _open(self, set_up: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        """Connect and set up; what fails is told in our words and leaves nothing open."""
        try:
            # mode=rw: a file that has gone since must not come back as a new, empty store.
            uri = f"file:{quote(os.fsencode(self.path))}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA trusted_schema = OFF")
                set_up(connection)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise store_error(error, self.path) from None
        return connection

    def _identify(self, connection: sqlite3.Connection) -> None:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != APPLICATION_ID and (application or tables):
            raise StoreRefusedError(f"{self.path}: it is an SQLite database of another program, not of postd")

    def _set_journal(self, connection: sqlite3.Connection) -> None:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreRefusedError(
                f"{self.path}: SQLite cannot keep a write-ahead log there (journal mode {mode!r}); use a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA journal_size_limit = 16777216")

    def _check_upgrade(self, connection: sqlite3.Connection, schema: int, known: int, *, in_use: bool) -> None:
        try:
            check_room(connection, self.path)
        except OSError as error:
            raise self._no_copy(connection, schema, known, error.strerror) from None
        if not self._may_upgrade:
            raise StoreOlderError(
                f"{self.path}: it has schema {schema}, of an older postd; the server brings it up to {known} when it "
                "starts, and keeps a copy"
            )
        if in_use:  # it may not know what it finds from then on, and its workers would not come back
            raise StoreUnavailableError(
                f"{self.path}: an older postd has it open; it is brought up from schema {schema} to {known} once that "
                "has ended"
            )

    def _upgrade(self, connection: sqlite3.Connection, steps: list[str]) -> None:
        copy = ""
        with transaction(connection, "BEGIN IMMEDIATE"):  # of several processes the others find it done
            schema = self._schema(connection, known=len(steps))
            if 0 < schema < len(steps):
                copy = self._keep_copy(connection, schema, len(steps))
            for step in steps[schema:]:
                for statement in _statements(step):
                    connection.execute(statement)
            if schema < len(steps):
                connection.execute(f"PRAGMA user_version = {len(steps)}")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._check_tables(connection, steps)
        if copy:
            self._log.info(
                "store: {path} was brought up from schema {schema} to {known}; as it was it is kept in {copy}",
                path=self.path,
                schema=schema,
                known=len(steps),
                copy=copy,
            )

    def _keep_copy(self, connection: sqlite3.Connection, schema: int, known: int) -> str:
        """Keep a copy of what is committed; `connection` sees to it that nothing else is meanwhile."""
        # Of its own: one that is writing is no source of a copy.
        with closing(self.open_reader()) as source:
            try:
                return keep_upgrade_copy(source, self.path, f".schema-{schema}")
            except (OSError, sqlite3.Error) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise self._no_copy(connection, schema, known, why) from None

    def _no_copy(self, connection: sqlite3.Connection, schema: int, known: int, why: str | None) -> StoreRefusedError:
        room = f"{size_of(connection) // 2**20 + 1} MiB in a folder that postd may write to"
        return StoreRefusedError(
            f"{self.path}: it is not brought up from schema {schema} to {known}, for the copy that is kept first "
            f"cannot be made: {why}; it takes {room}"
        )

    def _schema(self, connection: sqlite3.Connection, *, known: int) -> int:
        schema: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if schema > known:
            raise StoreRefusedError(
                f"{self.path}: it was written by a newer postd (schema {schema}; this one knows {known})"
            )
        return schema

    def _check_tables(self, connection: sqlite3.Connection, steps: list[str]) -> None:
        """Make sure that all is there that the steps make; somebody may have been at it with the sqlite3 shell."""
        missing = _tables_of(tuple(steps)) - set(connection.execute(_SELECT_SCHEMA))
        if missing or connection.execute("SELECT count(*) FROM version").fetchone() != (1,):
            names = ", ".join(sorted(name for _, name, _ in missing)) or "version has no row"
            raise StoreRefusedError(f"{self.path}: its tables are not those of postd ({names})")

    def _check_whole(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreRefusedError(
                f"{self.path}: it is damaged; restore a backup, or try sqlite3's .recover ({found.splitlines()[-1]})"
            )


@cache
def _tables_of(steps: tuple[str, ...]) -> frozenset[tuple[str, str, str]]:
    """Return type, name and SQL of all that the steps make."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        for step in steps:
            model.executescript(step)
        return frozenset(model.execute(_SELECT_SCHEMA))


def schema_steps() -> list[str]:
    """Return the numbered schema files, in order: step n leads from schema n-1 to schema n."""
    folder = resources.files("postd.store.sqlite") / "schema"
    return [step.read_text("utf-8") for step in sorted(folder.iterdir(), key=lambda file: file.name)]


def _statements(script: str) -> list[str]:
    """Split a script at the semicolons that end statements.

    `executescript` would commit the transaction first, and a step must take effect whole or not at all.
    """
    statements, lines = [], list[str]()
    for line in script.splitlines(keepends=True):
        lines.append(line)
        if line.rstrip().endswith(";") and sqlite3.complete_statement("".join(lines)):
            statements.append("".join(lines))
            lines = []
    return statements
