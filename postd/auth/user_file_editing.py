"""How the user file is changed: under a lock, as a whole or not at all (contract 1, "The `postd` command")."""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from postd.auth.user_file import USER_FILE_MAX_BYTES, Account, decode_users, open_at_once, read_user_file
from postd.auth.user_file_path import Place, follow
from postd.errors import ConfigError

_MODE = 0o600
_OTHERS = 0o077


class Edited(Struct, frozen=True):
    """What became of the file besides what was asked for.

    `created` if there was none before; `was_mode` is the mode it had if others than its owner were let in, else None.
    """

    created: bool
    was_mode: int | None


def edit_user_file(path: Path, change: Callable[[bytes, Mapping[str, Account]], bytes]) -> Edited:
    """Change the user file, or make it.

    Edits come one after the other, in this process or another; who reads meanwhile reads the old file or the new one.
    The file is on the disk before this returns. It has mode 0600 then, and the owner it had; one that root makes gets
    the owner of its folder, who in a folder of the daemon is the daemon. A link to the file stays one, where it is
    followed (`postd.auth.user_file_path`). All is done in the folder that was found so, whatever the path leads to
    meanwhile.

    Args:
        path: the file, or a link to it. Its folder must be there.
        change: called with the content and its accounts, both empty for a file that is not there yet; returns the
            new content. Whatever it raises ends the edit with nothing written.

    Raises:
        ConfigError: the file cannot be read or written, is broken as it stands, or behind somebody's link; nothing was
            written.
    """
    try:
        with follow(path) as place, _lock(place.folder) as folder:
            content, before = _read(path, place)
            changed = change(content or b"", decode_users(content or b"", str(path)))
            if len(changed) > USER_FILE_MAX_BYTES:
                raise ConfigError(str(path), f"would have more than {USER_FILE_MAX_BYTES // 1024**2} MiB")
            _replace(place, changed, _owner(before, folder))
            os.fsync(folder)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror}") from None
    except _NotOwnerError:
        raise ConfigError(str(path), "belongs to another user; do this as that user or as root") from None
    was_mode = before.st_mode & 0o7777 if before is not None and before.st_mode & _OTHERS else None
    return Edited(created=before is None, was_mode=was_mode)


def load_user_file(path: Path) -> bytes | None:
    """Return what is in the user file, None if there is no such file; links count as for `edit_user_file`.

    Raises:
        ConfigError: it cannot be read (`read_user_file`), or would not be edited.
    """
    try:
        with follow(path) as place:
            return _read(path, place)[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None


class _NotOwnerError(Exception):
    """The file would not belong any more to whom it belongs: the daemon, maybe, that could not read it then."""


@contextmanager
def _lock(folder: int) -> Iterator[int]:
    """Hold the folder's lock; gives another descriptor of it. Locking the folder leaves no lock file behind."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(path: Path, place: Place) -> tuple[bytes | None, os.stat_result | None]:
    """Return the content of the file, and what it is, None and None if it is not there. A link is none by now.

    Raises:
        ConfigError: it cannot be read; `path` is what it is called.
    """
    opened: list[os.stat_result] = []

    def open_in_place(_path: str, flags: int) -> int:
        descriptor = open_at_once(place.name, flags | os.O_NOFOLLOW, folder=place.folder)
        opened.append(os.fstat(descriptor))  # of what is read: the name may be another file's by now
        return descriptor

    content = read_user_file(path, open_in_place)
    return content, opened[0] if opened else None


def _owner(before: os.stat_result | None, folder: int) -> tuple[int, int]:
    if before is None and os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    status = os.fstat(folder) if before is None else before
    return status.st_uid, status.st_gid


def _replace(place: Place, content: bytes, owner: tuple[int, int]) -> None:
    # The lock lets us use the same name each time: what an edit that was killed left here goes with the next one.
    temporary, folder = f".{place.name}.new", place.folder
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, _MODE, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            os.fchmod(descriptor, _MODE)
            _give(descriptor, *owner)
            opened.write(content)
            opened.flush()
            os.fsync(descriptor)
        os.replace(temporary, place.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _give(descriptor: int, user: int, group: int) -> None:
    made = os.fstat(descriptor)
    if made.st_uid != user:
        try:
            os.fchown(descriptor, user, group)
        except PermissionError:
            raise _NotOwnerError from None
    elif made.st_gid != group:
        # Not everybody may give a file to every group, and with mode 0600 the group has no say.
        with suppress(PermissionError):
            os.fchown(descriptor, -1, group)
