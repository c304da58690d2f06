"""Edits the user file under a lock and atomically, in a folder that may be another user's (reference: Command line).

Root edits files in folders of other users, where a symbolic link to a file of root would have root read and
replace that file. The path is therefore resolved one component at a time, each opened relative to the folder before it,
so that the file checked is the file used (reference: Safe by default).
"""

import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePath

from msgspec import Struct
from msgspec.structs import replace

from postd.auth.user_file import (
    USER_FILE_MAX_BYTES,
    Account,
    decode_users,
    open_nonblocking,
    read_user_file,
    set_account,
)
from postd.errors import ConfigError

_MODE = 0o600
_OTHERS = 0o077

_LINKS_MAX = 40
"""The most symbolic links in a path, as in Linux (path_resolution(7))."""

_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Edited(Struct, frozen=True):
    """Side effects of an edit.

    `created` is whether the file is new; `was_mode` its former mode if users other than its owner had access.
    """

    created: bool
    was_mode: int | None


class LockedError(Exception):
    """Another process is editing the file."""


class _Place(Struct, frozen=True):
    """A resolved path: the descriptor of the folder (`O_PATH`), and the name in it, which need not exist."""

    folder: int
    name: str


def edit_user_file(path: Path, change: Callable[[bytes, Mapping[str, Account]], bytes], *, wait: bool = True) -> Edited:
    """Change the user file, or create it.

    Edits are serialized, also between processes; readers get either the old content or the new. The file is synced to
    disk before this returns. It gets mode 0600 and keeps its owner; one created by root gets the owner of its folder,
    so that the daemon can read it. A symbolic link to the file stays a link. The folder is resolved once, so later
    changes to the path have no effect.

    Args:
        path: the file, or a link to it. Its folder must exist.
        change: called with the content and its accounts, both empty for a new file; returns the new content. If it
            raises, nothing is written.
        wait: whether to wait for another process that is editing the file.

    Raises:
        LockedError: another process is editing the file.
        ConfigError: the file cannot be read or written, is invalid, or is behind another user's link; nothing was
            written.
    """
    try:
        with _follow(path) as place, _lock(place.folder, wait=wait) as folder:
            content, before = _read(path, place)
            changed = change(content or b"", decode_users(content or b"", str(path)))
            if len(changed) > USER_FILE_MAX_BYTES:
                raise ConfigError(str(path), f"would have more than {USER_FILE_MAX_BYTES // 1024**2} MiB")
            _replace(place, changed, _owner(before, folder))
            os.fsync(folder)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror}") from None
    except _NotOwnerError:
        raise ConfigError(str(path), "belongs to another user; run the command as that user or as root") from None
    was_mode = before.st_mode & 0o7777 if before is not None and before.st_mode & _OTHERS else None
    return Edited(created=before is None, was_mode=was_mode)


def put_password(
    content: bytes,
    accounts: Mapping[str, Account],
    account: Account,
    check: Callable[[Account | None], None],
    *,
    keeps_entry: bool = True,
) -> bytes:
    """Return a user file with an account added, or its password replaced.

    Args:
        content: the file.
        accounts: its accounts.
        account: as by `make_account`.
        check: called with the account that the file has, None if it has none; it may raise.
        keeps_entry: whether the entry keeps its identity.
    """
    present = accounts.get(account.name)
    check(present)
    if present is not None and keeps_entry:
        account = replace(account, entry_id=present.entry)
    return set_account(content, account)


def find_write_problem(path: Path) -> str | None:
    """Return why the user file cannot be edited, None if nothing is seen that prevents it. Nothing is written."""
    try:
        with _follow(path) as place:
            return _find_write_problem(place, _read(path, place)[1])
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    except ConfigError as error:
        return error.why


def _find_write_problem(place: _Place, before: os.stat_result | None) -> str | None:
    user = os.geteuid()
    if before is not None and user not in (0, before.st_uid):
        return f"belongs to {_user(before.st_uid)}, and this process is of {_user(user)}"
    if before is not None and _is_mounted(place):
        return "is mounted by itself, so that no other file can take its place; mount its folder"
    if os.fstatvfs(place.folder).f_flag & os.ST_RDONLY:
        return "its folder cannot be written: it is on a read-only file system"
    if not os.access(".", os.R_OK | os.W_OK | os.X_OK, dir_fd=place.folder, effective_ids=True):
        return f"its folder cannot be written by {_user(user)}: each change replaces the file"
    return None


def _is_mounted(place: _Place) -> bool:
    """Return whether the file is a mount point, as a file that is passed to a container."""
    with ExitStack() as opened:
        entry = _open_entry(opened, place.name, place.folder)
        return _mount_of(entry) != _mount_of(place.folder)


def _mount_of(descriptor: int) -> str:
    """Return the id of the mount that a file is on (proc_pid_fdinfo(5))."""
    with suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
            if line.startswith("mnt_id:"):
                return line
    return ""  # there is no /proc


def load_user_file(path: Path) -> bytes | None:
    """Return the content of the user file, None if it does not exist; links are followed as by `edit_user_file`.

    Raises:
        ConfigError: it cannot be read (`read_user_file`), or would not be edited.
    """
    try:
        with _follow(path) as place:
            return _read(path, place)[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None


class _NotOwnerError(Exception):
    """The file's owner cannot be kept, so the daemon might no longer be able to read it."""


@contextmanager
def _lock(folder: int, *, wait: bool) -> Iterator[int]:
    """Hold a lock on the folder, and give a descriptor of it. Locking the folder needs no lock file."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise LockedError from None
        yield descriptor
    finally:
        os.close(descriptor)


def _read(path: Path, place: _Place) -> tuple[bytes | None, os.stat_result | None]:
    """Return the content of the file and its status, None and None if it does not exist. Links are not followed.

    Raises:
        ConfigError: it cannot be read; the error names `path`.
    """
    opened: list[os.stat_result] = []

    def open_in_place(_path: str, flags: int) -> int:
        descriptor = open_nonblocking(place.name, flags | os.O_NOFOLLOW, folder=place.folder)
        opened.append(os.fstat(descriptor))  # of the opened file: the name may be another file's by now
        return descriptor

    content = read_user_file(path, open_in_place)
    return content, opened[0] if opened else None


def _owner(before: os.stat_result | None, folder: int) -> tuple[int, int]:
    if before is None and os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    status = os.fstat(folder) if before is None else before
    return status.st_uid, status.st_gid


def _replace(place: _Place, content: bytes, owner: tuple[int, int]) -> None:
    # The lock allows a fixed name, so a file left by a killed edit is removed by the next one.
    temporary, folder = f".{place.name}.new", place.folder
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, _MODE, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            os.fchmod(descriptor, _MODE)
            _change_owner(descriptor, *owner)
            opened.write(content)
            opened.flush()
            os.fsync(descriptor)
        os.replace(temporary, place.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _change_owner(descriptor: int, user: int, group: int) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != user:
        try:
            os.fchown(descriptor, user, group)
        except PermissionError:
            raise _NotOwnerError from None
    elif status.st_gid != group:
        # Changing the group may not be permitted, and with mode 0600 it does not matter.
        with suppress(PermissionError):
            os.fchown(descriptor, -1, group)


@contextmanager
def _follow(path: Path) -> Iterator[_Place]:
    """Resolve a path; the name in the result was not a symbolic link when it was resolved.

    As root, only links of root and of the file's owner are followed (of the folder's owner, if the file does not
    exist). Nothing is opened for reading before that is checked, so that no device is touched.

    Raises:
        ConfigError: there is a link of another user, or a NUL in the path.
        OSError: the path cannot be resolved.
    """
    if "\0" in str(path):
        raise ConfigError(str(path), "the path has a NUL character")
    with ExitStack() as opened:
        folder = _open_entry(opened, ".", None)
        walked, left, links = Path(), list(reversed(path.parts)), list[tuple[Path, int]]()
        while True:
            name = left.pop() if left else "."
            try:
                entry = _open_entry(opened, name, folder)
            except FileNotFoundError:
                if left:
                    raise
                owner = os.fstat(folder).st_uid
                break
            status = os.fstat(entry)
            if stat.S_ISLNK(status.st_mode):
                links.append((walked / name, status.st_uid))
                if len(links) > _LINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                left += reversed(PurePath(os.readlink("", dir_fd=entry)).parts)
            elif left:
                folder, walked = entry, walked / name
            else:
                owner = status.st_uid
                break
        if os.geteuid() == 0:
            _check_links(path, links, owner)
        yield _Place(folder, name)


def _open_entry(opened: ExitStack, name: str, folder: int | None) -> int:
    descriptor = os.open(name, _ENTRY, dir_fd=folder)
    opened.callback(os.close, descriptor)
    return descriptor


def _check_links(path: Path, links: Sequence[tuple[Path, int]], owner: int) -> None:
    for link, maker in links:
        if maker not in (0, owner):
            raise ConfigError(
                str(path),
                f"the symbolic link {link} belongs to {_user(maker)}, its target to {_user(owner)}; root follows "
                "only links of root or of that owner: give the path of the file itself",
            )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
