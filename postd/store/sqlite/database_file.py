"""Open the file of a store: create it, check it, upgrade its schema.

All functions block. Each reason to refuse a file is one line.

A file with an older schema is upgraded step by step, in one transaction. An older postd cannot use it afterwards; so a
copy is kept first, and only a server upgrades, not a command that only reads.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from twisted.logger import Logger

from postd.errors import StoreMissingError, StoreOlderError, StoreRefusedError, StoreUnavailableError
from postd.store.base import revision_of_copy
from postd.store.sqlite.deleted_texts import SEARCHED_MAX_BYTES, empty_log, roots_of_texts, vacuum
from postd.store.sqlite.errors import DAMAGED, store_error
from postd.store.sqlite.file_locks import SharedFile, identity_of, open_descriptors
from postd.store.sqlite.held_file import HeldFile, locked_folder
from postd.store.sqlite.unused_space import find_texts
from postd.store.sqlite.upgrade_copy import check_room, keep_upgrade_copy, size_of

APPLICATION_ID = int.from_bytes(b"post")
"""Identifies the files of postd (`PRAGMA application_id`)."""

OPEN_TIMEOUT_MS = 250
"""How long opening waits for the lock of another process."""

BUSY_TIMEOUT_MS = 5000
"""How long a write waits for it."""

CHECKPOINT_TIMEOUT_MS = 1000
"""How long the last close waits for other readers of a file that was moved away."""

CHECKED_WHOLE_MAX_BYTES = 256 * 1024 * 1024
"""A larger file is not checked from end to end at start."""

SCHEMA_WITHOUT_TEXTS = 7
"""The first schema whose change log has no texts, and whose users overwrite what they delete."""

MARK_AS_BACKUP = "UPDATE version SET tag = x''"
"""The tag of a version is random: only a backup that no server has opened has an empty one."""

_LOCKED = "another process opens or closes it"

_SELECT_SCHEMA = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"


@contextmanager
def transaction(
    connection: sqlite3.Connection, begin: str = "BEGIN", end: str = "COMMIT", undo: str = "ROLLBACK"
) -> Iterator[None]:
    """Run the statements within in one transaction or savepoint, which is undone on an error."""
    connection.execute(begin)
    try:
        yield
        connection.execute(end)
    except BaseException:
        if connection.in_transaction:  # SQLite ends it by itself after some errors
            with suppress(sqlite3.Error):
                connection.execute(undo)
        raise


class DatabaseFile:
    """A store's file.

    Args:
        synchronous: how durable a commit is (`PRAGMA synchronous`).
        upgrade: whether it is opened as by a server: a file with an older schema is upgraded instead of refused, and a
            backup gets a version of its own.
        unlinked: whether the file is removed from its path as soon as it is open.

    Attributes:
        path: where the file is looked for.
        synchronous, unlinked: as the arguments.
        held: the file that was found there, None while none is open.
    """

    _log = Logger()

    def __init__(self, path: str, *, synchronous: str = "FULL", upgrade: bool = True, unlinked: bool = False) -> None:
        self.path = path
        self.unlinked = unlinked
        self.held: HeldFile | None = None
        self.synchronous = synchronous
        self._may_upgrade = upgrade
        self._is_new = False

    def prepare(self, *, create: bool = False) -> bool:
        """Check the file as `open_writer`, from end to end if it is not too large; upgrade it, or create it.

        If it may be upgraded, texts of deleted posts in its unused space are removed, too.

        Returns:
            Whether it was created.
        """
        with self._opened(create=create, check_whole=True) as connection:
            roots = roots_of_texts(connection)
        is_new = self._is_new
        if not self._may_upgrade or Path(self.path).stat().st_size > SEARCHED_MAX_BYTES:
            return is_new
        with closing(SharedFile(self.path, os.O_RDONLY)) as file:
            is_found = any(find_texts(file.descriptor, roots))
        if is_found:
            with self._opened() as connection:
                self._vacuum(connection)
        return is_new

    @contextmanager
    def _opened(self, *, create: bool = False, check_whole: bool = False) -> Iterator[sqlite3.Connection]:
        writer, _ = self.open_writer(create=create, check_whole=check_whole)
        try:
            yield writer
        finally:
            self.close_writer(writer, stopping=True)

    def open_writer(self, *, create: bool = False, check_whole: bool = False) -> tuple[sqlite3.Connection, HeldFile]:
        """Open the file for writing, and upgrade its schema if it is older.

        With `check_whole`, or an old log beside it, it is checked from end to end, if it is not too large.

        Raises:
            StoreRefusedError: it must not be used (`StoreOlderError`: it has an older schema, and `upgrade` is False).
            StoreMissingError: there is none, or an empty one, and not `create`.
            StoreUnavailableError: it is locked, there is no space, an older postd has it open, or the write-ahead log
                beside it is that of another file.
        """
        if create:
            self._create_if_missing()
        self._check_place()
        path = os.path.realpath(self.path)
        with locked_folder(path) as locked:
            if not locked:
                raise StoreUnavailableError(f"{self.path}: {_LOCKED}")
            self.held = held = HeldFile(path)
            try:
                return self._open_held(held, create=create, check_whole=check_whole), held
            except BaseException as error:
                self.held = None
                held.close()
                if isinstance(error, StoreRefusedError) and DAMAGED in error.why and held.has_old_log:
                    cure = f"if another file was in its place before, remove {path}-wal, which is that one's"
                    raise StoreRefusedError(f"{error.why}; {cure}") from None
                raise

    def _open_held(self, held: HeldFile, *, create: bool, check_whole: bool) -> sqlite3.Connection:
        if conflict := held.find_conflict():
            raise StoreUnavailableError(f"{self.path}: {conflict}")
        in_use = held.is_in_use()

        def set_up(connection: sqlite3.Connection) -> None:
            connection.execute(f"PRAGMA busy_timeout = {OPEN_TIMEOUT_MS}")
            # All checks come before the first change.
            steps = schema_steps()
            with transaction(connection):  # another process may be creating the tables
                self._identify(connection)
                schema = self._schema(connection, known=len(steps))
                self._is_new = not schema
                if schema:
                    self._check_tables(connection, steps[:schema])
                elif not create:  # it is being copied there perhaps
                    raise StoreMissingError(f"{self.path}: it is empty")
            is_checked = check_whole or held.has_old_log
            if is_checked and Path(self.path).stat().st_size <= CHECKED_WHOLE_MAX_BYTES:
                self._check_whole(connection)
            if 0 < schema < len(steps):
                self._check_upgrade(connection, schema, len(steps), in_use=in_use)
            self._set_journal(connection)
            if schema < len(steps):
                self._upgrade(connection, steps)
            if 0 < schema < SCHEMA_WITHOUT_TEXTS:
                self._vacuum(connection)
            if self._may_upgrade:
                _begin_backup(connection)
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            connection.execute("SELECT count(*) FROM sqlite_master")  # opens the -wal and -shm files
            held.claim()

        return self._open(held, "rw", set_up)

    def close_writer(self, writer: sqlite3.Connection, *, stopping: bool = False) -> str:
        """Close the file, after its readers, so that all commits are in it, or in the log beside it.

        If it was moved, the log would stay where it was, and be taken for that of a file that is put there. So the log
        is checkpointed into the file, wherever that is now, and removed once no process uses it.

        Returns:
            Why that is not possible now; empty: it is closed. With `stopping` it is always closed, after a timeout.
        """
        held = self.held
        if held is None:
            return ""
        with locked_folder(held.path) as locked:
            is_last, moved = locked and not held.is_in_use(), not held.is_in_place()
            why = "" if locked else _LOCKED
            if is_last or moved:
                why = self._empty_log(writer, CHECKPOINT_TIMEOUT_MS if moved and stopping else 0) or why
            if why and not stopping:
                return why
            writer.close()
            if is_last and not why:
                held.remove_log()
            elif is_last and moved:
                self._log.error(
                    "store: {path} was moved, and its newest posts are in {path}-wal: {why}", path=self.path, why=why
                )
            held.close()
            self.held = None
        return ""

    def _empty_log(self, writer: sqlite3.Connection, busy_timeout_ms: int) -> str:
        """Copy the write-ahead log into the file and empty it; return why that is not possible."""
        try:
            writer.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
            return "" if empty_log(writer) else "another program reads it"
        except sqlite3.Error as error:
            return str(error)

    def is_in_place(self) -> bool:
        """Return whether the file that is open, and the log beside it, are still at their paths."""
        held = self.held
        return held is not None and identity_of(self.path) == held.file.identity and held.is_in_place()

    @property
    def replaced(self) -> str:
        """What an error says if the open file is no longer at its path."""
        return f"{self.path}: it was moved, removed or replaced"

    def open_reader(self) -> sqlite3.Connection:
        """Open the file for reading, while a writer has it open. Reads never wait for a lock.

        Raises:
            StoreRefusedError, StoreUnavailableError: it cannot be opened.
        """

        def set_up(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("SELECT count(*) FROM sqlite_master")  # opens the -wal and -shm files

        if self.held is None:
            raise StoreUnavailableError(f"{self.path}: not open")
        return self._open(self.held, "ro", set_up)

    def _create_if_missing(self) -> None:
        """Create the empty file with mode 0600: SQLite would use the umask, and the file will hold secrets."""
        log = Path(f"{os.path.realpath(self.path)}-wal")
        with suppress(OSError):
            # SQLite would remove it, and with it the newest posts of a file that was moved before postd was killed.
            if log.stat().st_size and identity_of(self.path) is None:
                raise StoreRefusedError(
                    f"{self.path}: there is no such file, but its write-ahead log is there; move the file back, or "
                    f"remove {log}"
                )
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
        # SQLite would open a read-only file, and even begin a write transaction, without an error.
        if not os.access(self.path, os.W_OK):
            raise StoreRefusedError(f"{self.path}: it is not writable")

    def _open(self, held: HeldFile, mode: str, set_up: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        """Connect and set up; an error leaves nothing open."""
        try:
            # Not mode=rwc: a file that was removed since must not be created again, empty.
            uri = f"file:{quote(os.fsencode(held.path))}?mode={mode}"
            before = open_descriptors()
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                # SQLite opens the log at the first query. It may have opened a descriptor, or reused one.
                opened = {identity for _, identity in open_descriptors() - before}
                if opened and held.file.identity not in opened:
                    self._raise_moved()
                connection.execute("PRAGMA trusted_schema = OFF")
                set_up(connection)
            except BaseException:
                with held.old_log_kept():
                    connection.close()
                raise
        except sqlite3.Error as error:
            if held.was_moved():
                self._raise_moved()
            raise store_error(error, self.path) from None
        return connection

    def _raise_moved(self) -> NoReturn:
        raise StoreUnavailableError(self.replaced) from None

    def _identify(self, connection: sqlite3.Connection) -> None:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != APPLICATION_ID and (application or tables):
            raise StoreRefusedError(f"{self.path}: it is an SQLite database of another program, not of postd")

    def _set_journal(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")  # first: the other writes to the file
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreRefusedError(
                f"{self.path}: SQLite cannot keep a write-ahead log there (journal mode {mode!r}); use a local disk"
            )
        # SQLite's own checkpoints stay on: the commit that passes 1000 pages, one in some 170 batches of posts, takes
        # 1 ms of CPU and a sync of the file for one. In a thread of its own it would never have copied all while writes
        # go on, and the log would grow: a commit that makes it longer takes twice as long as one that overwrites.
        connection.execute("PRAGMA journal_size_limit = 16777216")

    def _check_upgrade(self, connection: sqlite3.Connection, schema: int, known: int, *, in_use: bool) -> None:
        try:
            check_room(connection, self.path)
        except OSError as error:
            raise self._no_copy(connection, schema, known, error.strerror) from None
        if not self._may_upgrade:
            raise StoreOlderError(
                f"{self.path}: it has schema {schema}, of an older postd; the server upgrades it to {known} when it "
                "starts, and keeps a copy"
            )
        if in_use:  # an older server fails on the new schema, and its workers could not restart
            raise StoreUnavailableError(
                f"{self.path}: an older postd has it open; it is upgraded from schema {schema} to {known} once that "
                "has ended"
            )

    def _upgrade(self, connection: sqlite3.Connection, steps: Sequence[str]) -> None:
        copy = ""
        with transaction(connection, "BEGIN IMMEDIATE"):  # other processes wait, and find it upgraded
            schema = self._schema(connection, known=len(steps))
            if 0 < schema < len(steps):
                copy = self._keep_copy(connection, schema, len(steps))
            for step in steps[schema:]:
                _apply_step(connection, step)
            if schema < len(steps):
                connection.execute(f"PRAGMA user_version = {len(steps)}")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._check_tables(connection, steps)
        if copy:
            self._log.info(
                "store: {path} was upgraded from schema {schema} to {known}; a copy of the old file{which} is {copy}",
                path=self.path,
                schema=schema,
                known=len(steps),
                which=", which has texts of deleted posts," if schema < SCHEMA_WITHOUT_TEXTS else "",
                copy=copy,
            )

    def _vacuum(self, connection: sqlite3.Connection) -> None:
        """Remove the texts of deleted posts from unused space. The file can be used without, until the next start."""
        try:
            vacuum(connection)
        except sqlite3.Error as error:
            self._log.error(
                "store: {why}: unused space of the file still has texts of deleted posts; VACUUM takes {room} in the "
                "folder of the file, and as much in that for temporary files",
                why=store_error(error, self.path).why,
                room=_mebibytes(connection),
            )

    def _keep_copy(self, connection: sqlite3.Connection, schema: int, known: int) -> str:
        """Keep a copy of the file, while the transaction of `connection` prevents other commits."""
        # A connection with a write transaction cannot be the source of a copy.
        with closing(self.open_reader()) as source:
            try:
                return keep_upgrade_copy(source, self.path, f".schema-{schema}")
            except (OSError, sqlite3.Error) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise self._no_copy(connection, schema, known, why) from None

    def _no_copy(self, connection: sqlite3.Connection, schema: int, known: int, why: str | None) -> StoreRefusedError:
        room = f"{_mebibytes(connection)} in a folder that postd may write to"
        return StoreRefusedError(
            f"{self.path}: it cannot be upgraded from schema {schema} to {known}: the backup copy cannot be "
            f"made: {why}; it takes {room}"
        )

    def _schema(self, connection: sqlite3.Connection, *, known: int) -> int:
        schema: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if schema > known:
            raise StoreRefusedError(
                f"{self.path}: it was written by a newer postd (schema {schema}; this one knows {known})"
            )
        return schema

    def _check_tables(self, connection: sqlite3.Connection, steps: Sequence[str]) -> None:
        """Raise StoreRefusedError if the file lacks a part of its schema, dropped with the sqlite3 shell perhaps."""
        missing = _find_missing(connection, steps)
        if missing or connection.execute("SELECT count(*) FROM version").fetchone() != (1,):
            names = ", ".join(missing) or "version has no row"
            raise StoreRefusedError(f"{self.path}: its tables are not those of postd ({names})")

    def _check_whole(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreRefusedError(f"{self.path}: {DAMAGED} ({found.splitlines()[-1]})")


def _begin_backup(connection: sqlite3.Connection) -> None:
    """Give the posts of a backup that a server opens for the first time a version that no other store has had."""
    for (revision,) in connection.execute("SELECT revision FROM version WHERE tag = x''").fetchall():
        with transaction(connection, "BEGIN IMMEDIATE"):
            connection.execute("DELETE FROM change")
            connection.execute("UPDATE version SET revision = ?, tag = randomblob(8)", (revision_of_copy(revision),))


def _mebibytes(connection: sqlite3.Connection) -> str:
    return f"{size_of(connection) // 2**20 + 1} MiB"


@cache
def schema_steps() -> tuple[str, ...]:
    """Return the schema files, in order: step n leads from schema n-1 to schema n."""
    folder = resources.files("postd.store.sqlite") / "schema"
    return tuple(step.read_text("utf-8") for step in sorted(folder.iterdir(), key=lambda file: file.name))


def _apply_step(connection: sqlite3.Connection, step: str) -> None:
    """Execute the statements of a schema file in the transaction that is open; `executescript` would commit it."""
    statement = ""
    for line in step.splitlines(keepends=True):
        statement += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def _find_missing(connection: sqlite3.Connection, steps: Sequence[str]) -> list[str]:
    """Return the names of tables, indexes and triggers of some schema files that a database lacks, or has otherwise."""
    missing = _objects_of(tuple(steps)) - set(connection.execute(_SELECT_SCHEMA))
    return sorted(name for _, name, _ in missing)


@cache
def _objects_of(steps: tuple[str, ...]) -> frozenset[tuple[str, str, str]]:
    """Return type, name and SQL of all that some schema files create."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        for step in steps:
            model.executescript(step)
        return frozenset(model.execute(_SELECT_SCHEMA))
