"""Resolves the path of the user file, symbolic links included, without races (reference: Safe by default).

Root edits files in folders of other users, where a symbolic link to one of root's files would have root read and
replace that file. The path is therefore resolved one component at a time, each opened relative to the folder before it,
so that the file checked is the file used.
"""

import errno
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath

from msgspec import Struct

from postd.errors import ConfigError

_LINKS_MAX = 40
"""The most symbolic links in a path, as in Linux (path_resolution(7))."""

_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Place(Struct, frozen=True):
    """A resolved path: the descriptor of the folder (`O_PATH`), and the name in it, which need not exist."""

    folder: int
    name: str


@contextmanager
def follow(path: Path) -> Iterator[Place]:
    """Resolve a path; the name in the result was not a symbolic link when it was resolved.

    As root, only links of root and of the file's owner are followed (of the folder's owner, if the file does not
    exist). Nothing is opened for reading before that is checked, so that no device is touched.

    Raises:
        ConfigError: there is a link of another user, or a NUL in the path.
        OSError: the path cannot be resolved.
    """
    if "\0" in str(path):
        raise ConfigError(str(path), "there is a NUL in the path")
    with ExitStack() as opened:
        folder = _open(opened, ".", None)
        walked, left, links = Path(), list(reversed(path.parts)), list[tuple[Path, int]]()
        while True:
            name = left.pop() if left else "."
            try:
                entry = _open(opened, name, folder)
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
        yield Place(folder, name)


def _open(opened: ExitStack, name: str, folder: int | None) -> int:
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
