"""A process that upgrades a file: `python -m tests.store.sqlite.upgrading PATH [WHERE]`.

It prints `here`, reads a line, opens the file, and retries while that is locked. Then it prints its log. With one of
`WHERE` it kills itself at that point.
"""

import os
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence

from twisted.logger import capturedLogs, formatEvent

from postd.errors import StoreUnavailableError
from postd.store.sqlite import upgrade_copy as sqlite_copy
from postd.store.sqlite.database_file import DatabaseFile, schema_steps

NEWEST = len(schema_steps())


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def die() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


class DiesWithTheCopyInPlace(DatabaseFile):
    def _keep_copy(self, connection: sqlite3.Connection, schema: int, known: int) -> str:
        super()._keep_copy(connection, schema, known)
        return die()


class DiesBeforeTheCommit(DatabaseFile):
    def _check_tables(self, connection: sqlite3.Connection, steps: Sequence[str]) -> None:
        if len(steps) == NEWEST:
            die()
        super()._check_tables(connection, steps)


class DiesAfterTheCommit(DatabaseFile):
    def _upgrade(self, connection: sqlite3.Connection, steps: Sequence[str]) -> None:
        super()._upgrade(connection, steps)
        die()


class DiesWithTheCopyUnfinished(DatabaseFile):
    def _keep_copy(self, connection: sqlite3.Connection, schema: int, known: int) -> str:
        sqlite_copy._move_into_place = lambda made, wanted: die()  # noqa: SLF001 - there is no public call between the two
        return super()._keep_copy(connection, schema, known)


KINDS: dict[str, type[DatabaseFile]] = {
    "nowhere": DatabaseFile,
    "copy unfinished": DiesWithTheCopyUnfinished,
    "copy in place": DiesWithTheCopyInPlace,
    "before the commit": DiesBeforeTheCommit,
    "after the commit": DiesAfterTheCommit,
}


def main(path: str, where: str = "nowhere") -> None:
    file = KINDS[where](path)
    say("here")
    sys.stdin.readline()
    with capturedLogs() as events:
        deadline = time.monotonic() + 120
        while True:
            try:
                writer, _ = file.open_writer(check_whole=True)
                file.close_writer(writer)
            except StoreUnavailableError:
                if time.monotonic() > deadline:
                    raise
            else:
                break
    for event in events:
        say(formatEvent(event) or "")


if __name__ == "__main__":
    main(*sys.argv[1:])
