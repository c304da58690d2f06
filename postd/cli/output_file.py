"""Output files that are created atomically and never replace an existing file."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from postd.store.sqlite.upgrade_copy import sync


@contextmanager
def new_file(file: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; the file made there becomes `file` on success.

    After an error it is removed, with SQLite's files beside it.

    Raises:
        click.ClickException: the file exists, its folder does not exist or is not writable, or writing fails.
    """
    if os.path.lexists(file):
        raise _file_exists(file)
    if not file.parent.is_dir():
        raise click.ClickException(f"{file}: there is no such folder")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise click.ClickException(f"{file}: the folder is not writable")
    made = file.parent / f".postd-{secrets.token_hex(8)}"
    try:
        yield made
        sync(made)
        os.link(made, file)  # a rename would replace a file that was made meanwhile
    except FileExistsError:
        raise _file_exists(file) from None
    except OSError as error:
        # Not str(error): it names the temporary file.
        raise click.ClickException(f"{file}: it cannot be written: {error.strerror}") from None
    finally:
        for name in (made, *journal_files(made)):
            name.unlink(missing_ok=True)
    sync(file.parent)


def journal_files(database: Path) -> list[Path]:
    """Return the paths of the files that SQLite keeps beside a database."""
    return [database.with_name(f"{database.name}{suffix}") for suffix in ("-wal", "-shm", "-journal")]


def _file_exists(file: Path) -> click.ClickException:
    return click.ClickException(f"{file}: there is such a file already, and nothing is overwritten; name a new one")
