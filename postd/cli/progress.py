"""How far a command has come, for who sits at the terminal."""

import io
import sys
from typing import Any, Self, TextIO

import click


class Bar:
    """How far the work has come, on the standard error if that is a terminal.

    Args:
        what: is done.
        length: of it all; 0 for a pipe, of which nobody knows how many bytes will come.
        shown: False to be silent on a terminal, too.
    """

    def __init__(self, what: str, length: int, *, shown: bool = True) -> None:
        terminal = shown and sys.stderr is not None and sys.stderr.isatty()
        self._file: TextIO = sys.stderr if terminal else io.StringIO()
        self._what = what
        self._bar: Any = click.progressbar(length=length, label=what, file=self._file) if length else None
        self._reached = 0

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*raised)
        else:
            self._file.write("\n" if self._reached else "")

    def reach(self, position: int) -> None:
        if self._bar is not None:
            self._bar.update(position - self._reached)
        else:
            self._file.write(f"\r{self._what}  {position // 1024} KiB")
            self._file.flush()
        self._reached = position
