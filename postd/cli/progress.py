"""The progress bar of long commands."""

import io
import sys
from typing import Any, Self, TextIO

import click


class ProgressBar:
    """A progress bar on standard error, if that is a terminal.

    Args:
        what: the label, such as "importing".
        length: the position at the end; 0 for input of unknown length: the position is shown in KiB.
        shown: False to show nothing on a terminal either.
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

    def advance_to(self, position: int) -> None:
        if self._bar is not None:
            self._bar.update(position - self._reached)
        else:
            self._file.write(f"\r{self._what}  {position // 1024} KiB")
            self._file.flush()
        self._reached = position
