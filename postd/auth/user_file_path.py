"""The way to the user file, symbolic links included (contract 7).

Root edits files in folders of other users. There, a link to a file of root's would have root read and replace that
file. The path is therefore walked a component at a time, each opened relative to the folder before it: what was checked
is what is used, whatever is moved meanwhile.
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
"""Links in a path, as for Linux (path_resolution(7))."""

_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Place(Struct, frozen=True):
    """A file that is there or may be made: the descriptor of its folder (`O_PATH`), and its name in there."""

    folder: int
    name: str


@contextmanager
def follow(path: Path) -> Iterator[Place]:
    """Give the place that a path leads to; its name was no symbolic link.

    Run by root, no link is followed that belongs neither to root nor to the owner of the file (of its folder, if the
    file is not there). Opening nothing before that is known leaves devices alone.

    Raises:
        ConfigError: there is such a link, or a NUL in the path.
        OSError: the path leads nowhere.
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
                f"the symbolic link {link} belongs to {_user(maker)}, what it leads to to {_user(owner)}; root follows "
                "only links of root or of that owner: give the path of the file itself",
            )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
