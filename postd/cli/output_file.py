"""A new file that is there whole or not at all, and never takes the place of another."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from postd.store.sqlite.upgrade_copy import sync


@contextmanager
def new_file(file: Path) -> Iterator[Path]:
    """Yield a name in the same folder; what is made under it is called `file` at the end, if nothing goes wrong.

    Else it is removed, and so is what SQLite may have left beside it.

    Raises:
        click.ClickException: there is a file of that name, the folder is not there or not writable, the disk fails.
    """
    if os.path.lexists(file):
        raise _taken(file)
    if not file.parent.is_dir():
        raise click.ClickException(f"{file}: there is no such folder")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise click.ClickException(f"{file}: the folder is not writable")
    made = file.parent / f".postd-{secrets.token_hex(8)}"
    try:
        yield made
        sync(made)
        os.link(made, file)  # a rename would take the place of what has come there meanwhile
    except FileExistsError:
        raise _taken(file) from None
    except OSError as error:
        # Nobody knows it by the name that it has for now.
        raise click.ClickException(f"{file}: it cannot be written: {error.strerror}") from None
    finally:
        for name in (made, *beside(made)):
            name.unlink(missing_ok=True)
    sync(file.parent)


def beside(database: Path) -> list[Path]:
    """Return the names that SQLite uses beside that of a database."""
    return [database.with_name(f"{database.name}{suffix}") for suffix in ("-wal", "-shm", "-journal")]


def _taken(file: Path) -> click.ClickException:
    return click.ClickException(f"{file}: there is such a file already, and nothing is overwritten; name a new one")
